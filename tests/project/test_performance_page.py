"""docs/performance.md: the tables of whole suites are what the CSV files hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from softgen.bench.record import Finding, Machine, Status, records_of, to_csv
from softgen.bench.shape import Case, Shape
from softgen.spec.dtypes import DType
from softgen.spec.functions.base import Function
from tests.helpers.cli_helpers import ROOT
from tests.performance_page import CALLS, SECTIONS, of_axes, section_of

HERE = Machine("NVIDIA H200", "580.1", "softgen 1")
PAGE = (ROOT / "docs" / "performance.md").read_text()


@pytest.mark.parametrize("name", [name for name in SECTIONS if name not in CALLS])
def test_no_figure_of_a_suite_is_missing(name: str) -> None:
    section = PAGE.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 4
    for line in lines:
        assert " - |" not in line, f"not measured: {line}"


def test_a_suite_of_calls_has_its_table_once_its_file_is_there(tmp_path: Path) -> None:
    assert section_of(tmp_path, "views") == [
        *("## Views: `views`", "", "Not measured yet: `softgen bench --suite views`.")
    ]
    case = Case((8, 64, 32), view="x[:, 1]")
    times = {"limit": 2.0, "softgen": 3.0, "softgen-contiguous": 2.5, "torch": 12.0}
    found = [Finding(peer, Status.TIMED, time) for peer, time in times.items()]
    found.append(Finding("torch.compile", Status.ABSENT, note="not installed"))
    records = records_of(Shape.of("views", DType.FLOAT32, case), found, HERE)
    records += records_of(Shape("views", DType.BFLOAT16, 4, 8), found[:2], HERE)
    (tmp_path / "views.csv").write_text(to_csv(records))
    section = section_of(tmp_path, "views")
    assert section[0] == "## Views: `views`"
    assert section[-2:] == [
        "| float32 | `x[:, 1] of 8 x 64 x 32` | 2.00 | 3.00 | 1.50 | 1.20 | 12.00 | 0.25 |",
        "| bfloat16 | 4 x 8 | 2.00 | 3.00 | 1.50 | - | - | - |",
    ]
    assert all(line.count("|") == 9 for line in section[-4:])


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
    assert section_of(tmp_path, "losses")[-1].endswith("| 12.00 | 4.00 | 0.75 |")
