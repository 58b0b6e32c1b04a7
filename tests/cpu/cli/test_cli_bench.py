"""softgen bench: its options, tables and files, with a runner that needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from softgen.bench.peers import Peer
from softgen.bench.race import Settings
from softgen.bench.record import (
    Finding,
    Machine,
    Record,
    Regime,
    Status,
    read_csv,
    records_of,
    to_csv,
)
from softgen.bench.roster import peers_for
from softgen.bench.shape import Shape
from softgen.bench.suites import shapes_of
from softgen.cli import group, output
from softgen.cli.bench_table import ratios, remarks
from softgen.devices.gpu.device import unavailable_reason
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from tests.helpers.cli_helpers import ROOT, cli, document, ok, refused

HERE = Machine("a GPU", "580.1", "softgen 1")
INTERRUPTING_COLS, WRONG_COLS = 666, 13
SMALL = ("--shape", "4x8", "--shape", "16x32")
needs_no_gpu = pytest.mark.skipif(unavailable_reason() is None, reason="there is a GPU")


def fake_run(
    shapes: Sequence[Shape],
    peers_for: Callable[[Shape], Sequence[Peer]],
    settings: Settings,
    report: Callable[[str], None],
) -> Iterator[list[Record]]:
    """Time every competitor at 2, 3, ... us; some widths are where things happen."""
    for shape in shapes:
        if shape.cols == INTERRUPTING_COLS:
            raise KeyboardInterrupt
        found = [Finding("limit", Status.TIMED, 2.0, 0.0)]
        for number, peer in enumerate(peers_for(shape)):
            report(peer.name)
            found.append(Finding(peer.name, Status.TIMED, 3.0 + number, 1e-7))
        if shape.cols == WRONG_COLS:
            found[1] = Finding(found[1].peer, Status.WRONG, error=0.5, note="off by 0.5")
        yield records_of(shape, found, HERE, settings.regime)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim that there is a GPU, and that measuring on it is quick."""
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: None)
    monkeypatch.setattr("softgen.bench.race.run", fake_run)


@pytest.mark.usefixtures("gpu")
def test_the_document_and_the_table_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    result = ok("bench", *SMALL, "--peers", "softgen,torch", "--csv", path, "--json")
    lines = document(result)
    assert lines == [record.as_document() for record in read_csv(path)]
    assert [line["peer"] for line in lines] == ["limit", "softgen", "torch"] * 2
    softgen = lines[1]
    wanted = {"suite": "custom", "dtype": "float32", "rows": 4, "cols": 8, "peer": "softgen"}
    wanted |= {"microseconds": 3.0, "ratio_to_limit": 1.5, "device": "a GPU"}
    assert {name: softgen[name] for name in wanted} == wanted


@pytest.mark.usefixtures("gpu")
def test_people_get_a_line_a_shape() -> None:
    result = ok("bench", *SMALL, "--dtype", "float16", "--peers", "softgen,torch")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["custom", "float16", "4", "8", "2.00", "1.50", "2.00", "0.75"] in lines
    assert " ".join(lines[0]) == "a GPU, driver 580.1"
    assert lines[1][-5:] == ["torch", "softgen", "/", "best", "peer"]


@pytest.mark.usefixtures("gpu")
def test_a_command_that_says_no_seconds_times_as_the_module_does_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Settings] = []

    def run(*given: Any) -> Iterator[list[Record]]:
        seen.append(given[2])
        return fake_run(*given)

    monkeypatch.setattr("softgen.bench.race.run", run)
    for words in ((), ("--seconds", "0.5", "--setup-seconds", "3", "--warm")):
        ok("bench", *SMALL, "--peers", "softgen", *words)
    assert seen == [Settings(), Settings(0.5, 3.0, Regime.WARM)]


@pytest.mark.usefixtures("gpu")
def test_suites_come_in_the_order_asked_for() -> None:
    words = ("--suite", "oneflow", "--suite", "triton", "--quick", "--peers", "softgen")
    lines = document(ok("bench", *words, "--json"))
    assert list(dict.fromkeys(line["suite"] for line in lines)) == ["oneflow", "triton"]
    assert len(lines) == 2 * (11 + 14)


@pytest.mark.usefixtures("gpu")
def test_the_drawn_suite_has_every_type_and_the_noise_beside_it() -> None:
    lines = document(ok("bench", "--suite", "drawn", "--json"))
    assert {line["peer"] for line in lines} >= {"limit", "softgen", "softgen-again", "torch"}
    shapes = dict.fromkeys((line["dtype"], line["rows"], line["cols"]) for line in lines)
    assert [dtype for dtype, _, _ in shapes][::10] == ["float16", "bfloat16", "float32", "float64"]
    assert len(shapes) == 40


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("regime", ["warm", "chained"])
def test_a_regime_is_told_from_the_cold_one(regime: str, tmp_path: Path) -> None:
    cold, other = tmp_path / "cold.csv", tmp_path / "other.csv"
    words = ("bench", "--shape", "4x8", "--peers", "softgen", "--csv")
    assert "regime" not in ok(*words, cold).stdout
    ok(*words, other, f"--{regime}")
    joined = ok("bench", "--from", cold, "--from", other)
    lines = [line.split() for line in joined.stdout.splitlines()]
    assert lines[1][:6] == ["suite", "dtype", "rows", "cols", "regime", "limit"]
    for each in ("cold", regime):
        assert ["custom", "float32", "4", "8", each, "2.00", "1.50", "-"] in lines
    told = document(ok("bench", "--from", other, "--json"))
    assert [line["regime"] for line in told] == [regime, regime]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("option", ["--function", "--algorithm"])
def test_a_function_is_measured_and_named(option: str, tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    words = ("bench", *SMALL, "--peers", "softgen,torch", "--csv", path)
    result = ok(*words, option, "logsumexp")
    assert {record.function for record in read_csv(path)} == {"logsumexp"}
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1][:6] == ["suite", "dtype", "rows", "cols", "function", "limit"]
    assert lines[2] == [
        *("custom", "float32", "4", "8", "logsumexp", "2.00", "1.50"),
        "2.00",
        "0.75",
    ]
    assert "time over that of the fastest read (limit" in result.stdout
    result = ok(*words)
    assert "function" not in result.stdout
    assert "time over that of the fastest copy (limit" in result.stdout
    assert {line["function"] for line in document(ok(*words, "--json"))} == {"softmax"}


@pytest.mark.usefixtures("gpu")
def test_a_suite_has_a_function_of_its_own_unless_another_is_asked_for() -> None:
    words = ("bench", "--suite", "logsumexp", "--suite", "online", "--peers", "softgen", "--json")
    functions = {(line["suite"], line["function"]) for line in document(ok(*words))}
    assert functions == {("logsumexp", "logsumexp"), ("online", "softmax")}
    lines = document(ok(*words, "--function", "log_softmax"))
    assert {line["function"] for line in lines} == {"log_softmax"}


@pytest.mark.usefixtures("gpu")
def test_functions_are_not_compared_with_each_other(tmp_path: Path) -> None:
    sources: list[object] = []
    for function in ("softmax", "log_softmax", "logsumexp"):
        path = tmp_path / f"{function}.csv"
        ok("bench", "--shape", "4x8", "--peers", "softgen", "--csv", path, "--function", function)
        sources += ["--from", path]
    joined = ok("bench", *sources)
    assert joined.stderr == ""  # nothing was measured twice
    lines = [line.split() for line in joined.stdout.splitlines()]
    assert [line[4] for line in lines[2:5]] == ["softmax", "log_softmax", "logsumexp"]
    assert "the fastest copy, or read where one number a row is written (limit" in joined.stdout
    (limit, softgen) = document(ok("bench", *sources, "--function", "log_softmax", "--json"))
    assert limit["function"] == softgen["function"] == "log_softmax"
    error = refused(group.USAGE, "bench", *sources, "--function", "partial")
    assert "nothing of function partial, only of softmax, log_softmax, logsumexp" in error


@pytest.mark.usefixtures("gpu")
def test_a_wrong_result_names_the_function_that_is_not_softmax() -> None:
    words = ("--shape", f"4x{WRONG_COLS}", "--peers", "softgen", "--function", "logsumexp")
    result = cli("bench", *words)
    assert result.exit_code == group.WRONG_RESULT
    assert "wrong result: softgen of logsumexp" in result.stderr
    assert "softgen: wrong at 1 shape of logsumexp: off by 0.5" in result.stdout


@pytest.mark.usefixtures("gpu")
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    words = (*SMALL, "--shape", f"4x{INTERRUPTING_COLS}", "--shape", "8x8", "--csv", path)
    result = cli("bench", *words, "--peers", "softgen", "--json")
    assert result.exit_code == group.INTERRUPTED
    assert "2 of 4 shapes are done" in result.stderr
    assert {line["cols"] for line in document(result)} == {8, 32}
    assert {record.cols for record in read_csv(path)} == {8, 32}


@pytest.mark.usefixtures("gpu")
def test_a_wrong_result_of_ours_exits_with_4() -> None:
    words = ("--shape", f"4x{WRONG_COLS}", "--json", "--peers")
    result = cli("bench", *words, "softgen,torch")
    assert result.exit_code == group.WRONG_RESULT
    assert "wrong result: softgen" in result.stderr
    assert document(result)[1]["status"] == "wrong"
    ok("bench", *words, "torch,softgen")  # that of another library is a finding, no failure


@needs_no_gpu
def test_without_a_gpu_it_exits_with_3() -> None:
    error = refused(group.NO_DEVICE, "bench", "--suite", "triton")
    assert "no GPU can be used" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--suite", "tritom"),
            "unknown suite 'tritom'; did you mean 'triton'. softgen knows: triton, fastsoftmax",
        ),
        (
            ("--peers", "torch,jax"),
            "unknown peer 'jax'; softgen knows: softgen, .*torch.compile.*and any variant",
        ),
        (
            ("--function", "logsumexpp"),
            "unknown function 'logsumexpp'; did you mean 'logsumexp'. softgen knows: ",
        ),
        (("--shape", "4096"), "write ROWSxCOLS"),
        (("--dtype", "float16"), "no shape of llm is float16, only bfloat16"),
        (
            ("--csv", "no/such/folder.csv"),
            "--csv: no/such/folder.csv is in a folder that does not exist",
        ),
        (("--csv", "/"), "--csv: / is a folder; give the path"),
        (("--from", "x.csv", "--quick"), "--from measures nothing"),
        (("--from", "x.csv", "--warm"), "--from measures nothing"),
        (("--from", "x.csv", "--chained"), "--from measures nothing"),
        (("--from", "x.csv", "--seconds", "1"), "--from measures nothing"),
        (("--from", "x.csv", "--setup-seconds", "0"), "--from measures nothing"),
        (("--shape", "4x8", "--warm", "--chained"), "give --warm or --chained"),
        (("--from", "x.csv", "--suite", "tritom"), "unknown suite 'tritom'"),
        (("--from", "nowhere.csv"), "cannot read nowhere.csv"),
        (("--seconds", "0"), "--seconds"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_measured(
    words: tuple[str, ...], message: str
) -> None:
    error = refused(group.USAGE, "bench", *words)
    assert re.search(message, error), error


@pytest.mark.usefixtures("gpu")
def test_a_plot_can_be_drawn_again_from_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table, first, second = (tmp_path / name for name in ("a.csv", "a.png", "b.png"))
    words = ("--suite", "fastsoftmax", "--peers", "softgen,torch,quack")
    ok("bench", *words, "--csv", table, "--plot", first)
    lines = document(ok("bench", "--from", table, "--plot", second, "--json"))
    assert lines == [record.as_document() for record in read_csv(table)]
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("gpu")
def test_of_a_suite_the_shapes_of_one_type_can_be_timed() -> None:
    words = ("bench", "--peers", "softgen", "--dtype", "float32", "--json")
    found = document(ok(*words, "--suite", "logsumexp", "--shape", "4x8"))
    every = shapes_of(["logsumexp"])
    wanted = [(s.rows, s.cols) for s in every if s.dtype is DType.FLOAT32]
    assert 0 < len(wanted) < len(every)
    found = [each for each in found if each["peer"] == "softgen"]
    assert {each["dtype"] for each in found} == {"float32"}
    assert [(each["rows"], each["cols"]) for each in found] == [*wanted, (4, 8)]


@pytest.mark.usefixtures("gpu")
def test_a_report_may_be_of_one_suite_of_several_tables(tmp_path: Path) -> None:
    first, second = tmp_path / "a.csv", tmp_path / "b.csv"
    words = ("bench", "--peers", "softgen", "--csv")
    ok(*words, first, "--suite", "oneflow", "--suite", "online")
    ok(*words, second, "--shape", "4x8")
    sources = ("--from", first, "--from", second)
    whole = document(ok("bench", *sources, "--json"))
    assert {line["suite"] for line in whole} == {"oneflow", "online", "custom"}
    part = document(ok("bench", *sources, "--suite", "online", "--suite", "custom", "--json"))
    assert part == [line for line in whole if line["suite"] != "oneflow"]


def test_the_help_names_the_judges_that_are_not_run_by_default() -> None:
    told = " ".join(ok("bench", "--help").stdout.replace("│", " ").split())
    judges = ("softgen-again", "softgen-exhaustive", "softgen-invariant")
    assert all(judge in told for judge in judges)
    assert "and those of a suite; softgen-again too in suite drawn" in told
    default = {peer.name for peer in peers_for(shapes_of(["llm"])[0], None)}
    assert not default.intersection(judges)
    assert {peer.name for peer in peers_for(shapes_of(["drawn"])[0], None)} - default == {
        "softgen-again"
    }


def table_of(**findings: Any) -> list[Record]:
    found = [Finding(peer, *values) for peer, values in findings.items()]
    return records_of(Shape("custom", DType.FLOAT32, 4, 8), found, HERE)


def test_tables_are_joined_and_cut_by_suite(tmp_path: Path) -> None:
    made = {suite: tmp_path / f"{suite}.csv" for suite in ("llm", "online")}
    for suite, path in made.items():
        found = [Finding("softgen", Status.TIMED, 2.0)]
        path.write_text(to_csv(records_of(Shape(suite, DType.FLOAT32, 4, 8), found, HERE)))
    joined, cut = tmp_path / "joined.csv", tmp_path / "cut.csv"
    ok("bench", "--from", made["llm"], "--from", made["online"], "--csv", joined)
    ok("bench", "--from", joined, "--suite", "online", "--csv", cut)
    assert cut.read_bytes() == made["online"].read_bytes()
    assert [record.suite for record in read_csv(joined)] == ["llm", "online"]
    error = refused(group.USAGE, "bench", "--from", joined, "--suite", "oneflow", "--csv", cut)
    assert "joined.csv: nothing of suite oneflow, only of llm, online" in error
    assert cut.read_bytes() == made["online"].read_bytes()


def test_softgens_own_judges_are_no_other_library() -> None:
    names = ("limit", "softgen", "softgen-again", "softgen-exhaustive", "torch")
    found = [Finding(peer, Status.TIMED, 2.0 + i) for i, peer in enumerate(names)]
    records = records_of(Shape("drawn", DType.FLOAT64, 4, 8), found, HERE, Regime.COLD)
    assert ratios(records)[1][4:] == ["2.00", "1.50", "2.00", "2.50", "3.00", "0.50"]


def test_the_last_column_is_against_the_fastest_other_library() -> None:
    heads, line = ratios(
        table_of(
            limit=(Status.TIMED, 2.0),
            softgen=(Status.TIMED, 2.2),
            oneflow=(Status.TIMED, 2.1),
            torch=(Status.TIMED, 4.0),
            quack=(Status.EAGER, 2.75),
            liger=(Status.ABSENT,),
            cupyx=(Status.WRONG,),
        )
    )
    assert heads[4:] == [
        *("limit", "softgen", "oneflow", "torch", "quack", "liger", "cupyx"),
        "softgen / best peer",
    ]
    assert line[4:] == ["2.00", "1.10", "1.05", "2.00", "~1.38", "-", "WRONG", "0.80"]


def test_reasons_are_said_once() -> None:
    one = table_of(liger=(Status.ABSENT, None, None, "liger_kernel is not installed"))
    assert remarks(one * 3) == ["liger: absent at 3 shapes: liger_kernel is not installed"]
    assert remarks(one) == ["liger: absent at 1 shape: liger_kernel is not installed"]


def test_reasons_are_told_by_function() -> None:
    lacking = [Finding("liger", Status.ABSENT, note="has no logsumexp")]
    logits = Shape("own", DType.BFLOAT16, 4, 8, function=Function.of("logsumexp"))
    wide = Shape("own", DType.BFLOAT16, 4, 8)
    records = [
        *records_of(logits, lacking, HERE),
        *records_of(wide, [Finding("liger", Status.ABSENT, note="is not installed")], HERE),
    ]
    assert remarks(records) == [
        "liger: absent at 1 shape of logsumexp: has no logsumexp",
        "liger: absent at 1 shape: is not installed",
    ]


def test_reasons_that_differ_in_numbers_are_one_remark() -> None:
    shape = Shape("own", DType.BFLOAT16, 4, 8)
    records = [
        *records_of(shape, [Finding("cupyx", Status.WRONG, note="off by 0.03 at 2")], HERE),
        *records_of(shape, [Finding("cupyx", Status.WRONG, note="off by 1.5e-05 at 7")], HERE),
        *records_of(shape, [Finding("cupyx", Status.WRONG, note="refused")], HERE),
    ]
    assert remarks(records) == [
        "cupyx: wrong at 2 shapes: off by 0.03 at 2, and alike",
        "cupyx: wrong at 1 shape: refused",
    ]


def test_a_plot_that_is_no_png_is_refused_before_anything_is_timed(tmp_path: Path) -> None:
    message = refused(group.USAGE, "bench", "--plot", tmp_path / "plot.pdf")
    assert "plot.pdf is no .png file, and plots are PNG" in message
    assert list(tmp_path.iterdir()) == []


BENCHMARK = ROOT / "docs" / "benchmark"


@pytest.mark.parametrize("name", ["drawn", "drawn-h100", "triton", "llm", "oneflow", "online"])
def test_a_narrow_terminal_gets_tables_of_whole_cells(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich folded cells to three letters; now the competitors go on in another table."""
    words = ("bench", "--from", BENCHMARK / f"{name}.csv")
    origin, *lines = ok(*words).stdout.partition("\ntime over")[0].splitlines()
    assert origin.startswith("NVIDIA H")
    wide = [line.split() for line in lines]
    monkeypatch.setattr(output, "PIPE_WIDTH", 80)
    narrow = ok(*words).stdout.partition("\n\ntime over")[0]
    assert max(map(len, narrow.splitlines())) <= 80
    told, suite, tables = narrow.split("\n", 2)
    assert told == origin
    assert suite == f"suite {wide[1][0]}"
    parts = [table.splitlines() for table in tables.split("\n\n")]
    cells = []
    for number, row in enumerate(wide[1:]):
        cells.append([cell for part in parts for cell in part[number - len(wide) + 1].split()[2:]])
        assert {part[number - len(wide) + 1].split()[1] for part in parts} == {f"{row[2]}x{row[3]}"}
    assert cells == [row[4:] for row in wide[1:]]


def test_narrow_tables_of_several_suites_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "PIPE_WIDTH", 80)
    words = [word for name in ("llm", "drawn") for word in ("--from", BENCHMARK / f"{name}.csv")]
    lines = ok("bench", *words).stdout.splitlines()
    assert lines[2].split()[:2] == ["shape", "suite"]
    assert lines[3].split()[:3] == ["bf16", "8192x1024", "llm"]


def test_two_devices_have_tables_of_their_own() -> None:
    """The later file's figures were taken for both, and its notes counted twice."""
    tables = {name: BENCHMARK / f"{name}.csv" for name in ("drawn", "drawn-h100")}
    alone = [ok("bench", "--from", path).stdout for path in tables.values()]
    assert [text.partition("\n")[0] for text in alone] == [
        f"NVIDIA {device}, driver 580.159.04, CUDA 13.0" for device in ("H200", "H100 80GB HBM3")
    ]
    both = ok("bench", *(word for path in tables.values() for word in ("--from", path)))
    assert both.stdout == "\n".join(alone)
    twice = ok("bench", "--from", tables["drawn"], "--from", tables["drawn"])
    assert (twice.stdout, twice.stderr) == (alone[0], "")


def test_of_two_runs_on_one_device_the_later_is_taken_and_told(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, time in zip(paths, (4.0, 6.0), strict=True):
        found = [(Status.TIMED, 2.0), (Status.TIMED, time)]
        path.write_text(to_csv(table_of(**dict(zip(("limit", "softgen"), found, strict=True)))))
    result = ok("bench", "--from", paths[0], "--from", paths[1], "--json")
    assert [line["microseconds"] for line in document(result)] == [2.0, 6.0]
    assert result.stderr == "1 figure was measured twice on one device; the later is taken\n"
