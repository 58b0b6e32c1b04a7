"""The suites, the records and their CSV, and how the competitors of a shape are dealt with."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import hashlib
import inspect
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen.bench import buffers as buffers_module
from softgen.bench import check, limit
from softgen.bench import race as race_module
from softgen.bench.buffers import SharedBuffers
from softgen.bench.chain import Chain
from softgen.bench.libraries import AUTOTUNED_MODE, OF_QUACK
from softgen.bench.peers import (
    AbsentError,
    Entrant,
    Field,
    Library,
    Peer,
    exhaustive_field,
    softgen_entrant,
)
from softgen.bench.race import SETTINGS, Race, Settings, first_line
from softgen.bench.record import (
    COLUMNS,
    COLUMNS_WITHOUT_FUNCTION,
    COLUMNS_WITHOUT_QUANTILES,
    COLUMNS_WITHOUT_REGIME,
    Finding,
    Machine,
    Record,
    Regime,
    Status,
    read_csv,
    records_of,
    to_csv,
)
from softgen.bench.roster import all_peers, extra_peers, named_peers, others, peers_for
from softgen.bench.shape import Shape
from softgen.bench.suites import CUSTOM, DRAWN_BYTES, SUITES, draw, shapes_of
from softgen.bench.torch_expressions import BY_NAME, OF_LOGITS
from softgen.errors import CompileError, InvalidValueError
from softgen.problems import numerics
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType, Integer
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.strategies.variants import candidates
from softgen.tuning.measure import Buffers
from tests.helpers.cli_helpers import refused
from tests.helpers.driver import PROGRAMMATIC, FakeDriver

HERE = Machine("a GPU", "580.1, CUDA 13.0", "softgen 1; torch 2")
BENCHED = [
    each.name
    for each in all_functions()
    if not any(
        o.extent is Extent.BROADCAST or (o.result and isinstance(o.dtype, Integer))
        for o in Problem.of(each, DType.FLOAT32, max(8, each.least_cols)).operands
    )
]
BENCHMARK = Path(__file__).resolve().parents[3] / "docs" / "benchmark"


def sizes(suite: str) -> list[tuple[int, int]]:
    return [(shape.rows, shape.cols) for shape in shapes_of([suite])]


def test_the_suites_are_those_that_others_published() -> None:
    assert sizes("triton") == [(4096, 128 * i) for i in range(2, 100)]
    assert sizes("triton")[-1] == (4096, 12672)
    assert sizes("fastsoftmax") == [(128, 2**i) for i in range(10, 18)]
    assert sizes("oneflow") == [(49152, 2**i) for i in range(5, 16)]
    assert set(sizes("online")) >= {(128, 32728), (20000, 5000), (16, 2**22), (4, 2**24)}
    scores = {(32 * seq, seq) for seq in (512, 1024, 2048, 4096, 8192)}
    assert set(sizes("llm")) >= {(1, 128256), (4096, 50257), (256, 151937), *scores}
    types = {"triton": "float32", "fastsoftmax": "float32", "online": "float32"}
    types |= {"oneflow": "float16", "llm": "bfloat16"}
    powers = [(49152, 2**i) for i in range(5, 11)]
    assert sizes("packs") == [(1024, 1024), (32, 16), *powers] * 2
    assert [each.dtype.value for each in shapes_of(["packs"])] == ["float32"] * 8 + ["float16"] * 8
    for name, dtype in types.items():
        assert {shape.dtype.value for shape in shapes_of([name])} == {dtype}
    assert sizes("short") == [(8, 1024), (128, 1024), (128, 4096), (1, 128256), (8, 128256)]
    ours = {
        "logsumexp",
        "short",
        "compiled",
        "drawn",
        "axes",
        "hooks",
        "views",
        "backward",
        "losses",
        "routing",
        "topk",
        "sample",
    }
    assert {*SUITES} == {*types, "packs", *ours}


def test_the_suite_of_logsumexp_has_its_function_and_others_softmax() -> None:
    shapes = shapes_of(["logsumexp"])
    assert [shape.label for shape in shapes] == [
        "logsumexp logsumexp bfloat16 4096x128256",
        "logsumexp logsumexp bfloat16 8192x151936",
        "logsumexp logsumexp bfloat16 16384x50257",
        "logsumexp logsumexp float32 128x4194304",
        "logsumexp logsumexp bfloat16 8x128256",
    ]
    others = ("logsumexp", "axes", "backward", "losses", "routing", "topk", "sample")
    rest = shapes_of([name for name in SUITES if name not in others])
    assert {shape.function.name for shape in rest} == {"softmax"}
    asked = shapes_of([*SUITES], function=Function.of("partial"))
    assert {shape.function.name for shape in asked} == {"partial"}
    assert shapes[0].problem == Problem.of("logsumexp", "bfloat16", 128256)


def test_the_drawn_shapes_are_the_same_everywhere() -> None:
    shapes = shapes_of(["drawn"])
    assert [shape.label for shape in shapes[:3]] == [
        "drawn float16 127x104",
        "drawn float16 360x807",
        "drawn float16 8298x200",
    ]
    labels = "\n".join(shape.label for shape in shapes)
    assert hashlib.sha256(labels.encode()).hexdigest()[:16] == "7faa99d53591adb0"
    assert all(shape.landmark for shape in shapes)


def test_drawn_shapes_keep_to_their_bounds() -> None:
    for seed in range(50):
        cases = draw(seed)
        assert [dtype for dtype, _, _ in cases] == [dtype for dtype in DType for _ in range(10)]
        for dtype, rows, cols in cases:
            assert 1 <= rows <= 100_000
            assert 3 <= cols <= 3_000_000
            assert rows * cols * dtype.itemsize <= DRAWN_BYTES
        assert all(cols % 8 == 0 for _, _, cols in cases[::2])
        assert sum(cols % 8 != 0 for _, _, cols in cases[1::2]) > 10


def test_quick_keeps_the_ends_of_the_one_long_suite() -> None:
    quick = shapes_of(["triton", "oneflow"], quick=True)
    widths = [shape.cols for shape in quick if shape.suite == "triton"]
    assert (len(widths), widths[0], widths[-1]) == (14, 256, 12672)
    assert [shape for shape in quick if shape.suite == "oneflow"] == shapes_of(["oneflow"])


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"mean 'triton'\? .*triton, fastsoftmax, online"):
        shapes_of(["trition"])


SHAPE = Shape("custom", DType.FLOAT32, 1000, 1000)


def sample() -> list[Record]:
    found = [
        Finding("limit", Status.TIMED, 2.0, 0.0, "copy u4 b256 once", (1.9996, 2.5)),
        Finding("softgen", Status.TIMED, 2.125, 1.23456e-7, "block_p4, of 3"),
        Finding("cupyx", Status.EAGER, 10.0, 1e-6, 'eager, since "capture" failed'),
        Finding("liger", Status.ABSENT, note="liger_kernel is not installed"),
        Finding("bad", Status.WRONG, error=float("inf"), note="off by inf"),
    ]
    return records_of(SHAPE, found, HERE)


def without_quantiles(records: list[Record]) -> list[Record]:
    return [
        dataclasses.replace(each, microseconds_p20=None, microseconds_p80=None) for each in records
    ]


def test_the_median_and_the_quantiles_are_those_of_the_times() -> None:
    found = Finding("one", Status.TIMED, note="as it is").timed([5.0, 1.0, 2.0, 4.0, 3.0, 6.0])
    assert (found.microseconds, found.quantiles, found.note) == (3.5, (2.0, 5.0), "as it is")
    (record,) = records_of(SHAPE, [found], HERE)
    assert (record.microseconds_p20, record.microseconds_p80) == (2.0, 5.0)
    (limit, *_) = sample()
    assert (limit.microseconds_p20, limit.microseconds_p80) == (2.0, 2.5)
    assert sample()[1].microseconds_p20 is None


def test_a_table_from_before_there_were_quantiles_has_none(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_text(
        "".join(line.rsplit(",", 3)[0] + "\n" for line in to_csv(sample()).splitlines())
    )
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS_WITHOUT_QUANTILES)
    old = read_csv(path)
    assert old == without_quantiles(sample()) != sample()
    path.write_text(to_csv(old))  # written again they have empty cells, which are read as well
    assert path.read_text().splitlines()[1].endswith(",cold,softmax,,,")
    assert read_csv(path) == old


def test_rates_and_ratios_follow_from_the_times() -> None:
    by_peer = {record.peer: record for record in sample()}
    assert by_peer["limit"].ratio_to_limit == 1
    assert by_peer["limit"].gigabytes_per_second == 4000  # 8 MB in 2 us
    assert by_peer["softgen"].ratio_to_limit == pytest.approx(1.0625)
    for peer in ("liger", "bad"):
        record = by_peer[peer]
        assert record.microseconds is record.ratio_to_limit is record.gigabytes_per_second is None


def test_without_a_limit_there_is_no_ratio() -> None:
    (record,) = records_of(SHAPE, [Finding("softgen", Status.TIMED, 2.0)], HERE)
    assert (record.gigabytes_per_second, record.ratio_to_limit) == (4000, None)


def test_the_table_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "figures.csv"
    path.write_text(to_csv(sample()))
    lines = path.read_text().splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) == 1 + len(sample())
    again = read_csv(path)
    assert again == sample()
    assert to_csv(again) == path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a table of `softgen bench --csv`"),
        ("a,b\n1,2\n", "not a table of `softgen bench --csv`"),
        (
            "a,b\n1,2\n",
            "regime,function or ,regime,function,microseconds_p20,microseconds_p80,case$",
        ),
        (",".join(COLUMNS) + "\ntriton\n", "line 2 has 1 fields, its header 19"),
        (
            to_csv(sample()).replace(",cold,softmax,", ",cold,softmix,", 1),
            "line 2: unknown function 'softmix'; did you mean 'softmax'",
        ),
        (to_csv(sample()).replace(",1000,1000,", ",many,1000,"), "line 2: .*many"),
        (to_csv(sample()).replace(",timed,", ",guessed,"), "line 2: .*guessed"),
        (to_csv(sample()).replace(",1000,1000,", ",0,1000,"), "line 2: rows must be from 1"),
        (to_csv(sample()).replace(",1000,1000,", ",1000,1" + "0" * 20 + ","), "cols must be from"),
    ],
)
def test_other_tables_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(InvalidValueError, match=message):
        read_csv(path)


def test_a_file_that_is_no_text_is_no_csv(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    with pytest.raises(InvalidValueError, match=r"plot.png is no CSV; give a file that"):
        read_csv(path)


@pytest.mark.parametrize("figure", ["nan", "inf", "-inf", "1e999", "-1.5", "NaN"])
@pytest.mark.parametrize("column", ["microseconds", "max_relative_error", "ratio_to_limit"])
def test_figures_that_nothing_measured_are_refused_by_line(
    figure: str, column: str, tmp_path: Path
) -> None:
    lines = [line.split(",") for line in to_csv(sample()[:2]).splitlines()]
    lines[2][COLUMNS.index(column)] = figure
    path = tmp_path / "nan.csv"
    path.write_text("\n".join(map(",".join, lines)))
    error = refused(2, "bench", "--from", path)
    assert re.search(rf"nan.csv, line 3: {column} must be .* got {figure}", error), error


def test_the_line_of_a_table_with_lines_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "quotes.csv"
    heading, first, second = to_csv(sample()[:2]).splitlines()
    cells = first.split(",")
    cells[COLUMNS.index("note")] = '"two\nlines"'
    path.write_text("\n".join([heading, ",".join(cells), second.replace(",timed,", ",no,")]))
    with pytest.raises(InvalidValueError, match=r"line 4: .*'no'"):
        read_csv(path)


def test_a_table_from_before_there_was_a_warm_regime_is_cold(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    lines = to_csv(sample()).splitlines()
    assert lines[0].startswith(",".join([*COLUMNS_WITHOUT_REGIME, "regime", "function"]))
    path.write_text("".join(line.rsplit(",", 5)[0] + "\n" for line in lines))
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS_WITHOUT_REGIME)
    assert read_csv(path) == without_quantiles(sample())
    path.write_text(to_csv(sample()).replace(",cold", ",tepid"))
    with pytest.raises(InvalidValueError, match=r"line 2: .*tepid"):
        read_csv(path)


def test_a_table_from_before_there_were_other_functions_is_of_softmax(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    found = [Finding("limit", Status.TIMED, 2.0, 0.0)]
    warm = [*sample(), *records_of(SHAPE, found, HERE, Regime.WARM)]
    path.write_text("".join(line.rsplit(",", 4)[0] + "\n" for line in to_csv(warm).splitlines()))
    assert path.read_text().splitlines()[0] == ",".join(COLUMNS_WITHOUT_FUNCTION)
    assert read_csv(path) == without_quantiles(warm)
    assert {record.function for record in warm} == {"softmax"}


LOGITS = Shape("custom", DType.BFLOAT16, 1000, 1000, function=Function.of("logsumexp"))


def test_the_records_of_a_function_say_so_and_count_its_bytes(tmp_path: Path) -> None:
    found = [Finding("limit", Status.TIMED, 1.0, 0.0), Finding("softgen", Status.TIMED, 2.0)]
    records = records_of(LOGITS, found, HERE)
    assert [record.gigabytes_per_second for record in records] == [2002, 1001]
    assert records[1].ratio_to_limit == 2
    path = tmp_path / "lse.csv"
    path.write_text(to_csv(records))
    assert [line.split(",")[-4] for line in path.read_text().splitlines()] == [
        "function",
        *["logsumexp"] * 2,
    ]
    assert read_csv(path) == records
    (same,) = records_of(SHAPE, found[:1], HERE)
    other = Shape("custom", DType.FLOAT32, 1000, 1000, function=Function.of("logsumexp"))
    (read,) = records_of(other, found[:1], HERE)
    assert same.shape == read.shape
    assert same.contest != read.contest
    assert (same.writes_elements, read.writes_elements) == (True, False)


# The suites of the files that are not called as one.
SUITE_OF = {
    "chained": "short",
    "log_softmax": "llm",
    "batch_invariant": "llm",
    "float64": CUSTOM,
}


@pytest.mark.parametrize("path", sorted(BENCHMARK.glob("*.csv")), ids=lambda path: path.stem)
def test_the_committed_figures_can_be_read(path: Path) -> None:
    records = read_csv(path)
    suite = SUITE_OF.get(path.stem, path.stem.removesuffix("-h100"))
    assert {record.suite for record in records} == {suite}
    regime = Regime.CHAINED if path.stem == "chained" else Regime.COLD
    assert {record.regime for record in records} == {regime}


def test_a_warm_record_says_so() -> None:
    found = [Finding("limit", Status.TIMED, 2.0, 0.0)]
    (record,) = records_of(SHAPE, found, HERE, Regime.WARM)
    assert record.as_document()["regime"] == "warm"
    assert sample()[0].as_document()["regime"] == "cold"


def test_peers_by_name() -> None:
    assert [peer.name for peer in peers_for(shapes_of(["llm"])[0], ["torch", "softgen"])] == [
        "torch",
        "softgen",
    ]
    assert [peer.name for peer in peers_for(shapes_of(["llm"])[0], None)] == list(all_peers())
    assert list(all_peers())[:3] == ["softgen", "softgen-untuned", "oneflow"]
    assert [peer.name for peer in peers_for(shapes_of(["drawn"])[0], None)] == [
        *all_peers(),
        "softgen-again",
    ]
    assert [peer.name for peer in peers_for(shapes_of(["llm"])[0], [*extra_peers()])] == [
        *extra_peers()
    ]
    with pytest.raises(InvalidValueError, match=r"'jax'; .* knows: softgen, .*quack.*ladder"):
        peers_for(shapes_of(["llm"])[0], ["jax"])


def test_a_package_that_is_missing_is_the_reason() -> None:
    peer = Peer("other", lambda buffers: Entrant(lambda i: None), ("json", "no_such_package"))
    assert peer.missing() == "no_such_package is not installed"
    assert Peer("json", peer.prepare, ("json",)).missing() is None


def test_rows_of_huge_results_are_sampled_evenly() -> None:
    assert [*check.checked_rows(5, 10)] == [0, 1, 2, 3, 4]
    chosen = check.checked_rows(262144, 8192)
    assert (chosen[0], chosen[-1], len(chosen)) == (0, 262143, check.MOST_ELEMENTS // 8192)
    assert [*check.checked_rows(4, 2**40)] == [0, 3]


def test_long_compiler_messages_become_a_line() -> None:
    assert first_line(ValueError("\n  no room \nfor 300 lines")) == "ValueError: no room"
    assert len(first_line(ValueError("x" * 999))) == 200
    assert first_line(AbsentError("too wide")) == "too wide"
    assert first_line(RuntimeError()) == "RuntimeError"


SWEEPS = {"copy": (True, False), "read": (False, False), "join": (True, True)}


@pytest.mark.parametrize("kind", SWEEPS)
def test_sweeps_cover_the_data(kind: str) -> None:
    arch = arch_named("sm_90")
    for sweep in limit.settings(*SWEEPS[kind]):
        tile = sweep.unroll * sweep.block_size * 16
        for size in (16, tile, tile + 1, 1 << 30):
            grid = sweep.grid(size, arch)
            assert grid >= 1
            if sweep.waves:
                assert grid * sweep.block_size <= arch.multiprocessors * 2048
            else:
                assert grid * tile >= size
        assert (sweep.writes, sweep.joins) == SWEEPS[kind]
        assert sweep.label.startswith(f"{kind} u")
    labels = {sweep.label for sweep in limit.settings(*SWEEPS[kind])}
    # 1024 threads of a join have no registers for 8 packs of each array.
    expected = 44 if kind == "join" else 48
    assert len(labels) == len(list(limit.settings(*SWEEPS[kind]))) == expected


@pytest.mark.parametrize("kind", SWEEPS)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_sweeps_compile_without_spills_and_read_and_write_what_they_should(
    arch: str, kind: str
) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    writes, joins = SWEEPS[kind]
    for unroll in limit.UNROLLS:
        sweep = limit.Sweep(unroll, 256, True, 0, writes, joins)
        program = nvrtc.createProgram(limit.source(sweep), "sweep.cu", (), ())
        options = (f"--gpu-architecture={arch}", "--ptxas-options=-v", "--std=c++17")
        nvrtc.compileProgram(program, options)
        assert "0 bytes spill stores" in nvrtc.getProgramLog(program)
        text = nvrtc.getPTX(program)
        text = text.decode() if isinstance(text, bytes) else text
        # Those of a whole step, those of the last, and one of a byte.
        assert text.count("ld.global.cs.v4.b32") == (4 if joins else 2) * unroll
        assert text.count("ld.global.u8") == (2 if joins else 1)
        assert text.count("st.global.cs.v4.b32") == (2 * unroll if writes else 0)
        assert text.count("st.global.u8") == 1


class FakePlayer:
    """Times everything as one microsecond a launch; captures unless told not to.

    A launch may say what it takes (`microseconds`) and at its final (`finally_microseconds`).
    """

    def __init__(self) -> None:
        self.stream = contextlib.nullcontext(SimpleNamespace(ptr=0))
        self.stream.synchronize = lambda: None  # type: ignore[attr-defined]
        self.turns: list[object] = []

    def capture(self, launch: Callable[[int], None], launches: int) -> Callable[[], None]:
        if getattr(launch, "refuses", False):
            raise RuntimeError("cannot be captured\nbecause")

        def run() -> None: ...

        run.launch = launch  # type: ignore[attr-defined]
        return run

    def sized(self, make: Callable[[int], Any], period: int) -> Any:
        return make(period)

    def warm_up(self, replay: object) -> None: ...

    def samples(self, replay: object, seconds: float, least: int = 5) -> list[float]:
        self.turns.append(replay)
        launch = getattr(replay, "launch", None)
        screening = getattr(launch, "microseconds", 1.0)
        final = getattr(launch, "finally_microseconds", screening)
        return [final if least == 2 else screening] * least


@pytest.fixture
def buffers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an buffers without a GPU, whose results are as wrong as its `error` says."""
    made = SimpleNamespace(
        player=FakePlayer(), pairs=2, shape=SHAPE, problem=SHAPE.problem, sets=[()], error=0
    )
    made.exact = None
    made.poison = lambda: None
    monkeypatch.setattr(limit, "launch_of", lambda sweep, buffers: lambda i: None)
    monkeypatch.setattr(
        check, "furthest", lambda problem, *_, most: check.Deviation("y", made.error, 1e-4)
    )
    return made


