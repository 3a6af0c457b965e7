"""Inside a worker: take a question, answer it, take the next."""

import json
import socket
import sys
import threading

from ._compare import Symbolic
from ._equal import Verdict, can_read, compare_texts
from ._math_verify import math_verify_agrees
from ._symbolic import same_symbolically, solve_inequality

# 3,000 brackets are 6,000 levels and about 35,000 Python frames.
_MAX_DEPTH = 10_000
_RECURSION_LIMIT = 250_000
STACK_BYTES = 128 * 2**20

TAKEN = b"+"
"""Sent when a question was read: its clock starts."""
GOLD_READ = b">"
"""Sent when the gold was read: what takes long from here is the answer."""


def serve(connection: socket.socket) -> None:
    """Answer questions until the other side hangs up, on a stack deep enough for any answer."""
    sys.setrecursionlimit(_RECURSION_LIMIT)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_loop, args=(connection,))
    thread.start()
    thread.join()


def _loop(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            connection.sendall(TAKEN)
            reply = _answer(connection, *json.loads(line))
            connection.sendall(json.dumps(reply).encode() + b"\n")


def _answer(
    connection: socket.socket, pred: str, gold: str, decimal_places: int
) -> dict[str, str | bool | None]:
    try:
        can_read(gold, max_depth=_MAX_DEPTH)
        connection.sendall(GOLD_READ)
        verdict = compare_texts(
            pred,
            gold,
            decimal_places=decimal_places,
            max_depth=_MAX_DEPTH,
            symbolic=Symbolic(same_symbolically, solve_inequality),
        )
        if verdict.same is None and not verdict.gold_unparsable:
            verdict = Verdict(math_verify_agrees(pred, gold), "math_verify")
    except (MemoryError, SystemError):  # deep in C, the interpreter may lose the first
        return {"error": "out_of_memory"}
    except Exception as error:  # noqa: BLE001 - sympy may raise anything on an answer's terms
        return {"error": f"{type(error).__name__}: {error}"[:500]}
    return _as_json(verdict)


def _as_json(verdict: Verdict) -> dict[str, str | bool | None]:
    return {
        "same": verdict.same,
        "layer": verdict.layer,
        "gold_unparsable": verdict.gold_unparsable,
    }
