"""The words of mathematics that the parser knows."""

from types import MappingProxyType

_TRIGONOMETRIC = "sin cos tan cot sec csc"
_ELEMENTARY = (
    _TRIGONOMETRIC
    + " cis sinh cosh tanh exp ln log lg abs floor ceil factorial sgn gcd lcm max min"
)
_GREEK_LETTERS = (
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa"
    r" \lambda \mu \nu \xi \rho \varrho \sigma \varsigma \tau \upsilon \phi \varphi \chi \psi"
    r" \omega \Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega \ell \hbar"
    r" \angle \triangle \square \star \nabla \aleph"
)
_MATRIX_ENVIRONMENTS = "matrix pmatrix bmatrix Bmatrix vmatrix smallmatrix array cases"

TRIGONOMETRIC = frozenset(_TRIGONOMETRIC.split())
FUNCTIONS = MappingProxyType(
    {
        **{name: name for name in _ELEMENTARY.split()},
        **{f"arc{name}": f"arc{name}" for name in _TRIGONOMETRIC.split()},
        **{f"a{name}": f"arc{name}" for name in _TRIGONOMETRIC.split()},
        "tg": "tan",
        "ctg": "cot",
        "arctg": "arctan",
        "cosec": "csc",
        "Abs": "abs",
        "sign": "sgn",
        "Re": "re",
        "Im": "im",
        "det": "det",
    }
)
"""Every spelling of a function, and the name it has in the tree."""

BRACKETED = MappingProxyType(
    {
        **dict.fromkeys(("binom", "comb", "binomial", "nCr", "perm", "nPr"), 2),
        **dict.fromkeys(("Rational", "Fraction", "Eq"), 2),
        **dict.fromkeys(("sqrt", "cbrt", "Matrix"), 1),
    }
)
"""Plain names that need their brackets, and how many arguments these hold."""

SEVERAL = frozenset({"gcd", "lcm", "max", "min"})
FRACTIONS = frozenset({r"\frac", r"\dfrac", r"\tfrac", r"\cfrac", r"\sfrac", r"\nicefrac"})
BINOMIALS = frozenset({r"\binom", r"\dbinom", r"\tbinom"})
BIG = MappingProxyType({r"\sum": "sum", r"\prod": "prod", r"\int": "int", r"\lim": "lim"})
GREEK = frozenset(_GREEK_LETTERS.split())
RELATIONS = frozenset({"=", "<", "<=", ">", ">=", "!=", "~", r"\equiv", "in"})
CLOSING = MappingProxyType(
    {"(": (")", "]"), "[": ("]", ")"), r"\{": (r"\}",), r"\langle": (r"\rangle",)}
)
ROUND = MappingProxyType({r"\lfloor": (r"\rfloor", "floor"), r"\lceil": (r"\rceil", "ceil")})
UNKNOWN_FUNCTIONS = frozenset("fghFGH")
MATRICES = frozenset(_MATRIX_ENVIRONMENTS.split())
BASES = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
