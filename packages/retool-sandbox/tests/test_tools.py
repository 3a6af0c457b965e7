"""The tool registry and the ready-made code interpreter."""

# ruff: noqa: E501

import asyncio
import datetime
import enum
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from retool_sandbox import (
    Limits,
    Policy,
    RunLost,
    Sandbox,
    ToolRegistry,
    code_interpreter,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox(tier="stdlib", concurrency=2, spares=1) as opened:
        yield opened


async def test_spec_is_the_missions_text(sandbox: Sandbox) -> None:
    assert json.dumps(code_interpreter(sandbox).specs[0]) == (
        '{"type": "function", "function": {"name": "code_interpreter", "description": "A tool for '
        'executing code.", "parameters": {"type": "object", "properties": {"code": {"type": "string", '
        '"description": "The code to execute."}}, "required": ["code"]}}}'
    )


async def test_code_interpreter_shows_output_and_outcome(sandbox: Sandbox) -> None:
    tools = code_interpreter(sandbox, limits=Limits(wall_time_s=5.0))
    good = await tools.execute("code_interpreter", '{"code": "print(6 * 7)"}')
    assert (good.text, good.outcome, good.ok) == ("42", "ok", True)
    assert good.wall_time_s > 0
    bad = await tools.execute("code_interpreter", {"code": "1 / 0"})
    assert bad.outcome == "failed"
    assert not bad.ok
    assert bad.text.endswith("ZeroDivisionError: division by zero")
    silent = await tools.execute("code_interpreter", {"code": "x = 1"})
    assert silent.text == "(no output)"


async def test_raw_newlines_in_the_json_text_are_taken(sandbox: Sandbox) -> None:
    reply = await code_interpreter(sandbox).execute(
        "code_interpreter", '{"code": "x = 1\nprint(x)"}'
    )
    assert reply.text == "1"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("calculator", {"code": "1"}, ["Unknown tool 'calculator'", "code_interpreter"]),
        ("code_interpreter", "{not json", ["not valid JSON"]),
        ("code_interpreter", "[1]", ["must be a JSON object", "list"]),
        ("code_interpreter", "null", ["must be a JSON object"]),
        ("code_interpreter", {}, ["code", "required"]),
        ("code_interpreter", {"code": 3}, ["code", "string"]),
        ("code_interpreter", {"code": "1", "lang": "c"}, ["lang"]),
        ("code_interpreter", {"code": "  \n"}, ["empty"]),
        ("code_interpreter", '{"code": "\\ud800"}', ["Invalid JSON"]),
        ("code_interpreter", {"code": b"1"}, ["cannot be written as JSON"]),
        ("code_interpreter", "[" * 100_000, ["not valid JSON"]),
    ],
)
async def test_bad_calls_are_text_for_the_model(
    sandbox: Sandbox, name: str, arguments: Any, words: list[str]
) -> None:
    reply = await code_interpreter(sandbox).execute(name, arguments)
    assert (reply.outcome, reply.ok) == ("bad_call", False)
    assert reply.text.startswith("Error: ")
    for word in words:
        assert word in reply.text


async def test_refusal_reaches_the_model(sandbox: Sandbox) -> None:
    tools = code_interpreter(sandbox, policy=Policy.strict())
    reply = await tools.execute("code_interpreter", {"code": "import math, os"})
    assert reply.outcome == "refused"
    assert "import of 'os' is not allowed" in reply.text


async def test_session_keeps_state_and_shares_the_specs(sandbox: Sandbox) -> None:
    tools = code_interpreter(sandbox)
    async with tools.session() as session:
        assert session.specs == tools.specs
        await session.execute("code_interpreter", {"code": "x = 20"})
        assert (await session.execute("code_interpreter", {"code": "x + 1"})).text == "21"
        async with session.session() as other:
            fresh = await other.execute("code_interpreter", {"code": "x"})
            assert "NameError" in fresh.text


async def test_limit_is_taken_once_and_holds() -> None:
    registry = ToolRegistry(concurrency=1)
    running = most = 0

    @registry.tool
    async def wait(seconds: float) -> str:
        """Wait."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(seconds)
        running -= 1
        return "done"

    async with registry.session() as session:
        calls = [session.execute("wait", {"seconds": 0.01}) for _ in range(5)]
        calls += [registry.execute("wait", {"seconds": 0.01}) for _ in range(5)]
        replies = await asyncio.wait_for(asyncio.gather(*calls), 20)
    assert most == 1
    assert {reply.text for reply in replies} == {"done"}


async def test_spec_is_derived_from_the_function() -> None:
    registry = ToolRegistry()

    @registry.tool
    async def look_up(
        word: Annotated[str, Field(description="What to look up.")], limit: int = 3
    ) -> str:
        """Look a word up.

        This part is for programmers.
        """
        return f"{word} {limit}"

    (spec,) = registry.specs
    assert spec["function"] == {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {
                "word": {"type": "string", "description": "What to look up."},
                "limit": {"type": "integer", "default": 3},
            },
            "required": ["word"],
        },
    }
    assert (await registry.execute("look_up", {"word": "x"})).text == "x 3"


class Colour(enum.Enum):
    RED = "red"


async def test_arguments_of_any_type_are_read_as_json_writes_them() -> None:
    registry = ToolRegistry()

    @registry.tool
    async def paint(colour: Colour, at: tuple[int, int], day: datetime.date) -> str:
        """Paint."""
        return f"{colour.name} {at} {day}"

    good = {"colour": "red", "at": [1, 2], "day": "2026-01-31"}
    assert (await registry.execute("paint", good)).text == "RED (1, 2) 2026-01-31"
    for bad in ({"colour": "blue"}, {"at": ["1", 2]}, {"day": 7}):
        assert (await registry.execute("paint", good | bad)).outcome == "bad_call"


async def test_registering_rejects_what_has_no_spec() -> None:
    registry = ToolRegistry()

    def blocking(word: str) -> str:
        return word

    async def untyped(word) -> str:  # type: ignore[no-untyped-def]
        return word

    async def fine(word: str) -> str:
        return word

    with pytest.raises(TypeError, match="async"):
        registry.tool(blocking)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs a type"):
        registry.tool(untyped)

    async def many(*words: str) -> str:
        return " ".join(words)

    with pytest.raises(TypeError, match="must name each parameter"):
        registry.tool(many)
    registry.tool(fine)
    with pytest.raises(ValueError, match="registered already"):
        registry.tool(fine)


async def test_a_tool_that_raises_is_not_hidden() -> None:
    registry = ToolRegistry()

    @registry.tool
    async def broken() -> str:
        """Break."""
        raise RunLost("gone")

    with pytest.raises(RunLost):
        await registry.execute("broken", "{}")
