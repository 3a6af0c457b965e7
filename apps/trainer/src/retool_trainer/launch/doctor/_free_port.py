"""A port that is free now."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Ask the system for one on the loopback; another process could take it before its use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
