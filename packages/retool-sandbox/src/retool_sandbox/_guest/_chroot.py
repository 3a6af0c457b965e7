"""A copy of the library as the root of programs, for root on kernels without Landlock."""

import os
import shutil

from ._view import View

_SKIP = shutil.ignore_patterns("test", "tests", "site-packages", "idlelib", "tkinter", "ensurepip")


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


def build_copy(view: View, root: str) -> None:
    """Build it once; hard links where the file system allows, else copies."""
    if os.path.isdir(root):
        return
    os.mkdir(root, 0o755)
    os.mkdir(f"{root}/tmp", 0o711)
    for source, guest in view.binds():
        if source in view.system:
            continue  # shared libraries are loaded before the chroot
        target = root + guest
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(
                source, target, copy_function=_link_or_copy, ignore=_SKIP, symlinks=True
            )
        else:
            _link_or_copy(source, target)
