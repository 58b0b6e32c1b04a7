"""Peers by the names of variants, those of the published pieces, and the line of the CPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen.bench import host
from softgen.bench.peers import AbsentError, Entrant, Field, Library, Peer
from softgen.bench.race import Race, Settings
from softgen.bench.record import Machine, Regime, Status, records_of
from softgen.bench.roster import all_peers, named_peers, others, peers_for
from softgen.bench.shape import Shape
from softgen.bench.suites import shapes_of
from softgen.bench.torch_graphs import host_samples
from softgen.cli.bench_table import own, ratios, remarks
from softgen.errors import InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.strategies.lessons.ladder import LADDER

SHAPE = Shape("custom", DType.FLOAT32, 128, 1024)


def names_for(shape: Shape) -> list[str]:
    """Return the peers of a shape beside those that every suite has."""
    return [peer.name for peer in peers_for(shape, None) if peer.name not in all_peers()]


def prepared(peer: Peer, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the labels of the settings that a peer enters with."""

    def plan(function: Any, dtype: DType, cols: int, **options: Any) -> Any:
        from softgen.strategies.select import select

        problem = Problem.of(function, dtype, cols)
        chosen = select(problem, shape.rows, arch_named("sm_90"), options["variant"])
        return SimpleNamespace(loaded=SimpleNamespace(variant=chosen))

    def compile_all(sources: Any) -> Any:
        for source in sources:
            yield SimpleNamespace(variant=source.variant, local_bytes=0)

    monkeypatch.setattr("softgen.call.plan.plan", plan)
    monkeypatch.setattr("softgen.devices.gpu.compile.compile_many", compile_all)
    monkeypatch.setattr("softgen.bench.peers.launch_over", lambda *given, pdl: None)
    buffers: Any = SimpleNamespace(
        shape=shape, problem=shape.problem, arch=arch_named("sm_90"), allocated=None, player=None
    )
    buffers.kernels = {}
    made = peer.prepare(buffers)
    return [each.note for each in made.settings] if isinstance(made, Field) else [made.note]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("softmax_f32_1024_online_p4_u2_b128", "online_p4_u2_b128"),
        ("online_p4_u8_b64", "online_p4_u8_b64"),
        ("tree", "threepass_p1_u1_b64"),
        ("article_online", "recurrence_b128"),
        ("article_online_b512", "recurrence_b512"),
        ("article_safe_b512", "safe_b512"),
        ("safe", "safe_b256_pdl1"),
    ],
)
def test_any_variant_is_a_peer_by_its_name(
    name: str, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (peer,) = named_peers([name])
    assert peer.name == name
    assert prepared(peer, SHAPE, monkeypatch) == [label]


def test_a_full_name_is_refused_at_another_shape_only(monkeypatch: pytest.MonkeyPatch) -> None:
    (peer,) = named_peers(["softmax_f32_1024_online_p4_u2_b128"])
    with pytest.raises(InvalidValueError, match="computes softmax of float32 with 1024 columns"):
        prepared(peer, Shape("custom", DType.FLOAT32, 128, 2048), monkeypatch)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jax", "unknown peer 'jax'; .*ladder-best, and any variant: a strategy"),
        ("quak", "did you mean 'quack'"),
        ("softmax_f32_1024_onlin_p4", "'onlin'|is not the name of a variant"),
        ("online_p4_z2", "no setting of online, whose knobs are p pack_size, u unroll"),
    ],
)
def test_a_slip_is_refused_before_anything_is_timed(name: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        named_peers(["softgen", name])


def test_groups_are_their_peers() -> None:
    assert [peer.name for peer in named_peers(["ladder"])] == [*LADDER]
    assert [peer.name for peer in named_peers(["ladder-best", "tree-best"])] == [
        f"{name}-best" for name in LADDER
    ]


def test_a_suite_times_the_kernels_of_its_piece() -> None:
    assert names_for(shapes_of(["fastsoftmax"])[0]) == [f"{name}-best" for name in LADDER]
    assert names_for(shapes_of(["triton"])[0]) == [
        *("torch-unfused", "torch-unfused-script", "triton-one-row")
    ]
    articles = ["article_safe_b512", "article_online_b512"]
    with_cpu = [*articles, "numpy-one-thread", "numpy-all-threads"]
    for shape in shapes_of(["online"]):
        wanted = with_cpu if (shape.rows, shape.cols) == (20000, 5000) else articles
        assert names_for(shape) == wanted
    packs = ["pack1", "pack2", "pack4", "pack8"]
    assert names_for(shapes_of(["packs"])[0]) == [*packs, *(f"{name}-rows2" for name in packs)]
    for suite in ("llm", "oneflow", "logsumexp"):
        assert names_for(shapes_of([suite])[0]) == []


def test_a_step_at_its_best_enters_with_its_unrolls_and_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, unrolled = named_peers(["tree-best", "unrolled-best"])
    assert prepared(tree, SHAPE, monkeypatch) == [f"threepass_p1_u1_b{2**i}" for i in range(5, 11)]
    found = prepared(unrolled, SHAPE, monkeypatch)
    assert {"threepass_p4_u1_co_sh_b32", "threepass_p4_u8_co_sh_b512"} <= set(found)
    assert len(found) == 8 * 6 - 2


def test_a_pack_enters_with_every_group_and_block_that_is_legal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = Shape("packs", DType.FLOAT32, 49152, 64)
    two, pair, eight = named_peers(["pack2", "pack4-rows2", "pack8"])
    assert prepared(two, shape, monkeypatch) == [
        f"warp_p2_c{64 // width}_g{width}_r1_b{block}"
        for width in (1, 2, 4, 8, 16, 32)
        for block in (128, 256)
    ]
    found = prepared(pair, shape, monkeypatch)
    assert "warp_p4_c4_g16_r2_b128" in found
    assert all("_p4_" in label and "_r2_" in label for label in found)
    with pytest.raises(AbsentError, match="a pack is at most 16 bytes: 4 elements of float32"):
        prepared(eight, shape, monkeypatch)
    half = Shape("packs", DType.FLOAT16, 49152, 64)
    assert "warp_p8_c8_g8_r1_b128" in prepared(eight, half, monkeypatch)


def on_the_cpu(threads: int, x: Any) -> tuple[Entrant, Any]:
    """Return NumPy's entrant for an input, and the output that it collects into."""

    class Array:
        def get(self) -> Any:
            return x

        def set(self, values: Any) -> None:
            out[...] = values

    out = np.full_like(x, np.nan)
    shape = Shape("online", DType(x.dtype.name), *x.shape)
    buffers: Any = SimpleNamespace(shape=shape, x=[Array()], y=[Array()])
    return host._numpy(buffers, threads), out


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [1, 100])
def test_the_cpu_computes_softmax(threads: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "CHUNK_BYTES", 5000)  # 12 rows at a time
    x = 3 * np.random.default_rng(0).standard_normal((rows, 100), np.float32)
    entrant, out = on_the_cpu(threads, x)
    entrant.launch(0)
    entrant.collect()
    terms = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    assert np.abs(out / (terms / terms.sum(axis=1, keepdims=True)) - 1).max() < 4e-6
    assert entrant.library is Library.HOST
    assert f"NumPy {np.__version__}, {threads} thread" in entrant.note


