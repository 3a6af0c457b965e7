"""The run's dialect: one object for the prompt, the SFT rows and the rollouts."""

from __future__ import annotations

from pathlib import Path

from retool_rollout import Dialect, Tokenizer, make_dialect

from .config import RunConfig


def make_run_dialect(config: RunConfig, model: Path) -> Dialect:
    """Build the dialect that `config` names on the tokenizer of a Hugging Face folder."""
    return make_dialect(
        config.dialect,
        Tokenizer.load(model),
        tool_specs=None if config.offer_tools else (),
        system_prompt=config.system_prompt,
    )
