"""The evaluator: right numbers, and no sample made twice."""

import asyncio
import json
import math
import signal
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retool_rollout import Limits, Sampling, Status, VllmEngine, make_dialect
from retool_rollout._evaluate import evaluate, grade_exactly
from retool_rollout._problems import read_problems
from retool_rollout._record import read_jsonl
from retool_rollout._statistics import pass_at_k, summarise

CALL = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def data(tmp_path):
    rows = [{"problem": f"{i} * 7?", "answer": i * 7} for i in range(4, 8)]
    return write_lines(tmp_path / "data.jsonl", rows)


def test_pass_at_k_counts_subsets():
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0
    with pytest.raises(ValueError, match="between 1 and n = 4"):
        pass_at_k(4, 1, 5)


def test_a_summary_has_avg_and_pass_with_intervals():
    scores = summarise({"a": [True, True, False, False], "b": [False] * 4, "c": []})
    assert list(scores) == ["avg@4", "pass@1", "pass@2", "pass@4"]
    assert scores["avg@4"].mean == 0.25
    assert scores["pass@4"].mean == 0.5
    assert scores["pass@4"].low == 0.0
    assert scores["pass@4"].high == 1.0
    assert summarise({}) == {}


@given(
    st.dictionaries(
        st.text(max_size=3), st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=6
    )
)
def test_estimates_lie_in_their_intervals_and_pass_grows_with_k(grades):
    scores = summarise(grades)
    for estimate in scores.values():
        assert 0.0 <= estimate.low <= estimate.mean + 1e-9
        assert estimate.mean <= estimate.high + 1e-9 <= 1.0 + 2e-9
    passes = [estimate.mean for name, estimate in scores.items() if name.startswith("pass")]
    assert passes == sorted(passes)
    assert math.isclose(passes[0], next(iter(scores.values())).mean)


@pytest.mark.parametrize(
    ("row", "question", "gold"),
    [
        ({"problem": "Q", "answer": 7}, "Q!", "7"),
        ({"Problem": "Q", "Answer": "7"}, "Q!", "7"),
        ({"input": "Q", "output": "7"}, "Q!", "7"),
        ({"statement": "Q", "gold": "7", "prefix": "<", "suffix": ">"}, "<Q>!", "7"),
        ({"prompt": [{"role": "user", "content": "Q"}], "label": "7"}, "Q!", "7"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Q"}]}], "label": 7},
            "Q!",
            "7",
        ),
        ({"prompt": "Q", "reward_model": {"style": "rule"}, "answer": "7"}, "Q!", "7"),
        (
            {"prompt": [{"role": "user", "content": "Q"}], "reward_model": {"ground_truth": "7"}},
            "Q!",
            "7",
        ),
    ],
)
def test_the_usual_files_are_read(tmp_path, row, question, gold):
    (problem,) = read_problems(write_lines(tmp_path / "x.jsonl", [row]), suffix="!")
    assert (problem.messages[-1]["content"], problem.gold) == (question, gold)
    assert problem.problem_id == "x-1"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"q": 1}], "no question"),
        ([{"problem": "Q"}], "no answer"),
        ([{"problem": "Q", "reward_model": {"style": "rule"}}], "no answer"),
        ([], "no problems"),
        ([{"problem": "Q", "answer": 1, "id": "a"}] * 2, "'a' stands there twice"),
        ([{"problem": 7, "answer": 1}], "text or a list"),
    ],
)
def test_a_bad_file_is_named(tmp_path, rows, words):
    with pytest.raises(ValueError, match=words):
        read_problems(write_lines(tmp_path / "x.jsonl", rows))


@pytest.mark.parametrize(
    ("answer", "gold", "right"),
    [
        ("042", "42", True),
        ("$1,000$", "1000", True),
        ("42.0", "42", True),
        ("x+1", "x + 1", True),
        ("41", "42", False),
    ],
)
async def test_exact_grading_compares_numbers_as_numbers(answer, gold, right):
    class Done:
        pass

    done = Done()
    done.answer = answer
    assert await grade_exactly(done, gold) is right
    done.answer = None
    assert await grade_exactly(done, gold) is False


