"""What our own machinery failed to do; never the fate of a program."""


class SandboxError(Exception):
    """The sandbox did not do its work. Must never reach the model as tool output."""


class IsolationUnavailable(SandboxError):  # noqa: N818 (the public name says the fact)
    """No isolation level that was asked for can be had here; the message names each remedy."""


class RunLost(SandboxError):  # noqa: N818
    """The process that ran the program was killed from outside before it could answer."""


class QueueFull(SandboxError):  # noqa: N818
    """The service has no room for another run; try again later."""
