"""softgen tune --strategy NAME --grid FILE: options, file, table and heat map, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.bench import grid
from softgen.bench.heat import heat_maps
from softgen.bench.knobs import every_variant
from softgen.bench.record import Finding, Machine, Record, Status, read_csv, records_of
from softgen.bench.shape import Shape
from softgen.cli import group
from softgen.errors import CompileError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from tests.helpers.cli_helpers import cli, document, ok, refused

HERE = Machine("a GPU", "580.1", "softgen 1")
ARCH = arch_named("sm_90")
INTERRUPTING_COLS = 666
WORDS = ("tune", "--strategy", "serial", "--shape", "4096x8192")


def fake_search(
    shape: Shape, strategy: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Record]:
    """Time setting number n at 10 + n us; those with 1024 threads spill."""
    if shape.cols == INTERRUPTING_COLS:
        raise KeyboardInterrupt
    found = [Finding("limit", Status.TIMED, 5.0, 0.0, "copy")]
    variants = every_variant(strategy, shape.problem, shape.rows, ARCH)
    for number, variant in enumerate(variants):
        label = variant.strategy.label
        progress(number + 1, len(variants))
        if "b1024" in label:
            found.append(Finding(label, Status.ABSENT, note="spills registers"))
        else:
            found.append(Finding(label, Status.TIMED, 10.0 + number, 1e-7))
    return records_of(shape, found, HERE)


@pytest.fixture
def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: None)
    monkeypatch.setattr(grid, "search", fake_search)


needs_no_gpu = pytest.mark.usefixtures("_fake_gpu")


@needs_no_gpu
def test_every_setting_is_in_the_file_and_the_fastest_are_printed(
    tmp_path: Path, own_cache: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "grid.csv"
    result = ok(*WORDS, "--grid", path)
    records = read_csv(path)
    problem = Problem.of("softmax", "float32", 8192)
    wanted = [each.strategy.label for each in every_variant("serial", problem, 4096, ARCH)]
    assert [record.peer for record in records] == ["limit", *wanted]
    assert {(r.suite, r.rows, r.cols) for r in records} == {("grid", 4096, 8192)}
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:2] == ["setting", "function"]
    figures = [line[3:] for line in lines[1:]]
    assert figures[0] == ["4096", "8192", "5.0", "53687.1", "1.0"]
    assert figures[1] == ["4096", "8192", "10.0", "26843.5", "2.0"]
    assert [line[0] for line in lines[1:]] == ["limit", *(f"serial_b{2**i}" for i in range(5, 10))]
    picture = tmp_path / "grid.png"
    assert f"wrote {path}" in result.stderr
    assert f"wrote {picture}" in result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert not own_cache.exists() or not list(own_cache.rglob("*serial*"))
    # The file is read by `softgen bench`, which draws the same.
    again = tmp_path / "again.png"
    told = ok("bench", "--from", path, "--suite", "grid", "--plot", again)
    assert told.stdout == result.stdout
    assert again.read_bytes() == picture.read_bytes()


@needs_no_gpu
def test_the_document_has_all_settings(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    words = ("tune", "--strategy", "safe", "--shape", "128x64", "--shape", "4x64")
    lines = document(ok(*words, "--dtype", "float16", "--grid", path, "--json"))
    assert lines == [record.as_document() for record in read_csv(path)]
    assert [(line["rows"], line["dtype"]) for line in lines] == [
        *[(128, "float16")] * 7,
        *[(4, "float16")] * 7,
    ]


@needs_no_gpu
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    words = ("tune", "--strategy", "safe", "--shape", "4x64", "--shape", f"4x{INTERRUPTING_COLS}")
    result = cli(*words, "--grid", path)
    assert result.exit_code == group.INTERRUPTED
    assert "1 of 2 shapes are done and kept" in result.stderr
    assert {record.cols for record in read_csv(path)} == {64}


@needs_no_gpu
def test_without_matplotlib_the_file_is_written_and_the_way_to_the_picture_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    path = tmp_path / "grid.csv"
    result = ok("tune", "--strategy", "safe", "--shape", "4x64", "--grid", path)
    assert f"`softgen bench --from {path} --plot {tmp_path / 'grid.png'}` draws it" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["grid.csv"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--strategy", "safe"), "--strategy and --grid go together"),
        (("--grid", "x.csv"), "--strategy and --grid go together"),
        (("--strategy", "saf", "--grid", "x.csv"), "unknown strategy 'saf'; did you mean 'safe'"),
        (("--strategy", "safe", "--grid", "x.png"), "x.png is no .csv file"),
        (("--strategy", "safe", "--grid", "no/x.csv"), "a folder that does not exist"),
        (
            ("--strategy", "safe", "--grid", "x.csv", "--candidates"),
            "--candidates goes without --grid",
        ),
        (
            ("--strategy", "safe", "--grid", "x.csv", "--budget", "1"),
            "--budget cannot be given with --grid",
        ),
        (
            ("--strategy", "safe", "--grid", "x.csv", "--out-dtype", "float64"),
            "leave --out-dtype out",
        ),
    ],
)
def test_bad_requests_are_refused_before_anything_is_timed(
    words: tuple[str, ...], message: str
) -> None:
    error = refused(group.USAGE, "tune", "--shape", "4x64", *words)
    assert re.search(message, error), error


def test_a_search_checks_times_and_names_what_it_cannot_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class FakeRace:
        def __init__(self, buffers: Any, settings: Any, spent: Any) -> None:
            self.buffers = buffers

        def findings(self) -> list[Finding]:
            return [Finding("limit", Status.TIMED, 5.0)]

        def look_at(self, name: str, entrant: Any) -> Finding:
            if name == "safe_b512":
                raise RuntimeError("no room\nfor it")
            assert entrant == f"entrant of {name}"
            return Finding(name, Status.TIMED, error=1e-7).timed([7.0, 7.0, 8.0])

    def compile_all(sources: Any) -> Any:
        for source in sources:
            label = source.variant.strategy.label
            if label == "safe_b64":
                yield CompileError("refused\nand why")
            else:
                yield SimpleNamespace(variant=source.variant, local_bytes=8 * (label == "safe_b32"))

    shape = Shape("grid", DType.FLOAT32, 128, 1024)
    buffers = SimpleNamespace(problem=shape.problem, arch=ARCH)
    monkeypatch.setattr(grid, "SharedBuffers", lambda shape: buffers)
    monkeypatch.setattr(grid, "Race", FakeRace)
    monkeypatch.setattr(grid, "machine", lambda: HERE)
    monkeypatch.setattr(grid, "compile_many", compile_all)
    monkeypatch.setattr(
        grid, "entrant_of", lambda kernel, buffers: f"entrant of {kernel.variant.strategy.label}"
    )
    done: list[tuple[int, int]] = []
    records = grid.search(shape, "safe", lambda *each: done.append(each))
    assert done == [(number, 6) for number in range(1, 7)]
    notes = {record.peer: (record.status.value, record.note) for record in records}
    assert notes["safe_b32"] == ("absent", "spills registers")
    assert notes["safe_b64"] == ("absent", "CompileError: refused")
    assert notes["safe_b512"] == ("absent", "RuntimeError: no room")
    timed = [record for record in records if record.peer == "safe_b128"]
    assert (timed[0].microseconds, timed[0].ratio_to_limit) == (7.0, 1.4)
    assert [*notes] == ["limit", *(f"safe_b{2**i}" for i in range(5, 11))]


def records_at(strategy: str, rows: int, cols: int) -> list[Record]:
    return fake_search(Shape("grid", DType.FLOAT32, rows, cols), strategy)


def test_there_is_a_map_for_each_setting_of_the_other_knobs() -> None:
    records = records_at("online", 128, 8192)
    maps = heat_maps(records)
    assert [each.title for each in maps] == [
        f"online, float32 128 x 8192\npack_size {pack}" for pack in (1, 2, 4)
    ]
    by_label = {record.peer: record.microseconds for record in records}
    for each, pack in zip(maps, (1, 2, 4), strict=True):
        assert each.x == ("block_size", (32, 64, 128, 256, 512, 1024))
        assert each.y == ("unroll", tuple(range(1, 9)))
        assert each.cells == {
            (block, unroll): by_label[f"online_p{pack}_u{unroll}_b{block}"]
            for unroll in range(1, 9)
            for block in (32, 64, 128, 256, 512)
        }


def test_a_strategy_with_one_knob_has_one_line_of_cells() -> None:
    (only,) = heat_maps(records_at("safe", 128, 8192))
    assert only.title == "safe, float32 128 x 8192"
    assert (only.x[0], only.y) == ("block_size", ("", (0,)))
    assert sorted(only.cells) == [(2**i, 0) for i in range(5, 10)]


def test_where_there_are_many_other_knobs_a_cell_is_the_fastest() -> None:
    records = records_at("warp", 4096, 512)
    (only,) = heat_maps(records)
    timed = [record.microseconds for record in records if record.peer != "limit"]
    assert min(only.cells.values()) == min(each for each in timed if each)
    assert len(only.cells) < len(timed)


def test_two_shapes_have_maps_of_their_own() -> None:
    maps = heat_maps([*records_at("safe", 128, 64), *records_at("safe", 8, 64)])
    assert [each.title for each in maps] == ["safe, float32 128 x 64", "safe, float32 8 x 64"]


def test_searches_are_not_drawn_beside_suites() -> None:
    pytest.importorskip("matplotlib")
    from softgen.bench.plot import figure_of
    from softgen.errors import InvalidValueError

    other = records_of(
        Shape("llm", DType.FLOAT32, 4, 8), [Finding("softgen", Status.TIMED, 2.0)], HERE
    )
    with pytest.raises(InvalidValueError, match="in a file of its own; choose by --suite"):
        figure_of([*records_at("safe", 128, 64), *other])