def fine(buffers: Any, **options: Any) -> Entrant:
    return Entrant(lambda i: None, **options)


def test_admitted_peers_are_timed_in_turns(buffers: Any) -> None:
    race = Race(buffers, Settings(), {})
    for name in ("one", "two"):
        race.admit(Peer(name, lambda buffers: fine(buffers, note="as it is")))
    found = race.findings()
    assert [(f.peer, f.status, f.microseconds) for f in found] == [
        ("limit", Status.TIMED, 1.0),
        ("one", Status.TIMED, 1.0),
        ("two", Status.TIMED, 1.0),
    ]
    assert found[1].note == "as it is"
    finals = buffers.player.turns[48:]
    assert len(finals) == 4 * 5  # four rounds of three copies and two peers
    assert finals[:5] == finals[5:10]


def test_a_wrong_peer_is_not_timed(buffers: Any) -> None:
    buffers.error = 0.5
    race = Race(buffers, Settings(), {})
    race.admit(Peer("bad", fine))
    wrong = race.findings()[1]
    assert (wrong.status, wrong.error, wrong.microseconds) == (Status.WRONG, 0.5, None)
    assert "off by 0.5" in wrong.note


def test_whatever_a_peer_raises_makes_it_absent(buffers: Any) -> None:
    def refuse(buffers: Any) -> Entrant:
        raise MemoryError("shared memory: 300 KB\nand more")

    race = Race(buffers, Settings(), {})
    race.admit(Peer("raises", refuse))
    race.admit(Peer("missing", fine, ("no_such_package",)))
    race.admit(Peer("one", fine))
    found = {f.peer: f for f in race.findings()}
    assert found["raises"].note == "MemoryError: shared memory: 300 KB"
    assert found["missing"].note == "no_such_package is not installed"
    assert found["raises"].status is found["missing"].status is Status.ABSENT
    assert found["one"].status is Status.TIMED


def setting(name: str, *microseconds: float, refused: bool = False) -> Entrant:
    def launch(i: int) -> None:
        if refused:
            raise RuntimeError("too many blocks")

    launch.microseconds = microseconds[0]  # type: ignore[attr-defined]
    launch.finally_microseconds = microseconds[-1]  # type: ignore[attr-defined]
    return Entrant(launch, note=name)


def test_the_fastest_settings_of_a_field_are_timed_and_the_best_counts(buffers: Any) -> None:
    settings = [setting(f"s{i}", 9.0 - i) for i in range(8)]  # s7 is the fastest at a short look
    settings[5] = setting("s5", 4.0, 0.5)  # and s5 in the end
    settings.append(setting("none", 0.1, refused=True))
    left_out = (*[AbsentError("spills registers")] * 2, CompileError("too wide\nfor it"))
    race = Race(buffers, Settings(), {})
    race.admit(Peer("all", lambda buffers: Field(tuple(settings), left_out)))
    race.admit(Peer("one", fine))
    found = {f.peer: f for f in race.findings()}
    assert [*found] == ["limit", "all", "one"]
    assert (found["all"].status, found["all"].microseconds) == (Status.TIMED, 0.5)
    assert found["all"].note == (
        "s5, the fastest of 8; 4 left out: spills registers (2), CompileError: too wide (1), "
        "RuntimeError: too many blocks (1)"
    )
    finals = buffers.player.turns[48 + 8 :]
    assert len(finals) == 4 * (3 + SETTINGS + 1)


