"""One engine for the loop, whichever kind it is, and how it takes new weights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from retool_rollout import Engine, VllmEngine
from retool_trainer.config import RunConfig

from ._embedded import EmbeddedEngine

_RELOAD_TIMEOUT_S = 900.0  # tens of GiB from a shared file system


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHandle:
    """An engine and its kind; exactly one of `embedded` and `vllm` is set."""

    embedded: EmbeddedEngine | None = None
    vllm: VllmEngine | None = None
    servers: tuple[Engine, ...] = ()
    """Each replica of `vllm` by itself, for those who must reach every one."""

    @property
    def engine(self) -> Engine:
        """What the loop samples from."""
        engine = self.embedded or self.vllm
        assert engine is not None
        return engine

    async def load(self, folder: Path, weight_version: int) -> None:
        """Take the weights of a Hugging Face folder; requests under way end as aborted."""
        if self.embedded:
            await self.embedded.load(folder, weight_version)
        if self.vllm:
            await self.pause()
            await self.vllm.control(
                "/collective_rpc",
                body={"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
                timeout_s=_RELOAD_TIMEOUT_S,
            )
            # Without it a head tied to the embedding keeps its old packed weights on CPU.
            await self.vllm.control("/collective_rpc", body={"method": "repack_tied_head"})
            await self.resume(weight_version)

    async def pause(self) -> None:
        """Stop sampling, so that no token mixes two versions of the weights."""
        if self.vllm:
            await self.vllm.pause(mode="abort")

    async def resume(self, weight_version: int) -> None:
        """Sample again, under a new version."""
        if self.vllm:
            await self.vllm.reset_prefix_cache()
            await self.vllm.set_weight_version(weight_version)
            await self.vllm.resume()


@asynccontextmanager
async def open_engine(
    config: RunConfig, folder: Path, urls: Sequence[str] = ()
) -> AsyncIterator[EngineHandle]:
    """Open the engine of a run.

    Args:
        config: The run.
        folder: Weights that the embedded engine starts with.
        urls: Of the running vLLM servers.
    """
    if config.engine.kind == "embedded":
        engine = EmbeddedEngine(
            folder,
            max_concurrency=config.engine.max_concurrency,
            max_model_len=config.engine.max_model_len,
            # A step may have to wait for a call that takes its whole time, and for its repetitions.
            step_timeout_s=120.0 + 3 * config.sandbox.wall_time_s,
        )
        async with engine:
            yield EngineHandle(embedded=engine)
    else:
        async with AsyncExitStack() as stack:

            async def connect(to: list[str]) -> VllmEngine:
                engine = VllmEngine(to, model="policy", weight_version=0)
                return await stack.enter_async_context(engine)

            servers = [await connect([url]) for url in urls]
            yield EngineHandle(vllm=await connect(list(urls)), servers=tuple(servers))
