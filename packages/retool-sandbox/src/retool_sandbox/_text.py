"""Turn the bytes a program wrote into text, with one marker where the middle is missing."""


def join_cut(head: bytes, tail: bytes, cut_bytes: int) -> str:
    """Decode head and tail; say between them how many bytes are missing.

    A character split by the cut is dropped, not shown as a replacement mark.

    Args:
        head: The first bytes of the stream.
        tail: The last bytes; follows head directly when nothing was cut.
        cut_bytes: Bytes missing between them.
    """
    if cut_bytes <= 0:
        return (head + tail).decode("utf-8", "replace")
    whole_head = _drop_split_end(head)
    whole_tail = _drop_split_start(tail)
    missing = cut_bytes + len(head) - len(whole_head) + len(tail) - len(whole_tail)
    return (
        whole_head.decode("utf-8", "replace")
        + f"\n[... {missing} bytes cut ...]\n"
        + whole_tail.decode("utf-8", "replace")
    )


def _drop_split_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:]


def _drop_split_end(data: bytes) -> bytes:
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return data[:-back] if width > back else data
    return data
