"""The run folder: whose it is, and that nothing in it is ever half written."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from retool_trainer.commands.run import quickstart_config
from retool_trainer.config import load_config
from retool_trainer.run_folder import (
    RunFolder,
    RunFolderError,
    replaced_folder,
    write_json,
    write_text,
)


def test_the_resolved_config_is_stored_and_the_same_config_is_welcome_again(tmp_path: Path) -> None:
    config = load_config(quickstart_config())
    folder = RunFolder(tmp_path / "run")
    folder.open(config, fresh=False)
    folder.open(config, fresh=False)
    assert json.loads(folder.config_file.read_text())["rl"]["steps"] == 32


def test_another_config_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open(load_config(quickstart_config()), fresh=False)
    other = load_config(quickstart_config(), ["rl.steps=3", "seed=5"])
    with pytest.raises(RunFolderError) as caught:
        folder.open(other, fresh=False)
    assert "rl.steps: the folder has 32, this run has 3" in str(caught.value)
    assert "seed: the folder has 0, this run has 5" in str(caught.value)


def test_stages_may_be_run_one_after_the_other_in_one_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.open(load_config(quickstart_config(), ["stages=[sft]"]), fresh=False)
    folder.open(load_config(quickstart_config(), ["stages=[rl]"]), fresh=False)


def test_fresh_deletes_a_run_but_nothing_else(tmp_path: Path) -> None:
    config = load_config(quickstart_config())
    folder = RunFolder(tmp_path / "run")
    folder.open(config, fresh=False)
    (folder.path / "metrics.jsonl").write_text("{}")
    folder.open(load_config(quickstart_config(), ["seed=1"]), fresh=True)
    assert not (folder.path / "metrics.jsonl").exists()
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="not the folder of a run"):
        RunFolder(foreign).open(config, fresh=True)
    assert (foreign / "chapter.tex").exists()


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="not empty and holds no run"):
        RunFolder(tmp_path).open(load_config(quickstart_config()), fresh=False)


def test_two_processes_cannot_have_one_folder(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run").lock(),
        pytest.raises(RunFolderError, match="another process"),
        RunFolder(tmp_path / "run").lock(),
    ):
        pass


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_json(tmp_path / "state.json", {"step": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "state.json", {"step": object()})
    assert json.loads((tmp_path / "state.json").read_text()) == {"step": 1}


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with replaced_folder(target) as temporary:
        (temporary / "weights").write_text("1")

    def fail_half_way() -> None:
        with replaced_folder(target) as temporary:
            (temporary / "weights").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert (target / "weights").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(pipe.read_text)
        write_text(pipe, "all of it")
        assert read.result(30) == "all of it"
    assert pipe.is_fifo()


def test_what_a_killed_run_was_writing_is_removed_when_it_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = load_config(quickstart_config())
    folder.open(config, fresh=False)
    drafts = [
        folder.checkpoints / "rl" / ".step-000008.tmp123",
        folder.models / ".sft.0a1b2c3d",
        folder.path / ".model.tmp123",
    ]
    whole = folder.checkpoints / "rl" / "step-000004"
    for path in (*drafts, whole):
        path.mkdir(parents=True)
        (path / "weights").write_text("x")
    (folder.path / ".gitignore").write_text("*")
    folder.open(config, fresh=False)
    assert not any(path.exists() for path in drafts)
    assert (whole / "weights").exists()
    assert (folder.path / ".gitignore").exists()


def test_a_fresh_run_may_begin_in_a_new_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        folder.open(load_config(quickstart_config()), fresh=True)
    assert folder.config_file.exists()


def test_a_link_stays_a_link_and_its_file_is_replaced(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "file"
    file.write_text("old")
    link.symlink_to(file)
    write_text(link, "all of it")
    assert link.is_symlink()
    assert file.read_text() == "all of it"
