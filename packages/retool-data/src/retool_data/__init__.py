"""From raw tool-use files to token-exact training data."""

from ._chat_template import ChatTemplate, template_difference
from ._convert import RoundTripError, convert
from ._decontaminate import Benchmark, Contamination, find_contamination, mark_contaminated
from ._dedupe import DedupeReport, Duplicate, dedupe
from ._files import write_rows
from ._findings import CODES, Finding, Severity
from ._frames import split_frame, with_answer_form
from ._gold import GoldKind, gold_kind
from ._lint import lint, lint_sample
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
from ._replay import Executor, ExecutorSession, Reply, Validated, compare_outputs, replay, validate
from ._rows import BadRow, BadRowError, Row, read_rows
from ._samples import Pack, Span, SpanKind, TokenSample
from ._samples_io import load_packs, load_samples
from ._shapes import SHAPES, Shape, UnknownShapeError, recognise
from ._stats import stats
from ._tokenize import (
    Renderer,
    TokenizeCounts,
    TooLongError,
    renderer_hash,
    tokenize,
    tokenize_all,
)
from ._view import write_view

__all__ = [
    "CODES",
    "SHAPES",
    "BadRow",
    "BadRowError",
    "Benchmark",
    "ChatTemplate",
    "Contamination",
    "DedupeReport",
    "Duplicate",
    "Executor",
    "ExecutorSession",
    "Finding",
    "GoldKind",
    "Kind",
    "LoadCounts",
    "Message",
    "Pack",
    "Problem",
    "Provenance",
    "Renderer",
    "ReplayStatus",
    "Reply",
    "RoundTripError",
    "Row",
    "Segment",
    "Severity",
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
    "Validated",
    "compare_outputs",
    "convert",
    "dedupe",
    "find_contamination",
    "gold_kind",
    "lint",
    "lint_sample",
    "load",
    "load_packs",
    "load_problems",
    "load_samples",
    "load_trajectories",
    "mark_contaminated",
    "pack",
    "pack_lengths",
    "read_rows",
    "recognise",
    "renderer_hash",
    "replay",
    "split_frame",
    "stats",
    "template_difference",
    "tokenize",
    "tokenize_all",
    "validate",
    "with_answer_form",
    "write_rows",
    "write_view",
]
