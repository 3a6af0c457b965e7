"""Trajectories as a run would leave them."""

import dataclasses
import json
import math
import random
from pathlib import Path

import hypothesis
import pytest

from retool_trainer.observe import (
    Call,
    Metrics,
    SampleRecord,
    Segment,
    trajectories_path,
    write_trajectories,
)

# A busy machine is no failure.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


def build_record(seed: int = 0, **changes: object) -> SampleRecord:
    """A two-turn trajectory: prompt, call, tool output, answer; one token per character."""
    rng = random.Random(seed)
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    correct = seed % 3 != 0
    answer = a * b if correct else a * b + 1
    parts = [
        ("prompt", f"<|im_start|>user\nWhat is {a} * {b}?<|im_end|>\n<|im_start|>assistant\n"),
        ("policy", f'<tool_call>\n{{"code": "print({a}*{b})"}}\n</tool_call><|im_end|>'),
        ("tool", f"\n<|im_start|>tool\n{a * b}<|im_end|>\n<|im_start|>assistant\n"),
        ("policy", f"Answer: \\boxed{{{answer}}}<|im_end|>"),
    ]
    text = "".join(part for _, part in parts)
    mask = [int(speaker == "policy") for speaker, part in parts for _ in part]
    segments, at = [], 0
    for speaker, part in parts:
        segments.append(Segment(speaker=speaker, start=at, end=at + len(part), text=part))
        at += len(part)
    engine = [-rng.expovariate(3.0) * on for on in mask]
    fields = {
        "step": 1,
        "group": seed // 4,
        "sample": seed % 4,
        "problem_id": f"product-{seed // 4}",
        "gold": str(a * b),
        "ids": tuple(map(ord, text)),
        "mask": tuple(mask),
        "engine_logprobs": tuple(engine),
        "policy_logprobs": tuple(
            v + rng.gauss(0, 1e-5) * on for v, on in zip(engine, mask, strict=True)
        ),
        "weight_versions": tuple(0 if on else None for on in mask),
        "prompt_length": len(parts[0][1]),
        "segments": tuple(segments),
        "pieces": tuple(text),
        "calls": (
            Call(
                turn=0,
                name="code_interpreter",
                arguments=f'{{"code": "print({a}*{b})"}}',
                outcome="ok",
                ok=True,
                text=str(a * b),
                wall_time_s=0.01,
            ),
        ),
        "num_turns": 2,
        "status": "completed",
        "stop_reason": "answered",
        "answer": str(answer),
        "correct": correct,
        "reward": 1.05 if correct else 0.02,
        "reward_components": {"accuracy": float(correct), "tool": 0.05 if correct else 0.02},
        "advantage": 0.5 if correct else -0.5,
        "wall_time_s": 0.2,
    }
    return SampleRecord(**{**fields, **changes})


@pytest.fixture
def record() -> SampleRecord:
    return build_record()


@pytest.fixture
def records() -> list[SampleRecord]:
    plain = [build_record(seed) for seed in range(8)]
    aborted = dataclasses.replace(
        build_record(8),
        status="aborted",
        stop_reason="engine_error",
        correct=None,
        reward=None,
        reward_components={},
        advantage=None,
        policy_logprobs=None,
        error="connection refused",
    )
    return [*plain, aborted]


HOSTILE = "</script><script>document.body.dataset.hacked = 1</script><img src=x onerror=hack()>"


def _learning(step: int, total: int, start: float, end: float) -> float:
    return start + (end - start) * (1 - math.exp(-4 * step / total))


