"""Is this machine ready for that configuration? Ten groups of checks, read-only."""

from ._doctor import examine, render
from ._finding import GROUPS, Finding
from ._machine import LocalMachine, Machine, Reply

__all__ = ["GROUPS", "Finding", "LocalMachine", "Machine", "Reply", "examine", "render"]
