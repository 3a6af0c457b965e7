"""Read problems with their answers from the files that are around."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ._record import read_jsonl
from ._template import plain_content

QUESTION_KEYS = ("problem", "question", "prompt", "statement", "input", "Problem", "messages")
ANSWER_KEYS = ("answer", "expected_answer", "label", "gold", "output", "reference", "Answer")
ID_KEYS = ("problem_id", "id", "uid")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalProblem:
    """A problem and the answer that counts as right."""

    problem_id: str
    messages: Sequence[Mapping[str, Any]]
    gold: str


def read_problems(
    path: Path,
    *,
    question_key: str | None = None,
    answer_key: str | None = None,
    suffix: str = "",
) -> list[EvalProblem]:
    """Read a JSONL file of problems.

    Args:
        path: One JSON object a line.
        question_key: Its text, or a list of messages. None: the first of `QUESTION_KEYS` that is
            there.
        answer_key: None: `reward_model.ground_truth`, else the first of `ANSWER_KEYS`.
        suffix: Put behind each question, such as how to write the answer.

    Raises:
        ValueError: A line has no question or no answer, or the file has no line.
    """
    problems: list[EvalProblem] = []
    for number, row in enumerate(read_jsonl(path), 1):
        where = f"{path}, line {number}"
        question = _first(
            row, (question_key,) if question_key else QUESTION_KEYS, f"{where}: no question"
        )
        if question is row.get("statement"):  # a problem as retool-data writes it
            question = f"{row.get('prefix') or ''}{question}{row.get('suffix') or ''}"
        gold = _gold(row, answer_key, where)
        given = [row[key] for key in ID_KEYS if row.get(key) is not None]
        problems.append(
            EvalProblem(
                problem_id=str(given[0]) if given else f"{path.stem}-{number}",
                messages=_messages(question, suffix, where),
                gold=gold,
            )
        )
    if not problems:
        raise ValueError(f"{path} has no problems")
    ids = [problem.problem_id for problem in problems]
    if len(set(ids)) != len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise ValueError(f"{path}: the problem id {twice!r} stands there twice")
    return problems


def _first(row: Mapping[str, Any], keys: Sequence[str], complaint: str) -> Any:
    for key in keys:
        if row.get(key) not in (None, "", []):
            return row[key]
    raise ValueError(f"{complaint} under {', '.join(keys)}; it has {', '.join(row)}")


def _gold(row: Mapping[str, Any], answer_key: str | None, where: str) -> str:
    model: Any = row.get("reward_model")
    if answer_key is None and isinstance(model, dict):
        gold = cast("dict[str, Any]", model).get("ground_truth")
        if gold is not None:
            return str(gold)
    keys = (answer_key,) if answer_key else ANSWER_KEYS
    return str(_first(row, keys, f"{where}: no answer"))


def _messages(question: Any, suffix: str, where: str) -> list[Mapping[str, Any]]:
    if isinstance(question, str):
        return [{"role": "user", "content": question + suffix}]
    if not isinstance(question, list):
        raise ValueError(f"{where}: a question is text or a list of messages, got {question!r:.80}")
    messages = [dict(message) for message in cast("list[Mapping[str, Any]]", question)]
    messages[-1]["content"] = plain_content(messages[-1].get("content")) + suffix
    return list(messages)
