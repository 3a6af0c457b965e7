"""What every stage works with: the run's config and folder, its workers, and its observer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool_trainer.config import RunConfig
from retool_trainer.observe import Observer
from retool_trainer.run_folder import RunFolder, read_json, replaced_folder, write_json
from retool_trainer.workers import Workers


@dataclass(slots=True, kw_only=True)
class Context:
    """One attempt at a run; a new one is made after a failure."""

    config: RunConfig
    folder: RunFolder
    observer: Observer
    workers: Workers
    decode: Callable[[Sequence[int]], str]
    """Token ids to text, control tokens shown; for people, never to encode again."""


def save_checkpoint(context: Context, stage: str, step: int, state: Mapping[str, Any]) -> None:
    """Write a checkpoint whole, and remove the oldest ones beyond `checkpoints.keep`."""
    target = context.folder.checkpoints / stage / f"step-{step:06d}"
    with replaced_folder(target) as temporary:
        context.workers.policy.save(temporary / "policy")
        write_json(temporary / "state.json", {"step": step, **state})
    for old in context.folder.checkpoint_dirs(stage)[: -context.config.checkpoints.keep]:
        shutil.rmtree(old)


def load_checkpoint(context: Context, stage: str) -> dict[str, Any] | None:
    """Load the newest checkpoint of a stage into the policy, and return its state."""
    found = context.folder.checkpoint_dirs(stage)
    if not found:
        return None
    context.workers.policy.load(found[-1] / "policy")
    return read_json(found[-1] / "state.json")


def newest_checkpoint_step(folder: RunFolder, stage: str) -> int:
    """The step of the newest checkpoint of a stage; 0 without one."""
    found = folder.checkpoint_dirs(stage)
    return read_json(found[-1] / "state.json")["step"] if found else 0


def export_model(context: Context, stage: str, wall_s: float) -> Path:
    """Write the stage's weights as a Hugging Face folder, which marks the stage as finished."""
    target = context.folder.models / stage
    context.workers.policy.export_hf(target)
    stages_file = context.folder.path / "stages.json"
    finished = read_json(stages_file) if stages_file.exists() else {}
    write_json(stages_file, {**finished, stage: {"wall_s": round(wall_s, 2)}})
    return target


def is_finished(folder: RunFolder, stage: str) -> bool:
    """The stage has been completed in this folder."""
    file = folder.path / "stages.json"
    return file.exists() and stage in read_json(file)
