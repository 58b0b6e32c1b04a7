"""Dependent launches keep the order of the stream: bit by bit what plain launches give."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

import pytest

import softgen
from softgen.call.kernel import Kernel
from softgen.devices.gpu import dependent
from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.device import current_arch, require_device
from softgen.devices.gpu.launcher import COOPERATIVE, DEPENDENT, STREAM
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.base import NO_PDL, PDL_NEEDS, TRIGGERS, TRIGGERS_FIRST, WAITS
from softgen.strategies.registry import strategy_named
from softgen.strategies.variants import Variant, best_guess

pytestmark = pytest.mark.gpu

# Of each strategy a shape that it is quick at; the last has rows that start anywhere.
SHAPES = {
    "warp": ("float32", 257, 1000),
    "block": ("float32", 128, 1024),
    "cluster": ("bfloat16", 8, 128256),
    "shared": ("bfloat16", 64, 32000),
    "online": ("float32", 128, 5000),
    "safe": ("float32", 64, 2048),
    "split": ("float32", 16, 12672),
    "cooperative": ("bfloat16", 16, 128256),
    "warp of odd rows": ("float32", 333, 1001),
}
LAUNCHES = 400


@pytest.fixture(autouse=True)
def needs_such_launches() -> None:
    if current_arch().compute_capability < PDL_NEEDS:
        pytest.skip("needs sm_90 or later")


def kernel_of(name: str, pdl: int = WAITS) -> Kernel:
    """Return the strategy's best guess at its shape."""
    dtype, rows, cols = SHAPES[name]
    guess = best_guess(Problem.of("softmax", dtype, cols), rows, current_arch(), name.split()[0])
    variant = Variant(guess.problem, dataclasses.replace(guess.strategy, pdl=pdl))
    variant.check(current_arch())
    return Kernel(compile_source(render(variant)))


def start_of(name: str) -> Any:
    """Return random bits of finite numbers, as the kernel's input."""
    import cupy
    import ml_dtypes

    dtype, rows, cols = SHAPES[name]
    values = cupy.random.default_rng(0).standard_normal((rows, cols), dtype="float32")
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def require_the_same(kernel: Kernel, work: Callable[[Kernel], Any]) -> None:
    """Require that some work gives the same with dependent and with plain launches."""
    found = []
    for pdl in (True, False):
        found.append(work(dataclasses.replace(kernel, pdl=pdl)).view("uint8").get())
    dependent_ones, plain_ones = found
    assert (dependent_ones == plain_ones).all()


CASES = [
    (name, pdl)
    for name in SHAPES
    for pdl in (WAITS, TRIGGERS, TRIGGERS_FIRST)
    if pdl == WAITS or strategy_named(name.split()[0]).triggers
]


@pytest.mark.parametrize(("name", "pdl"), CASES)
def test_chains_with_copies_memsets_and_other_kernels_between(name: str, pdl: int) -> None:
    kernel, x = kernel_of(name, pdl), start_of(name)
    cupy = require_device()

    def work(kernel: Kernel) -> Any:
        a, b, c = x.copy(), cupy.empty_like(x), cupy.empty_like(x)
        cupy.cuda.runtime.deviceSynchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            for i in range(LAUNCHES):
                kernel(a, b)
                if i % 3 == 0:  # a copy after it, and one before the next
                    cupy.cuda.runtime.memcpyAsync(c.data.ptr, b.data.ptr, b.nbytes, 3, stream.ptr)
                    cupy.cuda.runtime.memcpyAsync(a.data.ptr, c.data.ptr, c.nbytes, 3, stream.ptr)
                elif i % 5 == 0:
                    cupy.cuda.runtime.memsetAsync(a.data.ptr, 0, 4096, stream.ptr)
                elif i % 7 == 0 and a.dtype == "float32":
                    cupy.multiply(b, 3, out=a)
                kernel(a, a)
                a, b = b, a
        stream.synchronize()
        return cupy.concatenate([a.view("uint8"), b.view("uint8")])

    require_the_same(kernel, work)


@pytest.mark.parametrize(("name", "pdl"), CASES)
def test_graphs_of_chains(name: str, pdl: int) -> None:
    kernel, x = kernel_of(name, pdl), start_of(name)
    cupy = require_device()

    def work(kernel: Kernel) -> Any:
        a, b = x.copy(), cupy.empty_like(x)
        kernel(x, b)
        cupy.cuda.runtime.deviceSynchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            for _ in range(20):
                cupy.cuda.runtime.memsetAsync(a.data.ptr, 0, 512, stream.ptr)
                kernel(a, b)
                kernel(b, a)
            graph = stream.end_capture()
            for _ in range(20):
                graph.launch(stream)
        stream.synchronize()
        return a

    require_the_same(kernel, work)


