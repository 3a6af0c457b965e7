"""Turn a launch script of slime or vime into a configuration of ours."""

from ._convert import Converted, ImportArgsError, convert
from ._flags import FLAGS, Gone, Key

__all__ = ["FLAGS", "Converted", "Gone", "ImportArgsError", "Key", "convert"]
