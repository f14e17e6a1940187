"""The page of a run in a real browser: opened from a file, on a desk, on a phone, and printed.

Needs Chromium and its driver (Debian: chromium, chromium-driver) and selenium; without them the tests are skipped and
say so.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from netbench.report import write_report
from netbench.summary import load_run

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="there is no chromium with chromedriver here")

RECORDED = Path(__file__).parents[1] / "data" / "runs" / "20261129T131634Z-lab_between-3e40"

#: Nothing but the page itself: no sandbox as root, no talk with the browser's maker.
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As an attachment would lie there: alone, under a name with a space."""
    return write_report(load_run(RECORDED), tmp_path_factory.mktemp("mail") / "my run.html")


@pytest.fixture
def opened(browser: Any) -> Callable[[Path], list[str]]:
    """Opens a file and returns what the console complains of."""

    def open_(path: Path) -> list[str]:
        browser.get_log("browser")  # what an earlier page left
        browser.get(path.as_uri())
        return [entry["message"] for entry in browser.get_log("browser")]

    return open_


def test_it_opens_from_a_file_without_a_complaint(
    browser: Any, opened: Callable[[Path], list[str]], page: Path
) -> None:
    assert opened(page) == []
    assert "lab_between" in browser.title
    assert browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []


def test_an_outside_reference_would_be_a_complaint(
    opened: Callable[[Path], list[str]], page: Path, tmp_path: Path
) -> None:
    spoilt = tmp_path / "spoilt.html"
    spoilt.write_text(
        page.read_text().replace("<main>", '<main><img src="https://example.invalid/x.png"><script>1</script>')
    )
    assert len(opened(spoilt)) >= 2


def test_figures_are_drawn_and_tables_are_whole(browser: Any, opened: Callable[[Path], list[str]], page: Path) -> None:
    opened(page)
    figures = browser.execute_script(
        "return [...document.querySelectorAll('figure')].map(f => {"
        " const svg = f.querySelector('svg').getBoundingClientRect();"
        " return [f.id, svg.width, svg.height, f.querySelectorAll('path').length, f.textContent] })"
    )
    names = [name for name, *_ in figures]
    assert {"bandwidth-all_gather", "bandwidth-allreduce", "world_size-all_gather-gloo-k1"} <= set(names)
    for _, width, height, paths, text in figures:
        assert width > 600
        assert height / width == pytest.approx(9 / 16, rel=0.02)
        assert paths > 20
        assert "200mbit" in text
    rows = "return document.querySelectorAll('#mode-%s tbody tr').length"
    assert [browser.execute_script(rows % mode) for mode in ("all_gather", "allreduce")] == [33, 33]
    assert browser.execute_script("return document.querySelectorAll('#environment table').length") == 2
    unlike = (
        "return [...document.querySelectorAll('table')]"
        ".filter(t => new Set([...t.rows].map(r => r.cells.length)).size > 1).length"
    )
    assert browser.execute_script(unlike) == 0


def test_every_link_leads_somewhere(browser: Any, opened: Callable[[Path], list[str]], page: Path) -> None:
    opened(page)
    nowhere = "return [...document.querySelectorAll('a')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    assert browser.execute_script(nowhere) == 0
    assert browser.execute_script("return document.querySelectorAll('nav a').length") >= 4


def test_a_phone_shows_it_without_scrolling_the_page_sideways(
    browser: Any, opened: Callable[[Path], list[str]], page: Path
) -> None:
    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        assert opened(page) == []
        assert browser.execute_script("return document.documentElement.scrollWidth") == 390
        size = "return parseFloat(getComputedStyle(document.querySelector('%s')).fontSize)"
        assert browser.execute_script(size % "p") >= 16
        assert browser.execute_script(size % "td") >= 13
        # A figure keeps a size at which its words can be read, and is scrolled inside its own box.
        assert browser.execute_script("return document.querySelector('figure svg').getBoundingClientRect().width") > 600
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_print_fits_the_paper(browser: Any, opened: Callable[[Path], list[str]], page: Path) -> None:
    opened(page)
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"])
    assert pdf.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    paper = {
        "width": 703,
        "height": 1032,
        "deviceScaleFactor": 1,
        "mobile": False,
    }  # A4 between its margins, CSS pixels
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", paper)
    try:
        too_wide = (
            "return [...document.querySelectorAll('table, svg')]"
            ".filter(e => !e.closest('svg svg') && e.getBoundingClientRect().right > innerWidth + 1).length"
        )
        assert browser.execute_script(too_wide) == 0
        assert browser.execute_script("return getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
