"""Pack samples into rows of a fixed length without splitting any: first-fit decreasing."""

from collections.abc import Sequence

from ._samples import Pack, TokenSample


def pack_lengths(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Assign items to bins, largest first, each into the first bin that has room.

    A tree of the largest free space below each node finds that bin in O(log n), so 100k rows take
    well under a second. Equal lengths keep their order, so the result is reproducible.

    Args:
        lengths: Tokens per item, each 1 to max_tokens.
        max_tokens: Capacity of a bin.

    Returns:
        One list of item numbers per bin.

    Raises:
        ValueError: An item is empty or larger than a bin.
    """
    for number, length in enumerate(lengths):
        if not 0 < length <= max_tokens:
            raise ValueError(
                f"sample {number} has {length} tokens; a pack holds 1 to {max_tokens}. "
                "Tokenise with max_tokens so that too-long rows are dropped and counted"
            )
    if not lengths:
        return []
    leaves = 1 << (len(lengths) - 1).bit_length()
    free = [max_tokens] * (2 * leaves)
    bins: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = lengths[item]
        node = 1
        while node < leaves:
            node *= 2
            if free[node] < size:
                node += 1
        number = node - leaves
        if number == len(bins):
            bins.append([])
        bins[number].append(item)
        free[node] -= size
        while node > 1:
            node //= 2
            free[node] = max(free[2 * node], free[2 * node + 1])
    return bins


def pack(samples: Sequence[TokenSample], max_tokens: int) -> list[Pack]:
    """Pack samples into rows of at most `max_tokens`.

    Returns:
        Packs with `position_ids` that restart per sample and `cu_seqlens` for attention.

    Raises:
        ValueError: A sample is empty or longer than max_tokens.
    """
    bins = pack_lengths([len(sample.ids) for sample in samples], max_tokens)
    return [_join([samples[i] for i in chosen]) for chosen in bins]


def _join(chosen: Sequence[TokenSample]) -> Pack:
    ids: list[int] = []
    mask: list[int] = []
    positions: list[int] = []
    cu_seqlens = [0]
    for sample in chosen:
        ids += sample.ids
        mask += sample.mask
        positions += range(len(sample.ids))
        cu_seqlens.append(len(ids))
    return Pack(
        ids=tuple(ids),
        mask=tuple(mask),
        position_ids=tuple(positions),
        cu_seqlens=tuple(cu_seqlens),
        problem_ids=tuple(sample.problem_id for sample in chosen),
    )
