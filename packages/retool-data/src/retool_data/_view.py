"""Write trajectories as one static HTML file: tokens by mask, calls beside both outputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from ._files import replacing
from ._findings import Finding
from ._records import Segment, Trajectory
from ._samples import TokenSample

_DATA = "__RETOOL_DATA__"
_TITLE = "__RETOOL_TITLE__"


def write_view(
    path: str | Path,
    trajectories: Iterable[Trajectory],
    *,
    samples: Mapping[str, TokenSample] | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    findings: Iterable[Finding] = (),
    title: str = "retool-data",
) -> int:
    """Write the page; it needs no server and loads nothing from anywhere.

    Args:
        path: An `.html` file; one that is there is replaced whole.
        trajectories: Rows to show; a few hundred make a page of some megabytes.
        samples: Tokenised rows by problem_id; a row without one has no token view.
        decode: Ids to text, needed to show samples.
        findings: Shown at their rows, by problem_id.
        title: Heading of the page.

    Returns:
        How many rows were written.

    Raises:
        ValueError: There are samples but no `decode`.
    """
    if samples and decode is None:
        raise ValueError("samples are given without decode: the page shows each token's text")
    by_row: dict[str, list[dict[str, str]]] = {}
    for found in findings:
        entry = {
            "code": found.code,
            "severity": found.severity.value,
            "where": found.where,
            "message": found.message,
            "evidence": found.evidence,
        }
        by_row.setdefault(found.problem_id, []).append(entry)
    rows = [
        _row(trajectory, (samples or {}).get(trajectory.problem.problem_id), decode, by_row)
        for trajectory in trajectories
    ]
    # In a script element only "</" and "<!--" could end or change the parse.
    data = to_json(rows).decode().replace("<", "\\u003c")
    page = files("retool_data").joinpath("_view.html").read_text(encoding="utf-8")
    head, _, tail = page.partition(_DATA)
    head = head.replace(_TITLE, _escaped(title))
    with replacing(Path(path)) as temporary:
        temporary.write_text(head + data + tail, encoding="utf-8")
    return len(rows)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _row(
    trajectory: Trajectory,
    sample: TokenSample | None,
    decode: Callable[[Sequence[int]], str] | None,
    findings: Mapping[str, list[dict[str, str]]],
) -> dict[str, Any]:
    problem = trajectory.problem
    row: dict[str, Any] = {
        "id": problem.problem_id,
        "source": problem.provenance.source,
        "line": problem.provenance.row,
        "shape": problem.provenance.shape,
        "steps": problem.provenance.steps,
        "gold": problem.gold,
        "system": problem.system,
        "prefix": problem.prefix,
        "statement": problem.statement,
        "suffix": problem.suffix,
        "segments": [_segment(segment) for segment in trajectory.segments],
        "findings": findings.get(problem.problem_id, []),
    }
    if sample is not None and decode is not None:
        row["tokens"] = token_texts(sample.ids, decode)
        row["ids"] = sample.ids
        row["mask"] = "".join("1" if bit else "0" for bit in sample.mask)
        row["spans"] = [(s.start, s.end, s.kind.value, s.turn) for s in sample.spans]
        row["dialect"] = sample.dialect
    return row


def token_texts(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """Text of each token; a character spread over several stands at the first of them."""
    out: list[str] = []
    waiting: list[int] = []
    for token in ids:
        waiting.append(token)
        text = decode(waiting)
        # No character has more than four bytes: a longer run is really broken text.
        if "\ufffd" in text and len(waiting) < 4:
            continue
        out += [text] + [""] * (len(waiting) - 1)
        waiting = []
    if waiting:
        out += [decode(waiting)] + [""] * (len(waiting) - 1)
    return out


def _segment(segment: Segment) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": segment.kind.value, "speaker": segment.speaker.value}
    if segment.call is not None:
        out["name"] = segment.call.name
        try:
            out["body"] = segment.call.code
        except ValueError:  # a call of another tool: show its arguments
            out["body"] = segment.call.arguments
    elif segment.result is not None:
        out["recorded"] = segment.result.recorded
        out["replayed"] = segment.result.replayed
        out["status"] = segment.result.status.value
        out["shown"] = segment.result.shown
    else:
        out["body"] = segment.text
    return out
