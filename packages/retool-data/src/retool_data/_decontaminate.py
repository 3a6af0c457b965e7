"""Find benchmark problems inside training rows, by rare stretches of text and the gold."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import log
from typing import TypeVar, cast

from ._normalise import grams, normalise, numbers, overlap, same_gold
from ._records import Problem, Trajectory

R = TypeVar("R", bound=Problem | Trajectory)

_CANDIDATE = 0.15  # share of a benchmark problem's grams that a row must hold to be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """One row that holds a benchmark problem."""

    problem_id: str
    source: str
    row: int
    position: int
    """Place among the rows that were searched, from 0; files of one name share ids and rows."""
    benchmark_id: str
    score: float
    """How much of what is particular to the benchmark problem stands in the row, 0 to 1."""
    same_gold: bool | None
    same_numbers: float
    """Shared part of the numbers in both, 0 to 1."""
    shared_text: str
    """Longest stretch that both have, letters and digits only."""
    statement: str
    benchmark_statement: str


@dataclass(slots=True)
class _Candidate:
    position: int
    problem: Problem
    benchmark: int
    shared: list[str]


class Benchmark:
    """Benchmark problems by their grams."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        """Index the problems; copies of one problem are kept once.

        Raises:
            ValueError: There are none.
        """
        unique: dict[str, Problem] = {}
        for problem in problems:
            unique.setdefault(normalise(problem.statement), problem)
        unique.pop("", None)
        if not unique:
            raise ValueError("the benchmark holds no problems")
        self.problems: Sequence[Problem] = list(unique.values())
        self.grams: Sequence[set[str]] = [grams(text) for text in unique]
        self.postings: defaultdict[str, list[int]] = defaultdict(list)
        for index, some in enumerate(self.grams):
            for gram in some:
                self.postings[gram].append(index)
        self._all = frozenset(self.postings)

    def shared_with(self, text: str) -> tuple[set[str], Counter[int]]:
        """Grams that a normalised text shares with any problem, and how many with each."""
        shared = grams(text) & self._all  # of two sets Python walks the smaller
        # Counter counts an iterable in C, and a gram may stand in every problem.
        return shared, Counter(chain.from_iterable([self.postings[gram] for gram in shared]))


def find_contamination(
    problems: Iterable[Problem], benchmark: Iterable[Problem] | Benchmark
) -> list[Contamination]:
    """Find the rows that hold a benchmark problem.

    A stretch of text counts by its rarity among the rows and the benchmark, so that "find the
    number of" counts nothing and a row's own numbers count much. Rows are read once and only the
    few candidates are kept.

    Args:
        problems: The training problems.
        benchmark: What must not be trained on.

    Returns:
        The strongest match of each contaminated row, in row order.
    """
    index = benchmark if isinstance(benchmark, Benchmark) else Benchmark(benchmark)
    seen: Counter[str] = Counter()
    candidates: list[_Candidate] = []
    rows = 0
    for position, problem in enumerate(problems):
        rows += 1
        shared, counts = index.shared_with(normalise(problem.statement))
        seen.update(shared)
        for number, count in counts.items():
            if count >= _CANDIDATE * len(index.grams[number]):
                own = index.grams[number]
                mine = [gram for gram in shared if gram in own]
                candidates.append(_Candidate(position, problem, number, mine))
    best: dict[int, Contamination] = {}
    total = rows + len(index.problems)
    weights = {
        gram: log(total / (seen[gram] + len(where))) + 0.1
        if total > seen[gram] + len(where)
        else 0.1
        for gram, where in index.postings.items()
    }
    for candidate in candidates:
        found = _judge(candidate, index, weights)
        if found is None:
            continue
        known = best.get(candidate.position)
        if known is None or found.score > known.score:
            best[candidate.position] = found
    return list(best.values())


def _judge(
    candidate: _Candidate, index: Benchmark, weights: dict[str, float]
) -> Contamination | None:
    problem, hidden = candidate.problem, index.problems[candidate.benchmark]
    own = index.grams[candidate.benchmark]
    score = sum(weights[gram] for gram in candidate.shared) / sum(weights[gram] for gram in own)
    same = same_gold(problem.gold, hidden.gold)
    a, b = numbers(problem.statement), numbers(hidden.statement)
    alike = overlap(a, b)
    if same:
        leaked = (
            score >= 0.85
            or (score >= 0.5 and alike >= 0.4)
            or (score >= 0.3 and alike >= 0.75)
            or (score >= 0.2 and alike >= 0.8 and len(a & b) >= 5)
        )
    else:  # the gold is missing, or one of the two is wrong
        leaked = score >= (0.7 if same is None else 0.85) and (alike >= 0.75 or a == b)
    if not leaked:
        return None
    return Contamination(
        problem_id=problem.problem_id,
        source=problem.provenance.source,
        row=problem.provenance.row,
        position=candidate.position,
        benchmark_id=hidden.problem_id,
        score=round(score, 3),
        same_gold=same,
        same_numbers=round(alike, 3),
        shared_text=_longest_shared(normalise(problem.statement), own),
        statement=problem.statement[:400],
        benchmark_statement=hidden.statement[:400],
    )


def _longest_shared(text: str, own: set[str]) -> str:
    best, start = "", 0
    size = len(next(iter(own)))
    for at in range(len(text) - size + 2):
        if text[at : at + size] in own:
            continue
        end = at + size - 1
        if at > start and end - start > len(best):
            best = text[start:end]
        start = at + 1
    return best


def mark_contaminated(
    records: Iterable[R], found: Iterable[Contamination], *, drop: bool = True
) -> Iterator[R]:
    """Drop the rows that `find_contamination` found, or mark them.

    Args:
        records: The same rows as were searched, in the same order.
        found: What was found in them.
        drop: Leave them out; otherwise set `contaminated_by`.
    """
    marks: defaultdict[int, list[str]] = defaultdict(list)
    for hit in found:
        marks[hit.position].append(hit.benchmark_id)
    for position, record in enumerate(records):
        hits = marks.get(position)
        if hits is None:
            yield record
        elif not drop:
            yield cast("R", record.with_problem_fields(contaminated_by=tuple(hits)))
