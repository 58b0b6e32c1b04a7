"""The suites, the records and their CSV, and how the competitors of a shape are dealt with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.arch import arch_named
from softgen.bench import check, limit, runner
from softgen.bench.peers import AbsentError, Entrant, Library, Peer, all_peers, peers_for
from softgen.bench.race import Race, Settings, first_line
from softgen.bench.record import (
    COLUMNS,
    Finding,
    Machine,
    Record,
    Status,
    read_csv,
    records_of,
    to_csv,
)
from softgen.bench.suites import SUITES, Shape, shapes_of
from softgen.errors import InvalidValueError
from softgen.problem import DType

HERE = Machine("a GPU", "580.1, CUDA 13.0", "softgen 1; torch 2")


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
    assert {name: suite.dtype.value for name, suite in SUITES.items()} == types


def test_quick_keeps_the_ends_of_the_one_long_suite() -> None:
    quick = shapes_of(["triton", "oneflow"], quick=True)
    widths = [shape.cols for shape in quick if shape.suite == "triton"]
    assert (len(widths), widths[0], widths[-1]) == (14, 256, 12672)
    assert [shape for shape in quick if shape.suite == "oneflow"] == shapes_of(["oneflow"])


def test_an_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"'trition'.*triton, fastsoftmax, online"):
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
        (",".join(COLUMNS) + "\ntriton\n", "line 2"),
        (to_csv(sample()).replace(",1000,1000,", ",many,1000,"), "line 2: .*many"),
        (to_csv(sample()).replace(",timed,", ",guessed,"), "line 2: .*guessed"),
    ],
)
def test_other_tables_are_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(InvalidValueError, match=message):
        read_csv(path)


def test_peers_by_name() -> None:
    assert [peer.name for peer in peers_for("llm", ["torch", "softgen"])] == ["torch", "softgen"]
    assert [peer.name for peer in peers_for("llm", None)] == list(all_peers())
    assert list(all_peers())[:3] == ["softgen", "softgen-untuned", "oneflow"]
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
    """Times everything as one microsecond a launch; captures unless told not to."""

    def __init__(self) -> None:
        self.stream = contextlib.nullcontext(SimpleNamespace(ptr=0))
        self.stream.synchronize = lambda: None  # type: ignore[attr-defined]
        self.turns: list[object] = []

    def capture(self, launch: Callable[[int], None], launches: int) -> Callable[[], None]:
        if getattr(launch, "refuses", False):
            raise RuntimeError("cannot be captured\nbecause")
        return lambda: None

    def sized(self, make: Callable[[int], Any], period: int) -> Any:
        return make(period)

    def warm_up(self, replay: object) -> None: ...

    def samples(self, replay: object, seconds: float, least: int = 5) -> list[float]:
        self.turns.append(replay)
        return [1.0] * least


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
