"""Read the flags of a launch script without running it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")


def flags_of(text: str) -> list[tuple[str, list[str]]]:
    """Every `--flag value ...` of the argument arrays and of the call of the trainer, in order.

    Flags of other programs (`ray start --head`, `ray job submit`) are left out. A variable is
    replaced where the script assigns it plainly; others stay as they are written.

    Raises:
        ValueError: The script is not one, e.g. a quote is never closed.
    """
    lines = _logical_lines(text)
    variables = _assignments(lines)
    found: list[tuple[str, list[str]]] = []
    for region in _regions(lines):
        for word in shlex.split(region, comments=True):
            if word.startswith("--"):
                name, equals, value = word.partition("=")
                found.append((name, [_expand(value, variables)] if equals else []))
            elif found and not re.fullmatch(r"\$\{\w+\[@\]\}", word):
                found[-1][1].append(_expand(word, variables))
    return found


def _logical_lines(text: str) -> list[str]:
    joined = re.sub(r"\\\n", " ", text)
    return [re.sub(r"(^|\s)#.*$", "", line) for line in joined.splitlines()]


def _assignments(lines: list[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for line in lines:
        match = re.fullmatch(r"\s*(?:export\s+)?(\w+)=(\"[^\"]*\"|'[^']*'|[^\s(]*)\s*", line)
        if match:
            variables[match[1]] = _expand(match[2].strip("\"'"), variables)
    return variables


def _expand(word: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        return variables.get(name) or match[2] or match[0]

    return _VARIABLE.sub(value, word)


def _regions(lines: list[str]) -> list[str]:
    """The insides of `NAME_ARGS=( ... )`, and what follows `train*.py` in a command."""
    found: list[str] = []
    inside: list[str] | None = None
    for line in lines:
        if inside is None:
            match = re.match(r"\s*\w+\+?=\((.*)", line)
            if match:
                inside, line = [], match[1]
            else:
                call = re.search(r"\btrain\w*\.py\b(.*)", line)
                if call:
                    found.append(call[1])
                continue
        body, closed = _up_to_the_end(line)
        inside.append(body)
        if closed:
            found.append(" ".join(inside))
            inside = None
    return found


def _up_to_the_end(line: str) -> tuple[str, bool]:
    """What a line has of an array, and whether the array ends there: `$(date)` does not end it."""
    depth = 0
    for at, character in enumerate(line):
        if character == ")" and depth == 0:
            return line[:at], True
        depth += (character == "(") - (character == ")")
    return line, False
