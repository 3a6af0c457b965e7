"""Run user code in the child: compile, execute, show the last value, report how it ended.

Everything here runs next to hostile code and is believed by nobody: the zygote takes from the
report only what the program itself could print. Names of globals are plain on purpose: a program
that walks the frames finds nothing but this file.
"""

import ast
import builtins
import collections
import contextlib
import io
import json
import linecache
import os
import random
import signal
import struct
import sys
import traceback
import types
from typing import Any

from ._review import review_source

REPORT = struct.Struct(">iBII")  # exit code, flags, bytes of value, bytes of traceback
HAS_VALUE, HAS_TRACEBACK, REFUSED, CUT_VALUE, CUT_TRACEBACK = 1, 2, 4, 8, 16
MAX_TEXT_BYTES = 1 << 16
REFUSED_EXIT = 120
_turn = {"busy": False, "interrupted": False, "stdin": False}
_place: dict[str, Any] = {"scratch": "", "libraries": ()}
_SIZE = struct.Struct(">I")


def read_all(fd: int, size: int) -> bytes:
    """Read size bytes; empty when the other end is gone."""
    parts: list[bytes] = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_request(fd: int) -> tuple[dict[str, Any], list[bytes]] | None:
    size_bytes = read_all(fd, 4)
    if not size_bytes:
        return None
    body = read_all(fd, _SIZE.unpack(size_bytes)[0])
    (head_size,) = _SIZE.unpack_from(body)
    head = json.loads(body[4 : 4 + head_size])
    blobs: list[bytes] = []
    start = 4 + head_size
    for size in head.get("blobs", ()):
        blobs.append(body[start : start + size])
        start += size
    return head, blobs


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def open_streams() -> None:
    """Make the streams of programs, once for all children: each puts its own pipes behind them.

    Descriptors 1 and 2 must be pipes meanwhile: a stream asks its file once what it is.
    """
    # Unbuffered, as `python -u`: what was printed before a kill is already in the pipe.
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8", errors="replace"
    )
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = io.TextIOWrapper(
            io.FileIO(fd, "wb", closefd=False),  # type: ignore[arg-type]
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def reseed(seed: int | None) -> None:
    """Give this child its own random numbers: a fork inherits the parent's generators."""
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(None if seed is None else seed % 2**32)


def _place_files(names: list[str], blobs: list[bytes]) -> None:
    for name, blob in zip(names, blobs, strict=True):
        folder = os.path.dirname(name)
        if folder:
            os.makedirs(folder, exist_ok=True)
        with open(name, "wb") as file:
            file.write(blob)


def _place_stdin(data: bytes) -> None:
    if not data and not _turn["stdin"]:
        return
    _turn["stdin"] = bool(data)  # what an earlier turn did not read is not for this one
    name = ".stdin"
    with open(name, "wb") as file:
        file.write(data)
    fd = os.open(name, os.O_RDONLY)
    os.unlink(name)
    os.dup2(fd, 0)
    os.close(fd)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(
        io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8", errors="replace"
    )


def _is_user_file(name: str) -> bool:
    # The scratch is called /tmp, where this package or a library may lie outside the sandbox.
    return name.startswith(("<code", _place["scratch"])) and not name.startswith(
        _place["libraries"]
    )


def _keep_user_frames(exception: traceback.TracebackException, seen: set[int]) -> None:
    if id(exception) in seen:
        return
    seen.add(id(exception))
    exception.stack = traceback.StackSummary.from_list(
        [frame for frame in exception.stack if _is_user_file(frame.filename)]
    )
    for other in (exception.__cause__, exception.__context__, *(exception.exceptions or ())):
        if other is not None:
            _keep_user_frames(other, seen)


def _shorten(trace: types.TracebackType | None, keep: int = 50) -> None:
    """Cut the middle out of a traceback of a million frames: formatting it would take minutes."""
    last: collections.deque[types.TracebackType] = collections.deque(maxlen=keep)
    first_end: types.TracebackType | None = None
    count = 0
    while trace is not None:
        count += 1
        if count == keep:
            first_end = trace
        last.append(trace)
        trace = trace.tb_next
    if first_end is not None and count > 2 * keep:
        first_end.tb_next = last[0]


def _format(error: BaseException) -> str:
    try:
        _shorten(error.__traceback__)
        summary = traceback.TracebackException.from_exception(error, compact=True)
        _keep_user_frames(summary, set())
        return "".join(summary.format()).replace(f'File "{_place["scratch"]}', 'File "')
    except BaseException as failure:  # noqa: BLE001  (the exception's own class is user code)
        return f"{type(error).__name__}\n(its text could not be made: {type(failure).__name__})\n"


def _show(value: object) -> str | None:
    if value is None:
        return None
    text = repr(value)
    builtins._ = value  # type: ignore[attr-defined]  # as a REPL does
    sys.stdout.write(text + "\n")
    return text


def _writes(expression: ast.expr) -> bool:
    """`stream.write(...)` as the last line: its count of characters is nobody's result."""
    return (
        isinstance(expression, ast.Call)
        and isinstance(expression.func, ast.Attribute)
        and expression.func.attr in ("write", "writelines")
    )


def _execute(source: bytes, name: str, namespace: dict[str, Any]) -> str | None:
    text = source.decode("utf-8", "surrogatepass")
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(text, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec", dont_inherit=True), namespace)
        return None
    tree.body.pop()
    exec(compile(tree, name, "exec", dont_inherit=True), namespace)
    if _writes(last.value):
        exec(compile(ast.Module([last], []), name, "exec", dont_inherit=True), namespace)
        return None
    expression = ast.Expression(last.value)
    return _show(eval(compile(expression, name, "eval", dont_inherit=True), namespace))


def _exit_code(stop: SystemExit) -> int:
    code = stop.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(Exception):  # its text, and the stream, may be user code
        sys.stderr.write(f"{code}\n")
    return 1


def _on_interrupt(*_: object) -> None:
    """The turn's time is up: end the user's code, keep the variables."""
    if _turn["busy"]:
        _turn["interrupted"] = True
        raise KeyboardInterrupt


def _run(source: bytes, name: str, namespace: dict[str, Any]) -> tuple[int, str | None, str | None]:
    value: str | None = None
    trace: str | None = None
    code = 0
    try:
        _turn["busy"] = True
        value = _execute(source, name, namespace)
        _turn["busy"] = False
    except SystemExit as stop:
        _turn["busy"] = False
        code = _exit_code(stop)
    except BaseException as error:  # noqa: BLE001  (whatever the program raised is its result)
        _turn["busy"] = False
        code = 1
        trace = None if _turn["interrupted"] else _format(error)
    try:
        if trace is not None:
            sys.stderr.write(trace)
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110  (the program closed or replaced its own streams)
        pass
    return code, value, trace


def _cut(text: str | None) -> bytes:
    """Its bytes; more than MAX_TEXT_BYTES when the middle is missing."""
    if text is None:
        return b""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= MAX_TEXT_BYTES:
        return data
    half = MAX_TEXT_BYTES // 2
    return data[:half] + b"\n[...]\n" + data[-half:]


def _rehearse() -> None:
    """Copy the pages that every program touches now, while a spare waits, and not on its time."""
    json.loads('{"id": 1, "limits": {"wall_time_s": 1.5, "cpu_time_s": null}, "files": ["a"]}')
    _run(b"print(end='')\nsum(range(3))\nNone", "<code>", {"__builtins__": builtins})


def main(link: int, session: bool) -> None:
    """Serve one request, or every turn of a session, then leave the process."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    sys.argv = ["main.py"]
    _place["scratch"] = f"{os.getcwd()}/"
    _place["libraries"] = tuple(f"{path}/" for path in (os.path.dirname(__file__), *sys.path))
    sys.path.append(os.getcwd())  # last: a file of the program never shadows a library
    if session:
        signal.signal(signal.SIGINT, _on_interrupt)
    else:
        _rehearse()
    turn = 0
    while True:
        request = read_request(link)
        if request is None:
            os._exit(0)
        head, blobs = request
        turn += 1
        _turn["interrupted"] = False
        if head.get("seed") is not None:
            reseed(head["seed"])
        code, value, trace, refused = 1, None, None, False
        try:
            _place_stdin(blobs[1])
            _place_files(head.get("files", []), blobs[2:])
        except OSError as error:
            trace = f"OSError: the files of the run do not fit into the scratch: {error.strerror}\n"
            sys.stderr.write(trace)
        else:
            name = f"<code-{turn}>" if session else "<code>"
            policy = head.get("policy")
            reason = policy and review_source(blobs[0].decode("utf-8", "replace"), policy)
            if head.get("review_only"):
                code, value, refused = 0, reason or None, bool(reason)
            elif reason:
                code, value, refused = REFUSED_EXIT, reason, True
            else:
                code, value, trace = _run(blobs[0], name, namespace)
        del request, head, blobs
        value_bytes, trace_bytes = _cut(value), _cut(trace)
        flags = (value is not None) * HAS_VALUE + (trace is not None) * HAS_TRACEBACK
        flags += refused * REFUSED
        flags += (len(value_bytes) > MAX_TEXT_BYTES) * CUT_VALUE
        flags += (len(trace_bytes) > MAX_TEXT_BYTES) * CUT_TRACEBACK
        body = REPORT.pack(code, flags, len(value_bytes), len(trace_bytes))
        body += value_bytes + trace_bytes
        try:
            _write_all(link, _SIZE.pack(len(body)) + body)
        except OSError:
            os._exit(code)
        if not session:
            os._exit(code)
