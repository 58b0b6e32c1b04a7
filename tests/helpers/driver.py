"""A driver whose kernels are functions' definitions: they read and write where a launch says.

It reads the configuration and the arguments of a launch from memory, as CUDA's does.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from softgen.devices.gpu import launcher
from softgen.devices.gpu.launcher import Launcher
from softgen.problems.dtypes import DType, Float8
from softgen.problems.exact import exact_results
from softgen.problems.layouts import Strided
from softgen.problems.numerics import encode
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from softgen.problems.storage import numpy_dtype
from softgen.strategies.launch import Launch
from softgen.strategies.variants import Variant

CONTEXT, STREAM = 0x555, 5
# Kinds of launch attributes: CU_LAUNCH_ATTRIBUTE_COOPERATIVE, _PROGRAMMATIC_STREAM_SERIALIZATION.
COOPERATIVE, PROGRAMMATIC = 2, 6
POISON = -77.0
# Where a workspace lies, less its bytes.
WORKSPACE = 0x9000


class FakeError(Exception):
    """As CuPy's CUDADriverError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class Attribute(ctypes.Structure):
    """As CUlaunchAttribute, of those that are on or off."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 60),
    )


class Config(ctypes.Structure):
    """As CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class Seen(NamedTuple):
    """A launch, as the driver sees it."""

    attributes: tuple[int, ...]
    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    arguments: tuple[int, ...]


