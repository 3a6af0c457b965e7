"""Write trajectories as one static page: turns, tokens by mask and logprob, outcomes, filters."""

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any, cast

from ._record import read_jsonl
from ._tokenizer import Tokenizer

MAX_SHOWN = 2000
"""Trajectories in one page: more than that is slow to open in a browser."""


def view(
    source: Path, target: Path, *, tokenizer: Tokenizer | None = None, limit: int = MAX_SHOWN
) -> int:
    """Write the page.

    Args:
        source: JSONL of trajectories: `samples.jsonl` of an evaluation, or lines of
            `trajectory_to_dict`.
        target: The HTML file.
        tokenizer: For records that do not bring the text of their tokens.
        limit: The first so many are shown.

    Returns:
        How many trajectories the page shows.

    Raises:
        ValueError: A record is no trajectory, or has no token texts and there is no tokenizer; or
            `limit` is below 1.
    """
    if limit < 1:
        raise ValueError(f"limit must be >= 1, got {limit}")
    shown: list[dict[str, Any]] = []
    for record in islice(read_jsonl(source), limit):
        try:
            shown.append(_row(record, tokenizer))
        except KeyError as error:
            where = f"{source}, record {len(shown) + 1}"
            raise ValueError(f"{where}: this is no trajectory, it has no {error}") from error
    page = render(shown, title=source.name)
    if target.exists() and not target.is_file():  # a device or a pipe: no file may take its place
        target.write_text(page, encoding="utf-8")
        return len(shown)
    target = target.resolve()  # a link stays one
    unfinished = target.with_name(f".{target.name}.unfinished")
    unfinished.write_text(page, encoding="utf-8")
    unfinished.replace(target)
    return len(shown)


def render(rows: Iterable[Mapping[str, Any]], *, title: str) -> str:
    """The page as text."""
    template = files("retool_rollout").joinpath("viewer.html").read_text(encoding="utf-8")
    data = json.dumps({"title": title, "rows": list(rows)}, ensure_ascii=False)
    # Inside a script element only "<" can end or reopen anything.
    return template.replace("/*DATA*/null", data.replace("<", "\\u003c"))


def _row(record: Mapping[str, Any], tokenizer: Tokenizer | None) -> dict[str, Any]:
    ids = cast("Sequence[int]", record["ids"])
    texts = record.get("tokens")
    if texts is None:
        if tokenizer is None:
            raise ValueError(
                "these records have no token texts; give the tokenizer: --tokenizer FOLDER"
            )
        texts = tokenizer.split(ids)
    keys = ("problem_id", "sample", "correct", "gold", "status", "stop_reason", "answer", "error")
    row: dict[str, Any] = {key: record.get(key) for key in keys}
    row |= {
        "prompt": record["prompt_length"],
        "ids": ids,
        "texts": texts,
        "mask": record["mask"],
        "logprobs": [round(float(value), 3) for value in record["logprobs"]],
        "versions": record["weight_versions"],
        "turns": [
            {
                "start": turn["start"],
                "end": turn["end"],
                "stop": turn["observation_end"],
                "calls": turn["calls"],
                "generate_s": round(turn["generate_s"], 2),
                "tool_s": round(turn["tool_s"], 2),
            }
            for turn in record["turns"]
        ],
    }
    return row
