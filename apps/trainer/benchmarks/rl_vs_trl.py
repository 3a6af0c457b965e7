"""Measure our RL step against TRL's GRPOTrainer: same model, prompts, tool, grader and threads.

usage: python apps/trainer/benchmarks/rl_vs_trl.py [--model DIR] [--steps 8] [--threads 2]
    [--trl DIR] [--json]

Both sides stay alive and take steps in turn, so that a noisy machine is noisy for both. Our side is
`run_rl` itself, with Ray, Megatron-core, the embedded engine, the sandbox and the probe after each
weight update; a step ends when its trajectories and metrics are on disk. TRL's side is
`GRPOTrainer.train` with its own tool loop, given our sandbox and our grader, and spared what it
does by default and a CPU is better off without (bf16, gradient checkpointing).

Equal work: no group is left out for being flat, the learning rate is tiny so that both sides go on
sampling from the first weights, and the limits are TRL's (one for the whole answer, tool replies
included). Without --model the weights are random and no tool is called; give the `models/sft`
folder of a quickstart run to measure tool-using trajectories.

The ratio of processor seconds tells the same without the neighbours' noise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import psutil

TRL = ("trl==1.16.0", "accelerate==1.15.0")
TARGET = 1.5
SIDES = ("ours", "trl")
CONFIG = Path(__file__).resolve().parents[3] / "configs" / "quickstart.yaml"
LEARNING_RATE = 1e-6
START_TIMEOUT_S, STEP_TIMEOUT_S = 300.0, 300.0
# What TRL's trainer needs and our tokenizer folder does not have: the dialect as a template.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}"
    "{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + message.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
    "{%- else %}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') }}"
    "{%- for call in message.tool_calls or [] %}"
    "{%- if not loop.first or message.content %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a side is told; it travels as JSON."""

    run_dir: str
    model: str
    steps: int
    threads: int
    trl: str

    def config(self) -> Any:
        """The quickstart, with equal work for both sides."""
        from retool_trainer.config import load_config

        return load_config(
            CONFIG,
            [
                "stages=[rl]",
                f"rl.start_from={self.model}",
                f"rl.steps={self.steps + 1}",
                "rl.checkpoint_every=1000000",
                "rl.evaluate_every=0",
                "rl.drop_flat_groups=false",
                "rl.reward.preset=outcome",
                f"rl.optimizer={{learning_rate: {LEARNING_RATE}, betas: [0.9, 0.95]}}",
                "evaluation.sets=[]",
                (
                    "data.arithmetic={num_train_problems: 2048, num_heldout_problems: 8, "
                    "num_copy_rows: 8, num_clean_rows: 8, num_mixed_rows: 8}"
                ),
                "limits.tokens_per_turn=160",
                f"policy.num_threads={self.threads}",
                "ray.min_free_memory_gib=1",
            ],
        )