def _rl_metrics(step: int, total: int, rng: random.Random) -> dict[str, float]:
    right = _learning(step, total, 0.4, 0.85) + rng.gauss(0, 0.03)
    ok = _learning(step, total, 0.7, 0.97)
    return {
        "loss": rng.gauss(0, 0.02),
        "policy/loss": rng.gauss(0, 0.02),
        "grad_norm": 0.6 + rng.gauss(0, 0.1),
        "learning_rate": 1.5e-4 * (1 - 0.5 * step / total),
        "reward/mean": right * 1.04,
        "reward/component/accuracy": right,
        "reward/component/tool": right * 0.04,
        "accuracy": right,
        "samples/total": 128,
        "groups/total": 16,
        "groups/flat": rng.randint(1, 6),
        "groups/all_right": rng.randint(0, 5),
        "groups/all_wrong": rng.randint(0, 2),
        "turns/mean": _learning(step, total, 1.5, 2.0),
        "turns/max": 3,
        "tool/use": _learning(step, total, 0.5, 1.0),
        "tool/calls": _learning(step, total, 0.6, 1.0),
        "tool/ok": ok,
        "tool/outcome/ok": ok,
        "tool/outcome/failed": (1 - ok) * 0.8,
        "tool/outcome/timed_out": (1 - ok) * 0.2,
        "truncated": 0.02,
        "stop/answered": 0.96,
        "stop/max_turns": 0.04,
        "response/tokens_mean": 60 + rng.gauss(0, 2),
        "response/tokens_max": 110,
        "policy/entropy": _learning(step, total, 0.3, 0.05),
        "policy/approx_kl": abs(rng.gauss(0, 0.003)),
        "policy/clip_fraction": abs(rng.gauss(0, 0.01)),
        "engine/logprob_gap_mean": 3e-7 * rng.uniform(0.8, 1.2),
        "engine/logprob_gap_max": 8e-6 * rng.uniform(0.5, 2),
        "engine/probe_gap": 4e-6 * rng.uniform(0.5, 2),
        "schedule/staleness_mean": 0,
        "schedule/staleness_max": 0,
        "time/step_s": 1.9,
        "time/rollout_s": 1.1 + rng.gauss(0, 0.05),
        "time/train_s": 0.7 + rng.gauss(0, 0.03),
        "time/sync_s": 0.05,
        "throughput/tokens_per_s": 3000 + rng.gauss(0, 100),
        "memory/driver_mib": 900 + step,
    }


def _evaluation(value: float, tool_use: float) -> dict[str, float]:
    return {
        "eval/heldout/accuracy": value,
        "eval/heldout/accuracy_low": max(0.0, value - 0.05),
        "eval/heldout/accuracy_high": min(1.0, value + 0.05),
        "eval/heldout/pass_at_4": min(1.0, value + 0.04),
        "eval/heldout/tool_use": tool_use,
        "eval/heldout/tool_errors": 0.1 * (1 - value),
        "eval/heldout/turns": 1 + tool_use,
        "eval/heldout/problems": 256,
    }


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: 120 SFT steps, 40 RL steps, trajectories of three steps."""
    folder = tmp_path_factory.mktemp("run")
    rng = random.Random(0)
    num_sft, num_rl = 120, 40
    with Metrics(folder / "metrics.jsonl") as metrics:
        metrics.append("evaluate", 0, _evaluation(0.0, 0.0), of="baseline")
        for step in range(1, num_sft + 1):
            values = {
                "loss": _learning(step, num_sft, 3.0, 0.3) + rng.gauss(0, 0.03),
                "grad_norm": 1.0 + rng.gauss(0, 0.1),
                "learning_rate": 1.5e-2 * (1 - step / num_sft),
                "throughput/tokens_per_s": 9000 + rng.gauss(0, 200),
            }
            if step % 20 == 0:
                values["loss/heldout"] = _learning(step, num_sft, 3.0, 0.35)
            metrics.append("sft", step, values)
        metrics.append("evaluate", num_sft, _evaluation(0.637, 0.73), of="sft")
        for step in range(1, num_rl + 1):
            metrics.append("rl", step, _rl_metrics(step, num_rl, rng))
            if step % 8 == 0:
                right = _learning(step, num_rl, 0.65, 0.93)
                metrics.append("evaluate", step, _evaluation(right, 0.99), of="rl")
        # The pipeline's last evaluation names no step.
        metrics.append("evaluate", 0, _evaluation(0.93, 0.99), of="rl")
    for step in (1, 20, 40):
        stored = [build_record(seed + 100 * step, step=step) for seed in range(16)]
        stored[3] = dataclasses.replace(stored[3], problem_id="hostile", answer=HOSTILE)
        stored[5] = dataclasses.replace(
            stored[5],
            calls=(dataclasses.replace(stored[5].calls[0], outcome="timed_out", ok=False),),
        )
        write_trajectories(trajectories_path(folder, "rl", step), stored)
    for of, wrong in (("sft", 3), ("rl", 2)):
        stored = [
            build_record(seed, step=0, problem_id=f"heldout-{seed}", correct=seed % wrong > 0)
            for seed in range(12)
        ]
        write_trajectories(trajectories_path(folder, f"evaluate-{of}-heldout", 0), stored)
    config = {"name": "quickstart", "seed": 0, "rl": {"steps": num_rl, "advantage": "grpo"}}
    (folder / "config.json").write_text(json.dumps(config))
    summary = {"wall_s": {"sft": 45.0, "rl": 75.0, "total": 140.0}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder
