"""The sources' pages: tables are what the CSV files hold, commands are taken as written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from softgen.bench.knobs import every_variant
from softgen.bench.record import Finding, Machine, Record, Status, records_of, to_csv
from softgen.bench.roster import peers_for
from softgen.bench.shape import Shape
from softgen.bench.suites import shapes_of
from softgen.cli import group
from softgen.problems.arch import arch_named
from tests.helpers.cli_helpers import ROOT, refused
from tests.sources_page import BENCHMARK, PAGES, SECTIONS, rendered

PAGE = "".join((ROOT / page).read_text() for page in PAGES)
COMMANDS = [line for line in PAGE.splitlines() if line.startswith("softgen ")]
HERE = Machine("NVIDIA H200", "580.1", "softgen 1")
PARTS = {"online": ("000", "001"), "packs": ("002",), "triton": ("003",), "fastsoftmax": ("004",)}


def block(page: str, name: str) -> str:
    return page.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]


def cells(page: str, name: str, first: str) -> list[str]:
    """Return the cells of the first line of a section's tables that begins with `first`."""
    (line, *_) = [
        each for each in block(page, name).splitlines() if each.startswith(f"| {first} |")
    ]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_each_piece_has_a_command_that_is_taken_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: "a test")
    monkeypatch.chdir(tmp_path)
    assert len(COMMANDS) == 6
    assert [line.split()[3] for line in COMMANDS] == [
        *("online", "online", "packs", "triton", "fastsoftmax", "threepass")
    ]
    for line in dict.fromkeys(COMMANDS):
        assert "no GPU can be used: a test" in refused(group.NO_DEVICE, *line.split()[1:])


def measured(suite: str, skip: str = "") -> list[Record]:
    """Return records of a suite as a run would leave them: peer number n takes 3 + n us a row."""
    records: list[Record] = []
    for shape in shapes_of([suite]):
        found = [Finding("limit", Status.TIMED, 2.0 * shape.rows, 0.0, "copy")]
        for number, peer in enumerate(peers_for(shape, None)):
            note = "threepass_p4_u2_co_sh_b256, the fastest of 40"
            if peer.name != skip:
                time = (3.0 + number) * shape.rows
                found.append(Finding(peer.name, Status.TIMED, time, 1e-7, note))
        records += records_of(shape, found, HERE)
    return records


@pytest.fixture
def complete(tmp_path: Path) -> str:
    """Return the page of a run in which everybody was timed."""
    for suite in PARTS:
        (tmp_path / f"{suite}.csv").write_text(to_csv(measured(suite)))
    shape = Shape("grid", shapes_of(["fastsoftmax"])[0].dtype, 128, 1024)
    found = [Finding("limit", Status.TIMED, 1.0)]
    for number, each in enumerate(every_variant("safe", shape.problem, 128, arch_named("sm_90"))):
        found.append(Finding(each.strategy.label, Status.TIMED, 9.0 - number))
    (tmp_path / "grid.csv").write_text(to_csv(records_of(shape, found, HERE)))
    return rendered(PAGE, tmp_path)


def test_a_whole_run_leaves_no_gap(complete: str) -> None:
    for name in SECTIONS:
        assert "Not measured yet" not in block(complete, name), name
    for name in ("001", "003", "004"):
        assert "| - |" not in block(complete, name), name
    assert cells(complete, "000", "CPU, all threads")[1] == "-"  # the article has none


def test_the_figures_are_those_of_the_files(complete: str) -> None:
    """Peers in the order of the roster: softgen 3 us a row, ... what a suite adds from 13 on."""
    assert cells(complete, "000", "CPU, one thread")[1:] == ["715", "300", "`numpy-one-thread`"]
    assert cells(complete, "000", "GPU, online, 512 threads a row")[1:3] == ["0.920", "280"]
    assert "CPU over GPU: 777 there, 1 here (threepass" in block(complete, "000")
    safe, online = 13 * 128, 14 * 128
    assert cells(complete, "001", "2048")[1:] == [
        *("23.49", "20.29", "0.86", str(safe), str(online), "1.08", "384.0", "256.0")
    ]
    assert cells(complete, "001", "65536")[3] == "1.04"
    assert "6 of 7 widths there, and at 0 of 7 here, where it takes 1.08 to 1.08" in block(
        complete, "001"
    )
    assert cells(complete, "002", "pack 2 over pack 1")[1:] == ["about 0.94", "1.08"]
    assert cells(complete, "002", "float16 32 x 16")[1:4] == ["416.0", "448.0", "480.0"]
    assert cells(complete, "002", "float16, pack 8 over pack 4")[1] == "1.07 to 1.07"
    rate = 2 * 4 * 256 / 1000  # GB/s of a row of 256 in a us
    assert cells(complete, "003", "256")[1:5] == ["630", "683", "234", f"{rate / 15:.0f}"]
    assert cells(complete, "003", "Triton over torch, 12672 columns")[1:] == ["1.91", "0.40"]
    naive = 5 * 1024 / 13 / 1000
    assert cells(complete, "004", "`naive-best`")[1] == str(13 * 128)
    assert cells(complete, "004", "the first kernel at 1024 columns, GFLOP/s")[1:] == [
        "8.9",
        f"{naive:#.3g}",
    ]
    shares = block(complete, "004").partition("| share of the copy |")[2]
    assert f"| `tree-best` | {2 / 14:.2f} |" in shares
    assert "| `unrolled-best` | u2 b256 |" in shares
    assert "of 6 settings of `safe`, `safe_b1024` is the fastest, 4.00 us" in complete
    assert "![Heat map of a search](benchmark/grid.png)" in complete


def test_what_was_not_timed_is_a_dash_and_is_named(tmp_path: Path) -> None:
    for suite in PARTS:
        (tmp_path / f"{suite}.csv").write_text(to_csv(measured(suite, "triton-one-row")))
    page = rendered(PAGE, tmp_path)
    assert "Not measured yet: `triton-one-row`." in block(page, "003")
    assert cells(page, "003", "384")[4] == "-"
    assert cells(page, "003", "Triton over torch, 256 columns")[2] == "-"
    assert "Not measured yet." in block(page, "grid")


def test_without_any_file_the_published_figures_stand_alone(tmp_path: Path) -> None:
    page = rendered(PAGE, tmp_path)
    assert cells(page, "001", "4194304")[1:4] == ["37992", "29328", "0.77"]
    assert cells(page, "004", "the limit, GFLOP/s")[1:] == ["625 at 1 TB/s", "-"]
    assert block(page, "002").strip() == "Not measured yet."


def test_a_page_without_a_marker_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- 002 -->"):
        rendered(PAGE.replace("<!-- 002 -->", ""))


def test_an_edited_figure_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "benchmark"
    shutil.copytree(BENCHMARK, folder)
    text = (folder / "triton.csv").read_text()
    lines = [
        line for line in text.splitlines() if line.startswith("triton,float32,4096,256,torch,")
    ]
    cell = lines[0].split(",")
    cell[7] = "1234.5"
    (folder / "triton.csv").write_text(text.replace(lines[0], ",".join(cell)))
    assert cells(rendered(PAGE, folder), "003", "256")[5] == "1234"
    assert rendered(PAGE, folder) != PAGE
