"""Show that each advantage estimator learns, and that shuffled rewards teach nothing.

usage: python apps/trainer/benchmarks/learning.py --run RUN [--only NAME ...] [--seed N] [--json]

RUN is a finished quickstart (`uv run apps/trainer --run-dir RUN`). From its SFT model each row is
the quickstart's own RL, run through the command line as a user would, with one key changed. Figures
are of the held-out problems: greedy, and sampled at temperature 1. A run takes about two minutes on
two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
VARIANTS = {
    "grpo": ["rl.advantage=grpo"],
    "dr_grpo": ["rl.advantage=dr_grpo"],
    "rloo": ["rl.advantage=rloo"],
    "reinforce_pp": ["rl.advantage=reinforce_pp", "rl.drop_flat_groups=false"],
    "reinforce_pp_baseline": ["rl.advantage=reinforce_pp_baseline"],
    "shuffled rewards": ["rl.reward.shuffle=true"],
}
RUN_TIMEOUT_S = 1800.0


def train(quickstart: Path, overrides: list[str], seed: int, folder: Path) -> dict[str, Any]:
    """Run RL once; its summary and wall time."""
    began_s = time.monotonic()
    command = [sys.executable, str(ROOT / "apps" / "trainer"), "run", "--run-dir", str(folder)]
    command += ["--stages", "rl", f"rl.start_from={quickstart / 'models' / 'sft'}"]
    done = subprocess.run(
        [*command, f"seed={seed}", "rl.evaluate_every=0", *overrides],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"the run with {' '.join(overrides)} failed: {done.stderr.strip()}")
    summary = json.loads((folder / "summary.json").read_text())
    return summary | {"run_s": time.monotonic() - began_s}


def main() -> None:
    """Run every variant and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="a finished quickstart")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args()
    before = json.loads((args.run / "summary.json").read_text())
    start = {kind: before[kind]["sft"] for kind in ("accuracy", "accuracy_sampled")}
    results: dict[str, Any] = {}
    line = "{:<24} {:>8} {:>8} {:>8} {:>7}"
    if not args.json:
        print(line.format("", "greedy", "sampled", "rise", "s"))
        greedy, sampled = (f"{value:.3f}" for value in start.values())
        print(line.format("before (SFT)", greedy, sampled, "", ""))
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="retool-learning-") as folder:
            summary = train(args.run, VARIANTS[name], args.seed, Path(folder) / "run")
        greedy, sampled = summary["accuracy"]["rl"], summary["accuracy_sampled"]["rl"]
        rise = sampled - start["accuracy_sampled"]
        results[name] = {"greedy": greedy, "sampled": sampled, "rise": rise}
        if not args.json:
            cells = (f"{greedy:.3f}", f"{sampled:.3f}", f"{rise:+.3f}", f"{summary['run_s']:.0f}")
            print(line.format(name, *cells), flush=True)
    if args.json:
        print(json.dumps({"before": start, "after": results}))


if __name__ == "__main__":
    main()
