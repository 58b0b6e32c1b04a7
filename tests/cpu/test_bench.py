"""The suites, the records and their CSV, and how the competitors of a shape are dealt with."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.bench import check, limit, runner
from softgen.bench.chain import Chain
from softgen.bench.peers import (
    AbsentError,
    Entrant,
    Field,
    Library,
    Peer,
    all_peers,
    exhaustive_field,
    extra_peers,
    peers_for,
    softgen_entrant,
)
from softgen.bench.race import SETTINGS, Race, Settings, first_line
from softgen.bench.record import (
    COLUMNS,
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
from softgen.bench.suites import DRAWN_BYTES, SUITES, Shape, draw, shapes_of
from softgen.errors import CompileError, InvalidValueError
from softgen.spec.arch import arch_named
from softgen.spec.dtypes import DType
from softgen.spec.problem import Problem
from softgen.strategies.variants import candidates
from tests.cpu.cli_helpers import refused

HERE = Machine("a GPU", "580.1, CUDA 13.0", "softgen 1; torch 2")
BENCHMARK = Path(__file__).resolve().parents[2] / "docs" / "benchmark"


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
    for name, dtype in types.items():
        assert {shape.dtype.value for shape in shapes_of([name])} == {dtype}
    assert [*SUITES] == [*types, "drawn"]


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
        Finding("limit", Status.TIMED, 2.0, 0.0, "copy u4 b256 once"),
        Finding("softgen", Status.TIMED, 2.125, 1.23456e-7, "block_p4, of 3"),
        Finding("cupyx", Status.EAGER, 10.0, 1e-6, 'eager, since "capture" failed'),
        Finding("liger", Status.ABSENT, note="liger_kernel is not installed"),
        Finding("bad", Status.WRONG, error=float("inf"), note="off by inf"),
    ]
    return records_of(SHAPE, found, HERE)


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
        ("a,b\n1,2\n", ",versions, and may end with ,regime$"),
        (",".join(COLUMNS) + "\ntriton\n", "line 2 has 1 fields, its header 15"),
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
    assert lines[0] == ",".join([*COLUMNS_WITHOUT_REGIME, "regime"])
    path.write_text("".join(line.rpartition(",")[0] + "\n" for line in lines))
    assert read_csv(path) == sample()
    path.write_text(to_csv(sample()).replace(",cold", ",tepid"))
    with pytest.raises(InvalidValueError, match=r"line 2: .*tepid"):
        read_csv(path)


@pytest.mark.parametrize("path", sorted(BENCHMARK.glob("*.csv")), ids=lambda path: path.stem)
def test_the_committed_figures_can_be_read(path: Path) -> None:
    records = read_csv(path)
    assert {record.suite for record in records} == {path.stem.removesuffix("-h100")}
    assert {record.regime for record in records} <= set(Regime)


def test_a_warm_record_says_so() -> None:
    found = [Finding("limit", Status.TIMED, 2.0, 0.0)]
    (record,) = records_of(SHAPE, found, HERE, Regime.WARM)
    assert record.as_document()["regime"] == "warm"
    assert sample()[0].as_document()["regime"] == "cold"


def test_peers_by_name() -> None:
    assert [peer.name for peer in peers_for("llm", ["torch", "softgen"])] == ["torch", "softgen"]
    assert [peer.name for peer in peers_for("llm", None)] == list(all_peers())
    assert list(all_peers())[:3] == ["softgen", "softgen-untuned", "oneflow"]
    assert [peer.name for peer in peers_for("drawn", None)] == [*all_peers(), "softgen-again"]
    assert [peer.name for peer in peers_for("llm", [*extra_peers()])] == [*extra_peers()]
    with pytest.raises(InvalidValueError, match=r"'jax'; .* knows: softgen, .*quack.*ladder"):
        peers_for("llm", ["jax"])


def test_a_package_that_is_missing_is_the_reason() -> None:
    peer = Peer("other", lambda arena: Entrant(lambda i: None), ("json", "no_such_package"))
    assert peer.missing() == "no_such_package is not installed"
    assert Peer("json", peer.prepare, ("json",)).missing() is None


def test_rows_of_huge_results_are_sampled_evenly() -> None:
    assert check.checked_rows(5, 10) == [0, 1, 2, 3, 4]
    chosen = check.checked_rows(262144, 8192)
    assert (chosen[0], chosen[-1], len(chosen)) == (0, 262143, check.MOST_ELEMENTS // 8192)
    assert check.checked_rows(4, 2**40) == [0, 3]


def test_long_compiler_messages_become_a_line() -> None:
    assert first_line(ValueError("\n  no room \nfor 300 lines")) == "ValueError: no room"
    assert len(first_line(ValueError("x" * 999))) == 200
    assert first_line(AbsentError("too wide")) == "too wide"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_copies_cover_the_data() -> None:
    arch = arch_named("sm_90")
    for copy in limit.settings():
        tile = copy.unroll * copy.block_size * 16
        for size in (16, tile, tile + 1, 1 << 30):
            grid = copy.grid(size, arch)
            assert grid >= 1
            if copy.waves:
                assert grid * copy.block_size <= arch.multiprocessors * 2048
            else:
                assert grid * tile >= size
    assert len({copy.label for copy in limit.settings()}) == len(list(limit.settings())) == 48


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_copies_compile_without_spills(arch: str) -> None:
    nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc")
    for unroll in limit.UNROLLS:
        program = nvrtc.createProgram(limit.source(unroll, True), "copy.cu", (), ())
        options = (f"--gpu-architecture={arch}", "--ptxas-options=-v", "--std=c++17")
        nvrtc.compileProgram(program, options)
        assert "0 bytes spill stores" in nvrtc.getProgramLog(program)


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
def arena(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return an arena without a GPU, whose results are as wrong as its `error` says."""
    made = SimpleNamespace(
        player=FakePlayer(), pairs=2, shape=SHAPE, x=[None], y=[None], poison=lambda: None, error=0
    )
    monkeypatch.setattr(limit, "launch_of", lambda copy, arena: lambda i: None)
    monkeypatch.setattr(check, "max_relative_error", lambda y, x, dtype: made.error)
    return made