@pytest.mark.parametrize("pdl", [WAITS, TRIGGERS, TRIGGERS_FIRST])
def test_a_hundred_thousand_launches_in_place(pdl: int) -> None:
    """Each multiplies its input into the next; one that saw too old an input changes all after."""
    kernel, x = kernel_of("block", pdl), start_of("block")
    cupy = require_device()

    def work(kernel: Kernel) -> Any:
        a, b = x.copy(), cupy.empty_like(x)
        for _ in range(10):
            a[:] = x
            for _ in range(5_000):
                kernel(a, b)
                kernel(b, a)
        return a

    require_the_same(kernel, work)


def test_between_operations_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    weights = torch.randn(64, 1024, device="cuda")
    start = torch.randn(128, 64, device="cuda")

    def run(pdl: bool) -> Any:
        x = start.clone()
        sums = torch.zeros(128, device="cuda")
        for _ in range(500):
            y = softgen.softmax(x @ weights, pdl=pdl)
            sums += softgen.logsumexp(y, pdl=pdl)
            x = (y @ weights.t()).mul_(0.5).add_(start)
        return torch.cat([x.flatten(), sums])

    run(True), run(False)  # tuned before
    assert torch.equal(run(True), run(False))


def test_graphs_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(128, 1024, device="cuda")
    softgen.softmax(x), softgen.softmax(x, pdl=False)
    found = []
    for pdl in (True, False):
        graph, y = torch.cuda.CUDAGraph(), x.clone()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            for _ in range(30):
                softgen.softmax(y, out=y, pdl=pdl)
                y *= 2
        for _ in range(20):
            graph.replay()
        torch.cuda.synchronize()
        found.append(y.clone())
    assert torch.equal(*found)


def test_two_streams_that_wait_for_each_other() -> None:
    cupy = require_device()
    kernel, x = kernel_of("block", TRIGGERS_FIRST), start_of("block")

    def work(kernel: Kernel) -> Any:
        a, b = x.copy(), cupy.empty_like(x)
        cupy.cuda.runtime.deviceSynchronize()
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        for i in range(LAUNCHES):
            mine, other = streams[i % 2], streams[1 - i % 2]
            with mine:
                kernel(a, b)
                kernel(b, a)
                other.wait_event(mine.record())
        for stream in streams:
            stream.synchronize()
        return a

    require_the_same(kernel, work)


def test_two_threads_that_launch_one_kernel() -> None:
    """A launch's configuration is its own: two threads may be between its making and its launch."""
    cupy = require_device()
    kernel, x = kernel_of("block", WAITS), start_of("block")
    wanted = x.copy()
    for _ in range(LAUNCHES):
        kernel(wanted, wanted)
    wanted = wanted.get()
    device, results = cupy.cuda.runtime.getDevice(), []

    def run() -> None:
        with cupy.cuda.Device(device), cupy.cuda.Stream(non_blocking=True) as stream:
            a = x.copy()
            for _ in range(LAUNCHES):
                kernel(a, a)
            stream.synchronize()
            results.append(a.get())

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all((result == wanted).all() for result in results)


def kinds(kernel: Kernel, pdl: bool = True) -> list[int]:
    """Return the attributes of a launch."""
    values, _, _, (_, attributes, _) = kernel.loaded.launcher(8, pdl=pdl).make()
    assert len(values) == 2 + 2 + 7
    assert values[STREAM] == 0
    return list(attributes[:: len(attributes) // values[-1]]) if values[-1] else []


def test_the_attribute_is_set_where_the_text_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, plain = kernel_of("block"), kernel_of("block", NO_PDL)
    together = kernel_of("cooperative")
    assert kinds(waiting) == [DEPENDENT]
    assert kinds(together) == [COOPERATIVE, DEPENDENT]
    assert kinds(plain) == []
    assert kinds(waiting, pdl=False) == []
    monkeypatch.setenv("SOFTGEN_PDL", "0")
    assert kinds(waiting) == []
    assert kinds(together) == [COOPERATIVE]


def test_a_driver_that_takes_no_such_launch_gets_plain_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is asked once; a launch that it refuses, here of too large a block, breaks nothing."""
    kernel, x = kernel_of("block", WAITS), start_of("block")
    monkeypatch.setattr(dependent, "_known", {})
    monkeypatch.setattr("softgen.devices.gpu.launcher.DEPENDENT", 10_000)  # no attribute
    assert kinds(kernel) == []
    assert set(dependent._known.values()) == {False}
    wanted = dataclasses.replace(kernel, pdl=False)(x)
    assert (kernel(x) == wanted).all()


def test_a_planned_kernel_may_be_met_first_in_a_capture() -> None:
    """Asking the driver captures on another stream, and must not end the caller's."""
    cupy = require_device()
    kernel, x = kernel_of("block", WAITS), start_of("block")
    wanted, y = kernel(x), cupy.zeros_like(x)
    fresh = Kernel(kernel.loaded)
    dependent._known.clear()
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        stream.begin_capture()
        fresh(x, y)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert (y == wanted).all()
    assert set(dependent._known.values()) == {True}
