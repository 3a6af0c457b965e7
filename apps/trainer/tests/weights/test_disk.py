"""The folder of weights: its versions come and go, and nothing stays of a run that was killed."""

import subprocess
import sys
from pathlib import Path

from retool_trainer.weights import DiskSync


def _folders(parent: Path) -> set[Path]:
    return set(parent.iterdir())


def _publish(sync: DiskSync, version: int) -> Path:
    folder = sync.next_folder(version)
    folder.mkdir()
    sync.published(folder)
    return folder


def test_a_version_stays_until_the_next_is_published(tmp_path: Path) -> None:
    sync = DiskSync(str(tmp_path))
    first = _publish(sync, 1)
    assert first.exists()
    second = _publish(sync, 2)
    assert (first.exists(), second.exists()) == (False, True)
    sync.close()
    assert _folders(tmp_path) == set()


def test_the_folder_of_a_killed_run_is_removed_and_that_of_a_running_one_stays(
    tmp_path: Path,
) -> None:
    running = DiskSync(str(tmp_path))
    kept = _publish(running, 1)
    program = (
        "import os, signal, sys\n"
        "from retool_trainer.weights import DiskSync\n"
        "sync = DiskSync(sys.argv[1])\n"
        "sync.next_folder(1).mkdir()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=120)
    assert len(_folders(tmp_path)) == 2
    next_run = DiskSync(str(tmp_path))
    assert kept.exists()
    assert len(_folders(tmp_path)) == 2
    next_run.close()
    running.close()
    assert _folders(tmp_path) == set()


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    stranger = tmp_path / "retool-weights-notes"
    stranger.mkdir()
    DiskSync(str(tmp_path)).close()
    assert _folders(tmp_path) == {stranger}