class Pace:
    """The line to the driver: wait for leave to take a step, then tell what it cost."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._began_s = 0.0

    def wait(self) -> None:
        self._say({})
        if not sys.stdin.readline():
            raise SystemExit("the driver is gone")
        self._began_s = time.monotonic()

    def done(self, figures: Mapping[str, float]) -> None:
        self._say({"seconds": time.monotonic() - self._began_s, **figures})

    def _say(self, value: Mapping[str, float]) -> None:
        print(json.dumps(value), file=self._answers, flush=True)


# -- the sides ---------------------------------------------------------------------------


def run_ours(job: Job, pace: Pace) -> None:
    """`run_rl` with an observer that waits for the driver between two steps."""
    from retool_rollout import Tokenizer
    from retool_trainer.observe import Observer
    from retool_trainer.run_folder import RunFolder
    from retool_trainer.stages import Context, run_rl
    from retool_trainer.workers import Workers, cluster

    class PacedObserver(Observer):
        @contextmanager
        def stage(self, name: str, *, total: int, done: int = 0) -> Iterator[None]:
            with super().stage(name, total=total, done=done):
                pace.wait()
                yield

        def step(self, stage: str, step: int, total: int, values: Mapping[str, Any]) -> None:
            super().step(stage, step, total, values)
            pace.done(
                {
                    "samples": values["samples/total"],
                    "tokens": values["tokens/sampled"],
                    "calls": values["tool/calls"],
                    "right": values["accuracy"],
                    "generation": values["time/rollout_s"],
                    "training": values["time/logprobs_s"] + values["time/train_s"],
                    "sync": values["time/sync_s"],
                }
            )
            if step < total:
                pace.wait()

    config, folder = job.config(), RunFolder(Path(job.run_dir))
    with (
        cluster(config),
        PacedObserver(folder.path, config) as observer,
        Workers(config, Path(job.model), folder.path / "logs") as workers,
    ):
        run_rl(
            Context(
                config=config,
                folder=folder,
                observer=observer,
                workers=workers,
                decode=Tokenizer.load(Path(job.model)).decode,
            )
        )


def run_trl(job: Job, pace: Pace) -> None:
    """GRPOTrainer with callbacks that wait for the driver between two batches of generations."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_template

    from retool_data import Problem
    from retool_reward.hooks.trl import RetoolReward
    from retool_trainer.run_folder import RunFolder
    from retool_trainer.stages._prepare import data_file, read_records
    from retool_trainer.stages._stream import Stream

    torch.set_num_threads(job.threads)
    config = job.config()
    rl = config.rl
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = qwen3_template
    problems = Stream(
        read_records(data_file(RunFolder(Path(job.run_dir)), rl.problems), Problem), config.seed
    ).take((job.steps + 1) * rl.prompts_per_step)
    check_prompts(config, Path(job.model), tokenizer, problems)
    batch = rl.prompts_per_step * rl.samples_per_prompt

    class Paced(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % rl.minibatches == 0:
                pace.wait()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "completions/mean_length" not in logs:
                return  # the summary at the end of training
            pace.done(
                {
                    "samples": batch,
                    "tokens": logs["completions/mean_length"] * batch,
                    "calls": logs.get("tools/call_frequency", 0.0),
                    "right": logs["reward"],
                }
            )

    with sandbox_tool(config) as code_interpreter:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32),
            reward_funcs=[RetoolReward(preset="outcome")],
            args=GRPOConfig(
                output_dir=f"{job.run_dir}/trl",
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=batch // rl.minibatches,
                steps_per_generation=rl.minibatches,
                num_generations=rl.samples_per_prompt,
                max_completion_length=config.limits.response_tokens,
                max_tool_calling_iterations=config.limits.max_calls,
                temperature=rl.temperature,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                adam_beta1=0.9,
                adam_beta2=0.95,
                max_grad_norm=1.0,
                beta=0.0,
                epsilon=rl.clip_low,
                epsilon_high=rl.clip_high,
                shuffle_dataset=False,
                max_steps=(job.steps + 1) * rl.minibatches,
                logging_steps=rl.minibatches,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list(
                [{"prompt": list(p.messages), "answer": p.gold} for p in problems]
            ),
            processing_class=tokenizer,
            tools=[code_interpreter],
            callbacks=[Paced()],
        )
        trainer.train()


def check_prompts(config: Any, model: Path, tokenizer: Any, problems: Sequence[Any]) -> None:
    """Both sides must read the same ids."""
    from retool_trainer.dialects import make_run_dialect

    dialect = make_run_dialect(config, model)
    for problem in problems[:8]:
        theirs = tokenizer.apply_chat_template(
            problem.messages, add_generation_prompt=True, return_dict=False
        )
        if theirs != dialect.prompt_ids(problem.messages, ()):
            raise SystemExit(f"the two sides build different prompts for {problem.problem_id}")


