"""From raw tool-use files to token-exact training data."""

from ._convert import RoundTripError, convert
from ._files import write_rows
from ._frames import split_frame, with_answer_form
from ._gold import GoldKind, gold_kind
from ._load import LoadCounts, load, load_problems, load_trajectories
from ._pack import pack, pack_lengths
from ._records import (
    Kind,
    Message,
    Problem,
    Provenance,
    ReplayStatus,
    Segment,
    Speaker,
    ToolCall,
    ToolResult,
    Trajectory,
    Turn,
)
from ._rows import BadRow, BadRowError, Row, read_rows
from ._samples import Pack, Span, SpanKind, TokenSample
from ._shapes import SHAPES, Shape, UnknownShapeError, recognise
from ._tokenize import (
    Renderer,
    TokenizeCounts,
    TooLongError,
    renderer_hash,
    tokenize,
    tokenize_all,
)

__all__ = [
    "SHAPES",
    "BadRow",
    "BadRowError",
    "GoldKind",
    "Kind",
    "LoadCounts",
    "Message",
    "Pack",
    "Problem",
    "Provenance",
    "Renderer",
    "ReplayStatus",
    "RoundTripError",
    "Row",
    "Segment",
    "Shape",
    "Span",
    "SpanKind",
    "Speaker",
    "TokenSample",
    "TokenizeCounts",
    "TooLongError",
    "ToolCall",
    "ToolResult",
    "Trajectory",
    "Turn",
    "UnknownShapeError",
    "convert",
    "gold_kind",
    "load",
    "load_problems",
    "load_trajectories",
    "pack",
    "pack_lengths",
    "read_rows",
    "recognise",
    "renderer_hash",
    "split_frame",
    "tokenize",
    "tokenize_all",
    "with_answer_form",
    "write_rows",
]
