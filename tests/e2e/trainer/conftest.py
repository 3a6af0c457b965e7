"""Runs of the trainer as a user starts them; the full quickstart is run once and shared."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
FULL_TIMEOUT_S = 1500
SHORT_TIMEOUT_S = 1200
# What tells of time and of this machine; everything else of two equal runs must be equal.
TIMING = ("time/", "throughput/", "schedule/stall_s", "tool/wall_time_s", "memory/")


class TrainerRuns:
    """Starts the command line and reads what a run has written."""

    def run(
        self,
        *arguments: str,
        timeout_s: float = SHORT_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `uv run apps/trainer ARGUMENTS` (in this environment) to its end."""
        return subprocess.run(
            [sys.executable, str(ROOT / "apps" / "trainer"), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a run that the test disturbs; it is dead after the block."""
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "apps" / "trainer"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            # A shell starts what it puts into the background deaf to Ctrl-C, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(60)
            assert process.stdout is not None
            process.stdout.close()

    def wait_for_steps(self, process: subprocess.Popen[str], run_dir: Path, count: int) -> None:
        """Wait until `count` RL steps have been logged."""
        deadline_s = time.monotonic() + SHORT_TIMEOUT_S
        while len(self.metrics(run_dir)) < count:
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def metrics(self, run_dir: Path, stage: str = "rl") -> list[dict[str, Any]]:
        """The logged steps of a stage."""
        file = run_dir / "metrics.jsonl"
        if not file.exists():
            return []
        lines = file.read_text().splitlines(keepends=True)
        entries = [json.loads(line) for line in lines if line.endswith("\n")]
        return [entry for entry in entries if entry["stage"] == stage]

    def comparable(self, run_dir: Path) -> list[dict[str, Any]]:
        """The logged RL steps without what tells of time."""
        return [
            {key: value for key, value in entry.items() if not key.startswith(TIMING)}
            for entry in self.metrics(run_dir)
        ]


@pytest.fixture(scope="session")
def trainer_runs() -> TrainerRuns:
    """Starts runs."""
    return TrainerRuns()


@pytest.fixture(scope="session")
def quickstart(trainer_runs: TrainerRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one whole quickstart; $RETOOL_QUICKSTART_RUN names one made before."""
    if made := os.environ.get("RETOOL_QUICKSTART_RUN"):
        return Path(made)
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of all workers of this session: the first one makes it
    run_dir = shared / "quickstart"
    with (shared / "quickstart.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # each test has its own deadline
        if not (run_dir / "stdout.txt").exists():
            done = trainer_runs.run("--run-dir", str(run_dir), timeout_s=FULL_TIMEOUT_S)
            assert done.returncode == 0, done.stdout + done.stderr
            (run_dir / "stdout.txt").write_text(done.stdout)
    return run_dir


@pytest.fixture(scope="session")
def short_rl(quickstart: Path) -> list[str]:
    """Arguments of a short RL run from the quickstart's SFT model."""
    return [
        "--stages",
        "rl",
        f"rl.start_from={quickstart / 'models' / 'sft'}",
        "rl.steps=3",
        "rl.evaluate_every=0",
        "evaluation.sets=[]",
        "rl.prompts_per_step=4",
    ]
