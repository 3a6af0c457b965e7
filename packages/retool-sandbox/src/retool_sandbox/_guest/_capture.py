"""Keep the head and the tail of an endless stream in bounded memory."""


class Capture:
    """What one stream wrote: the first and the last half of the allowance, and the true total."""

    __slots__ = ("_half", "_head", "_tail", "total")

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(1, limit_bytes // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        """Append what was read."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > 2 * self._half:
                del self._tail[: -self._half]

    def parts(self) -> tuple[bytes, bytes]:
        """Head and tail; together they are the whole stream when nothing was cut."""
        return bytes(self._head), bytes(self._tail[-self._half :])

    @property
    def cut_bytes(self) -> int:
        """How many bytes in the middle are gone."""
        return self.total - len(self._head) - min(len(self._tail), self._half)
