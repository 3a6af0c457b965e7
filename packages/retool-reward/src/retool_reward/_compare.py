"""Compare two parsed answers by their shape: names, units, lists, tuples, sets, relations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ._exact import NotExact, rational
from ._matrix import matrix_of
from ._names import MEANINGFUL, exact_part, letters_total, named_points, named_value
from ._node import Kind, Node, minus, number
from ._normalise import as_text
from ._notation import (
    are_points,
    both_points,
    has_plain_log,
    items_of,
    of_point,
    with_decimal_logs,
)
from ._realset import NeedsSolver, Solve, is_set_like, same_real_set
from ._scalar import proportional, same_scalar
from ._units import contradict

_MAX_ITEMS = 256
_STRICT = {"<": True, ">": True, "<=": False, ">=": False}
_INEQUALITIES = frozenset(_STRICT)


@dataclass(frozen=True, slots=True)
class Symbolic:
    """What a worker asks of sympy."""

    same: Callable[[Node, Node], bool | None]
    """Whether two scalars are equal; None: it cannot tell."""
    solve: Solve


def same(
    pred: Node,
    gold: Node,
    *,
    decimal_places: int,
    symbolic: Symbolic | None = None,
) -> bool | None:
    """Whether an answer says what the gold says; None if that cannot be told.

    The rules for arguable pairs are listed in RULES.md.

    Args:
        pred: The answer's tree.
        gold: The gold's tree.
        decimal_places: See `GradeConfig.decimal_places`.
        symbolic: Asked where the numeric probe does not know what a term means, and to solve
            inequalities.
    """
    verdict = _Comparison(decimal_places, symbolic).same(pred, gold)
    if verdict is False and symbolic is None and (_has_meaningful(pred) or _has_meaningful(gold)):
        return None
    return verdict


def _has_meaningful(node: Node) -> bool:
    if node.kind is Kind.OPAQUE and node.name in MEANINGFUL:
        return True
    return any(_has_meaningful(part) for part in node.args)


class _Comparison:
    def __init__(self, decimal_places: int, symbolic: Symbolic | None) -> None:
        self._places = decimal_places
        self._symbolic = symbolic

    def same(self, pred: Node, gold: Node) -> bool | None:
        if pred == gold:
            return True
        pred, gold = exact_part(pred), exact_part(gold)
        pred, gold = of_point(pred, gold), of_point(gold, pred)
        if Kind.TEXT in (pred.kind, gold.kind):
            return pred.kind is gold.kind and as_text(pred.name) == as_text(gold.name)
        for rule in (self._named, self._sets, self._relations, self._quantities):
            verdict = rule(pred, gold)
            if not isinstance(verdict, _Next):
                return verdict
        return self._collections(pred, gold)

    # --- x = 3 against 3 ---

    def _named(self, pred: Node, gold: Node) -> "bool | _Next | None":
        mine, theirs = named_value(pred), named_value(gold)
        for side, named, other in ((pred, mine, gold), (gold, theirs, pred)):
            is_named_point = named is not None and named[0].kind is Kind.TUPLE
            if other.kind is not Kind.LIST or not (is_named_point or are_points(side)):
                continue
            points = named_points(other, named[0].args if named and is_named_point else None)
            if points is not None:
                return self.same(points, gold) if other is pred else self.same(pred, points)
        if mine is not None and theirs is not None:
            if mine[0] == theirs[0]:
                return self.same(mine[1], theirs[1])
            return _NEXT
        if mine is not None and not _is_relation(gold):
            return self.same(mine[1], gold)
        if theirs is not None and not _is_relation(pred):
            return self.same(pred, theirs[1])
        if not _is_relation(gold) and (total := letters_total(pred)) is not None:
            return self.same(total, gold) if gold.kind is Kind.NUMBER else False
        return _NEXT

    # --- sets of reals, relations ---

    def _sets(self, pred: Node, gold: Node) -> "bool | _Next | None":
        if not is_set_like(pred) and not is_set_like(gold):
            return _NEXT
        if pred.kind is gold.kind is Kind.TUPLE:
            return _NEXT
        if _is_inequality(pred) and _is_inequality(gold):
            verdict = self._relations(pred, gold)
            if verdict is True:
                return True
        try:
            verdict = same_real_set(pred, gold, self._symbolic and self._symbolic.solve)
        except NeedsSolver:
            return None
        if verdict is not None:
            return verdict
        if pred.kind is gold.kind and pred.kind in (Kind.UNION, Kind.INTERSECTION, Kind.LIST):
            return self._one_to_one(_flat(pred), _flat(gold))
        both_relations = _is_relation(pred) and _is_relation(gold)
        return _NEXT if pred.kind is gold.kind or both_relations else False

    def _relations(self, pred: Node, gold: Node) -> "bool | _Next | None":
        if not _is_relation(pred) and not _is_relation(gold):
            return _NEXT
        if pred.kind is not gold.kind:
            return False
        if pred.kind is Kind.CHAIN:
            return self._chains(pred, gold)
        a, b = pred.name, gold.name
        if a in _INEQUALITIES and b in _INEQUALITIES:
            if _STRICT[a] is not _STRICT[b]:
                return False
            return proportional(_below_zero(pred), _below_zero(gold), positive=True)
        if a != b:
            return False
        if a in ("=", "!="):
            if any(_is_structure(side) for node in (pred, gold) for side in node.args):
                return self._all(pred.args, gold.args)
            return proportional(minus(*pred.args), minus(*gold.args), positive=False)
        return self._all(pred.args, gold.args)

    def _chains(self, pred: Node, gold: Node) -> bool | None:
        names = [part.name for part in pred.args]
        if names == [part.name for part in gold.args]:
            return self._all(_sides(pred), _sides(gold))
        flipped = [_FLIPPED.get(part.name, part.name) for part in reversed(gold.args)]
        if names == flipped:
            return self._all(_sides(pred), _sides(gold)[::-1])
        return False

    # --- units ---

    def _quantities(self, pred: Node, gold: Node) -> "bool | _Next | None":
        if pred.kind is not Kind.QUANTITY and gold.kind is not Kind.QUANTITY:
            return _NEXT
        if pred.kind is gold.kind:
            names = {pred.name, gold.name}
            if contradict(pred.name, gold.name) or (len(names) == 2 and _is_strict(names)):
                return False
            return self.same(pred.args[0], gold.args[0])
        quantity = pred if pred.kind is Kind.QUANTITY else gold
        if quantity is gold and quantity.name.startswith("glued"):
            return False  # 4m^2 as a gold is a formula
        inner = quantity.args[0]
        readings = [inner]
        if quantity.name == "%":
            readings.append(Node(Kind.DIV, (inner, number(100))))
        if quantity.name == "deg":
            half_turn = Node(Kind.DIV, (Node(Kind.SYMBOL, (), "pi"), number(180)))
            readings.append(Node(Kind.MUL, (inner, half_turn)))
        if quantity is pred:
            return _any(self.same(reading, gold) for reading in readings)
        return _any(self.same(pred, reading) for reading in readings)

    # --- lists, tuples, matrices, scalars ---

    def _collections(self, pred: Node, gold: Node) -> bool | None:
        if gold.kind in (Kind.LIST, Kind.SET):
            pred = both_points(pred)
        if pred.kind in (Kind.LIST, Kind.SET):
            gold = both_points(gold)
        if Kind.MATRIX in (_deep_kind(pred), _deep_kind(gold)):
            return self._matrices(pred, gold)
        if pred.kind is Kind.RATIO or gold.kind is Kind.RATIO:
            return self._ratios(pred, gold)
        if pred.kind is gold.kind is Kind.TUPLE:
            # (a, b) and [a, b] are different intervals; longer ones are vectors in either style
            is_interval = len(pred.args) == 2 or not {pred.name, gold.name} <= {"()", "[]"}
            if is_interval and pred.name != gold.name:
                return False
            return self._all(pred.args, gold.args)
        if Kind.TUPLE in (pred.kind, gold.kind):
            if Kind.LIST not in (pred.kind, gold.kind):
                return False
            return self._all(pred.args, gold.args)
        mine, theirs = items_of(pred), items_of(gold)
        if len(mine) == len(theirs) == 1:
            if (mine[0], theirs[0]) != (pred, gold):
                return self.same(mine[0], theirs[0])
            return self._scalars(pred, gold)
        if Kind.SET in (pred.kind, gold.kind) or (are_points(pred) and are_points(gold)):
            mine, theirs = self._distinct(mine), self._distinct(theirs)
        if len(mine) != len(theirs) or len(mine) > _MAX_ITEMS:
            return False
        if any(item.kind is Kind.ELLIPSIS for item in (*mine, *theirs)):
            return self._all(mine, theirs)
        return self._one_to_one(mine, theirs)

    def _scalars(self, pred: Node, gold: Node) -> bool | None:
        if pred.kind in _NOT_SCALAR or gold.kind in _NOT_SCALAR:
            return False
        verdict = same_scalar(pred, gold, decimal_places=self._places)
        if verdict is False and has_plain_log(pred) != has_plain_log(gold):
            decimal = with_decimal_logs(pred), with_decimal_logs(gold)
            verdict = same_scalar(*decimal, decimal_places=self._places)
        doubtful = verdict is None or (
            verdict is False and (_has_meaningful(pred) or _has_meaningful(gold))
        )
        if doubtful and self._symbolic is not None:
            return self._symbolic.same(pred, gold)
        return None if doubtful else verdict

    def _ratios(self, pred: Node, gold: Node) -> bool | None:
        for ratio, other in ((pred, gold), (gold, pred)):
            if other.kind is Kind.DIV and len(ratio.args) == 2:
                quotient = Node(Kind.DIV, ratio.args)
                return self.same(quotient, gold) if other is gold else self.same(pred, quotient)
        if pred.kind is not gold.kind or len(pred.args) != len(gold.args):
            return False
        exactly = self._all(pred.args, gold.args)
        if exactly is not False:
            return exactly
        try:
            mine, theirs = ([rational(part) for part in side.args] for side in (pred, gold))
        except NotExact:
            return False
        return all(mine + theirs) and all(
            a * theirs[0] == b * mine[0] for a, b in zip(mine, theirs, strict=True)
        )

    def _matrices(self, pred: Node, gold: Node) -> bool | None:
        mine, theirs = matrix_of(pred), matrix_of(gold)
        if mine is None or theirs is None:
            return False
        if (mine.name, len(mine.args)) == (theirs.name, len(theirs.args)):
            return self._all(mine.args, theirs.args)
        is_vector = Kind.TUPLE in (pred.kind, gold.kind) and len(mine.args) == len(theirs.args)
        columns = {int(m.name) for m in (mine, theirs)}
        if is_vector and columns <= {1, len(mine.args)}:
            return self._all(mine.args, theirs.args)
        return False

    def _all(
        self, mine: "tuple[Node, ...] | list[Node]", theirs: "tuple[Node, ...] | list[Node]"
    ) -> bool | None:
        if len(mine) != len(theirs):
            return False
        verdict: bool | None = True
        for a, b in zip(mine, theirs, strict=True):
            one = self.same(a, b)
            if one is False:
                return False
            verdict = None if one is None else verdict
        return verdict

    def _one_to_one(self, mine: list[Node], theirs: list[Node]) -> bool | None:
        """Match every item of one side with another of the other, in any order."""
        left = list(theirs)
        verdict: bool | None = True
        for a in sorted(mine, key=lambda item: item not in theirs):
            doubt: Node | None = None
            for b in sorted(left, key=lambda item: item != a):
                one = self.same(a, b)
                if one:
                    left.remove(b)
                    break
                doubt = b if one is None and doubt is None else doubt
            else:
                if doubt is None:
                    return False
                left.remove(doubt)
                verdict = None
        return verdict

    def _distinct(self, items: list[Node]) -> list[Node]:
        kept: list[Node] = []
        for item in items[:_MAX_ITEMS]:
            if not any(self.same(item, other) for other in kept):
                kept.append(item)
        return kept + items[_MAX_ITEMS:]


class _Next:
    """A rule does not apply; ask the next one."""


_NEXT = _Next()
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NOT_SCALAR = frozenset(
    {
        *(Kind.TUPLE, Kind.SET, Kind.LIST, Kind.RATIO, Kind.RELATION, Kind.CHAIN, Kind.UNION),
        *(Kind.INTERSECTION, Kind.DIFFERENCE, Kind.INFINITY, Kind.NUMBERS, Kind.ELLIPSIS),
    }
)


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    found: bool | None = False
    for verdict in verdicts:
        if verdict:
            return True
        found = None if verdict is None else found
    return found


def _is_strict(names: set[str]) -> bool:
    """Whether one of two different units changes what the number says."""
    return any(name == "%" or name.startswith("mod ") for name in names)


def _is_relation(node: Node) -> bool:
    return node.kind in (Kind.RELATION, Kind.CHAIN)


def _is_inequality(node: Node) -> bool:
    return node.kind is Kind.RELATION and node.name in _INEQUALITIES


def _is_structure(node: Node) -> bool:
    return node.kind in _NOT_SCALAR or node.kind is Kind.MATRIX


def _below_zero(node: Node) -> Node:
    """Return d of the relation d < 0 (or d <= 0) that says the same."""
    left, right = node.args
    return minus(left, right) if node.name in ("<", "<=") else minus(right, left)


def _sides(chain: Node) -> list[Node]:
    return [chain.args[0].args[0], *(part.args[1] for part in chain.args)]


def _deep_kind(node: Node) -> Kind:
    """Return MATRIX for a matrix and for sums and products that hold one."""
    if node.kind in (Kind.ADD, Kind.MUL, Kind.POW, Kind.DIV) and any(
        _deep_kind(part) is Kind.MATRIX for part in node.args
    ):
        return Kind.MATRIX
    return node.kind


def _flat(node: Node) -> list[Node]:
    """Return the members of nested unions (of anything of one kind)."""
    return [
        leaf for part in node.args for leaf in (_flat(part) if part.kind is node.kind else [part])
    ]
