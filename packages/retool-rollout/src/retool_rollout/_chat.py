"""Try a model by hand: every turn, call and result is shown as it comes."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ._dialect import Dialect
from ._engine import Engine, Generation, Sampling
from ._framework import HookProblem
from ._limits import Limits
from ._loop import rollout
from ._tools import ToolExecutor, ToolReply, ToolSession
from ._trajectory import Trajectory

Show = Callable[[str, str], None]
"""(who speaks: "policy", "tool" or "end"; the text)"""


class _ShownEngine:
    """Shows each turn when it has been sampled."""

    def __init__(self, engine: Engine, dialect: Dialect, show: Show) -> None:
        self._engine, self._dialect, self._show = engine, dialect, show

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session_id: str
    ) -> Generation:
        made = await self._engine.generate(prompt_ids, sampling, session_id=session_id)
        self._show("policy", self._dialect.turn_text(made.ids))
        return made


class _ShownTools:
    """Shows each result when it is there."""

    def __init__(self, tools: ToolSession, show: Show) -> None:
        self._tools, self._show = tools, show

    @property
    def specs(self) -> Sequence[Mapping[str, Any]]:
        return self._tools.specs

    async def execute(self, name: str, arguments: str | Mapping[str, Any]) -> ToolReply:
        reply = await self._tools.execute(name, arguments)
        self._show("tool", f"[{reply.outcome}] {reply.text}")
        return reply

    @asynccontextmanager
    async def session(self) -> AsyncGenerator["_ShownTools"]:
        yield self  # one for the whole conversation: the next question finds its variables


async def chat(
    questions: AsyncIterator[str],
    *,
    engine: Engine,
    tools: ToolExecutor,
    dialect: Dialect,
    limits: Limits,
    sampling: Sampling,
    show: Show,
    stateful: bool = False,
) -> list[Trajectory]:
    """Answer one question after another; each continues the conversation, token for token."""
    async with AsyncExitStack() as opened:
        used = await opened.enter_async_context(tools.session()) if stateful else tools
        return await _conversation(
            questions,
            engine=_ShownEngine(engine, dialect, show),
            tools=_ShownTools(used, show),
            dialect=dialect,
            limits=limits,
            sampling=sampling,
            show=show,
            stateful=stateful,
        )


async def _conversation(
    questions: AsyncIterator[str], *, dialect: Dialect, show: Show, **options: Any
) -> list[Trajectory]:
    done: list[Trajectory] = []
    prompt_ids: list[int] | None = None
    async for question in questions:
        messages = [{"role": "user", "content": question}]
        if done:
            prompt_ids = [*_closed(done[-1].ids, dialect), *dialect.next_user_ids(question)]
        trajectory = await rollout(
            HookProblem(problem_id=f"chat-{len(done) + 1}", messages=messages),
            dialect=dialect,
            prompt_ids=prompt_ids,
            **options,
        )
        ending = f"{trajectory.status.value}: {trajectory.stop_reason.value}"
        show(
            "end",
            f"{ending}, {trajectory.num_sampled} tokens"
            + (f"; {trajectory.error}" if trajectory.error else ""),
        )
        done.append(trajectory)
    return done


def _closed(ids: Sequence[int], dialect: Dialect) -> Sequence[int]:
    """A conversation whose last turn was cut has no end of that turn."""
    # 32 tokens hold an end of turn even if it is spelled byte by byte.
    if dialect.tokenizer.decode(ids[-32:]).endswith(dialect.end_of_turn):
        return ids
    return [*ids, *dialect.tokenizer.encode_pieces([(dialect.end_of_turn, True)])]
