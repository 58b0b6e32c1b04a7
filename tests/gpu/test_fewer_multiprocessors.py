"""Streams and contexts that have some of the SMs only: every shape is right, and nothing hangs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import softgen
from softgen.devices.gpu.device import arch_of
from softgen.problems.dtypes import DType
from softgen.problems.functions.softmax import SOFTMAX
from softgen.strategies.registry import strategy_named
from tests.helpers.device_reference import device_normal, error_over_bound

pytestmark = pytest.mark.gpu

# Rows of clusters of every size, of groups of resident blocks, and beyond what they hold.
SHAPES = [
    (DType.FLOAT32, 64, 8192),
    (DType.FLOAT32, 64, 32768),
    (DType.FLOAT32, 128, 131072),
    (DType.BFLOAT16, 64, 128256),
    (DType.BFLOAT16, 7, 151937),
    (DType.FLOAT32, 40, 262144),
    (DType.FLOAT32, 5, 2097152),
    (DType.FLOAT32, 3, 4194304),
    (DType.FLOAT32, 2, 16777216),
    (DType.FLOAT64, 3, 1048576),
]
NAMED = ["cluster", "cooperative", "split", "block"]


@dataclass(frozen=True)
class Green:
    """A green context: its context, and a stream of it."""

    context: Any
    stream: Any


def driver() -> Any:
    return pytest.importorskip("cuda.bindings.driver")


def checked(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    assert status == driver().CUresult.CUDA_SUCCESS, status
    return values[0] if len(values) == 1 else values


@contextlib.contextmanager
def green_context(multiprocessors: int) -> Iterator[Green]:
    """Make one with that many SMs; they may be any, so that few large clusters fit."""
    import cupy

    cupy.cuda.runtime.free(0)
    d = driver()
    kind = d.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    everything = checked(d.cuDeviceGetDevResource(d.CUdevice(0), kind))
    # IGNORE_SM_COSCHEDULING: else the count is rounded up to whole groups of 8.
    flag = 1 if multiprocessors % 8 else 0
    groups, *_ = checked(d.cuDevSmResourceSplitByCount(1, everything, flag, multiprocessors))
    assert groups[0].sm.smCount == multiprocessors
    description = checked(d.cuDevResourceGenerateDesc([groups[0]], 1))
    created = d.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
    green = checked(d.cuGreenCtxCreate(description, d.CUdevice(0), created))
    flags = d.CUstream_flags.CU_STREAM_NON_BLOCKING
    stream = checked(d.cuGreenCtxStreamCreate(green, flags, 0))
    before = checked(d.cuCtxGetCurrent())
    try:
        yield Green(checked(d.cuCtxFromGreenCtx(green)), stream)
    finally:
        d.cuCtxSetCurrent(before)
        cupy.cuda.runtime.deviceSynchronize()
        checked((*d.cuStreamDestroy(stream), None))
        checked((*d.cuGreenCtxDestroy(green), None))


def as_cupy(stream: Any) -> Any:
    """Return a stream of the driver's as CuPy's, by what this version of CuPy has for it."""
    import cupy

    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, int(stream)

    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(Foreign())
    return cupy.cuda.ExternalStream(int(stream))


@pytest.mark.parametrize("multiprocessors", [16, 64, 130])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s[0].short}_{s[1]}x{s[2]}")
def test_a_stream_of_a_green_context(shape: tuple[DType, int, int], multiprocessors: int) -> None:
    import cupy

    dtype, rows, cols = shape
    x = device_normal(rows, cols, dtype)
    with green_context(multiprocessors) as green:
        cupy.cuda.runtime.deviceSynchronize()
        for _ in range(3):  # by the full path, and what it remembered
            with as_cupy(green.stream) as stream:
                y = softgen.softmax(x, tune="off")
                stream.synchronize()
            assert error_over_bound(y, x, SOFTMAX, dtype) <= 1
        y = softgen.softmax(x, tune="off")  # the same request on all SMs
        assert error_over_bound(y, x, SOFTMAX, dtype) <= 1


@pytest.mark.parametrize("multiprocessors", [16, 64, 130])
def test_a_green_context_that_is_current(multiprocessors: int) -> None:
    import cupy

    d = driver()
    inputs = [(device_normal(rows, cols, dtype), dtype) for dtype, rows, cols in SHAPES]
    with green_context(multiprocessors) as green:
        cupy.cuda.runtime.deviceSynchronize()
        whole = checked(d.cuCtxGetCurrent())
        for x, dtype in inputs:
            y = cupy.empty_like(x)
            cupy.cuda.runtime.deviceSynchronize()
            checked((*d.cuCtxSetCurrent(green.context), None))
            softgen.softmax(x, out=y, tune="off")
            softgen.softmax(x, out=y, tune="off")
            assert int(checked(d.cuCtxGetCurrent())) == int(green.context)  # as it was
            cupy.cuda.runtime.streamSynchronize(0)
            # The default streams of two contexts do not wait for each other.
            checked((*d.cuCtxSetCurrent(whole), None))
            assert error_over_bound(y, x, SOFTMAX, dtype) <= 1


@pytest.mark.parametrize("multiprocessors", [16, 64, 130])
def test_the_green_contexts_of_pytorch(multiprocessors: int) -> None:
    torch = pytest.importorskip("torch")
    contexts = pytest.importorskip("torch.cuda.green_contexts")
    if multiprocessors % 8:
        multiprocessors -= multiprocessors % 8
    x = torch.randn(40, 262144, device="cuda")
    torch.cuda.synchronize()
    context = contexts.GreenContext.create(num_sms=multiprocessors, device_id=0)
    context.set_context()
    try:
        found = [softgen.softmax(x[:, :n].contiguous(), tune="off") for n in (8192, 131072, 262144)]
        torch.cuda.current_stream().synchronize()
    finally:
        context.pop_context()
    for y in found:
        torch.testing.assert_close(y, torch.softmax(x[:, : y.shape[1]], -1))


@pytest.mark.parametrize("multiprocessors", [16, 130])
@pytest.mark.parametrize("name", NAMED)
def test_a_kernel_asked_for_by_name(name: str, multiprocessors: int) -> None:
    """It runs, on fewer rows at once if it has to, or says why it cannot."""
    import cupy

    x = device_normal(20, 16384 if name == "block" else 131072, DType.FLOAT32)
    kernel = softgen.plan("softmax", "float32", x.shape[1], rows=20, variant=name)
    assert isinstance(kernel.variant.strategy, strategy_named(name))
    with green_context(multiprocessors) as green:
        cupy.cuda.runtime.deviceSynchronize()
        with as_cupy(green.stream) as stream:
            if kernel.variant.launch.cluster_size == 16 and multiprocessors == 16:
                with pytest.raises(softgen.LaunchError, match="needs more SMs at once"):
                    kernel(x)
                return
            y = kernel(x)
            stream.synchronize()
        assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1


def test_tuning_measures_all_of_the_device(own_cache: Any) -> None:
    """A choice is kept for the device, so it must not be that of a part."""
    import cupy

    x = device_normal(2048, 640, DType.FLOAT32)
    with green_context(16) as green:
        cupy.cuda.runtime.deviceSynchronize()
        checked((*driver().cuCtxSetCurrent(green.context), None))
        softgen.softmax(x, out=x)
        assert int(checked(driver().cuCtxGetCurrent())) == int(green.context)
    from softgen.tuning import cache

    (entry,) = cache.entries()
    floor = 2 * x.nbytes / 5e6  # us at 5 TB/s
    assert entry.timings[0].microseconds < 132 / 16 * floor
    assert dict(entry.key.environment)["multiprocessors"] == arch_of(0).multiprocessors
