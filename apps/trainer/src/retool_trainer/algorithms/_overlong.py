"""DAPO's soft penalty for responses that come close to the length limit."""

from __future__ import annotations


def overlong_penalty(
    num_tokens: int, *, max_tokens: int, buffer_tokens: int, penalty: float = 1.0
) -> float:
    """Return what is added to the reward of a response for its length; never positive.

    Yu et al. 2025, DAPO (arXiv 2503.14476), section 3.4, equation 13: nothing up to
    `max_tokens - buffer_tokens`, then falling linearly to `-penalty` at `max_tokens` and beyond.

    Args:
        num_tokens: Length of the response, in tokens.
        max_tokens: The limit of a response.
        buffer_tokens: Width of the slope; 0 turns the penalty off.
        penalty: The depth reached at the limit.

    Raises:
        ValueError: The buffer is negative or wider than the limit.
    """
    if not 0 <= buffer_tokens <= max_tokens:
        raise ValueError(
            f"overlong.buffer_tokens must lie in [0, {max_tokens}] (the response limit), "
            f"got {buffer_tokens!r}"
        )
    if buffer_tokens == 0:
        return 0.0
    over = num_tokens - (max_tokens - buffer_tokens)
    return -penalty * min(max(over / buffer_tokens, 0.0), 1.0)
