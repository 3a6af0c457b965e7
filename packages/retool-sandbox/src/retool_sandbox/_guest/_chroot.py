"""A copy of the library as the root of programs, for root on kernels without Landlock."""

import os

from ._view import View

_SKIP = ("test", "tests", "site-packages", "idlelib", "tkinter", "ensurepip")


def build_copy(view: View, root: str) -> None:
    """Build it; hard links where the file system allows, else copies."""
    import shutil  # only this level needs it, and every start would pay for it

    def link_or_copy(source: str, target: str) -> str:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
        return target

    os.mkdir(root, 0o755)
    os.mkdir(f"{root}/tmp", 0o711)
    for source, guest in view.binds():
        if source in view.system:
            continue  # shared libraries are loaded before the chroot
        target = root + guest
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(
                source, target, symlinks=True, copy_function=link_or_copy,
                ignore=shutil.ignore_patterns(*_SKIP),
            )  # fmt: skip
        else:
            link_or_copy(source, target)