def fine(arena: Any, **options: Any) -> Entrant:
    return Entrant(lambda i: None, **options)


def test_admitted_peers_are_timed_in_turns(arena: Any) -> None:
    race = Race(arena, Settings(), {})
    for name in ("one", "two"):
        race.admit(Peer(name, lambda arena: fine(arena, note="as it is")))
    found = race.findings()
    assert [(f.peer, f.status, f.microseconds) for f in found] == [
        ("limit", Status.TIMED, 1.0),
        ("one", Status.TIMED, 1.0),
        ("two", Status.TIMED, 1.0),
    ]
    assert found[1].note == "as it is"
    finals = arena.player.turns[48:]
    assert len(finals) == 4 * 5  # four rounds of three copies and two peers
    assert finals[:5] == finals[5:10]


def test_a_wrong_peer_is_not_timed(arena: Any) -> None:
    arena.error = 0.5
    race = Race(arena, Settings(), {})
    race.admit(Peer("bad", fine))
    wrong = race.findings()[1]
    assert (wrong.status, wrong.error, wrong.microseconds) == (Status.WRONG, 0.5, None)
    assert "off by 0.5" in wrong.note


def test_whatever_a_peer_raises_makes_it_absent(arena: Any) -> None:
    def refuse(arena: Any) -> Entrant:
        raise MemoryError("shared memory: 300 KB\nand more")

    race = Race(arena, Settings(), {})
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


