"""Measure our SFT step against TRL's SFTTrainer: same model, rows, batch, optimizer and threads.

usage: python apps/trainer/benchmarks/sft_vs_trl.py [--steps 12] [--threads 2] [--hidden-size 128]
    [--layers 4] [--vocab-size 224] [--batch-size 32] [--trl DIR] [--json]

Both sides stay alive and take steps in turn, so that a noisy machine is noisy for both; the ratio
is that of the median steps. Our side is `Policy.step` with the NLL loss: Megatron-core, packed
rows, AdamW, gradient clipping. TRL's side is `SFTTrainer.train` on the same ids and completion
masks, spared what it would do by default and a CPU is better off without (bf16, gradient
checkpointing); the time in which it collates a batch is not counted.
Rows have 60 to 130 tokens, as the quickstart's; a third of each is prompt. The tokens counted are
the rows' own, not padding. The losses of the first step are printed: they must agree.

--trl names a folder with trl and accelerate (`uv pip install --target DIR --no-deps ...`); without
it one is made in a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

TRL = ("trl==1.16.0", "accelerate==1.15.0")
TARGET = 1.3
SIDES = ("ours", "trl")
WARM_UP_STEPS = 3
START_TIMEOUT_S = 600.0
LEARNING_RATE = 1e-4


def make_rows(job: dict[str, Any]) -> list[dict[str, list[int]]]:
    """Every row of the run, in the order in which both sides see them."""
    rng = np.random.default_rng(0)
    rows: list[dict[str, list[int]]] = []
    for _ in range(job["batch_size"] * (job["steps"] + WARM_UP_STEPS)):
        length = int(rng.integers(60, 131))
        mask = [int(position >= length // 3) for position in range(length)]
        ids = rng.integers(1, job["vocab_size"], length).tolist()
        rows.append({"input_ids": ids, "completion_mask": mask})
    return rows


class Turn:
    """The parent says `step`, the side takes one and answers with what it measured."""

    def __init__(self) -> None:
        self._out = sys.stdout
        # TRL's progress and logs would get between the answers.
        sys.stdout = sys.stderr

    def wait(self) -> None:
        if not sys.stdin.readline():
            raise SystemExit(1)

    def answer(self, **values: Any) -> None:
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()


def run_ours(job: dict[str, Any]) -> None:
    """A policy of one rank."""
    from retool_trainer.config import OptimizerConfig, PolicyConfig
    from retool_trainer.policy import Policy, Row, nll

    turn = Turn()
    policy = Policy(
        Path(job["model"]),
        policy=PolicyConfig(num_threads=job["threads"]),
        rank=0,
        world_size=1,
        master_addr="127.0.0.1",
        master_port=job["port"],
        seed=0,
    )
    policy.set_optimizer(OptimizerConfig(learning_rate=LEARNING_RATE, betas=(0.9, 0.999)), 1)
    rows = make_rows(job)
    turn.answer(ready=True)
    for start in range(0, len(rows), job["batch_size"]):
        turn.wait()
        began = time.perf_counter()
        chosen = rows[start : start + job["batch_size"]]
        masks = [np.array(row["completion_mask"], dtype=bool) for row in chosen]
        total = sum(int(mask.sum()) for mask in masks)
        batch = [
            Row(
                ids=np.array(row["input_ids"], dtype=np.int32),
                mask=mask,
                weights=(mask / total).astype(np.float32),
            )
            for row, mask in zip(chosen, masks, strict=True)
        ]
        result = policy.step(batch, nll)
        turn.answer(step_s=time.perf_counter() - began, loss=result["loss"])
    policy.close()


def run_trl(job: dict[str, Any]) -> None:
    """TRL's trainer, held back by a callback until it is its turn."""
    sys.path.insert(0, job["trl"])
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    turn = Turn()
    torch.set_num_threads(job["threads"])
    vocabulary = {f"t{index}": index for index in range(job["vocab_size"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="t0")),
        pad_token="t0",
        eos_token="t0",
    )
    losses: list[float] = []

    class TakeTurns(TrainerCallback):
        began = 0.0

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turn.answer(ready=True)

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turn.wait()
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.step_s = time.perf_counter() - self.began

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "loss" in logs:
                losses.append(logs["loss"])
                turn.answer(step_s=self.step_s, loss=logs["loss"])

    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
            args=SFTConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                per_device_train_batch_size=job["batch_size"],
                max_steps=job["steps"] + WARM_UP_STEPS,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                max_grad_norm=1.0,
                max_length=None,
                completion_only_loss=True,
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                shuffle_dataset=False,
                train_sampling_strategy="sequential",
            ),
            train_dataset=Dataset.from_list(make_rows(job)),
            processing_class=tokenizer,
            callbacks=[TakeTurns()],
        )
        trainer.train()


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Start both sides and let them step in turn."""
    processes: dict[str, subprocess.Popen[str]] = {}
    times: dict[str, list[float]] = {side: [] for side in SIDES}
    first_loss: dict[str, float] = {}

    def answer(side: str) -> dict[str, Any]:
        line = processes[side].stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise SystemExit(f"{side} ended with {processes[side].wait(10)}; see its output above")
        return json.loads(line)

    try:
        for side in SIDES:
            processes[side] = subprocess.Popen(
                [sys.executable, __file__, "--side", side, "--job", json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        for side in SIDES:
            answer(side)
        for step in range(job["steps"] + WARM_UP_STEPS):
            for side in SIDES if step % 2 else SIDES[::-1]:
                processes[side].stdin.write("step\n")  # type: ignore[union-attr]
                processes[side].stdin.flush()  # type: ignore[union-attr]
                result = answer(side)
                first_loss.setdefault(side, result["loss"])
                if step >= WARM_UP_STEPS:
                    times[side].append(result["step_s"])
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    tokens = sum(
        len(row["input_ids"]) for row in make_rows(job)[WARM_UP_STEPS * job["batch_size"] :]
    )
    per_step = tokens / job["steps"]
    rates = {side: per_step / statistics.median(times[side]) for side in SIDES}
    return {
        "tokens_per_s": rates,
        "ratio": rates["ours"] / rates["trl"],
        "ratio_of_fastest_steps": min(times["trl"]) / min(times["ours"]),
        "step_s": times,
        "first_loss": first_loss,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=224)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--trl", metavar="DIR", help="folder with trl and accelerate")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        {"ours": run_ours, "trl": run_trl}[args.side](json.loads(args.job))
        return 0

    import socket

    from retool_trainer.config import ModelShape
    from retool_trainer.policy import make_random_hf

    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        trl = args.trl or str(Path(folder) / "trl")
        if not args.trl:
            command = ["uv", "pip", "install", "--quiet", "--target", trl, "--no-deps", *TRL]
            subprocess.run(command, check=True, timeout=START_TIMEOUT_S)
        shape = ModelShape(
            hidden_size=args.hidden_size,
            num_layers=args.layers,
            head_dim=args.hidden_size // 4,
            mlp_size=3 * args.hidden_size,
        )
        make_random_hf(shape, args.vocab_size, Path(folder) / "model", 0)
        port = probe.getsockname()[1]
        probe.close()
        report = measure(
            {
                "model": str(Path(folder) / "model"),
                "trl": trl,
                "steps": args.steps,
                "threads": args.threads,
                "vocab_size": args.vocab_size,
                "batch_size": args.batch_size,
                "port": port,
            }
        )
    if args.json:
        print(json.dumps(report))
    else:
        for side in SIDES:
            print(
                f"{side:<5} {report['tokens_per_s'][side]:10,.0f} tokens/s   "
                f"median step {statistics.median(report['step_s'][side]):.3f} s   "
                f"first loss {report['first_loss'][side]:.4f}"
            )
        print(
            f"ratio {report['ratio']:.2f} (target {TARGET}); of the fastest steps "
            f"{report['ratio_of_fastest_steps']:.2f}"
        )
    return 0 if report["ratio"] >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
