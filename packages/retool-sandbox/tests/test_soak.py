"""A short soak; `benchmarks/soak.py --runs 10000` is the long one."""

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[1] / "benchmarks" / "soak.py"


def test_mixed_runs_leave_nothing_behind() -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--runs", "150", "--concurrency", "4"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
