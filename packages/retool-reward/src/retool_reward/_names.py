"""Tell the name of a value from the value: x = 3, f(x) = 2x, x in S, m + n = 42."""

from ._node import Kind, Node, factors_of
from ._vocabulary import TRIGONOMETRIC

# Terms whose meaning the numeric probe does not know: a difference there decides nothing.
MEANINGFUL = frozenset({"sum", "prod", "int", "lim", "det"})

_EVENTS = frozenset({Kind.RELATION, Kind.CHAIN, Kind.INTERSECTION, Kind.UNION})


def exact_part(node: Node) -> Node:
    """Drop what follows an approximation sign: x = 1/3 ~ 0.33 says 1/3, x ~ 11 says 11."""
    if node.kind is Kind.RELATION and node.name == "~":
        return node.args[1] if is_name(node.args[0]) else node.args[0]
    if node.kind is not Kind.CHAIN:
        return node
    kept: list[Node] = []
    for part in node.args:
        if part.name == "~":
            break
        kept.append(part)
    if not kept:
        return exact_part(node.args[0])
    return kept[0] if len(kept) == 1 else Node(Kind.CHAIN, tuple(kept))


def named_value(node: Node) -> tuple[Node, Node] | None:
    """Split x = 3, 3 = x, x in S, or a chain x = 1 + 2 = 3, into the name and the last value."""
    if node.kind is Kind.CHAIN:
        first = node.args[0].args[0]
        if is_name(first) and all(part.name == "=" for part in node.args):
            return first, node.args[-1].args[1]
        return None
    if node.kind is not Kind.RELATION or node.name not in ("=", "in"):
        return None
    left, right = node.args
    if is_name(left):
        return left, right
    return (right, left) if node.name == "=" and is_name(right) else None


def named_points(node: Node, names: tuple[Node, ...] | None) -> Node | None:
    """Return the point (1, 2) for the list y = 2, x = 1; None for a list of anything else.

    Names that come back in turn make several points: p = 5, q = 2; p = 7, q = 2.

    Args:
        node: The list.
        names: The order of the names; without it that of the alphabet, or as listed where a name
            is no Latin letter.
    """
    pairs = [pair for part in node.args if (pair := named_value(part)) is not None]
    listed = tuple(dict(pairs))
    size = len(listed)
    if node.kind is not Kind.LIST or len(pairs) != len(node.args) or len(pairs) % size:
        return None
    if names is None:
        is_latin = all(name.kind is Kind.SYMBOL and len(name.name) == 1 for name in listed)
        names = tuple(sorted(listed, key=lambda name: name.name)) if is_latin else listed
    points: list[Node] = []
    for start in range(0, len(pairs), size):
        values = dict(pairs[start : start + size])
        if set(values) != set(names):
            return None
        points.append(Node(Kind.TUPLE, tuple(values[name] for name in names), "()"))
    return points[0] if len(points) == 1 else Node(Kind.LIST, tuple(points))


def is_name(node: Node) -> bool:
    """Whether a node only names a value: a letter, f(x), a length AB, a tuple of names."""
    match node.kind:
        case Kind.SYMBOL:
            return node.name not in ("pi", "e", "i")
        case Kind.TEXT:
            return True
        case Kind.OPAQUE:
            return node.name not in MEANINGFUL
        case Kind.TUPLE | Kind.RATIO | Kind.DIV:
            return all(is_name(part) for part in node.args)
        case Kind.MUL:  # a length AB, a probability P(A), an angle ABC, its measure, a dx
            factors = factors_of(node)
            names = [factor.name for factor in factors]
            if len(factors) == 2 and names[0] == "d" and factors[1].kind is Kind.SYMBOL:
                return True
            if names[:2] == ["m", "angle"]:
                factors = factors[1:]
            if len(factors) == 2 and factors[1].kind in _EVENTS:
                return _is_capital(factors[0])  # P(X = 3), P(A \cap B)
            return all(_is_capital(part) for part in factors)
        case Kind.CALL if node.name == "abs":
            return node.args[0].kind is Kind.MUL and is_name(node.args[0])
        case Kind.CALL if node.name in TRIGONOMETRIC:
            return is_name(node.args[0])
        case Kind.CALL if node.name == "det":
            return is_name(node.args[0])
        case _:
            return False


def _is_capital(node: Node) -> bool:
    return node.kind is Kind.SYMBOL and (
        node.name.isupper() or node.name in ("angle", "triangle") or len(node.name) == 0
    )


def letters_total(node: Node) -> Node | None:
    """Return n of m + n = n, or of a chain that ends so: its left side is bare letters."""
    relations = node.args if node.kind is Kind.CHAIN else (node,)
    if any(part.kind is not Kind.RELATION or part.name != "=" for part in relations):
        return None
    left, right = relations[0].args[0], relations[-1].args[1]
    parts = left.args if left.kind in (Kind.ADD, Kind.MUL) else ()
    letters = {part.name for part in parts if part.kind is Kind.SYMBOL and len(part.name) == 1}
    if len(parts) < 2 or len(letters) != len(parts) or right.kind is not Kind.NUMBER:
        return None
    return right if right.value else None
