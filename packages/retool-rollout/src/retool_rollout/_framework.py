"""Read a vime or slime sample, roll it out, and write it back: what the hooks share."""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from ._dialect import Dialect, make_dialect
from ._engine import Engine, Sampling
from ._limits import Limits
from ._loop import rollout
from ._tokenizer import Tokenizer
from ._tools import ToolExecutor
from ._trajectory import Status, StopReason, Trajectory

METADATA_KEY = "retool"
RESUME_KEY = "retool_resume"
# The field's example has 16 turns and 16 calls on GPUs (slime), 4 and 4 on NPUs (vime).
DEFAULT_TURNS = DEFAULT_CALLS = 16
DEFAULT_TOOL_CONCURRENCY = 32
# Its `rollout_max_response_len` where the framework sets none.
DEFAULT_RESPONSE_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class HookProblem:
    """The prompt of a sample."""

    problem_id: str
    messages: Sequence[Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class HookState:
    """What one event loop of the framework keeps between samples."""

    engine: Engine
    tools: ToolExecutor
    dialect: Dialect
    resources: AsyncExitStack


# One per loop: sockets, semaphores and sandbox processes belong to the loop that made them.
_STATES: WeakKeyDictionary[asyncio.AbstractEventLoop, HookState] = WeakKeyDictionary()
_LOCKS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def state_of(args: Any, make_engine: Any) -> HookState:
    """The state of the running loop; made at the first sample."""
    loop = asyncio.get_running_loop()
    async with _LOCKS.setdefault(loop, asyncio.Lock()):
        if loop not in _STATES:
            dialect = await asyncio.to_thread(_dialect_of, args)
            async with AsyncExitStack() as opened:
                tools = await _tools_of(args, opened)
                engine = await opened.enter_async_context(make_engine(args))
                # Only what was opened without an error stays open.
                _STATES[loop] = HookState(
                    engine=engine, tools=tools, dialect=dialect, resources=opened.pop_all()
                )
        return _STATES[loop]


async def close_state() -> None:
    """Close what the running loop has opened. Frameworks need not: their loop never ends."""
    state = _STATES.pop(asyncio.get_running_loop(), None)
    if state is not None:
        await state.resources.aclose()


async def generate_sample(
    args: Any,
    sample: Any,
    sampling_params: Mapping[str, Any],
    make_engine: Any,
    *,
    evaluation: bool = False,
) -> Any:
    """Roll out one sample.

    A sample that comes back aborted carries no tokens, so that the framework's buffer retries it;
    with
    `args.partial_rollout` it carries what there is, and the next attempt goes on from there.
    """
    state = await state_of(args, make_engine)
    resume = _take_resume(sample)
    clear(sample)
    dialect = state.dialect
    messages, rendered = read_prompt(sample.prompt, dialect.opening)
    if rendered is not None:
        prompt_ids = dialect.tokenizer.encode_pieces([(rendered, True)])
    else:
        specs = state.tools.specs if dialect.tool_specs is None else dialect.tool_specs
        prompt_ids = dialect.prompt_ids(messages, specs)
    if resume is not None and list(resume.ids[: resume.prompt_length]) != prompt_ids:
        resume = None  # another prompt: the sample object was reused
    trajectory = await rollout(
        HookProblem(problem_id=str(getattr(sample, "index", None)), messages=messages),
        engine=state.engine,
        tools=state.tools,
        dialect=dialect,
        limits=limits_of(args, sampling_params, len(prompt_ids), evaluation=evaluation),
        sampling=sampling_of(args, sampling_params),
        resume=resume,
        prompt_ids=prompt_ids,
        session_id=getattr(sample, "session_id", None),
    )
    partial = bool(getattr(args, "partial_rollout", False))
    off_policy = resume is not None and getattr(args, "mask_offpolicy_in_partial_rollout", False)
    write_back(
        args,
        sample,
        trajectory,
        dialect.tokenizer,
        keep_partial=partial,
        untrained=len(resume.ids) if resume is not None and off_policy else 0,
    )
    return sample


def read_prompt(
    prompt: Any, opening: str = "<|im_start|>"
) -> tuple[list[Mapping[str, Any]], str | None]:
    """Tell a message list, a plain question and an already templated prompt apart.

    Args:
        prompt: Of a sample.
        opening: What the model's chat template begins with.

    Returns:
        The messages, and the rendered text if a chat template has been applied (it is then used as
        it is: a second
        template around it would nest one conversation in another).

    Raises:
        TypeError: It is none of the three.
    """
    kind = type(prompt).__name__
    if isinstance(prompt, str):
        # The seed dialect's prompts open with the marker of Qwen whatever the model's template.
        if prompt.lstrip().startswith((opening, "<|im_start|>")):
            return [], prompt
        return [{"role": "user", "content": prompt}], None
    if isinstance(prompt, Sequence):
        messages: list[Any] = [*cast("Sequence[Any]", prompt)]
        if all(isinstance(message, Mapping) for message in messages):
            return messages, None
    raise TypeError(f"sample.prompt must be text or messages, got {kind}")


def limits_of(
    args: Any, sampling_params: Mapping[str, Any], prompt_length: int, *, evaluation: bool = False
) -> Limits:
    """The limits that a framework's arguments name; the example's defaults for those it lacks."""
    context = getattr(args, "eval_max_context_len", None) if evaluation else None
    if context is None:
        context = getattr(args, "rollout_max_context_len", None)
    per_gpu = getattr(args, "max_tokens_per_gpu", None)
    if context is None and per_gpu is not None:
        context = per_gpu * (getattr(args, "context_parallel_size", None) or 1)
    if context is None:
        response = getattr(args, "rollout_max_response_len", None)
        response = response or sampling_params.get("max_new_tokens") or DEFAULT_RESPONSE_TOKENS
        context = prompt_length + response
    return Limits(
        turns=getattr(args, "retool_max_turns", None) or DEFAULT_TURNS,
        calls=getattr(args, "retool_max_calls", None) or DEFAULT_CALLS,
        response_tokens=max(1, context - prompt_length),
        context_tokens=context,
    )


def sampling_of(args: Any, sampling_params: Mapping[str, Any]) -> Sampling:
    """Translate the framework's sampling parameters."""
    stop = sampling_params.get("stop") or ()
    top_k = sampling_params.get("top_k")
    temperature = sampling_params.get("temperature")
    top_p = sampling_params.get("top_p")
    seed = sampling_params.get("seed", sampling_params.get("sampling_seed"))
    most = sampling_params.get("max_new_tokens") or getattr(args, "rollout_max_response_len", None)
    return Sampling(
        max_tokens=most or DEFAULT_RESPONSE_TOKENS,
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=-1 if top_k is None or top_k < 1 else top_k,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(sampling_params.get("stop_token_ids") or ()),
        seed=seed,
    )


def clear(sample: Any) -> None:
    """Take away what an earlier attempt left: it would not match the new tokens."""
    sample.tokens = []
    sample.response = ""
    sample.response_length = 0
    sample.loss_mask = []
    sample.rollout_log_probs = None
    for name in (
        "reward",  # slime keeps the one that it finds
        "teacher_log_probs",
        "mopd_teacher_log_probs",
        "rollout_top_p_token_ids",
        "rollout_top_p_token_offsets",
        "rollout_top_p_log_probs",
        "rollout_topk_token_ids",
        "rollout_topk_log_probs",
        "rollout_routed_experts",
    ):
        if hasattr(sample, name):
            setattr(sample, name, None)
    if hasattr(sample, "weight_versions"):
        sample.weight_versions = []
    sample.status = _statuses(sample).PENDING


def write_back(
    args: Any,
    sample: Any,
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    *,
    keep_partial: bool = False,
    untrained: int = 0,
) -> None:
    """Fill the sample, through `append_response_tokens` where its class has that.

    Args:
        args: The framework's.
        sample: To be filled.
        trajectory: What became of it.
        tokenizer: Makes its text.
        keep_partial: An aborted one keeps its tokens, and can be resumed.
        untrained: The first so many tokens get no loss: earlier weights sampled them.
    """
    statuses = _statuses(sample)
    sample.status = statuses[trajectory.status.name]
    metadata = dict(getattr(sample, "metadata", None) or {})
    metadata[METADATA_KEY] = {
        "stop_reason": trajectory.stop_reason.value,
        "error": trajectory.error,
        "answer": trajectory.answer,
        "own_text": trajectory.own_text,
        "turns": len(trajectory.turns),
        "outcomes": [call.outcome for turn in trajectory.turns for call in turn.calls],
        # What a reward counts: a call that only repeats another is told by name and arguments.
        "calls": [
            {"name": call.name, "arguments": dict(call.arguments), "ok": call.ok}
            for turn in trajectory.turns
            for call in turn.calls
        ],
    }
    sample.metadata = metadata
    sample.tool_call_count = sum(1 for turn in trajectory.turns if turn.calls)
    start = trajectory.prompt_length
    if trajectory.status is Status.ABORTED:
        if not keep_partial or trajectory.stop_reason is StopReason.BAD_LOGPROBS:
            sample.tokens = list(trajectory.ids[:start])
            return
        metadata[RESUME_KEY] = trajectory
    sample.tokens = list(trajectory.ids[:start])
    append = getattr(sample, "append_response_tokens", None)
    for first, last, mask in _runs(trajectory, untrained):
        tokens = list(trajectory.ids[first:last])
        logprobs = list(trajectory.logprobs[first:last]) if mask else [0.0] * len(tokens)
        if append is not None:
            append(args, tokens=tokens, log_probs=logprobs if mask else None, trainable=bool(mask))
            continue
        sample.tokens += tokens
        sample.response_length += len(tokens)
        sample.loss_mask += [mask] * len(tokens)
        known = cast("list[float]", sample.rollout_log_probs or [])
        sample.rollout_log_probs = [*known, *logprobs]
    sample.response = tokenizer.decode(trajectory.ids[start:])
    if hasattr(sample, "weight_versions"):
        used = {v for v in trajectory.weight_versions if v is not None}
        sample.weight_versions = [str(version) for version in sorted(used)]
    sample.status = statuses[trajectory.status.name]


def _statuses(sample: Any) -> Any:
    """The framework's own status enum, which hangs on its sample class."""
    return cast("Any", type(sample)).Status


def _runs(trajectory: Trajectory, untrained: int) -> list[tuple[int, int, int]]:
    """The response as (start, end, mask): turns and observations, and what is not trained on."""
    runs: list[tuple[int, int, int]] = []
    for turn in trajectory.turns:
        trained = min(max(untrained, turn.start), turn.end)
        runs += [(turn.start, trained, 0), (trained, turn.end, 1)]
        runs.append((turn.end, turn.observation_end, 0))
    return [run for run in runs if run[0] < run[1]]


def _take_resume(sample: Any) -> Trajectory | None:
    metadata = cast("dict[str, Any]", getattr(sample, "metadata", None) or {})
    resume = metadata.pop(RESUME_KEY, None)
    return resume if isinstance(resume, Trajectory) else None


def _dialect_of(args: Any) -> Dialect:
    folder = Path(args.hf_checkpoint)
    return make_dialect(getattr(args, "retool_dialect", None) or "seed", Tokenizer.load(folder))


async def _tools_of(args: Any, opened: AsyncExitStack) -> ToolExecutor:
    """The executor that `args.retool_tools` names, else retool-sandbox's interpreter."""
    path = getattr(args, "retool_tools", None)
    if path is not None:
        module, _, name = str(path).partition(":")
        made: Any = getattr(importlib.import_module(module), name)(args)
        return cast("ToolExecutor", await made if asyncio.iscoroutine(made) else made)
    sandbox = import_extra("retool_sandbox", "sandbox")
    concurrency = getattr(args, "retool_tool_concurrency", None) or DEFAULT_TOOL_CONCURRENCY
    started = await opened.enter_async_context(sandbox.Sandbox(concurrency=concurrency))
    return cast("ToolExecutor", sandbox.code_interpreter(started, concurrency=concurrency))


def import_extra(module: str, extra: str) -> Any:
    """Import the sibling that an extra brings.

    Raises:
        ImportError: It is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise ImportError(f"{module} is missing: pip install 'retool-rollout[{extra}]'") from error
