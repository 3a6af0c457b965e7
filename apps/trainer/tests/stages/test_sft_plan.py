"""Which rows SFT trains on."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from retool_data import TokenizeCounts, TokenSample
from retool_trainer.config import PolicyConfig, SftConfig, SftPhase
from retool_trainer.stages import PrepareError, _sft

CONFIG = SftConfig(
    phases=[SftPhase(data="d", steps=3)], batch_size=2, max_tokens=100, heldout_fraction=0
)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Ten rows of 10, 20, ..., 100 tokens; a microbatch holds 50."""

    def tokenize_all(
        _: Any, dialect: Any, *, max_tokens: int, counts: TokenizeCounts
    ) -> Iterator[TokenSample]:
        for length in range(10, 101, 10):
            if length > max_tokens:
                counts.too_long += 1
            else:
                yield SimpleNamespace(ids=[1] * length)  # pyright: ignore[reportReturnType]

    monkeypatch.setattr(_sft, "tokenize_all", tokenize_all)
    monkeypatch.setattr(_sft, "read_records", lambda *_: [])
    monkeypatch.setattr(_sft, "data_file", lambda *_: None)
    config = SimpleNamespace(
        policy=PolicyConfig(tokens_per_microbatch=50), offer_tools=False, seed=0
    )
    return SimpleNamespace(config=config, folder=None)


def test_a_row_that_no_microbatch_holds_is_dropped_and_counted(context: Any) -> None:
    plan = _sft._Plan(context, CONFIG, Any)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
    batches = [rows for _, rows in plan.batches(after=0)]
    assert plan.num_too_long == 5
    assert all(len(rows) == 2 and max(len(row.ids) for row in rows) <= 50 for rows in batches)


def test_a_set_of_rows_that_are_all_too_long_is_refused(context: Any) -> None:
    short = CONFIG.model_copy(update={"max_tokens": 5})
    with pytest.raises(PrepareError, match="has no row of at most 5 tokens"):
        _sft._Plan(context, short, Any)  # pyright: ignore[reportPrivateUsage, reportArgumentType]