def test_sixteen_bits_are_not_timed_on_the_cpu() -> None:
    with pytest.raises(AbsentError, match="computes float16 in software"):
        on_the_cpu(1, np.ones((2, 2), np.float16))


def test_calls_of_the_host_are_timed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.cumsum([0, 0, 0.25, 0, 0.5, 0, 0.125, 9]))
    monkeypatch.setattr("softgen.bench.torch_graphs.time.perf_counter", lambda: float(next(clock)))
    assert host_samples(lambda i: None, 0.01) == pytest.approx([250000, 500000, 125000])


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Race:
    """Return a race whose GPU is none, and whose checks all pass."""
    buffers: Any = SimpleNamespace(shape=SHAPE, poison=lambda: None)
    made = Race(buffers, Settings(seconds=0.001), {})
    monkeypatch.setattr(made, "_checked", lambda name, entrant: _right(name, entrant))
    monkeypatch.setattr(made, "_sweeps", lambda: [])
    return made


def _right(name: str, entrant: Entrant) -> Any:
    from softgen.bench.record import Finding

    return Finding(name, Status.TIMED, error=1e-7, note=entrant.note)


def test_the_cpu_is_timed_after_all_others_and_is_no_competitor(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    limit = SimpleNamespace(finding=_right("limit", Entrant(lambda i: None)), replay=None)
    monkeypatch.setattr(race, "_sweeps", lambda: [limit])

    def turns(replays: Any) -> list[list[float]]:
        order.append("gpu")
        return [[2.0, 2.0]]

    monkeypatch.setattr(race, "_take_turns", turns)
    note = "NumPy 2, 1 thread of a CPU"
    entrant = Entrant(lambda i: order.append("cpu"), Library.HOST, note)
    race.admit(Peer("numpy-one-thread", lambda buffers: entrant))
    limit_found, found = race.findings()
    assert order[0] == "gpu"
    assert set(order[1:]) == {"cpu"}
    assert len(order) >= 4
    assert (found.status, found.note, found.error) == (Status.HOST, note, 1e-7)
    assert found.microseconds is not None
    machine = Machine("a GPU", "580.1", "softgen 1")
    mine = _right("softgen", entrant).timed([3.0, 3.0])
    records = records_of(SHAPE, [limit_found, found, mine], machine)
    heads, line = ratios(records)
    assert line[heads.index("numpy-one-thread")].startswith("^")
    assert line[-1] == "-"  # nobody to be compared with
    assert remarks(records) == [f"numpy-one-thread: host at 1 shape: {note}"]


def test_the_cpu_has_no_place_between_two_kernels(race: Race) -> None:
    race.chain = SimpleNamespace()  # type: ignore[assignment]
    race.settings = Settings(regime=Regime.WARM)
    race.admit(Peer("numpy", lambda buffers: Entrant(lambda i: None, Library.HOST)))
    assert race.found["numpy"].status is Status.ABSENT
    assert race.found["numpy"].note == "runs on the CPU, between no two kernels"


def test_kernels_of_others_are_not_taken_for_softgens() -> None:
    machine = Machine("a GPU", "580.1", "softgen 1")
    names = ("torch-unfused", "torch-unfused-script", "triton-one-row", "numpy-all-threads")
    assert set(names) < others()
    mine = ("softgen", "pack2", "tree-best", "article_safe_b512", "online_p4_u2_b128")
    found = [_right(name, Entrant(lambda i: None)) for name in (*names, *mine, "limit")]
    records = records_of(SHAPE, found, machine)
    assert [record.peer for record in records if own(record)] == [*mine]


def test_the_unfused_softmax_is_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The five operations, with NumPy in PyTorch's place."""

    def largest(x: Any, dim: int, keepdim: bool) -> tuple[Any, Any]:
        return x.max(dim, keepdims=keepdim), x.argmax(dim)

    def total(x: Any, dim: int, keepdim: bool) -> Any:
        return x.sum(dim, keepdims=keepdim)

    compiled: list[Any] = []

    def script(function: Any) -> Any:
        def run(x: Any) -> Any:
            compiled.append(x)
            return function(x)

        return run

    torch = SimpleNamespace(Tensor=np.ndarray, max=largest, sum=total, exp=np.exp)
    torch.jit = SimpleNamespace(script=script)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "softgen.bench.unfused", raising=False)
    from softgen.bench.unfused import scripted, unfused

    x: Any = np.random.default_rng(0).standard_normal((4, 50))
    exact = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    again = scripted(x)
    assert len(compiled) == 3  # before it is captured
    for function in (unfused, again):
        assert np.abs(function(x) / exact - 1).max() < 1e-14
    monkeypatch.delitem(sys.modules, "softgen.bench.unfused")
