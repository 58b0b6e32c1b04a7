"""softgen's calls on CPU tensors: everything is real but the driver, and the kernel.

A launch gets words, as a GPU would, and computes by the function's reference in float64 what lies
at these addresses. What is allocated for a result is poisoned first.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from softgen.call import dispatch, means
from softgen.call import library as call_library
from softgen.call.runner import Calls
from softgen.problems.dtypes import DType, ElementType, FloatType
from softgen.problems.problem import Problem
from tests.helpers.driver import STREAM, FakeDriver, FakeKernel


class World:
    """What happened to kernels.

    Attributes:
        launches: the names of the functions that were launched, each time.
        chosen: those for which a kernel was asked, on the full path.
        modes: how each was chosen: a `tune`, or INVARIANT.
        kernel: makes the kernel of a problem for a driver.
    """

    kernel: Callable[[Problem, FakeDriver], FakeKernel] = FakeKernel

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.launches = self.driver.names
        self.chosen: list[str] = []
        self.modes: list[str] = []

    def kernel_for(
        self, problem: Problem, rows: int, device: int, mode: str, *_: Any
    ) -> FakeKernel:
        self.chosen.append(problem.function.name)
        self.modes.append(mode)
        return self.kernel(problem, self.driver)

    def small_launch_of(
        self, name: str, kind: FloatType, operands: int, threads: int, device: int, blocks: int
    ) -> Callable[[Sequence[int], int], None]:
        """Return what a kernel of means.py is, in PyTorch's arithmetic."""
        import torch

        loss_type = getattr(torch, kind.value)
        of = torch.float64 if kind is DType.FLOAT64 else torch.float32

        def launch(words: Sequence[int], stream: int) -> None:
            assert (stream, len(words)) == (STREAM, operands)
            self.launches.append(name)
            if name == "share":
                upstream, divisor, made = map(at, words, (loss_type, of, of), (1, 1, 1))
                made[:] = upstream.to(of) / divisor
                return
            if name == "share_weighed":
                *addresses, rows = words
                kinds = (loss_type, of, of, of)
                upstream, divisor, weights, made = map(at, addresses, kinds, (1, 1, rows, rows))
                made[:] = upstream.to(of) / divisor * weights
                return
            if name == "weigh_rows":
                *addresses, is_wide, cols, is_mean, rows = words
                integers = torch.int64 if is_wide else torch.int32
                of_seven = (of, of, of, integers, of, loss_type, of)
                found = map(at, addresses, of_seven, (rows, rows, cols, rows, rows, 1, 1))
                losses, lse, weight, target, weights, loss, divisor = found
                counts = (lse != -torch.inf) | (losses != 0)
                weights[:] = weight[target.clip(0, cols - 1).long()] * counts
                divisor[:] = weights.sum() if is_mean else 1
                loss[:] = (losses * weights).sum() / divisor
                return
            if name == "scale":
                *addresses, count = words
                values, factor = map(at, addresses, (loss_type, of), (count, 1))
                values.mul_(factor)
                return
            *addresses, is_mean, rows = words
            types, sizes = (of, of, loss_type, of), (rows, rows, 1, 1)
            losses, lse, loss, divisor = map(at, addresses, types, sizes)
            counts = (lse != -torch.inf) | (losses != 0)
            divisor[:] = counts.sum() if is_mean else 1
            loss[:] = losses.sum() / divisor

        def at(address: int, dtype: Any, size: int) -> Any:
            memory: Any = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address)
            return torch.frombuffer(memory, dtype=dtype) if size else torch.empty(0, dtype=dtype)

        return launch


def cpu_library() -> Any:
    """Return PyTorch's library with CPU tensors as if they were on a GPU."""
    import torch

    from softgen.call.torch_library import TorchLibrary

    class CpuLibrary(TorchLibrary):
        def maker(self, shape: tuple[int, ...], dtype: ElementType) -> Callable[[], Any]:
            return lambda: self.empty(shape, dtype, -1)

        def empty(self, shape: tuple[int, ...], dtype: ElementType, device: int) -> Any:
            return torch.full(shape, -77.0, dtype=self._torch_dtypes[dtype])

    return CpuLibrary()


def on_cpu(monkeypatch: pytest.MonkeyPatch) -> World:
    """Let softgen's calls take CPU tensors, and return what happens to kernels."""
    import torch

    from softgen.call import eager
    from softgen.torch import patching

    torch.set_num_threads(1)  # tests run in a process a core
    world = World()
    stream_of: Callable[[int], int] = lambda device: world.driver.stream  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", stream_of, raising=False)
    library = cpu_library()
    device = world.driver.serve(monkeypatch)
    for name in filter(_OURS, list(sys.modules)):
        if hasattr(sys.modules[name], "require_device"):
            monkeypatch.setattr(sys.modules[name], "require_device", lambda: device)
    monkeypatch.setattr(call_library, "_torch_library", lambda: library)
    monkeypatch.setattr(eager, "DEVICE", "cpu")
    monkeypatch.setattr(patching, "KEY", "CPU")
    keys = ("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU")
    monkeypatch.setattr(eager, "OTHERS", ~eager._set_of(*keys))
    for each in (dispatch, means):
        monkeypatch.setattr(each, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(means, "launch_of", world.small_launch_of)
    monkeypatch.setattr(dispatch, "kernel_for", world.kernel_for)
    monkeypatch.setattr(dispatch, "serves_views", lambda *_: True)
    _forget()
    return world


def _forget() -> None:
    """Forget the requests that were seen: a test before had a world of its own."""
    from softgen.torch import linear, losses

    dispatch.calls_of.cache_clear()
    losses._small.cache_clear()
    linear._scaler.cache_clear()
    for each in _kept(tuple(filter(_OURS, sys.modules))):
        each.clear()
        each.entries.clear()


_OURS = re.compile(r"softgen\.(call|torch)\.").match


@functools.cache
def _kept(modules: Sequence[str]) -> list[Calls]:
    """Return the calls that modules keep, which are made where these are imported."""
    found = [each for name in modules for each in vars(sys.modules[name]).values()]
    found += [getattr(each, name, None) for each in found for name in ("calls", "untracked_calls")]
    return [each for each in found if isinstance(each, Calls)]
