"""Find problems that say the same: byte for byte, in another spelling, or in other words."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeVar, cast

from ._normalise import GRAM, grams, normalise, numbers, overlap, same_gold, signs
from ._records import Problem, Trajectory

R = TypeVar("R", bound=Problem | Trajectory)
Level = Literal["exact", "normalised", "near"]

_MAX_POSTINGS = 40  # a gram in more problems than this is a stock phrase, and tells nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """One row that says what an earlier row says."""

    problem_id: str
    duplicate_of: str
    """problem_id of the row that is kept."""
    level: Level
    similarity: float
    """Share of the shorter text's grams that both have; 1 for exact and normalised."""
    gold_conflict: bool = False
    """The golds differ: one of the two is wrong."""
    evidence: str = ""


@dataclass(slots=True, kw_only=True)
class DedupeReport:
    """What `dedupe` found; filled while iterating."""

    rows: int = 0
    kept: int = 0
    levels: Counter[str] = field(default_factory=Counter[str])
    gold_conflicts: int = 0
    """Duplicates whose gold differs from that of the kept row."""
    duplicates: list[Duplicate] = field(default_factory=list[Duplicate])
    """The first `max_listed` of them; the numbers above count all."""
    max_listed: int = 10_000

    def add(self, duplicate: Duplicate) -> None:
        """Count a duplicate, and list it while there is room: DAPO has 1.77 million."""
        self.levels[duplicate.level] += 1
        self.gold_conflicts += duplicate.gold_conflict
        if len(self.duplicates) < self.max_listed:
            self.duplicates.append(duplicate)


@dataclass(slots=True)
class _Kept:
    problem_id: str
    gold: str | None
    text: str
    """Normalised; its grams, sixty times as large, are made again when a candidate turns up."""
    numbers: set[str]
    signs: str


def dedupe(
    records: Iterable[R],
    *,
    level: Level = "near",
    mark: bool = False,
    report: DedupeReport | None = None,
) -> Iterator[R]:
    """Pass on the first of all records whose problems say the same.

    Memory grows with the problems that are kept, never with the rows: a digest each for `exact`,
    and for `near` also the text and a sample of its grams, about 8 kB.

    Args:
        records: Read lazily. Only the problem's statement is compared, not its prefix and suffix.
        level: `exact` compares characters, `normalised` also without LaTeX's typesetting, `near`
            also finds reworded copies: alike in their letters, and in their numbers and gold.
        mark: Pass on duplicates too, with `duplicate_of` set.
        report: Filled while iterating.
    """
    seen = report if report is not None else DedupeReport()
    exact: dict[bytes, tuple[str, str | None]] = {}
    spelled: dict[bytes, tuple[str, str | None]] = {}
    near = _NearIndex()
    for record in records:
        seen.rows += 1
        problem = record if isinstance(record, Problem) else record.problem
        found = _find(problem, level, exact, spelled, near)
        if found is None:
            seen.kept += 1
            yield record
            continue
        seen.add(found)
        if mark:
            yield cast("R", record.with_problem_fields(duplicate_of=found.duplicate_of))


def _find(
    problem: Problem,
    level: Level,
    exact: dict[bytes, tuple[str, str | None]],
    spelled: dict[bytes, tuple[str, str | None]],
    near: "_NearIndex",
) -> Duplicate | None:
    known = _known(exact, problem.statement, problem, "exact")
    if known is not None or level == "exact":
        return known
    text, operators = normalise(problem.statement), signs(problem.statement)
    known = _known(spelled, f"{text} {operators}", problem, "normalised") if text else None
    if known is not None or level == "normalised":
        return known
    return near.find_or_add(problem, text, operators)


def _known(
    index: dict[bytes, tuple[str, str | None]], text: str, problem: Problem, level: Level
) -> Duplicate | None:
    key = hashlib.blake2b(text.encode(), digest_size=16).digest()
    first = index.get(key)
    if first is None:
        index[key] = (problem.problem_id, problem.gold)
        return None
    return Duplicate(
        problem_id=problem.problem_id,
        duplicate_of=first[0],
        level=level,
        similarity=1.0,
        gold_conflict=same_gold(first[1], problem.gold) is False,
        evidence=problem.statement[:200],
    )


class _NearIndex:
    """Kept problems by a sample of their grams."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._postings: defaultdict[str, list[int]] = defaultdict(list)

    def find_or_add(self, problem: Problem, text: str, operators: str) -> Duplicate | None:
        """Find a kept problem that says the same; keep this one where there is none."""
        new = _Kept(problem.problem_id, problem.gold, text, numbers(problem.statement), operators)
        sample = _sample(text)
        places = [self._postings[gram] for gram in sample if gram in self._postings]
        # Counter counts an iterable in C.
        shared = Counter(chain.from_iterable(p for p in places if len(p) <= _MAX_POSTINGS))
        likely = sorted((-count, index) for index, count in shared.items() if count >= 3)[:8]
        for _, index in likely:
            kept = self._kept[index]
            similarity = _alike(new, kept)
            if similarity is not None:
                return Duplicate(
                    problem_id=problem.problem_id,
                    duplicate_of=kept.problem_id,
                    level="near",
                    similarity=round(similarity, 3),
                    evidence=problem.statement[:200],
                )
        for gram in sample:
            self._postings[gram].append(len(self._kept))
        self._kept.append(new)
        return None


def _sample(text: str) -> list[str]:
    """A quarter of the grams, chosen by what they say, so that equal texts have equal samples."""
    codes = list(map(ord, text))
    chosen = [
        text[start : start + GRAM]
        for start, ends in enumerate(zip(codes, codes[3:], codes[GRAM - 1 :], strict=False))
        if (ends[0] + ends[2] - ends[1]) % 4 == 0
    ]
    return list(dict.fromkeys(chosen))


def _alike(a: _Kept, b: _Kept) -> float | None:
    """Decide whether two problems say the same; return the shared part of the shorter one.

    The limits were set on five spellings of AIME 2024 and 2025 (all pairs found) and on 1,500 MATH
    problems, where one text with other numbers is another problem.
    """
    same = same_gold(a.gold, b.gold)
    if same is False:
        return None
    a_grams, b_grams = grams(a.text), grams(b.text)
    both = len(a_grams & b_grams)
    shorter = both / max(1, min(len(a_grams), len(b_grams)))
    jaccard = both / max(1, len(a_grams | b_grams))
    alike_numbers = overlap(a.numbers, b.numbers)
    if same is None:
        return shorter if jaccard >= 0.9 and a.signs == b.signs else None
    if jaccard < 0.15:
        return None
    enough = (
        (shorter >= 0.9 and jaccard >= 0.6)
        or (shorter >= 0.7 and alike_numbers >= 0.4)
        or (shorter >= 0.5 and alike_numbers >= 0.75)
        or (shorter >= 0.35 and alike_numbers >= 0.8 and len(a.numbers & b.numbers) >= 5)
    )
    return shorter if enough else None
