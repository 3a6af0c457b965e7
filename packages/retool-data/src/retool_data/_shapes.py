"""Recognise the shape of a row by its columns, and read it into a record."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from ._chats import read_chat, read_content, read_prompt
from ._embed import COLUMN as EMBEDDED
from ._frames import split_frame
from ._parse import CODE_TOOL, parse_tora
from ._records import Problem, Provenance, Trajectory, to_json

Fields = Mapping[str, Any]


class UnknownShapeError(ValueError):
    """No shape fits the columns of a row."""


@dataclass(frozen=True, slots=True)
class Where:
    """Source and number of the row that is being read."""

    source: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One layout of rows seen in the wild."""

    name: str
    kind: Literal["problem", "trajectory"]
    about: str
    fits: Callable[[Fields], bool]
    """Asked of rows that have the first of `columns`."""
    read: Callable[[Fields, Where], Problem | Trajectory]
    columns: tuple[str, ...]
    """Hold what was asked, and said: `load(unique=True)` compares them."""


def read_gold(value: object) -> tuple[str | None, str]:
    """Read a gold answer and the JSON type it came in.

    Raises:
        ValueError: It is a list of several answers, or no answer at all.
    """
    if value is None or value != value:  # pandas writes a missing number as NaN
        return None, "str"
    if isinstance(value, str):
        return value, "str"
    if isinstance(value, bool):
        raise ValueError(f"a gold must be text or a number, got {value!r}")
    if isinstance(value, int):
        return str(value), "int"
    if isinstance(value, float):
        return repr(value), "float"
    if isinstance(value, list) and len(cast("list[object]", value)) == 1:
        return read_gold(cast("list[object]", value)[0])[0], "list"
    raise ValueError(f"a gold must be text or a number, got {value!r:.80}")


_ID_COLUMNS = ("problem_id", "id", "ID", "unique_id", "idx", "index", "group_id")


def _provenance(row: Fields, where: Where, shape: str, used: tuple[str, ...]) -> Provenance:
    extra = {
        key: value
        for key, value in row.items()
        if key not in used and key != EMBEDDED and value is not None
    }
    return Provenance(
        source=where.source, row=where.number, shape=shape, extra=_extra(extra) if extra else "{}"
    )


def _extra(columns: dict[str, Any]) -> str:
    try:
        return to_json(columns)
    except TypeError:  # a date, a decimal or bytes, from Parquet
        return json.dumps(columns, ensure_ascii=False, default=str)


def _problem_id(where: Where) -> str:
    # Unique within a source even where rows repeat, and readable in a report.
    return f"{where.source.rsplit('.', 1)[0]}:{where.number}"


def _read_problem(
    row: Fields,
    where: Where,
    *,
    shape: str,
    prompt: str,
    gold: Callable[[Fields], object],
    used: tuple[str, ...],
) -> Problem:
    value: object = row[prompt]
    system, history = None, ()
    if isinstance(value, list):
        system, history, text = read_prompt(cast("list[dict[str, Any]]", value))
    else:
        text = read_content(value)
        if not text.strip():
            raise ValueError("the prompt is empty")
    prefix, statement, suffix = split_frame(text)
    answer, gold_type = read_gold(gold(row))
    return Problem(
        problem_id=_problem_id(where),
        statement=statement,
        prefix=prefix,
        suffix=suffix,
        system=system,
        history=history,
        gold=answer,
        gold_type=cast("Any", gold_type),
        provenance=_provenance(row, where, shape, used),
    )


def _columns(shape: str, about: str, prompt: str, gold: str) -> Shape:
    return Shape(
        name=shape,
        kind="problem",
        about=about,
        fits=lambda row: gold in row and isinstance(row[prompt], str | list | None),
        read=partial(
            _read_problem,
            shape=shape,
            prompt=prompt,
            gold=lambda row: row[gold],
            used=(prompt, gold),
        ),
        columns=(prompt,),
    )


def _ground_truth(row: Fields) -> object:
    return cast("dict[str, Any]", row["reward_model"])["ground_truth"]


def _gsm8k_gold(row: Fields) -> object:
    return str(row["answer"]).rsplit("####", 1)[1].strip()


_BOXED = re.compile(r"\\boxed\s*\{")


def last_boxed(text: str) -> str | None:
    r"""Content of the last `\boxed{...}`, braces balanced; None where there is none."""
    found = [match.end() for match in _BOXED.finditer(text)]
    for start in reversed(found):
        depth = 1
        at = start
        while at < len(text) and depth:
            if text[at] == "\\":
                at += 1
            elif text[at] in "{}":
                depth += 1 if text[at] == "{" else -1
            at += 1
        if not depth:
            return text[start : at - 1].strip()
    return None


def _math_gold(row: Fields) -> object:
    return row["answer"] if row.get("answer") is not None else last_boxed(str(row["solution"]))


def _chat_gold(row: Fields) -> object:
    if isinstance(row.get("reward_model"), dict):
        return _ground_truth(row)
    return next((row[key] for key in ("label", "gold", "gt", "answer") if key in row), None)


def _read_messages(row: Fields, where: Where, *, shape: str, column: str) -> Trajectory:
    messages = cast("list[dict[str, Any]]", row[column])
    if column == "completion":
        messages = [*cast("list[dict[str, Any]]", row["prompt"]), *messages]
    gold, gold_type = read_gold(_chat_gold(row))
    used = (column, "prompt" if column == "completion" else column, "tools", "label", "gold", "gt")
    return read_chat(
        messages,
        problem_id=_problem_id(where),
        gold=gold,
        gold_type=gold_type,
        tools=row.get("tools"),
        provenance=_provenance(row, where, shape, used),
    )


