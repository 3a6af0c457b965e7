"""Parse what follows a number: a scale such as million, a unit, a percent sign."""

from ._atoms import Atoms
from ._lex import Token
from ._node import Kind, Node
from ._units import SCALES, is_known_unit, unit_of
from ._vocabulary import BRACKETED, FUNCTIONS


class Quantities(Atoms):
    """The part of the parser that tells a unit from a variable."""

    def _scale(self) -> int | None:
        """Take the million of 5 million, or of 5 \\text{ million dollars}."""
        token = self.peek
        word, _, rest = token.text.partition(" ")
        scale = SCALES.get(word.casefold()) if token.kind in ("word", "text") else None
        if scale is not None and rest:
            self._tokens[self._at] = Token("text", rest, spaced=True)
        elif scale is not None:
            self._next()
        return scale

    def _unit_ahead(self) -> tuple[str, int] | None:
        """Return the unit that starts here and how many tokens it takes, if one does."""
        token = self.peek
        if token.kind == "text":
            unit = unit_of(token.text)
            return None if unit is None else (unit, 1)
        if token.kind not in ("word", "sym"):
            return None
        if token.kind == "sym" and not (token.spaced and token.text in "mgshlL"):
            return ("glued m", 1) if self._is_glued_metre() else None
        words, length = [token.text], 1
        while self._ahead(length).kind in ("word", "sym") or (
            self._ahead(length).text == "/" and self._ahead(length + 1).kind in ("word", "sym")
        ):
            words.append(self._ahead(length).text)
            length += 1
        after = self._ahead(length)
        if after.kind != "end" and after.text not in (",", ";", "and", "or", ")", "}", "^"):
            return None
        if not any(is_known_unit(word) for word in words) and not token.spaced:
            return None
        if token.kind == "word" and not is_known_unit(token.text) and len(token.text) <= 2:
            return None
        if token.text in FUNCTIONS and (length > 1 or not is_known_unit(token.text)):
            return None
        if token.text in BRACKETED or token.text in ("pi", "infty"):
            return None
        unit = unit_of(" ".join(word for word in words if word != "/"))
        return None if unit is None else (unit, length)

    def _is_glued_metre(self) -> bool:
        """Whether `m^2` or `m^3` follows a number and ends the answer: 15m^2."""
        power = self._ahead(2).text, self._ahead(3).text, self._ahead(4).text
        return (
            self.peek.text == "m"
            and self._ahead(1).text == "^"
            and self._tokens[self._at - 1].kind == "num"
            and (self._ahead(3).kind == "end" or self._ahead(5).kind == "end")
            and (power[0] in "23" or (power[0] == "{" and power[1] in "23" and power[2] == "}"))
        )

    def _unit(self, left: Node) -> Node | None:
        if self._is("%"):
            self._next()
            return Node(Kind.QUANTITY, (left,), "%")
        if left.kind is Kind.TEXT or self._tokens[self._at - 1].kind == "word":
            return None  # a word has no unit: odd numbers
        found = self._unit_ahead()
        if found is None:
            return None
        unit, length = found
        self._at += length
        if self._take("^"):
            self._take("{")
            unit += "^" + self._next().text
            self._take("}")
        if left.kind is Kind.QUANTITY:
            left, unit = left.args[0], f"{left.name} {unit}"
        if unit == "percent":
            unit = "%"
        return Node(Kind.QUANTITY, (left,), unit)
