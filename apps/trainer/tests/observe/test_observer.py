"""The observer joins file, console, trackers and trajectories; a resume forgets what came later."""

import importlib.util
import io
from pathlib import Path

import pytest

from retool_trainer.config import RunConfig
from retool_trainer.observe import (
    Console,
    Observer,
    SampleRecord,
    TrackerUnavailableError,
    read_metrics,
    read_trajectories,
)


def config(**tracking: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "test",
            "model": {"shape": {}},
            "stages": ["rl"],
            "rl": {"problems": "train"},
            "tracking": tracking,
        }
    )


def test_a_step_reaches_file_console_and_trajectories(
    tmp_path: Path, records: list[SampleRecord]
) -> None:
    stream = io.StringIO()
    with Observer(tmp_path, config(), console=Console(stream)) as observer:
        observer.evaluation("baseline", 0, {"eval/heldout/accuracy": 0.01})
        with observer.stage("rl", total=3):
            observer.step("rl", 1, 3, {"reward/mean": 0.5})
        path = observer.samples("rl", 1, records)
    assert [line["stage"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [
        "evaluate",
        "rl",
    ]
    assert "reward  0.500" in stream.getvalue()
    assert list(read_trajectories(path)) == records


def test_a_resumed_run_forgets_later_steps(tmp_path: Path, record: SampleRecord) -> None:
    def run(steps: range, **kwargs: object) -> None:
        with Observer(tmp_path, config(), console=Console(io.StringIO()), **kwargs) as observer:
            for step in steps:
                observer.step("rl", step, 3, {"reward/mean": float(step)})
                observer.samples("rl", step, [record])

    run(range(1, 4))
    run(range(3, 4), resumed_at=("rl", 2))
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    run(range(0), resumed_at=("sft", 10))
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    assert list((tmp_path / "trajectories" / "rl").iterdir()) == []


@pytest.mark.parametrize(
    ("module", "tracking"),
    [("tensorboard", {"tensorboard": True}), ("wandb", {"wandb_project": "p"})],
)
def test_a_tracker_that_is_not_installed_names_its_extra(
    tmp_path: Path, module: str, tracking: dict
) -> None:
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed here")
    with pytest.raises(TrackerUnavailableError, match=rf"retool-trainer\[{module}\]"):
        Observer(tmp_path, config(**tracking))


def test_tensorboard_gets_each_stage_with_its_own_steps(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra retool-trainer[tensorboard] is missing")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracking = config(tensorboard=True)
    with Observer(tmp_path, tracking, console=Console(io.StringIO())) as observer:
        observer.step("sft", 2, 2, {"loss": 1.0, "grad_norm": None})
        for step in (1, 2, 3):
            observer.step("rl", step, 3, {"reward/mean": step / 10})
    with Observer(
        tmp_path, tracking, resumed_at=("rl", 1), console=Console(io.StringIO())
    ) as observer:
        observer.step("rl", 2, 3, {"reward/mean": 0.9})

    def scalars(stage: str, tag: str) -> list[tuple[int, float]]:
        events = EventAccumulator(str(tmp_path / "tensorboard" / stage))
        events.Reload()
        return [(e.step, round(e.value, 3)) for e in events.Scalars(tag)]

    assert scalars("sft", "loss") == [(2, 1.0)]
    assert scalars("rl", "reward/mean") == [(1, 0.1), (2, 0.9)]


def test_wandb_offline_keeps_everything_in_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="the extra retool-trainer[wandb] is missing")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracking = config(wandb_project="retool")
    with Observer(tmp_path, tracking, console=Console(io.StringIO())) as observer:
        observer.step("rl", 1, 1, {"reward/mean": 0.5})
    assert list((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert (tmp_path / "wandb_id").read_text(), "a resumed run continues the same W&B run"