def test_a_wrong_setting_is_named_and_none_is_timed(buffers: Any) -> None:
    buffers.error = 0.5
    race = Race(buffers, Settings(), {})
    race.admit(Peer("all", lambda buffers: Field((setting("a", 1.0), setting("b", 2.0)), ())))
    found = race.findings()[1]
    assert (found.status, found.microseconds) == (Status.WRONG, None)
    assert found.note.startswith("a, the fastest of 2: off by 0.5")


def test_a_field_without_a_setting_is_absent(buffers: Any) -> None:
    race = Race(buffers, Settings(), {})
    race.admit(Peer("all", lambda buffers: Field((), (AbsentError("spills registers"),))))
    found = race.findings()[1]
    assert found.status is Status.ABSENT
    assert found.note == "no setting can be timed; 1 left out: spills registers (1)"


def test_the_exhaustive_peer_enters_with_every_candidate_that_can_be_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, arch = Problem.of("softmax", SHAPE.dtype, SHAPE.cols), arch_named("sm_90")
    wanted = [variant.strategy.label for variant in candidates(problem, SHAPE.rows, arch)]

    def compile_all(sources: Any) -> Any:
        for number, source in enumerate(sources):
            if number == 1:
                yield CompileError("refused")
            else:
                yield SimpleNamespace(variant=source.variant, local_bytes=8 * (number == 2))

    monkeypatch.setattr("softgen.devices.gpu.compile.compile_many", compile_all)
    monkeypatch.setattr("softgen.bench.peers.launch_over", lambda *given, pdl: None)
    buffers: Any = SimpleNamespace(
        shape=SHAPE, problem=problem, arch=arch, allocated=None, player=None
    )
    field = exhaustive_field(buffers)
    assert [entrant.note for entrant in field.settings] == [wanted[0], *wanted[3:]]
    assert [first_line(error) for error in field.left_out] == [
        "CompileError: refused",
        "spills registers",
    ]


def test_softgen_again_is_the_very_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[object, int, int, bool]] = []

    def plan(function: Function, dtype: DType, cols: int, **options: object) -> Any:
        assert (function.name, dtype, cols) == ("softmax", SHAPE.dtype, SHAPE.cols)
        loaded = SimpleNamespace(variant=SimpleNamespace(strategy=SimpleNamespace(label="best")))
        return SimpleNamespace(loaded=loaded)

    def launch_over(buffers: Any, kernel: object, player: object, *, pdl: bool) -> Any:
        x, y = buffers.inputs, buffers.outputs
        return lambda i: launched.append((kernel, x[i % 2], y[i % 2], pdl))

    monkeypatch.setattr("softgen.call.plan.plan", plan)
    monkeypatch.setattr("softgen.bench.peers.launch_over", launch_over)
    buffers: Any = SimpleNamespace(shape=SHAPE, pairs=2, kernels={}, player=FakePlayer())
    buffers.allocated = SimpleNamespace(inputs=(10, 20), outputs=(30, 40))
    again = extra_peers()["softgen-again"].prepare(buffers)
    assert isinstance(again, Entrant)
    plain = extra_peers()["softgen-plain"].prepare(buffers)
    assert isinstance(plain, Entrant)
    for entrant in (softgen_entrant(buffers), again, plain, softgen_entrant(buffers, tune="off")):
        entrant.launch(3)
    first, second, third, other = launched
    assert first == second
    assert first[1:] == other[1:] == (20, 40, True)
    assert third == (*first[:3], False)  # the same kernel, by a plain launch
    assert other[0] is not first[0]


