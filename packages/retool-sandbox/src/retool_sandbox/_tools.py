"""Tools a model may call: specs from typed functions, one limiter, outcomes the model can read."""

import asyncio
import inspect
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pydantic

BAD_CALL = "bad_call"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """What came of one tool call."""

    text: str
    """What the model sees."""
    outcome: str
    """An Outcome value, or "bad_call" for an unknown tool or bad arguments."""
    ok: bool
    """The call was executed and succeeded."""
    wall_time_s: float = 0.0


ToolFunction = Callable[..., Awaitable[str | ToolReply]]
SessionFactory = Callable[[], AbstractAsyncContextManager[ToolFunction]]


@dataclass(frozen=True, slots=True)
class _Tool:
    spec: Mapping[str, Any]
    arguments: type[pydantic.BaseModel]
    function: ToolFunction
    open_session: SessionFactory | None


class ToolRegistry:
    """The tools of one model, with one limit on how many calls run at the same time.

    The limit is taken in `execute` and nowhere else: a semaphore that is taken twice on the way
    hangs as soon as enough calls are in flight.

    Args:
        concurrency: Calls that run at the same time.
    """

    def __init__(self, *, concurrency: int = 32) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency must be >= 1, got {concurrency}")
        self._concurrency = concurrency
        self._tools: dict[str, _Tool] = {}
        self._limiters: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    @property
    def specs(self) -> Sequence[Mapping[str, Any]]:
        """The tools in OpenAI's form."""
        return [tool.spec for tool in self._tools.values()]

    def tool(self, function: ToolFunction) -> ToolFunction:
        """Register a typed async function; its docstring and annotations become the spec.

        Raises:
            TypeError: It is not async, or a parameter has no annotation or no name.
            ValueError: The name is taken.
        """
        self.add(function, spec=None)
        return function

    def add(
        self,
        function: ToolFunction,
        *,
        spec: Mapping[str, Any] | None = None,
        open_session: SessionFactory | None = None,
    ) -> None:
        """Register a function with a spec of your own, or with state that lives in a session."""
        model = _arguments_model(function)
        spec = spec or _derive_spec(function, model)
        name = spec["function"]["name"]
        if name in self._tools:
            raise ValueError(f"a tool named {name!r} is registered already")
        self._tools[name] = _Tool(spec, model, function, open_session)

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> ToolReply:
        """Check the call, run it under the limit, and say what came of it.

        Args:
            name: The tool the model named.
            arguments: A mapping, or JSON text of an object.

        Raises:
            SandboxError: Our machinery failed; that is never text for the model.
        """
        return await self._execute(name, arguments, {})

    @asynccontextmanager
    async def session(self) -> AsyncGenerator["ToolSession", None]:
        """The same tools with state that is kept from call to call."""
        async with AsyncExitStack() as stack:
            functions = {
                name: await stack.enter_async_context(tool.open_session())
                for name, tool in self._tools.items()
                if tool.open_session is not None
            }

            async def execute(name: str, arguments: str | Mapping[str, Any]) -> ToolReply:
                return await self._execute(name, arguments, functions)

            yield ToolSession(self, execute)

    async def _execute(
        self,
        name: str,
        arguments: str | Mapping[str, Any],
        functions: Mapping[str, ToolFunction],
    ) -> ToolReply:
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return _bad(f"Unknown tool {name!r}. Available tools: {known}.")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments, strict=False)
            except (ValueError, RecursionError) as error:
                return _bad(f"The arguments of {name} are not valid JSON: {error}.")
        if not isinstance(arguments, Mapping):
            kind = type(arguments).__name__
            return _bad(f"The arguments of {name} must be a JSON object, got {kind}.")
        try:
            # Strict: "3" is no number. The model is told, instead of something being guessed. Read
            # as JSON, which writes enums and dates as texts.
            checked = tool.arguments.model_validate_json(json.dumps(dict(arguments)), strict=True)
        except pydantic.ValidationError as error:
            return _bad(f"Bad arguments for {name}: {_explain(error)}.")
        except (TypeError, ValueError, RecursionError) as error:
            return _bad(f"The arguments of {name} cannot be written as JSON: {error}.")
        values = {field: getattr(checked, field) for field in tool.arguments.model_fields}
        function = functions.get(name, tool.function)
        async with self._limiter():
            started = time.monotonic()
            reply = await function(**values)
            wall_time_s = time.monotonic() - started
        if isinstance(reply, ToolReply):
            return reply
        return ToolReply(text=reply, outcome="ok", ok=True, wall_time_s=wall_time_s)

    def _limiter(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        limiter = self._limiters.get(loop)
        if limiter is None:
            for closed in [other for other in self._limiters if other.is_closed()]:
                del self._limiters[closed]
            limiter = self._limiters[loop] = asyncio.Semaphore(self._concurrency)
        return limiter


class ToolSession:
    """The tools of a registry, with state of their own."""

    def __init__(
        self,
        registry: ToolRegistry,
        execute: Callable[[str, str | Mapping[str, Any]], Awaitable[ToolReply]],
    ) -> None:
        self._registry = registry
        self._execute = execute

    @property
    def specs(self) -> Sequence[Mapping[str, Any]]:
        """The tools in OpenAI's form."""
        return self._registry.specs

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> ToolReply:
        """Like ToolRegistry.execute, under the same limit, in this session."""
        return await self._execute(name, arguments)

    @asynccontextmanager
    async def session(self) -> AsyncGenerator["ToolSession", None]:
        """A further session, independent of this one."""
        async with self._registry.session() as other:
            yield other


def _bad(text: str) -> ToolReply:
    return ToolReply(text=f"Error: {text}", outcome=BAD_CALL, ok=False)


def _explain(error: pydantic.ValidationError) -> str:
    parts: list[str] = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(map(str, item["loc"])) or "arguments"
        parts.append(f"{where}: {item['msg']}")
    return "; ".join(parts)


def _arguments_model(function: ToolFunction) -> type[pydantic.BaseModel]:
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"a tool must be an async function, {function!r} is not")
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(f"tool {function.__name__!r} must name each parameter, not {name!r}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise TypeError(f"parameter {name!r} of tool {function.__name__!r} must have a name")
        if parameter.annotation is inspect.Parameter.empty:
            raise TypeError(f"parameter {name!r} of tool {function.__name__!r} needs a type")
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (parameter.annotation, default)
    return pydantic.create_model(
        f"{function.__name__}_arguments",
        __config__=pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False),
        **fields,
    )


def _derive_spec(function: ToolFunction, model: type[pydantic.BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    schema.pop("title", None)
    schema.pop("additionalProperties", None)
    for prop in schema.get("properties", {}).values():
        prop.pop("title", None)
    return {
        "type": "function",
        "function": {
            "name": function.__name__,
            "description": inspect.cleandoc(function.__doc__ or "").split("\n\n")[0],
            "parameters": schema,
        },
    }
