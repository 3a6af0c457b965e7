"""An optional look at the source before it runs. Not a boundary: the isolation is.

It keeps a model from habits that earn nothing (files, processes, introspection) and tells it so in
a sentence. Anything that Python can compute at run time passes a check of the source text. The
check runs in the jail, too: a parser is no place for untrusted input.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

STRICT_MODULES = frozenset(
    [
        "math", "cmath", "random", "statistics", "decimal", "fractions", "numbers", "datetime",
        "calendar", "time", "collections", "itertools", "functools", "operator", "string", "re",
        "json", "copy", "heapq", "bisect", "array", "enum", "dataclasses", "typing", "types",
        "abc", "contextlib", "textwrap", "pprint", "unicodedata", "secrets", "hashlib",
        "struct", "timeit", "warnings", "__future__",
    ]
)  # fmt: skip
MATH_MODULES = STRICT_MODULES | frozenset(
    [
        "numpy", "sympy", "mpmath", "scipy", "pandas", "networkx", "sys", "io", "traceback",
        "graphlib", "zoneinfo",
    ]
)  # fmt: skip
REFUSED_NAMES = frozenset(("eval", "exec", "compile", "open", "__import__", "breakpoint"))
_HARMLESS_DUNDERS = frozenset(
    [
        "__name__", "__main__", "__init__", "__new__", "__repr__", "__str__", "__eq__",
        "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__bool__", "__len__",
        "__iter__", "__next__", "__getitem__", "__setitem__", "__delitem__", "__contains__",
        "__call__", "__enter__", "__exit__", "__add__", "__radd__", "__iadd__", "__sub__",
        "__rsub__", "__isub__", "__mul__", "__rmul__", "__imul__", "__matmul__", "__truediv__",
        "__rtruediv__", "__floordiv__", "__rfloordiv__", "__mod__", "__rmod__", "__pow__",
        "__rpow__", "__neg__", "__pos__", "__abs__", "__invert__", "__and__", "__or__",
        "__xor__", "__lshift__", "__rshift__", "__divmod__", "__round__", "__floor__",
        "__ceil__", "__trunc__", "__int__", "__float__", "__complex__", "__index__",
        "__format__", "__slots__", "__post_init__", "__missing__", "__reversed__", "__doc__",
        "__version__", "__all__", "__getattr__", "__setattr__", "__annotations__",
        "__match_args__", "__copy__", "__deepcopy__", "__del__",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a program's source may name.

    Args:
        allowed_modules: Top-level modules that may be imported; None allows every module.
        refused_names: Builtins that may not be used; a variable of the same name is not meant.
        allow_dunders: Dunder attributes on top of the harmless ones (operators, `__name__`).
    """

    allowed_modules: frozenset[str] | None = STRICT_MODULES
    refused_names: frozenset[str] = REFUSED_NAMES
    allow_dunders: frozenset[str] = field(default=frozenset())

    @classmethod
    def strict(cls, *, also: Iterable[str] = ()) -> "Policy":
        """The mission's standard-library set; `also` widens it."""
        return cls(allowed_modules=STRICT_MODULES | frozenset(also))

    @classmethod
    def math(cls, *, also: Iterable[str] = ()) -> "Policy":
        """Adds numpy, sympy, scipy and their like; `also` widens it."""
        return cls(allowed_modules=MATH_MODULES | frozenset(also))

    def to_config(self) -> dict[str, list[str] | None]:
        """What the child needs to check a program."""
        allowed = self.allowed_modules
        return {
            "modules": None if allowed is None else sorted(allowed),
            "names": sorted(self.refused_names),
            "dunders": sorted(_HARMLESS_DUNDERS | self.allow_dunders),
        }
