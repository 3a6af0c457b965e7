"""Supervised fine-tuning: the token-mean loss on what the policy said in demonstrations."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from retool_data import TokenizeCounts, TokenSample, Trajectory, tokenize_all
from retool_rollout import Dialect
from retool_trainer.config import SftConfig, SftPhase
from retool_trainer.dialects import make_run_dialect
from retool_trainer.policy import nll

from ._context import Context, export_model, load_checkpoint, save_checkpoint
from ._prepare import PrepareError, data_file, model_folder, read_records
from ._rows import supervised_rows
from ._stream import Stream


def run_sft(context: Context) -> None:
    """Train through all phases and export `RUN/models/sft`; goes on from a checkpoint."""
    config = context.config.sft
    assert config is not None
    dialect = make_run_dialect(context.config, model_folder(context.config, context.folder))
    plan = _Plan(context, config, dialect)
    policy = context.workers.policy
    context.workers.rest_engines()
    policy.set_optimizer(config.optimizer, plan.total_steps)
    state = load_checkpoint(context, "sft") or {"step": 0, "wall_s": 0.0}
    began_s = time.monotonic() - state["wall_s"]
    with context.observer.stage("sft", total=plan.total_steps, done=state["step"]):
        for step, batch in plan.batches(after=state["step"]):
            step_began_s = time.monotonic()
            stats = policy.step(supervised_rows(batch), nll)
            step_s = time.monotonic() - step_began_s
            trained = sum(sample.num_trained for sample in batch)
            values = {
                "loss": stats["loss"],
                "grad_norm": stats["grad_norm"],
                "learning_rate": stats["learning_rate"],
                "tokens/trained": trained,
                "tokens/total": sum(len(sample.ids) for sample in batch),
                "rows/trained": len(batch),
                "rows/dropped_long": plan.num_too_long,
                "time/step_s": step_s,
                "throughput/tokens_per_s": trained / step_s,
                "epoch": plan.epochs,
            }
            last = step == plan.total_steps
            if step % config.checkpoint_every == 0 or last:
                values["loss/heldout"] = plan.heldout_loss()
            context.observer.step("sft", step, plan.total_steps, values)
            if step % config.checkpoint_every == 0 and not last:
                save_checkpoint(context, "sft", step, {"wall_s": time.monotonic() - began_s})
    export_model(context, "sft", time.monotonic() - began_s)


class _Plan:
    """Which rows are trained on in which step; a function of the config and the data alone."""

    def __init__(self, context: Context, config: SftConfig, dialect: Dialect) -> None:
        self._context, self._config = context, config
        self.num_too_long = 0
        self.epochs = 0.0
        self._rows: list[list[TokenSample]] = []
        self._steps: list[int] = []
        self._heldout: list[TokenSample] = []
        for phase in config.phases:
            rows = self._tokenized(phase, dialect)
            # The rows held out are those of the last phase: the data that training ends on.
            self._heldout = rows[: int(len(rows) * config.heldout_fraction)]
            kept = rows[len(self._heldout) :]
            self._rows.append(kept)
            epochs = phase.epochs or 0.0
            self._steps.append(phase.steps or math.ceil(len(kept) * epochs / config.batch_size))
        self.total_steps = sum(self._steps)

    def _tokenized(self, phase: SftPhase, dialect: Dialect) -> list[TokenSample]:
        trajectories = read_records(data_file(self._context.folder, phase.data), Trajectory)
        if self._context.config.offer_tools:
            specs = list(self._context.workers.rollouts.tool_specs())
            trajectories = [_with_tools(row, specs) for row in trajectories]
        counts = TokenizeCounts()
        # What no microbatch holds is dropped here, where it is counted and another row comes.
        limit = min(self._config.max_tokens, self._context.config.policy.tokens_per_microbatch)
        rows = list(tokenize_all(trajectories, dialect, max_tokens=limit, counts=counts))
        self.num_too_long += counts.too_long
        if not rows:
            raise PrepareError(
                f"data set {phase.data!r} has no row of at most {limit} tokens, the lower of "
                f"sft.max_tokens and policy.tokens_per_microbatch ({counts.too_long} are longer)"
            )
        return rows

    def batches(self, *, after: int) -> Iterator[tuple[int, Sequence[TokenSample]]]:
        """(step, rows) of every step beyond `after`."""
        step = 0
        for index, (rows, steps) in enumerate(zip(self._rows, self._steps, strict=True)):
            stream = Stream(rows, seed=self._context.config.seed * 1000 + index)
            for _ in range(steps):
                batch = stream.take(self._config.batch_size)
                step += 1
                self.epochs = stream.epochs
                if step > after:
                    yield step, batch

    def heldout_loss(self) -> float | None:
        """Mean negative log-probability of the held-out rows' trained tokens."""
        rows = self._heldout
        if not rows:
            return None
        logprobs = self._context.workers.policy.logprobs(supervised_rows(rows))
        total = sum(
            float(row_logprobs[list(map(bool, sample.mask))].sum())
            for row_logprobs, sample in zip(logprobs, rows, strict=True)
        )
        return -total / sum(sample.num_trained for sample in rows)


def _with_tools(row: Trajectory, specs: list[dict[str, object]]) -> Trajectory:
    """A trajectory that lists no tools gets those that the rollout's prompt will list."""
    return row if row.tool_specs else row.model_copy(update={"tools": _json(specs)})


def _json(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
