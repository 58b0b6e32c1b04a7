"""A call by an entry gives what dispatch gives: options, streams, threads, devices, capture."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import softgen
from softgen.call import api, kernels
from softgen.call.dispatch import FunctionCalls, calls_of
from softgen.call.kernel import KernelCalls
from softgen.call.runner import Calls
from softgen.errors import NotSupportedError
from softgen.problems.dtypes import DType
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.numerics import numpy_dtype
from tests.gpu.test_softmax import as_torch
from tests.helpers.device_reference import device_normal, error_over_bound

pytestmark = pytest.mark.gpu

VARIANTS = [("block", 1000), ("cluster", 20000), ("split", 50257), ("cooperative", 131072)]
OPTIONS: list[dict[str, Any]] = [
    {"tune": "off"},
    {"tune": "off", "dtype": "float32", "axis": -1},
    {"variant": "safe", "batch_invariant": True},
]


class Count:
    """Counts the calls of each function, by the full path and in all."""

    def __init__(self) -> None:
        self.all = self.full = 0

    @property
    def warm(self) -> int:
        return self.all - self.full


def on_dispatch(of: type[Calls], do: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something with each request that has no entry."""
    dispatch = of.dispatch

    def full(calls: Calls, *request: Any) -> Any:
        do(request)
        return dispatch(calls, *request)

    monkeypatch.setattr(of, "dispatch", full)


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Nothing is warm when a test starts."""
    counter = Count()

    def called(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            counter.all += 1
            return function(*given, **options)

        return call

    def full(*request: Any) -> None:
        counter.full += 1

    on_dispatch(FunctionCalls, full, monkeypatch)
    calls_of.cache_clear()
    for name in ("softmax", "log_softmax", "logsumexp"):
        monkeypatch.setattr(api, f"_{name}", calls_of(name))
    for name in ("softmax", "log_softmax", "logsumexp", "partial", "finish"):
        monkeypatch.setattr(softgen, name, called(getattr(api, name)))
    return counter


def array(library: str, rows: int, cols: int, dtype: DType = DType.FLOAT32) -> Any:
    x = device_normal(rows, cols, dtype)
    return x if library == "cupy" else as_torch(x)


def same(a: Any, b: Any) -> bool:
    return bool((a == b).all())


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.value)
def test_a_warm_call_repeats_the_full_one(library: str, dtype: DType, count: Count) -> None:
    x = array(library, 12, 1000, dtype)
    for shaped in (x, x.reshape(3, 4, 1000), x.reshape(-1)[:7], x[0, 0]):
        for call in (softgen.softmax, softgen.log_softmax):
            for options in OPTIONS:
                full = call(shaped, **options)
                before = count.warm
                warm = call(shaped, **options)
                assert count.warm == before + 1
                assert type(warm) is type(full)
                assert (warm.dtype, warm.shape) == (full.dtype, full.shape)
                assert same(warm, full)
                assert warm is not full


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_out_in_place_and_bases_that_start_anywhere(library: str, count: Count) -> None:
    flat = array(library, 1, 8 * 1000 + 8)[0]
    for offset in (0, 1, 2, 4):
        x = flat[offset : offset + 8000].reshape(8, 1000)
        expected = softgen.softmax(x, tune="off", variant="safe")
        for _ in range(2):
            y = softgen.softmax(x, tune="off")
            assert error_of(y, expected) < 4e-6
            out = y * 0
            assert softgen.softmax(x, out=out, tune="off") is out
            assert error_of(out, expected) < 4e-6
            twin = x * 1
            assert softgen.softmax(twin, out=twin, tune="off") is twin
            assert error_of(twin, expected) < 4e-6
    assert count.warm > count.full / 2


def error_of(y: Any, expected: Any) -> float:
    return float((abs(y - expected) / (expected + 1e-30)).max())


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_what_is_refused_is_refused_when_warm_too(library: str, count: Count) -> None:
    x = array(library, 8, 1000)
    out = x * 0
    for _ in range(2):
        softgen.softmax(x, 1, tune="off")
        softgen.softmax(x, 1, out=out, tune="off")
    flat = array(library, 1, 8 * 1000 + 500)[0]
    refused: list[dict[str, Any]] = [
        {"axis": True},
        {"axis": 1.0},
        {"axis": 1, "out": out[:, :999]},
        {"axis": 1, "out": flat},
    ]
    for bad in refused:
        with pytest.raises((TypeError, ValueError)):
            softgen.softmax(x, tune="off", **bad)
    with pytest.raises(ValueError, match="overlaps"):
        softgen.softmax(
            flat[:8000].reshape(8, 1000), 1, out=flat[500:].reshape(8, 1000), tune="off"
        )


def test_a_gradient_is_refused_when_warm_too(count: Count) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(8, 1000, device="cuda")
    for _ in range(2):
        softgen.softmax(x, tune="off")
    x.requires_grad_()
    with pytest.raises(NotSupportedError):
        softgen.softmax(x, tune="off")
    with torch.no_grad():
        softgen.softmax(x, tune="off")
    with pytest.raises(NotSupportedError):
        softgen.softmax(x, tune="off")


def test_the_environment_counts_at_every_call(
    count: Count, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = device_normal(8, 1000, DType.FLOAT32)
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    for _ in range(3):
        softgen.softmax(x)
    assert (count.full, count.warm) == (1, 2)
    monkeypatch.setenv("SOFTGEN_TUNE", "sometimes")
    with pytest.raises(ValueError, match="SOFTGEN_TUNE"):
        softgen.softmax(x)
    monkeypatch.setenv("SOFTGEN_TUNE", "cached")
    softgen.softmax(x)
    assert (count.full, count.warm) == (3, 2)
    monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", "1")
    softgen.softmax(x)
    assert (count.full, count.warm) == (4, 2)
    softgen.softmax(x)
    assert (count.full, count.warm) == (4, 3)


def test_a_warm_call_runs_on_the_stream_of_the_moment(count: Count) -> None:
    import cupy

    x = cupy.zeros((4096, 8192), "float32")
    y = cupy.empty_like(x)
    softgen.softmax(x, out=y, tune="off")
    for _ in range(3):
        stream = cupy.cuda.Stream(non_blocking=True)
        x[...] = 0
        cupy.cuda.runtime.deviceSynchronize()
        with stream:
            for _ in range(20):  # keeps the stream busy; a launch elsewhere would read x too early
                x += 1
            x[:, 0] = 3
            softgen.softmax(x, out=y, tune="off")
        stream.synchronize()
        assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1
    assert count.warm == 3


def test_a_warm_call_runs_on_the_torch_stream_of_the_moment(count: Count) -> None:
    torch = pytest.importorskip("torch")
    x = torch.zeros(4096, 8192, device="cuda")
    softgen.softmax(x, tune="off")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            x += 1
        x[:, 0] = 30
        y = softgen.softmax(x, tune="off")
        torch.testing.assert_close(y, torch.softmax(x, -1))
    assert count.warm == 1


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("return_lse", [False, True])
def test_threads_of_different_shapes(return_lse: bool, library: str, count: Count) -> None:
    """A new thread has no CUDA context at first; all launch the same kernels meanwhile."""
    import cupy

    shapes = [(rows, cols) for rows in (3, 16) for cols in (64, 1000, 50257)]
    inputs = [array(library, *shape) for shape in shapes]
    options: dict[str, Any] = {"return_lse": return_lse, "tune": "off"}
    expected = [softgen.softmax(x, **options) for x in inputs]
    cupy.cuda.runtime.deviceSynchronize()

    def hammer(seed: int) -> int:
        wrong = 0
        for i in range(300):
            which = (i * 7 + seed) % len(shapes)
            found = softgen.softmax(inputs[which], **options)
            if i % 10 == 0:
                wrong += not all(map(same, each(found), each(expected[which])))
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(hammer, range(8))) == [0] * 8
    assert count.warm > count.full


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_of_another_device(library: str, count: Count) -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    with cupy.cuda.Device(1):
        there = array(library, 8, 1000)
        if library == "torch":
            assert there.get_device() == 1
    here = array(library, 8, 1000)
    for _ in range(3):
        for x in (here, there):
            y = softgen.softmax(x, tune="off")
            assert y.device == x.device
            with cupy.cuda.Device(1 if x is there else 0):
                assert same(y, softgen.softmax(x, tune="off"))
        kernel = softgen.plan("softmax", "float32", 1000, tune="off")
        assert kernel(here).device == here.device


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_plan_is_warm_from_its_second_call(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_kernels", {})
    kernel = softgen.plan("softmax", "float32", 1000, rows=64, tune="off")
    taken: list[Any] = []
    on_dispatch(KernelCalls, taken.append, monkeypatch)
    for rows in (64, 5):
        x = array(library, rows, 1000)
        taken.clear()
        expected = kernel(x)
        assert len(taken) == 1
        assert same(kernel(x), expected)
        assert len(taken) == 1
        twin = x * 1
        for _ in range(2):
            twin[...] = x
            assert kernel(twin, twin) is twin
            assert same(twin, expected)
        assert len(taken) == 2
    with pytest.raises(TypeError, match="plan is for float32"):
        kernel(array(library, 64, 1000, DType.FLOAT64))
    with pytest.raises(ValueError, match="last axis of 1000"):
        kernel(array(library, 64, 999))


def test_an_allocator_set_later_is_used(count: Count) -> None:
    import cupy

    x = device_normal(8, 1000, DType.FLOAT32)
    expected = softgen.softmax(x, tune="off")
    pool, asked = cupy.get_default_memory_pool(), []

    def allocate(size: int) -> Any:
        asked.append(size)
        return pool.malloc(size)

    with cupy.cuda.using_allocator(allocate):
        y = softgen.softmax(x, tune="off")
    assert asked == [x.nbytes]
    assert count.warm == 1
    assert same(y, expected)


# Capture


@pytest.mark.parametrize(("variant", "cols"), VARIANTS)
def test_a_cupy_graph_replays_on_new_data(variant: str, cols: int, count: Count) -> None:
    import cupy

    x = device_normal(7, cols, DType.FLOAT32)
    y = cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        softgen.softmax(x, out=y, variant=variant)
        stream.begin_capture()
        softgen.softmax(x, out=y, variant=variant)
        graph = stream.end_capture()
        assert count.warm == 1
        for shift in (1, 2):
            y[...] = 0
            x *= -1
            x[:, shift] += 3
            graph.launch(stream)
            stream.synchronize()
            assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1


@pytest.mark.parametrize(("variant", "cols"), VARIANTS)
def test_a_torch_graph_replays_on_new_data(variant: str, cols: int, count: Count) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(7, cols, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        softgen.softmax(x, variant=variant)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y = softgen.softmax(x, variant=variant)
    assert count.warm == 1
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(y, torch.softmax(x, -1))


def test_a_tuned_call_can_be_captured(count: Count) -> None:
    import cupy

    x = device_normal(24, 1536, DType.FLOAT32)
    y = cupy.empty_like(x)
    softgen.softmax(x, tune="on")  # elsewhere, and without out: only the kernel is the same
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        for _ in range(2):  # by the full path, then warm
            stream.begin_capture()
            softgen.softmax(x, out=y, tune="on")
            graph = stream.end_capture()
            x += x
            graph.launch(stream)
            stream.synchronize()
            assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1
    assert count.warm == 1


def test_a_shape_never_seen_cannot_be_captured_and_harms_nothing(count: Count) -> None:
    import cupy

    x = device_normal(9, 1234, DType.FLOAT32)
    y, other = cupy.empty_like(x), cupy.zeros(8, "float32")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        other += 1
        for tune, variant in (("on", None), ("off", None), (None, "safe")):
            with pytest.raises(softgen.CaptureError, match="call it once before"):
                softgen.softmax(x, out=y, tune=tune, variant=variant)
        graph = stream.end_capture()
        graph.launch(stream)
        softgen.softmax(x, out=y, tune="off")
    stream.synchronize()
    assert (other == 1).all()
    assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1


def test_a_warm_call_without_out_is_refused_in_a_capture(count: Count) -> None:
    import cupy

    x = device_normal(9, 1000, DType.FLOAT32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        softgen.softmax(x, tune="off")
        softgen.softmax(x, tune="off")
        assert count.warm == 1
        stream.begin_capture()
        with pytest.raises(softgen.CaptureError, match="pass out="):
            softgen.softmax(x, tune="off")
        stream.end_capture()
        assert softgen.softmax(x, tune="off").dtype == numpy_dtype(DType.FLOAT32)


# More than one input or result


def each(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def pair_calls(x: Any) -> list[Callable[..., Any]]:
    """Return calls with more than one input or result; that of `finish` has the pair of x."""
    m, d = softgen.partial(x, tune="off")

    def finish(x: Any, **options: Any) -> Any:
        return softgen.finish(x, m, d, **options)

    options: dict[str, Any] = {"return_lse": True, "tune": "off"}
    return [
        functools.partial(softgen.softmax, **options),
        functools.partial(softgen.log_softmax, **options),
        functools.partial(finish, tune="off"),
    ]


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.value)
def test_warm_calls_of_pairs_repeat_the_full_ones(library: str, dtype: DType, count: Count) -> None:
    x = array(library, 12, 1000, dtype)
    for shaped in (x, x.reshape(3, 4, 1000), x.reshape(-1)[:7]):
        calls = pair_calls(shaped)
        calls.append(functools.partial(softgen.partial, tune="off"))
        for call in calls:
            full = each(call(shaped))
            before = count.warm
            warm = each(call(shaped))
            assert count.warm == before + 1
            assert len(warm) == len(full)
            for one, other in zip(warm, full, strict=True):
                assert type(one) is type(other)
                assert (one.dtype, one.shape) == (other.dtype, other.shape)
                assert same(one, other)
                assert one is not other


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_pairs_with_out_and_in_place(library: str, count: Count) -> None:
    x = array(library, 12, 1000)
    for call in pair_calls(x):
        expected = each(call(x))
        out = x * 0
        for _ in range(3):
            out *= 0
            found = each(call(x, out=out))
            assert found[0] is out
            assert all(map(same, found, expected))
        for _ in range(3):
            twin = x * 1
            found = each(call(twin, out=twin))
            assert found[0] is twin
            assert all(map(same, found, expected))
    assert count.warm >= 3 * 4


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_logsumexp_with_out_is_warm(library: str, count: Count) -> None:
    x = array(library, 12, 1000)
    expected = softgen.logsumexp(x, tune="off")
    out = expected * 0
    for _ in range(3):
        out *= 0
        assert softgen.logsumexp(x, out=out, tune="off") is out
        assert same(out, expected)
    assert count.warm == 2
    column = x[:, :1] * 1
    with pytest.raises(ValueError, match="overlaps"):
        softgen.logsumexp(column, out=column[:, 0], tune="off")


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_pair_that_does_not_belong_to_x_is_refused_when_warm_too(
    library: str, count: Count
) -> None:
    x = array(library, 8, 1000)
    m, d = softgen.partial(x, tune="off")
    for _ in range(2):
        expected = softgen.finish(x, m, d, tune="off")
    assert count.warm == 1
    wide = array(library, 8, 8, DType.FLOAT64)[:, 0]
    for bad in ((m[:7], d), (m, d.reshape(8, 1)), (wide, d), (m, wide), (m, None), (m, [1.0] * 8)):
        with pytest.raises((TypeError, ValueError)):
            softgen.finish(x, *bad, tune="off")
    strided = array(library, 8, 2)
    strided[:, 0], strided[:, 1] = m, d
    before = count.full
    for _ in range(2):  # copied each time
        assert same(softgen.finish(x, strided[:, 0], strided[:, 1], tune="off"), expected)
    assert count.full == before + 2
    assert same(softgen.finish(x, m, d, tune="off"), expected)
    assert count.full == before + 2


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_an_out_over_the_pair_is_refused_when_warm_too(library: str, count: Count) -> None:
    flat = array(library, 1, 8 * 1000 + 1000)[0]
    x = array(library, 8, 1000)
    first, second = softgen.partial(x, tune="off")
    m, d = flat[7000:7008], flat[8100:8108]
    m[...], d[...] = first, second
    out = flat[:8000].reshape(8, 1000)
    for given in (x * 0, out):
        for _ in range(2):
            if given is out:
                with pytest.raises(ValueError, match="out overlaps maxima"):
                    softgen.finish(x, m, d, out=given, tune="off")
            else:
                softgen.finish(x, m, d, out=given, tune="off")


def test_a_pair_with_a_gradient_is_refused_when_warm_too(count: Count) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(8, 1000, device="cuda")
    m, d = softgen.partial(x, tune="off")
    wants = m.clone().requires_grad_()
    with torch.no_grad():
        for _ in range(3):
            softgen.finish(x, wants, d, tune="off")
    for _ in range(2):
        with pytest.raises(NotSupportedError):
            softgen.finish(x, wants, d, tune="off")
        softgen.finish(x, m, d, tune="off")


@pytest.mark.parametrize("library", ["cupy", "torch"])
@pytest.mark.parametrize("function", ["softmax_lse", "log_softmax_lse", "partial", "finish"])
def test_a_plan_of_pairs_is_warm_from_its_second_call(
    library: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_kernels", {})
    kernel = softgen.plan(function, "float32", 1000, rows=64, tune="off")
    taken: list[Any] = []
    on_dispatch(KernelCalls, taken.append, monkeypatch)
    x = array(library, 64, 1000)
    rest = softgen.partial(x, tune="off") if function == "finish" else ()
    expected = each(kernel(x, *rest))
    for _ in range(3):
        assert all(map(same, each(kernel(x, *rest)), expected))
    assert len(taken) == 1
    if function != "partial":
        out = x * 0
        for form in ((out,), ()):
            found = each(kernel(x, *rest, *form, **({} if form else {"out": out})))
            assert found[0] is out
            assert all(map(same, found, expected))
        assert len(taken) == 2
    with pytest.raises(TypeError, match=f"a kernel of {function} takes x"):
        kernel(x, *rest, x, x)


@pytest.mark.parametrize(("variant", "cols"), VARIANTS)
def test_every_kind_of_launch_has_a_warm_pair(variant: str, cols: int, count: Count) -> None:
    """Clusters, cooperative grids and workspaces, with a second result beside them."""
    x = device_normal(7, cols, DType.FLOAT32)
    full = softgen.softmax(x, return_lse=True, variant=variant)
    for _ in range(3):
        warm = softgen.softmax(x, return_lse=True, variant=variant)
        assert all(map(same, warm, full))
    assert count.warm == 3


def test_pairs_in_a_capture(count: Count) -> None:
    """CuPy may not allocate the second result there; finish has but one, and its place."""
    import cupy

    x = device_normal(9, 1000, DType.FLOAT32)
    y, m, d = cupy.empty_like(x), *softgen.partial(x, tune="off")
    expected = softgen.softmax(x, tune="off")
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        for _ in range(2):
            softgen.softmax(x, out=y, return_lse=True, tune="off")
            softgen.finish(x, m, d, out=y, tune="off")
        stream.begin_capture()
        with pytest.raises(softgen.CaptureError, match="a result cannot be allocated"):
            softgen.softmax(x, out=y, return_lse=True, tune="off")
        with pytest.raises(softgen.CaptureError, match="a result cannot be allocated"):
            softgen.partial(x, tune="off")
        softgen.finish(x, m, d, out=y, tune="off")
        graph = stream.end_capture()
        y[...] = 0
        graph.launch(stream)
    stream.synchronize()
    assert error_of(y, expected) < 4e-6


def test_pairs_in_a_torch_graph(count: Count) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(7, 1000, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        softgen.finish(x, *softgen.partial(x, tune="off"), tune="off")
        softgen.softmax(x, return_lse=True, tune="off")
    graph = torch.cuda.CUDAGraph()
    before = count.full
    with torch.cuda.graph(graph, stream=stream):
        y, lse = softgen.softmax(x, return_lse=True, tune="off")
        z = softgen.finish(x, *softgen.partial(x, tune="off"), tune="off")
    assert count.full == before
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(y, torch.softmax(x, -1))
        torch.testing.assert_close(z, torch.softmax(x, -1))
        torch.testing.assert_close(lse, torch.logsumexp(x, -1))