def test_what_chooses_its_own_memory_cannot_be_chained(buffers: Any) -> None:
    def elsewhere(buffers: Any) -> Entrant:
        return Entrant(lambda i: None, result=lambda i: 0)

    race = Race(buffers, Settings(regime=Regime.CHAINED), {})
    race.admit(Peer("allocates", elsewhere))
    race.admit(Peer("given", fine))
    absent, timed = (race.findings()[i] for i in (1, 2))
    assert (absent.status, timed.status) == (Status.ABSENT, Status.TIMED)
    assert "cannot be chained" in absent.note


def test_a_ring_reads_what_the_launch_before_has_written() -> None:
    buffers = Buffers(4, ((1, 2), (3, 4), (5, 6)), (1,), (), None)
    ring = buffers.chained(SHAPE.problem)
    assert ring.arguments == ((1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 1))
    assert ring.inputs[1:] == ring.outputs[:-1]
    assert ring.outputs[-1] == ring.inputs[0]


@pytest.mark.parametrize("function", ["logsumexp", "softmax_lse", "finish"])
def test_a_function_whose_result_is_no_input_has_no_chain(function: str) -> None:
    problem = Problem.of(function, "float32", 8)
    with pytest.raises(InvalidValueError, match=r"cannot be chained: the result of one is no"):
        Buffers(4, ((1, 2),), (1,), (), None).chained(problem)


def test_what_only_moves_bytes_is_timed_and_has_no_error(buffers: Any) -> None:
    buffers.error = 0.5  # of what computes
    race = Race(buffers, Settings(), {})
    race.admit(Peer("copies", lambda buffers: Entrant(lambda i: None, computes=False)))
    found = race.findings()[1]
    assert (found.status, found.error) == (Status.TIMED, 0.0)


def test_dependent_copies_wait_and_pass_their_arrays_through() -> None:
    comment = "  // The arrays pass through the wait, so that no load moves above it.\n"
    for joins, arrays in ((False, '"+l"(x), "+l"(y)'), (True, '"+l"(x), "+l"(z), "+l"(y)')):
        sweep = limit.Sweep(4, 256, False, 0, True, joins)
        waiting, plain = (limit.source(sweep, waits) for waits in (True, False))
        wait = f'  asm volatile("griddepcontrol.wait;" : {arrays} : : "memory");\n'
        assert comment + wait in waiting
        assert waiting.replace(comment + wait, "") == plain
        body = waiting[waiting.index("__global__") :]
        assert body.index("griddepcontrol.wait") < body.index("reinterpret_cast")


def test_dependent_copies_need_a_gpu_that_has_such_launches(buffers: Any) -> None:
    buffers.arch = arch_named("sm_80")
    with pytest.raises(AbsentError, match="needs sm_90 or later"):
        extra_peers()["copy-dependent"].prepare(buffers)


@pytest.mark.parametrize("function", ["softmax", "logsumexp", "softmax_backward"])
@pytest.mark.parametrize("size", [16, (1 << 26) + 16])
def test_dependent_copies_cover_the_data_and_may_start_early(
    function: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, problem = FakeDriver(), Problem.of(function, "float32", 1000)
    arch = arch_named("sm_90")
    words = len(problem.element_inputs) + 1
    swept = [tuple(range(1000 * i, 1000 * i + words)) for i in (1, 2)]
    driver.serve(monkeypatch)
    driver.kernels[5] = words + 1, lambda seen: None

    def compiled(sweep: limit.Sweep, device: int, waits: bool = False) -> Any:
        assert waits
        return SimpleNamespace(ptr=5)

    monkeypatch.setattr(limit, "_function", compiled)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDevice=lambda: 0)))
    player = SimpleNamespace(cupy=cupy, stream=SimpleNamespace(ptr=7))
    buffers: Any = SimpleNamespace(arch=arch, problem=problem, player=player, pairs=2)
    buffers.swept, buffers.swept_bytes = swept, size
    field = extra_peers()["copy-dependent"].prepare(buffers)
    assert isinstance(field, Field)
    for sweep, entrant in zip(limit.settings_for(problem), field.settings, strict=True):
        assert (entrant.note, entrant.computes) == (sweep.label, False)
        entrant.launch(3)
        seen = driver.launches[-1]
        assert (seen.attributes, seen.stream) == ((PROGRAMMATIC,), 7)
        assert (seen.grid[0], seen.block[0]) == (sweep.grid(size, arch), sweep.block_size)
        assert seen.arguments == (*swept[1], size)


