"""The two ways in which a run ends early, each told to the user in one line without a traceback."""


class RunRefusedError(Exception):
    """The run cannot be done as asked: a setting, a file or the machine is in the way (exit 2)."""


class RunFailedError(Exception):
    """The run broke while it was under way; it continues from its last checkpoint (exit 1)."""


class PolicyError(RunFailedError):
    """The policy cannot take a step.

    It and `CheckpointError` are raised in an actor and unpickled in the driver, which must not
    import Megatron for that: so they are not in `retool_trainer.policy`.
    """


class CheckpointError(RunRefusedError):
    """A model folder or checkpoint cannot be used; the message names the file and the value."""
