"""What a zygote does once while nobody asks for anything, so that no child has to do it.

Lazy imports and caches filled here are inherited by every later child.
"""

_STDLIB = (
    "import bisect, calendar, cmath, copy, dataclasses, datetime, decimal, fractions, heapq",
    "import io, statistics, string, textwrap, threading, timeit, traceback, typing",
)
_SYMPY = (
    "import sympy as s\nx = s.Symbol('x')\ns.solve(x**2 - 5*x + 6, x)",
    "import sympy as s\nx, y = s.symbols('x y')\ns.solve([x + y - 3, x - y - 1], [x, y])",
    "import sympy as s\nx = s.Symbol('x')\ns.diff(s.sin(x)**2, x)",
    "import sympy as s\nx = s.Symbol('x')\ns.simplify(s.sin(x)**2 + s.cos(x)**2)",
    "import sympy as s\nx = s.Symbol('x')\ns.integrate(x**2, (x, 0, 1))\ns.factor(x**2 - 1)",
    "import sympy as s\ns.factorint(360)\ns.Matrix([[1, 2], [3, 4]]).det()\ns.latex(s.sqrt(2))",
)
WARM_UPS = {"stdlib": _STDLIB, "math": _STDLIB + _SYMPY, "science": _STDLIB + _SYMPY}
