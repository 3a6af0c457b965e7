"""What generates: the embedded torch engine, and vLLM servers as supervised processes."""

from ._continuing import ContinuingEngine
from ._embedded import EmbeddedEngine
from ._handle import EngineHandle, open_engine
from ._server import EngineServerError, VllmServer

__all__ = [
    "ContinuingEngine",
    "EmbeddedEngine",
    "EngineHandle",
    "EngineServerError",
    "VllmServer",
    "open_engine",
]
