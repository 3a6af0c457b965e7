"""Ask sympy what the numeric probe cannot know: sums, products, integrals and limits.

This runs in a worker that can be killed, never in the caller's process.
"""

import importlib
import operator
from functools import reduce
from typing import Any

from ._node import Kind, Node, differential_of, factors_of

_INSTANCES = (2, 3, 5, 8, 13)
_DIGITS = 30
_ALMOST_ZERO, _HUGE = 1e-20, 1e20


class NotSymbolic(ValueError):  # noqa: N818 - a question's answer, not a fault
    """The tree has a part that sympy is not asked about."""


def same_symbolically(pred: Node, gold: Node) -> bool | None:
    """Whether sympy finds two trees equal; None if it cannot tell."""
    sp: Any = importlib.import_module("sympy")  # half a second, and typed by nobody
    try:
        mine, theirs = _Converter(sp).convert(pred), _Converter(sp).convert(gold)
    except NotSymbolic:
        return None
    free = sorted(mine.free_symbols | theirs.free_symbols, key=str)
    if not free:
        # Numbers first: quadrature takes milliseconds where an antiderivative may take for ever.
        same = _agree(mine, theirs)
        return same if same is not None else _agree(mine.doit(), theirs.doit())
    mine, theirs = mine.doit(), theirs.doit()
    if mine == theirs:
        return True
    verdict: bool | None = True
    for index in range(len(_INSTANCES)):
        point = {symbol: _INSTANCES[(index + k) % len(_INSTANCES)] for k, symbol in enumerate(free)}
        here = _agree(*(side.subs(point).doit() for side in (mine, theirs)))
        if here is False:
            return False
        verdict = verdict and here
    return verdict


def solve_inequality(relation: Node, variable: str) -> list[tuple[str, bool, str, bool]] | None:
    """Return the pieces of the reals where an inequality holds; None if sympy cannot tell."""
    sp: Any = importlib.import_module("sympy")
    solvers: Any = importlib.import_module("sympy.solvers.inequalities")
    unknown = sp.Symbol(variable, real=True)
    try:
        left, right = (_Converter(sp).convert(side) for side in relation.args)
        sides = (side.subs(sp.Symbol(variable), unknown) for side in (left, right))
        holds = sp.Rel(*sides, relation.name)
        found = solvers.solve_univariate_inequality(holds, unknown, relational=False)
    except (NotSymbolic, NotImplementedError):
        return None
    if found is sp.S.EmptySet:
        return []
    pieces = found.args if isinstance(found, sp.Union) else (found,)
    if not all(isinstance(piece, sp.Interval | sp.FiniteSet) for piece in pieces):
        return None
    return [piece for part in pieces for piece in _ends(part, sp)]


def _ends(piece: Any, sp: Any) -> list[tuple[str, bool, str, bool]]:
    if isinstance(piece, sp.Interval):
        low, high = (_decimal(end) for end in (piece.start, piece.end))
        return [(low, not piece.left_open, high, not piece.right_open)]
    return [(_decimal(point), True, _decimal(point), True) for point in piece]


def _decimal(end: Any) -> str:
    return str(end.evalf(50)).replace("oo", "inf")


def _agree(mine: Any, theirs: Any) -> bool | None:
    """Compare two numbers digit by digit: of a difference near zero, sympy wants every digit.

    Their size is nothing that a float could hold. What is almost zero or huge is compared only in
    closed form: of a sum or an integral it has few right digits, or none.
    """
    a, b = mine.evalf(_DIGITS), theirs.evalf(_DIGITS)
    if not all(value.is_number and value.is_finite for value in (a, b)):
        return None
    gap, *sizes = (abs(value).evalf(_DIGITS) for value in (a - b, a, b))
    if not _ALMOST_ZERO < max(sizes) < _HUGE and any(
        side.atoms(*_unevaluated()) for side in (mine, theirs)
    ):
        return None
    return bool(gap <= max(sizes) * 1e-20)


