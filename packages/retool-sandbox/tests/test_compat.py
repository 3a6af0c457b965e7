"""The drop-in module of slime's and vime's example."""

import asyncio
from collections.abc import Iterator

import pytest

from retool_sandbox.compat import tool_sandbox
from retool_sandbox.compat.tool_sandbox import PythonSandbox, ToolRegistry, tool_registry


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    yield
    tool_sandbox._shared.close(tool_sandbox._shared._pid)


def test_names_and_spec_are_the_examples() -> None:
    assert tool_sandbox.TOOL_CONFIGS["tool_concurrency"] == 32
    assert isinstance(tool_sandbox.SEMAPHORE, asyncio.Semaphore)
    (spec,) = tool_registry.get_tool_specs()
    assert spec["function"]["name"] == "code_interpreter"
    assert isinstance(tool_registry, ToolRegistry)


def test_calls_from_several_loops_work_and_run_at_the_same_time() -> None:
    async def calls() -> list[str]:
        code = "import time\ntime.sleep(0.2)\nprint({})"
        return await asyncio.gather(
            *(
                tool_registry.execute_tool("code_interpreter", {"code": code.format(n)})
                for n in range(4)
            )
        )

    for _ in range(2):
        assert asyncio.run(calls()) == ["0", "1", "2", "3"]


def test_caller_may_hold_the_semaphore() -> None:
    async def call(n: int) -> str:
        async with tool_sandbox.SEMAPHORE:
            return await tool_registry.execute_tool("code_interpreter", {"code": f"print({n})"})

    async def many() -> list[str]:
        return await asyncio.gather(*map(call, range(40)))

    assert asyncio.run(asyncio.wait_for(many(), 100)) == [str(n) for n in range(40)]


def test_safety_check_has_no_false_refusals() -> None:
    sandbox = PythonSandbox()
    for code in (
        "from math import sqrt",
        "# distance from the corner\nprint(1)",
        "import re\nre.compile('1')",
        "isinstance(1, int)",
    ):
        assert sandbox._check_code_safety(code) == (True, "Code is safe")
    safe, reason = sandbox._check_code_safety("import math, os")
    assert not safe
    assert "'os'" in reason


def test_errors_are_text_and_limits_hold() -> None:
    sandbox = PythonSandbox(timeout=0.5, memory_limit="256MB")
    assert asyncio.run(sandbox.execute_code("while True: pass")) == "Error: killed after 0.5 s."
    text = asyncio.run(PythonSandbox(timeout=20).execute_code("print(1)\n1 / 0"))
    assert text.startswith("1\nError: Traceback")
    assert text.endswith("ZeroDivisionError: division by zero")
    assert asyncio.run(sandbox.execute_code("import os")).startswith("Error: ")
    with pytest.raises(ValueError, match="memory_limit"):
        asyncio.run(PythonSandbox(memory_limit="lots").execute_code("1"))


def test_allowed_modules_can_be_changed() -> None:
    sandbox = PythonSandbox(timeout=20)
    sandbox.allowed_modules = {"os"}
    assert asyncio.run(sandbox.execute_code("import os\nprint(os.sep)")) == "/"
    assert "not allowed" in asyncio.run(sandbox.execute_code("import math"))
