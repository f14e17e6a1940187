"""The documentation against the code: generated tables are fresh, and every stored name is explained."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from synthetic import make_case

from netbench.record import MEASURED, TIMELINE, Failure, Launch, Manifest, Source, samples_table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_generated_tables_are_fresh(path: Path) -> None:
    filled = runpy.run_path(str(DOCS / "generate.py"))["filled"]
    text = path.read_text(encoding="utf-8")
    assert filled(text) == text, "run: python docs/generate.py"


def test_every_field_of_the_record_is_explained() -> None:
    text = (DOCS / "results-format.md").read_text(encoding="utf-8")
    fields = [*Manifest.model_fields, *Failure.model_fields, *Launch.model_fields, *Source.model_fields]
    assert [name for name in fields if f"`{name}`" not in text] == []


def test_every_sample_column_and_footer_key_is_explained() -> None:
    np = pytest.importorskip("numpy")
    table = samples_table("run", make_case(), [(0, np.zeros((1, len(MEASURED)), np.int64))], {})
    text = (DOCS / "results-format.md").read_text(encoding="utf-8")
    names = [*table.schema.names, *TIMELINE, *(key.decode() for key in table.schema.metadata)]
    assert [name for name in names if f"`{name}`" not in text] == []
