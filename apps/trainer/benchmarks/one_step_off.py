"""Measure schedule one_step_off against synchronous, when generating takes as long as training.

usage: python apps/trainer/benchmarks/one_step_off.py [--steps 8] [--rounds 2] [--threads 1]
    [--generation-s SECONDS] [--json]

`run_rl` itself, with Ray, the Megatron-core policy of the quickstart's shape, the tool loop and the
grader; only engine and tool are scripted. The engine sleeps for each token, as one on devices of
its own would look from here: generation costs time but hardly any processor. Its latency is set so
that a batch takes as long as training on it, measured first, or what --generation-s says.

A run's first step is not counted: nothing can overlap with it. The ideal ratio is that of
generation + training + sync to max(generation, training) + sync, from the times of the synchronous
runs, because weights change while nothing is generated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from retool_reward import AsyncGrader
from retool_rollout import Latency, Reply, ScriptedEngine, Tokenizer
from retool_trainer.config import RunConfig, load_config
from retool_trainer.dialects import make_run_dialect
from retool_trainer.observe import Observer
from retool_trainer.run_folder import RunFolder
from retool_trainer.stages import Context, prepare, run_rl
from retool_trainer.workers import Rollouts, Workers, _workers, cluster
from retool_trainer.workers._rollouts import _RolloutActor

TARGET = 1.5
SCHEDULES = ("synchronous", "one_step_off")
CONFIG = Path(__file__).resolve().parents[3] / "configs" / "quickstart.yaml"
CALL = {"name": "code_interpreter", "arguments": {"code": "print(sum(range(3, 100, 7)))"}}
ANSWER = "Answer: \\boxed{679}"
CALIBRATION_STEPS = 4


class SleepingEngine(ScriptedEngine):
    """A scripted engine with the face of an `EngineHandle`; weights are taken and ignored."""

    embedded = None

    @property
    def engine(self) -> ScriptedEngine:
        return self

    async def load(self, folder: Path, weight_version: int) -> None:
        self.weight_version = weight_version


class ReadyTool:
    """A tool that knows the answer: what a sandbox costs is not measured here."""

    specs: Sequence[Mapping[str, Any]] = ()

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> Reply:
        return Reply(text="679\n")

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ReadyTool]:
        yield self


class SleepingActor(_RolloutActor):
    """The rollout actor with that engine and tool: each trajectory makes a call, then answers."""

    async def start(self) -> None:
        self._tools = ReadyTool()
        self._grader = await self._stack.enter_async_context(AsyncGrader(workers=1))
        self._dialect = make_run_dialect(self._config, self._hf_folder)
        turns = [self._dialect.turn_ids("", [CALL]), self._dialect.turn_ids(ANSWER, [])]
        self._turns, self._num_tokens = turns, sum(map(len, turns))
        await self.set_generation_s(0.0)

    async def set_generation_s(self, seconds: float) -> None:
        latency = Latency(per_token_s=seconds / self._num_tokens, spread=0.1)
        engine = SleepingEngine(self._script, latency=latency)
        self._handle: Any = engine

    def _script(self, prompt_ids: Sequence[int], _: Any, session_id: str) -> list[int]:
        # The probe after a weight update asks too, and never has a call in its prompt.
        return self._turns[prompt_ids.count(self._turns[0][0]) > 0]


class SleepingRollouts(Rollouts):
    """The driver's side of that actor."""

    def __init__(self, config: RunConfig, model: Path, urls: Sequence[str]) -> None:
        import ray

        actor: Any = ray.remote(SleepingActor)
        self._actor: Any = actor.options(num_cpus=1, max_concurrency=1000).remote(
            config, str(model), list(urls)
        )
        self._started: Any = self._actor.start.remote()

    def set_generation_s(self, seconds: float) -> None:
        import ray

        self._ready()
        ray.get(self._actor.set_generation_s.remote(seconds), timeout=60)


class Clock(Observer):
    """An observer that keeps when each step ended and what it was made of."""

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        super().__init__(run_dir, config)
        self.ends_s: list[float] = []
        self.values: list[dict[str, Any]] = []

    def step(self, stage: str, step: int, total: int, values: Mapping[str, Any]) -> None:
        super().step(stage, step, total, values)
        self.ends_s.append(time.monotonic())
        self.values.append(dict(values))

    def figures(self) -> dict[str, float]:
        """Means over all steps but the first, in seconds."""
        counted = self.values[1:]
        mean = {key: statistics.fmean(v[key] for v in counted) for key in TIMES}
        return {
            "step": (self.ends_s[-1] - self.ends_s[0]) / len(counted),
            "generation": mean["time/rollout_s"],
            "training": mean["time/logprobs_s"] + mean["time/train_s"],
            "sync": mean["time/sync_s"],
            "stall": mean["schedule/stall_s"],
        }


