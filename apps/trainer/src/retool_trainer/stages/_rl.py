"""Reinforcement learning: draw trajectories, update the policy, bring the weights to the engine."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import psutil

from retool_data import Problem
from retool_trainer.algorithms import make_token_loss
from retool_trainer.config import RlConfig
from retool_trainer.observe import SampleRecord, policy_metrics, sample_metrics

from ._context import Context, export_model, load_checkpoint, save_checkpoint
from ._draw import Batch, draw_batch
from ._evaluate import evaluate
from ._prepare import data_file, read_records
from ._rows import reinforcement_rows, scored_rows
from ._schedule import open_schedule
from ._scoring import with_advantages, with_kl_reward
from ._stream import Stream
from ._sync import WeightSync

# What `policy.step` reports besides the means of the loss's own statistics.
_STEP_FIGURES = frozenset(
    ("loss", "grad_norm", "learning_rate", "tokens", "sampled_tokens", "rows_dropped")
)


def run_rl(context: Context) -> None:
    """Train for `rl.steps` steps and export `RUN/models/rl`; goes on from a checkpoint."""
    config = context.config.rl
    assert config is not None
    problems = read_records(data_file(context.folder, config.problems), Problem)
    policy = context.workers.policy
    if config.kl.coefficient > 0:
        policy.keep_reference()
    policy.set_optimizer(config.optimizer, config.steps * config.minibatches)
    state = load_checkpoint(context, "rl") or {"step": 0, "position": 0, "wall_s": 0.0}
    began_s = time.monotonic() - state["wall_s"]
    stream = Stream(problems, seed=context.config.seed, position=state["position"])

    def draw(step: int) -> Batch:
        return draw_batch(context.config, context.workers, stream, step, context.decode)

    sync = WeightSync(context.config, context.workers, problems)
    try:
        sync.publish(state["step"])
        with (
            open_schedule(context.config, draw, context.workers.rollouts.kill) as schedule,
            context.observer.stage("rl", total=config.steps, done=state["step"]),
        ):
            for step in range(state["step"] + 1, config.steps + 1):
                step_began_s = time.monotonic()
                batch, waiting = schedule.next_batch(step)
                values = _train(context, config, batch, step) | waiting
                sync_began_s = time.monotonic()
                with schedule.syncing():
                    values["engine/probe_gap"] = sync.publish(step)
                values["engine/weight_version"] = step
                values["engine/restarts"] = context.workers.servers.num_restarts
                values["memory/driver_mib"] = psutil.Process().memory_info().rss / 2**20
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
    began_s = time.monotonic()
    context.workers.rest_engines()
    limit = context.config.policy.tokens_per_microbatch
    too_long = {_key(record) for record in batch.records if len(record.ids) > limit}
    # A trajectory that no microbatch can hold takes no part: dropped by rule, and counted.
    records = [
        replace(record, reward=None) if _key(record) in too_long else record
        for record in batch.records
    ]
    kl_in_reward = config.kl.coefficient > 0 and config.kl.where == "reward"
    if kl_in_reward:
        scored = [record for record in records if record.reward is not None]
        records = _merged(records, with_kl_reward(_with_logprobs(context, scored), config))
    records = with_advantages(records, config)
    chosen = [record for record in records if record.trained]
    if not kl_in_reward:
        chosen = _with_logprobs(context, chosen)
        records = _merged(records, chosen)
    logprobs_s = time.monotonic() - began_s
    began_s = time.monotonic()
    stats = {} if config.rollout_only else _update(context, config, chosen, step)
    train_s = time.monotonic() - began_s
    context.observer.samples("rl", step, records)
    num_trained = sum(len(record.ids) for record in chosen)
    return {
        **sample_metrics(records, step=step - 1),
        **stats,
        "tokens/trained": sum(record.num_sampled for record in chosen),
        "rows/trained": len(chosen),
        "rows/dropped_long": len(too_long),
        "groups/dropped": batch.num_dropped_groups,
        "groups/extra_batches": batch.num_extra_batches,
        "epoch": batch.epochs,
        "time/rollout_s": batch.rollout_s,
        "time/logprobs_s": logprobs_s,
        "time/train_s": train_s,
        "throughput/rollout_tokens_per_s": batch.num_sampled_tokens / max(batch.rollout_s, 1e-9),
        "throughput/train_tokens_per_s": num_trained / max(train_s, 1e-9),
    }


def _with_logprobs(context: Context, records: Sequence[SampleRecord]) -> list[SampleRecord]:
    """Add the policy's log-probabilities, and the reference's where the KL term wants them."""
    config = context.config.rl
    assert config is not None
    if not records:
        return []
    rows = scored_rows([r.ids for r in records], [r.mask for r in records])
    policy = context.workers.policy
    own = policy.logprobs(rows, config.temperature)
    reference = (
        policy.reference_logprobs(rows, config.temperature) if config.kl.coefficient > 0 else own
    )
    return [
        replace(
            record,
            policy_logprobs=tuple(map(float, own_T)),
            reference_logprobs=tuple(map(float, reference_T))
            if config.kl.coefficient > 0
            else None,
        )
        for record, own_T, reference_T in zip(records, own, reference, strict=True)
    ]


def _key(record: SampleRecord) -> tuple[int, int]:
    return record.group, record.sample


def _merged(records: Sequence[SampleRecord], changed: Sequence[SampleRecord]) -> list[SampleRecord]:
    """Put changed records in the place of the old ones."""
    by_key = {_key(record): record for record in changed}
    return [by_key.get(_key(record), record) for record in records]


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
    return {
        "loss": means["loss"],
        "grad_norm": means["grad_norm"],
        "learning_rate": totals[-1]["learning_rate"],
        "updates": len(totals),
        **policy_metrics({name: means[name] for name in means if name not in _STEP_FIGURES}),
    }
