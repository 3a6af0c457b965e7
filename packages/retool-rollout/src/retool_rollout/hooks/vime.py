"""vime's custom generate function, over vLLM's token endpoint."""

from collections.abc import Mapping
from typing import Any

from retool_rollout._framework import generate_sample
from retool_rollout._vllm import VllmEngine


def make_engine(args: Any) -> VllmEngine:
    """The engine behind vime's router."""
    url = f"http://{args.vllm_router_ip}:{args.vllm_router_port}"
    return VllmEngine(url, model=args.hf_checkpoint)


async def generate(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> Any:
    """Roll out one sample with tools.

    Further arguments that it reads, where the launcher sets them (`--custom-config-path`):
    `retool_dialect`
    ("seed"), `retool_max_turns` (16), `retool_max_calls` (16), `retool_tools` ("module:function"
    that makes an executor;
    else retool-sandbox's interpreter) and `retool_tool_concurrency` (32).
    """
    return await generate_sample(args, sample, sampling_params, make_engine, evaluation=evaluation)
