"""Evaluate a tree to many digits at random points."""

import hashlib
import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ._budget import forgiven, spend
from ._exact import NotExact, rational
from ._node import Kind, Node

_contexts = threading.local()

_MAX_LOG2 = 1e15
_MAX_FACTORIAL = 1e12
_MAX_DETERMINANT = 8
_MAX_TERMS = 10_000
_MAX_TRIG_LOG2 = 4_000


class TooBig(ValueError):  # noqa: N818 - a size, not a fault
    """A power tower: too big, or too close to zero, even for its logarithm."""


class Undefined(ValueError):  # noqa: N818 - a property of the point, not a fault
    """The tree has no value at this point."""


class Evaluator:
    """Evaluate trees at one point, with one precision.

    A symbol's value depends on its name and the seed only, so two trees that are evaluated with
    one seed see one point. An opaque term, such as f(x+1) or F_k, gets a value from its name and
    the values of its arguments.
    """

    def __init__(
        self,
        *,
        digits: int,
        seed: str = "",
        sign: int = 1,
        scale: int = 1,
        at: Mapping[str, float] | None = None,
    ) -> None:
        self._mp: Any = _context(digits)
        self._seed = seed
        self._sign = sign
        self._scale = scale
        self._at = at or {}
        self._symbols: dict[str, Any] = {}

    def value(self, node: Node) -> Any:
        """Return an mpmath number.

        Raises:
            Undefined: A pole, a branch point, or a term without a value.
            TooBig: A number whose logarithm has more than 10^15 binary digits before the point.
            NotExact: A kind of node that has no number.
        """
        try:
            return self._value(node)
        except (ZeroDivisionError, OverflowError) as error:
            raise Undefined(str(error)) from error

    def _value(self, node: Node) -> Any:
        spend()
        mp = self._mp
        match node.kind:
            case Kind.NUMBER:
                return mp.mpf(node.value.numerator) / node.value.denominator
            case Kind.SYMBOL:
                return self._symbol(node.name)
            case Kind.ADD:
                return mp.fsum([self._value(term) for term in node.args])
            case Kind.MUL:
                product = mp.mpf(1)
                for factor in node.args:
                    product *= self._value(factor)
                return product
            case Kind.DIV:
                return self._value(node.args[0]) / self._value(node.args[1])
            case Kind.POW:
                return self._power(node)
            case Kind.CALL:
                return self._call(node)
            case Kind.QUANTITY:
                value = self._value(node.args[0])
                if node.name == "deg":
                    return value * mp.pi / 180
                return value / 100 if node.name == "%" else value
            case Kind.OPAQUE if node.name == "det" and node.args[0].kind is Kind.MATRIX:
                return self._determinant(node.args[0])
            case Kind.OPAQUE if node.name in ("sum", "prod"):
                known = self._big(node)
                return self._opaque(node) if known is None else known
            case Kind.OPAQUE:
                return self._opaque(node)
            case _:
                raise NotExact(node.kind)

    def _determinant(self, matrix: Node) -> Any:
        size = int(matrix.name)
        if size * size != len(matrix.args) or size > _MAX_DETERMINANT:
            raise NotExact("determinant")
        cells = [self._value(cell) for cell in matrix.args]
        rows = [cells[row * size : (row + 1) * size] for row in range(size)]
        return self._mp.det(self._mp.matrix(rows))

    def _opaque(self, node: Node) -> Any:
        return self._hashed(node.name, [self._printed(part) for part in node.args])

    def _big(self, node: Node) -> Any | None:
        """Work out a finite sum or product; None where the bounds are not whole numbers."""
        low, high, body = node.args
        if low.kind is not Kind.RELATION or low.name != "=" or low.args[0].kind is not Kind.SYMBOL:
            return None
        try:
            first, last = rational(low.args[1]), rational(high)
        except NotExact:
            return None
        if first.denominator != 1 or last.denominator != 1 or last - first > _MAX_TERMS:
            return None
        variable = low.args[0].name
        before = self._at
        terms: list[Any] = []
        for index in range(int(first), int(last) + 1):
            self._at = {**before, variable: index}
            terms.append(self._value(body))
        self._at = before
        return self._mp.fsum(terms) if node.name == "sum" else self._mp.fprod(terms)

    def _symbol(self, name: str) -> Any:
        mp = self._mp
        if name in self._at:
            return mp.mpf(self._at[name])  # before i, which sums like to count with
        if name == "pi":
            return +mp.pi
        if name == "e":
            return +mp.e
        if name == "i":
            return mp.mpc(0, 1)
        if name not in self._symbols:
            self._symbols[name] = self._hashed("symbol", [name])
        return self._symbols[name]

    def _hashed(self, name: str, parts: list[str]) -> Any:
        """Return a number in (0.3, 1.3) times the scale, of the point's sign (0: of either)."""
        mp = self._mp
        text = "\x1f".join((self._seed, name, *parts))
        digest = hashlib.blake2b(text.encode(), digest_size=17).digest()
        value = mp.mpf(3) / 10 + mp.mpf(int.from_bytes(digest[1:], "big")) / (1 << 128)
        value *= self._scale
        sign = self._sign or (1 if digest[0] % 2 else -1)
        return value * sign

    def _printed(self, node: Node) -> str:
        """Return a spelling that equal arguments share."""
        mp = self._mp
        match node.kind:
            case Kind.TEXT | Kind.INFINITY | Kind.ELLIPSIS | Kind.NUMBERS:
                return f"{node.kind}:{node.name}"
            case Kind.RELATION | Kind.LIST | Kind.TUPLE | Kind.MATRIX | Kind.SET | Kind.QUANTITY:
                inside = ",".join(self._printed(part) for part in node.args)
                return f"{node.kind}:{node.name}({inside})"
            case _:
                value = self._value(node)
        parts = (mp.re(value), mp.im(value))
        # Equal values must print alike: 25 of 50 digits leave the noise out.
        return ",".join("0" if abs(part) < 1e-25 else mp.nstr(part, 25) for part in parts)

    def _power(self, node: Node) -> Any:
        mp = self._mp
        base, exponent = self._value(node.args[0]), self._value(node.args[1])
        if base == 0:
            if mp.re(exponent) <= 0:
                raise Undefined("zero to a power that is not positive")
            return mp.mpf(0)
        self._check_size(base, exponent)
        if mp.im(base) == 0 and mp.re(base) < 0:
            return self._negative_power(node.args[1], mp.re(base), exponent)
        return mp.power(base, exponent)

    def _negative_power(self, node: Node, base: Any, exponent: Any) -> Any:
        """Return the real root of a negative number where there is one, as school does."""
        mp = self._mp
        try:
            fraction = rational(node)
        except NotExact:
            return mp.power(mp.mpc(base), exponent)
        if fraction.denominator == 1:
            return mp.power(base, fraction.numerator)
        if fraction.denominator % 2 == 0:
            return mp.power(mp.mpc(base), exponent)
        sign = -1 if fraction.numerator % 2 else 1
        return sign * mp.power(-base, exponent)

    def _check_size(self, base: Any, exponent: Any) -> None:
        mp = self._mp
        if base != 0 and (abs(mp.mag(base)) + 1) * abs(exponent) < _MAX_LOG2:
            return  # a bound without a logarithm, and most powers are within it
        size = abs(mp.log(abs(base), 2)) if base != 0 else mp.mpf(0)
        turns = abs(mp.im(exponent))
        if abs(exponent) * size > _MAX_LOG2 or turns > _MAX_LOG2:
            raise TooBig("power tower")

    def _call(self, node: Node) -> Any:
        mp, name = self._mp, node.name
        if name == "mod":
            return mp.mpf(rational(node).numerator)
        values = [self._value(argument) for argument in node.args]
        x = values[0]
        if name in ("factorial", "factorial2", "binom", "perm"):
            return self._combinatoric(name, node, values)
        if name in ("gcd", "lcm"):
            return mp.mpf(rational(node).numerator)
        if name in ("max", "min"):
            return (max if name == "max" else min)(mp.re(value) for value in values)
        if name == "exp":
            self._check_size(mp.e, x)
            return mp.exp(x)
        if name in ("log", "ln", "lg"):
            if x == 0:
                raise Undefined("log of zero")
            base = values[1] if len(values) == 2 else None
            if name == "lg":
                base = mp.mpf(10)
            return mp.log(x) if base is None else mp.log(x) / mp.log(base)
        function = _functions(mp).get(name)
        if function is None:
            raise NotExact(name)
        if x != 0 and mp.mag(x) > _MAX_TRIG_LOG2:
            raise TooBig("argument of a periodic function")
        return function(x)

    def _combinatoric(self, name: str, node: Node, values: list[Any]) -> Any:
        mp = self._mp
        if any(abs(value) > _MAX_FACTORIAL for value in values):
            raise TooBig("factorial")
        if name == "factorial":
            return mp.gamma(values[0] + 1)
        if name == "factorial2":
            return mp.fac2(values[0])
        n, k = values
        try:
            steps = rational(node.args[1])
        except NotExact:
            steps = None
        if steps is not None and steps.denominator == 1 and 0 <= steps <= 200:
            product = mp.mpf(1)
            for step in range(int(steps)):
                product *= n - step
            return product / mp.factorial(int(steps)) if name == "binom" else product
        falling = mp.gamma(n + 1) / mp.gamma(n - k + 1)
        return falling / mp.gamma(k + 1) if name == "binom" else falling


