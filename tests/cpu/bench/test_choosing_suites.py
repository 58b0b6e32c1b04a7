"""Suites routing, topk and sample: their shapes, how choices are checked, who is called and how."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.bench import choosing
from softgen.bench.buffers import SharedBuffers
from softgen.bench.choosing import expression, not_drawn, softgen_sample
from softgen.bench.peers import AbsentError, Entrant, Peer
from softgen.bench.race import Race, Settings
from softgen.bench.record import Finding, Status
from softgen.bench.roster import all_peers, named_peers, others, peers_for
from softgen.bench.shape import SAMPLED, Case, Shape
from softgen.bench.suites import SUITES, shapes_of
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from tests.cpu.bench.test_bench import computing, on_the_host, the_only_finding

__all__ = ["on_the_host"]  # a fixture

DEEPSEEK = "topk_softmax_k8_sigmoid_bias_g8of4_norm"
BEST = "ranked_log_probs_top20"
CHOICES = ("topk_softmax_k8", DEEPSEEK, BEST)


def test_the_shapes_are_those_of_routers_and_of_servers() -> None:
    routed = shapes_of(["routing"])
    sizes = {(shape.rows, shape.cols) for shape in routed}
    assert sizes == {(r, c) for r in (1, 64, 8192, 65536) for c in (8, 64, 128, 160, 256, 384)}
    assert len(routed) == len(sizes) + 1
    assert (routed[-1].function.name, routed[-1].rows, routed[-1].cols) == (DEEPSEEK, 8192, 256)
    for name, function in (("topk", BEST), ("sample", "logsumexp")):
        shapes = shapes_of([name])
        assert {shape.function.name for shape in shapes} == {function}
        assert [shape.rows for shape in shapes] == [1, 8, 64, 1024] * 2
        assert {shape.cols for shape in shapes} == {128256, 151936}
    assert {shape.dtype for shape in shapes_of(["routing", "topk", "sample"])} == {DType.BFLOAT16}
    words = "a sample by temperature 0.8, a sample by top_k 50"
    assert str(shapes_of(["sample"])[0].case).startswith(words)


def test_everybody_who_takes_part_is_known_and_belongs_to_a_suite() -> None:
    for name in ("routing", "topk", "sample"):
        (shape, *_) = shapes_of([name])
        peers = peers_for(shape, None)
        assert tuple(peer.name for peer in peers) == SUITES[name].peers
        assert [peer.lacking(shape) for peer in peers] == [None] * len(peers)
    foreign = {peer.name for peer in (*choosing.choosing_peers(), *choosing.sampling_peers())}
    assert foreign <= others()
    sample = shapes_of(["sample"])[0]
    for peer in all_peers().values():
        if peer.name not in ("softgen", "softgen-untuned"):
            assert peer.lacking(sample) is not None, peer.name


def test_the_least_is_rows_read_and_results_written(
    on_the_host: Callable[..., SharedBuffers],
) -> None:
    buffers = on_the_host("topk_softmax_k8", DType.BFLOAT16, rows=5, cols=256)
    assert buffers.swept_bytes == 5 * (256 * 2 + 8 * 4 + 8 * 4)
    buffers = on_the_host(BEST, DType.BFLOAT16, rows=5, cols=256)
    assert buffers.swept_bytes == 5 * (256 * 2 + 20 * 8 + 4 + 4 + 4)
    assert on_the_host("logsumexp").swept_bytes == on_the_host("logsumexp").bytes


@pytest.mark.parametrize("name", ["softmax", "logsumexp"])
def test_a_yardstick_reads_rows_of_its_own(
    name: str, on_the_host: Callable[..., SharedBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    launches: list[Any] = []
    planned: list[Any] = []
    variant = SimpleNamespace(
        strategy=SimpleNamespace(label="block"),
        launch=SimpleNamespace(workspace_bytes=lambda rows: 0),
    )

    def launcher(rows: int, scratch: Any, pdl: bool) -> Callable[..., None]:
        return lambda arguments, stream: launches.append((rows, len(arguments)))

    def plan(*given: Any, rows: int) -> Any:
        planned.append((*given, rows))
        return SimpleNamespace(loaded=SimpleNamespace(variant=variant, launcher=launcher))

    monkeypatch.setattr("softgen.call.plan.plan", plan)
    (peer,) = named_peers([f"softgen-{name}"])
    entrant = peer.prepare(on_the_host("topk_softmax_k8"))
    assert isinstance(entrant, Entrant)
    entrant.launch(0)
    assert planned == [(name, DType.FLOAT32, 96, 5)]
    assert launches == [(5, 2)]
    assert (entrant.computes, entrant.note) == (False, "block; no choice")


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("name", CHOICES)
def test_choices_are_checked_by_their_reference(
    name: str, dtype: DType, on_the_host: Callable[..., SharedBuffers]
) -> None:
    found = the_only_finding(on_the_host(name, dtype), computing(name))
    assert (found.status, found.note) == (Status.TIMED, "")
    assert found.error is not None
    assert found.error < 1e-6


def columns_of(arrays: Any, name: str) -> Any:
    return arrays[2 if name == BEST else 1]


@pytest.mark.parametrize("name", CHOICES)
def test_each_wrong_result_of_a_choice_is_seen(
    name: str, on_the_host: Callable[..., SharedBuffers]
) -> None:
    def is_other(arrays: Any) -> None:
        ids = columns_of(arrays, name)
        ids[-1, 0] = (set(range(96)) - set(ids[-1].tolist())).pop()

    def is_twice(arrays: Any) -> None:
        columns_of(arrays, name)[-1, 1] = columns_of(arrays, name)[-1, 0]

    def is_none(arrays: Any) -> None:
        columns_of(arrays, name)[0, 0] = 96

    def is_unwritten(arrays: Any) -> None:
        columns_of(arrays, name)[...] = -1

    def is_off(arrays: Any) -> None:
        arrays[0].flat[-1] *= 1.01

    def has_nan(arrays: Any) -> None:
        arrays[0].flat[0] = np.nan

    for wrong in (is_other, is_twice, is_none, is_unwritten, is_off, has_nan):
        found = the_only_finding(on_the_host(name), computing(name, wrong))
        assert found.status is Status.WRONG, wrong.__name__
        assert "is off by" in found.note


def test_ranks_are_compared_too(on_the_host: Callable[..., SharedBuffers]) -> None:
    def is_off(arrays: Any) -> None:
        arrays[3].flat[2] += 1

    found = the_only_finding(on_the_host(BEST), computing(BEST, is_off))
    assert (found.status, found.note[:18]) == (Status.WRONG, "ranks is off by in")


@pytest.mark.parametrize("name", CHOICES)
def test_of_equal_elements_any_may_be_chosen(
    name: str, on_the_host: Callable[..., SharedBuffers]
) -> None:
    buffers = on_the_host(name)
    for x, *_ in buffers.sets:
        x[...] = np.round(x)  # as those of bfloat16 are, of which many are equal
    if name == DEEPSEEK:
        buffers.sets[0][1][...] = 0

    def other_of_equals(arrays: Any) -> None:
        ids, x = columns_of(arrays, name), buffers.sets[0][0]
        last = ids[:, -1]
        for row in range(len(x)):
            group = last[row] // 12 if name == DEEPSEEK else 0
            size = 12 if name == DEEPSEEK else 96
            near = np.arange(group * size, (group + 1) * size)
            free = [c for c in near if x[row, c] == x[row, last[row]] and c not in ids[row]]
            ids[row, -1] = free[-1] if free else last[row]

    before = np.array(columns_of(buffers.sets[0][-5 if name == BEST else -2 :], name))
    found = the_only_finding(buffers, computing(name, other_of_equals))
    assert found.status is Status.TIMED, found.note
    assert (columns_of(buffers.sets[0][-5 if name == BEST else -2 :], name) != before).any()


def test_what_a_competitor_does_not_give_is_not_looked_at(
    on_the_host: Callable[..., SharedBuffers],
) -> None:
    buffers = on_the_host(BEST)

    def prepare(buffers: SharedBuffers) -> Entrant:
        def launch(i: int) -> None:
            x, ids, _, best, columns, *_ = buffers.sets[i]
            exact = buffers.problem.function.reference(x.astype("f8"), ids)
            best[...], columns[...] = exact[1:3]

        return Entrant(launch, gives=("top_log_probs", "top_ids"))

    assert the_only_finding(buffers, Peer("two", prepare)).status is Status.TIMED


def of_torch(buffers: SharedBuffers, torch: Any) -> Any:
    """Return an buffers of the host as its tensors are seen, one set of them."""
    names = [operand.name for operand in buffers.problem.results]
    count = len(buffers.problem.inputs)
    arrays = [torch.from_numpy(a) if a.ndim else a.item() for a in buffers.sets[0]]
    results = [dict(zip(names, arrays[count:], strict=True))]
    return SimpleNamespace(
        shape=buffers.shape,
        pairs=1,
        torch_inputs=[tuple(arrays[:count])],
        torch_x=arrays[:1],
        torch_results=results,
        torch_stream=None,
        keeps=buffers,  # whose memory that is
        problem=buffers.problem,
    )


@pytest.mark.parametrize("name", [*CHOICES, "topk_softmax_k3_norm", "topk_softmax_k4_bias_g8of2"])
def test_pytorchs_expression_is_the_function(
    name: str, on_the_host: Callable[..., SharedBuffers]
) -> None:
    torch = pytest.importorskip("torch")
    buffers = on_the_host(name)
    seen = of_torch(buffers, torch)
    values, ids = expression(buffers.shape.function)(*seen.torch_inputs[0])
    inputs = [
        np.asarray(each, np.float64) for each in buffers.sets[0][: len(buffers.problem.inputs)]
    ]
    exact = buffers.problem.function.reference(*inputs)
    wanted = exact[1:3] if name == BEST else exact
    np.testing.assert_allclose(values, wanted[0], rtol=1e-5)
    np.testing.assert_array_equal(ids, wanted[1])


def launched(peer: str, seen: Any, monkeypatch: pytest.MonkeyPatch, **modules: Any) -> Entrant:
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name.replace("__", "."), module)
    (named,) = named_peers([peer])
    entrant = named.prepare(seen)
    assert isinstance(entrant, Entrant)
    entrant.launch(0)
    return entrant


@pytest.mark.parametrize("name", ["topk_softmax_k8", DEEPSEEK])
@pytest.mark.parametrize("peer", ["sglang", "vllm", "flashinfer.topk", "quack.topk"])
def test_libraries_of_routers_are_called_as_they_want_to_be(
    peer: str, name: str, on_the_host: Callable[..., SharedBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    seen = of_torch(on_the_host(name, cols=128), torch)
    of_row = expression(seen.shape.function)
    x, *rest = seen.torch_inputs[0]
    right = of_row(x, *rest)
    asked: list[Any] = []

    def into(weights: Any, ids: Any, *given: Any) -> None:
        asked.append(given)
        weights.copy_(right[0])
        ids.copy_(right[1])

    def made(*given: Any) -> Any:
        asked.append(given)
        return right[0], right[1].int()

    def deepseek(x: Any, bias: Any, *given: Any) -> None:
        into(*given[-2:], x, bias, *given[:-2])

    modules = {
        "sgl_kernel": SimpleNamespace(topk_softmax=into, moe_fused_gate=made),
        "vllm": SimpleNamespace(),
        "vllm___custom_ops": SimpleNamespace(topk_softmax=into, grouped_topk=made),
        "flashinfer__fused_moe": SimpleNamespace(fused_topk_deepseek=deepseek),
        "quack__topk": SimpleNamespace(topk_fwd=made),
    }
    modules["vllm._custom_ops"] = modules.pop("vllm___custom_ops")
    absent = {("flashinfer.topk", "topk_softmax_k8"), ("quack.topk", DEEPSEEK)}
    if (peer, name) in absent:
        with pytest.raises(AbsentError):
            launched(peer, seen, monkeypatch, **modules)
        return
    entrant = launched(peer, seen, monkeypatch, **modules)
    (given,) = asked
    numbers = [each for each in given if not isinstance(each, torch.Tensor)]
    wanted = {
        ("sglang", "topk_softmax_k8"): [False],
        ("sglang", DEEPSEEK): [8, 4, 8, 0, 1.0, True],
        ("vllm", "topk_softmax_k8"): [False],
        ("vllm", DEEPSEEK): [8, 4, 8, True, 1.0, 1],
        ("flashinfer.topk", DEEPSEEK): [8, 4, 8, 1.0],
        ("quack.topk", "topk_softmax_k8"): [8],
    }
    assert numbers == wanted[peer, name]
    assert any(each is x for each in given)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    entrant.collect()
    for which, tensor in zip(("weights", "ids"), right, strict=True):
        if which in entrant.gives:
            torch.testing.assert_close(seen.torch_results[0][which], tensor, check_dtype=False)


def test_a_bias_that_is_timed_is_exact_in_16_bits() -> None:
    bias = Function.of(DEEPSEEK).timed_inputs(1, 384)["choice_bias"]
    assert (bias.astype(np.float16) == bias).all()
    assert (bias.astype(np.float32).view(np.uint32) & 0xFFFF == 0).all()


@pytest.mark.parametrize("peer", ["torch.topk", "torch.compile-topk", "torch.topk-softgen"])
def test_torch_gives_the_best_alone(
    peer: str, on_the_host: Callable[..., SharedBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    seen = of_torch(on_the_host(BEST), torch)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(softgen, "logsumexp", lambda x, dtype: torch.logsumexp(x, -1))
    entrant = launched(peer, seen, monkeypatch)
    assert entrant.gives == ("top_log_probs", "top_ids")
    router = of_torch(on_the_host("topk_softmax_k8"), torch)
    if peer == "torch.topk-softgen":
        with pytest.raises(AbsentError, match="log-probabilities of the best"):
            launched(peer, router, monkeypatch)
    else:
        assert launched(peer, router, monkeypatch).gives == ("weights", "ids")


def test_a_function_without_a_choice_is_told(on_the_host: Callable[..., SharedBuffers]) -> None:
    torch = pytest.importorskip("torch")
    seen = of_torch(on_the_host("logsumexp"), torch)
    (peer,) = named_peers(["torch.topk"])
    with pytest.raises(AbsentError, match="logsumexp chooses none"):
        peer.prepare(seen)


def drawing(torch: Any, rows: int = 64, cols: int = 200) -> Any:
    x = torch.randn(rows, cols, generator=torch.Generator().manual_seed(0)) * 3
    return SimpleNamespace(torch_x=[x], pairs=1, shape=Shape("sample", DType.FLOAT32, rows, cols))


def test_samples_that_are_outside_of_a_filter_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    buffers = drawing(torch)
    x, asked = buffers.torch_x[0], []

    def sample(x: Any, **given: Any) -> Any:
        asked.append(given)
        return x.argmax(-1), x.amax(-1)

    monkeypatch.setattr(softgen, "sample", sample, raising=False)
    entrant = softgen_sample(buffers)
    entrant.launch(0)
    assert asked == [{"seed": 0, **SAMPLED}]
    assert entrant.objection is not None
    assert entrant.objection() == ""
    assert not_drawn(x, x.argmin(-1), filtered=False) == ""
    assert not_drawn(x, x.argmin(-1), filtered=True) == "64 of 64 samples are outside of top_k"
    assert not_drawn(x, torch.full((64,), 200), filtered=False) == "a sample is no column"
    second = x.topk(2).indices[:, 1]
    sure = x.scatter(1, x.argmax(-1)[:, None], 20.0)
    assert "outside of min_p" in not_drawn(sure, second, filtered=True)
    flat = torch.linspace(0, 0.01, 200).expand(64, 200)
    assert not_drawn(flat, torch.full((64,), 160), filtered=True) == ""
    assert "outside of top_p" in not_drawn(flat, torch.full((64,), 151), filtered=True)


@pytest.mark.parametrize("peer", ["torch.multinomial", "torch.gumbel"])
def test_torch_draws_columns(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    buffers = drawing(torch)
    entrant = launched(peer, buffers, monkeypatch)
    assert entrant.objection is not None
    assert entrant.objection() == ""
    assert entrant.note == "temperature alone"


@pytest.mark.parametrize("peer", ["flashinfer.sampling", "flashinfer.top_k_top_p"])
def test_flashinfer_draws_by_its_filters(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    asked: list[Any] = []

    def renormed(name: str) -> Callable[..., Any]:
        def call(p: Any, *given: Any, **named: Any) -> Any:
            asked.append((name, *given, *named.values()))
            return p

        return call

    def drawn(p: Any, *given: Any) -> Any:
        asked.append(given)
        return p.argmax(-1).int()

    module = SimpleNamespace(
        softmax=renormed("softmax"),
        top_k_renorm_probs=renormed("top_k"),
        top_p_renorm_probs=renormed("top_p"),
        min_p_sampling_from_probs=drawn,
        top_k_top_p_sampling_from_probs=drawn,
    )
    buffers = drawing(torch)
    entrant = launched(peer, buffers, monkeypatch, flashinfer__sampling=module)
    assert entrant.objection is not None
    assert entrant.objection() == ""
    if peer == "flashinfer.sampling":
        assert asked == [("softmax", 0.8), ("top_k", 50), ("top_p", 0.9), (0.02,)]
    else:
        assert asked == [("softmax", 0.8), (50, 0.9)]


def test_a_sample_that_is_objected_to_is_not_timed(
    on_the_host: Callable[..., SharedBuffers],
) -> None:
    buffers = on_the_host("logsumexp")

    def prepare(said: str) -> Callable[[SharedBuffers], Entrant]:
        return lambda buffers: Entrant(lambda i: None, objection=lambda: said)

    def finding(said: str) -> Finding:
        race = Race(buffers, Settings(), {})
        race.admit(Peer("one", prepare(said)))
        return race.findings()[1]

    assert finding("").status is Status.TIMED
    assert (finding("no column").status, finding("no column").note) == (Status.WRONG, "no column")


def test_a_case_of_samples_says_so() -> None:
    assert str(Case((2, 8))) == "2 x 8"
    assert str(Case((2, 8), samples=True)).endswith("a sample by min_p 0.02, 2 x 8")