class FakeDriver:
    """What softgen asks of the driver, the runtime, and of those who lend a workspace.

    Attributes:
        refusal: the error of every launch.
        kernels: by their handles, how many arguments each takes, and what runs.
        names: the functions of the kernels that ran, each time.
        shape: of every launch of a FakeKernel, beside its threads.
    """

    CUDADriverError = FakeError

    def __init__(self) -> None:
        self.context = CONTEXT
        self.stream = STREAM
        self.capturing: set[int] = set()
        self.refusal = 0
        self.launches: list[Seen] = []
        self.given_back: list[tuple[Any, ...]] = []
        self.kernels: dict[int, tuple[int, Callable[[Seen], None]]] = {}
        self.names: list[str] = []
        self.shape: dict[str, Any] = {}

    def ctxGetCurrent(self) -> int:
        return self.context

    def streamIsCapturing(self, stream: int) -> bool:
        return stream in self.capturing

    def launch_of(self, configuration: int, function: int, addresses: int) -> Callable[[], int]:
        return lambda: self.launch(Config.from_address(configuration), function, addresses)

    def launch(self, how: Config, function: int, addresses: int) -> int:
        if self.refusal:
            return self.refusal
        kinds = tuple(how.attributes[i].kind for i in range(how.attribute_count))
        assert all(how.attributes[i].value == 1 for i in range(how.attribute_count))
        count, run = self.kernels[function]
        arguments = self.read(count, addresses)
        grid, block = tuple(how.grid), tuple(how.block)
        seen = Seen(kinds, function, grid, block, how.shared_bytes, how.stream or 0, arguments)
        self.launches.append(seen)
        run(seen)
        return 0

    def read(self, count: int, addresses: int) -> tuple[int, ...]:
        each = (ctypes.c_uint64 * count).from_address(addresses)
        return tuple(ctypes.c_uint64.from_address(address).value for address in each)

    def lend(self, scratch: Any, device: int, stream: int, size: int) -> tuple[Any, Any]:
        return (device, stream), SimpleNamespace(address=WORKSPACE + size)

    def give_back(self, *lent: Any) -> None:
        self.given_back.append(lent)

    def forget(self) -> None:
        """Forget which launches there were."""
        for noted in (self.launches, self.names, self.given_back):
            noted.clear()

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Let launches go here; return what stands for `require_device()` of CuPy."""
        monkeypatch.setattr(launcher, "launch_of", self.launch_of)
        monkeypatch.setattr(launcher, "workspace", self)
        cuda = SimpleNamespace(driver=self, runtime=self)
        device = SimpleNamespace(cuda=cuda)
        monkeypatch.setattr(launcher, "require_device", lambda: device)
        return device


class FakeKernel:
    """A loaded kernel of a problem, or of a variant; in a launch it computes what its words say."""

    device = 0
    handles = itertools.count(0xF00)

    def __init__(
        self, problem: Problem, driver: FakeDriver | None = None, variant: Variant | None = None
    ) -> None:
        self.problem, self.driver, self.variant = problem, driver, variant
        self.function = SimpleNamespace(ptr=next(self.handles))
        if driver is not None:
            driver.kernels[self.function.ptr] = len(problem.operands) + 2, self.run

    def launcher(
        self, rows: int, library: Any, *, pdl: bool = True, fixed: Mapping[int, int] | None = None
    ) -> Launcher:
        assert self.driver is not None
        how: dict[str, Any] = {"static_shared_bytes": 0, "dependent": pdl, **self.driver.shape}
        shape = Launch(128, rows_per_block=4, **how)
        operands = len(self.problem.operands)
        return Launcher(self.function, operands, shape, rows, 0, library.scratch, fixed)

    def run(self, seen: Seen) -> None:
        assert self.driver is not None
        assert seen.stream == self.driver.stream
        self.driver.names.append(self.problem.function.name)
        *words, rows, _ = seen.arguments
        self.launch(words, rows, seen.stream)

    def launch(self, arguments: Sequence[int], rows: int, stream: int) -> None:
        given = dict(zip((each.name for each in self.problem.operands), arguments, strict=True))
        inputs = [self.memory(each, given, rows) for each in self.problem.inputs]
        results = self.results(inputs, rows)
        for operand, result in zip(self.problem.results, results, strict=True):
            memory = self.memory(operand, given, rows)
            memory[...] = result.reshape(memory.shape)

    def results(self, inputs: Sequence[Any], rows: int) -> list[Any]:
        """Return the results of inputs as they lie in memory, as they lie there too."""
        problem, found = self.problem, []
        told = [
            np.array(self._told(operand, array, rows))
            for operand, array in zip(problem.inputs, inputs, strict=True)
        ]
        results = exact_results(problem, told, wide=problem.compute_dtype is DType.FLOAT64)
        for operand, result in zip(problem.results, results, strict=True):
            if operand.extent is Extent.ELEMENT and not isinstance(problem.layout, Strided):
                result = problem.layout.in_memory(result)
            stored = isinstance(operand.dtype, Float8)
            found.append(encode(result, operand.dtype) if stored else result)
        return found

    def _told(self, operand: Operand, array: Any, rows: int) -> Any:
        """Return an input of float64, or of integers: (rows, columns) where it has elements."""
        if operand.extent is Extent.ELEMENT:
            array = self.problem.layout.from_memory(array, rows, self.problem.cols)
        return array.astype("float64") if isinstance(operand.dtype, DType) else array

    def memory(self, operand: Operand, given: Mapping[str, int], rows: int) -> Any:
        """Return an operand as it lies in memory."""
        problem, word = self.problem, given[operand.name]
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
        steps = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        layout = problem.layout
        if operand.extent is Extent.ELEMENT:
            aligned = min(16, problem.alignment * size)
            assert word % aligned == 0
            if isinstance(layout, Strided):
                inner = [given[name] for name in layout.sizes]
                strides = [given[name] for name in layout.strides(operand.name)]
                steps = [step - (step >> 63 << 64) for step in strides]  # from two's complement
                assert all(step * size % aligned == 0 for step in steps)
                steps = [*steps, 1]
                shape = (rows // math.prod(inner), *inner, problem.cols)
        low = sum(min(0, (n - 1) * step) for n, step in zip(shape, steps, strict=True)) * size
        high = sum(max(0, (n - 1) * step) for n, step in zip(shape, steps, strict=True)) * size
        memory: Any = (ctypes.c_uint8 * (high - low + size)).from_address(word + low)
        return np.ndarray(shape, kind, memory, -low, tuple(step * size for step in steps))
