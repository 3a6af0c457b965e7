"""The real rows of shared/data: nothing is copied from them, and the tests skip without them."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retool_data import (
    DedupeReport,
    LoadCounts,
    Trajectory,
    convert,
    dedupe,
    find_contamination,
    lint,
    load,
    load_problems,
    load_trajectories,
    validate,
)

SHAPES = {
    "aime24_llmeval": "prompt_answer",
    "aime24_nemoskills": "nemo",
    "aime24_retool": "input_output",
    "dapo_goldilocks": "dapo_reference",
    "gsm8k_test": "gsm8k",
    "math500_llmeval": "prompt_answer",
    "retool_like_flower418": "retool_raw",
    "retool_sft_verl_form": "verl_sft",
    "tora_code34b_gsm8k": "tora_output",
    "verl_form_aime24_simpletir": "verl_rl",
    "verl_form_torl_test": "verl_rl",
}
AIME = {
    "24": ["aime24_llmeval", "aime24_nemoskills", "aime24_retool", "verl_form_aime24_simpletir"],
    "25": ["aime25_llmeval", "aime25_nemoskills", "aime25_retool", "verl_form_aime25_simpletir"],
    "26": ["aime26_llmeval"],
}
CLEAN = [
    "math500_llmeval",
    "verl_form_math35_simpletir_1000",
    "gsm8k_test",
    "gsm8k_train_2000",
    "dapo_goldilocks",
]


def file(folder: Path, name: str) -> Path:
    return folder / f"{name}.jsonl"


def raw_rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file(folder, name).read_bytes().splitlines()]


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_every_file_is_recognised(shared_data: Path, name: str, shape: str) -> None:
    counts = LoadCounts()
    for _ in load(file(shared_data, name), counts=counts):
        pass
    assert set(counts.shapes) == {shape}
    assert counts.bad == 0


@pytest.mark.parametrize("year", AIME)
def test_all_copies_of_an_aime_collapse_to_thirty_problems(shared_data: Path, year: str) -> None:
    for order in (AIME[year], AIME[year][::-1]):
        rows = [p for name in order for p in load_problems(file(shared_data, name))]
        assert len(list(dedupe(rows))) == 30


def test_the_hundredfold_repetition_of_dapo_is_found(shared_data: Path) -> None:
    rows = raw_rows(shared_data, "dapo_goldilocks")
    counts = LoadCounts()
    assert len(list(load(rows * 100, unique=True, counts=counts))) == 22
    assert counts.repeated == 22 * 99
    report = DedupeReport()
    assert len(list(dedupe(load(rows * 100), report=report))) == 22
    assert report.levels["exact"] == 22 * 99


def test_no_clean_row_is_called_contaminated(shared_data: Path) -> None:
    rows = [p for name in CLEAN for p in load_problems(file(shared_data, name))]
    hidden = [p for year in AIME for p in load_problems(file(shared_data, AIME[year][0]))]
    assert len(rows) == 4841
    assert find_contamination(rows, hidden) == []


@pytest.mark.parametrize("year", ["24", "25"])
def test_every_other_copy_of_an_aime_is_called_contaminated(shared_data: Path, year: str) -> None:
    first, *others = AIME[year]
    hidden = list(load_problems(file(shared_data, first)))
    for name in others:
        rows = list(load_problems(file(shared_data, name)))
        found = find_contamination(rows, hidden)
        assert len(found) == 30
        assert len({hit.benchmark_id for hit in found}) == 30


@pytest.mark.parametrize("name", ["retool_like_flower418", "retool_sft_verl_form", "tora_examples"])
def test_real_trajectories_come_back_from_every_layout(shared_data: Path, name: str) -> None:
    records = list(load_trajectories(file(shared_data, name)))
    for to in ("records", "retool", "hermes", "slime", "verl", "trl"):
        assert list(load(convert(records, to))) == records


def test_the_raw_rows_go_through_hermes_and_back_byte_for_byte(shared_data: Path) -> None:
    raw = raw_rows(shared_data, "retool_like_flower418")
    hermes = list(convert(load(raw), "hermes"))
    assert "<tool_call>" in hermes[0]["messages"][1]["content"]
    assert list(convert(load(hermes), "retool", plain=True)) == raw


def test_the_seed_scripts_are_reproduced_on_real_rows(shared_data: Path) -> None:
    raw = raw_rows(shared_data, "retool_like_flower418")
    assert list(convert(load(raw), "slime", plain=True)) == raw  # sft_data_processing: identity
    for name in ("verl_form_math35_simpletir_1000", "verl_form_aime24_simpletir"):
        rows = raw_rows(shared_data, name)
        seed = [
            {"prompt": row["prompt"][0]["content"], "label": row["reward_model"]["ground_truth"]}
            for row in rows
        ]
        assert list(convert(load(rows), "slime", plain=True)) == seed


def test_lint_finds_the_real_faults_and_few_others(shared_data: Path) -> None:
    damaged = list(lint(load(file(shared_data, "verl_form_aime25_simpletir"))))
    assert {(f.code, f.row) for f in damaged} == {("latex_unescaped", n) for n in (19, 23, 30)} or (
        {f.code for f in damaged} == {"latex_unescaped"} and len(damaged) == 3
    )
    forms = list(lint(load(file(shared_data, "dapo_goldilocks"))))
    assert {f.code for f in forms} == {"answer_form_mismatch"}
    assert len(forms) == 22
    for name in itertools.chain(AIME["24"], ["gsm8k_train_2000"]):
        assert list(lint(load(file(shared_data, name)))) == []


def test_tora_rows_hold_1318_outputs(shared_data: Path) -> None:
    rows = list(load_trajectories(file(shared_data, "tora_code34b_gsm8k")))
    assert all(isinstance(row, Trajectory) for row in rows)
    assert sum(len(turn.results) for row in rows for turn in row.turns()) == 1318


async def test_all_1318_tora_outputs_replay(shared_data: Path) -> None:
    sandbox = pytest.importorskip("retool_sandbox", reason="needs retool-data[sandbox]")
    rows = load_trajectories(file(shared_data, "tora_code34b_gsm8k"))
    # A minute: what is tested is the output, however busy the machine is.
    limits = sandbox.Limits(wall_time_s=60.0)
    statuses = Counter[str]()
    try:
        async with sandbox.Sandbox(limits=limits) as box:
            async for row in validate(rows, sandbox.code_interpreter(box)):
                assert row.findings == ()
                results = [s.result for s in row.trajectory.segments if s.result is not None]
                statuses.update(str(result.status) for result in results)
    except sandbox.IsolationUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    assert statuses == {"exact": 1316, "same_error": 2}
