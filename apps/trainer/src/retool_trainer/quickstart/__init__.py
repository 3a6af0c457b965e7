"""The quickstart's own problems, demonstrations and tokenizer: a task for a laptop CPU."""

from ._demonstrations import Demonstration, clean_demonstration, copy_exercise, mixed_demonstration
from ._problems import ArithmeticProblem, heldout_problems, train_problems
from ._tokenizer import PAD_TOKEN, build_tokenizer

__all__ = [
    "PAD_TOKEN",
    "ArithmeticProblem",
    "Demonstration",
    "build_tokenizer",
    "clean_demonstration",
    "copy_exercise",
    "heldout_problems",
    "mixed_demonstration",
    "train_problems",
]
