"""Bring the policy's weights to the engines, and prove on a probe that they arrived.

An update that silently did not load (vllm-ascend#16770) or loaded in half trains on another
model's samples and looks like slow learning. So after every update the engine continues a few
fixed prompts, and its log-probabilities must be the policy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from retool_data import Problem
from retool_trainer.config import RunConfig
from retool_trainer.errors import RunFailedError
from retool_trainer.weights import DiskSync
from retool_trainer.workers import Workers

from ._rows import scored_rows

_PROBE_PROBLEMS = 4
_PROBE_TOKENS = 16


class EngineDesyncError(RunFailedError):
    """The engine does not hold the policy's weights."""


class WeightSync:
    """Publishes weights and checks each publication."""

    def __init__(self, config: RunConfig, workers: Workers, problems: Sequence[Problem]) -> None:
        self._config, self._workers = config, workers
        # One for each server at least: the one that was not asked would be the stale one.
        count = max(_PROBE_PROBLEMS, config.engine.replicas)
        chosen = [problems[index % len(problems)] for index in range(count)]
        self._prompts = workers.rollouts.prompt_ids(chosen)
        self._disk = DiskSync(config.engine.sync_dir)

    def publish(self, weight_version: int) -> float:
        """Send the weights and return the largest log-probability gap on the probe, in nats.

        Raises:
            EngineDesyncError: The gap is above `engine.probe_tolerance`.
        """
        if self._config.engine.sync == "broadcast":
            self._workers.broadcast(weight_version)
        else:
            folder = self._disk.next_folder(weight_version)
            self._workers.policy.export_hf(folder)
            self._workers.load_engines(folder, weight_version)
            self._disk.published(folder)
        return self._verify(weight_version)

    def _verify(self, weight_version: int) -> float:
        # Another draw each time: an engine that repeats old answers cannot pass.
        seed = self._config.seed * 100_003 + weight_version
        generations = self._workers.rollouts.generate(self._prompts, _PROBE_TOKENS, seed)
        rows = scored_rows(
            [
                (*prompt, *generation.ids)
                for prompt, generation in zip(self._prompts, generations, strict=True)
            ],
            [
                [0] * len(prompt) + [1] * len(generation.ids)
                for prompt, generation in zip(self._prompts, generations, strict=True)
            ],
        )
        logprobs = self._workers.policy.logprobs(rows)
        gap = 0.0
        for prompt, generation, own in zip(self._prompts, generations, logprobs, strict=True):
            for index, logprob in enumerate(generation.logprobs):
                difference = abs(logprob - float(own[len(prompt) + index]))
                gap = max(gap, difference if math.isfinite(difference) else math.inf)
        tolerance = self._config.engine.probe_tolerance
        if gap > tolerance:
            raise EngineDesyncError(
                f"after weight version {weight_version} the engine's log-probabilities differ from "
                f"the policy's by up to {gap:.3g} nats, engine.probe_tolerance allows "
                f"{tolerance:g}: the engine holds stale or half-loaded weights (in bf16 a larger "
                "tolerance is normal)"
            )
        return gap

    def close(self) -> None:
        """Remove the folder of weights."""
        self._disk.close()
