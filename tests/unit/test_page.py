"""Themes that can be read, and several runs in one figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import rc_context, rcParams
from matplotlib.colors import to_rgb
from synthetic import make_case, make_run

from netbench.figures import draw, draw_overlay
from netbench.page import THEMES, Material, ink, styles
from netbench.summary import Run, load_run

SIZES = [4**power * 1024 for power in range(6)]


def luminance(colour: object) -> float:
    """Relative luminance of sRGB, by the definition of WCAG."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: object, other: object) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_words_and_lines_stand_out_from_the_paper(name: str) -> None:
    theme = THEMES[name]
    with rc_context(theme.style):
        assert contrast(ink(), theme.paper) > 12
        assert contrast(ink(0.3), theme.paper) > 4.5  # small words
        assert contrast(ink(0.4), theme.paper) > 3  # lines
        for look in styles(range(5)).values():
            assert contrast(look["color"], theme.paper) > 1.5


def test_the_theme_is_gone_when_the_figure_is_there(run: Run) -> None:
    before = dict(rcParams)
    figures = draw(run, theme="dark")
    next(figures)
    assert dict(rcParams) == before


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return load_run(make_run(tmp_path / "one", [make_case(tensor_bytes=size) for size in SIZES]).path)


def test_runs_of_one_name_are_told_apart_by_their_ids(run: Run, tmp_path: Path) -> None:
    other = make_run(tmp_path / "two", [make_case(tensor_bytes=size, dtype="int8") for size in SIZES])
    material = Material.overlaid([run, load_run(other.path)])
    assert list(material.cases["backend"].unique()) == ["one: gloo", "two: gloo int8"]
    [(name, figure)] = draw_overlay([run, load_run(other.path)])
    assert name == "bandwidth-allreduce"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["one: gloo, 1 stream", "two: gloo int8, 1 stream"]
    [axes] = figure.axes
    assert [list(line.get_xdata()) for line in axes.get_lines()] == [SIZES, SIZES]
    words = " ".join(text.get_text() for text in figure.texts).replace("\N{NO-BREAK SPACE}", " ")
    assert "run one, two" in words
