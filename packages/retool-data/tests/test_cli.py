import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from retool_data import _commands, _extras, load, load_packs, load_samples
from retool_data._cli import main
from retool_data._extras import open_rendering
from retool_data._stats import summarise

Run = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, dict[str, Any], str]:
        code = main([*map(str, arguments), "--json"])
        captured = capsys.readouterr()
        return code, json.loads(captured.out) if captured.out else {}, captured.err

    return call


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "problems.jsonl"
    rows = [{"question": f"What is {i} plus {i}?", "answer": f"#### {2 * i}"} for i in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    return file


@pytest.fixture
def chats(tmp_path: Path, raw_row: dict[str, Any]) -> Path:
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps(raw_row) + "\n")
    return file


def test_load_says_the_shape_and_writes_records(run: Run, problems: Path, tmp_path: Path) -> None:
    code, summary, _ = run("load", problems, "-o", tmp_path / "out.parquet", "--limit", 3)
    assert code == 0
    assert summary["shapes"] == {"gsm8k": 3}
    assert summary["first"]["gold_kind"] == "integer"
    assert len(list(load(tmp_path / "out.parquet"))) == 3


def test_bad_rows_are_named_by_line_and_the_rest_is_written(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        '{"prompt": "One?", "label": "1"}\n{"prompt": \n{"prompt": "", "label": "2"}\n'
    )
    code, summary, errors = run("convert", source, "--to", "slime", "-o", out)
    assert code == 1
    assert (summary["bad_rows"], summary["written"]) == (2, 1)
    assert "bad row rows.jsonl:2: not JSON" in errors
    assert "bad row rows.jsonl:3: does not read as slime_rl: the prompt is empty" in errors
    assert out.read_text().count("\n") == 1


def test_convert_maps_columns_and_rewrites_the_answer_form(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"frage": "One?", "loesung": 1}\n')
    options = ["--map", "prompt=frage", "--map", "label=loesung", "--answer-form", "boxed"]
    code, _, _ = run("convert", source, "--to", "slime", "--plain", "-o", out, *options)
    assert code == 0
    row = json.loads(out.read_text())
    assert "Answer: \\boxed{$Answer}" in row["prompt"]
    assert row["label"] == "1"


def test_an_unknown_shape_ends_with_two_and_advice(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"frage": "One?"}\n')
    code, summary, errors = run("load", source)
    assert (code, summary) == (2, {})
    assert "frage (str)" in errors
    assert "--map prompt=COLUMN" in errors


def test_a_missing_file_ends_with_two(run: Run) -> None:
    code, _, errors = run("stats", "nothing.jsonl")
    assert code == 2
    assert "no file 'nothing.jsonl'" in errors


