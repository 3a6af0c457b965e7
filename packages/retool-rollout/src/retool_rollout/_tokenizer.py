"""Turn text into ids so that only the renderer, never content, can produce a control token."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer as _FastTokenizer

Piece = tuple[str, bool]
"""(text, is_control). Added tokens become ids in a control piece; elsewhere they stay text."""


MAX_SHORT = 32
"""Characters of a text whose ids are remembered."""


class Tokenizer:
    """A `tokenizer.json` without its added tokens, and the added tokens beside it.

    The inner tokenizer has never heard of `<|im_end|>`, so tool output, a problem or a model's code
    that spells it is
    encoded as the ordinary characters it consists of. Control ids come only from `encode_pieces`
    and `control_id`.
    """

    def __init__(
        self,
        definition: str,
        *,
        chat_template: str | None = None,
        template_variables: Mapping[str, str] | None = None,
    ) -> None:
        """Build; most callers want `load`.

        Raises:
            ValueError: The definition is no `tokenizer.json`.
        """
        document = cast("dict[str, Any]", json.loads(definition))
        if "model" not in document:
            raise ValueError("this is no tokenizer.json: it has no model")
        added = cast("list[dict[str, Any]]", document.get("added_tokens") or [])
        self._id_of: dict[str, int] = {str(token["content"]): int(token["id"]) for token in added}
        self._text_of: dict[int, str] = {token_id: text for text, token_id in self._id_of.items()}
        self._strips_right = frozenset(
            str(token["content"]) for token in added if token.get("rstrip")
        )
        self._strips_left = frozenset(
            str(token["content"]) for token in added if token.get("lstrip")
        )
        # Longest first: `<think>` must not hide `<think>x`, should a tokenizer have both.
        alternatives = "|".join(
            re.escape(text) for text in sorted(self._id_of, key=len, reverse=True)
        )
        self._control = re.compile(f"({alternatives})") if alternatives else None
        document["added_tokens"] = []
        document["post_processor"] = None
        document["truncation"] = document["padding"] = None
        _remove_from_model(document["model"], set(self._id_of))
        try:
            self._plain = _FastTokenizer.from_str(json.dumps(document))
        except Exception as error:  # the library has no other type
            raise ValueError(f"this is no tokenizer.json: {error}") from error
        self._added_ids = frozenset(self._text_of)
        self._vocab_size = 1 + max(
            [*self._plain.get_vocab(with_added_tokens=False).values(), *self._added_ids]
        )
        self._short = lru_cache(4096)(self.encode_text)
        self.chat_template = chat_template
        self.template_variables = dict(template_variables or {})
        self.sha256 = hashlib.sha256(definition.encode()).hexdigest()

    @classmethod
    def load(cls, source: str | Path) -> "Tokenizer":
        """Load from a model's folder (chat template included), a `tokenizer.json`, or its text.

        Raises:
            FileNotFoundError: There is no such file, or the folder has no `tokenizer.json`.
            ValueError: It is none.
        """
        if isinstance(source, str) and source.lstrip().startswith("{"):
            return cls(source)
        path = Path(source)
        if not path.is_dir():
            return cls(path.read_text(encoding="utf-8"))
        file = path / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(
                f"{path} has no tokenizer.json; give the folder of a fast tokenizer"
            )
        settings = path / "tokenizer_config.json"
        config: dict[str, Any] = (
            json.loads(settings.read_text("utf-8")) if settings.is_file() else {}
        )
        return cls(
            file.read_text(encoding="utf-8"),
            chat_template=_chat_template_of(path, config),
            template_variables=_special_tokens(config),
        )

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return self._vocab_size

    @property
    def controls(self) -> dict[str, int]:
        """Every added token and its id."""
        return dict(self._id_of)

    def control_id(self, token: str) -> int:
        """The id of an added token.

        Raises:
            KeyError: The tokenizer has no such added token.
        """
        try:
            return self._id_of[token]
        except KeyError:
            raise KeyError(
                f"{token!r} is no added token of this tokenizer; it has {sorted(self._id_of)}"
            ) from None

    def encode_text(self, text: str) -> list[int]:
        """Encode content: whatever it spells, no added token comes out."""
        if not text:
            return []
        # A lone surrogate (a tool may print one) cannot be UTF-8; it becomes "?" instead
        # of an exception.
        clean = text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
        # Unlike `encode`, this keeps no offsets, which nobody here reads, and frees Python's lock.
        return self._plain.encode_batch_fast([clean], add_special_tokens=False)[0].ids

    def encode_pieces(self, pieces: Iterable[Piece]) -> list[int]:
        """Encode a rendering; neighbouring text is encoded together, as a template's output is."""
        ids: list[int] = []
        pending: list[str] = []

        def flush() -> None:
            if pending:
                text = "".join(pending)
                # The frame of every observation and prompt is the same few short texts.
                ids.extend(self._short(text) if len(text) <= MAX_SHORT else self.encode_text(text))
                pending.clear()

        for text, is_control in pieces:
            if not is_control or self._control is None:
                pending.append(text)
                continue
            # With one capturing group, split() alternates text, token, text, ...
            parts = self._control.split(text)
            for i, part in enumerate(parts):
                if i % 2 == 1:
                    flush()
                    ids.append(self._id_of[part])
                elif part:
                    if i > 0 and parts[i - 1] in self._strips_right:
                        part = part.lstrip()
                    if i + 1 < len(parts) and parts[i + 1] in self._strips_left:
                        part = part.rstrip()
                    pending.append(part)
        flush()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decode everything, control tokens included."""
        if self._added_ids.isdisjoint(ids):
            return self._plain.decode(list(ids), skip_special_tokens=False)
        parts: list[str] = []
        start = 0
        for position in [i for i, token_id in enumerate(ids) if token_id in self._added_ids]:
            if start < position:
                parts.append(self._plain.decode(ids[start:position], skip_special_tokens=False))
            parts.append(self._text_of[ids[position]])
            start = position + 1
        if start < len(ids):
            parts.append(self._plain.decode(ids[start:], skip_special_tokens=False))
        return "".join(parts)

    def split(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, for showing. A character of several tokens stands at its last."""
        texts: list[str] = []
        pending: list[int] = []
        for token_id in ids:
            if token_id in self._added_ids:
                texts.append(self._text_of[token_id])
                pending = []
                continue
            pending.append(token_id)
            text = self._plain.decode(pending, skip_special_tokens=False)
            # A character has at most four bytes: what is still broken then stays broken.
            if text.endswith("\ufffd") and len(pending) < 4:
                texts.append("")
                continue
            texts.append(text)
            pending = []
        return texts


