"""Check a parsed program against a policy: imports, names, dunder attributes."""

import ast
import unicodedata
from collections.abc import Iterator
from typing import Any


def _normal(name: str) -> str:
    # The compiler does the same to identifiers; the tree holds them in the written form at times.
    return unicodedata.normalize("NFKC", name)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and len(name) > 4


def _own_names(tree: ast.AST) -> set[str]:
    """Names the program gives a meaning of its own, such as the open list of a search."""
    own: set[str] = set()
    loaded_first: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            loaded_first.add(_normal(node.value.id))  # `run = exec`, `open = open`
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(_normal(node.id))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(_normal(node.name))
        elif isinstance(node, ast.arg):
            own.add(_normal(node.arg))
    return own - loaded_first


class Reviewer:
    """Finds the first thing in a program that a policy does not allow."""

    def __init__(self, policy: dict[str, Any]) -> None:
        modules = policy["modules"]
        self._modules = None if modules is None else frozenset(modules)
        self._names = frozenset(policy["names"])
        self._dunders = frozenset(policy["dunders"])
        self._own: set[str] = set()

    def review(self, tree: ast.AST) -> str | None:
        """The reason to refuse, or None."""
        self._own = _own_names(tree)
        for node in ast.walk(tree):
            for problem in self._problems(node):
                line = getattr(node, "lineno", None)
                return f"line {line}: {problem}" if line else problem
        return None

    def _problems(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                yield "a relative import is not allowed"
            yield from self._module(node.module or "")
            for alias in node.names:
                yield from self._attribute(alias.name)
        elif isinstance(node, ast.Name):
            yield from self._name(node.id)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node.attr)

    def _module(self, name: str) -> Iterator[str]:
        top = _normal(name).split(".")[0]
        if self._modules is not None and top not in self._modules:
            allowed = ", ".join(sorted(self._modules - {"__future__"}))
            yield f"import of {top!r} is not allowed; allowed modules: {allowed}"

    def _name(self, name: str) -> Iterator[str]:
        name = _normal(name)
        if name in self._names and name not in self._own:
            yield f"{name!r} is not allowed"
        elif _is_dunder(name) and name not in self._dunders:
            yield f"the name {name!r} is not allowed"

    def _attribute(self, name: str) -> Iterator[str]:
        name = _normal(name)
        if _is_dunder(name) and name not in self._dunders:
            yield f"access to {name!r} is not allowed"


def review_source(source: str, policy: dict[str, Any]) -> str | None:
    """The reason to refuse a program, or None; a program that does not parse is not refused."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # running it gives the interpreter's own message
    return Reviewer(policy).review(tree)
