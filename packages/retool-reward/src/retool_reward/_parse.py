"""Read an answer, LaTeX or plain, into a tree. Nothing is ever evaluated as code."""

from functools import lru_cache

from ._atoms import literal
from ._lex import ParseError, Token, lex
from ._node import Kind, Node, negative, number, spelled
from ._quantity import Quantities
from ._vocabulary import (
    BIG,
    BINOMIALS,
    FRACTIONS,
    FUNCTIONS,
    GREEK,
    RELATIONS,
    ROUND,
)

_MAX_CACHED_CHARS = 256
# Words that stand between two things.
_JOINTS = frozenset({"and", "or", "mod", "choose"})


def parse(text: str, *, max_depth: int = 48) -> Node:
    """Parse a normalised answer.

    Args:
        text: What `normalise` returned, or one of its `readings`.
        max_depth: Brackets within brackets. Each level takes about ten Python frames.

    Raises:
        ParseError: The text is no mathematics that we read.
        TooDeep: It is nested deeper than `max_depth`.
    """
    if len(text) <= _MAX_CACHED_CHARS:
        return _cached(text, max_depth)
    return _parsed(text, max_depth)


@lru_cache(maxsize=4096)
def _cached(text: str, max_depth: int) -> Node:
    return _parsed(text, max_depth)


def _parsed(text: str, max_depth: int) -> Node:
    parser = _Parser(lex(text), max_depth)
    node = parser.answer()
    if parser.peek.kind != "end":
        raise ParseError(f"unexpected {parser.peek.text!r}")
    return node


