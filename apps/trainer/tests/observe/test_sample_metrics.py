"""What a step's trajectories say in numbers."""

import dataclasses

import pytest

from retool_trainer.observe import (
    SampleRecord,
    metric_pattern,
    policy_metrics,
    sample_metrics,
)


def test_the_metrics_of_a_step_by_hand(records: list[SampleRecord]) -> None:
    # Eight graded samples in two groups, seeds 0, 3 and 6 wrong, and one aborted in a third.
    got = sample_metrics(records, step=2)
    assert got["samples/total"] == 9
    assert got["samples/trained"] == 8
    assert got["samples/aborted"] == got["samples/ungraded"] == 1
    assert got["accuracy"] == pytest.approx(5 / 8)
    assert got["reward/mean"] == pytest.approx((5 * 1.05 + 3 * 0.02) / 8)
    parts = got["reward/component/accuracy"] + got["reward/component/tool"]
    assert parts == pytest.approx(got["reward/mean"])
    assert (got["groups/total"], got["groups/flat"]) == (3, 1)
    assert (got["groups/all_right"], got["groups/all_wrong"]) == (0, 0)
    assert got["turns/mean"] == got["turns/max"] == 2
    assert got["tool/use"] == got["tool/calls"] == got["tool/ok"] == 1.0
    assert got["tool/outcome/ok"] == 1.0
    assert got["stop/answered"] == pytest.approx(8 / 9)
    assert got["status/aborted"] == pytest.approx(1 / 9)
    assert 0 < got["engine/logprob_gap_mean"] < got["engine/logprob_gap_max"] < 1e-3
    assert got["schedule/staleness_mean"] == got["schedule/staleness_max"] == 2


def test_every_key_is_in_the_table(records: list[SampleRecord]) -> None:
    keys = sample_metrics(records, step=1)
    stats = policy_metrics(dict.fromkeys(("ratio", "kl", "engine_logprob_gap"), 1.0))
    assert [key for key in (*keys, *stats) if metric_pattern(key) is None] == []


def test_what_was_not_measured_is_left_out(record: SampleRecord) -> None:
    silent = dataclasses.replace(
        record, calls=(), correct=None, reward=None, advantage=None, policy_logprobs=None
    )
    got = sample_metrics([silent])
    for key in ("accuracy", "reward/mean", "tool/ok", "advantage/mean", "engine/logprob_gap_mean"):
        assert key not in got
    assert got["tool/use"] == 0.0


def test_a_step_without_trajectories_has_only_counts() -> None:
    assert sample_metrics([])["samples/total"] == 0
