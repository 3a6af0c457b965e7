"""How the loop is left: one exception that carries status and reason."""

from ._trajectory import Status, StopReason


class End(Exception):  # noqa: N818 - a way out of the loop, not an error
    """The trajectory is over."""

    def __init__(self, status: Status, reason: StopReason, error: str | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.error = status, reason, error
