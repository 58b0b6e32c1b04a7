"""The plot of softgen bench: which panels and lines there are, and the file that comes out."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from softgen.bench.plot import panels
from softgen.bench.record import Finding, Machine, Record, Regime, Status, records_of
from softgen.bench.shape import Shape
from softgen.bench.suites import shapes_of
from softgen.errors import InvalidValueError, MissingDependencyError
from softgen.problems.functions.base import Function

HERE = Machine("a GPU", "580.1", "softgen 1")
PEERS = ("limit", "softgen", "torch", "a-step")


def timed(shape: Shape, status: Status = Status.TIMED) -> list[Record]:
    found = [Finding(peer, Status.TIMED, 2.0 + i) for i, peer in enumerate(PEERS)]
    found.append(Finding("cupyx", status, None if status is Status.ABSENT else 9.0))
    return records_of(shape, found, HERE)


def suites(*names: str, status: Status = Status.TIMED, function: str | None = None) -> list[Record]:
    shapes = shapes_of(names, function=Function.of(function) if function else None)
    return [record for shape in shapes for record in timed(shape, status)]


def test_a_suite_of_one_row_count_is_one_panel_over_columns() -> None:
    (panel,) = panels(suites("triton"))
    assert panel.title == "triton: float32, 4096 rows"
    assert [line.peer for line in panel.lines] == [*PEERS, "cupyx"]
    assert [x for x, _ in panel.lines[0].points] == [128 * i for i in range(2, 100)]
    assert panel.places == ()


def test_other_shapes_get_a_place_each_in_the_order_of_the_suite() -> None:
    line, places = panels(suites("online"))
    assert line.title == "online: float32, 128 rows"
    assert places.places == ("20000 x 5000", "16 x 4194304", "4 x 16777216")
    assert [x for x, _ in places.lines[1].points] == [0, 1, 2]


def test_warm_and_cold_times_are_not_in_one_panel() -> None:
    records = suites("oneflow")
    warm = [dataclasses.replace(record, regime=Regime.WARM) for record in records]
    cold_panel, warm_panel = panels([*records, *warm])
    assert cold_panel.title == "oneflow: float16, 49152 rows"
    assert warm_panel.title == "oneflow: float16, between two copies, 49152 rows"
    assert cold_panel.lines == warm_panel.lines


def test_two_functions_are_not_in_one_panel() -> None:
    first, second = panels(suites("oneflow") + suites("oneflow", function="logsumexp"))
    assert first.title == "oneflow: float16, 49152 rows"
    assert second.title == "oneflow: logsumexp, float16, 49152 rows"
    rates = [line.points[0][1] for panel in (first, second) for line in panel.lines[:1]]
    assert rates[0] > 1.5 * rates[1]
    wide, long = panels(suites("logsumexp"))
    assert wide.title == "logsumexp: logsumexp, bfloat16, rows x columns"
    assert wide.places == ("4096 x 128256", "8192 x 151936", "16384 x 50257", "8 x 128256")
    assert (long.title, long.places) == (
        "logsumexp: logsumexp, float32, rows x columns",
        ("128 x 4194304",),
    )


def test_two_devices_are_not_in_one_panel() -> None:
    records = suites("oneflow")
    other = [dataclasses.replace(record, device="another") for record in records]
    first, second = panels([*records, *other])
    assert first.title == "oneflow: float16, 49152 rows (a GPU, driver 580.1)"
    assert second.title == "oneflow: float16, 49152 rows (another, driver 580.1)"
    assert first.lines == second.lines


def test_who_was_not_timed_has_no_line_and_who_was_eager_says_so() -> None:
    (panel,) = panels(suites("oneflow", status=Status.ABSENT))
    assert [line.peer for line in panel.lines] == list(PEERS)
    (panel,) = panels(suites("oneflow", status=Status.EAGER))
    assert [line.peer for line in panel.lines if line.eager] == ["cupyx"]


def test_what_ran_on_the_cpu_has_no_line() -> None:
    (panel,) = panels(suites("oneflow", status=Status.HOST))
    assert [line.peer for line in panel.lines] == list(PEERS)


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from softgen.bench.plot import figure_of

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[bench\]'"):
        figure_of(suites("oneflow"))


class TestDrawing:
    """What needs matplotlib."""

    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_every_competitor_has_its_line_and_its_entry_in_the_legend(self) -> None:
        from softgen.bench.plot import figure_of

        records = suites("triton", "llm", status=Status.EAGER)
        figure = figure_of(records)
        wanted = {*PEERS, "cupyx (eager)"}
        assert len(figure.axes) == len(panels(records)) == 3
        for axis, panel in zip(figure.axes, panels(records), strict=True):
            assert {line.get_label() for line in axis.lines} == wanted
            assert {text.get_text() for text in axis.get_legend().get_texts()} == wanted
            for line in axis.lines:
                (mine,) = (one for one in panel.lines if line.get_label().startswith(one.peer))
                assert list(zip(*line.get_data(), strict=True)) == list(mine.points)

    def test_only_widths_beside_each_other_are_joined(self) -> None:
        from softgen.bench.plot import figure_of

        timed_at = (256, 384, 1024, 12672)
        records = [
            record
            for shape in shapes_of(["triton"])
            for record in timed(shape, Status.ABSENT)
            if record.peer != "torch" or shape.cols in timed_at
        ]
        (axis,) = figure_of(records).axes
        lines = {line.get_label(): line for line in axis.lines}
        widths, rates = lines["torch"].get_data()
        known = [bool(rate == rate) for rate in rates]
        assert [x for x, is_known in zip(widths, known, strict=True) if is_known] == [*timed_at]
        assert known[:3] == [True, True, False]
        assert all(rate == rate for rate in lines["softgen"].get_data()[1])

    def test_softgen_stands_out_and_the_limit_is_dashed(self) -> None:
        from softgen.bench.plot import figure_of

        lines = {line.get_label(): line for line in figure_of(suites("fastsoftmax")).axes[0].lines}
        others = [lines[peer].get_linewidth() for peer in PEERS if peer != "softgen"]
        assert lines["softgen"].get_linewidth() > 2 * max(others)
        assert list(lines)[-1] == "softgen"  # drawn over the others
        assert lines["limit"].get_linestyle() == "--"
        assert len({line.get_color() for line in lines.values()}) == len(lines)

    def test_every_step_of_the_ladder_has_a_look_of_its_own(self) -> None:
        from softgen.bench.plot import figure_of
        from softgen.bench.roster import peers_for

        peers = [peer.name for peer in peers_for(shapes_of(["fastsoftmax"])[0], None)]
        found = [Finding(peer, Status.TIMED, 2.0 + i) for i, peer in enumerate(["limit", *peers])]
        records = [
            r for shape in shapes_of(["fastsoftmax"]) for r in records_of(shape, found, HERE)
        ]
        (axis,) = figure_of(records).axes
        lines = {line.get_label(): line for line in axis.lines}
        assert {*lines} == {"limit", *peers}
        assert len({line.get_color() for line in lines.values()}) == len(lines)
        red_green_blue = [line.get_color()[1:] for name, line in lines.items() if "best" in name]
        parts = [[int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in red_green_blue]
        apart = [
            sum(abs(a - b) for a, b in zip(one, other, strict=True))
            for number, one in enumerate(parts)
            for other in parts[:number]
        ]
        assert min(apart) > 80
        assert all(line.get_linestyle() == "--" for name, line in lines.items() if "best" in name)
        assert lines["torch"].get_linestyle() == "-"

    @pytest.mark.parametrize(("slowest", "scale"), [(50.0, "linear"), (70.0, "log")])
    def test_rates_that_are_far_apart_are_on_a_log_axis(self, slowest: float, scale: str) -> None:
        from softgen.bench.plot import figure_of

        found = [Finding("limit", Status.TIMED, 2.0), Finding("naive", Status.TIMED, slowest)]
        shapes = shapes_of(["fastsoftmax"])
        records = [record for shape in shapes for record in records_of(shape, found, HERE)]
        (axis,) = figure_of(records).axes
        assert axis.get_yscale() == scale
        figure_of(records).canvas.draw()
        if scale == "linear":
            assert axis.get_ylim()[0] == 0

    def test_columns_are_on_a_log_axis_and_the_machine_is_named(self) -> None:
        from softgen.bench.plot import figure_of

        figure = figure_of(suites("oneflow"))
        axis = figure.axes[0]
        assert axis.get_xscale() == "log"
        assert [label.get_text() for label in axis.get_xticklabels()][-1] == "32K"
        assert "a GPU, driver 580.1; softgen 1" in figure.texts[0].get_text()
        assert "Between two copies" not in figure.texts[0].get_text()
        warm = [dataclasses.replace(each, regime=Regime.WARM) for each in suites("oneflow")]
        assert "Between two copies" in figure_of(warm).texts[0].get_text()

    def test_the_foot_says_what_is_counted_and_what_the_limit_is(self) -> None:
        from softgen.bench.plot import figure_of

        def foot(records: list[Record]) -> str:
            return " ".join(figure_of(records).texts[0].get_text().split())

        copied, read = suites("oneflow"), suites("oneflow", function="logsumexp")
        assert "one read and one write of each element" in foot(copied)
        assert "only read" not in foot(copied)
        assert "one read of each element counted for logsumexp. limit: there the" in foot(read)
        assert "several copies" not in foot(read)
        assert "several copies" in foot(copied + read)
        assert "only read" in foot(copied + read)

    def test_the_file_is_a_png_of_readme_width(self, tmp_path: Path) -> None:
        from softgen.bench.plot import draw

        path = tmp_path / "plot.png"
        draw(suites("oneflow"), path)
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert int.from_bytes(data[16:20], "big") == 1720
        assert list(tmp_path.iterdir()) == [path]
        draw(suites("oneflow"), path)
        assert path.read_bytes() == data

    def test_nothing_timed_is_no_plot(self, tmp_path: Path) -> None:
        from softgen.bench.plot import draw

        with pytest.raises(InvalidValueError, match="nothing was timed"):
            draw([], tmp_path / "plot.png")