def test_the_fastest_settings_of_a_field_are_timed_and_the_best_counts(arena: Any) -> None:
    settings = [setting(f"s{i}", 9.0 - i) for i in range(8)]  # s7 is the fastest at a short look
    settings[5] = setting("s5", 4.0, 0.5)  # and s5 in the end
    settings.append(setting("none", 0.1, refused=True))
    left_out = (*[AbsentError("spills registers")] * 2, CompileError("too wide\nfor it"))
    race = Race(arena, Settings(), {})
    race.admit(Peer("all", lambda arena: Field(tuple(settings), left_out)))
    race.admit(Peer("one", fine))
    found = {f.peer: f for f in race.findings()}
    assert [*found] == ["limit", "all", "one"]
    assert (found["all"].status, found["all"].microseconds) == (Status.TIMED, 0.5)
    assert found["all"].note == (
        "s5, the fastest of 8; 4 left out: spills registers (2), CompileError: too wide (1), "
        "RuntimeError: too many blocks (1)"
    )
    finals = arena.player.turns[48 + 8 :]
    assert len(finals) == 4 * (3 + SETTINGS + 1)


def test_a_wrong_setting_is_named_and_none_is_timed(arena: Any) -> None:
    arena.error = 0.5
    race = Race(arena, Settings(), {})
    race.admit(Peer("all", lambda arena: Field((setting("a", 1.0), setting("b", 2.0)), ())))
    found = race.findings()[1]
    assert (found.status, found.microseconds) == (Status.WRONG, None)
    assert found.note.startswith("a, the fastest of 2: off by 0.5")


def test_a_field_without_a_setting_is_absent(arena: Any) -> None:
    race = Race(arena, Settings(), {})
    race.admit(Peer("all", lambda arena: Field((), (AbsentError("spills registers"),))))
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
    monkeypatch.setattr("softgen.bench.peers.launch_over", lambda *given: None)
    arena: Any = SimpleNamespace(shape=SHAPE, arch=arch, buffers=None, pairs=2, player=None)
    field = exhaustive_field(arena)
    assert [entrant.note for entrant in field.settings] == [wanted[0], *wanted[3:]]
    assert [first_line(error) for error in field.left_out] == [
        "CompileError: refused",
        "spills registers",
    ]


def test_softgen_again_is_the_very_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[object, int, int]] = []

    def plan(*problem: object, **options: object) -> Any:
        loaded = SimpleNamespace(variant=SimpleNamespace(strategy=SimpleNamespace(label="best")))
        return SimpleNamespace(loaded=loaded)

    def launch_over(buffers: Any, kernel: object, player: object) -> Any:
        x, y = buffers.inputs, buffers.outputs
        return lambda i: launched.append((kernel, x[i % 2], y[i % 2]))

    monkeypatch.setattr("softgen.call.api.plan", plan)
    monkeypatch.setattr("softgen.bench.peers.launch_over", launch_over)
    arena: Any = SimpleNamespace(shape=SHAPE, pairs=2, kernels={}, player=FakePlayer())
    arena.buffers = SimpleNamespace(inputs=(10, 20), outputs=(30, 40))
    again = extra_peers()["softgen-again"].prepare(arena)
    assert isinstance(again, Entrant)
    for entrant in (softgen_entrant(arena), again, softgen_entrant(arena, tune="off")):
        entrant.launch(3)
    first, second, other = launched
    assert first == second
    assert first[1:] == other[1:] == (20, 40)
    assert other[0] is not first[0]