@pytest.fixture
def chained(buffers: Any, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Give the buffers addresses, and return what is enqueued on their stream."""
    enqueued: list[object] = []

    def sweeper(sweep: limit.Sweep, buffers: Any, size: int) -> Callable[[object, object], None]:
        assert sweep.writes
        return lambda x, y: enqueued.append((x, y, size))

    monkeypatch.setattr(limit, "sweeper", sweeper)
    memory = iter(SimpleNamespace(data=SimpleNamespace(ptr=each)) for each in ("source", "sink"))
    buffers.player.cupy = SimpleNamespace(empty=lambda size, dtype: next(memory))
    buffers.bytes, buffers.result_bytes = 4, 2
    buffers.allocated = SimpleNamespace(inputs=("x0", "x1"), outputs=("y0", "y1"))
    return enqueued


def test_a_chain_writes_the_input_and_reads_the_output(buffers: Any, chained: list[object]) -> None:
    chain = Chain(buffers)
    assert chained == [
        ("x0", "source", 4)
    ]  # so that input 0 stays what results are checked against
    chained.clear()
    run = chain.around(chained.append)
    run(0)
    run(3)
    assert chained == [
        *(("source", "x0", 4), 0, ("y0", "sink", 2)),
        *(("source", "x1", 4), 3, ("y1", "sink", 2)),
    ]
    chained.clear()
    chain.around(chained.append, lambda i: 100 + i)(1)  # memory of the competitor's own
    assert chained == [("source", "x1", 4), 1, (101, "sink", 2)]


def test_in_the_warm_regime_everybody_is_timed_within_the_chain(
    buffers: Any, chained: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[Any] = []

    def capture(launch: Callable[[int], None], launches: int) -> Callable[[], None]:
        captured.append(launch)
        return lambda: None

    monkeypatch.setattr(buffers.player, "capture", capture)
    monkeypatch.setattr(limit, "launch_of", lambda sweep, buffers: lambda i: chained.append("copy"))
    race = Race(buffers, Settings(regime=Regime.WARM), {})
    race.admit(Peer("one", lambda buffers: Entrant(lambda i: chained.append("one"))))
    assert chained == [("x0", "source", 4), "one"]  # the check is of the competitor alone
    assert [found.peer for found in race.findings()] == ["limit", "one"]
    chained.clear()
    for launch in captured:
        launch(0)
    around = [("source", "x0", 4), ("y0", "sink", 2)]
    assert chained[0::3] + chained[2::3] == around[:1] * 49 + around[1:] * 49
    assert chained[1::3] == ["copy"] * 48 + ["one"]


class HostPlayer(FakePlayer):
    """A player whose device is the host: arrays are NumPy's, addresses those of the process."""

    def __init__(self) -> None:
        super().__init__()
        self.stream.ptr = 0  # type: ignore[attr-defined]
        runtime = SimpleNamespace(
            memsetAsync=lambda address, value, size, stream: ctypes.memset(address, value, size),
            deviceSynchronize=lambda: None,
        )
        cuda = SimpleNamespace(
            UnownedMemory=lambda address, size, owner: (address, size),
            MemoryPointer=lambda memory, offset: memory,
            runtime=runtime,
        )
        self.uploaded: list[Any] = []
        self.cupy = SimpleNamespace(cuda=cuda, ndarray=self.array, asarray=self.upload)

    def upload(self, value: Any) -> Any:
        self.uploaded.append(value)
        return np.asarray(value)

    @staticmethod
    def array(shape: tuple[int, ...], dtype: Any, memory: tuple[int, int]) -> Any:
        address, size = memory
        assert size == math.prod(shape) * dtype.itemsize
        there: Any = (ctypes.c_char * size).from_address(address)
        return np.frombuffer(there, dtype).reshape(shape)


def host_buffers(problem: Problem, rows: int, *, whole: bool) -> Buffers:
    """Return two sets of operands in the host's memory, inputs normal, with room between them."""
    owners, arguments = [], []
    timed = problem.function.timed_inputs(rows, problem.cols)
    for number in range(2):
        addresses = []
        for operand in problem.operands:
            dtype = numerics.numpy_dtype(operand.dtype)
            if operand.extent is Extent.NUMBER:
                addresses.append(operand.word(timed[operand.name]))
                continue
            if operand.name in timed:
                values = np.asarray(timed[operand.name])
                owners.append(np.resize(values, values.size + 64).astype(dtype))
                addresses.append(owners[-1].ctypes.data)
                continue
            values = np.random.default_rng(number).standard_normal(rows * problem.cols + 64)
            owners.append(values.astype(dtype))
            addresses.append(owners[-1].ctypes.data)
        arguments.append(tuple(addresses))
    results = tuple(i for i, operand in enumerate(problem.operands) if operand.result)
    return Buffers(rows, tuple(arguments), results, tuple(owners), None)


@pytest.fixture
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SharedBuffers]:
    """Return what makes buffers of the host's memory."""
    pytest.importorskip("cupy")
    monkeypatch.setattr(buffers_module, "Player", HostPlayer)
    monkeypatch.setattr(buffers_module, "current_arch", lambda: arch_named("sm_90"))
    monkeypatch.setattr(Buffers, "allocate", host_buffers)
    monkeypatch.setattr(limit, "launch_of", lambda sweep, buffers: lambda i: None)

    def make(
        function: str, dtype: DType = DType.FLOAT32, rows: int = 5, cols: int = 96
    ) -> SharedBuffers:
        return SharedBuffers(Shape("custom", dtype, rows, cols, function=Function.of(function)))

    return make


def computing(function: str, wrong: Callable[[Any], None] = lambda results: None) -> Peer:
    """Return a peer that computes a function in float64, and then has its results changed."""

    def prepare(buffers: SharedBuffers) -> Entrant:
        def launch(i: int) -> None:
            arrays = buffers.sets[i % buffers.pairs]
            count = len(buffers.problem.inputs)
            exact = Function.of(function).reference(*(x.astype("float64") for x in arrays[:count]))
            for array, value in zip(arrays[count:], exact, strict=True):
                array[...] = value
            wrong(arrays[count:])

        return Entrant(launch)

    return Peer("one", prepare)


def the_only_finding(buffers: SharedBuffers, peer: Peer) -> Finding:
    race = Race(buffers, Settings(), {})
    race.admit(peer)
    (finding,) = race.findings()[1:]
    return finding


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("function", BENCHED)
def test_every_function_is_checked_by_its_reference(
    function: str, dtype: DType, on_the_host: Callable[..., SharedBuffers]
) -> None:
    buffers = on_the_host(function, dtype)
    problem = Problem.of(function, dtype, 96)
    assert [array.shape for array in buffers.sets[1]] == [o.shape(5, 96) for o in problem.operands]
    assert buffers.x[1] is buffers.sets[1][0]
    assert buffers.y[1] is buffers.sets[1][len(problem.inputs)]
    assert (buffers.bytes, buffers.result_bytes) == (buffers.x[0].nbytes, buffers.y[0].nbytes)
    for x, *more in (arrays[: len(problem.inputs)] for arrays in buffers.sets):
        belonging = problem.function.other_inputs(x.astype(np.float64))
        timed = problem.function.timed_inputs(5, 96)
        for operand, array, value in zip(problem.inputs[1:], more, belonging, strict=True):
            wanted = np.asarray(timed.get(operand.name, value))
            assert bool((array == wanted.astype(array.dtype)).all()), operand
    # An array of CuPy takes none of NumPy.
    mine = [each for each in problem.inputs[1:] if each.name not in timed]
    assert len(buffers.player.uploaded) == len(mine) * len(buffers.sets)  # type: ignore[attr-defined]
    right = the_only_finding(buffers, computing(function))
    assert right.status is Status.TIMED, right
    assert right.error is not None
    assert right.error <= check.TOLERANCE[dtype] / 4
    # Its results are all poisoned, and nothing beyond them.
    behind = [owner[-64:].copy() for owner in buffers.allocated.owners]
    buffers.poison()
    for array, operand in zip(buffers.sets[0], problem.operands, strict=True):
        assert bool(np.isnan(array).all()) is operand.result
    for owner, kept in zip(buffers.allocated.owners, behind, strict=True):
        assert owner[-64:].tobytes() == kept.tobytes()


