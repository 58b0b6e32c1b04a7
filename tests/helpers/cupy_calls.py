"""softgen's calls on NumPy's memory, as CuPy's arrays: all is real but the driver and its kernels.

What is allocated for a result is poisoned first.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from softgen.call import dispatch
from softgen.call import library as call_library
from softgen.call.cupy_library import CupyLibrary
from softgen.call.dispatch import FunctionCalls
from softgen.call.kernel import KernelCalls
from softgen.call.runner import Calls
from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.problem import Problem
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, best_guess
from tests.helpers.driver import POISON, FakeDriver, FakeKernel

ARCH = arch_named(DEFAULT_ARCH)


class Base:
    """As CuPy's arrays have one, whose __new__ is the quick one."""

    def __new__(cls) -> Any:
        return np.ndarray.__new__(cls, (0,), np.uint8)  # type: ignore[type-var]


class CupyArray(Base, np.ndarray):
    """An array at its real address, which tells of itself what CuPy's does."""

    world: World
    number = 0  # of its device
    shift = 0  # of the address that it tells

    def _init(self, shape: tuple[int, ...], dtype: Any, *nothing: None) -> None:
        assert nothing == (None, None, None)
        fresh = self.world.empty(shape, dtype)
        self.resize(fresh.nbytes, refcheck=False)
        self.dtype = fresh.dtype  # type: ignore[misc]
        self.resize(shape, refcheck=False)
        self[...] = fresh
        self.shift = self.world.off

    def copy(self, order: Any = None) -> Any:
        if order is not None:  # softgen asks for one
            self.world.copied += 1
        return super().copy(order or "C")

    @property
    def data(self) -> Any:
        address = self.__array_interface__["data"][0] + self.shift
        return SimpleNamespace(ptr=address, device_id=self.number)

    @property
    def device(self) -> Any:
        return SimpleNamespace(id=self.number)

    @property
    def _c_contiguous(self) -> bool:
        return self.flags.c_contiguous


class Interface:
    """An array of another library: all that it tells is where it lies."""

    __cuda_array_interface__: ClassVar[dict[str, Any]] = {}

    def __init__(self, array: Any) -> None:
        self.array = array


def cupy_array(x: Any, *, off: int = 0) -> Any:
    """Return a copy that starts so many bytes behind a 16-byte boundary."""
    x = np.asarray(x)
    memory = np.zeros(x.nbytes + 32, np.uint8)
    start = -memory.__array_interface__["data"][0] % 16 + off
    made = memory[start:][: x.nbytes].view(x.dtype).reshape(x.shape).view(CupyArray)
    made[...] = x
    return made


def drawn(*shape: int, kind: Any = "f4", off: int = 0, seed: int = 0) -> Any:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * 3
    return cupy_array(values.astype(kind), off=off)


def zeros(*shape: int) -> Any:
    return cupy_array(np.zeros(shape, "f4"))


class World:
    """CuPy and the GPU of a test.

    Attributes:
        dispatched: calls that had no entry, as they were asked for.
        variants: for which a kernel was asked.
        made: arrays that were allocated.
        copied: inputs that were.
        off: bytes from a 16-byte boundary to what is allocated.
        closed: whether what has no entry is only counted, and answered by "dispatch".
    """

    def __init__(self) -> None:
        self.driver = FakeDriver()
        self.dispatched: list[tuple[Any, ...]] = []
        self.variants: list[Variant] = []
        self.made = self.copied = self.off = 0
        self.closed = False

    def __call__(
        self, function: str, x: Any, *rest: Any, axis: Any = -1, out: Any = None, **options: Any
    ) -> Any:
        """Return the result of a call; the options are dtype, tune, variant, batch_invariant."""
        asked = (options.get(name) for name in ("dtype", "tune", "variant", "batch_invariant"))
        return dispatch.calls_of(function)[type(x)](x, out, axis, *asked, rest)

    @property
    def cold(self) -> int:
        """How many calls had no entry."""
        return len(self.dispatched)

    # What softgen asks of CuPy's module

    ndarray = CupyArray

    def empty(self, shape: Any, dtype: Any) -> Any:
        self.made += 1
        size = np.dtype(dtype).itemsize
        return cupy_array(np.full(shape, POISON if size > 1 else 77, dtype), off=self.off)

    def ascontiguousarray(self, x: Any) -> Any:
        self.copied += 1
        return cupy_array(x)

    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(x, shape, subok=True)

    # What it asks of the GPU

    def kernel_for(
        self, problem: Problem, rows: int, device: int, mode: str, choice: Any, library: Any
    ) -> Any:
        guess = choice is None
        of = best_guess(problem, rows, ARCH) if guess else select(problem, rows, ARCH, choice)
        self.variants.append(of)
        return FakeKernel(problem, self.driver, of)

    def last(self) -> Problem:
        return self.variants[-1].problem

    def words(self) -> tuple[int, ...]:
        """Return the arguments of the last launch."""
        return self.driver.launches[-1].arguments


class GuardedLibrary(CupyLibrary):
    """As CuPy's, with what only PyTorch's has: it compares, and allocates in a capture."""

    mallocs_in_capture = False

    def __init__(self) -> None:
        super().__init__()
        self.code = self.code._replace(compares="True", mallocs_in_capture=False)

    def alike(self, arrays: Sequence[Any]) -> Callable[..., bool]:
        def facts(x: Any) -> Any:
            return type(x), x.shape, x.strides, x.dtype, x.number

        known = [facts(each) for each in arrays]
        return lambda *others: [facts(each) for each in others] == known


def on_cupy(monkeypatch: pytest.MonkeyPatch, kind: type[CupyLibrary] = CupyLibrary) -> World:
    """Let softgen's calls take CupyArrays, and return what happens to them."""
    world = World()
    device: Any = world.driver.serve(monkeypatch)
    device.cuda.get_current_stream = lambda device: SimpleNamespace(ptr=world.driver.stream)
    vars(device).update(
        ndarray=CupyArray,
        empty=world.empty,
        ascontiguousarray=world.ascontiguousarray,
        broadcast_to=world.broadcast_to,
        arange=lambda cols: np.arange(cols).view(CupyArray),
        asarray=lambda x: x.array,
    )
    monkeypatch.setattr(CupyArray, "world", world, raising=False)
    monkeypatch.setitem(sys.modules, "cupy", device)
    calls_of = functools.cache(dispatch.calls_of.__wrapped__)
    fakes: dict[str, Any] = {
        "require_device": lambda: device,
        "on_device": lambda device: contextlib.nullcontext(),
        "kernel_for": lambda *given: world.kernel_for(*given),
        "arch_of": lambda device: ARCH,
        "calls_of": calls_of,
    }
    for name, module in list(sys.modules.items()):
        if name.startswith("softgen.call."):
            for each, found in list(vars(module).items()):
                if each in fakes:
                    monkeypatch.setattr(module, each, fakes[each])
                elif isinstance(found, FunctionCalls):
                    monkeypatch.setattr(module, each, calls_of(found.function))
    library = kind()
    monkeypatch.setattr(call_library, "_cupy_library", lambda: library)
    for of in (FunctionCalls, KernelCalls):
        monkeypatch.setattr(of, "dispatch", _counted(world, of.dispatch))
    return world


def _counted(world: World, dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def counted(calls: Calls, *request: Any) -> Any:
        world.dispatched.append(request)
        if world.closed:
            return "dispatch"
        return dispatch(calls, *request)

    return counted