TIMES = (
    "time/rollout_s",
    "time/logprobs_s",
    "time/train_s",
    "time/sync_s",
    "schedule/stall_s",
)


def make_config(args: argparse.Namespace, schedule: str, steps: int) -> RunConfig:
    """The quickstart, with every trajectory trained on."""
    return load_config(
        CONFIG,
        [
            "stages=[rl]",
            f"rl.steps={steps}",
            "rl.drop_flat_groups=false",
            "rl.checkpoint_every=1000000",
            "rl.evaluate_every=0",
            f"rl.schedule.kind={schedule}",
            "evaluation.sets=[]",
            (
                "data.arithmetic={num_train_problems: 1024, num_heldout_problems: 8, "
                "num_copy_rows: 8, num_clean_rows: 8, num_mixed_rows: 8}"
            ),
            # A script has no weights of its own that a probe could find.
            "engine.probe_tolerance=1000",
            f"policy.num_threads={args.threads}",
            "ray.min_free_memory_gib=1",
        ],
    )


def one_run(
    args: argparse.Namespace, schedule: str, steps: int, workers: Workers, scratch: Path
) -> dict[str, float]:
    """One `run_rl` in a folder of its own, on the shared actors."""
    config = make_config(args, schedule, steps)
    folder = RunFolder(Path(tempfile.mkdtemp(dir=scratch)))
    folder.data.symlink_to(scratch / "prepared" / "data")
    with Clock(folder.path, config) as clock:
        decode = Tokenizer.load(scratch / "prepared" / "model").decode
        run_rl(
            Context(config=config, folder=folder, observer=clock, workers=workers, decode=decode)
        )
    return clock.figures()


def measure(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Calibrate, then run both schedules in turn."""
    config = make_config(args, "synchronous", args.steps)
    folder = RunFolder(scratch / "prepared")
    prepare(config, folder)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in SCHEDULES}
    _workers.Rollouts = SleepingRollouts  # the one part of the run that is not its own
    with cluster(config), Workers(config, folder.random_model, scratch / "logs") as workers:
        assert isinstance(workers.rollouts, SleepingRollouts)
        first = one_run(args, "synchronous", CALIBRATION_STEPS, workers, scratch)
        # What the loop and the grader take without any latency is there already.
        seconds = args.generation_s or first["training"]
        workers.rollouts.set_generation_s(max(seconds - first["generation"], 0.0))
        for index in range(args.rounds):
            for name in SCHEDULES if index % 2 == 0 else SCHEDULES[::-1]:
                figures = one_run(args, name, args.steps + 1, workers, scratch)
                taken[name].append(figures)
                print(f"{name:<13} {figures['step']:.2f} s a step", file=sys.stderr)
    result: dict[str, Any] = {
        name: {key: statistics.fmean(run[key] for run in runs) for key in runs[0]}
        for name, runs in taken.items()
    }
    base, ahead = result["synchronous"], result["one_step_off"]
    whole_s = base["generation"] + base["training"] + base["sync"]
    overlapped_s = max(base["generation"], base["training"]) + base["sync"]
    result["ratio"] = {
        "achieved": base["step"] / ahead["step"],
        "ideal": whole_s / overlapped_s,
        "target": TARGET,
    }
    return result


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    print(f"{'seconds a step':<28}" + "".join(f"{name:>14}" for name in SCHEDULES))
    for label, key in (
        ("whole", "step"),
        ("generation", "generation"),
        ("log-probabilities, updates", "training"),
        ("weights and probe", "sync"),
        ("waiting for trajectories", "stall"),
    ):
        print(f"{label:<28}" + "".join(f"{result[name][key]:>14.2f}" for name in SCHEDULES))
    print(f"{'steps/s':<28}" + "".join(f"{1 / result[name]['step']:>14.2f}" for name in SCHEDULES))
    ratio = result["ratio"]
    print(
        f"one_step_off / synchronous: {ratio['achieved']:.2f} (ideal {ratio['ideal']:.2f}); "
        f"target {TARGET}x: {'met' if ratio['achieved'] >= TARGET else 'MISSED'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=8, help="counted steps of a run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each schedule, in turn")
    parser.add_argument("--threads", type=int, default=1, help="of the policy")
    parser.add_argument(
        "--generation-s", type=float, help="of a batch (default: as long as training takes)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the runs' own lines go to standard error
    with tempfile.TemporaryDirectory(prefix="one_step_off-") as scratch:
        result = measure(args, Path(scratch))
    sys.stdout.flush()
    sys.stdout = answers
    print(json.dumps(result, indent=2)) if args.json else show(result)
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
