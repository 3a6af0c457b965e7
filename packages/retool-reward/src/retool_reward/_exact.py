"""Evaluate a tree exactly: as a fraction, or modulo secret primes at secret points."""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from ._budget import spend
from ._node import Kind, Node

# Beyond this a number is compared by its residues and its size, not by its digits.
_MAX_BITS = 10_000
_MAX_EXPONENT_BITS = 100_000
_MAX_FACTORIAL = 2_000
_PRIME_BITS = 89
_MILLER_RABIN_ROUNDS = 24


class NotExact(ValueError):  # noqa: N818 - a question's answer, not a fault
    """The tree is no rational number, or no rational function, that we can compute."""


def rational(node: Node) -> Fraction:
    """Return the tree's value.

    Raises:
        NotExact: The value is not rational, or has more than 10,000 bits.
    """
    spend()
    match node.kind:
        case Kind.NUMBER:
            return node.value
        case Kind.ADD:
            return _bounded(sum((rational(term) for term in node.args), Fraction(0)))
        case Kind.MUL:
            product = Fraction(1)
            for factor in node.args:
                product = _bounded(product * rational(factor))
            return product
        case Kind.DIV:
            top, bottom = rational(node.args[0]), rational(node.args[1])
            if not bottom:
                raise NotExact("division by zero")
            return _bounded(top / bottom)
        case Kind.POW:
            return _power(rational(node.args[0]), rational(node.args[1]))
        case Kind.CALL:
            return _call(node)
        case Kind.QUANTITY if node.name == "%":
            return rational(node.args[0]) / 100
        case _:
            raise NotExact(node.kind)


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > _MAX_BITS:
        raise NotExact("too many digits")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return _root(base, exponent)
    power = exponent.numerator
    if base in (0, 1, -1):
        if base == 0 and power <= 0:
            raise NotExact("zero to a power that is not positive")
        return Fraction(base**power if base else 0) if base != -1 else Fraction((-1) ** (power % 2))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(power) > _MAX_BITS or bits * abs(power) > _MAX_BITS:
        raise NotExact("too many digits")
    return base**power


def _root(base: Fraction, exponent: Fraction) -> Fraction:
    """Return base^(p/q) where it is rational and real."""
    q = exponent.denominator
    if base < 0 or q > 64:
        raise NotExact("root")
    top, bottom = _int_root(base.numerator, q), _int_root(base.denominator, q)
    return _power(Fraction(top, bottom), Fraction(exponent.numerator))


