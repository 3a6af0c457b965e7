"""Turn trajectories into the rows that the policy is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retool_data import TokenSample
from retool_trainer.algorithms import token_weights
from retool_trainer.observe import SampleRecord
from retool_trainer.policy import Row


def supervised_rows(samples: Sequence[TokenSample]) -> list[Row]:
    """Rows of a supervised batch: every trained token counts the same."""
    masks = [np.asarray(sample.mask, dtype=bool) for sample in samples]
    weights = token_weights(masks, "token_mean")
    return [
        Row(ids=np.asarray(sample.ids, dtype=np.int32), mask=mask, weights=weight)
        for sample, mask, weight in zip(samples, masks, weights, strict=True)
    ]


def scored_rows(token_lists: Sequence[Sequence[int]], masks: Sequence[Sequence[int]]) -> list[Row]:
    """Rows whose log-probabilities are wanted and that are not trained on."""
    return [
        Row(
            ids=np.asarray(ids, dtype=np.int32),
            mask=np.asarray(mask, dtype=bool),
            weights=np.zeros(len(ids), dtype=np.float32),
        )
        for ids, mask in zip(token_lists, masks, strict=True)
    ]


def reinforcement_rows(
    records: Sequence[SampleRecord], *, aggregation: str, constant_tokens: int
) -> list[Row]:
    """Rows of one minibatch.

    Args:
        records: Trajectories with an advantage and policy log-probabilities.
        aggregation: `rl.aggregation`; its weights are those of this minibatch.
        constant_tokens: The length of `constant_length`: the response limit.
    """
    masks = [np.asarray(record.mask, dtype=bool) for record in records]
    weights = token_weights(masks, aggregation, constant_tokens=constant_tokens)
    return [
        _row(record, mask, weight)
        for record, mask, weight in zip(records, masks, weights, strict=True)
    ]


def _row(record: SampleRecord, mask: np.ndarray, weights: np.ndarray) -> Row:
    if record.advantage is None or record.policy_logprobs is None:
        raise ValueError(
            f"trajectory {record.group}/{record.sample} of step {record.step} has no advantage or "
            "no policy log-probabilities, so it cannot be trained on"
        )
    reference = record.reference_logprobs
    return Row(
        ids=np.asarray(record.ids, dtype=np.int32),
        mask=mask,
        weights=weights,
        old_logprobs=np.asarray(record.policy_logprobs, dtype=np.float32),
        advantages=np.where(mask, np.float32(record.advantage), np.float32(0)),
        reference_logprobs=None if reference is None else np.asarray(reference, dtype=np.float32),
        engine_logprobs=np.asarray(record.engine_logprobs, dtype=np.float32),
    )