@contextmanager
def sandbox_tool(config: Any) -> Iterator[Any]:
    """Our sandbox as the plain function that TRL's `tools=` takes."""
    from retool_trainer.tools import open_tools

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    opened = open_tools(config.sandbox)
    tools = asyncio.run_coroutine_threadsafe(opened.__aenter__(), loop).result(60)

    def code_interpreter(code: str) -> str:
        """Run a Python program and return what it prints.

        Args:
            code: The program.
        """
        call = tools.execute("code_interpreter", {"code": code})
        return asyncio.run_coroutine_threadsafe(call, loop).result(60).text

    try:
        yield code_interpreter
    finally:
        asyncio.run_coroutine_threadsafe(opened.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


# -- the driver --------------------------------------------------------------------------


class Side:
    """One side's process."""

    def __init__(self, name: str, job: Job) -> None:
        self._name = name
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(job.threads),
            # For both: a thread that spins at a barrier takes the core from what it waits for.
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if name == "trl":
            paths = [job.trl, os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--side", name, "--job", json.dumps(vars(job))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )

    def answer(self, timeout_s: float) -> dict[str, float]:
        """The side's next line.

        Raises:
            SystemExit: It died or hangs; its last words are shown.
        """
        assert self._process.stdout is not None
        watch = threading.Timer(timeout_s, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        watch.cancel()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"{self._name} ended early:\n{self._log.read()[-4000:]}")
        return json.loads(line)

    def step(self) -> dict[str, float]:
        """Let it take one step."""
        self.answer(STEP_TIMEOUT_S)  # it waits
        assert self._process.stdin is not None
        cpu_began_s = self._cpu_s()
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        figures = self.answer(STEP_TIMEOUT_S)
        return {**figures, "cpu": self._cpu_s() - cpu_began_s}

    def _cpu_s(self) -> float:
        """What the process and its children, dead ones included, have used of the processors."""
        parent = psutil.Process(self._process.pid)
        used_s = 0.0
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                used_s += sum(process.cpu_times()[:4])
        return used_s

    def close(self) -> None:
        """Let it end by itself, or end it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def measure(job: Job) -> dict[str, list[dict[str, float]]]:
    """Take the steps in turn; the first of each side warms up and does not count."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name in SIDES:
            sides[name] = Side(name, job)
            stack.callback(sides[name].close)
        for index in range(job.steps + 1):
            # Who goes first changes, so that a slow drift of the machine favours nobody.
            for name in SIDES if index % 2 else SIDES[::-1]:
                figures = sides[name].step()
                if index:
                    taken[name].append(figures)
                print(f"{name:<5} step {index}: {figures['seconds']:.2f} s", file=sys.stderr)
    return taken


def summary(taken: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, Any]:
    """Rates over the whole time of a side, and the median of the ratios of paired steps."""
    result: dict[str, Any] = {}
    for name, steps in taken.items():
        seconds = sum(step["seconds"] for step in steps)
        mean = {
            key: statistics.fmean(step[key] for step in steps)
            for key in steps[0]
            if key != "samples"
        }
        result[name] = {
            "samples_per_s": sum(step["samples"] for step in steps) / seconds,
            "tokens_per_s": sum(step["tokens"] for step in steps) / seconds,
            "step_s": mean.pop("seconds"),
            "tokens_per_sample": mean.pop("tokens") / steps[0]["samples"],
            **mean,
        }
    pairs = zip(taken["trl"], taken["ours"], strict=True)
    ours, trl = result["ours"], result["trl"]
    result["ratio"] = {
        "samples_per_s": ours["samples_per_s"] / trl["samples_per_s"],
        "tokens_per_s": ours["tokens_per_s"] / trl["tokens_per_s"],
        "cpu": trl["cpu"] / ours["cpu"],
        "median_of_pairs": statistics.median(a["seconds"] / b["seconds"] for a, b in pairs),
        "target": TARGET,
    }
    return result


def show(result: Mapping[str, Any]) -> None:
    """Print the table."""
    rows = (
        ("samples/s", "samples_per_s", "{:.1f}"),
        ("sampled tokens/s", "tokens_per_s", "{:.0f}"),
        ("seconds a step", "step_s", "{:.2f}"),
        ("processor seconds a step", "cpu", "{:.2f}"),
        ("sampled tokens a sample", "tokens_per_sample", "{:.1f}"),
        ("tool calls a sample", "calls", "{:.2f}"),
        ("right answers", "right", "{:.2f}"),
    )
    print(f"{'':<26}{'ours':>10}{'TRL':>10}{'ratio':>8}")
    for label, key, form in rows:
        ratio = result["ratio"].get(key)
        cells = "".join(f"{form.format(result[side][key]):>10}" for side in SIDES)
        print(f"{label:<26}{cells}{'' if ratio is None else format(ratio, '8.2f')}")
    ours, ratio = result["ours"], result["ratio"]
    print(
        f"our step: generation {ours['generation']:.2f} s, log-probabilities and updates "
        f"{ours['training']:.2f} s, weights and probe {ours['sync']:.2f} s"
    )
    print(
        f"median ratio of paired steps {ratio['median_of_pairs']:.2f}; "
        f"target {TARGET}x samples/s: {'met' if ratio['samples_per_s'] >= TARGET else 'MISSED'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=Path, help="folder with the weights (default: random)")
    parser.add_argument("--steps", type=int, default=8, help="counted steps of each side")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--trl", type=Path, help=f"folder with {' and '.join(TRL)}; default: made")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        # Libraries print what they like; the driver reads our lines only.
        answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        side = run_ours if args.side == "ours" else run_trl
        side(Job(**json.loads(args.job)), Pace(answers))
        return 0
    with tempfile.TemporaryDirectory(prefix="rl_vs_trl-") as scratch:
        result = summary(measure(prepared_job(args, Path(scratch))))
    print(json.dumps(result, indent=2)) if args.json else show(result)
    return 0


def prepared_job(args: argparse.Namespace, scratch: Path) -> Job:
    """Problems, a model and TRL, in a folder that goes away."""
    from retool_trainer.run_folder import RunFolder
    from retool_trainer.stages import prepare

    site = args.trl or scratch / "trl"
    if args.trl is None:
        # Without their dependencies: torch, transformers and datasets are this environment's own.
        subprocess.run(
            ["uv", "pip", "install", "-q", "--no-deps", "--target", site, *TRL],
            check=True,
            timeout=300,
        )
    folder = RunFolder(scratch / "run")
    model = args.model.resolve() if args.model else folder.random_model
    job = Job(
        run_dir=str(folder.path),
        model=str(model),
        steps=args.steps,
        threads=args.threads,
        trl=str(Path(site).resolve()),
    )
    prepare(job.config(), folder)
    return job


if __name__ == "__main__":
    sys.exit(main())