def test_dedupe_writes_what_is_kept_and_a_report(run: Run, problems: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, summary, _ = run("dedupe", problems, "-o", tmp_path / "out.jsonl", "--report", report)
    assert code == 0
    assert (summary["kept"], summary["duplicates"]) == (4, {"exact": 1})
    (evidence,) = json.loads(report.read_text())["evidence"]
    assert evidence["duplicate_of"] == "problems:1"
    assert evidence["problem_id"] == "problems:5"


def test_decontaminate_reports_the_evidence(run: Run, problems: Path, tmp_path: Path) -> None:
    bench, report = tmp_path / "bench.jsonl", tmp_path / "report.json"
    bench.write_text('{"problem": "What is $3$ plus $3$?", "answer": "6"}\n')
    out = tmp_path / "out.jsonl"
    code, summary, _ = run(
        "decontaminate", problems, "--against", bench, "-o", out, "--report", report
    )
    assert code == 0
    assert (summary["contaminated"], summary["written"]) == (1, 4)
    (hit,) = json.loads(report.read_text())["evidence"]
    assert (hit["row"], hit["same_gold"], hit["shared_text"]) == (4, True, "whatis3plus3")


def test_lint_prints_findings_and_fails_on_errors(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"prompt": "Give \\\\boxed{4}.", "label": "4"}\n{"prompt": \n')
    report = tmp_path / "report.json"
    code, summary, _ = run("lint", source, "--report", report)
    assert code == 1
    assert summary["findings"] == {"answer_in_problem": 1, "unreadable": 1}
    assert {f["code"] for f in json.loads(report.read_text())["evidence"]} == {
        "answer_in_problem",
        "unreadable",
    }


def test_lint_explains_its_codes(run: Run) -> None:
    code, codes, _ = run("lint", "--codes")
    assert code == 0
    assert codes["mask_all_ones"].startswith("error: every token is trained")


def test_lint_without_a_file_says_what_it_needs(run: Run) -> None:
    code, _, errors = run("lint")
    assert code == 2
    assert "lint needs a file" in errors


def test_percentiles_are_the_nearest_rank() -> None:
    shown = summarise(list(range(1, 11)))
    assert (shown["p50"], shown["p90"], shown["p99"]) == (5, 9, 10)


def test_stats_count_records(run: Run, chats: Path) -> None:
    _, summary, _ = run("stats", chats)
    assert summary["rows"] == 1
    assert summary["tool"] == {"code_interpreter": 2}
    assert summary["calls"]["max"] == 2


def test_the_lines_for_people_name_every_fact(chats: Path, capsys: Any) -> None:
    assert main(["stats", str(chats)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ok", "rows", "1"]
    assert any(line.startswith("ok      tool               code_interpreter 2") for line in lines)


def test_a_missing_sibling_names_its_extra(
    run: Run, chats: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "retool_sandbox", None)
    monkeypatch.setitem(sys.modules, "retool_rollout", None)
    code, _, errors = run("validate", chats, "-o", tmp_path / "o.jsonl")
    assert code == 2
    assert "pip install 'retool-data[sandbox]'" in errors
    code, _, errors = run("tokenize", chats, "-o", tmp_path / "o.jsonl", "--tokenizer", tmp_path)
    assert code == 2
    assert "pip install 'retool-data[rollout]'" in errors
    assert not (tmp_path / "o.jsonl").exists()


def test_validate_replays_in_the_sandbox(run: Run, chats: Path, tmp_path: Path) -> None:
    pytest.importorskip("retool_sandbox", reason="needs retool-data[sandbox]")
    row = json.loads(chats.read_text())
    text = row["messages"][1]["content"].replace("<interpreter>43<", "<interpreter>44<")
    row["messages"][1]["content"] = text
    chats.write_text(json.dumps(row) + "\n")
    out, report = tmp_path / "out.jsonl", tmp_path / "report.json"
    options = ["-o", out, "--action", "repair", "--report", report]
    code, summary, errors = run("validate", chats, *options)
    if "IsolationUnavailable" in errors:
        pytest.skip(f"no sandbox on this machine: {errors}")
    assert code == 1
    assert summary["outputs"] == {"exact": 1, "mismatch": 1}
    (found,) = json.loads(report.read_text())["findings"]
    assert found["evidence"] == "recorded '44', replayed '43'"


@pytest.mark.parametrize("in_group", [False, True])
def test_a_sandbox_that_does_not_work_ends_with_two_and_says_why(
    in_group: bool, run: Run, chats: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    sandbox = pytest.importorskip("retool_sandbox", reason="needs retool-data[sandbox]")
    lost = sandbox.RunLost("killed from outside")

    @asynccontextmanager
    async def broken(**_: Any) -> AsyncIterator[None]:
        raise ExceptionGroup("tasks", [lost]) if in_group else lost
        yield

    monkeypatch.setattr(sandbox, "Sandbox", broken)
    code, _, errors = run("validate", chats, "-o", tmp_path / "out.jsonl")
    assert (code, errors) == (2, "retool-data: RunLost: killed from outside\n")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["-o", "out.csv"], "write to a .jsonl or .parquet file"),
        (["-o", "nowhere/out.jsonl"], "no folder 'nowhere'"),
        (["-o", "out.jsonl", "--report", "nowhere/r.json"], "no folder 'nowhere'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(
    options: list[str], reason: str, run: Run, chats: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("retool_data._commands.open_executor", None)  # not called
    code, _, errors = run("validate", chats, *options)
    assert code == 2
    assert reason in errors


def test_the_benchmark_is_read_by_its_own_columns(run: Run, tmp_path: Path) -> None:
    source, bench, out = (tmp_path / name for name in ("s.jsonl", "b.jsonl", "o.jsonl"))
    source.write_text('{"frage": "What is 3 plus 3?", "loesung": "6"}\n')
    bench.write_text('{"problem": "What is $3$ plus $3$?", "answer": "6"}\n{"problem": "x"}\n')
    options = ["--map", "prompt=frage", "--map", "label=loesung", "--against", bench, "-o", out]
    code, summary, errors = run("decontaminate", source, *options)
    assert (code, summary["contaminated"], summary["bad_benchmark_rows"]) == (1, 1, 1)
    assert "bad row b.jsonl:2" in errors


def test_a_row_that_parquet_cannot_hold_is_a_bad_row_and_the_rest_is_written(
    run: Run, tmp_path: Path, verl_row: dict[str, Any]
) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out.parquet"
    other = json.dumps(verl_row).replace('"code": "x', '"query": "x')
    source.write_text(f"{other}\n{json.dumps(verl_row)}\n")
    code, summary, errors = run("convert", source, "--to", "verl", "-o", out)
    assert (code, summary["written"], len(list(load(out)))) == (1, 1, 1)
    assert "bad row rows.jsonl:1: Parquet would drop" in errors


def test_facts_stand_on_one_line_each(tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"prompt": "One\\ntwo?", "label": "1"}\n')
    assert main(["load", str(source)]) == 0
    assert "statement One\\ntwo?, gold 1" in capsys.readouterr().out
    assert main(["lint", "--codes"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "warning replay_nondeterministic    two runs of the call print different things" in out


def test_a_row_that_cannot_be_tokenised_is_viewed_without_tokens(
    run: Run, tmp_path: Path, tiny_tokenizer_file: Path, raw_row: dict[str, Any]
) -> None:
    pytest.importorskip("retool_rollout", reason="needs retool-data[rollout]")
    source, page = tmp_path / "rows.jsonl", tmp_path / "page.html"
    broken = json.dumps(raw_row).replace("<interpreter>42</interpreter>", "")
    source.write_text(f"{broken}\n{json.dumps(raw_row)}\n")
    code, summary, errors = run("view", source, "-o", page, "--tokenizer", tiny_tokenizer_file)
    assert (code, summary["shown"], summary["bad_rows"]) == (1, 2, 1)
    assert "bad row rows.jsonl:1: turn 1 has text after a call" in errors


def test_a_file_of_another_kind_is_named(run: Run, problems: Path, tmp_path: Path) -> None:
    code, _, errors = run("pack", problems, "--max-tokens", 9, "-o", tmp_path / "o.jsonl")
    assert code == 2
    assert "problems.jsonl:1: no token sample; `tokenize` writes them" in errors
    (tmp_path / "report.json").write_text("[]")
    options = ["-o", tmp_path / "page.html", "--findings", tmp_path / "report.json"]
    code, _, errors = run("view", problems, *options)
    assert code == 2
    assert "report.json is no --report of" in errors


def test_tokenize_pack_lint_stats_and_view(
    run: Run, chats: Path, tmp_path: Path, tiny_tokenizer_file: Path
) -> None:
    pytest.importorskip("retool_rollout", reason="needs retool-data[rollout]")
    samples, packs = tmp_path / "samples.parquet", tmp_path / "packs.parquet"
    for dialect in ("hermes", "retool"):
        code, summary, _ = run(
            "tokenize",
            chats,
            "-o",
            samples,
            "--tokenizer",
            tiny_tokenizer_file,
            "--dialect",
            dialect,
        )
        assert code == 0
        assert (summary["written"], summary["dialect"]) == (1, dialect)
        assert len(summary["tokenizer_hash"]) == 64
    (sample,) = load_samples(samples)
    rendering = open_rendering(str(tiny_tokenizer_file), dialect="retool", system_prompt=None)
    trained = [i for i, bit in zip(sample.ids, sample.mask, strict=True) if bit]
    assert rendering.decode(trained) == (
        "Let me compute it.\n\n<code>\n```python\nx = 6 * 7\nprint(x)\n```\n</code>"
        "It is 42. Once more:\n\n<code>\n```python\nprint(x + 1)\n```\n</code>"
        "<answer>\n\\boxed{42}\n</answer><|im_end|>"
    )
    code, summary, _ = run("pack", samples, "--max-tokens", 1000, "-o", packs)
    assert (code, summary["samples"], summary["written"]) == (0, 1, 1)
    assert len(list(load_packs(packs))) == 1
    assert run("lint", "--samples", samples)[0] == 0
    assert run("stats", samples)[1]["tokens"]["count"] == 1
    assert run("stats", packs)[1]["samples_per_pack"]["max"] == 1
    page = tmp_path / "page.html"
    code, summary, _ = run("view", chats, "-o", page, "--tokenizer", tiny_tokenizer_file)
    assert (code, summary["shown"]) == (0, 1)
    assert "im_start" in page.read_text()


def test_the_template_is_compared_with_the_system_prompt_and_missed_where_there_is_none(
    run: Run, chats: Path, tmp_path: Path, tiny_tokenizer_file: Path
) -> None:
    pytest.importorskip("retool_rollout", reason="needs retool-data[rollout]")
    (tmp_path / "tokenizer.json").symlink_to(tiny_tokenizer_file)
    report = tmp_path / "report.json"
    common = ["tokenize", chats, "-o", tmp_path / "o.jsonl", "--tokenizer", tmp_path]
    options = ["--compare-template", "--system-prompt", "Be good.", "--report", report]
    code, _, errors = run(*common, *options)
    assert code == 2
    assert "no chat_template.jinja" in errors
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
        "{% for call in message.tool_calls or [] %}{{ '\n' if message.content or not loop.first }}"
        '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
        "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    named = [{"name": "default", "template": template}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    code, summary, _ = run(*common, *options)
    assert (code, summary["written"]) == (0, 1)
    assert json.loads(report.read_text())["findings"] == []


def test_too_long_rows_are_counted_or_refused(
    run: Run, chats: Path, tmp_path: Path, tiny_tokenizer_file: Path
) -> None:
    pytest.importorskip("retool_rollout", reason="needs retool-data[rollout]")
    common = ["tokenize", chats, "-o", tmp_path / "o.jsonl", "--tokenizer", tiny_tokenizer_file]
    code, summary, _ = run(*common, "--max-tokens", 50)
    assert (code, summary["written"], summary["too_long"]) == (0, 0, 1)
    code, _, errors = run(*common, "--max-tokens", 50, "--too-long", "refuse")
    assert code == 2
    assert "chats.jsonl:1 has" in errors


def test_a_folder_without_a_tokenizer_is_named(run: Run, chats: Path, tmp_path: Path) -> None:
    pytest.importorskip("retool_rollout", reason="needs retool-data[rollout]")
    code, _, errors = run("tokenize", chats, "-o", tmp_path / "o.jsonl", "--tokenizer", tmp_path)
    assert code == 2
    assert "no tokenizer.json at" in errors


def test_the_package_imports_without_the_heavy_libraries() -> None:
    program = (
        "import sys, retool_data\n"
        "heavy = {'torch', 'datasets', 'pyarrow', 'pandas', 'numpy', 'transformers', 'ray', "
        "'vllm', 'jinja2', 'rich', 'tokenizers', 'retool_sandbox', 'retool_rollout'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"


def test_the_extras_are_imported_inside_functions_only() -> None:
    lines = Path(_extras.__file__).read_text().splitlines()
    siblings = [line for line in lines if re.search(r"from retool_(sandbox|rollout) import", line)]
    assert len(siblings) == 2
    assert all(line.startswith("        ") for line in siblings)


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "one?", "answer": "1"}\n')
    program = "import sys; from retool_data._cli import main; sys.exit(main())"
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-c", program, "stats", str(rows), "--json"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_in_one_line(run: Run, chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(_commands, "stats_command", interrupted)
    assert run("stats", chats)[::2] == (130, "retool-data: stopped\n")