def _read_tora(row: Fields, where: Where) -> Trajectory:
    gold, gold_type = read_gold(row.get("gt"))
    outputs = cast("list[str]", row["code"])
    if len(outputs) != 1:
        raise ValueError(f"expected one sampled output in `code`, got {len(outputs)}")
    problem = Problem(
        problem_id=_problem_id(where),
        statement=str(row["question"]),
        gold=gold,
        gold_type=cast("Any", gold_type),
        provenance=_provenance(row, where, "tora_output", ("question", "gt", "code")),
    )
    segments = parse_tora(outputs[0])
    return Trajectory(
        problem=problem, segments=segments, tools=to_json([CODE_TOOL]), dialect="tora"
    )


def _has_messages(row: Fields) -> bool:
    return isinstance(row["messages"], list)


def _says(row: Fields, mark: str) -> bool:
    """Whether an assistant's message holds a mark."""
    return _has_messages(row) and any(
        mark in content
        for message in row["messages"]
        if message.get("role") == "assistant" and isinstance(content := message.get("content"), str)
    )


def _is_structured(row: Fields) -> bool:
    return _has_messages(row) and any(
        message.get("tool_calls") or message.get("role") == "tool" for message in row["messages"]
    )


def _messages(
    name: str, about: str, fits: Callable[[Fields], bool], column: str = "messages"
) -> Shape:
    return Shape(
        name=name,
        kind="trajectory",
        about=about,
        fits=fits,
        read=partial(_read_messages, shape=name, column=column),
        columns=(column, "prompt") if column == "completion" else (column,),
    )


SHAPES: tuple[Shape, ...] = (
    _messages("verl_sft", "messages with tool_calls and role tool (verl, TRL)", _is_structured),
    _messages(
        "retool_raw",
        "messages; the assistant's one string holds <code> and <interpreter> (ReTool-SFT)",
        lambda row: _says(row, "<code>"),
    ),
    _messages(
        "hermes",
        "messages; calls as <tool_call> JSON in the text",
        lambda row: _says(row, "<tool_call>"),
    ),
    _messages(
        "tora_messages",
        "messages; ```python and ```output blocks in the text (ToRA)",
        lambda row: _says(row, "```output"),
    ),
    _messages("messages", "messages of role and content (slime, vime)", _has_messages),
    _messages(
        "sharegpt",
        "conversations of from and value",
        lambda row: isinstance(row["conversations"], list),
        "conversations",
    ),
    _messages(
        "trl_completion",
        "prompt and completion, both message lists (TRL)",
        lambda row: isinstance(row.get("prompt"), list) and isinstance(row["completion"], list),
        "completion",
    ),
    Shape(
        name="tora_output",
        kind="trajectory",
        about="question, gt, code: a list with one sampled text (ToRA's outputs)",
        fits=lambda row: "gt" in row and isinstance(row.get("code"), list),
        read=_read_tora,
        columns=("question", "code"),
    ),
    Shape(
        name="verl_rl",
        kind="problem",
        about="data_source, prompt: messages, reward_model.ground_truth (verl, DAPO-Math-17k)",
        fits=lambda row: (
            isinstance(row.get("reward_model"), dict) and "ground_truth" in row["reward_model"]
        ),
        read=partial(
            _read_problem,
            shape="verl_rl",
            prompt="prompt",
            gold=_ground_truth,
            used=("prompt",),
        ),
        columns=("prompt",),
    ),
    _columns(
        "slime_rl",
        "prompt: text or messages, label (slime, vime, zhuzilin's copies)",
        "prompt",
        "label",
    ),
    _columns("dapo_reference", "prompt, reference", "prompt", "reference"),
    _columns("nemo", "problem, expected_answer (NeMo-Skills)", "problem", "expected_answer"),
    Shape(
        name="math",
        kind="problem",
        about="problem, solution; the gold is `answer`, else the solution's last box (MATH)",
        fits=lambda row: "solution" in row,
        read=partial(
            _read_problem,
            shape="math",
            prompt="problem",
            gold=_math_gold,
            used=("problem", "answer"),
        ),
        columns=("problem",),
    ),
    _columns("aime", "problem, answer", "problem", "answer"),
    _columns("aime_capital", "Problem, Answer (Maxwell-Jia)", "Problem", "Answer"),
    Shape(
        name="gsm8k",
        kind="problem",
        about="question, answer that ends in `#### gold` (GSM8K)",
        fits=lambda row: isinstance(row.get("answer"), str) and "####" in row["answer"],
        read=partial(
            _read_problem, shape="gsm8k", prompt="question", gold=_gsm8k_gold, used=("question",)
        ),
        columns=("question",),
    ),
    _columns("question_answer", "question, answer", "question", "answer"),
    _columns("prompt_answer", "prompt, answer", "prompt", "answer"),
    _columns("input_output", "input, output (ReTool's evaluation files)", "input", "output"),
)
"""In order of recognition: the most telling columns first."""


def shape_named(name: str) -> Shape:
    """Find a shape by name.

    Raises:
        ValueError: There is none.
    """
    for shape in SHAPES:
        if shape.name == name:
            return shape
    raise ValueError(f"no shape {name!r}; known are {', '.join(s.name for s in SHAPES)}")


def recognise(row: Fields) -> Shape:
    """Find the first shape that fits a row.

    Raises:
        UnknownShapeError: None does; the message names the columns and how to map them.
    """
    for shape in SHAPES:
        if shape.columns[0] in row and shape.fits(row):
            return shape
    seen = ", ".join(f"{key} ({type(value).__name__})" for key, value in row.items())
    raise UnknownShapeError(
        f"no known shape has the columns {seen}. Say which is which: --map prompt=COLUMN "
        "--map label=COLUMN for problems, --map messages=COLUMN for trajectories"
    )
