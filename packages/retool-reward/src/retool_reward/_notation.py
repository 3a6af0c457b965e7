"""Read what a notation may stand for: both signs, a point, a binomial, a decimal logarithm."""

from ._names import named_value
from ._node import Kind, Node, negative


def of_point(node: Node, other: Node) -> Node:
    """Read A(1, 2) as the point, and C(5, 2) as the binomial where no point is asked for."""
    if node.kind is not Kind.MUL or len(node.args) != 2 or node.args[1].kind is not Kind.TUPLE:
        return node
    letter, coordinates = node.args
    if letter.kind is not Kind.SYMBOL or not letter.name.isupper():
        return node
    if other.kind in (Kind.TUPLE, Kind.LIST):
        return coordinates
    if letter.name == "C" and len(coordinates.args) == 2:
        return Node(Kind.CALL, coordinates.args, "binom")
    if letter.name == "P" and [part.kind for part in coordinates.args] == [Kind.NUMBER] * 2:
        return Node(Kind.CALL, coordinates.args, "perm")
    return node


def are_points(node: Node) -> bool:
    """Whether a node is a tuple or a list of tuples."""
    parts = node.args if node.kind is Kind.LIST else (node,)
    return all(part.kind is Kind.TUPLE for part in parts)


def both_points(node: Node) -> Node:
    """Read (+-1, 2) as the two points; with more signs it may be two or four."""
    if node.kind is not Kind.TUPLE or _num_plus_minus(node) != 1:
        return node
    return Node(Kind.LIST, (_with_sign(node, upper=True), _with_sign(node, upper=False)))


def items_of(node: Node) -> list[Node]:
    """Return the values that a list, a set or a plus-minus stands for."""
    if node.kind in (Kind.LIST, Kind.SET):
        return [item for part in node.args for item in _items_of_member(part)]
    return _items_of_member(node)


def _items_of_member(node: Node) -> list[Node]:
    named = named_value(node)
    if named is not None and _has_plus_minus(named[1]):
        node = named[1]
    if not _has_plus_minus(node) or node.kind in (Kind.TUPLE, Kind.RELATION):
        return [node]
    signs = [_with_sign(node, upper=True), _with_sign(node, upper=False)]
    return signs if signs[0] != signs[1] else signs[:1]


def _has_plus_minus(node: Node) -> bool:
    return node.kind is Kind.PLUS_MINUS or any(_has_plus_minus(part) for part in node.args)


def _num_plus_minus(node: Node) -> int:
    return (node.kind is Kind.PLUS_MINUS) + sum(_num_plus_minus(part) for part in node.args)


def has_plain_log(node: Node) -> bool:
    is_one = node.kind is Kind.CALL and node.name == "log" and len(node.args) == 1
    return is_one or any(has_plain_log(part) for part in node.args)


def with_decimal_logs(node: Node) -> Node:
    """Read a log without a base as the one to base ten, as school books do."""
    args = tuple(with_decimal_logs(part) for part in node.args)
    name = "lg" if node.kind is Kind.CALL and node.name == "log" and len(args) == 1 else node.name
    return Node(node.kind, args, name, node.value)


def _with_sign(node: Node, *, upper: bool) -> Node:
    """Read every +- as its upper or its lower sign; -+ as the other."""
    args = tuple(_with_sign(part, upper=upper) for part in node.args)
    if node.kind is not Kind.PLUS_MINUS:
        return Node(node.kind, args, node.name, node.value)
    first, second = args
    plus = upper == (node.name == "+-")
    return Node(Kind.ADD, (first, second if plus else negative(second)))
