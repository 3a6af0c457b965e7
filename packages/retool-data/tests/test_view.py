"""The page: looks at nothing outside itself, and works in a real browser."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from retool_data import Problem, Provenance, Segment, Trajectory, lint, tokenize, write_view
from retool_data._replay import judge
from retool_data._view import token_texts

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def row(name: str, recorded: str, replayed: str, status: str) -> Trajectory:
    problem = Problem(
        problem_id=name,
        statement=f"What is {name}? </script><script>alert(1)</script>",
        prefix="Solve it.\n\n",
        gold="42",
        provenance=Provenance(source="rows.jsonl", row=1, shape="retool_raw"),
    )
    out = Segment.of_result(recorded)
    assert out.result is not None
    update = {"replayed": replayed, "status": status}
    held = out.result.model_validate({**out.result.model_dump(), **update})
    return Trajectory(
        problem=problem,
        segments=(
            Segment.of_text("Let me compute √2."),
            Segment.of_call("code_interpreter", {"code": "print(6 * 7)"}),
            out.model_copy(update={"result": held}),
            Segment.of_answer("\\boxed{42}"),
        ),
        tools=[{"type": "function", "function": {"name": "code_interpreter"}}],
    )


@pytest.fixture
def page(tmp_path: Path, renderer: Any) -> Path:
    rows = [row("alpha", "42", "42", "exact"), row("beta", "41", "42", "mismatch")]
    rows[1] = judge(rows[1], "repair").trajectory
    samples = {r.problem.problem_id: tokenize(r, renderer) for r in rows}

    def decode(ids: Any) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    file = tmp_path / "page.html"
    shown = write_view(
        file, rows, samples=samples, decode=decode, findings=lint(rows), title="rows <1>"
    )
    assert shown == 2
    return file


def browse(page: Path, fragment: str, *options: str) -> str:
    assert CHROMIUM is not None
    profile = page.parent / "profile"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--virtual-time-budget=5000"]
    done = subprocess.run(
        [*command, *options, f"file://{page}#{fragment}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium (apt-get install chromium)")


def test_the_page_loads_nothing_from_anywhere(page: Path) -> None:
    text = page.read_text()
    assert not re.search(r"(?:src|href)\s*=|@import|url\(|fetch\(|https?://", text)
    assert text.count("<script") == 2
    assert "<title>rows &lt;1&gt;</title>" in text


def test_samples_need_a_decoder(tmp_path: Path, renderer: Any) -> None:
    trajectory = row("alpha", "42", "42", "exact")
    with pytest.raises(ValueError, match="without decode"):
        write_view(
            tmp_path / "p.html", [trajectory], samples={"alpha": tokenize(trajectory, renderer)}
        )


def test_a_character_over_several_tokens_is_shown_once() -> None:
    ids = list("a√b".encode())
    texts = token_texts(ids, lambda some: bytes(some).decode(errors="replace"))
    assert texts == ["a", "√", "", "", "b"]


@browser
def test_the_browser_shows_calls_beside_both_outputs(page: Path) -> None:
    dom = browse(page, "row=beta", "--dump-dom")
    assert 'data-ready="2"' in dom
    assert "print(6 * 7)" in dom
    assert "recorded" in dom
    assert "replayed" in dom
    assert re.search(r'class="cap seen">replayed', dom)
    assert re.search(r'<span class="chip bad">mismatch</span>', dom)
    assert "<mark>41</mark>" in dom
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in dom


@browser
def test_the_browser_colours_tokens_by_mask(page: Path) -> None:
    dom = browse(page, "row=alpha&tab=tokens", "--dump-dom")
    classes = re.findall(r'<span class="t ([a-z])"[^>]*>([^<]*)</span>', dom)
    trained = "".join(text for kind, text in classes if kind == "m")
    prompt = "".join(text for kind, text in classes if kind == "p")
    output = "".join(text for kind, text in classes if kind == "o")
    assert trained.startswith("Let me compute √2.")
    assert "boxed{42}" in trained
    assert "What is alpha?" in prompt
    assert "tool↵" in output
    assert "tool" not in trained.replace("code_interpreter", "")


@browser
@pytest.mark.parametrize(
    ("fragment", "shown"),
    [("search=ALPHA", "alpha"), ("status=mismatch", "beta"), ("search=nothing-like-it", None)],
)
def test_search_and_filters_choose_rows(page: Path, fragment: str, shown: str | None) -> None:
    dom = browse(page, fragment, "--dump-dom")
    rows = re.findall(r'<span class="id">(\w+)</span>', dom)
    assert rows == ([shown] if shown else [])
    assert ('<p class="none">' in dom) is (shown is None)


@browser
def test_the_browser_can_photograph_the_page(page: Path) -> None:
    image = page.parent / "page.png"
    browse(page, "row=beta", f"--screenshot={image}", "--window-size=1200,900")
    data = image.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    assert (width, height) == (1200, 900)
    assert len(data) > 20_000  # an empty page packs into a few kB
