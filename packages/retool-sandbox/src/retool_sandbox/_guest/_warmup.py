"""What a zygote does once while nobody asks for anything, so that no child has to do it.

Lazy imports and caches filled here are inherited by every later child.
"""

import ctypes

from . import _kernel as kernel

_HUGE = 1 << 21
_MADV_COLLAPSE = 25

_STDLIB = (
    "import bisect, calendar, cmath, copy, dataclasses, datetime, decimal, fractions, heapq",
    "import io, statistics, string, textwrap, traceback, typing",
)
_SYMPY = (
    "import sympy as s\nx = s.Symbol('x')\ns.solve(x**2 - 5*x + 6, x)",
    "import sympy as s\nx, y = s.symbols('x y')\ns.solve([x + y - 3, x - y - 1], [x, y])",
    "import sympy as s\nx = s.Symbol('x')\ns.diff(s.sin(x)**2, x)",
    "import sympy as s\nx = s.Symbol('x')\ns.simplify(s.sin(x)**2 + s.cos(x)**2)",
    "import sympy as s\nx = s.Symbol('x')\ns.integrate(x**2, (x, 0, 1))\ns.factor(x**2 - 1)",
    "import sympy as s\ns.factorint(360)\ns.Matrix([[1, 2], [3, 4]]).det()\ns.latex(s.sqrt(2))",
)
# Per tier; one step takes up to a tenth of a second, in which a request waits.
WARM_UPS = {"stdlib": _STDLIB, "math": _STDLIB + _SYMPY, "science": _STDLIB + _SYMPY}


def use_huge_pages(maps: str) -> None:
    """Put the heap into huge pages, where the kernel can (Linux 6.1): halves a fork and an exit.

    Args:
        maps: Text of our own /proc/self/maps.
    """
    for line in maps.splitlines():
        fields = line.split()
        if fields[1] != "rw-p" or (len(fields) > 5 and fields[5] != "[heap]"):
            continue
        start, end = (int(text, 16) for text in fields[0].split("-"))
        start, end = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        for address in range(start, end, _HUGE):
            # A page that cannot be collapsed stays as it is.
            kernel.libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(_HUGE), _MADV_COLLAPSE)
