"""Run one untrusted Python program and say how it ended."""

from ._errors import IsolationUnavailable, QueueFull, RunLost, SandboxError
from ._interpreter import CODE_INTERPRETER_SPEC, code_interpreter
from ._policy import Policy
from ._remote import RemoteSandbox, RemoteSession
from ._sandbox import Sandbox, Session
from ._sync import SyncSandbox, SyncSession
from ._tools import ToolRegistry, ToolReply, ToolSession
from ._types import Level, Limits, Outcome, RunResult

__all__ = [
    "CODE_INTERPRETER_SPEC",
    "IsolationUnavailable",
    "Level",
    "Limits",
    "Outcome",
    "Policy",
    "QueueFull",
    "RemoteSandbox",
    "RemoteSession",
    "RunLost",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "Session",
    "SyncSandbox",
    "SyncSession",
    "ToolRegistry",
    "ToolReply",
    "ToolSession",
    "code_interpreter",
]
