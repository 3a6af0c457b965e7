"""Parse what stands in brackets: groups, tuples and intervals, sets, matrices."""

from abc import ABC, abstractmethod

from ._lex import ParseError
from ._node import Kind, Node
from ._reader import Reader
from ._vocabulary import CLOSING, MATRICES


class Brackets(Reader, ABC):
    """The part of the parser that opens and closes; what stands inside is the subclass's matter."""

    @abstractmethod
    def answer(self) -> Node:
        """Parse items with separators between them."""

    @abstractmethod
    def _item(self) -> Node: ...

    def _group(self) -> Node:
        self._expect("{")
        if self._take("}"):
            raise ParseError("empty group")
        node = self.answer()
        self._expect("}")
        return node

    def _call_arguments(self) -> tuple[Node, ...]:
        self._expect("(")
        inside = self.answer()
        self._expect(")")
        return inside.args if inside.kind is Kind.LIST else (inside,)

    def _enclosed(self, opening: str) -> Node:
        if opening == r"\{":
            return self._set()
        closings = CLOSING[opening]
        bars, self._bars = self._bars, 0
        in_set, self._in_set = self._in_set, False
        if self._is(*closings):
            raise ParseError("empty brackets")
        inside = self.answer()
        closing = self._expect(*closings).text
        self._bars, self._in_set = bars, in_set
        items = inside.args if inside.kind is Kind.LIST else (inside,)
        if len(items) == 1:
            if opening + closing not in ("()", "[]"):
                raise ParseError(f"unbalanced {opening} {closing}")
            return inside
        if opening == r"\langle":
            return Node(Kind.TUPLE, items, "()")
        return Node(Kind.TUPLE, items, opening + closing)

    def _set(self) -> Node:
        """Parse a set's members, or for { x | x > 2 } the condition that makes it."""
        if self._take(r"\}"):
            return Node(Kind.SET)
        bars, self._bars = self._bars, 0
        in_set, self._in_set = self._in_set, True
        inside = self.answer()
        self._in_set = False
        if self._take("|", ":"):
            inside = self.answer()
            self._expect(r"\}")
            self._bars, self._in_set = bars, in_set
            return inside
        self._expect(r"\}")
        self._bars, self._in_set = bars, in_set
        return Node(Kind.SET, inside.args if inside.kind is Kind.LIST else (inside,))

    def _matrix(self) -> Node:
        name = self._environment()
        if name == "array" and self._take("{"):
            while not self._take("}"):
                if self._next().kind == "end":
                    raise ParseError("unterminated array")
        if name not in MATRICES:
            raise ParseError(f"unknown environment {name!r}")
        rows: list[list[Node]] = [[]]
        while not self._is(r"\end"):
            if self._take("\\\\"):
                rows.append([])
            elif not self._take("&"):
                rows[-1].append(self._item())
        self._next()
        self._environment_end(name)
        rows = [row for row in rows if row]
        cells = [cell for row in rows for cell in row]
        if len(cells) == len(rows) and all(cell.kind is Kind.RELATION for cell in cells):
            return Node(Kind.LIST, tuple(cells))  # a system's solution: x = 1 over y = 2
        if name == "cases":
            return Node(Kind.OPAQUE, tuple(cells), name)
        if not rows or len({len(row) for row in rows}) != 1:
            raise ParseError("a matrix needs rows of one length")
        node = Node(Kind.MATRIX, tuple(cells), str(len(rows)))
        return Node(Kind.OPAQUE, (node,), "det") if name == "vmatrix" else node

    def _environment(self) -> str:
        self._expect("{")
        name = self._next().text
        self._expect("}")
        return name

    def _environment_end(self, name: str) -> None:
        if self._environment() != name:
            raise ParseError(f"environment {name!r} is closed by another")
