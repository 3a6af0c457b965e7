"""A process that plays ranks for the tests: imports once, then runs one scenario after the other.

Not a test. `conftest.py` starts it with the address of a socket; it receives scenarios and answers
with what each action returned, or with the error that ended it.
"""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import numpy as np

from retool_trainer.cli import main as main_of_cli
from retool_trainer.config import OptimizerConfig, PolicyConfig
from retool_trainer.policy import Policy, Row, TokenBatch, nll
from retool_trainer.policy._microbatches import lay_out


def make_rows(seed: int, num_rows: int, vocab_size: int, longest: int = 60) -> list[Row]:
    """Rows of random ids, the first 8 tokens of each a prompt; weights make a token mean."""
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(12, longest + 1, num_rows)]
    masks = [np.arange(n) >= 8 for n in lengths]
    total = sum(int(mask.sum()) for mask in masks)
    return [
        Row(
            ids=rng.integers(0, vocab_size, n).astype(np.int32),
            mask=mask,
            weights=(mask / total).astype(np.float32),
            advantages=rng.normal(size=n).astype(np.float32),
        )
        for n, mask in zip(lengths, masks, strict=True)
    ]


def advantage_loss(batch: TokenBatch) -> Any:
    """A policy gradient with an entropy bonus: exercises both gradients of the predictions."""
    assert batch.advantages_BT is not None
    loss_BT = -batch.advantages_BT * batch.logprobs_BT - 0.01 * batch.entropy_BT
    return loss_BT, {"entropy": batch.entropy_BT.detach()}


def broken_loss(batch: TokenBatch) -> Any:
    """Not a number."""
    return batch.logprobs_BT * float("nan"), {}


LOSSES = {"nll": nll, "advantage": advantage_loss, "broken": broken_loss}


class Actions:
    """What a scenario may ask of a policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def set_optimizer(self, total_steps: int = 10, **config: Any) -> None:
        self._policy.set_optimizer(OptimizerConfig(**config), total_steps)

    def step(
        self, seed: int = 0, loss: str = "nll", num_rows: int = 10, vocab_size: int = 101
    ) -> dict[str, float]:
        return self._policy.step(make_rows(seed, num_rows, vocab_size), LOSSES[loss])

    def steps(self, count: int, first_seed: int = 0, **kwargs: Any) -> list[dict[str, float]]:
        return [self.step(seed=first_seed + i, **kwargs) for i in range(count)]

    def try_step(self, **kwargs: Any) -> str:
        """The error of a step that must fail on every rank."""
        try:
            self.step(**kwargs)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return f"{type(error).__name__}: {error}"
        return "no error"

    def logprobs(
        self,
        seed: int = 0,
        num_rows: int = 4,
        vocab_size: int = 101,
        temperature: float = 1.0,
        masked_only: bool = False,
    ) -> Any:
        rows = make_rows(seed, num_rows, vocab_size)
        return self._policy.logprobs(rows, temperature, masked_only=masked_only)

    def logits(self, seed: int = 0, num_rows: int = 4, vocab_size: int = 101) -> Any:
        import torch

        batch = lay_out(make_rows(seed, num_rows, vocab_size), masked_only=False, device="cpu")
        with torch.no_grad():
            return self._policy._model.module.logits(batch).numpy()

    def weights(self) -> dict[str, Any]:
        return {name: tensor.float().numpy().copy() for name, tensor in self._policy.weights()}

    def save(self, folder: Path) -> None:
        self._policy.save(folder)

    def load(self, folder: Path) -> None:
        self._policy.load(folder)

    def export(self, folder: Path) -> None:
        self._policy.export_hf(folder)


def play(scenario: dict[str, Any]) -> list[Any]:
    """Build the policy, do the actions, close it; or run one command of the command line."""
    if "command" in scenario:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main_of_cli(scenario["command"])
        return [(code, out.getvalue(), err.getvalue())]
    policy = Policy(
        scenario["hf"],
        policy=PolicyConfig(**{"num_threads": 1, **scenario["policy"]}),
        rank=scenario["rank"],
        world_size=scenario["world_size"],
        master_addr="127.0.0.1",
        master_port=scenario["port"],
        seed=0,
    )
    try:
        actions = Actions(policy)
        return [getattr(actions, name)(**kwargs) for name, kwargs in scenario["actions"]]
    finally:
        policy.close()


def main() -> None:
    with Client(sys.argv[1]) as connection:
        while True:
            scenario = connection.recv()
            if scenario is None:
                return
            try:
                answer = ("ok", play(scenario))
            except Exception as error:  # noqa: BLE001 - the test looks at it
                answer = (type(error).__name__, f"{error}\n{traceback.format_exc()}")
            connection.send(answer)


if __name__ == "__main__":
    main()
