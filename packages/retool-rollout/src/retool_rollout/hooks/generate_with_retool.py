"""The names of the field's retool example, for scripts that import them."""

from collections.abc import Mapping, Sequence
from typing import Any

from retool_rollout._framework import generate_sample, import_extra
from retool_rollout._seed import find_seed_answer, first_program, seed_pieces

from . import slime, vime


def format_conversation_with_tools(
    prompt: str | None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    system_prompt: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """The example's prompt as text."""
    conversation: list[Mapping[str, Any]] = []
    if system_prompt:
        conversation.append({"role": "system", "content": system_prompt})
    if prompt:
        conversation.append({"role": "user", "content": prompt})
    conversation += messages or []
    return "".join(text for text, _ in seed_pieces(conversation, tools or ()))


def postprocess_predictions(prediction: str) -> tuple[str | None, str]:
    """What a turn wants: ("answer", text), ("code", program) or (None, "")."""
    answer = find_seed_answer(prediction)
    if answer is not None:
        return "answer", answer
    program = first_program(prediction)
    return ("code", program) if program is not None else (None, "")


async def generate(
    args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
) -> Any:
    """Roll out one sample, over whichever router the arguments name."""
    framework = vime if hasattr(args, "vllm_router_ip") else slime
    return await generate_sample(
        args, sample, sampling_params, framework.make_engine, evaluation=evaluation
    )


async def reward_func(args: Any, sample: Any, **kwargs: Any) -> Any:
    """The reward, from retool-reward."""
    framework = "vime" if hasattr(args, "vllm_router_ip") else "slime"
    hook = import_extra(f"retool_reward.hooks.{framework}", "reward")
    return await hook.reward_func(args, sample, **kwargs)