def _functions(mp: Any) -> dict[str, Callable[[Any], Any]]:
    return {
        "sin": mp.sin,
        "cos": mp.cos,
        "tan": mp.tan,
        "cot": mp.cot,
        "sec": mp.sec,
        "csc": mp.csc,
        "cis": mp.expj,
        "sinh": mp.sinh,
        "cosh": mp.cosh,
        "tanh": mp.tanh,
        "arcsin": mp.asin,
        "arccos": mp.acos,
        "arctan": mp.atan,
        "arccot": mp.acot,
        "arcsec": mp.asec,
        "arccsc": mp.acsc,
        "arcsinh": mp.asinh,
        "arccosh": mp.acosh,
        "arctanh": mp.atanh,
        "abs": abs,
        "floor": mp.floor,
        "ceil": mp.ceil,
        "sgn": mp.sign,
        "re": mp.re,
        "im": mp.im,
    }


def _context(digits: int) -> Any:
    """Return this thread's mpmath context of a precision; the global one belongs to others."""
    found = getattr(_contexts, str(digits), None)
    if found is None:
        with forgiven():
            mpmath: Any = importlib.import_module("mpmath")  # 60 ms, and few answers need it
        found = mpmath.mp.clone()
        found.dps = digits
        setattr(_contexts, str(digits), found)
    return found


def decimal(text: str) -> Any:
    """Return the number that a decimal of up to 50 digits spells, or an infinity."""
    return float(text) if "inf" in text else _context(50).mpf(text)


def symbols(node: Node) -> frozenset[str]:
    """Return the names of a tree's variables; an opaque term counts as one."""
    found: set[str] = set()
    rest = [node]
    while rest:
        part = rest.pop()
        if part.kind is Kind.SYMBOL and part.name not in ("pi", "e", "i"):
            found.add(part.name)
        elif part.kind is Kind.OPAQUE:
            found.add("opaque " + part.name)
        rest.extend(part.args)
    return frozenset(found)
