"""Launches on NumPy's arrays, at their real addresses, which know of memory by nothing but words.

What a launch would find on a GPU: it reads and writes where its addresses and numbers say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from softgen.spec.dtypes import DType, Float8, FloatType
from softgen.spec.layouts import Strided
from softgen.spec.numerics import encode, numpy_dtype
from softgen.spec.operands import Extent, Operand
from softgen.strategies.variants import Variant

POISON = -77.0


class NumpyLibrary:
    """softgen.call.library.Library over NumPy's arrays."""

    mallocs_in_capture = False
    array_type = np.ndarray

    def __init__(self) -> None:
        self.made = 0
        self.copied = 0
        self.address: Callable[[Any], int] = self.pointer

    def pointer(self, x: Any) -> int:
        return int(x.__array_interface__["data"][0])

    def dtype(self, x: Any) -> DType:
        return DType.of(x.dtype.name)

    element_type = dtype

    def holds_float8(self, x: Any, dtype: Float8) -> bool:
        return bool(x.dtype == np.uint8)

    def device(self, x: Any) -> int:
        return 0

    def byte_strides(self, x: Any) -> tuple[int, ...]:
        return tuple(x.strides)

    def is_contiguous(self, x: Any) -> bool:
        return bool(x.flags.c_contiguous)

    def view_key(self, arrays: Any) -> Any:
        found = [each for each in arrays if isinstance(each, np.ndarray)]
        if all(map(self.is_contiguous, found)):
            return None
        return tuple((a.shape, a.strides, a.dtype.name, self.pointer(a) % 16) for a in found)

    def contiguous(self, x: Any) -> Any:
        self.copied += 1
        return np.ascontiguousarray(x)

    def empty(self, shape: tuple[int, ...], dtype: FloatType, device: int) -> Any:
        """On 16 bytes, which NumPy's memory is."""
        self.made += 1
        return np.full(shape, POISON if dtype.itemsize > 1 else 77, numpy_dtype(dtype))

    def copy(self, x: Any) -> Any:
        self.copied += 1
        return x.copy(order="C")

    def assign(self, target: Any, source: Any) -> None:
        target[...] = source

    def stream(self, device: int) -> int:
        return 5

    def maker(self, shape: tuple[int, ...], dtype: FloatType) -> Callable[[], Any]:
        return lambda: self.empty(shape, dtype, 0)

    def like(self, x: Any) -> Callable[[Any], bool]:
        return lambda other: bool(other.shape == x.shape)

    def warm_run(self, find: Any, full: Any) -> Any:
        return lambda *request: full(*request, None)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a call on views asks for no {name}")


def array_at(address: int, operand: Operand, shape: tuple[int, ...], strides: list[int]) -> Any:
    """Return memory as an array, strides in elements."""
    size = operand.dtype.itemsize
    low = sum(min(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True)) * size
    high = sum(max(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True)) * size
    memory: Any = (ctypes.c_uint8 * (high - low + size)).from_address(address + low)
    return np.ndarray(
        shape, numpy_dtype(operand.dtype), memory, -low, tuple(step * size for step in strides)
    )


class FakeLaunch:
    """A launch that computes by the function's reference what its words say."""

    def __init__(self, variant: Variant, rows: int, fixed: Mapping[int, int]) -> None:
        self.variant, self.rows, self.fixed = variant, rows, fixed
        self.prepare = None
        self.idle: list[Any] = []
        self.take, self.put_back = self.idle.pop, self.idle.append

    def make(self) -> Any:
        count = len(self.variant.problem.operands)
        values = [self.fixed.get(i, 0) for i in range(count)] + [self.rows, 0, *[0] * 7]
        return values, lambda: self(values[:count], values[-3]), [], None

    def __call__(self, words: list[int], stream: int) -> int:
        assert stream == 5
        problem = self.variant.problem
        given = dict(zip((o.name for o in problem.operands), words, strict=True))
        arrays = {o.name: self._array(o, given) for o in problem.given}
        inputs = [arrays[o.name].astype("float64") for o in problem.inputs]
        for i, operand in enumerate(problem.inputs):
            inputs[i] = inputs[i].reshape(operand.shape(self.rows, problem.cols))
        results = problem.function.reference(*inputs)
        for operand, result in zip(problem.results, results, strict=True):
            array = arrays[operand.name]
            stored = isinstance(operand.dtype, Float8)
            array[...] = (encode(result, operand.dtype) if stored else result).reshape(array.shape)
        return 0

    def _array(self, operand: Operand, given: dict[str, int]) -> Any:
        problem, rows = self.variant.problem, self.rows
        address = given[operand.name]
        if operand.extent is Extent.ROW:
            return array_at(address, operand, (rows,), [1])
        aligned = min(16, problem.alignment * operand.dtype.itemsize)
        assert address % aligned == 0
        if not isinstance(problem.layout, Strided):
            return array_at(address, operand, (rows, problem.cols), [problem.cols, 1])
        inner = [given[name] for name in problem.layout.sizes]
        strides = [given[name] for name in problem.layout.strides(operand.name)]
        strides = [step - (step >> 63 << 64) for step in strides]  # from two's complement
        assert all(step * operand.dtype.itemsize % aligned == 0 for step in strides)
        shape = (rows // int(np.prod(inner, dtype=int)), *inner, problem.cols)
        return array_at(address, operand, shape, [*strides, 1])


class FakeKernel:
    """A loaded kernel of a variant."""

    device = 0

    def __init__(self, variant: Variant) -> None:
        self.variant = variant

    def launcher(
        self, rows: int, library: Any, *, pdl: bool = True, fixed: Mapping[int, int] | None = None
    ) -> FakeLaunch:
        return FakeLaunch(self.variant, rows, fixed or {})

    def launch(self, arguments: Sequence[int], rows: int, stream: int) -> None:
        FakeLaunch(self.variant, rows, {})([*arguments], stream)
