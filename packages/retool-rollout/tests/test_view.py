"""The viewer, opened and photographed in a real browser."""

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from retool_rollout import (
    Limits,
    Reply,
    Sampling,
    ScriptedEngine,
    make_dialect,
    rollout,
    trajectory_from_dict,
    trajectory_to_dict,
)
from retool_rollout._cli import main
from retool_rollout._view import view

CALL = {"name": "code_interpreter", "arguments": {"code": "print(6 * 7)"}}
HOSTILE = "</script><script>document.title = 'owned'</script> é 😀"


@pytest.fixture
async def records(tiny, make_tools, make_question):
    """Three trajectories: right, wrong with a failed call, and cut."""
    dialect = make_dialect("hermes", tiny)
    failed = Reply(text=HOSTILE, outcome="failed", ok=False)
    cases = [
        (
            "right",
            "42",
            [dialect.turn_ids("Let me compute.", [CALL]), dialect.turn_ids(r"So \boxed{42}.", [])],
        ),
        ("wrong", failed, [dialect.turn_ids("", [CALL]), dialect.turn_ids(r"\boxed{41}", [])]),
        ("cut", "42", [dialect.turn_ids("x" * 500, [])]),
    ]
    made = []
    for name, reply, turns in cases:
        done = await rollout(
            make_question(problem_id=name),
            engine=ScriptedEngine(turns, weight_version=3),
            tools=make_tools(answer=lambda *_, reply=reply: reply),
            dialect=dialect,
            limits=Limits(),
            sampling=Sampling(max_tokens=300),
        )
        assert trajectory_from_dict(json.loads(json.dumps(trajectory_to_dict(done)))) == done
        correct = {"right": True, "wrong": False}.get(name)
        made.append({"sample": 0, "correct": correct, "gold": "42", **trajectory_to_dict(done)})
    return made


@pytest.fixture
def file(records, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_records_without_texts_need_the_tokenizer(file, tmp_path, tiny, tiny_file, capsys):
    with pytest.raises(ValueError, match="--tokenizer"):
        view(file, tmp_path / "page.html")
    assert view(file, tmp_path / "page.html", tokenizer=tiny, limit=2) == 2
    assert main(["view", str(file), "--tokenizer", str(tiny_file)]) == 0
    assert capsys.readouterr().out.endswith("samples.html: 3 trajectories\n")
    assert main(["view", str(tmp_path / "nothing.jsonl")]) == 2


def test_what_the_view_command_cannot_use_is_named(file, tmp_path, tiny_file, capsys):
    other = tmp_path / "other.jsonl"
    other.write_text('{"problem": "6 * 7?"}\n')
    for arguments, words in (
        ([other], "other.jsonl, record 1: this is no trajectory, it has no 'ids'"),
        ([file, "--tokenizer", other], "this is no tokenizer.json: it has no model"),
        ([file, "--tokenizer", tiny_file, "--limit", "0"], "limit must be >= 1, got 0"),
    ):
        assert main(["view", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err


def test_tool_output_cannot_end_the_script(file, tmp_path, tiny):
    view(file, tmp_path / "page.html", tokenizer=tiny)
    page = (tmp_path / "page.html").read_text()
    assert page.count("</script>") == 1
    data = re.search(r"const data = (.*);\n", page)[1]
    assert HOSTILE in "".join(json.loads(data)["rows"][1]["texts"])


def chromium(*arguments, folder):
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        if os.environ.get("RETOOL_REQUIRE_CHROMIUM"):
            pytest.fail("no chromium on this machine, and RETOOL_REQUIRE_CHROMIUM is set")
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --hide-scrollbars"
    flags += " --disable-background-networking --disable-component-update --disable-sync"
    return subprocess.run(
        [browser, *flags.split(), f"--user-data-dir={folder / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


def test_the_page_shows_turns_tokens_and_outcomes_in_a_browser(file, tmp_path, tiny):
    page = tmp_path / "page.html"
    view(file, page, tokenizer=tiny)
    document = chromium("--virtual-time-budget=3000", "--dump-dom", page.as_uri(), folder=tmp_path)
    assert "<title>samples.jsonl</title>" in document
    assert "3 of 3 trajectories" in document
    assert document.count('class="policy"') == 2
    assert document.count('class="tool"') == 1
    assert "code_interpreter: ok" in document
    assert "answer: 42" in document
    # Half as likely: ln(0.5) / -5 * 0.75.
    assert "rgba(220, 38, 38, 0.1)" in document or "rgb(220 38 38 / 0.1" in document
    # The same page with a filter set, as a reader would set it.
    filtered = tmp_path / "filtered.html"
    act = "$('grade').value = 'false'; $('grade').oninput();"
    filtered.write_text(page.read_text().replace("</script>", f"{act}</script>"))
    shown = chromium("--virtual-time-budget=3000", "--dump-dom", filtered.as_uri(), folder=tmp_path)
    assert "1 of 3 trajectories" in shown
    assert "code_interpreter: failed" in shown
    picture = tmp_path / "page.png"
    chromium(f"--screenshot={picture}", "--window-size=1200,900", page.as_uri(), folder=tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000


def test_a_pipe_is_written_to_and_not_replaced(file, tiny, tmp_path):
    pipe = tmp_path / "page"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as thread:
        read = thread.submit(pipe.read_text)
        assert view(file, pipe, tokenizer=tiny) == 3
        assert "</html>" in read.result(30)
    assert pipe.is_fifo()


def test_a_link_stays_a_link_and_its_file_is_replaced(file, tiny, tmp_path):
    link, page = tmp_path / "link", tmp_path / "page.html"
    page.write_text("old")
    link.symlink_to(page)
    assert view(file, link, tokenizer=tiny) == 3
    assert link.is_symlink()
    assert "</html>" in page.read_text()
