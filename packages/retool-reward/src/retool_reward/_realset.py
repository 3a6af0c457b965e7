"""Read intervals, unions and inequalities as sets of real numbers, and compare them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._exact import NotExact
from ._names import is_name
from ._node import Kind, Node
from ._numeric import Evaluator, TooBig, Undefined, decimal, symbols
from ._scalar import linear_root

_INFINITY = float("inf")
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "!=": "!="}


@dataclass(frozen=True, slots=True)
class _Piece:
    """The numbers from low to high. The ends are mpmath numbers or infinities."""

    low: Any
    low_in: bool
    high: Any
    high_in: bool


Solve = Callable[[Node, str], Sequence[tuple[str, bool, str, bool]] | None]
"""Solve an inequality for a variable: low, whether it is in, high, whether it is; None: cannot.
The ends are decimals of 50 digits, or inf."""


class NeedsSolver(NotExact):
    """The inequality is not linear, and no solver is at hand."""


_LINE = _Piece(-_INFINITY, False, _INFINITY, False)
_LINES = {
    "R": _LINE,
    "R+": _Piece(0, False, _INFINITY, False),
    "R-": _Piece(-_INFINITY, False, 0, False),
}


def is_set_like(node: Node) -> bool:
    """Whether a node can only be a set of reals: a union, a half-open interval, an inequality."""
    match node.kind:
        case Kind.UNION | Kind.DIFFERENCE | Kind.INTERSECTION | Kind.NUMBERS:
            return True
        case Kind.TUPLE:
            return len(node.args) == 2 and (
                node.name in ("(]", "[)") or any(_infinite(end) for end in node.args)
            )
        case Kind.RELATION:
            return node.name in ("<", "<=", ">", ">=", "!=", "in")
        case Kind.CHAIN:
            return all(part.name in ("<", "<=", ">", ">=") for part in node.args)
        case Kind.LIST if all(part.kind in (Kind.RELATION, Kind.CHAIN) for part in node.args):
            return all(is_set_like(part) for part in node.args)
        case Kind.LIST if all(_is_pair(part) for part in node.args):
            return any(is_set_like(part) for part in node.args)
        case _:
            return False


def same_real_set(a: Node, b: Node, solve: Solve | None) -> bool | None:
    """Whether two nodes are one set of reals; None if one of them is none that we can read.

    Raises:
        NeedsSolver: `solve` is missing and would be asked.
    """
    variables = {name for node in (a, b) if (name := _variable(node))}
    if len(variables) > 1:
        return False
    try:
        mine, theirs = _canonical(_pieces(a, solve)), _canonical(_pieces(b, solve))
    except NeedsSolver:
        raise
    except NotExact:
        return None
    return len(mine) == len(theirs) and all(
        _same_end(p.low, q.low)
        and _same_end(p.high, q.high)
        and p.low_in == q.low_in
        and p.high_in == q.high_in
        for p, q in zip(mine, theirs, strict=True)
    )


def _variable(node: Node) -> str | None:
    """Return the name that relations of a node speak about."""
    match node.kind:
        case Kind.RELATION if node.name == "in":
            return node.args[0].name
        case Kind.RELATION:
            names = frozenset[str]().union(*(symbols(_as_letter(side)) for side in node.args))
            return next(iter(names)) if len(names) == 1 else None
        case Kind.CHAIN | Kind.LIST:
            variables = {_variable(part) for part in node.args}
            return variables.pop() if len(variables) == 1 else None
        case _:
            return None


def _infinite(node: Node) -> float | None:
    if node.kind is Kind.INFINITY:
        return _INFINITY
    if node.kind is Kind.MUL and len(node.args) == 2 and node.args[1].kind is Kind.INFINITY:
        return -_INFINITY
    return None


def _end(node: Node) -> Any:
    infinite = _infinite(node)
    if infinite is not None:
        return infinite
    if symbols(node):
        raise NotExact("an end with a variable")
    try:
        value = Evaluator(digits=50).value(node)
    except (Undefined, TooBig) as error:
        raise NotExact("an end without a value") from error
    if value.imag:
        raise NotExact("a complex end")
    return value.real


def _same_end(a: Any, b: Any) -> bool:
    if a == b or _INFINITY in (abs(a), abs(b)):
        return bool(a == b)
    return bool(abs(a - b) <= 1e-30 * max(abs(a), abs(b)))


def _pieces(node: Node, solve: Solve | None) -> list[_Piece]:
    parts = (_pieces(part, solve) for part in node.args)  # not read until it is asked for
    match node.kind:
        case Kind.TUPLE if len(node.args) == 2:
            low, high = _end(node.args[0]), _end(node.args[1])
            return [_Piece(low, node.name[0] == "[", high, node.name[1] == "]")]
        case Kind.SET:
            return [_Piece(end, True, end, True) for end in map(_end, node.args)]
        case Kind.NUMBERS if node.name in _LINES:
            return [_LINES[node.name]]
        case Kind.UNION:
            return [piece for part in parts for piece in part]
        case Kind.INTERSECTION:
            return _met(list(parts))
        case Kind.DIFFERENCE:
            whole, without = parts
            return _meet(whole, _complement(without))
        case Kind.RELATION:
            return _of_relation(node, solve)
        case Kind.CHAIN | Kind.LIST if _variable(node) is None and symbols(node):
            raise NotExact("several variables")
        case Kind.CHAIN:
            return _met(list(parts))
        case Kind.LIST if all(_is_pair(part) for part in node.args):
            return [piece for part in parts for piece in part]
        case Kind.LIST if all(part.kind in (Kind.RELATION, Kind.CHAIN) for part in node.args):
            sets = list(parts)
            both = _met(sets)
            # x > 1, x < 3 are two conditions; x < 1, x > 3 cannot be, so they are two cases
            if node.name == "and" or (node.name != "or" and _canonical(both)):
                return both
            return [piece for part in sets for piece in part]
        case _:
            raise NotExact(node.kind)


def _is_pair(node: Node) -> bool:
    return node.kind is Kind.TUPLE and len(node.args) == 2


def _of_relation(node: Node, solve: Solve | None) -> list[_Piece]:
    if node.name == "in":
        return _pieces(node.args[1], solve)
    left, right = sides = tuple(_as_letter(side) for side in node.args)
    node = Node(node.kind, sides, node.name)
    names = symbols(node)
    if len(names) != 1 or node.name not in _FLIPPED:
        raise NotExact("not one variable")
    solved = linear_root(left, right, next(iter(names)))
    if solved is None:
        return _of_curve(node, next(iter(names)), solve)
    root, slope = solved
    match node.name if slope > 0 else _FLIPPED[node.name]:
        case "<":
            return [_Piece(-_INFINITY, False, root, False)]
        case "<=":
            return [_Piece(-_INFINITY, False, root, True)]
        case ">":
            return [_Piece(root, False, _INFINITY, False)]
        case ">=":
            return [_Piece(root, True, _INFINITY, False)]
        case "!=":
            return _complement([_Piece(root, True, root, True)])
        case _:
            return [_Piece(root, True, root, True)]


def _as_letter(side: Node) -> Node:
    """Read f(x) as one unknown, as in 0 < f(x) < 1."""
    if side.kind is Kind.OPAQUE and is_name(side):
        return Node(Kind.SYMBOL, (), repr(side))
    return side


def _of_curve(node: Node, variable: str, solve: Solve | None) -> list[_Piece]:
    """Solve an inequality that is not linear. An equation must be solved by who answers."""
    if node.name in ("=", "!="):
        raise NotExact("an equation that is not linear")
    if solve is None:
        raise NeedsSolver("not linear")
    found = solve(node, variable)
    if found is None:
        raise NotExact("an inequality that cannot be solved")
    return [
        _Piece(decimal(low), low_in, decimal(high), high_in) for low, low_in, high, high_in in found
    ]


def _met(sets: list[list[_Piece]]) -> list[_Piece]:
    met = [_LINE]
    for pieces in sets:
        met = _meet(met, pieces)
    return met


def _meet(a: list[_Piece], b: list[_Piece]) -> list[_Piece]:
    met: list[_Piece] = []
    for p in a:
        for q in b:
            low, low_in = max((p.low, not p.low_in), (q.low, not q.low_in))
            high, high_in = min((p.high, p.high_in), (q.high, q.high_in))
            met.append(_Piece(low, not low_in, high, high_in))
    return met


def _complement(pieces: list[_Piece]) -> list[_Piece]:
    rest = [_LINE]
    for piece in pieces:
        outside = [
            _Piece(-_INFINITY, False, piece.low, not piece.low_in),
            _Piece(piece.high, not piece.high_in, _INFINITY, False),
        ]
        rest = _meet(rest, outside)
    return rest


def _canonical(pieces: list[_Piece]) -> list[_Piece]:
    """Return the pieces that are not empty, in order, with touching ones joined."""
    real = [
        piece
        for piece in pieces
        if piece.low < piece.high or (piece.low == piece.high and piece.low_in and piece.high_in)
    ]
    joined: list[_Piece] = []
    for piece in sorted(real, key=lambda piece: (piece.low, not piece.low_in)):
        last = joined[-1] if joined else None
        if last is not None and (
            piece.low < last.high or (piece.low == last.high and (piece.low_in or last.high_in))
        ):
            high, high_in = max((last.high, last.high_in), (piece.high, piece.high_in))
            joined[-1] = _Piece(last.low, last.low_in, high, high_in)
        else:
            joined.append(piece)
    return joined
