"""The workers: bounded, killed by pid, respawned, and gone in the end."""

import asyncio
import fcntl
import json
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retool_reward import AsyncGrader, GradeConfig, Item, Reason, grade
from retool_reward._grade import close_shared_pools, shared_pool
from retool_reward._pool import (
    _PATIENCE,
    Asked,
    GraderError,
    Pool,
    Server,
    Worker,
    _Clock,
    _received,
)

# Needs sympy, and takes it for ever.
ENDLESS = r"\sum_{k=1}^{\infty} \frac{\sin(k^2)}{k^3 + \cos k}"
NEEDS_SYMPY = r"\sum_{k=1}^{\infty} 2^{-k}"
DEEP = r"\frac{1}{" * 300 + "2" + "}" * 300
FEW = GradeConfig(symbolic_time_s=0.3)


def box(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def children() -> set[int]:
    """The processes below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
            except OSError:
                continue
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(1, 512) as one:
        yield one


def ask(pool: Pool, pred: str, gold: str, time_s: float = 20.0) -> Asked:
    return pool.ask(pred, gold, decimal_places=4, time_s=time_s)


def test_sums_limits_integrals_and_deep_fractions_are_decided_in_a_worker() -> None:
    config = GradeConfig(symbolic_time_s=20.0)
    for answer, gold, verdict in (
        (NEEDS_SYMPY, "1", True),
        (NEEDS_SYMPY, "2", False),
        (r"\int_0^1 x^2 + 1 \, dx", r"\frac43", True),
        (r"\lim_{x \to 0} \frac{\sin x}{x}", "1", True),
        (r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}", True),
        (r"\sum_{k=1}^{n} k", r"\frac{n(n-1)}{2}", False),
        (DEEP, "2", True),
        (DEEP, "3", False),
    ):
        found = grade(box(answer), gold, config)
        assert (found.correct, found.path) == (verdict, "symbolic"), (answer, found)


def test_a_question_that_takes_too_long_is_wrong_and_its_worker_dies(pool: Pool) -> None:
    ask(pool, NEEDS_SYMPY, "1")
    before = pool_pids(pool)
    asked = pool.ask(ENDLESS, "42", decimal_places=4, time_s=0.2)
    assert asked.reason is Reason.TIMEOUT
    assert before.isdisjoint(children())
    assert pool.ask(NEEDS_SYMPY, "1", decimal_places=4, time_s=20.0).reason is Reason.MATCH
    assert pool_pids(pool) != before


def pool_pids(pool: Pool) -> set[int]:
    return {worker.pid for worker in pool._workers}


def test_a_worker_that_died_while_idle_costs_no_question(pool: Pool) -> None:
    ask(pool, NEEDS_SYMPY, "1")
    (pid,) = pool_pids(pool)
    os.kill(pid, 9)
    assert ask(pool, NEEDS_SYMPY, "1").reason is Reason.MATCH


def server_of(pool: Pool) -> Server:
    server = pool._server
    assert server is not None
    return server


def test_a_fork_server_that_died_is_replaced_and_costs_no_question(pool: Pool) -> None:
    ask(pool, NEEDS_SYMPY, "1")
    server = server_of(pool)
    server._process.kill()
    server._process.wait()
    assert ask(pool, NEEDS_SYMPY, "1").reason is Reason.MATCH
    assert server_of(pool) is not server


def test_a_fork_server_that_does_not_answer_is_replaced(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retool_reward._pool._CONTROL_TIME_S", 0.3)
    ask(pool, NEEDS_SYMPY, "1")
    server = server_of(pool)
    os.kill(server._process.pid, signal.SIGSTOP)
    with pytest.raises(GraderError, match="did not kill"):
        pool._workers[0].kill()
    assert ask(pool, NEEDS_SYMPY, "1").reason is Reason.MATCH
    assert not Path(f"/proc/{server._process.pid}").exists()


def test_a_process_with_thousands_of_open_files_can_ask() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2_048), limits[1]))
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, 1_100)
            with socket.socket(fileno=number) as high:
                assert _received(high, 0.01) is None
                theirs.sendall(b"+")
                assert _received(high, 1.0) == b"+"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_closing_does_not_wait_for_a_forked_process(pool: Pool) -> None:
    ask(pool, NEEDS_SYMPY, "1")
    server = server_of(pool)
    # What forks without Python's knowledge keeps a copy of the socket, as this does.
    with socket.socket(fileno=os.dup(server._control.fileno())):
        started = time.monotonic()
        pool.close()
        assert time.monotonic() - started < 10


def pools_word_in_child(pool: Pool, queue: "multiprocessing.Queue[str]") -> None:
    try:
        ask(pool, NEEDS_SYMPY, "1")
    except GraderError as error:
        queue.put(str(error))


def test_a_forked_child_does_not_read_its_parents_replies(pool: Pool) -> None:
    ask(pool, NEEDS_SYMPY, "1")
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=pools_word_in_child, args=(pool, queue))
    child.start()
    assert queue.get(timeout=60) == "the grader is closed"
    child.join(30)
    assert ask(pool, NEEDS_SYMPY, "1").reason is Reason.MATCH


def test_memory_is_bounded() -> None:
    with Pool(1, 512) as pool:
        ask(pool, NEEDS_SYMPY, "1")
        (pid,) = pool_pids(pool)
        limits = Path(f"/proc/{pid}/limits").read_text()
        (line,) = [line for line in limits.splitlines() if line.startswith("Max address space")]
        limit = int(line.split()[3])
        pages = [int(field) for field in Path(f"/proc/{pid}/statm").read_text().split()]
        mapped, resident = (number * resource.getpagesize() for number in pages[:2])
        # It may grow to 512 MiB, give or take, of which sympy holds 95.
        assert 400 * 2**20 < limit - mapped + resident < 560 * 2**20
        assert "numpy" not in Path(f"/proc/{pid}/maps").read_text()


def test_a_closed_pool_says_so(pool: Pool) -> None:
    ask(pool, NEEDS_SYMPY, "1")
    pool.close()
    with pytest.raises(GraderError, match="closed"):
        ask(pool, NEEDS_SYMPY, "1")
    assert pool_pids(pool) == set()


def test_a_broken_machine_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Worker, *args: object, **kwargs: object) -> object:
        raise GraderError("the worker is broken")

    monkeypatch.setattr(Worker, "ask", broken)
    found = grade(box(NEEDS_SYMPY), "1")
    assert (found.correct, found.reason) == (None, Reason.ABORTED)


async def test_many_items_keep_their_order_and_are_cached() -> None:
    items = [Item(box(f"{n}+1"), n + 1 + n % 2) for n in range(50)] + [Item(box(DEEP), "2")] * 3
    async with AsyncGrader(workers=2, config=GradeConfig(symbolic_time_s=20.0)) as grader:
        grades = await grader.grade_many(items)
        assert [found.correct for found in grades] == [n % 2 == 0 for n in range(50)] + [True] * 3
        again = await grader.grade_many([(item.answer, item.gold) for item in items])
        assert {found.path for found in again} == {"cache"}
        assert [found.correct for found in again] == [found.correct for found in grades]


async def test_the_loop_is_not_blocked_and_the_deadline_holds() -> None:
    async with AsyncGrader(workers=1) as grader:
        await grader.grade_many([(box(NEEDS_SYMPY), "1")])
        hard = [(box(f"{ENDLESS}+{n}"), "42") for n in range(20)]
        task = asyncio.create_task(grader.grade_many([*hard, (box("1"), "1")], deadline_s=1.0))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        grades = task.result()
        assert ticks > 5
        assert grades[-1].correct is True
        assert grades[18].reason is Reason.ABORTED
        assert grades[18].correct is None
        with pytest.raises(ValueError, match="deadline_s"):
            await grader.grade_many([], deadline_s=0)


async def test_cancelling_leaves_the_grader_usable_and_nothing_behind() -> None:
    close_shared_pools()
    before = children()
    async with AsyncGrader(workers=2, config=FEW) as grader:
        await grader.grade_many([(box(NEEDS_SYMPY), "1")])
        task = asyncio.create_task(
            grader.grade_many([(box(f"{ENDLESS}+{n}"), "42") for n in range(9)])
        )
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await grader.grade_many([(box("2"), "2")]))[0].correct is True
    assert children() <= before
    assert not [t for t in threading.enumerate() if t.name.startswith("retool-reward")]


def test_one_grader_serves_event_loops_of_several_threads() -> None:
    grader = AsyncGrader(workers=2, config=GradeConfig(symbolic_time_s=20.0))
    results: list[bool | None] = []

    def work(n: int) -> None:
        pairs = [(box(f"{n}{DEEP}"), str(2 * n)), (box(DEEP), "2")]
        results.extend(g.correct for g in asyncio.run(grader.grade_many(pairs)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    grader.close()
    assert results == [True] * 8


def in_child(queue: "multiprocessing.Queue[bool | None]") -> None:
    queue.put(grade(box(NEEDS_SYMPY), "1", GradeConfig(symbolic_time_s=20.0)).correct)
    close_shared_pools()


def test_a_forked_child_has_workers_of_its_own() -> None:
    assert grade(box(NEEDS_SYMPY), "1", GradeConfig(symbolic_time_s=20.0)).correct is True
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bool | None] = context.Queue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) is True
    child.join(30)
    assert grade(box(NEEDS_SYMPY), "1", GradeConfig(symbolic_time_s=20.0)).correct is True


SCRIPT = """
import os, signal, sys
from retool_reward import GradeConfig, grade
from retool_reward._grade import shared_pool
assert grade(r"\\boxed{\\sum_{k=1}^{\\infty} 2^{-k}}", "1", GradeConfig(symbolic_time_s=20)).correct
pool = shared_pool(512)
print(pool._server._process.pid, *[worker.pid for worker in pool._workers], flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["kill", "exit"])
def test_workers_do_not_outlive_their_owner(end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, end],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) >= 2, done.stderr
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_workers_inherit_no_secrets() -> None:
    os.environ["RETOOL_TEST_SECRET"] = "hunter2"
    try:
        with Pool(1, 512) as pool:
            ask(pool, NEEDS_SYMPY, "1")
            (pid,) = pool_pids(pool)
            assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
    finally:
        del os.environ["RETOOL_TEST_SECRET"]


def test_import_is_light() -> None:
    script = "import sys, json, retool_reward; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    heavy = {"sympy", "mpmath", "math_verify", "rich", "torch", "numpy"}
    assert not heavy & set(json.loads(done.stdout))


@pytest.mark.parametrize("workers", [0, 257, -1])
def test_a_grader_refuses_a_bad_count(workers: int) -> None:
    with pytest.raises(ValueError, match="workers"):
        AsyncGrader(workers=workers)


def test_the_shared_pool_is_one_per_limit() -> None:
    assert shared_pool(512) is shared_pool(512)
    assert shared_pool(512) is not shared_pool(600)


@pytest.mark.parametrize(
    ("program", "factor"), [("while True: pass", 1.0), ("import time; time.sleep(60)", _PATIENCE)]
)
def test_a_question_has_its_time_on_the_processor_and_an_end_by_the_clock(
    program: str, factor: float
) -> None:
    """On a full machine, too, the same answer gets the same verdict."""
    command = [sys.executable, "-c", f"print(flush=True)\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        clock = _Clock(process.pid, 0.2)
        began_s = time.monotonic()
        while clock.left_s() > 0:
            time.sleep(0.01)
        process.kill()
    assert time.monotonic() - began_s >= 0.2 * factor
