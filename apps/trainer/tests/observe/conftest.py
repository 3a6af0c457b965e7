"""Trajectories as a run would leave them."""

import dataclasses
import random

import pytest

from retool_trainer.observe import Call, SampleRecord, Segment


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
