"""Run one untrusted Python program and say how it ended."""

from ._errors import IsolationUnavailable, QueueFull, RunLost, SandboxError
from ._interpreter import CODE_INTERPRETER_SPEC, code_interpreter
from ._sandbox import Sandbox, Session
from ._tools import ToolRegistry, ToolReply, ToolSession
from ._types import Level, Limits, Outcome, RunResult

__all__ = [
    "CODE_INTERPRETER_SPEC",
    "IsolationUnavailable",
    "Level",
    "Limits",
    "Outcome",
    "QueueFull",
    "RunLost",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "Session",
    "ToolRegistry",
    "ToolReply",
    "ToolSession",
    "code_interpreter",
]
