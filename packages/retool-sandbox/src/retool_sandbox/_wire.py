"""The JSON of the service: requests checked once, results both ways."""

from dataclasses import asdict, fields
from typing import Any, cast

from ._policy import Policy
from ._types import Limits, Outcome, RunResult


class BadRequestError(Exception):
    """A request that the service does not take; the text is for the caller."""


def limits_to_json(limits: Limits) -> dict[str, Any]:
    """Every ceiling by name."""
    return asdict(limits)


def limits_from_json(data: Any, default: Limits, ceiling: Limits) -> Limits:
    """Read limits; what is not named is the default's.

    Raises:
        BadRequestError: Unknown names, bad values, or more than the ceiling.
    """
    if data is None:
        return default
    if not isinstance(data, dict):
        raise BadRequestError("limits must be an object")
    given = cast(dict[str, Any], data)
    known = {field.name for field in fields(Limits)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise BadRequestError(f"unknown limits {unknown}; known are {sorted(known)}")
    try:
        limits = Limits(**{**asdict(default), **given})
    except (TypeError, ValueError) as error:
        raise BadRequestError(str(error)) from None
    for name, top in asdict(ceiling).items():
        value = getattr(limits, name)
        if value is not None and top is not None and value > top:
            raise BadRequestError(f"{name}={value} is more than this service allows ({top})")
    return limits


def policy_from_json(data: Any) -> Policy | None:
    """Read a policy: null, a preset's name, or the form of Policy.to_config.

    Raises:
        BadRequestError: Anything else.
    """
    if data is None:
        return None
    if data == "strict":
        return Policy.strict()
    if data == "math":
        return Policy.math()
    try:
        modules = data["modules"]
        return Policy(
            allowed_modules=None if modules is None else frozenset(map(str, modules)),
            refused_names=frozenset(map(str, data["names"])),
            allow_dunders=frozenset(map(str, data["dunders"])),
        )
    except (TypeError, KeyError):
        raise BadRequestError("policy must be null, 'strict', 'math' or a policy object") from None


def text_field(data: dict[str, Any], name: str, default: str | None = None) -> str:
    """A text of a request.

    Raises:
        BadRequestError: It is missing or no text.
    """
    value = data.get(name, default)
    if not isinstance(value, str):
        raise BadRequestError(f"{name!r} must be a text")
    return value


def files_field(data: dict[str, Any]) -> dict[str, str]:
    """The files of a request: relative path to text.

    Raises:
        BadRequestError: Not an object of texts.
    """
    value: Any = data.get("files") or {}
    if not isinstance(value, dict):
        raise BadRequestError("files must be an object of name to text")
    files: dict[str, str] = {}
    for name, content in cast(dict[Any, Any], value).items():
        if not isinstance(name, str) or not isinstance(content, str):
            raise BadRequestError("files must be an object of name to text")
        files[name] = content
    return files


def result_from_json(data: dict[str, Any]) -> RunResult:
    """The RunResult that a service sent."""
    fields_of_result: dict[str, Any] = {
        **data,
        "outcome": Outcome(data["outcome"]),
        "truncated": tuple(data["truncated"]),
    }
    return RunResult(**fields_of_result)