def test_cupyx_computes_rows_which_are_checked(
    on_the_host: Callable[..., SharedBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    def softmax(x: Any, axis: int) -> Any:
        terms = np.exp(x - x.max(axis=axis, keepdims=True))
        return terms / terms.sum(axis=axis, keepdims=True)

    monkeypatch.setitem(sys.modules, "cupyx.scipy.special", SimpleNamespace(softmax=softmax))
    buffers = on_the_host("softmax")
    found = the_only_finding(buffers, all_peers()["cupyx"])
    assert (found.status, found.note) == (Status.TIMED, "allocates its result")
    assert found.error is not None
    assert found.error < 1e-6
    wide = SimpleNamespace(softmax=lambda x, axis: softmax(x, axis).astype("float64"))
    monkeypatch.setitem(sys.modules, "cupyx.scipy.special", wide)
    found = the_only_finding(buffers, all_peers()["cupyx"])
    assert (found.status, found.note) == (Status.ABSENT, "returns float64, not float32")


@pytest.mark.parametrize("function", BENCHED)
def test_each_wrong_or_unwritten_result_of_a_function_is_seen(
    function: str, on_the_host: Callable[..., SharedBuffers]
) -> None:
    buffers = on_the_host(function)
    results = buffers.problem.results
    for number, operand in enumerate(results):

        def last_is_off(arrays: Any, number: int = number) -> None:
            last = arrays[number].flat[-1]
            arrays[number].flat[-1] = last * 1.01 if last else 0.01

        def unwritten(arrays: Any, number: int = number) -> None:
            arrays[number].flat[-1] = float("nan")

        found = the_only_finding(buffers, computing(function, last_is_off))
        assert found.status is Status.WRONG
        assert found.microseconds is None
        which = f"{operand.name} is off by " if len(results) > 1 else "off by "
        assert found.note.startswith(which)
        found = the_only_finding(buffers, computing(function, unwritten))
        assert (found.status, found.error) == (Status.WRONG, float("inf"))


def test_infinities_are_right_where_the_exact_result_is_one(
    on_the_host: Callable[..., SharedBuffers],
) -> None:
    """The logit of a target in another shard is infinity."""
    buffers = on_the_host("partial_target", rows=300)

    def finite(arrays: Any) -> None:
        assert 0 < np.isinf(arrays[2]).sum() < 300
        arrays[2][np.isinf(arrays[2])] = 1e30

    def negative(arrays: Any) -> None:
        arrays[2][np.isinf(arrays[2])] *= -1

    assert the_only_finding(buffers, computing("partial_target")).status is Status.TIMED
    for wrong in (finite, negative):
        found = the_only_finding(buffers, computing("partial_target", wrong))
        assert (found.status, found.error) == (Status.WRONG, float("inf"))


def test_the_error_of_a_logarithm_is_relative_to_one_more_than_it(
    on_the_host: Callable[..., SharedBuffers],
) -> None:
    buffers = on_the_host("logsumexp")
    exact = 0.0

    def off(arrays: Any) -> None:
        nonlocal exact
        exact = float(arrays[0][3])
        arrays[0][3] += 0.25

    found = the_only_finding(buffers, computing("logsumexp", off))
    assert exact > 3
    assert found.error == pytest.approx(0.25 / (1 + exact), rel=1e-5)
    assert found.status is Status.WRONG
    assert found.note == f"off by {found.error:.3g} relative to float64, where 0.0001 is allowed"


def test_only_some_rows_of_a_large_result_are_checked_a_few_at_a_time(
    on_the_host: Callable[..., SharedBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MOST_ELEMENTS", 4 * 96)
    monkeypatch.setattr(check, "CHUNK", 2 * 96)
    buffers = on_the_host("logsumexp", rows=10)  # rows 0, 3, 6 and 9

    def at(row: int) -> Callable[[Any], None]:
        def off(arrays: Any) -> None:
            arrays[0][row] += 1

        return off

    for row in range(10):
        found = the_only_finding(buffers, computing("logsumexp", at(row)))
        assert found.status is (Status.TIMED if row % 3 else Status.WRONG), row


@pytest.mark.parametrize(
    ("function", "verb"),
    [
        *(("softmax", "copy"), ("log_softmax_lse", "copy"), ("finish", "copy")),
        *(("logsumexp", "read"), ("partial", "read")),
    ],
)
def test_the_limit_is_a_read_where_only_rows_are_written(
    function: str, verb: str, on_the_host: Callable[..., SharedBuffers]
) -> None:
    (found,) = Race(on_the_host(function), Settings(), {}).findings()
    assert found.peer == "limit"
    assert found.note.startswith(f"{verb} u")


def test_a_library_that_does_not_have_the_function_is_absent_and_not_asked(buffers: Any) -> None:
    buffers.shape = Shape("custom", DType.FLOAT32, 4, 8, function=Function.of("logsumexp"))
    race = Race(buffers, Settings(), {})
    for peer in (*all_peers().values(), *extra_peers().values()):
        if peer.lacking(buffers.shape):
            race.admit(peer)
    found = race.findings()[1:]
    assert [f.peer for f in found] == ["triton", "cupyx", "quack", "liger", "flashinfer"]
    assert {(f.status, f.note) for f in found} == {(Status.ABSENT, "has no logsumexp")}
    for function in all_functions():
        shape = Shape("custom", DType.FLOAT32, 4, 8, function=function)
        lacking = {p.name for p in all_peers().values() if p.lacking(shape)}
        forward = ("softmax", "log_softmax", "logsumexp")
        backward = ("softmax_backward", "log_softmax_backward")
        assert ("torch" in lacking) is (function.name not in (*forward, *backward, *OF_LOGITS))
        assert ("quack" in lacking) is (function.name not in OF_QUACK)
        assert ("triton" in lacking) is (function.name != "softmax")
        assert not any("softgen" in name or name == "oneflow" for name in lacking)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("peer", ["torch", "torch.compile", "torch.compile-max-autotune"])
def test_torch_is_called_for_the_function_of_the_shape(
    name: str, peer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []
    modes: list[str] = []

    def function(which: str) -> Callable[..., str]:
        def call(x: object, dim: int, out: object = None) -> str:
            called.append((which, x, dim, out))
            return which

        return call

    class Out:
        def copy_(self, result: object) -> None:
            called.append(result)

    torch = SimpleNamespace(**{each: function(each) for each in BY_NAME})

    def compiled(function: Callable[..., Any], *, mode: str, **_: bool) -> Callable[..., Any]:
        modes.append(mode)
        return function

    torch.compile = compiled
    monkeypatch.setitem(sys.modules, "torch", torch)
    shape = Shape("custom", DType.FLOAT32, 4, 8, function=Function.of(name))
    out = Out()
    buffers: Any = SimpleNamespace(shape=shape, torch_y=[out], pairs=1)
    buffers.torch_inputs, buffers.torch_given, buffers.given = [("x",)], {}, {}
    (of_name,) = named_peers([peer])
    entrant = of_name.prepare(buffers)
    assert isinstance(entrant, Entrant)
    entrant.launch(0)
    if peer == "torch":
        assert called == [(name, "x", -1, out)]
    else:
        assert called == [(name, "x", -1, None), name]
    searched = peer == "torch.compile-max-autotune"
    wanted = "max-autotune-no-cudagraphs" if searched else "default"
    assert modes == ([] if peer == "torch" else [wanted])
    assert entrant.note == (f"mode {wanted}" if searched else "")


def test_compiled_times_what_torch_knows_beside_its_default() -> None:
    shapes = SUITES["compiled"].shapes()
    assert len({(shape.dtype, shape.rows, shape.cols) for shape in shapes}) == 20
    names = [peer.name for peer in peers_for(shapes[0], None)]
    assert names == ["softgen", "torch.compile", "torch.compile-max-autotune"]
    assert set(names) - others() == {"softgen"}


def test_pytorch_has_the_mode_that_searches() -> None:
    inductor = pytest.importorskip("torch._inductor")
    options = inductor.list_mode_options()
    assert options[AUTOTUNED_MODE]["max_autotune"]


def test_two_modes_of_a_shape_are_compiled_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third time would be in the capture of the first, where nothing can be compiled."""
    torch = pytest.importorskip("torch")
    made: list[str] = []

    def compiled(function: Callable[..., Any], *, mode: str, **options: bool) -> Callable[..., Any]:
        def backend(graph: Any, inputs: Any) -> Any:
            made.append(mode)
            return graph.forward

        found: Callable[..., Any] = original(function, backend=backend, **options)
        return found

    original = torch.compile
    monkeypatch.setattr(torch, "compile", compiled)
    x, y = torch.randn(4, 8), torch.empty(4, 8)
    buffers: Any = SimpleNamespace(
        shape=Shape("compiled", DType.FLOAT32, 4, 8), torch_y=[y], pairs=1
    )
    buffers.torch_inputs, buffers.torch_given, buffers.given = [(x,)], {}, {}
    entrants = []
    for peer in named_peers(["torch.compile", "torch.compile-max-autotune"]):
        entrant = peer.prepare(buffers)
        assert isinstance(entrant, Entrant)
        entrant.launch(0)
        entrants.append(entrant)
    for entrant in entrants:
        entrant.launch(0)
    assert made == ["default", AUTOTUNED_MODE]
    assert torch.equal(y, torch.softmax(x, -1))


def test_a_shape_leaves_nothing_compiled_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[int] = []
    pool = SimpleNamespace(free_all_blocks=list)
    device = SimpleNamespace(get_default_memory_pool=lambda: pool)
    monkeypatch.setattr(race_module, "require_device", lambda: device)
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(empty_cache=list))
    )
    dynamo = SimpleNamespace(reset=lambda: resets.append(1))
    monkeypatch.setitem(sys.modules, "torch._dynamo", dynamo)
    race_module.give_memory_back()
    assert resets == [1]


def test_quack_gives_losses_with_lse_and_gradients_that_nothing_judges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def cross_entropy_fwd(x: str, target: str, **options: bool) -> tuple[object, ...]:
        (option,) = options
        return (SimpleNamespace(dtype="float32", of=(x, target, option)),) * 2

    module = SimpleNamespace(cross_entropy_fwd=cross_entropy_fwd)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "quack.cross_entropy", module)
    monkeypatch.setitem(sys.modules, "quack", SimpleNamespace(cross_entropy=module))
    x = SimpleNamespace(dtype="bfloat16")
    found = {}
    for name in ("cross_entropy", "cross_entropy_grad"):
        shape = Shape("custom", DType.BFLOAT16, 4, 8, function=Function.of(name))
        buffers: Any = SimpleNamespace(
            shape=shape, pairs=1, torch_inputs=[(x, "target", -100, 2.0)]
        )
        buffers.torch_y = [SimpleNamespace(dtype="float32")]
        found[name] = all_peers()["quack"].prepare(buffers)
    losses, gradients = found.values()
    assert isinstance(losses, Entrant)
    assert isinstance(gradients, Entrant)
    assert losses.computes
    assert losses.first_alone
    assert not gradients.computes
    for entrant, option in ((losses, "return_lse"), (gradients, "return_dx")):
        entrant.launch(0)
        kept = inspect.getclosurevars(entrant.launch).nonlocals["kept"]
        assert kept[0].of == (x, "target", option)


def test_what_cannot_be_captured_is_timed_eagerly_and_says_so(buffers: Any) -> None:
    def launch(i: int) -> None: ...

    launch.refuses = True  # type: ignore[attr-defined]
    race = Race(buffers, Settings(), {})
    race.admit(Peer("eager", lambda buffers: Entrant(launch, Library.CUPY, "allocates")))
    found = race.findings()[1]
    assert (found.status, found.microseconds) == (Status.EAGER, 1.0)
    assert found.note == "allocates; eager, since capture failed: RuntimeError: cannot be captured"


def test_peers_that_compile_are_kept_within_their_time(buffers: Any) -> None:
    spent = {"slow": 3.0}
    slow, quick = Peer("slow", fine, compiles=True), Peer("quick", fine)
    race = Race(buffers, Settings(setup_seconds=2.0), spent)
    race.admit(slow)
    race.admit(quick)
    found = {f.peer: f for f in race.findings()}
    assert found["slow"].note == "spent its 2 s of compiling on earlier shapes"
    assert found["quick"].status is Status.TIMED
    assert spent["quick"] > 0

    buffers.shape = Shape("triton", DType.FLOAT32, 4096, 384, landmark=False)
    race = Race(buffers, Settings(), {})
    race.admit(slow)
    assert "only some widths" in race.findings()[1].note


def test_a_shape_that_does_not_fit_is_absent_and_the_next_one_runs(
    buffers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def room_for_few(shape: Shape, chained: bool) -> Any:
        if shape.rows > 16:
            raise InvalidValueError(f"{shape.rows} rows do not fit")
        return buffers

    monkeypatch.setattr(race_module, "SharedBuffers", room_for_few)
    monkeypatch.setattr(race_module, "machine", lambda: HERE)
    monkeypatch.setattr(race_module, "give_memory_back", lambda: None)
    said: list[str] = []
    found = race_module.run(
        shapes_of(["online"]), lambda shape: [Peer("one", fine)], Settings(), said.append
    )
    absent = [("one", Status.ABSENT, None)]
    timed = [(peer, Status.TIMED, 1.0) for peer in ("limit", "one")]
    seen = list(found)
    assert [each[0].rows for each in seen] == [rows for rows, _ in sizes("online")]
    for records in seen:
        wanted = timed if records[0].rows <= 16 else absent
        assert [(each.peer, each.status, each.microseconds) for each in records] == wanted
    assert seen[0][0].note == "128 rows do not fit"
    assert seen[-1][0].rows <= 16
