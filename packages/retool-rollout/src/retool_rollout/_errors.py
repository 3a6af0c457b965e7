"""Take the first error out of a task group's bundle."""

from typing import Any, cast


def first_error(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The error that started it; the others are usually its echoes."""
    error = cast("BaseException", errors.exceptions[0])
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType]
