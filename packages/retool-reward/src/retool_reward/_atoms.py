"""Parse the atoms of a formula: numbers, letters, functions, fractions, sums and integrals."""

from abc import abstractmethod
from fractions import Fraction

from ._brackets import Brackets
from ._lex import ParseError, Token
from ._node import MINUS_ONE, ONE, Kind, Node, differential_of, negative, number
from ._vocabulary import (
    BASES,
    BIG,
    BINOMIALS,
    BRACKETED,
    FRACTIONS,
    FUNCTIONS,
    GREEK,
    ROUND,
    SEVERAL,
    UNKNOWN_FUNCTIONS,
)

_MAX_DECIMAL_EXPONENT = 10**12
_MAX_LITERAL_CHARS = 4_000


class Atoms(Brackets):
    """The part of the parser below powers; what stands around an atom is the subclass's matter."""

    @abstractmethod
    def _sum(self) -> Node: ...

    @abstractmethod
    def _term(self) -> Node: ...

    @abstractmethod
    def _factor(self, left: Node | None) -> Node: ...

    @abstractmethod
    def _script(self) -> Node: ...

    @abstractmethod
    def _subscript(self) -> Node: ...

    @abstractmethod
    def _starts_factor(self) -> bool: ...

    @abstractmethod
    def _juxtaposed(self, left: Node) -> Node: ...

    def _in_base(self, digits: str) -> Node:
        if self._is("{") and self._ahead(1).kind in ("text", "word"):
            self._next()
            word = self._next().text.casefold()
            self._expect("}")
            base = BASES.index(word) + 2 if word in BASES else 0
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

    def _argument(self) -> Node:
        """Parse a LaTeX argument: a group, or a single digit, letter or command."""
        if self._is("{"):
            return self._group()
        token = self.peek
        if token.kind == "num" and len(token.text) > 1 and token.text[0].isdigit():
            # \frac12 is 1/2: leave the rest of the digits where they are
            self._tokens[self._at] = Token("num", token.text[1:], False)
            return number(int(token.text[0]))
        if token.kind == "word" and token.text not in FUNCTIONS:
            # \binom nk: the first letter
            rest = token.text[1:]
            self._tokens[self._at] = Token("sym" if len(rest) == 1 else "word", rest, False)
            return symbol(token.text[0])
        if token.kind == "num" or token.kind == "sym":
            self._next()
            return literal(token.text) if token.kind == "num" else symbol(token.text)
        return self._primary(None)

    def _primary(self, left: Node | None) -> Node:
        token = self.peek
        match token.kind:
            case "num":
                self._next()
                return self._number(token.text)
            case "sym":
                self._next()
                if token.text in UNKNOWN_FUNCTIONS:
                    mark = self._function_mark()
                    if self._is("("):
                        return Node(Kind.OPAQUE, self._call_arguments(), token.text + mark)
                return symbol(token.text)
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

    def _function_mark(self) -> str:
        """Take the marks of f'(x) and f^{-1}(x), if a call follows them."""
        primes = 0
        while self._ahead(primes).text == "'":
            primes += 1
        inverse = [self._ahead(distance).text for distance in range(5)] == list("^{-1}")
        length = 5 if inverse else primes
        if not length or self._ahead(length).text != "(":
            return ""
        self._at += length
        return "^-1" if inverse else "'" * primes

    def _number(self, text: str) -> Node:
        if self._is(r"\overline", r"\dot", r"\bar") and "." in text:
            self._next()
            digits = "".join(character for character in self._digits() if character.isdigit())
            places = len(text.partition(".")[2])
            tail = Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
            return number(literal(text).value + tail)
        return literal(text)

    def _digits(self) -> str:
        self._expect("{")
        token = self._next()
        self._expect("}")
        if token.kind != "num" or not token.text.isdigit() or len(token.text) > _MAX_LITERAL_CHARS:
            raise ParseError(f"expected repeating digits, found {token.text[:40]!r}")
        return token.text

    def _word(self) -> Node:
        text = self._next().text
        if text in FUNCTIONS:
            return self._function(FUNCTIONS[text])
        if text in BRACKETED:
            return self._bracketed(text)
        if text in ("pi", "Pi"):
            return Node(Kind.SYMBOL, (), "pi")
        if text in ("inf", "infinity", "oo"):
            return Node(Kind.INFINITY)
        if "\\" + text in GREEK:
            return Node(Kind.SYMBOL, (), text)
        if text[-1] == "x" and "(" not in text and text[:-1] in FUNCTIONS:
            return Node(Kind.CALL, (Node(Kind.SYMBOL, (), "x"),), FUNCTIONS[text[:-1]])
        if len(text) <= 3 or len(set(text)) <= 2:
            return Node(Kind.MUL, tuple(symbol(letter) for letter in text))
        if self._is("="):
            return Node(Kind.TEXT, (), text)
        raise ParseError(f"{text!r} is a word")

    def _bracketed(self, name: str) -> Node:
        if name in ("sqrt", "cbrt") and not self._is("("):
            arguments: tuple[Node, ...] = (self._argument(),)
        else:
            arguments = self._call_arguments()
        if len(arguments) != BRACKETED[name]:
            raise ParseError(f"{name} takes {BRACKETED[name]} arguments")
        match name:
            case "sqrt" | "cbrt":
                root = Fraction(1, 2 if name == "sqrt" else 3)
                return Node(Kind.POW, (arguments[0], number(root)))
            case "Eq":
                return Node(Kind.RELATION, arguments, "=")
            case "Rational" | "Fraction":
                return Node(Kind.DIV, arguments)
            case "Matrix":
                return arguments[0]
            case "perm" | "nPr":
                return Node(Kind.CALL, arguments, "perm")
            case _:
                return Node(Kind.CALL, arguments, "binom")

    def _function(self, name: str) -> Node:
        """Parse what follows a function's name: a subscript, a power, then its argument."""
        base = self._subscript() if name == "log" and self._take("_") else None
        power = None
        if self._is("^", "**"):
            self._next()
            power = self._script()
        if name in SEVERAL or self._is("("):
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
        while self._starts_factor() and not self._starts_call() and not self._is_differential():
            node = self._juxtaposed(node)
        if self._is("/") and self._ahead(1).kind == "num" and node.kind is Kind.SYMBOL:
            self._next()  # sin pi/6
            node = Node(Kind.DIV, (node, self._factor(None)))
        return node

    def _is_differential(self) -> bool:
        """Whether the dx of an integral comes next."""
        token, after = self.peek, self._ahead(1)
        is_dx = token.kind == "word" and len(token.text) == 2 and token.text[0] == "d"
        return self._integrals > 0 and (is_dx or (token.text == "d" and after.kind == "sym"))

    def _starts_call(self) -> bool:
        return self.peek.text.lstrip("\\") in FUNCTIONS or self._is("(", "[")

    def _command(self, left: Node | None) -> Node:
        name = self._next().text
        if name in FRACTIONS:
            top = self._argument()
            return Node(Kind.DIV, (top, self._argument()))
        if name in BINOMIALS:
            top = self._argument()
            return Node(Kind.CALL, (top, self._argument()), "binom")
        if name == r"\sqrt":
            root = number(2)
            if self._take("["):
                root = self._sum()
                self._expect("]")
            return Node(Kind.POW, (self._argument(), Node(Kind.DIV, (ONE, root))))
        if name in GREEK:
            return Node(Kind.SYMBOL, (), name[1:])
        if name[1:] in FUNCTIONS:
            return self._function(FUNCTIONS[name[1:]])
        if name in ROUND:
            closing, function = ROUND[name]
            inside = self._sum()
            self._expect(closing)
            return Node(Kind.CALL, (inside,), function)
        if name in BIG:
            return self._big(BIG[name])
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
                return self._numbers()
            case r"\top" | r"\intercal":
                return Node(Kind.SYMBOL, (), "T")
            case r"\imath":
                return Node(Kind.SYMBOL, (), "i")
            case _:
                raise ParseError(f"unknown command {name!r}")

    def _numbers(self) -> Node:
        """Parse the {R} of a set of numbers, and its sign: R^+."""
        braced = self._take("{")
        letter = self._next().text
        if braced:
            self._expect("}")
        if letter not in tuple("RZNQC"):
            raise ParseError(f"unknown set {letter!r}")
        if self._is("^", "_"):
            distance = 2 if self._ahead(1).text == "{" else 1
            sign = self._ahead(distance).text
            if sign in ("+", "-"):
                self._at += 2 * distance
                return Node(Kind.NUMBERS, (), letter + sign)
        return Node(Kind.NUMBERS, (), letter)

    def _big(self, name: str) -> Node:
        """Parse a sum, product, integral or limit; its parts are kept, not its meaning."""
        low = high = Node(Kind.TEXT, (), "")
        while self._is("_", "^"):
            mark = self._next().text
            script = self._limit() if self._is("{") else self._primary(None)
            low, high = (script, high) if mark == "_" else (low, script)
        body = self._integrand() if name == "int" else self._term()
        return Node(Kind.OPAQUE, (low, high, body), name)

    def _integrand(self) -> Node:
        """Parse terms up to the one that ends in dx."""
        self._integrals += 1
        terms = [self._term()]
        while differential_of(terms[-1]) is None and self._is("+", "-"):
            minus = self._next().text == "-"
            terms.append(negative(self._term()) if minus else self._term())
        self._integrals -= 1
        return terms[0] if len(terms) == 1 else Node(Kind.ADD, tuple(terms))

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
            in_set, self._in_set = self._in_set, False
            inside = self._sum()
            self._bars -= 1
            self._in_set = in_set
            self._expect("|")
            return Node(Kind.CALL, (inside,), "abs")
        if token.text == "..." and left is None:
            self._next()
            return Node(Kind.ELLIPSIS)
        raise ParseError(f"unexpected {token.text!r}")


def literal(text: str) -> Node:
    """Return a number as it is written; a decimal keeps its spelling."""
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


def symbol(name: str) -> Node:
    """Return a variable."""
    return Node(Kind.SYMBOL, (), name)
