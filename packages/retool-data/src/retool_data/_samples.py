"""The records a trainer reads: a tokenised trajectory, and several of them packed into one row."""

from enum import StrEnum
from typing import Any

from ._records import Provenance, Record


class SpanKind(StrEnum):
    """What a stretch of tokens is."""

    PROMPT = "prompt"
    TURN = "turn"
    OBSERVATION = "observation"


class Span(Record):
    """Tokens `start` to `end` (exclusive)."""

    start: int
    end: int
    kind: SpanKind
    turn: int
    """Number of the turn, from 0; -1 for the prompt."""
    trained: bool


class TokenSample(Record):
    """Token ids of one trajectory, with a mask that is 1 exactly where the policy spoke."""

    problem_id: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    """Same length as ids; mask[i] is 1 where predicting ids[i] is trained."""
    spans: tuple[Span, ...]
    """Cover ids without gap or overlap."""
    dialect: str = ""
    """Name of the renderer that built the ids."""
    template_hash: str = ""
    """What the renderer does, see `renderer_hash`."""
    tokenizer_hash: str = ""
    """SHA-256 of the tokenizer file."""
    provenance: Provenance = Provenance()

    def model_post_init(self, context: Any, /) -> None:
        """Refuse a mask of another length, and spans that leave tokens out."""
        if len(self.ids) != len(self.mask):
            raise ValueError(f"{len(self.ids)} ids but {len(self.mask)} mask entries")
        at = 0
        for span in self.spans:
            if span.start != at or span.end < at:
                raise ValueError(f"span {span.start}..{span.end} does not continue at {at}")
            at = span.end
        if at != len(self.ids):
            raise ValueError(f"the spans cover {at} of {len(self.ids)} ids")

    @property
    def num_trained(self) -> int:
        """How many tokens the loss is taken on."""
        return sum(self.mask)


class Pack(Record):
    """Several samples in one row of at most a fixed number of tokens."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    position_ids: tuple[int, ...]
    """Restart at 0 with every sample."""
    cu_seqlens: tuple[int, ...]
    """Offsets of the samples: 0, len(first), ..., len(ids), as variable-length attention takes."""
    problem_ids: tuple[str, ...]

    def model_post_init(self, context: Any, /) -> None:
        """Refuse columns of different lengths."""
        if not len(self.ids) == len(self.mask) == len(self.position_ids):
            raise ValueError("ids, mask and position_ids differ in length")
        if self.cu_seqlens[0] != 0 or self.cu_seqlens[-1] != len(self.ids):
            raise ValueError(f"cu_seqlens must run from 0 to {len(self.ids)}")
        if len(self.cu_seqlens) != len(self.problem_ids) + 1:
            raise ValueError("cu_seqlens must have one entry more than there are samples")
