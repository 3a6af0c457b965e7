"""From raw tool-use files to token-exact training data."""

from ._gold import GoldKind, gold_kind
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
from ._samples import Pack, Span, SpanKind, TokenSample
from ._tokenize import (
    Renderer,
    TokenizeCounts,
    TooLongError,
    renderer_hash,
    tokenize,
    tokenize_all,
)

__all__ = [
    "GoldKind",
    "Kind",
    "Message",
    "Pack",
    "Problem",
    "Provenance",
    "Renderer",
    "ReplayStatus",
    "Segment",
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
    "gold_kind",
    "pack",
    "pack_lengths",
    "renderer_hash",
    "tokenize",
    "tokenize_all",
]
