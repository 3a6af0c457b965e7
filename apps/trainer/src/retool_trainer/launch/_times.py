"""Estimate the wall time of a step from the rates that the configuration states."""

from __future__ import annotations

from dataclasses import dataclass

from retool_trainer.config import RunConfig

from ._model_size import ModelSize

# Share of the allowed length that a row has on average: slime's and vime's runs start near it.
_MEAN_FILL = 0.5
_SYNC_BYTES_PER_S = 1.5e9  # a 4B model took 5.4 s through a file (facts of the field)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The parts of one step's wall time, in seconds, and what they rest on."""

    stage: str
    parts_s: dict[str, float]
    basis: str

    @property
    def total_s(self) -> float:
        """The parts one after the other, as in the synchronous schedule."""
        return sum(self.parts_s.values())


def step_times(config: RunConfig, size: ModelSize) -> tuple[StepTime, ...]:
    """One entry per stage whose rates are stated; none without rates.

    Training costs 6 operations a parameter and token, 8 with full recomputation (Korthikanti et
    al. 2022, arXiv 2205.05198, section 5). Before it RL scores the samples once, and with a KL term
    once more under the reference: a forward pass of 2 each.
    """
    hardware = config.hardware
    if hardware.train_tflops is None or hardware.decode_tokens_per_s is None:
        return ()
    flops_per_token = (8 if config.policy.recompute else 6) * size.num_parameters
    found: list[StepTime] = []
    if config.sft is not None and "sft" in config.stages:
        tokens = config.sft.batch_size * config.sft.max_tokens * _MEAN_FILL
        rate = config.policy.world_size * hardware.train_tflops * 1e12
        found.append(
            StepTime(
                stage="sft",
                parts_s={"train": flops_per_token * tokens / rate},
                basis=f"{tokens:.0f} tokens a step ({_MEAN_FILL:.0%} of the longest rows), "
                f"{hardware.train_tflops:g} TFLOP/s a device (assumed)",
            )
        )
    if config.rl is not None and "rl" in config.stages:
        samples = config.rl.prompts_per_step * config.rl.samples_per_prompt
        tokens = samples * config.limits.response_tokens * _MEAN_FILL
        passes = 2 if config.rl.kl.coefficient > 0 else 1
        score = passes * 2 * size.num_parameters * tokens
        rate = config.policy.world_size * hardware.train_tflops * 1e12
        decode = config.engine.replicas * hardware.decode_tokens_per_s
        found.append(
            StepTime(
                stage="rl",
                parts_s={
                    "rollout": tokens / decode,
                    "score": score / rate,
                    "train": flops_per_token * tokens / rate,
                    "sync": 2 * size.num_parameters / _SYNC_BYTES_PER_S,
                },
                basis=f"{tokens:.0f} tokens a step ({_MEAN_FILL:.0%} of the longest responses), "
                f"{hardware.decode_tokens_per_s:g} tokens/s an engine and "
                f"{hardware.train_tflops:g} TFLOP/s a device (assumed)",
            )
        )
    return tuple(found)
