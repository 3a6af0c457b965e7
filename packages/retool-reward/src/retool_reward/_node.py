"""The tree of a parsed answer."""

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Self


class Kind(StrEnum):
    """What a node is."""

    NUMBER = "number"  # value; name is the literal if it had a decimal point
    SYMBOL = "symbol"  # name
    OPAQUE = "opaque"  # name(args): equal names and arguments make equal values, nothing else
    ADD = "add"
    MUL = "mul"
    DIV = "div"
    POW = "pow"
    CALL = "call"  # name: a function that can be evaluated
    PLUS_MINUS = "plus_minus"  # name +- or -+; args: (a, b) for a+-b
    TUPLE = "tuple"  # name: the brackets, such as (] for a half-open interval
    SET = "set"
    LIST = "list"  # bare, comma separated
    RATIO = "ratio"
    RELATION = "relation"  # name: = < <= > >= != in ~ ==; args: both sides
    CHAIN = "chain"  # args: relations that share their inner sides
    UNION = "union"
    INTERSECTION = "intersection"
    DIFFERENCE = "difference"
    MATRIX = "matrix"  # name: number of rows; args: cells by row
    INFINITY = "infinity"
    NUMBERS = "numbers"  # name: R Z N Q C
    ELLIPSIS = "ellipsis"
    QUANTITY = "quantity"  # name: a unit, % or deg; args: (number,)
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Node:
    """One node; see `Kind` for what its fields mean."""

    kind: Kind
    args: tuple[Self, ...] = ()
    name: str = ""
    value: Fraction = Fraction(0)


def number(value: int | Fraction, literal: str = "") -> Node:
    """Return a number node; `literal` is its spelling when it is a decimal."""
    return Node(Kind.NUMBER, (), literal, Fraction(value))


ZERO, ONE, MINUS_ONE = number(0), number(1), number(-1)


def negative(node: Node) -> Node:
    """Return -node, folded for numbers so that a literal keeps its places."""
    if node.kind is Kind.NUMBER:
        return Node(Kind.NUMBER, (), node.name, -node.value)
    return Node(Kind.MUL, (MINUS_ONE, node))


def minus(a: Node, b: Node) -> Node:
    """Return a - b."""
    return Node(Kind.ADD, (a, negative(b)))


def spelled(node: Node) -> str:
    """Return a spelling that only equal trees share."""
    own = str(node.value) if node.kind is Kind.NUMBER else f"{node.kind}:{node.name}"
    return own if not node.args else f"{own}({','.join(map(spelled, node.args))})"


def factors_of(node: Node) -> list[Node]:
    """Return the factors of nested products, in order."""
    if node.kind is not Kind.MUL:
        return [node]
    return [factor for part in node.args for factor in factors_of(part)]


def differential_of(term: Node) -> str | None:
    """Return x if a term ends in dx, as the last term of an integral does."""
    if term.kind is Kind.DIV:
        return differential_of(term.args[0])
    factors = factors_of(term)
    if len(factors) < 2 or factors[-1].kind is not Kind.SYMBOL:
        return None
    return factors[-1].name if factors[-2] == Node(Kind.SYMBOL, (), "d") else None
