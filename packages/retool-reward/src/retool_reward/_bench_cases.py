"""Pairs for the bench, made by rule: whole numbers, formulas, and inputs made to hang a grader."""

from collections.abc import Callable

Pair = tuple[str, str]


def integer_pairs(count: int) -> list[Pair]:
    """Return answers and golds that are whole numbers; every other answer is wrong."""
    return [(str(n * 37 % 1000), str(n * 37 % 1000 + n % 2)) for n in range(count)]


def symbolic_pairs(count: int, *, salt: int = 0) -> list[Pair]:
    """Return pairs that are equal but not spelled alike; pairs of different salt differ."""
    return [
        _TEMPLATES[n % len(_TEMPLATES)](n // len(_TEMPLATES) + 2 + 1_000 * salt)
        for n in range(count)
    ]


_TEMPLATES: tuple[Callable[[int], Pair], ...] = (
    lambda n: (f"\\sqrt{{{n * n * 2}}}", f"{n}\\sqrt{{2}}"),
    lambda n: (f"\\frac{{{n}}}{{\\sqrt{{3}}}}", f"\\frac{{{n}\\sqrt{{3}}}}{{3}}"),
    lambda n: (f"(x+{n})^2", f"x^2+{2 * n}x+{n * n}"),
    lambda n: (f"\\frac{{x^2-{n * n}}}{{x-{n}}}", f"x+{n}"),
    lambda n: (f"{n}\\ln 4", f"{2 * n}\\ln 2"),
    lambda n: (f"\\sin^2({n}x)+\\cos^2({n}x)+{n}", f"{n + 1}"),
    lambda n: (f"\\frac{{\\pi}}{{{2 * n}}}", f"\\frac{{1}}{{{n}}}\\cdot\\frac{{\\pi}}{{2}}"),
    lambda n: (f"({n}, \\frac{{{n}}}{{2}})", f"\\left({n}, {n / 2}\\right)"),
    lambda n: (f"\\{{{n}, -{n}\\}}", f"\\pm {n}"),
    lambda n: (f"x \\geq {n}", f"[{n}, \\infty)"),
    lambda n: (f"2x+{2 * n}y-6=0", f"x+{n}y=3"),
    lambda n: (f"{n}\\frac{{1}}{{3}}", f"\\frac{{{3 * n + 1}}}{{3}}"),
    lambda n: (f"e^{{{n}}}\\cdot e", f"e^{{{n + 1}}}"),
    lambda n: (f"\\tan^2({n}y)+1", f"\\sec^2({n}y)"),
    lambda n: (f"{n}+{n}i", f"{n}i+{n}"),
    lambda n: (f"\\binom{{{n + 2}}}{{2}}", f"\\frac{{({n + 2})({n + 1})}}{{2}}"),
    lambda n: (f"2^{{{n}}}\\cdot 2^k", f"2^{{k+{n}}}"),
    lambda n: (
        f"\\begin{{pmatrix}}{n}&\\frac12\\\\0&1\\end{{pmatrix}}",
        f"\\begin{{bmatrix}}{n} & 0.5 \\\\ 0 & 1\\end{{bmatrix}}",
    ),
    lambda n: (f"\\frac{{{n}+\\sqrt5}}{{2}}", f"\\frac{{\\sqrt5+{n}}}{{2}}"),
    lambda n: (f"|x|^2+{n}", f"x^2+{n}"),
)

_DEEP = 200
HOSTILE: tuple[Pair, ...] = (
    ("10^{10^{10}}", "42"),
    ("2^{4^{8^{16^{32}}}}", "16"),
    (r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)} - 4\right)} - 5}{16}", "42"),
    ("(x+1)^{5000}-(x+1)^{4999}", "0"),
    ("1e400000000", "42"),
    ("10^{-10^{9}}", "0"),
    (r"\frac{1}{" * _DEEP + "2" + "}" * _DEEP, "42"),
    ("(" * 3_000 + "1" + ")" * 3_000, "42"),
    (r"\boxed{1}" * 2_000, "42"),
    (r"\sqrt{" * _DEEP + "2" + "}" * _DEEP, "42"),
    ("+".join(f"\\sin({n}x)" for n in range(1_500)), "42"),
    ("+".join(f"\\frac{{1}}{{{n}}}" for n in range(1, 1_500)), "42"),
    (
        ", ".join(f"\\sqrt{{{n}}}" for n in range(2, 200)),
        ", ".join(f"\\sqrt{{{n}}}" for n in range(3, 201)),
    ),
    ("9" * 19_000, "42"),
    (r"\int_0^1 e^{-x^2}\sin(x^3)\,dx", "42"),
    (r"\sum_{k=1}^{\infty} \frac{\sin(k^2)}{k^3 + \cos k}", "42"),
    ("170000!", "42"),
    ("a" * 15_000, "42"),
    (r"\text{" + " " * 15_000, "42"),
    ("{" * 9_000 + "}" * 9_000, "42"),
    (r"\, " * 6_000 + "x", "42"),
    ("__import__('os').system('sleep 9')", "42"),
)