@pytest.fixture
def chained(arena: Any, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Give the arena addresses, and return what is enqueued on its stream."""
    enqueued: list[object] = []
    monkeypatch.setattr(limit, "copier", lambda copy, arena: lambda x, y: enqueued.append((x, y)))
    memory = iter(SimpleNamespace(data=SimpleNamespace(ptr=each)) for each in ("source", "sink"))
    arena.player.cupy = SimpleNamespace(empty=lambda size, dtype: next(memory))
    arena.bytes = 4
    arena.buffers = SimpleNamespace(inputs=("x0", "x1"), outputs=("y0", "y1"))
    return enqueued


def test_a_chain_writes_the_input_and_reads_the_output(arena: Any, chained: list[object]) -> None:
    chain = Chain(arena)
    assert chained == [("x0", "source")]  # so that input 0 stays what results are checked against
    chained.clear()
    run = chain.around(chained.append)
    run(0)
    run(3)
    assert chained == [
        *(("source", "x0"), 0, ("y0", "sink")),
        *(("source", "x1"), 3, ("y1", "sink")),
    ]
    chained.clear()
    chain.around(chained.append, lambda i: 100 + i)(1)  # memory of the competitor's own
    assert chained == [("source", "x1"), 1, (101, "sink")]


def test_in_the_warm_regime_everybody_is_timed_within_the_chain(
    arena: Any, chained: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured: list[Any] = []

    def capture(launch: Callable[[int], None], launches: int) -> Callable[[], None]:
        captured.append(launch)
        return lambda: None

    monkeypatch.setattr(arena.player, "capture", capture)
    monkeypatch.setattr(limit, "launch_of", lambda copy, arena: lambda i: chained.append("copy"))
    race = Race(arena, Settings(regime=Regime.WARM), {})
    race.admit(Peer("one", lambda arena: Entrant(lambda i: chained.append("one"))))
    assert chained == [("x0", "source"), "one"]  # the check is of the competitor alone
    assert [found.peer for found in race.findings()] == ["limit", "one"]
    chained.clear()
    for launch in captured:
        launch(0)
    around = [("source", "x0"), ("y0", "sink")]
    assert chained[0::3] + chained[2::3] == around[:1] * 49 + around[1:] * 49
    assert chained[1::3] == ["copy"] * 48 + ["one"]


def test_what_cannot_be_captured_is_timed_eagerly_and_says_so(arena: Any) -> None:
    def launch(i: int) -> None: ...

    launch.refuses = True  # type: ignore[attr-defined]
    race = Race(arena, Settings(), {})
    race.admit(Peer("eager", lambda arena: Entrant(launch, Library.CUPY, "allocates")))
    found = race.findings()[1]
    assert (found.status, found.microseconds) == (Status.EAGER, 1.0)
    assert found.note == "allocates; eager, since capture failed: RuntimeError: cannot be captured"


def test_peers_that_compile_are_kept_within_their_time(arena: Any) -> None:
    spent = {"slow": 3.0}
    slow, quick = Peer("slow", fine, compiles=True), Peer("quick", fine)
    race = Race(arena, Settings(setup_seconds=2.0), spent)
    race.admit(slow)
    race.admit(quick)
    found = {f.peer: f for f in race.findings()}
    assert found["slow"].note == "spent its 2 s of compiling on earlier shapes"
    assert found["quick"].status is Status.TIMED
    assert spent["quick"] > 0

    arena.shape = Shape("triton", DType.FLOAT32, 4096, 384, landmark=False)
    race = Race(arena, Settings(), {})
    race.admit(slow)
    assert "only some widths" in race.findings()[1].note


def test_a_shape_that_does_not_fit_is_absent_and_the_next_one_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(shape: Shape) -> Any:
        raise InvalidValueError(f"{shape.rows} rows do not fit")

    monkeypatch.setattr(runner, "Arena", no_room)
    monkeypatch.setattr(runner, "machine", lambda: HERE)
    monkeypatch.setattr(runner, "_give_memory_back", lambda: None)
    said: list[str] = []
    found = runner.run(
        shapes_of(["online"]), lambda suite: [Peer("one", fine)], Settings(), said.append
    )
    records = [record for shape in found for record in shape]
    assert [record.rows for record in records] == [rows for rows, _ in sizes("online")]
    assert {record.status for record in records} == {Status.ABSENT}
    assert records[0].note == "128 rows do not fit"
