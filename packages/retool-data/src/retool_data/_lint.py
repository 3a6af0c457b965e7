"""Check the contract between prompt, SFT rows and reward: one row at a time, and across rows."""

from collections import Counter
from collections.abc import Iterable, Iterator

from ._dedupe import DedupeReport, dedupe
from ._findings import Finding, finding
from ._gold import GoldKind
from ._lint_problem import AnswerForm, lint_problem
from ._lint_trajectory import lint_trajectory
from ._records import Problem, Trajectory
from ._samples import SpanKind, TokenSample

_DIALECT_OF = {"retool": "retool", "hermes": "hermes", "messages": "hermes", "tora": "tora"}


def lint(
    records: Iterable[Problem | Trajectory],
    *,
    answer_form: AnswerForm = "boxed",
    dialect: str = "hermes",
) -> Iterator[Finding]:
    """Check records one by one, and what only several rows together show.

    Args:
        records: Read lazily.
        answer_form: What the loop stops on and the scorer reads.
        dialect: What the rows will be rendered in.
    """
    report = DedupeReport()
    spoken: Counter[str] = Counter()
    types: Counter[str] = Counter()
    # `normalised`, not `near`: a lint must cost little, and `dedupe` exists for the rest.
    for record in dedupe(records, level="normalised", mark=True, report=report):
        problem = record if isinstance(record, Problem) else record.problem
        if problem.gold_kind is GoldKind.NONE and isinstance(record, Problem):
            yield finding("gold_missing", problem.provenance, problem.problem_id, where="gold")
        yield from lint_problem(problem, answer_form=answer_form, dialect=dialect)
        for duplicate in report.duplicates:
            if duplicate.gold_conflict:
                message = f"{problem.gold!r:.60} here, another gold in {duplicate.duplicate_of}"
                where = (problem.provenance, problem.problem_id)
                yield finding("gold_conflict", *where, message, where="gold")
        report.duplicates.clear()
        if problem.gold is not None:
            new = problem.gold_type not in types
            types[problem.gold_type] += 1
            if new and len(types) > 1:
                message = f"{problem.gold_type} here, {_others(types, problem.gold_type)} before"
                where = (problem.provenance, problem.problem_id)
                yield finding("gold_mixed_types", *where, message, where="gold")
        if isinstance(record, Trajectory):
            yield from lint_trajectory(record)
            own = _DIALECT_OF.get(record.dialect)
            if own is not None and any(s.call is not None for s in record.segments):
                new = own not in spoken
                spoken[own] += 1
                if new and len(spoken) > 1:
                    message = f"{own} here, {_others(spoken, own)} before"
                    where = (problem.provenance, problem.problem_id)
                    yield finding("dialect_mixed", *where, message)


def _others(counts: Counter[str], own: str) -> str:
    return ", ".join(f"{name} in {count} rows" for name, count in counts.items() if name != own)


def lint_sample(sample: TokenSample, *, end_id: int | None = None) -> Iterator[Finding]:
    """Check the mask of a tokenised trajectory.

    Args:
        sample: Ids, mask and spans.
        end_id: Id that ends the last turn of a whole trajectory; None leaves that unchecked.
    """
    trained = sample.num_trained

    def found(code: str, where: str = "", evidence: str = "") -> Finding:
        return finding(code, sample.provenance, sample.problem_id, where=where, evidence=evidence)

    if trained == 0:
        yield found("mask_all_zero")
        return
    if trained == len(sample.ids) and len(sample.ids) > 1:
        yield found("mask_all_ones")
    for span in sample.spans:
        ones = sum(sample.mask[span.start : span.end])
        if span.kind is not SpanKind.TURN and ones:
            yield found("mask_outside_turns", f"tokens {span.start}..{span.end}", span.kind)
        elif span.trained and ones != span.end - span.start:
            yield found("mask_misses_turn", f"turn {span.turn + 1}")
    for last in sample.spans[-1:]:
        if last.kind is SpanKind.TURN and end_id not in (None, sample.ids[last.end - 1]):
            yield found("sample_truncated", f"turn {last.turn + 1}")
