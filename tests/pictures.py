"""What tests look at in a figure: its panels, and whether its words can be read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def visible_texts(figure: Figure) -> Iterator[tuple[str, Bbox]]:
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text():
            box = text.get_window_extent()
            if box.width and box.height:
                yield text.get_text(), box


def overlaps(figure: Figure) -> list[str]:
    """Texts of a drawn figure that are cut off, or lie upon others."""
    whole, texts = figure.bbox, list(visible_texts(figure))
    found = [
        f"{text!r} is cut off"
        for text, box in texts
        if box.x0 < whole.x0 or box.x1 > whole.x1 or box.y0 < whole.y0 or box.y1 > whole.y1
    ]
    return found + [
        f"{one!r} lies upon {other!r}"
        for (one, first), (other, second) in combinations(texts, 2)
        if first.padded(-1).overlaps(second.padded(-1))
    ]
