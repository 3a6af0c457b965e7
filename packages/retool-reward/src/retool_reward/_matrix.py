"""Work out sums and products of matrices whose cells are trees."""

from collections.abc import Callable

from ._exact import NotExact, rational
from ._node import ONE, ZERO, Kind, Node, negative

_MAX_CELLS = 400
_MAX_POWER = 8


def matrix_of(node: Node) -> Node | None:
    """Return the MATRIX that a node stands for, or None if it stands for none.

    A tuple reads as a column, and a tuple of tuples as rows. A matrix times, plus or to a small
    power of another is worked out.
    """
    match node.kind:
        case Kind.MATRIX:
            return node if len(node.args) <= _MAX_CELLS else None
        case Kind.TUPLE:
            rows = {len(row.args) for row in node.args if row.kind is Kind.TUPLE}
            if len(rows) == 1 and all(row.kind is Kind.TUPLE for row in node.args):
                cells = tuple(cell for row in node.args for cell in row.args)
                return Node(Kind.MATRIX, cells, str(len(node.args)))
            return Node(Kind.MATRIX, node.args, str(len(node.args)))
        case Kind.ADD:
            return _fold(node, _sum)
        case Kind.MUL:
            return _fold(node, _product)
        case Kind.DIV:
            matrix = matrix_of(node.args[0])
            if matrix is None:
                return None
            cells = tuple(Node(Kind.DIV, (cell, node.args[1])) for cell in matrix.args)
            return Node(Kind.MATRIX, cells, matrix.name)
        case Kind.POW:
            return _power(node)
        case _:
            return None


def _fold(node: Node, combine: Callable[[Node, Node], Node | None]) -> Node | None:
    total: Node | None = None
    for part in node.args:
        matrix = matrix_of(part)
        here = part if matrix is None else matrix
        total = here if total is None else combine(total, here)
        if total is None:
            return None
    return total if total is not None and total.kind is Kind.MATRIX else None


def _sum(a: Node, b: Node) -> Node | None:
    if a.kind is not Kind.MATRIX or b.kind is not Kind.MATRIX:
        return None
    if (a.name, len(a.args)) != (b.name, len(b.args)):
        return None
    cells = tuple(Node(Kind.ADD, pair) for pair in zip(a.args, b.args, strict=True))
    return Node(Kind.MATRIX, cells, a.name)


def _product(a: Node, b: Node) -> Node | None:
    if a.kind is not Kind.MATRIX and b.kind is not Kind.MATRIX:
        return Node(Kind.MUL, (a, b))
    if a.kind is not Kind.MATRIX or b.kind is not Kind.MATRIX:
        factor, matrix = (b, a) if a.kind is Kind.MATRIX else (a, b)
        cells = tuple(
            negative(cell) if factor.value == -1 else Node(Kind.MUL, (factor, cell))
            for cell in matrix.args
        )
        return Node(Kind.MATRIX, cells, matrix.name)
    rows, inner = int(a.name), len(a.args) // int(a.name)
    columns = len(b.args) // int(b.name)
    if inner != int(b.name) or rows * columns * inner > _MAX_CELLS * 8:
        return None
    cells = tuple(
        Node(
            Kind.ADD,
            tuple(
                Node(Kind.MUL, (a.args[row * inner + k], b.args[k * columns + column]))
                for k in range(inner)
            ),
        )
        for row in range(rows)
        for column in range(columns)
    )
    return Node(Kind.MATRIX, cells, a.name)


def _power(node: Node) -> Node | None:
    base = matrix_of(node.args[0])
    if base is not None and node.args[1] == Node(Kind.SYMBOL, (), "T"):
        columns = len(base.args) // int(base.name)
        cells = tuple(cell for column in range(columns) for cell in base.args[column::columns])
        return Node(Kind.MATRIX, cells, str(columns))
    try:
        exponent = rational(node.args[1])
    except NotExact:
        return None
    if base is None or exponent.denominator != 1 or not 0 <= exponent <= _MAX_POWER:
        return None
    size = int(base.name)
    if size * size != len(base.args):
        return None
    total = Node(
        Kind.MATRIX,
        tuple(ONE if row == column else ZERO for row in range(size) for column in range(size)),
        base.name,
    )
    for _ in range(int(exponent)):
        product = _product(total, base)
        if product is None:
            return None
        total = product
    return total
