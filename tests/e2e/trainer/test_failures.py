"""What dies in the middle of a run is replaced, and the run ends as if it had not died."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(900)

PARTS = ("retool_sandbox", "ray::_PolicyRank", "ray::_RolloutActor")


def find_part(process: subprocess.Popen[str], name: str) -> psutil.Process:
    """The first descendant of a run with this in its command line, once there is one."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if name in " ".join(child.cmdline()):
                    return child
        time.sleep(0.1)
    raise AssertionError(f"no process {name} under the run")


# Far more than a test waits for: it ends the run long before.
ENDLESS = "rl.steps=1000"
TEN_STEPS = ["rl.steps=10", "rl.checkpoint_every=3"]


@pytest.fixture(scope="module")
def undisturbed(
    trainer_runs: Any, short_rl: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    done = trainer_runs.run("run", "--run-dir", str(run_dir), *short_rl, *TEN_STEPS)
    assert done.returncode == 0, done.stdout + done.stderr
    return run_dir


def _weights(run_dir: Path) -> bytes:
    return (run_dir / "models" / "rl" / "model.safetensors").read_bytes()


def test_killed_parts_are_replaced_and_the_metrics_are_those_of_an_undisturbed_run(
    trainer_runs: Any, undisturbed: Path, short_rl: list[str], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    moments = sorted(random.sample(range(1, 9), 3))
    print(f"killed after the steps {moments}")
    with trainer_runs.started("run", "--run-dir", str(run_dir), *short_rl, *TEN_STEPS) as process:
        for part, moment in zip(PARTS, moments, strict=True):
            trainer_runs.wait_for_steps(process, run_dir, moment)
            os.kill(find_part(process, part).pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    # A zygote is replaced where it died; the loss of an actor sends the run back to its checkpoint.
    assert output.count("a worker failed") == 2
    assert trainer_runs.comparable(run_dir) == trainer_runs.comparable(undisturbed)
    assert _weights(run_dir) == _weights(undisturbed)


def test_a_killed_run_goes_on_from_its_checkpoint_and_ends_as_if_nothing_had_happened(
    trainer_runs: Any, undisturbed: Path, short_rl: list[str], tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    arguments = ["run", "--run-dir", str(killed), *short_rl, *TEN_STEPS]
    with trainer_runs.started(*arguments) as process:
        # After step 5: at least a step beyond the checkpoint of step 3, which has to be done again.
        trainer_runs.wait_for_steps(process, killed, 5)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    resumed = trainer_runs.run(*arguments)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "rl  step 10/10" in resumed.stdout
    assert "rl  step  3/10" not in resumed.stdout
    assert trainer_runs.comparable(killed) == trainer_runs.comparable(undisturbed)
    assert _weights(killed) == _weights(undisturbed)


def test_nothing_is_left_of_a_run_that_was_killed(
    trainer_runs: Any, short_rl: list[str], tmp_path: Path
) -> None:
    command = ["run", "--run-dir", str(tmp_path / "run"), *short_rl, ENDLESS]
    with trainer_runs.started(*command) as process:
        trainer_runs.wait_for_steps(process, tmp_path / "run", 1)
        descendants = psutil.Process(process.pid).children(recursive=True)
        assert len(descendants) > 4
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
    # Ray's own agents look for their parent every few seconds and give it a minute.
    _, alive = psutil.wait_procs(descendants, timeout=150)
    assert alive == []


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_everything_and_say_how_to_go_on(
    trainer_runs: Any, short_rl: list[str], tmp_path: Path, asked: signal.Signals
) -> None:
    command = ["run", "--run-dir", str(tmp_path / "run"), *short_rl, ENDLESS]
    with trainer_runs.started(*command) as process:
        trainer_runs.wait_for_steps(process, tmp_path / "run", 1)
        descendants = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(asked)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "the same command continues from the last checkpoint" in output
    assert "Traceback" not in output
    _, alive = psutil.wait_procs(descendants, timeout=30)
    assert alive == []


def test_training_on_stored_trajectories_gives_the_same_losses_to_the_last_bit(
    trainer_runs: Any, undisturbed: Path, short_rl: list[str], tmp_path: Path
) -> None:
    replayed = tmp_path / "replayed"
    done = trainer_runs.run(
        "run", "--run-dir", str(replayed), *short_rl, *TEN_STEPS, f"rl.replay={undisturbed}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for key in ("loss", "grad_norm", "policy/approx_kl", "policy/entropy", "accuracy"):
        assert [e[key] for e in trainer_runs.metrics(replayed)] == [
            e[key] for e in trainer_runs.metrics(undisturbed)
        ]
    assert _weights(replayed) == _weights(undisturbed)


def test_a_stale_engine_stops_the_run_at_the_next_sync(
    trainer_runs: Any, quickstart: Path, short_rl: list[str], tmp_path: Path
) -> None:
    """The engine reads the folder of an old version: plausible output, wrong weights."""
    plant = tmp_path / "sitecustomize.py"
    plant.write_text(
        "import importlib.abc, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'retool_trainer.engines._embedded':\n"
        "            sys.meta_path.remove(self)\n"
        "            import retool_trainer.engines._decoder as decoder\n"
        "            real = decoder.Decoder.load\n"
        "            def load(self, folder):\n"
        "                if 'version-000002' not in str(folder):\n"
        "                    real(self, folder)\n"
        "            decoder.Decoder.load = load\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = trainer_runs.run(
        "run",
        "--run-dir",
        str(tmp_path / "run"),
        *short_rl,
        environment={"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "after weight version 2 the engine's log-probabilities differ" in done.stderr
    assert [entry["step"] for entry in trainer_runs.metrics(tmp_path / "run")] == [1]