def _int_root(value: int, q: int) -> int:
    if value in (0, 1):
        return value
    if value.bit_length() > 2_000:
        raise NotExact("root of a long number")
    if q == 2:
        root = math.isqrt(value)
    else:
        low, high = 1, 1 << (value.bit_length() // q + 1)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if middle**q < value else (low, middle)
        root = low
    if root**q != value:
        raise NotExact("irrational root")
    return root


def _whole(node: Node) -> int:
    value = rational(node)
    if value.denominator != 1:
        raise NotExact("not a whole number")
    return value.numerator


def _call(node: Node) -> Fraction:
    name = node.name
    if name == "mod":
        return Fraction(_remainder(node.args[0], _whole(node.args[1])))
    values = [rational(argument) for argument in node.args]
    if name in _ELEMENTARY:
        return _ELEMENTARY[name](values[0])
    if name in ("max", "min"):
        return max(values) if name == "max" else min(values)
    whole = [int(value) for value in values if value.denominator == 1]
    if len(whole) != len(values) or name not in _WHOLE:
        raise NotExact(name)
    return Fraction(_WHOLE[name](*whole))


_ELEMENTARY: dict[str, Callable[[Fraction], Fraction]] = {
    "abs": abs,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "sgn": lambda value: Fraction((value > 0) - (value < 0)),
}


def _factorial(n: int) -> int:
    if not 0 <= n <= _MAX_FACTORIAL:
        raise NotExact("factorial")
    return math.factorial(n)


def _factorial2(n: int) -> int:
    if not 0 <= n <= _MAX_FACTORIAL:
        raise NotExact("factorial")
    return math.prod(range(n, 0, -2))


def _binom(n: int, k: int) -> int:
    if n < 0 or k < 0 or n > _MAX_BITS or min(k, n - k) > _MAX_FACTORIAL:
        raise NotExact("binomial")
    return math.comb(n, k)


def _perm(n: int, k: int) -> int:
    if n < 0 or k < 0 or n > _MAX_BITS or k > _MAX_FACTORIAL:
        raise NotExact("permutations")
    return math.perm(n, k)


_WHOLE: dict[str, Callable[..., int]] = {
    "factorial": _factorial,
    "factorial2": _factorial2,
    "binom": _binom,
    "perm": _perm,
    "gcd": math.gcd,
    "lcm": math.lcm,
}


def _remainder(node: Node, modulus: int) -> int:
    """Return the value of `node` modulo a whole number; exponents may be huge."""
    if modulus < 1:
        raise NotExact("modulus")
    match node.kind:
        case Kind.ADD:
            return sum(_remainder(term, modulus) for term in node.args) % modulus
        case Kind.MUL:
            return math.prod(_remainder(factor, modulus) for factor in node.args) % modulus
        case Kind.POW:
            exponent = _long_whole(node.args[1])
            if exponent < 0:
                raise NotExact("negative power")
            return pow(_remainder(node.args[0], modulus), exponent, modulus)
        case _:
            return _whole(node) % modulus


def _long_whole(node: Node) -> int:
    """Return a whole number of up to 100,000 bits, which only an exponent may have."""
    if node.kind is not Kind.POW:
        return _whole(node)
    base, power = _whole(node.args[0]), _long_whole(node.args[1])
    if not 0 <= power * base.bit_length() <= _MAX_EXPONENT_BITS:
        raise NotExact("exponent")
    return base**power


# --- residues ---


@lru_cache(maxsize=1)
def _secret() -> tuple[random.Random, tuple[int, int]]:
    """Return a generator and two primes that no answer can have been written for."""
    source = random.SystemRandom()
    return random.Random(source.getrandbits(64)), (_prime(source), _prime(source))


def _prime(source: random.Random) -> int:
    while True:
        candidate = source.getrandbits(_PRIME_BITS) | (1 << (_PRIME_BITS - 1)) | 1
        if _is_prime(candidate, source):
            return candidate


def _is_prime(n: int, source: random.Random) -> bool:
    if any(n % p == 0 for p in (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)):
        return False
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(_MILLER_RABIN_ROUNDS):
        x = pow(source.randrange(2, n - 1), odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def same_rational_function(a: Node, b: Node) -> bool:
    """Whether two rational functions are one, by their residues at random points.

    By Schwartz and Zippel a wrong True needs a root of the difference among 2^89 points, twice.

    Raises:
        NotExact: A tree is no rational function with whole number powers.
    """
    generator, primes = _secret()
    for prime in primes:
        for _ in range(4):
            points: dict[str, int] = {}

            def point(name: str, points: dict[str, int] = points, prime: int = prime) -> int:
                return points.setdefault(name, generator.randrange(2, prime))

            try:
                mine, theirs = _residue(a, prime, point), _residue(b, prime, point)
            except ZeroDivisionError:
                continue  # a pole at this point; another point will do
            if mine != theirs:
                return False
            break
        else:
            raise NotExact("every point is a pole")
    return True


def _residue(node: Node, prime: int, point: Callable[[str], int]) -> int:
    spend()
    match node.kind:
        case Kind.NUMBER:
            value = node.value
            if value.denominator == 1:
                return value.numerator % prime
            return value.numerator * _inverse(value.denominator, prime) % prime
        case Kind.SYMBOL:
            if node.name in ("pi", "e", "i"):
                raise NotExact(node.name)
            return point(node.name)
        case Kind.ADD:
            return sum(_residue(term, prime, point) for term in node.args) % prime
        case Kind.MUL:
            product = 1
            for factor in node.args:
                product = product * _residue(factor, prime, point) % prime
            return product
        case Kind.DIV:
            bottom = _inverse(_residue(node.args[1], prime, point), prime)
            return _residue(node.args[0], prime, point) * bottom % prime
        case Kind.POW:
            exponent = _whole(node.args[1])
            base = _residue(node.args[0], prime, point)
            if base == 0 and exponent <= 0:
                raise ZeroDivisionError
            return pow(base, exponent % (prime - 1), prime) if base else 0
        case Kind.CALL if node.name == "binom":
            return _residue_of_binom(node, prime, point)
        case _:
            value = rational(node)
            return value.numerator * _inverse(value.denominator, prime) % prime


def _residue_of_binom(node: Node, prime: int, point: Callable[[str], int]) -> int:
    k = _whole(node.args[1])
    if not 0 <= k <= _MAX_FACTORIAL:
        raise NotExact("binomial")
    n, product = _residue(node.args[0], prime, point), 1
    for step in range(k):
        product = product * (n - step) % prime
    return product * _inverse(math.factorial(k) % prime, prime) % prime


def _inverse(value: int, prime: int) -> int:
    if value % prime == 0:
        raise ZeroDivisionError
    return pow(value, -1, prime)
