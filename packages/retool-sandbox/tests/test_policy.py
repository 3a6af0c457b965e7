"""The policy layer: what it refuses, what it must not refuse."""

import ast
import keyword
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_sandbox import Policy
from retool_sandbox._guest._review import review_source
from retool_sandbox._policy import MATH_MODULES, STRICT_MODULES

STRICT = Policy.strict().to_config()
MATH = Policy.math().to_config()


@pytest.mark.parametrize(
    "source",
    [
        "import math, os",
        "import os.path as p",
        "from os import path",
        "from subprocess import run",
        "import numpy",
        "eval('1')",
        "x = exec",
        "open('f').read()",
        "__import__('os')",
        "().__class__.__mro__",
        "print(math.__loader__)",
        "from math import __spec__",
        "𝓸𝓹𝓮𝓷('f')",
        "import 𝓸𝓼",
        "x.__ｃlass__",
        "from . import x",
        "__builtins__['eval']",
        "open = open\nopen('f')",
        "def f():\n    import socket",
        "breakpoint()",
    ],
)
def test_strict_refuses(source: str) -> None:
    reason = review_source(source, STRICT)
    assert reason is not None
    assert reason.startswith("line ")


@pytest.mark.parametrize(
    "source",
    [
        "from math import sqrt, pi",
        "x = 1  # distance from the corner, import os",
        "text = 'import os; eval(1)'",
        "print(isinstance(1, int), type(2).__name__)",
        "import re\nre.compile('1')",
        "if __name__ == '__main__':\n    print(1)",
        "class V:\n    def __init__(self): pass\n    def __add__(self, o): return self",
        "super().__init__()",
        "open = [(0, 0)]\nwhile open: open.pop()",
        "def compile(x): return x\ncompile(1)",
        "handle.open()",
        "from __future__ import annotations",
        "The answer is 42",
        "",
    ],
)
def test_strict_does_not_refuse(source: str) -> None:
    assert review_source(source, STRICT) is None


def test_math_adds_libraries_and_widening_is_one_argument() -> None:
    source = "import numpy as np, sympy, sys"
    assert review_source(source, MATH) is None
    assert review_source("import torch", MATH) is not None
    assert review_source("import torch", Policy.math(also=["torch"]).to_config()) is None
    everything = Policy(allowed_modules=None).to_config()
    assert review_source("import os", everything) is None
    assert review_source("eval('1')", everything) is not None


def test_realistic_programs_pass_the_math_policy(realistic_case: dict[str, Any]) -> None:
    assert review_source(realistic_case["code"], MATH) is None


@given(st.sampled_from(sorted(STRICT_MODULES)), st.from_regex(r"[a-z]{1,8}", fullmatch=True))
def test_allowed_modules_pass_in_every_form_of_import(module: str, name: str) -> None:
    if keyword.iskeyword(name):
        return
    for source in (
        f"import {module}",
        f"import {module} as {name}",
        f"from {module} import {name}",
    ):
        assert review_source(source, STRICT) is None


@given(st.from_regex(r"[a-z_]{1,12}", fullmatch=True))
def test_other_modules_never_pass(name: str) -> None:
    if keyword.iskeyword(name) or name in MATH_MODULES or name == "__future__":
        return
    assert review_source(f"import {name}", MATH) is not None
    assert review_source(f"def f():\n  try:\n    from {name}.x import y\n  except: pass", MATH)


@given(st.text(max_size=200))
def test_any_text_is_reviewed_without_an_error(source: str) -> None:
    review_source(source, STRICT)


@given(st.sampled_from(["eval", "exec", "open", "compile"]), st.data())
def test_look_alike_letters_do_not_help(name: str, data: st.DataObject) -> None:
    bold = "".join(
        data.draw(st.sampled_from([letter, chr(0x1D41A + ord(letter) - 97)])) for letter in name
    )
    assert unicodedata.normalize("NFKC", bold) == name
    ast.parse(f"{bold}('x')")
    assert review_source(f"{bold}('x')", STRICT) is not None
