"""slime's custom generate function, over SGLang's `/generate`."""

from collections.abc import Mapping
from typing import Any

from retool_rollout._framework import generate_sample
from retool_rollout._sglang import SglangEngine


def make_engine(args: Any) -> SglangEngine:
    """The engine behind slime's router."""
    return SglangEngine(f"http://{args.sglang_router_ip}:{args.sglang_router_port}")


async def generate(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> Any:
    """Roll out one sample with tools; it reads the same arguments as vime's."""
    return await generate_sample(args, sample, sampling_params, make_engine, evaluation=evaluation)
