"""The command line, as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

from retool_sandbox._bench import judge
from retool_sandbox._cli import build_parser

MAIN = "import sys; from retool_sandbox._cli import main; sys.exit(main())"


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        input=stdin, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_run_prints_streams_and_exits_by_outcome(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("print('out')\n1 / 0")
    done = command("run", "--tier", "stdlib", str(file))
    assert done.returncode == 1
    assert done.stdout == "out\n"
    assert "ZeroDivisionError" in done.stderr
    missing = command("run", "--tier", "stdlib", str(tmp_path / "none.py"))
    assert missing.returncode == 2
    assert "No such file" in missing.stderr


def test_run_reads_standard_input_and_prints_json() -> None:
    done = command("run", "--tier", "stdlib", "--json", "--policy", "strict", "-", stdin="6 * 7")
    assert done.returncode == 0
    assert json.loads(done.stdout)["value"] == "42"


def test_doctor_reports_every_guarantee_as_json() -> None:
    done = command("doctor", "--tier", "stdlib", "--json")
    report = json.loads(done.stdout)
    names = {check["name"] for check in report["checks"]}
    assert {"files", "network", "signals", "memory limit", "time limit", "fork"} <= names
    assert done.returncode == (0 if all(check["ok"] for check in report["checks"]) else 1)
    assert report["facts"]["level"] in ("full", "landlock")


def test_bench_judges_each_target() -> None:
    lanes = {"c1": {"p50_ms": 4.0, "per_s": 80.0}, "c8": {"p50_ms": 4.0, "per_s": 80.0}}
    slow = {"c1": {"p50_ms": 25.0, "per_s": 2.0}, "c8": {"p50_ms": 25.0, "per_s": 2.0}}
    report = {
        "sandbox": {"print": lanes, "sympy": lanes},
        "fork_only": {"print": lanes, "sympy": lanes},
        "subprocess": {"print": slow, "sympy": slow},
        "bwrap": {"skipped": "not installed"},
        "extra": {
            "session_turn_p50_ms": 0.2, "warm_print_p50_ms": 4.0, "idle_spare_private_mib": 1.6,
            "cold_start_math_s": 0.5, "cold_start_stdlib_s": 0.05, "kill_overshoot_p99_ms": 3.0,
        },
    }  # fmt: skip
    met = {row["target"]: row["met"] for row in judge(report)}
    assert met["print c1, times faster than subprocess"] is True
    assert met["sympy c8, times the runs/s of bwrap"] is None
    assert met["print p50 with a warm spare, ms"] is False


def test_help_names_every_command() -> None:
    text = build_parser().format_help()
    for name in ("run", "serve", "doctor", "bench"):
        assert name in text


def test_import_needs_no_framework() -> None:
    probe = (
        "import sys, retool_sandbox\n"
        "heavy = {'torch', 'ray', 'vllm', 'aiohttp', 'numpy', 'rich', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "[]\n"