class _Parser(Quantities):
    # --- lists and relations ---

    def answer(self) -> Node:
        """Parse items with separators between them; a list of `and` or `or` alone says so."""
        items, joints = [self._item()], set[str]()
        while (joint := self._separator()) is not None:
            if joint in (",", ";") and (self.peek.kind == "end" or self._is(")", "]")):
                break  # (1, 2, ) as python may print it
            joints.add(joint)
            items.append(self._item())
        if len(items) == 1:
            return items[0]
        name = joints.pop() if len(joints) == 1 and joints <= {"and", "or"} else ""
        return Node(Kind.LIST, tuple(items), name)

    def _separator(self) -> str | None:
        found: str | None = None
        while self._is(",", ";", "and", "or", "&"):
            found = self._next().text
        return found

    def _item(self) -> Node:
        self._enter()
        first = self._side()
        sides, names = [first], list[str]()
        while True:
            name = "in" if self._is(r"\in") else self.peek.text
            if name not in RELATIONS or self.peek.kind not in ("op", "cmd"):
                break
            self._next()
            names.append(name)
            sides.append(self._side())
        self._leave()
        if self._take(r"\pmod"):
            modulus = self._argument()
            sides[-1] = Node(Kind.QUANTITY, (sides[-1],), f"mod {spelled(modulus)}")
        if not names:
            return sides[0]
        relations = tuple(
            Node(Kind.RELATION, (sides[i], sides[i + 1]), name) for i, name in enumerate(names)
        )
        return relations[0] if len(relations) == 1 else Node(Kind.CHAIN, relations)

    def _side(self) -> Node:
        if self._is("~") and not self._at:
            self._next()  # a leading "approximately"
        left = self._ratio()
        while True:
            if self._take(r"\cup"):
                left = Node(Kind.UNION, (left, self._ratio()))
            elif self._take(r"\cap"):
                left = Node(Kind.INTERSECTION, (left, self._ratio()))
            elif self._take(r"\setminus", r"\backslash"):
                left = Node(Kind.DIFFERENCE, (left, self._ratio()))
            else:
                return left

    def _ratio(self) -> Node:
        first = self._sum()
        if self._take(r"\choose", "choose"):
            return Node(Kind.CALL, (first, self._sum()), "binom")
        if self._take(r"\over"):
            return Node(Kind.DIV, (first, self._sum()))
        if self._in_set or not self._is(":"):
            return first
        parts = [first]
        while self._take(":"):
            parts.append(self._sum())
        return Node(Kind.RATIO, tuple(parts))

    # --- arithmetic ---

    def _sum(self) -> Node:
        total = self._term()
        terms = [total]
        while True:
            if self._take("+"):
                terms.append(self._term())
            elif self._take("-"):
                term = self._term()
                if terms[-1].kind is Kind.NUMBERS:
                    terms[-1] = Node(Kind.DIFFERENCE, (terms[-1], term))
                else:
                    terms.append(negative(term))
            elif self._is(r"\pm", r"\mp"):
                name = "+-" if self._next().text == r"\pm" else "-+"
                left = terms[0] if len(terms) == 1 else Node(Kind.ADD, tuple(terms))
                terms = [Node(Kind.PLUS_MINUS, (left, self._term()), name)]
            else:
                return terms[0] if len(terms) == 1 else Node(Kind.ADD, tuple(terms))

    def _term(self) -> Node:
        if self._take("+"):
            return self._term()
        if self._take("-"):
            return negative(self._term())
        if self._is(r"\pm", r"\mp"):
            name = "+-" if self._next().text == r"\pm" else "-+"
            return Node(Kind.PLUS_MINUS, (number(0), self._term()), name)
        left = self._factor(None)
        while True:
            if self._take("*"):
                left = _product(left, self._signed_factor())
            elif self._take("/"):
                left = Node(Kind.DIV, (left, self._signed_factor()))
            elif self._take(r"\bmod", r"\mod", "mod"):
                left = Node(Kind.CALL, (left, self._signed_factor()), "mod")
            elif (scale := self._scale()) is not None:
                left = Node(Kind.MUL, (left, number(scale)))
            elif self._starts_factor():
                left = self._juxtaposed(left)
            else:
                quantity = self._unit(left)
                if quantity is None:
                    return left
                left = quantity

    def _signed_factor(self) -> Node:
        if self._take("-"):
            return negative(self._signed_factor())
        if self._take("+"):
            return self._signed_factor()
        return self._factor(None)

    def _starts_factor(self) -> bool:
        token = self.peek
        if token.kind == "num":
            return True
        if token.kind == "sym":
            return self._unit_ahead() is None
        if token.kind == "word":
            return self._unit_ahead() is None and token.text not in _JOINTS
        if token.kind == "cmd":
            return (
                token.text in FRACTIONS
                or token.text in BINOMIALS
                or token.text in GREEK
                or token.text in BIG
                or token.text in ROUND
                or token.text.lstrip("\\") in FUNCTIONS
                or token.text in (r"\sqrt", r"\pi", r"\infty", r"\begin", r"\overline", r"\langle")
            )
        if token.text == "|":
            return self._bars == 0 and not self._in_set
        return token.kind == "op" and token.text in ("(", "[", "{")

    def _juxtaposed(self, left: Node) -> Node:
        before = self._tokens[self._at - 1]
        token = self.peek
        if token.text in FRACTIONS and _is_whole(left, before):
            fraction = self._factor(None)
            mixed = _mixed(left, fraction)
            return mixed if mixed is not None else _product(left, fraction)
        if token.kind == "num":
            if before.kind == "num":
                return self._mixed_number(left)
            if before.kind == "sym":
                raise ParseError(f"number {token.text!r} after a letter")
        return _product(left, self._factor(left))

    def _mixed_number(self, whole: Node) -> Node:
        """Parse the `1/4` of `2 1/4`; two numbers side by side are nothing else."""
        top, slash, bottom = self.peek, self._ahead(1), self._ahead(2)
        before = self._tokens[self._at - 1]
        if slash.text == "/" and bottom.kind == "num" and _is_whole(whole, before):
            self._at += 3
            fraction = Node(Kind.DIV, (literal(top.text), literal(bottom.text)))
            mixed = _mixed(whole, fraction)
            if mixed is not None:
                return mixed
        raise ParseError(f"two numbers side by side: {before.text!r} {top.text!r}")

    # --- factors ---

    def _factor(self, left: Node | None) -> Node:
        self._enter()
        node = self._postfix(self._primary(left))
        self._leave()
        return node

    def _postfix(self, node: Node) -> Node:
        while True:
            if self._is("^", "**"):
                self._next()
                if self._degree_mark(after_number=node.kind is Kind.NUMBER):
                    scale = "deg"
                    if self.peek.kind == "sym" and self.peek.text in ("C", "F"):
                        scale += self._next().text
                    node = Node(Kind.QUANTITY, (node,), scale)
                elif self._is("'") or self._is("*"):
                    node = Node(Kind.OPAQUE, (node,), self._next().text)
                else:
                    node = self._raised(node, self._script())
            elif self._take("_"):
                node = self._subscripted(node)
            elif self._take("!"):
                name = "factorial2" if self._take("!") else "factorial"
                node = Node(Kind.CALL, (node,), name)
            elif self._take("'"):
                node = Node(Kind.OPAQUE, (node,), "'")
            elif self._take(r"\circ", r"\degree"):
                node = Node(Kind.QUANTITY, (node,), "deg")
            elif self._is("%"):
                self._next()
                node = Node(Kind.QUANTITY, (node,), "%")
            else:
                return node

    def _raised(self, base: Node, exponent: Node) -> Node:
        if base.kind is Kind.OPAQUE and base.name == "_" and base.args[0].name in ("C", "A", "P"):
            # C_n^k of the Russian and Chinese books
            name = "binom" if base.args[0].name == "C" else "perm"
            return Node(Kind.CALL, (base.args[1], exponent), name)
        return Node(Kind.POW, (base, exponent))

    def _degree_mark(self, *, after_number: bool) -> bool:
        marks = (r"\circ", r"\degree", *("o" if after_number else ""))  # some write 90^o
        if self.peek.text in marks:
            self._next()
            return True
        if self._is("{") and self._ahead(1).text in marks and self._ahead(2).text == "}":
            self._at += 2
            self._expect("}")
            return True
        return False

    def _script(self) -> Node:
        """Parse an exponent or subscript: a group, or one signed factor."""
        if self._is("{"):
            return self._group()
        if self._take("-"):
            return negative(self._script())
        if self._take("+"):
            return self._script()
        if self._is("("):
            return self._primary(None)
        node = self._primary(None)
        if self._is("^", "**"):  # 2^3^2 associates to the right
            self._next()
            return Node(Kind.POW, (node, self._script()))
        while self._take("!"):
            node = Node(Kind.CALL, (node,), "factorial")
        return node

    def _subscripted(self, node: Node) -> Node:
        if node.kind is Kind.NUMBER and not node.name:
            digits = self._tokens[self._at - 2]
            bracketed = digits.text == ")" and self._at > 3  # (1010)_2
            return self._in_base(self._tokens[self._at - 3].text if bracketed else digits.text)
        if self.peek.kind == "text":
            return Node(Kind.OPAQUE, (node, Node(Kind.TEXT, (), self._next().text)), "_")
        if self._is("{") and (
            self._ahead(1).kind in ("text", "word") or self._ahead(1).text in (r"\max", r"\min")
        ):
            self._next()
            name = self._next().text.lstrip("\\")
            self._expect("}")
            return Node(Kind.OPAQUE, (node, Node(Kind.TEXT, (), name)), "_")
        subscript = self._subscript()
        return Node(Kind.OPAQUE, (node, subscript), "_")

    def _subscript(self) -> Node:
        return self._group() if self._is("{") else self._primary(None)


def _product(left: Node, right: Node) -> Node:
    if {left.kind, right.kind} & {Kind.TEXT, Kind.ELLIPSIS}:
        raise ParseError("text or dots inside mathematics")
    return Node(Kind.MUL, (left, right))


def _is_whole(node: Node, before: Token) -> bool:
    return (
        before.kind == "num"
        and node.kind is Kind.NUMBER
        and not node.name
        and node.value.denominator == 1
        and before.text.isdigit()
    )


def _mixed(whole: Node, fraction: Node) -> Node | None:
    """Return whole + fraction for a proper fraction of whole numbers, else None."""
    if fraction.kind is Kind.QUANTITY and fraction.name in ("%", "deg"):
        mixed = _mixed(whole, fraction.args[0])
        return None if mixed is None else Node(Kind.QUANTITY, (mixed,), fraction.name)
    if fraction.kind is not Kind.DIV:
        return None
    top, bottom = fraction.args
    if top.kind is not Kind.NUMBER or bottom.kind is not Kind.NUMBER or top.name or bottom.name:
        return None
    if not 0 < top.value < bottom.value:
        return None
    return number(whole.value + top.value / bottom.value)
