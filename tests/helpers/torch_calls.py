"""softgen's calls on CPU tensors: everything is real but the driver, and the kernel.

A launch gets words, as a GPU would, and computes by the function's reference in float64 what lies
at these addresses. What is allocated for a result is poisoned first.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen.call import full, means
from softgen.call import library as call_library
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm import WarmCalls
from softgen.spec.dtypes import DType, FloatType
from softgen.spec.exact import exact_results
from softgen.spec.layouts import Strided
from softgen.spec.operands import Extent, Operand
from softgen.spec.problem import Problem
from softgen.spec.storage import numpy_dtype

CONTEXT, STREAM = 0x555, 5


class World:
    """What happened to kernels.

    Attributes:
        launches: the names of the functions that were launched, each time.
        chosen: those for which a kernel was asked, on the full path.
    """

    def __init__(self) -> None:
        self.launches: list[str] = []
        self.chosen: list[str] = []

    def kernel_for(self, problem: Problem, *_: Any) -> FakeKernel:
        self.chosen.append(problem.function.name)
        return FakeKernel(self, problem)

    def small_launch_of(
        self, name: str, kind: FloatType, operands: int, threads: int, device: int
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
            *addresses, is_mean, rows = words
            types, sizes = (of, of, loss_type, of), (rows, rows, 1, 1)
            losses, lse, loss, divisor = map(at, addresses, types, sizes)
            counts = (lse != -torch.inf) | (losses != 0)
            divisor[:] = counts.sum() if is_mean else 1
            loss[:] = losses.sum() / divisor

        def at(address: int, dtype: Any, size: int) -> Any:
            memory: Any = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address)
            return torch.frombuffer(memory, dtype=dtype)

        return launch


class CpuLibrary(TorchLibrary):
    """CPU tensors as if they were on a GPU."""

    def result_maker(self, shape: tuple[int, ...], dtype: FloatType) -> tuple[Any, Any]:
        element = self._torch_dtypes[dtype]

        def make() -> Any:
            return self.torch.full(shape, -77.0, dtype=element)

        return make, element

    def empty(self, shape: tuple[int, ...], dtype: FloatType, device: int) -> Any:
        return self.result_maker(shape, dtype)[0]()


class FakeKernel:
    """A loaded kernel of a problem."""

    def __init__(self, world: World, problem: Problem) -> None:
        self.world, self.problem = world, problem

    def launcher(
        self, rows: int, library: Any, *, pdl: bool = True, fixed: Mapping[int, int] | None = None
    ) -> FakeLaunch:
        return FakeLaunch(self.world, self.problem, rows, fixed or {})


class FakeLaunch:
    """A launch that computes what its words say."""

    def __init__(self, world: World, problem: Problem, rows: int, fixed: Mapping[int, int]) -> None:
        self.world, self.problem, self.rows, self.fixed = world, problem, rows, fixed
        self.prepare = None
        self.idle: list[Any] = []
        self.take, self.put_back = self.idle.pop, self.idle.append

    def make(self) -> Any:
        count = len(self.problem.operands)
        values = [self.fixed.get(i, 0) for i in range(count)] + [self.rows, 0, *[0] * 7]
        return values, lambda: self(values[:count], values[-3]), [], None

    def __call__(self, words: list[int], stream: int) -> int:
        assert stream == STREAM
        problem = self.problem
        self.world.launches.append(problem.function.name)
        given = dict(zip((each.name for each in problem.operands), words, strict=True))
        inputs = [np.array(self._input(each, given)) for each in problem.inputs]
        results = exact_results(problem, inputs, wide=problem.compute_dtype is DType.FLOAT64)
        for operand, result in zip(problem.results, results, strict=True):
            memory = self._memory(operand, given)
            if operand.extent is Extent.ELEMENT and not isinstance(problem.layout, Strided):
                result = problem.layout.in_memory(result)
            memory[...] = result.reshape(memory.shape)
        return 0

    def _input(self, operand: Operand, given: Mapping[str, int]) -> Any:
        """Return an input of float64, or of integers: (rows, columns) where it has elements."""
        array = self._memory(operand, given)
        if operand.extent is Extent.ELEMENT:
            array = self.problem.layout.from_memory(array, self.rows, self.problem.cols)
        return array.astype("float64") if isinstance(operand.dtype, DType) else array

    def _memory(self, operand: Operand, given: Mapping[str, int]) -> Any:
        """Return an operand as it lies in memory."""
        problem, rows, word = self.problem, self.rows, given[operand.name]
        kind, size = numpy_dtype(operand.dtype), operand.dtype.itemsize
        if operand.extent is Extent.NUMBER:
            return np.array([word], "uint64").view("uint8")[:size].view(kind)[0]
        if operand.extent is Extent.BROADCAST:
            shape: tuple[int, ...] = (given[f"{operand.name}_count"],)
            if f"{operand.name}_stride" in given:  # up to the end of the last line
                terms = (("count", "stride"), ("inner", "step"))
                last = [
                    (given[f"{operand.name}_{n}"] - 1) * given[f"{operand.name}_{s}"]
                    for n, s in terms
                ]
                shape = (sum(last) + problem.cols,)
        else:
            shape = operand.shape(rows, problem.cols)
        steps = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        layout = problem.layout
        if operand.extent is Extent.ELEMENT and isinstance(layout, Strided):
            inner = [given[name] for name in layout.sizes]
            strides = [given[name] for name in layout.strides(operand.name)]
            steps = [*(step - (step >> 63 << 64) for step in strides), 1]
            shape = (rows // int(np.prod(inner, dtype=int)), *inner, problem.cols)
        low = sum(min(0, (n - 1) * step) for n, step in zip(shape, steps, strict=True)) * size
        high = sum(max(0, (n - 1) * step) for n, step in zip(shape, steps, strict=True)) * size
        memory: Any = (ctypes.c_uint8 * (high - low + size)).from_address(word + low)
        return np.ndarray(shape, kind, memory, -low, tuple(step * size for step in steps))


def on_cpu(monkeypatch: pytest.MonkeyPatch) -> World:
    """Let softgen's calls take CPU tensors, and return what happens to kernels."""
    import torch

    from softgen.call import eager
    from softgen.torch import patching

    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    library, world = CpuLibrary(), World()

    driver = SimpleNamespace(ctxGetCurrent=lambda: CONTEXT)
    device = SimpleNamespace(cuda=SimpleNamespace(driver=driver, runtime=SimpleNamespace()))
    driver_of: Callable[[], Any] = lambda: device  # noqa: E731
    device.cuda.runtime.streamIsCapturing = lambda stream: False
    for name, module in list(sys.modules.items()):
        if name.startswith(("softgen.call.", "softgen.torch.")) and hasattr(
            module, "require_device"
        ):
            monkeypatch.setattr(module, "require_device", driver_of)
    monkeypatch.setattr(call_library, "_torch_library", lambda: library)
    monkeypatch.setattr(eager, "DEVICE", "cpu")
    monkeypatch.setattr(patching, "KEY", "CPU")
    keys = ("CPU", "ADInplaceOrView", "AutogradCPU", "AutocastCPU")
    monkeypatch.setattr(eager, "SERVED", eager._set_of(*keys))
    for each in (full, means):
        monkeypatch.setattr(each, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(means, "launch_of", world.small_launch_of)
    monkeypatch.setattr(full, "kernel_for", world.kernel_for)
    monkeypatch.setattr(full, "serves_views", lambda *_: True)
    _forget()
    return world


def _forget() -> None:
    """Forget the requests that were seen: a test before had a world of its own."""
    from softgen.torch import plain, plain_loss, plain_rows, quick

    full.calls_of.cache_clear()
    quick.tracked_by.cache_clear()
    for cached in (plain_loss.loss_of, plain_rows.entropy_of, plain_rows.log_probs_of):
        cached.cache_clear()
    for name, module in list(sys.modules.items()):
        if name.startswith(("softgen.call.", "softgen.torch.")):
            for found in vars(module).values():
                for each in (found, getattr(found, "calls", None)):
                    if isinstance(each, WarmCalls):
                        each.clear()
                        each.entries.clear()
                        each.views.clear()
                if isinstance(found, quick.Quick | plain.Seen):
                    found.forget()
