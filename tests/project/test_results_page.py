"""docs/results/: a page a file, of files that nobody described too."""

from __future__ import annotations

from pathlib import Path

import pytest

from softgen.bench.record import Finding, Machine, Status, records_of, to_csv
from softgen.bench.shape import Case, Shape
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from tests.helpers.cli_helpers import ROOT
from tests.results_page import PAGES, files, of_axes, of_calls, results

HERE = Machine("NVIDIA H200", "580.1", "softgen 1")


@pytest.mark.parametrize("name", files())
def test_a_page_has_a_finding_and_no_figure_is_missing_of_the_suites_of_rows(name: str) -> None:
    page = (ROOT / "docs" / "results" / f"{name}.md").read_text()
    assert "\n- " in page
    lines = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 4
    if PAGES[name].table not in (of_calls, of_axes):
        for line in lines:
            assert " - |" not in line, f"not measured: {line}"


def test_a_file_that_nobody_described_has_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of routing, topk and sample before there were any."""
    case = Case((8, 64, 32), view="x[:, 1]")
    times = {"limit": 2.0, "softgen": 3.0, "softgen-contiguous": 2.5, "flashinfer.topk": 12.0}
    found = [Finding(peer, Status.TIMED, time) for peer, time in times.items()]
    found.append(Finding("torch.compile", Status.ABSENT, note="not installed"))
    records = records_of(Shape.of("unheard", DType.FLOAT32, case), found, HERE)
    records += records_of(Shape("unheard", DType.BFLOAT16, 4, 8), found[:2], HERE)
    (tmp_path / "unheard.csv").write_text(to_csv(records))
    assert files(tmp_path) == ["unheard"]
    monkeypatch.setattr("tests.figures.DOCS", tmp_path)
    (tmp_path / "benchmark").symlink_to(tmp_path)
    page = results("unheard", tmp_path)
    assert "softgen bench --suite unheard --csv unheard.csv" in page
    assert "ahead of every other by more than 2% at all 1 calls; the fastest other" in page
    assert "1.50 to 1.50 of the limit's time" in page
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert lines[1:] == [
        "| float32 | `x[:, 1] of 8 x 64 x 32` | 2.00 | 3.00 | 1.50 | 1.20 | 12.00 | 0.25 |",
        "| bfloat16 | 4 x 8 | 2.00 | 3.00 | 1.50 | - | - | - |",
    ]


def test_what_all_calls_begin_with_is_left_out(tmp_path: Path) -> None:
    times = {"limit": 2.0, "softgen": 3.0, "torch.multinomial": 12.0}
    found = [Finding(peer, Status.TIMED, time) for peer, time in times.items()]
    cases = [Case((rows, 64), samples=True) for rows in (4, 8)]
    shapes = [Shape.of("sample", DType.FLOAT32, case) for case in cases]
    records = [record for shape in shapes for record in records_of(shape, found, HERE)]
    (tmp_path / "sample.csv").write_text(to_csv(records))
    assert [line.split(" | ")[1] for line in of_calls(tmp_path, "sample")[2:]] == [
        "`4 x 64`",
        "`8 x 64`",
    ]


def test_an_axis_has_a_line_for_each_function(tmp_path: Path) -> None:
    case = Case((8192, 8192), 0)
    records = []
    for number, name in enumerate(("softmax", "log_softmax")):
        shape = Shape.of("axes", DType.FLOAT32, case, Function.of(name))
        times = {"limit": 2.0, "softgen": 3.0 + number, "torch.compile": 6.0}
        found = [Finding(peer, Status.TIMED, time) for peer, time in times.items()]
        records += records_of(shape, found, HERE)
    (tmp_path / "axes.csv").write_text(to_csv(records))
    assert of_axes(tmp_path, "axes")[2:] == [
        "| `axis 0 of 8192 x 8192` | 3.00 | 1.50 | 0.50 |",
        "| `log_softmax, axis 0 of 8192 x 8192` | 4.00 | 2.00 | 0.67 |",
    ]


def test_liger_is_among_the_others(tmp_path: Path) -> None:
    shape = Shape(
        "losses", DType.BFLOAT16, 16384, 50257, function=Function.of("cross_entropy_grad")
    )
    times = {"limit": 2.0, "softgen": 3.0, "torch": 12.0, "liger": 4.0}
    found = [Finding(peer, Status.TIMED, time) for peer, time in times.items()]
    (tmp_path / "losses.csv").write_text(to_csv(records_of(shape, found, HERE)))
    assert of_calls(tmp_path, "losses")[-1].endswith("| 12.00 | 4.00 | 0.75 |")
