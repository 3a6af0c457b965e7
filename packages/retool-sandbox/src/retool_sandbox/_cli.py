"""The command `retool-sandbox`: run, serve, doctor, bench."""

import argparse
import asyncio
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ._errors import SandboxError
from ._types import Level, Limits


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tier",
        choices=("stdlib", "math", "science"),
        default="math",
        help="libraries that programs find loaded: none, numpy+sympy, or scipy+pandas as well",
    )
    parser.add_argument(
        "--isolation",
        default="require",
        choices=("require", "best_effort", *(level.value for level in Level)),
        help="'require' (default) refuses anything below Landlock + seccomp",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--time", type=float, default=10.0, help="wall seconds (default 10)")
    parser.add_argument("--memory", type=int, default=1024, help="MiB (default 1024)")
    parser.add_argument("--output", type=int, default=64, help="KiB kept per stream (default 64)")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="retool-sandbox", description="Run untrusted Python programs and say how they ended."
    )
    commands = parser.add_subparsers(dest="command", required=True)

    run = commands.add_parser("run", help="run one program")
    run.add_argument("file", help="a Python file, or - for standard input")
    run.add_argument("--json", action="store_true", help="print the whole result as JSON")
    run.add_argument("--policy", choices=("strict", "math"), help="refuse sources that name more")
    _add_common(run)
    _add_limits(run)

    serve = commands.add_parser("serve", help="serve programs over HTTP")
    serve.add_argument("--host", default="127.0.0.1", help="address (default: loopback only)")
    serve.add_argument("--port", type=int, default=8080)
    serve.add_argument("--concurrency", type=int, help="programs at a time (default: CPU count)")
    serve.add_argument("--max-queue", type=int, default=256, help="requests that may wait")
    serve.add_argument(
        "--token-env",
        default="RETOOL_SANDBOX_TOKEN",
        help="environment variable with the bearer token; needed beyond loopback",
    )
    _add_common(serve)
    _add_limits(serve)

    doctor = commands.add_parser("doctor", help="attack every guarantee and show what holds")
    doctor.add_argument("--json", action="store_true")
    _add_common(doctor)

    bench = commands.add_parser("bench", help="measure against a plain subprocess and bubblewrap")
    bench.add_argument("--json", action="store_true")
    bench.add_argument("--rounds", type=int, default=20, help="repetitions (default 20)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    action: Any = {"run": _run, "serve": _serve, "doctor": _doctor, "bench": _bench}[
        arguments.command
    ]
    try:
        return asyncio.run(action(arguments))
    except (SandboxError, ValueError, OSError) as error:
        print(f"retool-sandbox: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _limits(arguments: argparse.Namespace) -> Limits:
    return Limits(
        wall_time_s=arguments.time, memory_mib=arguments.memory, output_kib=arguments.output
    )


async def _run(arguments: argparse.Namespace) -> int:
    from ._policy import Policy
    from ._sandbox import Sandbox

    if arguments.file == "-":
        code = await asyncio.to_thread(sys.stdin.read)
    else:
        code = await asyncio.to_thread(Path(arguments.file).read_text)
    policies = {None: None, "strict": Policy.strict(), "math": Policy.math()}
    async with Sandbox(
        tier=arguments.tier,
        isolation=arguments.isolation,
        limits=_limits(arguments),
        concurrency=1,
        spares=0,
    ) as sandbox:
        result = await sandbox.run(code, policy=policies[arguments.policy])
    if arguments.json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr)
        if result.detail is not None:
            print(f"{result.outcome.value}: {result.detail}", file=sys.stderr)
    return 0 if result.ok else 1


async def _serve(arguments: argparse.Namespace) -> int:
    from ._sandbox import Sandbox
    from ._server import serve
    from ._service import ServiceConfig

    token = os.environ.get(arguments.token_env) or None
    if token is None and arguments.host not in ("127.0.0.1", "::1", "localhost"):
        raise ValueError(
            f"--host {arguments.host} is reachable by others: set {arguments.token_env} to a token"
        )
    concurrency = arguments.concurrency or len(os.sched_getaffinity(0))
    sandbox = Sandbox(
        tier=arguments.tier,
        isolation=arguments.isolation,
        limits=_limits(arguments),
        concurrency=concurrency,
    )
    config = ServiceConfig(token=token, max_queue=arguments.max_queue)
    port = asyncio.get_running_loop().create_future()
    port.add_done_callback(
        lambda done: print(
            f"serving {sandbox.level.value} isolation, {concurrency} at a time, "
            f"on http://{arguments.host}:{done.result()}",
            flush=True,
        )
    )
    await serve(
        sandbox,
        config,
        host=arguments.host,
        port=arguments.port,
        concurrency=concurrency,
        announce=port,
    )
    return 0


async def _doctor(arguments: argparse.Namespace) -> int:
    from ._sandbox import Sandbox

    sandbox = Sandbox(
        tier=arguments.tier,
        isolation=arguments.isolation,
        concurrency=2,
        spares=1,
        self_test=False,
    )
    async with sandbox:
        checks = await sandbox.check()
        facts = sandbox.facts
    failed = [check for check in checks if not check.ok]
    if arguments.json:
        report = {"facts": facts, "checks": [asdict(check) for check in checks]}
        print(json.dumps(report, indent=2))
        return 1 if failed else 0
    width = max(len(check.name) for check in checks)
    print(f"level {facts['level']}; memory by {facts['memory']}; tier {arguments.tier}")
    for probe in facts["failed_probes"]:
        print(f"note  {probe}")
    for check in checks:
        line = f"{'ok  ' if check.ok else 'FAIL'}  {check.name:<{width}}  {check.measured}"
        print(line if check.ok else f"{line}; {check.advice}")
    return 1 if failed else 0


async def _bench(arguments: argparse.Namespace) -> int:
    from ._bench import CASES, run_bench, to_json

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    report = await run_bench(arguments.rounds, progress)
    if arguments.json:
        print(to_json(report))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("back end", "case", "c1 p50/p99 ms", "c1 runs/s", "c8 p50/p99 ms", "c8 runs/s")
    for back, cases in report.items():
        for case in CASES:
            if back in ("extra", "targets") or case not in cases:
                continue
            one, eight = cases[case]["c1"], cases[case]["c8"]
            table.add_row(
                back, case,
                f"{one['p50_ms']:.2f} / {one['p99_ms']:.1f}", f"{one['per_s']:.1f}",
                f"{eight['p50_ms']:.2f} / {eight['p99_ms']:.1f}", f"{eight['per_s']:.1f}",
            )  # fmt: skip
    console.print(table)
    for target in report["targets"]:
        word = {True: "ok  ", False: "MISS", None: "-   "}[target["met"]]
        console.print(f"{word}  {target['target']}: {target['measured']} ({target['wanted']})")
    return 0
