"""Runs that others measured: written, read back with what is unknown left unknown, and shown as whose they are."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from synthetic import make_case, make_run

from netbench.compare.comparison import compare
from netbench.errors import RecordError
from netbench.figures import draw
from netbench.quotes import Quote, read_quotes, write_quotes
from netbench.record import Manifest, RunFolder, Source
from netbench.statistics import Statistics
from netbench.summary import Run, load_run
from netbench.tables import FORMATS, write_runs

MEAN = Quote(case=make_case(tensor_bytes=4_000_000), mean_ns=2_000_000.5, iterations=100)
MEDIAN = Quote(case=make_case(tensor_bytes=8192), median_ns=50_000, mean_ns=90_000, p25_ns=45_000, p75_ns=60_000)
WRONG = Quote(case=make_case(tensor_bytes=4096), mean_ns=50_000, wrong_elements=3)


@pytest.fixture
def quoted(tmp_path: Path) -> Run:
    folder = RunFolder(tmp_path / "quoted")
    folder.path.mkdir()
    quotes = [MEAN, MEDIAN, WRONG]
    folder.write_manifest(
        Manifest(
            run_id="quoted",
            name="quoted",
            status="quoted",
            netbench="0",
            command=[],
            started_at=datetime(2025, 1, 2, tzinfo=UTC),
            config={},
            cases=[quote.case for quote in quotes],
            source=Source(tool="a tool", version="1.2", place="a paper, table 3", time="mean of all ranks"),
        )
    )
    write_quotes(folder, quotes)
    return load_run(folder.path)


def test_quotes_read_back_as_written(quoted: Run) -> None:
    assert list(read_quotes(quoted.folder).values()) == [MEAN, MEDIAN, WRONG]


def test_statistics_of_a_quote_are_columns_of_a_summary() -> None:
    assert set(MEAN.numbers) - {"wrong_elements", "retransmits"} <= set(Statistics._fields)


def test_the_headline_is_the_mean_where_there_is_no_median(quoted: Run) -> None:
    cases = quoted.summaries().set_index("case_id")
    mean, median = cases.loc[MEAN.case.id], cases.loc[MEDIAN.case.id]
    assert (mean["headline"], mean["median_ns"], mean["time_us"]) == ("mean", 2_000_000.5, 2000.0005)
    assert mean["algbw_gbit_s"] == pytest.approx(16, rel=1e-6)
    assert (median["headline"], median["median_ns"], median["mean_ns"]) == ("median", 50_000, 90_000)
    assert mean.isna()[["low_ns", "p25_ns", "wire_sent_bytes", "retransmits", "wrong_elements"]].all()


def test_wrong_data_has_no_bandwidth(quoted: Run) -> None:
    wrong = quoted.summaries().set_index("case_id").loc[WRONG.case.id]
    assert wrong["status"] == "wrong"
    assert wrong.isna()["algbw_gbit_s"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_prints_it(quoted: Run, name: str) -> None:
    file = io.StringIO()
    FORMATS[name].write([quoted], "Gbit/s", file)
    if name in ("table", "markdown"):
        assert "quoted from a tool 1.2, a paper, table 3" in file.getvalue()
        assert "time: mean of all ranks" in file.getvalue()


def test_it_is_drawn_and_listed_like_any_other(quoted: Run) -> None:
    assert "bandwidth-allreduce" in dict(draw(quoted))
    file = io.StringIO()
    write_runs([quoted.folder.path], file)
    assert "3/3" in file.getvalue()


@pytest.mark.parametrize(
    ("found", "put", "complaint"),
    [
        (",2000000.5,", ",fast,", "line 2 is damaged: could not convert"),
        (",2000000.5,", ",,", "line 2 is damaged: allreduce-gloo-k1-n2-4MB: has no time"),
        ("allreduce,gloo,1,2", "allreduce,gloo,x,2", "line 2 is damaged: invalid literal"),
        ("tensor_bytes", "bytes", "line 2 is damaged: 'tensor_bytes'"),
    ],
)
def test_a_damaged_table_is_refused_with_its_line(quoted: Run, found: str, put: str, complaint: str) -> None:
    path = quoted.folder.quotes
    path.write_text(path.read_text().replace(found, put))
    with pytest.raises(RecordError, match=complaint):
        load_run(quoted.folder.path).summaries()


def test_it_is_compared_by_its_numbers_and_not_judged(quoted: Run, tmp_path: Path) -> None:
    measured = load_run(make_run(tmp_path / "measured", [MEDIAN.case, make_case(tensor_bytes=16)]).path)  # 1 ms each
    pairs = {pair.case_id: pair for pair in compare(quoted, measured).pairs}
    both = pairs[MEDIAN.case.id]
    assert both.ratio is not None
    assert (both.verdict, both.ratio.value, both.ratio.low) == ("inconclusive", pytest.approx(20), None)
    assert "no interval" in both.reason
    assert pairs[WRONG.case.id].verdict == "not compared"
    assert pairs[MEAN.case.id].reason == "not measured in measured"