def _unevaluated() -> tuple[Any, ...]:
    sp: Any = importlib.import_module("sympy")
    return sp.Sum, sp.Product, sp.Integral, sp.Limit


class _Converter:
    def __init__(self, sp: Any) -> None:
        self._sp = sp

    def convert(self, node: Node) -> Any:
        """Return the sympy expression of a tree.

        Raises:
            NotSymbolic: A part has no counterpart.
        """
        sp = self._sp
        match node.kind:
            case Kind.NUMBER:
                return sp.Rational(node.value.numerator, node.value.denominator)
            case Kind.SYMBOL:
                constants = {"pi": sp.pi, "e": sp.E, "i": sp.I}
                return constants.get(node.name) or sp.Symbol(node.name)
            case Kind.INFINITY:
                return sp.oo
            case Kind.ADD:
                return sp.Add(*map(self.convert, node.args))
            case Kind.MUL:
                return sp.Mul(*map(self.convert, node.args))
            case Kind.DIV:
                return self.convert(node.args[0]) / self.convert(node.args[1])
            case Kind.POW:
                return sp.Pow(*map(self.convert, node.args))
            case Kind.CALL:
                return self._call(node)
            case Kind.OPAQUE if node.name in ("sum", "prod", "int", "lim"):
                return self._big(node)
            case Kind.OPAQUE if node.name == "_":
                return sp.Symbol(f"{node.args[0].name}_{self.convert(node.args[1])}")
            case _:
                raise NotSymbolic(node.kind)

    def _call(self, node: Node) -> Any:
        sp = self._sp
        arguments = [self.convert(argument) for argument in node.args]
        names = {
            "arcsin": "asin",
            "arccos": "acos",
            "arctan": "atan",
            "ln": "log",
            "abs": "Abs",
            "ceil": "ceiling",
            "binom": "binomial",
            "perm": "FallingFactorial",
            "sgn": "sign",
            "mod": "Mod",
            "max": "Max",
            "min": "Min",
        }
        if node.name == "lg":
            return sp.log(arguments[0], 10)
        name = names.get(node.name, node.name)
        allowed = (
            "sin cos tan cot sec csc sinh cosh tanh exp log floor factorial factorial2 gcd lcm"
        )
        if name not in {*allowed.split(), *names.values()}:
            raise NotSymbolic(node.name)
        return getattr(sp, name)(*arguments)

    def _big(self, node: Node) -> Any:
        sp = self._sp
        low, high, body = node.args
        if node.name == "int":
            return self._integral(low, high, body)
        if node.name == "lim":
            if low.kind is not Kind.RELATION or low.name != "to":
                raise NotSymbolic("limit")
            return sp.limit(self.convert(body), *map(self.convert, low.args))
        if low.kind is not Kind.RELATION or low.name != "=" or low.args[0].kind is not Kind.SYMBOL:
            raise NotSymbolic("bounds")
        bounds = (self.convert(low.args[0]), self.convert(low.args[1]), self.convert(high))
        return (sp.Sum if node.name == "sum" else sp.Product)(self.convert(body), bounds)

    def _integral(self, low: Node, high: Node, body: Node) -> Any:
        sp = self._sp
        terms = list(body.args) if body.kind is Kind.ADD else [body]
        variable, last = _differential(terms[-1])
        terms[-1] = last
        integrand = reduce(operator.add, (self.convert(term) for term in terms))
        if low.kind is Kind.TEXT or high.kind is Kind.TEXT:
            raise NotSymbolic("indefinite integral")
        return sp.Integral(integrand, (sp.Symbol(variable), self.convert(low), self.convert(high)))


def _differential(term: Node) -> tuple[str, Node]:
    """Split the dx off an integral's last term."""
    if term.kind is Kind.DIV:
        variable, top = _differential(term.args[0])
        return variable, Node(Kind.DIV, (top, term.args[1]))
    variable = differential_of(term)
    if variable is None:
        raise NotSymbolic("an integral without dx")
    return variable, Node(Kind.MUL, tuple(factors_of(term)[:-2]))
