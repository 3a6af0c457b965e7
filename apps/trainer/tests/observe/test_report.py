"""The report is one HTML file that a real browser renders, with nothing fetched from elsewhere."""

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from retool_trainer.cli import main
from retool_trainer.observe import Metrics, write_report

PNG = b"\x89PNG\r\n\x1a\n"


class Elements(html.parser.HTMLParser):
    """Collects start tags, and the text of the elements with an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append((tag, dict(attrs)))

    def named(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.tags
            if name == tag and all(found.get(k) == v for k, v in attributes.items())
        ]


class Browser:
    """Headless Chromium, one process per page."""

    def __init__(self, program: str, profile: Path) -> None:
        self._command = [
            program,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            "--virtual-time-budget=4000",
        ]

    def dom(self, url: str) -> str:
        return self._run("--dump-dom", url)

    def photograph(self, url: str, file: Path, *, height: int = 1000) -> None:
        self._run(f"--screenshot={file}", f"--window-size=1400,{height}", url)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium; apt-get install chromium")
    return Browser(program, tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def report(run_dir: Path) -> Path:
    return write_report(run_dir)


def body(dom: str) -> dict[str, str | None]:
    [found] = Elements(dom).named("body")
    assert "data-error" not in found, found["data-error"]
    assert found.get("data-ready") == "yes"
    assert "data-hacked" not in found
    return found


def test_the_page_fetches_nothing(report: Path) -> None:
    page = report.read_text()
    assert "default-src 'none'" in page
    for tag, attributes in Elements(page).tags:
        for name in ("src", "href", "srcset", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
    assert "@import" not in page
    assert "url(" not in page


def test_a_browser_shows_curves_comparison_and_tools(browser: Browser, report: Path) -> None:
    dom = browser.dom(report.as_uri())
    body(dom)
    for text in (
        "after SFT",
        "after RL",
        "first weights",
        "pass@4",
        "Engine and policy",
        "timed_out",
    ):
        assert text in dom
    assert "93.0 %" not in dom
    assert re.search(r"\+2\d\.\d pp", dom), "the gain of RL in percentage points"
    # Wrong after SFT: 0 3 6 9; after RL: the even ones.
    assert "Of 12 problems, RL newly solves 2 and no longer solves 4." in dom
    assert len(Elements(dom).named("figure")) >= 18
    assert dom.count("<svg") == len(Elements(dom).named("figure"))


def test_text_of_a_model_stays_text(browser: Browser, report: Path) -> None:
    dom = browser.dom(report.as_uri() + "#samples?q=hostile")
    body(dom)
    assert "&lt;img src=x" in dom
    assert not Elements(dom).named("img")


def test_samples_are_found_by_filters(browser: Browser, report: Path, tmp_path: Path) -> None:
    expected = {
        "": 72,
        "verdict=right": 47,
        "verdict=ungraded": 0,
        "tool=error": 3,
        "tool=unused": 0,
        "where=rl%2C+step+20": 16,
        "stop=answered": 72,
        "q=HOSTILE": 3,
        "q=hostile+print&verdict=right&where=rl%2C+step+1": 1,
    }
    probe = (
        "<script>document.body.dataset.counts = JSON.stringify("
        f"{json.dumps(list(expected))}.map((query) => {{"
        "location.hash = '#samples?' + query; readState(); browse();"
        "return byId('list').children.length; }))</script></body>"
    )
    page = tmp_path / "probed.html"
    page.write_text(report.read_text().replace("</body>", probe))
    counts = body(browser.dom(page.as_uri()))["data-counts"]
    assert json.loads(counts or "") == list(expected.values())


def test_an_address_leads_to_what_was_looked_at(browser: Browser, report: Path) -> None:
    dom = browser.dom(f"{report.as_uri()}#samples?q=hostile&sort=length")
    body(dom)
    assert re.search(r'id="sample-count">3 of 72', dom)
    [shown] = Elements(dom).named("section", **{"class": "here"})
    assert shown["data-tab"] == "samples"


def test_a_sample_shows_its_mask_and_both_log_probabilities(browser: Browser, report: Path) -> None:
    dom = browser.dom(f"{report.as_uri()}#samples?sample=14&mode=gap")
    body(dom)
    classes = [found.get("class") for found in Elements(dom).named("div")]
    assert [c for c in classes if c and c.startswith("segment ")] == [
        "segment prompt",
        "segment policy",
        "segment tool",
        "segment policy",
    ]
    assert re.search(r"mean log-probability: engine -\d\.\d+, policy -\d\.\d+", dom)
    coloured = [t for t in Elements(dom).named("span", **{"class": "t"}) if t.get("style")]
    assert coloured, "sampled tokens are coloured by the gap"


def test_screenshots_show_a_page_and_not_a_blank(
    browser: Browser, report: Path, tmp_path: Path
) -> None:
    for name, fragment in (("overview", ""), ("samples", "#samples?sample=14")):
        file = tmp_path / f"{name}.png"
        browser.photograph(report.as_uri() + fragment, file)
        picture = file.read_bytes()
        assert picture.startswith(PNG)
        # A blank page of this size compresses to about 8 kB.
        assert len(picture) > 40_000


def test_the_command_writes_the_file_and_says_where(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out" / "r.html"
    assert main(["report", str(run_dir), "--output", str(output), "--samples", "8"]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    match = re.search(r'id="data">(.*?)</script>', output.read_text(), re.DOTALL)
    assert match is not None
    data = json.loads(match[1])
    assert len(data["samples"]) <= 8
    assert {sample["step"] for sample in data["samples"]} == {0, 1, 20, 40}
    chart = data["charts"][0]
    assert chart["steps"] == [0, 8, 16, 24, 32, 40]
    assert (chart["series"][0]["values"][0], chart["series"][0]["values"][-1]) == (0.637, 0.93)


def test_a_folder_without_metrics_is_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "has no metrics.jsonl" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_has_only_begun_has_a_report(browser: Browser, tmp_path: Path) -> None:
    with Metrics(tmp_path / "metrics.jsonl") as metrics:
        metrics.append("sft", 1, {"loss": 2.0})
    dom = browser.dom(write_report(tmp_path).as_uri())
    body(dom)
    assert "No evaluation yet." in dom
    assert "No trajectories are stored." in dom
