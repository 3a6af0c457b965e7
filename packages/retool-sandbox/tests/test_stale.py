"""What is cleaned up after a sandbox that was killed, and what is not ours to clean up."""

import os
from pathlib import Path

import pytest

from retool_sandbox._guest._stale import dead_bases, hold

DEAD = 1 << 30  # more than any pid


def test_base_of_a_dead_caller_is_found_unless_somebody_holds_it(tmp_path: Path) -> None:
    base = tmp_path / f"retool-sandbox-{DEAD}-a"
    base.mkdir()
    held = hold(str(base))
    assert list(dead_bases(str(tmp_path))) == []
    os.close(held)
    assert list(dead_bases(str(tmp_path))) == [str(base)]


def test_link_is_never_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "lock").touch()
    (tmp_path / f"retool-sandbox-{DEAD}-a").symlink_to(victim)
    assert list(dead_bases(str(tmp_path))) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away needs root")
def test_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    base = tmp_path / f"retool-sandbox-{DEAD}-a"
    base.mkdir()
    (base / "lock").touch()
    os.chown(base, 65534, 65534)
    assert list(dead_bases(str(tmp_path))) == []