def _remove_from_model(model: dict[str, Any], texts: set[str]) -> None:
    """Take the added tokens out of a BPE vocabulary, so that no merge can spell one."""
    vocab = model.get("vocab")
    if not isinstance(vocab, dict):
        return
    entries = cast("dict[str, int]", vocab)
    if texts.isdisjoint(entries):
        return
    model["vocab"] = {text: token_id for text, token_id in entries.items() if text not in texts}
    merges = cast("list[str | list[str]]", model.get("merges") or [])
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    model["merges"] = [
        pair for pair in pairs if "".join(pair) not in texts and texts.isdisjoint(pair)
    ]


def _chat_template_of(folder: Path, config: Mapping[str, Any]) -> str | None:
    template = folder / "chat_template.jinja"
    if template.is_file():
        return template.read_text(encoding="utf-8")
    value: Any = config.get("chat_template")
    if isinstance(value, list):  # the older form: [{"name": "default", "template": "..."}, ...]
        named = cast("list[dict[str, str]]", value)
        value = next((entry["template"] for entry in named if entry["name"] == "default"), None)
    return value if isinstance(value, str) else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """What templates call bos_token, eos_token, ...; a token is text or has it as `content`."""
    found: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value: Any = config.get(name)
        if isinstance(value, dict):
            value = cast("dict[str, Any]", value).get("content")
        if isinstance(value, str):
            found[name] = value
    return found
