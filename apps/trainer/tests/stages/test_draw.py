"""What a replay reads back is what was drawn, before training had added anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from retool_trainer.config import RlConfig
from retool_trainer.observe import SampleRecord, trajectories_path, write_trajectories
from retool_trainer.stages._draw import read_batch
from retool_trainer.stages._scoring import with_kl_reward

DRAWN = SampleRecord(
    step=2,
    group=0,
    sample=0,
    problem_id="p",
    gold="1",
    ids=(1, 2, 3),
    mask=(0, 1, 1),
    engine_logprobs=(0.0, -1.0, -1.0),
    weight_versions=(None, 1, 1),
    prompt_length=1,
    num_turns=1,
    status="completed",
    stop_reason="answered",
    correct=True,
    reward=1.0 + 0.05 - 0.3,
    reward_components={"accuracy": 1.0, "tool": 0.05, "overlong": -0.3},
)


def test_a_replay_takes_the_distance_to_the_reference_off_the_reward_once(tmp_path: Path) -> None:
    config = RlConfig.model_validate(
        {"problems": "x", "kl": {"coefficient": 0.1, "where": "reward"}}
    )
    scored = replace(DRAWN, policy_logprobs=(0.0, -1.0, -1.0), reference_logprobs=(0.0, -2.0, -2.5))
    (trained,) = with_kl_reward([scored], config)
    assert trained.reward != DRAWN.reward
    write_trajectories(trajectories_path(tmp_path, "rl", 2), [replace(trained, advantage=0.5)])
    assert read_batch(tmp_path, 2).records == (DRAWN,)


def test_a_reward_that_was_withheld_stays_withheld(tmp_path: Path) -> None:
    withheld = replace(DRAWN, reward=None, reward_components={})
    write_trajectories(trajectories_path(tmp_path, "rl", 2), [withheld])
    assert read_batch(tmp_path, 2).records == (withheld,)
