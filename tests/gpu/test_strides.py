"""Views on the GPU: right, without a copy, and what lies between their rows is left alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.call.dispatch import FunctionCalls, calls_of
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.layouts import Strided
from softgen.problems.numerics import numpy_dtype
from softgen.verify.matrix import matrix
from softgen.verify.verify import verify
from tests.gpu.test_softmax import as_torch
from tests.helpers.device_reference import device_normal, error_over_bound

pytestmark = pytest.mark.gpu

# Of an array (6, 4, 128, 4096): each a view, for CuPy and PyTorch alike.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "the first columns": lambda b: b[..., :1000],
    "the first columns, odd": lambda b: b[..., :1001],
    "columns within, off 16 bytes": lambda b: b[..., 3:1003],
    "every second row": lambda b: b[:, :, ::2],
    "one of a batch's": lambda b: b[:, 1],
    "a slice of a batch": lambda b: b[:, 1:3],
    "a slice of a batch, its columns too": lambda b: b[:, 1:3, :, :2048],
    "two axes": lambda b: b[:, :2, ::2],
    "three axes": lambda b: b[::2, ::3, ::2, :512],
    "outer axes that are swapped": lambda b: b.swapaxes(0, 1),
    "long rows": lambda b: b.reshape(96, 131072)[:, :131000],
    "a few columns": lambda b: b[..., 5:38],
}
SHAPE = (6, 4, 128, 4096)
WORKSPACE = 1 << 20  # bytes at most, of a kernel that shares rows among blocks
POISON = 77.0


def array(library: str, dtype: DType = DType.FLOAT32) -> Any:
    x = device_normal(int(np.prod(SHAPE[:-1])), SHAPE[-1], dtype).reshape(SHAPE)
    return x if library == "cupy" else as_torch(x)


def on_cupy(x: Any) -> Any:
    import cupy

    if isinstance(x, cupy.ndarray):
        return cupy.ascontiguousarray(x)
    if str(x.dtype) == "torch.bfloat16":
        import torch

        bits = cupy.from_dlpack(x.contiguous().view(torch.int16))
        return bits.view(numpy_dtype(DType.BFLOAT16))
    return cupy.from_dlpack(x.contiguous())


def require_softmax(x: Any, y: Any, function: str = "softmax") -> None:
    """x and y are of any shape and library."""
    rows, results = on_cupy(x), on_cupy(y)
    out = DType.of(results.dtype.name)
    assert error_over_bound(results, rows, Function.of(function), out) <= 1


@contextlib.contextmanager
def allocations(library: str) -> Iterator[list[int]]:
    """Give the sizes in bytes of what the library allocates; of PyTorch the peak alone."""
    import cupy

    sizes: list[int] = []
    if library == "cupy":

        class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc]
            name = "sizes"

            def malloc_preprocess(self, **found: Any) -> None:
                sizes.append(found["size"])

        with Hook():
            yield sizes
    else:
        import torch

        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        yield sizes
        if torch.cuda.max_memory_allocated() > before:
            sizes.append(torch.cuda.max_memory_allocated() - before)


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_view_is_read_where_it_lies(library: str, name: str) -> None:
    x = VIEWS[name](array(library))
    y = softgen.softmax(x, tune="off")
    require_softmax(x, y)
    for _ in range(2):
        with allocations(library) as sizes:
            again = softgen.softmax(x, tune="off")
        size = int(np.prod(x.shape)) * 4
        assert len(sizes) == 1
        assert size <= sizes[0] < size + (2 << 20)  # PyTorch rounds to 2 MiB
        assert (again == y).all()
        del again


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_view_is_written_where_it_lies(library: str, name: str) -> None:
    x, memory = VIEWS[name](array(library)), array(library)
    memory[...] = POISON
    out = VIEWS[name](memory)
    for _ in range(3):  # by the full path, then warm
        out[...] = 0
        with allocations(library) as sizes:
            assert softgen.softmax(x, out=out, tune="off") is out
        assert sum(sizes) <= WORKSPACE
        require_softmax(x, out)
    out[...] = POISON
    assert (memory == POISON).all()


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_view_in_place(library: str, name: str) -> None:
    memory = array(library)
    before, x = array(library), VIEWS[name](memory)
    with allocations(library) as sizes:
        softgen.log_softmax(x, out=x, tune="off")
    assert sum(sizes) <= WORKSPACE
    require_softmax(VIEWS[name](before), x, "log_softmax")
    VIEWS[name](before)[...] = 0
    x[...] = 0
    assert (memory == before).all()


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("name", ["the first columns, odd", "two axes", "three axes"])
def test_every_dtype_and_function(dtype: DType, name: str) -> None:
    x = VIEWS[name](array("cupy", dtype))
    whole = x.copy()
    calls: list[Callable[[Any], Any]] = [
        lambda each: softgen.softmax(each, tune="off"),
        lambda each: softgen.logsumexp(each, tune="off"),
        lambda each: softgen.finish(each, *softgen.partial(each, tune="off"), tune="off"),
        lambda each: softgen.log_softmax(each, return_lse=True, tune="off")[0],
        lambda each: softgen.softmax_backward(each, softgen.softmax(each), tune="off"),
    ]
    for call in calls:
        found, wanted = (call(each).astype("float64") for each in (x, whole))
        tolerance = {2: 2.0**-6, 4: 1e-5, 8: 1e-12}[dtype.itemsize]
        assert (abs(found - wanted) <= tolerance * (1 + abs(wanted))).all()


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_x_and_its_result_in_turns(library: str) -> None:
    memory = array(library)
    halves = [
        (memory[:, :, ::2], memory[:, :, 1::2]),
        (memory[..., :2048], memory[..., 2048:]),
        (memory[:, :2], memory[:, 2:]),
    ]
    for x, out in halves:
        for _ in range(2):
            softgen.softmax(x, out=out, tune="off")
        require_softmax(x, out)
    with pytest.raises(ValueError, match="out overlaps x without being x"):
        softgen.softmax(memory[..., :2048], out=memory[..., 2047:4095])


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_a_second_call_is_warm(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dispatch, taken = FunctionCalls.dispatch, []

    def counted(calls: FunctionCalls, *given: Any) -> Any:
        taken.append(given)
        return dispatch(calls, *given)

    monkeypatch.setattr(FunctionCalls, "dispatch", counted)
    monkeypatch.setattr(softgen.call.api, "_softmax", FunctionCalls("softmax"))
    calls_of.cache_clear()
    memory = array(library)
    for x in (memory[:3, :, :, :1000], memory[3:, :, :, 8:1008]):
        for _ in range(2):
            require_softmax(x, softgen.softmax(x, tune="off"))
    assert len(taken) == 1
    softgen.softmax(memory[:3, :, :, 1:1001], tune="off")
    assert len(taken) == 2


@pytest.mark.parametrize("name", VIEWS)
def test_a_batch_invariant_call_has_the_bits_of_contiguous_rows(name: str) -> None:
    x = VIEWS[name](array("cupy", DType.FLOAT16))
    found = softgen.softmax(x, batch_invariant=True)
    assert (found == softgen.softmax(x.copy(), batch_invariant=True)).all()


def test_a_plan_for_views() -> None:
    memory = array("cupy")
    kernel = softgen.plan("softmax", "float32", 4096, rows=3072, tune="off", strided=3)
    for name in ("every second row", "two axes", "outer axes that are swapped"):
        x = VIEWS[name](memory)
        for _ in range(2):
            require_softmax(x, kernel(x))
    require_softmax(memory, kernel(memory))


def test_a_view_in_a_graph() -> None:
    import cupy

    memory = array("cupy")
    x, out = memory[..., :2048], memory[..., 2048:]
    softgen.softmax(x, out=out, tune="off")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        softgen.softmax(x, out=out, tune="off")
        graph = stream.end_capture()
    cupy.cuda.runtime.deviceSynchronize()
    out[...] = 0
    cupy.cuda.runtime.deviceSynchronize()
    graph.launch(stream)
    stream.synchronize()
    require_softmax(x, out)


def test_kernels_of_views_are_verified() -> None:
    names = [v.name for v in matrix(False) if isinstance(v.problem.layout, Strided)]
    report = verify(device="cuda", variants=names)
    assert report.failures == []
    assert report.checked == len(names) > 40
