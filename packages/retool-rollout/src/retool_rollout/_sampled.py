"""What an engine returned, checked and cut to what the policy may keep."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ._end import End
from ._engine import FinishReason, Generation, Sampling
from ._tokenizer import Tokenizer
from ._trajectory import Status, StopReason


def usable(
    generation: Generation,
    room: int,
    sampling: Sampling,
    tokenizer: Tokenizer,
    earlier: Sequence[int] = (),
) -> Generation:
    """Refuse unusable logprobs; drop what was sampled past the stop or the budget.

    Args:
        generation: As the engine returned it.
        room: Tokens that the limits leave.
        sampling: What was asked for, with the dialect's stops.
        tokenizer: Finds where a stop string ends.
        earlier: What the turn had before it was interrupted: a stop string may begin in there.

    Raises:
        End: Aborted: the logprobs are missing, short or not finite, or there is no token at all.
    """
    ids, logprobs = generation.ids, generation.logprobs
    if len(ids) != len(logprobs):
        error = f"{len(ids)} tokens came with {len(logprobs)} logprobs"
        raise End(Status.ABORTED, StopReason.BAD_LOGPROBS, error)
    if not all(map(math.isfinite, logprobs)):
        raise End(Status.ABORTED, StopReason.BAD_LOGPROBS, "a logprob is not a finite number")
    if not ids and generation.finish is not FinishReason.ABORT:
        error = "the engine ended a turn without a single token"
        raise End(Status.ABORTED, StopReason.ENGINE_ERROR, error)
    finish, end = generation.finish, len(ids)
    # Speculative decoding can return tokens past the stop (vllm#47616), and SGLang calls a stop at
    # the last token of the budget a length stop.
    for stop_id in sampling.stop_token_ids:
        if stop_id in ids[:end]:
            finish, end = FinishReason.STOP, ids.index(stop_id) + 1
    if sampling.stop:
        whole = [*earlier, *ids[:end]]
        length = _end_of_stop_string(whole, len(earlier), sampling.stop, tokenizer)
        if length is not None:
            finish, end = FinishReason.STOP, length - len(earlier)
    if end > room:
        finish, end = FinishReason.LENGTH, room
    versions = generation.weight_versions
    return replace(
        generation,
        ids=ids[:end],
        logprobs=logprobs[:end],
        finish=finish,
        weight_versions=None if versions is None else versions[:end],
    )


def _end_of_stop_string(
    ids: Sequence[int], known: int, stops: Sequence[str], tokenizer: Tokenizer
) -> int | None:
    """The shortest prefix that contains a stop string and is longer than `known`, if any."""

    def contains_stop(length: int) -> bool:
        text = tokenizer.decode(ids[:length])
        return any(stop in text for stop in stops)

    low, high = known, len(ids)
    if low == high or not contains_stop(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if contains_stop(middle):
            high = middle
        else:
            low = middle
    return high
