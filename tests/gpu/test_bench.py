"""softgen bench on the GPU: the check that comes before every time, and the times themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen.bench import check, limit
from softgen.bench.buffers import SharedBuffers
from softgen.bench.chain import Chain
from softgen.bench.peers import (
    AbsentError,
    Entrant,
    Peer,
    softgen_entrant,
)
from softgen.bench.race import Race, Settings, give_memory_back
from softgen.bench.record import Finding, Regime, Status, read_csv
from softgen.bench.roster import (
    all_peers,
    extra_peers,
    named_peers,
    peers_for,
    peers_of_suites,
)
from softgen.bench.shape import Shape
from softgen.bench.suites import shapes_of
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.tuning.measure import COLD_BYTES
from tests.cpu.bench.test_bench import BENCHED
from tests.helpers.cli_helpers import document, ok

# Other libraries warn about what they please when they are imported.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

SHORT = Settings(seconds=0.01)
SHAPE = Shape("custom", DType.FLOAT32, 1000, 1024)


@pytest.fixture(autouse=True)
def _short_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE_BUDGET", "0.2")


def race_of(shape: Shape, *peers: Peer, settings: Settings = SHORT) -> dict[str, Finding]:
    race = Race(SharedBuffers(shape), settings, {})
    for peer in peers:
        race.admit(peer)
    found = {each.peer: each for each in race.findings()}
    give_memory_back()
    return found


@pytest.mark.parametrize("dtype", list(DType))
def test_every_installed_peer_is_verified_and_timed(dtype: DType) -> None:
    shape = Shape("custom", dtype, 1000, 1024)
    peers = all_peers()
    found = race_of(shape, *peers.values())
    assert list(found) == ["limit", *peers]
    for name, finding in found.items():
        print(dtype.value, finding)
        if finding.status in (Status.TIMED, Status.EAGER):
            assert finding.microseconds is not None
            assert finding.microseconds > 0
        else:
            assert finding.note
        if name in ("limit", "softgen", "softgen-untuned", "oneflow"):
            assert finding.status is Status.TIMED
    if dtype is DType.FLOAT32:
        for name in ("torch", "torch.compile", "triton", "cupyx"):
            installed = peers[name].missing() is None
            assert (found[name].status is not Status.ABSENT) == installed, found[name]


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("function", BENCHED)
def test_every_function_is_verified_and_timed(function: str, dtype: DType) -> None:
    shape = Shape("custom", dtype, 1000, 1024, function=Function.of(function))
    peers = all_peers() | {"softgen-invariant": extra_peers()["softgen-invariant"]}
    found = race_of(shape, *peers.values())
    for name, finding in found.items():
        print(function, dtype.value, finding)
        if name in ("limit", "softgen", "softgen-untuned", "softgen-invariant"):
            assert finding.status is Status.TIMED
        elif peers[name].lacking(shape):
            assert finding.note == f"has no {function}"
        elif name in ("torch", "torch.compile") and peers[name].missing() is None:
            assert finding.status is not Status.ABSENT
    verb = "copy" if shape.problem.writes_elements else "read"
    if shape.problem.writes_elements and len(shape.problem.element_inputs) == 2:
        verb = "join"
    assert found["limit"].note.startswith(f"{verb} u")


@pytest.mark.parametrize("function", ["logsumexp", "partial"])
def test_functions_that_write_rows_can_be_timed_in_a_chain(function: str) -> None:
    shape = Shape("custom", DType.BFLOAT16, 1000, 1001, function=Function.of(function))
    peers = all_peers()
    for finding in race_of(
        shape, peers["softgen"], peers["torch"], settings=Settings(0.01, regime=Regime.WARM)
    ).values():
        print(finding)
        assert finding.microseconds or finding.status is Status.ABSENT


def test_no_logsumexp_beats_the_reads_by_more_than_noise() -> None:
    shape = Shape("custom", DType.FLOAT32, 8192, 4096, function=Function.of("logsumexp"))
    found = race_of(shape, all_peers()["softgen"])
    limit_time, softgen_time = found["limit"].microseconds, found["softgen"].microseconds
    assert limit_time is not None
    assert softgen_time is not None
    print(found)
    assert 0.9 < softgen_time / limit_time < 2
    assert shape.rows * shape.problem.bytes_per_row / limit_time / 1e6 < 20  # TB/s: all was read


def test_no_softmax_beats_the_limit_by_more_than_noise() -> None:
    found = race_of(Shape("custom", DType.FLOAT32, 8192, 4096), all_peers()["softgen"])
    limit_time, softgen_time = found["limit"].microseconds, found["softgen"].microseconds
    assert limit_time is not None
    assert softgen_time is not None
    assert 0.9 < softgen_time / limit_time < 2


def test_a_peer_made_wrong_is_reported_as_wrong_and_not_timed() -> None:
    def slightly_off(buffers: SharedBuffers) -> Entrant:
        right = softgen_entrant(buffers, tune="off")

        def launch(i: int) -> None:
            right.launch(i)
            with buffers.player.stream:
                buffers.y[i % buffers.pairs][-1, -1] *= 1.01

        return Entrant(launch)

    def unwritten(buffers: SharedBuffers) -> Entrant:
        return Entrant(lambda i: None)

    found = race_of(SHAPE, Peer("off", slightly_off), Peer("unwritten", unwritten))
    assert found["off"].status is found["unwritten"].status is Status.WRONG
    assert found["off"].error == pytest.approx(0.01, rel=1e-3)
    assert found["unwritten"].error == float("inf")
    assert found["off"].microseconds is None


def test_what_breaks_its_capture_is_timed_eagerly_and_stops_nobody() -> None:
    def synchronizing(buffers: SharedBuffers) -> Entrant:
        right = softgen_entrant(buffers, tune="off")

        def launch(i: int) -> None:
            right.launch(i)
            buffers.player.stream.synchronize()  # not allowed in a capture

        return Entrant(launch)

    def refusing(buffers: SharedBuffers) -> Entrant:
        raise AbsentError("not today")

    peers = [Peer("eager", synchronizing), Peer("refusing", refusing), all_peers()["softgen"]]
    found = race_of(SHAPE, *peers)
    assert found["eager"].status is Status.EAGER
    assert (found["eager"].microseconds or 0) > (found["softgen"].microseconds or 0) > 0
    assert found["refusing"].note == "not today"


def test_the_same_kernel_again_and_every_setting_are_timed() -> None:
    shape = Shape("custom", DType.FLOAT32, 4096, 4096)
    found = race_of(
        shape, all_peers()["softgen"], *extra_peers().values(), settings=Settings(seconds=0.05)
    )
    for name, finding in found.items():
        print(name, finding)
        assert finding.status is Status.TIMED
        assert (finding.microseconds or 0) > 0
    assert found["softgen-again"].note == found["softgen"].note
    assert ", the fastest of " in found["softgen-exhaustive"].note


@pytest.mark.parametrize(
    ("suite", "dtype", "rows", "cols"),
    [
        ("triton", DType.FLOAT32, 4096, 384),
        ("fastsoftmax", DType.FLOAT32, 128, 1024),
        ("packs", DType.FLOAT32, 32, 16),
        ("packs", DType.FLOAT16, 49152, 64),
        ("online", DType.FLOAT32, 2000, 5000),
    ],
)
def test_the_kernels_of_the_published_pieces_are_verified_and_timed(
    suite: str, dtype: DType, rows: int, cols: int
) -> None:
    peers = peers_of_suites()[suite]
    found = race_of(Shape(suite, dtype, rows, cols), *peers)
    for peer in peers:
        finding = found[peer.name]
        print(finding)
        if peer.missing():
            assert finding.status is Status.ABSENT
        elif peer.name.startswith("pack8") and dtype is DType.FLOAT32:
            assert "a pack is at most 16 bytes" in finding.note
        else:
            on_host = peer.name.startswith("numpy")
            assert finding.status is (Status.HOST if on_host else Status.TIMED), finding
            assert finding.microseconds is not None
            low, high = finding.quantiles or (0.0, 0.0)
            assert 0 < low <= finding.microseconds <= high


@pytest.mark.parametrize("strategy", ["threepass", "recurrence", "cluster"])
def test_a_search_times_every_setting(strategy: str, tmp_path: Path) -> None:
    path = tmp_path / "grid.csv"
    words = ("tune", "--strategy", strategy, "--shape", "128x4096", "--grid", path, "--json")
    lines = document(ok(*words))
    assert lines == [record.as_document() for record in read_csv(path)]
    assert lines[0]["peer"] == "limit"
    for line in lines:
        assert line["status"] == "timed" or line["note"] == "spills registers", line
        assert line["status"] == "absent" or line["microseconds"] > 0


def test_any_variant_is_timed_by_its_name() -> None:
    names = ("softmax_f32_1024_online_p4_u8_b64", "threepass_p4_u8_co_sh_b64", "tree")
    found = race_of(SHAPE, *named_peers(names))
    assert [found[name].status for name in names] == [Status.TIMED] * 3
    assert found[names[0]].note == "online_p4_u8_b64"
    other = race_of(Shape("custom", DType.FLOAT32, 1000, 512), *named_peers(names[:1]))
    assert "computes softmax of float32 with 1024 columns" in other[names[0]].note


def test_a_chain_takes_its_three_kernels_and_hands_over_the_data() -> None:
    shape = Shape("custom", DType.FLOAT16, 999, 1001)  # no multiple of 16 bytes
    buffers = SharedBuffers(shape)
    chain = Chain(buffers)
    chain.around(softgen_entrant(buffers, tune="off").launch)(1)
    buffers.player.stream.synchronize()
    first, second = (x.view("uint16") for x in buffers.x[:2])
    assert bool((first == second).all())  # the producer has written input 1
    sink = chain.sink.view("uint16").reshape(shape.rows, shape.cols)
    assert bool((sink == buffers.y[1].view("uint16")).all())
    assert check.furthest(buffers.problem, buffers.sets[1]).error < 2.0**-9


def test_every_installed_peer_can_be_timed_in_a_chain() -> None:
    peers = all_peers()
    cold = race_of(SHAPE, *peers.values())
    warm = race_of(SHAPE, *peers.values(), settings=Settings(0.01, regime=Regime.WARM))
    assert [*warm] == [*cold]
    for name, finding in warm.items():
        print(name, cold[name], finding)
        assert finding.status is cold[name].status
        assert (finding.microseconds is None) == (cold[name].microseconds is None)


def test_every_copy_copies() -> None:
    buffers = SharedBuffers(Shape("custom", DType.FLOAT16, 999, 1001))  # no multiple of 16 bytes
    for copy in limit.settings(writes=True):
        buffers.poison()
        limit.launch_of(copy, buffers)(0)
        buffers.player.stream.synchronize()
        assert bool((buffers.x[0].view("uint16") == buffers.y[0].view("uint16")).all()), copy.label
    assert buffers.pairs * buffers.bytes >= COLD_BYTES


def test_every_read_reads_all_and_writes_nothing() -> None:
    # No multiple of 16 bytes: 124 999 packs and 14 bytes.
    shape = Shape("custom", DType.FLOAT16, 999, 1001, function=Function.of("logsumexp"))
    buffers = SharedBuffers(shape)
    stream = buffers.player.stream
    bytes_of_x = buffers.x[0].view("uint8").reshape(-1)
    first_of_y = buffers.y[0].view("uint8")[:1]
    assert buffers.pairs * buffers.bytes >= COLD_BYTES
    never = np.full(4, limit.NEVER, np.uint32).view(np.uint8)
    marked = buffers.player.cupy.asarray(never)
    packs = bytes_of_x.size // 16

    def written(launch: Any) -> bool:
        buffers.player.cupy.cuda.runtime.deviceSynchronize()
        buffers.poison()
        launch(0)
        stream.synchronize()
        assert bool((buffers.y[0].view("uint16")[1:] == 0xFFFF).all())
        return int(first_of_y[0]) != 0xFF

    reads = [(read, limit.launch_of(read, buffers)) for read in limit.settings(writes=False)]
    for read, launch in reads:
        assert not written(launch), read.label
    bytes_of_x[...] = 0
    for at in (0, 1, 4095, packs // 2, packs - 2, packs - 1):
        # Alone among zeros it is what its thread is looking for: it is written if it was read.
        bytes_of_x[16 * at : 16 * at + 16] = marked
        for read, launch in reads:
            assert written(launch), (read.label, at)
        bytes_of_x[16 * at : 16 * at + 16] = 0
    # The first thread reads the first byte behind the packs too.
    bytes_of_x[:16] = marked
    bytes_of_x[0] ^= 1
    bytes_of_x[16 * packs] = 1
    for read, launch in reads:
        assert written(launch), read.label


def test_the_check_sees_one_element_of_a_sampled_row() -> None:
    buffers = SharedBuffers(Shape("custom", DType.FLOAT32, 8, 1 << 20))
    entrant = softgen_entrant(buffers, tune="off")
    entrant.launch(0)
    buffers.player.stream.synchronize()
    x, y = buffers.x[0], buffers.y[0]

    def error() -> float:
        return check.furthest(buffers.problem, (x, y)).error

    assert error() < 2e-6
    y[7, 12345] *= 2
    assert error() == pytest.approx(1, rel=1e-4)
    y[7, 12345] = float("nan")
    assert error() == float("inf")


def test_the_command_measures_and_writes(tmp_path: Path) -> None:
    table = tmp_path / "figures.csv"
    words: tuple[Any, ...] = ("--shape", "512x2048", "--dtype", "bfloat16", "--seconds", 0.01)
    lines = document(ok("bench", *words, "--peers", "softgen,torch", "--csv", table, "--json"))
    assert lines == [record.as_document() for record in read_csv(table)]
    by_peer = {line["peer"]: line for line in lines}
    assert by_peer["softgen"]["status"] == "timed"
    assert by_peer["softgen"]["max_relative_error"] <= 2.0**-7
    assert by_peer["limit"]["ratio_to_limit"] == 1
    assert by_peer["softgen"]["driver"]


@pytest.mark.parametrize("name", ["routing", "topk", "sample"])
def test_choices_and_samples_are_verified_and_timed(name: str) -> None:
    shapes = [shape for shape in shapes_of([name]) if shape.rows <= 64]
    for shape in (shapes[0], shapes[-1], shapes_of(["routing"])[-1]):
        found = race_of(shape, *peers_for(shape, None))
        for peer, finding in found.items():
            print(shape.label, finding)
            assert finding.status is not Status.WRONG, (peer, finding)
            if peer in ("limit", "softgen", "softgen-softmax", "softgen-logsumexp"):
                assert finding.status is Status.TIMED
