"""Read a configuration file, apply overrides, and explain what is wrong in one line each."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from retool_trainer.errors import RunRefusedError

from ._schema import RunConfig


class ConfigError(RunRefusedError):
    """The configuration cannot be used; the message has one line per fault."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read `path` (YAML), apply `key.sub=value` overrides in order, and validate.

    Args:
        path: A YAML file with the keys of `RunConfig`.
        overrides: `dotted.key=value`; the value is read as YAML, so `3`, `true` and `[a, b]` work.

    Raises:
        ConfigError: A missing file, broken YAML, an unknown key or a bad value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the config {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error}") from error
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {_one_line(error)}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(tree).__name__}")
    for override in overrides:
        _apply(tree, override)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error))) from error


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"override {override!r} is not of the form key=value, e.g. rl.steps=3")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: {_one_line(error)}") from error
    node: Any = tree
    for depth, part in enumerate(parts[:-1]):
        child = _child(node, part)
        if child is None:
            child = {}
            _set(node, part, child, override)
        elif isinstance(child, str) and parts[: depth + 1] == ["engine"]:
            child = {"kind": child}  # the short form `engine: vllm`
            _set(node, part, child, override)
        node = child
    _set(node, parts[-1], value, override)


def _child(node: Any, part: str) -> Any:
    if isinstance(node, dict):
        return node.get(part)
    if isinstance(node, list) and part.isdigit() and int(part) < len(node):
        return node[int(part)]
    return None


def _set(node: Any, part: str, value: Any, override: str) -> None:
    if isinstance(node, dict):
        node[part] = value
    elif isinstance(node, list) and part.isdigit() and int(part) < len(node):
        node[int(part)] = value
    else:
        raise ConfigError(f"override {override!r}: {part!r} is not a key below a section")


def _explain(error: ValidationError) -> list[str]:
    lines: list[str] = []
    for fault in error.errors():
        path = ".".join(str(part) for part in fault["loc"]) or "config"
        if fault["type"] == "extra_forbidden":
            near = _nearest(fault["loc"])
            hint = f"; did you mean {near!r}?" if near else ""
            lines.append(f"unknown key {path!r}{hint}")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            shown = fault["input"]
            got = "" if isinstance(shown, Mapping | BaseModel) else f", got {shown!r}"
            lines.append(f"{path}: {message}{got}")
    return lines


def _nearest(loc: tuple[int | str, ...]) -> str | None:
    """The known key that looks most like the unknown one, as a dotted path."""
    model: type[BaseModel] = RunConfig
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part)
        inner = _section_of(field.annotation) if field else None
        if inner is None:
            return None
        model = inner
    near = difflib.get_close_matches(str(loc[-1]), model.model_fields, n=1, cutoff=0.5)
    return ".".join([*(str(part) for part in loc[:-1]), near[0]]) if near else None


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        found = _section_of(argument)
        if found:
            return found
    return None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
