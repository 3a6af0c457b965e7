"""Length-prefixed frames: a JSON head and raw blobs, on any byte stream.

Layout: u32 size of the rest | u32 size of the head | head (JSON) | blobs, back to back. The head
names the blob sizes under "blobs". Only our own processes write heads; bytes of a program travel
as blobs and are never parsed.
"""

import json
import struct
from collections.abc import Sequence
from typing import Any, cast

MAX_FRAME_BYTES = 256 * 1024 * 1024
_SIZE = struct.Struct(">I")


class FrameError(Exception):
    """The stream does not hold frames of this form."""


def pack(head: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """Build one frame."""
    if blobs:
        head = {**head, "blobs": [len(blob) for blob in blobs]}
    head_bytes = json.dumps(head, separators=(",", ":")).encode()
    size = 4 + len(head_bytes) + sum(map(len, blobs))
    if size > MAX_FRAME_BYTES:
        raise FrameError(f"a frame holds at most {MAX_FRAME_BYTES} bytes, got {size}")
    return b"".join((_SIZE.pack(size), _SIZE.pack(len(head_bytes)), head_bytes, *blobs))


def unpack(body: bytes | bytearray | memoryview) -> tuple[dict[str, Any], list[bytes]]:
    """Split the part of a frame after its first size into head and blobs.

    Raises:
        FrameError: The sizes do not add up.
    """
    view = memoryview(body)
    if len(view) < 4:
        raise FrameError(f"a frame body needs 4 bytes, got {len(view)}")
    (head_size,) = _SIZE.unpack_from(view)
    end = 4 + head_size
    if end > len(view):
        raise FrameError(f"the head claims {head_size} bytes of {len(view) - 4}")
    try:
        parsed: Any = json.loads(bytes(view[4:end]))
    except ValueError as error:
        raise FrameError(f"the head is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise FrameError("the head is not a JSON object")
    head = cast(dict[str, Any], parsed)
    blobs: list[bytes] = []
    sizes: Any = head.pop("blobs", ())
    if not isinstance(sizes, list | tuple):
        raise FrameError("the blob sizes are not a list")
    for size in cast(Sequence[Any], sizes):
        if not isinstance(size, int) or size < 0 or end + size > len(view):
            raise FrameError(f"a blob claims {size!r} bytes of {len(view) - end}")
        blobs.append(bytes(view[end : end + size]))
        end += size
    if end != len(view):
        raise FrameError(f"{len(view) - end} bytes are left after the last blob")
    return head, blobs


class FrameReader:
    """Collects bytes and gives back whole frame bodies."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Add bytes; return the bodies that are now complete.

        Raises:
            FrameError: A frame claims more than max_bytes.
        """
        self._buffer += data
        bodies: list[bytes] = []
        while len(self._buffer) >= 4:
            (size,) = _SIZE.unpack_from(self._buffer)
            if size > self._max_bytes:
                raise FrameError(f"a frame claims {size} bytes, at most {self._max_bytes} allowed")
            if len(self._buffer) < 4 + size:
                break
            bodies.append(bytes(self._buffer[4 : 4 + size]))
            del self._buffer[: 4 + size]
        return bodies
