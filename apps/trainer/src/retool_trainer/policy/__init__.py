"""The policy: a dense decoder on Megatron-core that is trained by rows of tokens."""

from ._convert import Converted, convert
from ._hf_config import ModelDims, read_dims
from ._policy import Policy
from ._random_init import make_random_hf
from ._reference import Reference
from ._rows import Row, TokenBatch, TokenLoss, nll

__all__ = [
    "Converted",
    "ModelDims",
    "Policy",
    "Reference",
    "Row",
    "TokenBatch",
    "TokenLoss",
    "convert",
    "make_random_hf",
    "nll",
    "read_dims",
]
