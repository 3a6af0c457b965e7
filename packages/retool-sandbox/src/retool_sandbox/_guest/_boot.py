"""Start of the exec'ed side: read the config, build the jail, become zygote, then child."""

import gc
import os
import sys
import traceback

from .._frames import pack
from . import _program
from ._cgroups import NoSlots
from ._rungs import Jail
from ._zygote import InChild, Setup, Zygote, close_in_child

_TIERS = {"stdlib": [], "math": ["numpy", "sympy"], "science": ["numpy", "sympy", "scipy", "pandas"]}


def _become_child(setup: Setup) -> tuple[int, bool]:
    close_in_child([setup.link, *setup.cgroup_fds])
    setup.jail.enter(setup.profile)
    return setup.link, setup.session


def boot(fd: int) -> tuple[int, bool] | None:
    """Serve as the zygote; in a child, return what the program runner needs.

    Returns:
        None in the zygote itself, after the caller closed the control descriptor.
    """
    request = _program.read_request(fd)
    if request is None:
        return None
    config = request[0]
    try:
        for entry in config["path"]:
            if entry not in sys.path:
                sys.path.append(entry)
        for name in _TIERS[config["tier"]]:
            __import__(name)
        jail = Jail()
        gc.collect()
        gc.freeze()
        Zygote(fd, jail, NoSlots(), config).serve()
    except InChild as child:
        setup = child.setup
    except BaseException:
        os.set_blocking(fd, True)
        os.write(fd, pack({"op": "broken", "reason": traceback.format_exc()}))
        raise
    else:
        return None
    _program.reseed(None)
    return _become_child(setup)
