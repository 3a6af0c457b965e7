"""Reinforcement learning: draw trajectories, update the policy, bring the weights to the engine."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from retool_data import Problem
from retool_trainer.algorithms import make_token_loss
from retool_trainer.config import RlConfig
from retool_trainer.observe import SampleRecord, policy_metrics, sample_metrics

from ._context import Context, export_model, load_checkpoint, save_checkpoint
from ._draw import Batch
from ._evaluate import evaluate
from ._prepare import data_file, read_records
from ._rows import reinforcement_rows, scored_rows
from ._schedule import open_schedule
from ._scoring import shuffled, to_records, with_advantages
from ._stream import Stream
from ._sync import WeightSync


def run_rl(context: Context) -> None:
    """Train for `rl.steps` steps and export `RUN/models/rl`; continues from the newest checkpoint."""
    config = context.config.rl
    assert config is not None
    problems = read_records(data_file(context.folder, config.problems), Problem)
    policy = context.workers.policy
    policy.set_optimizer(config.optimizer, config.steps * config.minibatches)
    state = load_checkpoint(context, "rl") or {"step": 0, "position": 0, "wall_s": 0.0}
    began_s = time.monotonic() - state["wall_s"]
    stream = Stream(problems, seed=context.config.seed, position=state["position"])
    sync = WeightSync(context.config, context.workers, problems)
    try:
        sync.publish(state["step"])
        with (
            open_schedule(context.config, context.workers.rollouts, stream, state) as schedule,
            context.observer.stage("rl", total=config.steps, done=state["step"]),
        ):
            for step in range(state["step"] + 1, config.steps + 1):
                step_began_s = time.monotonic()
                batch, waiting = schedule.next_batch(step)
                values = _train(context, config, batch, step) | waiting
                schedule.before_sync()
                sync_began_s = time.monotonic()
                values["engine/probe_gap"] = sync.publish(step)
                values["engine/weight_version"] = step
                schedule.after_sync(step)
                now_s = time.monotonic()
                step_s = now_s - step_began_s
                values |= {
                    "time/sync_s": now_s - sync_began_s,
                    "time/step_s": step_s,
                    "throughput/tokens_per_s": batch.num_sampled_tokens / step_s,
                    "throughput/samples_per_s": values["samples/total"] / step_s,
                }
                context.observer.step("rl", step, config.steps, values)
                last = step == config.steps
                if config.evaluate_every and step % config.evaluate_every == 0 and not last:
                    evaluate(context, "rl", step=step, keep=False)
                if step % config.checkpoint_every == 0 and not last:
                    save_checkpoint(
                        context,
                        "rl",
                        step,
                        {"position": batch.position, "wall_s": time.monotonic() - began_s},
                    )
        export_model(context, "rl", time.monotonic() - began_s)
    finally:
        sync.close()


def _train(context: Context, config: RlConfig, batch: Batch, step: int) -> dict[str, float]:
    """Update the policy on a batch, keep its trajectories, and return the step's metrics."""
    groups = batch.groups
    if config.reward.shuffle:
        groups = shuffled(groups, seed=context.config.seed * 7919 + step)
    records = with_advantages(to_records(groups, step, context.decode), config)
    chosen = [record for record in records if record.trained]
    policy = context.workers.policy
    began_s = time.monotonic()
    own = (
        policy.logprobs(
            scored_rows([r.ids for r in chosen], [r.mask for r in chosen]), config.temperature
        )
        if chosen
        else []
    )
    scored = {
        (record.group, record.sample): replace(record, policy_logprobs=tuple(map(float, logprobs)))
        for record, logprobs in zip(chosen, own, strict=True)
    }
    records = [scored.get((record.group, record.sample), record) for record in records]
    logprobs_s = time.monotonic() - began_s
    began_s = time.monotonic()
    stats = _update(context, config, list(scored.values()), step)
    train_s = time.monotonic() - began_s
    context.observer.samples("rl", step, records)
    values = sample_metrics(records, step=step - 1) | stats
    trained_tokens = sum(record.num_sampled for record in scored.values())
    return values | {
        "tokens/trained": trained_tokens,
        "rows/trained": len(scored),
        "groups/dropped": batch.num_dropped_groups,
        "groups/extra_batches": batch.num_extra_batches,
        "epoch": batch.epochs,
        "time/rollout_s": batch.rollout_s,
        "time/logprobs_s": logprobs_s,
        "time/train_s": train_s,
        "throughput/rollout_tokens_per_s": batch.num_sampled_tokens / max(batch.rollout_s, 1e-9),
        "throughput/train_tokens_per_s": sum(len(r.ids) for r in scored.values())
        / max(train_s, 1e-9),
    }


def _update(
    context: Context, config: RlConfig, records: Sequence[SampleRecord], step: int
) -> dict[str, float]:
    """One optimizer step per minibatch; the statistics are means over the minibatches."""
    # Trajectories of one group are spread over the minibatches.
    order = list(records)
    random.Random(f"{context.config.seed} {step}").shuffle(order)
    loss = make_token_loss(config)
    totals: list[Mapping[str, float]] = []
    for index in range(config.minibatches):
        part = order[index :: config.minibatches]
        if not part:
            continue  # every group was flat: there is nothing to learn from in this step
        rows = reinforcement_rows(
            part,
            aggregation=config.aggregation,
            constant_tokens=context.config.limits.response_tokens,
        )
        totals.append(context.workers.policy.step(rows, loss, config.temperature))
    if not totals:
        return {"updates": 0}
    means = {name: sum(stats[name] for stats in totals) / len(totals) for name in totals[0]}
    named = {name: means.pop(name) for name in ("loss", "grad_norm") if name in means} | {
        "learning_rate": totals[-1]["learning_rate"],
        "rows/dropped_long": sum(stats.get("rows_dropped", 0) for stats in totals),
        "updates": len(totals),
    }
    return named | policy_metrics(means)
