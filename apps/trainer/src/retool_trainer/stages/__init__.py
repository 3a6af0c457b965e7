"""The stages of a run, in order: prepare, SFT, evaluate, RL, evaluate, summary."""

from ._context import Context, is_finished, newest_checkpoint_step
from ._evaluate import evaluate
from ._prepare import PrepareError, model_folder, prepare
from ._rl import run_rl
from ._sft import run_sft
from ._summary import sample_lines, summarise, table_lines
from ._sync import EngineDesyncError

__all__ = [
    "Context",
    "EngineDesyncError",
    "PrepareError",
    "evaluate",
    "is_finished",
    "model_folder",
    "newest_checkpoint_step",
    "prepare",
    "run_rl",
    "run_sft",
    "sample_lines",
    "summarise",
    "table_lines",
]