@pytest.fixture
def options(tiny, tools, fake_server):
    dialect = make_dialect("hermes", tiny, tool_specs=())
    fake_server.turns = [dialect.turn_ids("", [CALL]), dialect.turn_ids(r"\boxed{42}", [])]
    return {
        "tools": tools,
        "dialect": dialect,
        "limits": Limits(),
        "sampling": Sampling(max_tokens=500),
        "concurrency": 4,
        "grader": grade_exactly,
        "settings": {"temperature": 1.0},
    }


async def test_finished_samples_are_kept_and_aborted_ones_made_later(
    data, tmp_path, fake_server, options
):
    problems = read_problems(data)
    folder = tmp_path / "out"
    async with VllmEngine(fake_server.url, attempts=1) as engine:
        fake_server.status, fake_server.text = 400, "no"
        first = await evaluate(problems, num_samples=2, folder=folder, engine=engine, **options)
        assert (first["samples"], first["missing"], first["scores"]) == (0, 8, {})
        fake_server.status = 200
        second = await evaluate(problems, num_samples=2, folder=folder, engine=engine, **options)
        assert (second["samples"], second["missing"]) == (8, 0)
        assert (
            second["scores"]["avg@2"]["mean"] == 0.25
        )  # one of four problems has 42 as its answer
        assert second["tool_outcomes"] == {"ok": 8}
        # A writer that was killed leaves half a line, perhaps half a character: that sample is
        # made again, the others are not.
        path = folder / "samples.jsonl"
        path.write_bytes(path.read_bytes()[:-100] + "é".encode()[:1])
        asked = len(fake_server.bodies)
        third = await evaluate(problems, num_samples=2, folder=folder, engine=engine, **options)
        assert third["scores"] == second["scores"]
        assert len(fake_server.bodies) == asked + 2
        records = list(read_jsonl(path))
        assert len({(r["problem_id"], r["sample"]) for r in records}) == len(records) == 8
        assert all("".join(r["tokens"]).endswith("\\boxed{42}<|im_end|>") for r in records)
        assert {r["status"] for r in records} == {Status.COMPLETED}
        options["settings"] = {"temperature": 0.5}
        with pytest.raises(ValueError, match=r"temperature = 1\.0"):
            await evaluate(problems, num_samples=2, folder=folder, engine=engine, **options)


async def test_the_command_killed_and_restarted_repeats_nothing(
    data, tmp_path, tiny_file, fake_server, tiny
):
    dialect = make_dialect("hermes", tiny)
    fake_server.turns = [dialect.turn_ids("", [CALL]), dialect.turn_ids(r"\boxed{42}", [])]
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "retool_rollout._cli", "eval", "--endpoint", fake_server.url]
    command += ["--tokenizer", str(tiny_file.parent), "--data", str(data), "--n", "8", "--json"]
    command += [
        "--output",
        str(folder),
        "--tools",
        "none",
        "--grader",
        "exact",
        "--concurrency",
        "2",
    ]

    async def slowly(request):
        await asyncio.sleep(0.05)

    fake_server.fault = slowly
    first = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    samples = folder / "samples.jsonl"
    async with asyncio.timeout(60):
        while not (samples.exists() and samples.read_text().count("\n") >= 5):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    await first.communicate()
    kept = Counter((r["problem_id"], r["sample"]) for r in read_jsonl(samples, torn_end=True))
    assert 5 <= len(kept) < 32
    fake_server.fault = None
    asked = len(fake_server.bodies)
    second = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await second.communicate()
    assert second.returncode == 0
    assert json.loads(output)["samples"] == 32
    assert len(fake_server.bodies) - asked == 2 * (32 - len(kept))
    every = Counter((r["problem_id"], r["sample"]) for r in read_jsonl(samples))
    assert len(every) == 32
    assert max(every.values()) == 1
