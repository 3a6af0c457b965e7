"""What the command line takes from sibling packages, each behind an extra."""

import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ._chat_template import ChatTemplate, template_difference
from ._findings import Finding
from ._records import Trajectory
from ._replay import Executor
from ._samples import TokenSample
from ._tokenize import Renderer


class MissingExtraError(Exception):
    """A command needs a sibling package that is not installed."""


class ExecutorError(Exception):
    """The sandbox did not work; no program's fate."""


@asynccontextmanager
async def open_executor(
    *, isolation: str, concurrency: int | None, timeout_s: float
) -> AsyncGenerator[Executor]:
    """Start a sandbox and give its code interpreter.

    Raises:
        MissingExtraError: retool-sandbox is not installed.
        ExecutorError: It did not start, or stopped working.
    """
    try:
        from retool_sandbox import Limits, Sandbox, SandboxError, code_interpreter
    except ImportError as error:
        raise MissingExtraError(
            "validate runs programs in retool-sandbox: pip install 'retool-data[sandbox]'"
        ) from error
    limits = Limits(wall_time_s=timeout_s)
    try:
        async with Sandbox(isolation=isolation, concurrency=concurrency, limits=limits) as sandbox:
            yield cast("Executor", code_interpreter(sandbox))
    except (SandboxError, ExceptionGroup) as error:
        cause: Exception = error
        while isinstance(cause, ExceptionGroup):
            cause = cause.exceptions[0]  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
        if not isinstance(cause, SandboxError | TimeoutError):
            raise
        raise ExecutorError(f"{type(cause).__name__}: {cause}") from error


@dataclass(frozen=True, slots=True)
class Rendering:
    """A dialect with its tokenizer, and the model's own chat template."""

    dialect: Renderer
    tokenizer_hash: str
    _tokenizer: Any
    _template: ChatTemplate | None
    _system_prompt: str | None

    def require_template(self) -> None:
        """Refuse to compare with a chat template that is not there.

        Raises:
            ValueError: There is none beside the tokenizer.
        """
        if self._template is None:
            raise ValueError(
                "--compare-template: no chat_template.jinja, nor a chat_template in "
                "tokenizer_config.json, beside the tokenizer"
            )

    def decode(self, ids: Sequence[int]) -> str:
        """Ids to text, control tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def difference(self, trajectory: Trajectory, sample: TokenSample) -> Finding | None:
        """Compare with the model's own chat template; None where there is none."""
        if self._template is None:
            return None
        if trajectory.problem.system is None:  # the dialect puts it before the messages, too
            trajectory = trajectory.with_problem_fields(system=self._system_prompt)

        def encode(text: str) -> list[int]:
            return self._tokenizer.encode(text, add_special_tokens=False).ids

        return template_difference(trajectory, sample, self._template, encode, self.decode)


def open_rendering(path: str, *, dialect: str, system_prompt: str | None) -> Rendering:
    """Load a tokenizer and make a dialect of retool-rollout for it.

    Raises:
        MissingExtraError: retool-rollout is not installed.
        ValueError: There is no such dialect.
        FileNotFoundError: There is no tokenizer.json.
    """
    try:
        from retool_rollout import Tokenizer, make_dialect
    except ImportError as error:
        raise MissingExtraError(
            "token ids are written by retool-rollout's dialects: pip install 'retool-data[rollout]'"
        ) from error
    from tokenizers import Tokenizer as FastTokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"no tokenizer.json at {path!r}; give a model's folder or the file")
    source = _template_of(file.parent)
    return Rendering(
        dialect=make_dialect(dialect, Tokenizer.load(path), system_prompt=system_prompt),
        tokenizer_hash=hashlib.sha256(file.read_bytes()).hexdigest(),
        _tokenizer=FastTokenizer.from_file(str(file)),
        _template=ChatTemplate(source) if source is not None else None,
        _system_prompt=system_prompt,
    )


def _template_of(folder: Path) -> str | None:
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return None
    template: Any = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(template, list):  # the older form: [{"name": "default", "template": ...}, ...]
        named = cast("list[dict[str, str]]", template)
        template = next((t["template"] for t in named if t["name"] == "default"), None)
    return template if isinstance(template, str) else None
