"""Read an answer, LaTeX or plain, into a tree. Nothing is ever evaluated as code."""

from fractions import Fraction
from functools import lru_cache

from ._budget import spend
from ._lex import ParseError, Token, TooDeep, lex
from ._node import MINUS_ONE, ONE, Kind, Node, negative, number
from ._units import is_known_unit, unit_of

_FUNCTIONS = {
    **{name: name for name in "sin cos tan cot sec csc sinh cosh tanh exp ln log lg".split()},
    **{f"arc{name}": f"arc{name}" for name in "sin cos tan cot sec csc".split()},
    **{f"a{name}": f"arc{name}" for name in "sin cos tan".split()},
    "tg": "tan",
    "ctg": "cot",
    "arctg": "arctan",
    "cosec": "csc",
    "abs": "abs",
    "Abs": "abs",
    "floor": "floor",
    "ceil": "ceil",
    "factorial": "factorial",
    "sgn": "sgn",
    "sign": "sgn",
    "gcd": "gcd",
    "lcm": "lcm",
    "max": "max",
    "min": "min",
    "Re": "re",
    "Im": "im",
    "det": "det",
}
_BRACKETED = {"binom": 2, "comb": 2, "binomial": 2, "Rational": 2, "Eq": 2, "sqrt": 1, "cbrt": 1}
_FRACTIONS = frozenset({r"\frac", r"\dfrac", r"\tfrac", r"\cfrac", r"\sfrac", r"\nicefrac"})
_BINOMIALS = frozenset({r"\binom", r"\dbinom", r"\tbinom", r"\choose"})
_BIG = {r"\sum": "sum", r"\prod": "prod", r"\int": "int", r"\lim": "lim"}
_GREEK = frozenset(
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa"
    r" \lambda \mu \nu \xi \rho \varrho \sigma \varsigma \tau \upsilon \phi \varphi \chi \psi"
    r" \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega \ell \hbar"
    r" \angle \triangle \square \star \nabla \aleph".split()
)
_RELATIONS = frozenset({"=", "<", "<=", ">", ">=", "!=", "~", "==", "in"})
_OPENING = frozenset({"(", "[", r"\{", r"\langle", "{"})
_CLOSING = {"(": (")", "]"), "[": ("]", ")"), r"\{": (r"\}",), r"\langle": (r"\rangle",)}
_ROUND = {r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")}
_UNKNOWN_FUNCTIONS = frozenset("fghFGH")
_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix vmatrix smallmatrix array".split())
_MAX_DECIMAL_EXPONENT = 10**12
_MAX_CACHED_CHARS = 256
_MAX_LITERAL_CHARS = 4_000


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


class _Parser:
    def __init__(self, tokens: list[Token], max_depth: int) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._max_depth = max_depth
        self._bars = 0

    # --- tokens ---

    @property
    def peek(self) -> Token:
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

    # --- lists and relations ---

    def answer(self) -> Node:
        """Parse items with separators between them; a list of `and` or `or` alone says so."""
        items, joints = [self._item()], set[str]()
        while (joint := self._separator()) is not None:
            if self.peek.kind == "end":
                break
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
        self._depth += 1
        if self._depth > self._max_depth:
            raise TooDeep(f"nested deeper than {self._max_depth}")
        first = self._side()
        sides, names = [first], list[str]()
        while True:
            name = "in" if self._is(r"\in") else self.peek.text
            if name not in _RELATIONS or self.peek.kind not in ("op", "cmd"):
                break
            self._next()
            if name == "=" and self._take("="):
                pass  # python's ==
            names.append(name)
            sides.append(self._side())
        self._depth -= 1
        if self._take(r"\pmod"):
            modulus = self._argument()
            sides[-1] = Node(Kind.QUANTITY, (sides[-1],), f"mod {modulus.value}")
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
        if not self._is(":"):
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
                terms.append(negative(self._term()))
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
            return self._unit_ahead() is None and token.text not in ("and", "or", "mod")
        if token.kind == "cmd":
            return (
                token.text in _FRACTIONS
                or token.text in _BINOMIALS
                or token.text in _GREEK
                or token.text in _BIG
                or token.text in _ROUND
                or token.text.lstrip("\\") in _FUNCTIONS
                or token.text in (r"\sqrt", r"\pi", r"\infty", r"\begin", r"\overline", r"\langle")
            )
        if token.text == "|":
            return self._bars == 0
        return token.kind == "op" and token.text in ("(", "[", "{")

    def _juxtaposed(self, left: Node) -> Node:
        before = self._tokens[self._at - 1]
        token = self.peek
        if token.text in _FRACTIONS and _is_whole(left, before):
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
            fraction = Node(Kind.DIV, (_literal(top.text), _literal(bottom.text)))
            mixed = _mixed(whole, fraction)
            if mixed is not None:
                return mixed
        raise ParseError(f"two numbers side by side: {before.text!r} {top.text!r}")

    # --- units ---

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
        if after.kind not in ("end",) and after.text not in (",", ";", "and", "or", ")", "}", "^"):
            return None
        if not any(is_known_unit(word) for word in words) and not token.spaced:
            return None
        if token.kind == "word" and not is_known_unit(token.text) and len(token.text) <= 2:
            return None
        if token.text in _FUNCTIONS or token.text in _BRACKETED or token.text in ("pi", "infty"):
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
        if left.kind is Kind.TEXT:
            return None
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

    # --- factors ---

    def _factor(self, left: Node | None) -> Node:
        spend()
        self._depth += 1
        if self._depth > self._max_depth:
            raise TooDeep(f"nested deeper than {self._max_depth}")
        node = self._postfix(self._primary(left))
        self._depth -= 1
        return node

    def _postfix(self, node: Node) -> Node:
        while True:
            if self._is("^", "**"):
                self._next()
                if self._degree_mark():
                    node = Node(Kind.QUANTITY, (node,), "deg")
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

    def _degree_mark(self) -> bool:
        if self._take(r"\circ", r"\degree"):
            return True
        if self._is("{") and self._ahead(1).text in (r"\circ", r"\degree"):
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
            return self._in_base(self._tokens[self._at - 2].text)
        if self.peek.kind == "text":
            return Node(Kind.OPAQUE, (node, Node(Kind.TEXT, (), self._next().text)), "_")
        if self._is("{") and self._ahead(1).kind in ("text", "word"):
            self._next()
            name = self._next().text
            self._expect("}")
            return Node(Kind.OPAQUE, (node, Node(Kind.TEXT, (), name)), "_")
        subscript = self._subscript()
        return Node(Kind.OPAQUE, (node, subscript), "_")

    def _subscript(self) -> Node:
        return self._group() if self._is("{") else self._primary(None)

    def _in_base(self, digits: str) -> Node:
        bases = "two three four five six seven eight nine ten".split()
        if self._is("{") and self._ahead(1).kind in ("text", "word"):
            self._next()
            word = self._next().text.casefold()
            self._expect("}")
            base = bases.index(word) + 2 if word in bases else 0
        else:
            node = self._subscript()
            whole = node.kind is Kind.NUMBER and node.value.denominator == 1
            base = int(node.value) if whole else 0
        if not digits.isdigit() or not 2 <= base <= 36 or len(digits) > _MAX_LITERAL_CHARS:
            raise ParseError(f"{digits!r} is no number in base {base}")
        try:
            return number(int(digits, base))
        except ValueError as error:
            raise ParseError(f"{digits!r} is no number in base {base}") from error

    def _group(self) -> Node:
        self._expect("{")
        if self._take("}"):
            raise ParseError("empty group")
        node = self.answer()
        self._expect("}")
        return node

    def _argument(self) -> Node:
        """Parse a LaTeX argument: a group, or a single digit, letter or command."""
        if self._is("{"):
            return self._group()
        token = self.peek
        if token.kind == "num" and len(token.text) > 1 and token.text[0].isdigit():
            # \frac12 is 1/2: leave the rest of the digits where they are
            self._tokens[self._at] = Token("num", token.text[1:], False)
            return number(int(token.text[0]))
        if token.kind == "num" or token.kind == "sym":
            self._next()
            return _literal(token.text) if token.kind == "num" else _symbol(token.text)
        return self._primary(None)

    def _primary(self, left: Node | None) -> Node:
        token = self.peek
        match token.kind:
            case "num":
                self._next()
                return self._number(token.text)
            case "sym":
                self._next()
                if token.text in _UNKNOWN_FUNCTIONS and self._is("("):
                    return Node(Kind.OPAQUE, self._call_arguments(), token.text)
                return _symbol(token.text)
            case "word":
                return self._word()
            case "text":
                if left is not None:
                    raise ParseError(f"text {token.text!r} inside mathematics")
                self._next()
                return Node(Kind.TEXT, (), token.text)
            case "cmd":
                return self._command(left)
            case "op":
                return self._operator(left)
            case _:
                raise ParseError("the answer ends too early")

    def _number(self, text: str) -> Node:
        if self._is(r"\overline", r"\dot", r"\bar") and "." in text:
            self._next()
            digits = "".join(character for character in self._digits() if character.isdigit())
            places = len(text.partition(".")[2])
            tail = Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
            return number(_literal(text).value + tail)
        return _literal(text)

    def _digits(self) -> str:
        self._expect("{")
        token = self._next()
        self._expect("}")
        if token.kind != "num" or not token.text.isdigit():
            raise ParseError(f"expected repeating digits, found {token.text!r}")
        return token.text

    def _word(self) -> Node:
        text = self._next().text
        if text in _FUNCTIONS:
            return self._function(_FUNCTIONS[text])
        if text in _BRACKETED:
            return self._bracketed(text)
        if text in ("pi", "Pi"):
            return Node(Kind.SYMBOL, (), "pi")
        if text in ("inf", "infinity", "oo"):
            return Node(Kind.INFINITY)
        if "\\" + text in _GREEK:
            return Node(Kind.SYMBOL, (), text)
        if text[-1] == "x" and "(" not in text and text[:-1] in _FUNCTIONS:
            return Node(Kind.CALL, (Node(Kind.SYMBOL, (), "x"),), _FUNCTIONS[text[:-1]])
        if len(text) <= 3 or len(set(text)) <= 2:  # noqa: PLR2004
            return Node(Kind.MUL, tuple(_symbol(letter) for letter in text))
        if self._is("="):
            return Node(Kind.TEXT, (), text)
        raise ParseError(f"{text!r} is a word")

    def _bracketed(self, name: str) -> Node:
        if name in ("sqrt", "cbrt") and not self._is("("):
            arguments: tuple[Node, ...] = (self._argument(),)
        else:
            arguments = self._call_arguments()
        if len(arguments) != _BRACKETED[name]:
            raise ParseError(f"{name} takes {_BRACKETED[name]} arguments")
        match name:
            case "sqrt" | "cbrt":
                root = Fraction(1, 2 if name == "sqrt" else 3)
                return Node(Kind.POW, (arguments[0], number(root)))
            case "Eq":
                return Node(Kind.RELATION, arguments, "=")
            case "Rational":
                return Node(Kind.DIV, arguments)
            case _:
                return Node(Kind.CALL, arguments, "binom")

    def _call_arguments(self) -> tuple[Node, ...]:
        self._expect("(")
        inside = self.answer()
        self._expect(")")
        return inside.args if inside.kind is Kind.LIST else (inside,)

    def _function(self, name: str) -> Node:
        """Parse what follows a function's name: a subscript, a power, then its argument."""
        base = self._subscript() if name == "log" and self._take("_") else None
        power = None
        if self._is("^", "**"):
            self._next()
            power = self._script()
        if name in ("gcd", "lcm", "max", "min") or self._is("("):
            arguments = self._call_arguments()
        elif self._is("{"):
            arguments = (self._group(),)
        else:
            arguments = (self._bare_argument(),)
        if base is not None:
            arguments = (*arguments, base)
        if power is not None and power == MINUS_ONE:
            return Node(Kind.CALL, arguments, "arc" + name)
        call = Node(Kind.CALL, arguments, name)
        return call if power is None else Node(Kind.POW, (call, power))

    def _bare_argument(self) -> Node:
        """Parse the `2x` of `sin 2x`: factors up to an operator or another function."""
        if self._take("-"):
            return negative(self._bare_argument())
        node = self._factor(None)
        while self._starts_factor() and not self._starts_call():
            node = self._juxtaposed(node)
        if self._is("/") and self._ahead(1).kind == "num" and node.kind is Kind.SYMBOL:
            self._next()  # sin pi/6
            node = Node(Kind.DIV, (node, self._factor(None)))
        return node

    def _starts_call(self) -> bool:
        return self.peek.text.lstrip("\\") in _FUNCTIONS or self._is("(", "[")

    def _command(self, left: Node | None) -> Node:
        name = self._next().text
        if name in _FRACTIONS:
            top = self._argument()
            return Node(Kind.DIV, (top, self._argument()))
        if name in _BINOMIALS:
            top = self._argument()
            return Node(Kind.CALL, (top, self._argument()), "binom")
        if name == r"\sqrt":
            root = number(2)
            if self._take("["):
                root = self._sum()
                self._expect("]")
            return Node(Kind.POW, (self._argument(), Node(Kind.DIV, (ONE, root))))
        if name in _GREEK:
            return Node(Kind.SYMBOL, (), name[1:])
        if name[1:] in _FUNCTIONS:
            return self._function(_FUNCTIONS[name[1:]])
        if name in _ROUND:
            closing, function = _ROUND[name]
            inside = self._sum()
            self._expect(closing)
            return Node(Kind.CALL, (inside,), function)
        if name in _BIG:
            return self._big(_BIG[name])
        if name in (r"\{", r"\langle"):
            return self._enclosed(name)
        if name in (r"\overline", r"\bar"):
            return Node(Kind.OPAQUE, (self._argument(),), "bar")
        return self._constant(name)

    def _constant(self, name: str) -> Node:
        match name:
            case r"\pi":
                return Node(Kind.SYMBOL, (), "pi")
            case r"\infty":
                return Node(Kind.INFINITY)
            case r"\emptyset" | r"\varnothing":
                return Node(Kind.SET)
            case r"\begin":
                return self._matrix()
            case r"\mathbb":
                self._expect("{")
                letter = self._next().text
                self._expect("}")
                if letter not in tuple("RZNQC"):
                    raise ParseError(f"unknown set {letter!r}")
                return Node(Kind.NUMBERS, (), letter)
            case r"\imath":
                return Node(Kind.SYMBOL, (), "i")
            case _:
                raise ParseError(f"unknown command {name!r}")

    def _big(self, name: str) -> Node:
        """Parse a sum, product, integral or limit; its parts are kept, not its meaning."""
        low = high = Node(Kind.TEXT, (), "")
        while self._is("_", "^"):
            mark = self._next().text
            script = self._limit() if self._is("{") else self._primary(None)
            low, high = (script, high) if mark == "_" else (low, script)
        # an integral's body runs up to its dx, which is the last factor of its last term
        body = self._sum() if name == "int" else self._term()
        return Node(Kind.OPAQUE, (low, high, body), name)

    def _limit(self) -> Node:
        self._expect("{")
        node = self._item()
        if self._take(r"\to", r"\rightarrow"):
            node = Node(Kind.RELATION, (node, self._item()), "to")
        self._expect("}")
        return node

    def _operator(self, left: Node | None) -> Node:
        token = self.peek
        if token.text in ("(", "["):
            self._next()
            return self._enclosed(token.text)
        if token.text == r"\{":
            self._next()
            return self._enclosed(r"\{")
        if token.text == "{":
            return self._group()
        if token.text == "|":
            self._next()
            self._bars += 1
            inside = self._sum()
            self._bars -= 1
            self._expect("|")
            return Node(Kind.CALL, (inside,), "abs")
        if token.text == "..." and left is None:
            self._next()
            return Node(Kind.ELLIPSIS)
        raise ParseError(f"unexpected {token.text!r}")

    def _enclosed(self, opening: str) -> Node:
        closings = _CLOSING[opening]
        bars, self._bars = self._bars, 0
        if self._take(*closings):
            self._bars = bars
            if opening == r"\{":
                return Node(Kind.SET)
            raise ParseError("empty brackets")
        inside = self.answer()
        closing = self._expect(*closings).text
        self._bars = bars
        items = inside.args if inside.kind is Kind.LIST else (inside,)
        if opening == r"\{":
            return Node(Kind.SET, items)
        if len(items) == 1:
            if opening + closing not in ("()", "[]"):
                raise ParseError(f"unbalanced {opening} {closing}")
            return inside
        if opening == r"\langle":
            return Node(Kind.TUPLE, items, "()")
        return Node(Kind.TUPLE, items, opening + closing)

    def _matrix(self) -> Node:
        name = self._environment()
        if name == "array" and self._take("{"):
            while not self._take("}"):
                if self._next().kind == "end":
                    raise ParseError("unterminated array")
        if name not in _MATRICES:
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
        if not rows or len({len(row) for row in rows}) != 1:
            raise ParseError("a matrix needs rows of one length")
        node = Node(Kind.MATRIX, tuple(cell for row in rows for cell in row), str(len(rows)))
        return Node(Kind.OPAQUE, (node,), "det") if name == "vmatrix" else node

    def _environment(self) -> str:
        self._expect("{")
        name = self._next().text
        self._expect("}")
        return name

    def _environment_end(self, name: str) -> None:
        if self._environment() != name:
            raise ParseError(f"environment {name!r} is closed by another")


def _literal(text: str) -> Node:
    if len(text) > _MAX_LITERAL_CHARS:
        raise ParseError(f"a number of {len(text)} characters")
    mantissa, _, exponent = text.lower().partition("e")
    value = Fraction(mantissa.rstrip(".") or "0")
    if exponent:
        power = int(exponent)
        if abs(power) > _MAX_DECIMAL_EXPONENT:
            raise ParseError(f"exponent {exponent} is out of range")
        return Node(Kind.MUL, (number(value), Node(Kind.POW, (number(10), number(power)))))
    return number(value, mantissa if "." in mantissa.rstrip(".") else "")


def _symbol(name: str) -> Node:
    return Node(Kind.SYMBOL, (), name)


def _product(left: Node, right: Node) -> Node:
    if left.kind is Kind.TEXT or right.kind is Kind.TEXT:
        raise ParseError("text inside mathematics")
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
    if fraction.kind is not Kind.DIV:
        return None
    top, bottom = fraction.args
    if top.kind is not Kind.NUMBER or bottom.kind is not Kind.NUMBER or top.name or bottom.name:
        return None
    if not 0 < top.value < bottom.value:
        return None
    return number(whole.value + top.value / bottom.value)
