"""A whole run: prepare, SFT, evaluate, RL, evaluate, export, summary; resumed where it stopped."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from retool_rollout import Tokenizer

from .config import RunConfig
from .errors import RunRefusedError
from .observe import Console, Observer, duration
from .run_folder import RunFolder, read_json
from .stages import (
    Context,
    evaluate,
    is_finished,
    model_folder,
    newest_checkpoint_step,
    prepare,
    run_rl,
    run_sft,
    sample_lines,
    summarise,
    table_lines,
)
from .workers import WorkerError, Workers, check_cluster, cluster

logger = logging.getLogger(__name__)

# Failures in a row that brought the run no new checkpoint: then it is no accident any more.
_MAX_FAILURES = 3
_RUN_STAGE = {"sft": run_sft, "rl": run_rl}


def run(config: RunConfig, run_dir: Path, *, fresh: bool = False) -> dict[str, Any]:
    """Run every stage that is not finished yet and return the summary.

    Raises:
        RunFolderError: The folder belongs to another configuration or another process.
        ClusterError: Ray could not be had.
        PrepareError: A model or a data set cannot be used.
        EngineDesyncError: An engine does not hold the policy's weights.
        WorkerError: Workers kept dying.
    """
    began_s = time.monotonic()
    folder = RunFolder(run_dir)
    with folder.lock():
        is_new = folder.open(config, fresh=fresh)
        console = Console()
        if folder.summary_file.exists() and all(is_finished(folder, s) for s in config.stages):
            console.line(f"{run_dir} is finished; --fresh starts it again")
            _show(config, folder, console)
            return read_json(folder.summary_file)
        try:
            check_cluster(config)
            console.line(f"prepare {config.name}: model and data in {run_dir}")
            prepare(config, folder)
        except RunRefusedError:
            if is_new:  # the corrected config is another one, and would be refused
                folder.clear()
            raise
        failures, progress = 0, _progress(config, folder)
        while True:
            try:
                with cluster(config):
                    _stages(config, folder, console)
                break
            except WorkerError as error:
                reached = _progress(config, folder)
                failures, progress = (0 if reached > progress else failures + 1), reached
                if failures == _MAX_FAILURES:
                    raise
                console.line(f"a worker failed ({error}); going on from the last checkpoint")
        summary = summarise(config, folder, time.monotonic() - began_s)
        _show(config, folder, console)
        console.line(f"{duration(time.monotonic() - began_s)} in all")
        return summary


def _stages(config: RunConfig, folder: RunFolder, console: Console) -> None:
    """One attempt at everything that is left to do."""
    resumed_at = next(
        (
            (stage, newest_checkpoint_step(folder, stage))
            for stage in config.stages
            if not is_finished(folder, stage)
        ),
        None,
    )
    with (
        Observer(folder.path, config, resumed_at=resumed_at, console=console) as observer,
        Workers(config, _start_model(config, folder), folder.path / "logs") as workers,
    ):
        tokenizer = Tokenizer.load(model_folder(config, folder))
        context = Context(
            config=config,
            folder=folder,
            observer=observer,
            workers=workers,
            decode=tokenizer.decode,
        )
        if "sft" in config.stages and not is_finished(folder, "sft"):
            _evaluate_once(context, "baseline")
        for stage in config.stages:
            if not is_finished(folder, stage):
                _RUN_STAGE[stage](context)
            if not (folder.evaluations / f"{stage}.json").exists():
                workers.load_engines(folder.models / stage, weight_version=0)
                step = config.rl.steps if stage == "rl" and config.rl else 0
                _evaluate_once(context, stage, step=step)


def _evaluate_once(context: Context, of: str, *, step: int = 0) -> None:
    if not context.config.evaluation.sets or (context.folder.evaluations / f"{of}.json").exists():
        return
    results = evaluate(context, of, step=step)
    shown = ", ".join(
        f"{name} {result['accuracy']:.3f} (tool use {result['tool_use']:.0%})"
        for name, result in results.items()
    )
    context.observer.console.line(f"evaluate {of}: accuracy on {shown}")


def _start_model(config: RunConfig, folder: RunFolder) -> Path:
    """The weights to load first: those of the last finished stage, or the first ones."""
    for stage in reversed(config.stages):
        if is_finished(folder, stage):
            return folder.models / stage
    if "sft" not in config.stages and config.rl and config.rl.start_from:
        return Path(config.rl.start_from)
    if "sft" not in config.stages and is_finished(folder, "sft"):
        return folder.models / "sft"
    return model_folder(config, folder)


def _progress(config: RunConfig, folder: RunFolder) -> tuple[int, ...]:
    """Grows with every checkpoint and every finished stage."""
    return tuple(
        10**9 if is_finished(folder, stage) else newest_checkpoint_step(folder, stage)
        for stage in config.stages
    )


def _show(config: RunConfig, folder: RunFolder, console: Console) -> None:
    for line in (*table_lines(config, folder), "", *sample_lines(config, folder), ""):
        console.line(line)
    console.line("written:")
    for what, path in (
        ("figures", folder.summary_file),
        ("metrics of every step", folder.metrics_file),
        ("every trajectory", folder.trajectories),
        ("models for transformers", folder.models),
        ("resolved configuration", folder.config_file),
    ):
        if path.exists():
            console.line(f"  {what:<24} {path}")
