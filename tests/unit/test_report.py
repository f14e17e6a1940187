"""The page of a run as text: whole in itself, small, and without a name that means two things."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from synthetic import make_case, make_run

from netbench.config import presets, resolve
from netbench.model import Case, Skip
from netbench.modes import MODES
from netbench.plan import make_plan
from netbench.record import Failure
from netbench.report import html, write_report
from netbench.summary import load_run

RECORDED = Path(__file__).parents[1] / "data" / "runs" / "20261129T131634Z-lab_between-3e40"


class Reading(HTMLParser):
    """Tags, ids, addresses and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            assert not name.startswith("on"), f"{name} runs a script"
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "data", "action", "srcset", "poster"):
                self.addresses.append(value or "")


def of_the_default_sweep(tmp_path: Path) -> Path:
    plan = make_plan(resolve(presets()["default"], {}))

    def durations(case: Case, ranks: int, iterations: int) -> np.ndarray:
        ideal = 60_000 * (1 + 0.3 * case.streams) + case.transmit_bytes * MODES[case.mode].messages / 2.5
        noise = np.random.default_rng(case.tensor_bytes).gamma(2, 0.03, (ranks, iterations))
        return (ideal * (1 + noise)).astype(np.int64)

    return make_run(tmp_path / "20250102T030405Z-default-c3d4", list(plan.cases), durations, skips=plan.skips).path


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> str:
    return html(load_run(of_the_default_sweep(tmp_path_factory.mktemp("results"))))


def test_a_default_sweep_makes_less_than_two_megabytes(default: str) -> None:
    assert len(default.encode()) < 2e6
    assert Reading(default).tags["figure"] >= 10


def test_nothing_outside_is_referred_to_and_no_name_means_two_things(default: str) -> None:
    page = Reading(default)
    assert [address for address in page.addresses if not address.startswith(("#", "data:image/"))] == []
    assert set(re.findall(r"url\(([^)]{0,8})", default)) <= set(re.findall(r"url\((#[^)]{0,7})", default))
    assert "@import" not in default
    assert page.tags["script"] == page.tags["link"] == page.tags["iframe"] == 0
    assert [name for name, times in Counter(page.ids).items() if times > 1] == []
    assert {address[1:] for address in page.addresses if address.startswith("#")} <= set(page.ids)


def test_every_case_that_ran_is_in_a_table(default: str) -> None:
    cases = len(make_plan(resolve(presets()["default"], {})).cases)
    assert default.count(">ok</td>") == cases


def test_a_page_says_what_when_and_where(tmp_path: Path) -> None:
    text = html(load_run(RECORDED))
    for words in (
        "What does Gloo get out of this network",
        "over lab 4x200mbit",
        "66 ok",
        "2026-11-29 13:16",
        "tcp_congestion_control",
        "2.13.0+cpu",
        "Latency and bandwidth",
        "it would have predicted N=4, from smaller world sizes",
    ):
        assert words in text


def test_verdicts_stand_above_the_numbers_with_advice() -> None:
    run = load_run(RECORDED)
    named = {name for names in run.summaries()["verdicts"].dropna() for name in names.split(", ") if name}
    assert named
    text = html(run)
    section = text[text.index('id="verdicts"') : text.index('id="mode-')]
    assert all(f"<td>{name}</td>" in section for name in named)


def test_what_went_wrong_is_told_and_nothing_in_it_is_taken_for_html(tmp_path: Path) -> None:
    failed = make_case("all_gather")
    folder = make_run(
        tmp_path / "run",
        [make_case()],
        unmeasured=[failed],
        skips=[Skip("x", "no <b>room</b>")],
        failures=[Failure(case_id=failed.id, launch=1, reason="rank 1: <script>alert(1)</script> & so on")],
        status="failed",
        question="Is <i>this</i> escaped?",
    )
    text = html(load_run(folder.path))
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; so on" in text
    assert "<script" not in text
    assert "Is &lt;i&gt;this&lt;/i&gt; escaped?" in text
    assert "no &lt;b&gt;room&lt;/b&gt;" in text


def test_a_run_without_a_finished_case_has_a_page_too(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [], unmeasured=[make_case()], status="interrupted")
    assert "1 missing" in html(load_run(folder.path))


def test_it_lies_in_the_run_s_folder_or_where_it_is_wanted(tmp_path: Path) -> None:
    run = load_run(make_run(tmp_path / "run", [make_case()]).path)
    assert write_report(run) == run.folder.path / "report.html"
    assert write_report(run, tmp_path / "mine.html").read_text().startswith("\n") is False
