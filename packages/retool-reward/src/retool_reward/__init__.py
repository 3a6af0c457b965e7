"""Grade a math answer and shape the reward."""

from ._async_grader import AsyncGrader, Item
from ._counting import Call, count_tool_turns
from ._grade import grade
from ._own_text import spans_of_tokens
from ._shape import (
    Preset,
    Reward,
    Sample,
    Truncated,
    overlong_penalty,
    shape,
    shape_group,
    with_terms,
)
from ._types import Answer, Gold, Grade, GradeConfig, Multiple, Reason, Span, Speaker

__all__ = [
    "Answer",
    "AsyncGrader",
    "Call",
    "Gold",
    "Grade",
    "GradeConfig",
    "Item",
    "Multiple",
    "Preset",
    "Reason",
    "Reward",
    "Sample",
    "Span",
    "Speaker",
    "Truncated",
    "count_tool_turns",
    "grade",
    "overlong_penalty",
    "shape",
    "shape_group",
    "spans_of_tokens",
    "with_terms",
]
