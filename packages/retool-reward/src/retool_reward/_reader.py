"""Read tokens one after the other, and count how deep in brackets we are."""

from ._budget import spend
from ._lex import ParseError, Token, TooDeep


class Reader:
    """A cursor over tokens; the base of the parser."""

    def __init__(self, tokens: list[Token], max_depth: int) -> None:
        self._tokens = tokens
        self._at: int = 0
        self._depth: int = 0
        self._max_depth = max_depth
        self._bars: int = 0
        self._in_set = False
        self._integrals: int = 0

    def _enter(self) -> None:
        spend()
        self._depth += 1
        if self._depth > self._max_depth:
            raise TooDeep(f"nested deeper than {self._max_depth}")

    def _leave(self) -> None:
        self._depth -= 1

    @property
    def peek(self) -> Token:
        """The next token."""
        return self._tokens[self._at]

    def _ahead(self, distance: int) -> Token:
        return self._tokens[min(self._at + distance, len(self._tokens) - 1)]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _is(self, *texts: str) -> bool:
        token = self.peek
        return token.text in texts and token.kind in ("op", "cmd", "word")

    def _take(self, *texts: str) -> bool:
        if self._is(*texts):
            self._at += 1
            return True
        return False

    def _expect(self, *texts: str) -> Token:
        if not self._is(*texts):
            raise ParseError(f"expected {' or '.join(texts)}, found {self.peek.text!r}")
        return self._next()
