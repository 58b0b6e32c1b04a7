"""The buffers that all competitors of a shape share, as each of their libraries sees them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from softgen.bench.check import CHUNK
from softgen.bench.suites import Shape
from softgen.devices.gpu.device import current_arch
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.replay import Player
from softgen.spec.arch import Arch
from softgen.spec.dtypes import DType
from softgen.spec.numerics import numpy_dtype
from softgen.spec.operands import Extent, Operand
from softgen.tuning.measure import Buffers


class Arena:
    """Rotating sets of operands for one shape, and the stream that everything runs on.

    Launch i of a competitor reads input i and writes output i, the first operand and the first
    result of set i; the numbers wrap around, as they do for the tuner (`measure.Rotation`).

    Chained, input i + 1 is output i.

    Raises InvalidValueError if one set does not fit in half of the free memory, or if launches of
    the function cannot be chained.

    Attributes:
        problem: what is computed of the operands.
        kernels: those of softgen's that were chosen so far, by the arguments of the choice.
    """

    def __init__(self, shape: Shape, *, chained: bool = False) -> None:
        self.shape = shape
        self.arch: Arch = current_arch()
        self.player = Player()
        self.kernels: dict[tuple[str | None, str | None, bool], LoadedKernel] = {}
        self.problem = shape.problem
        self.buffers = Buffers.allocate(self.problem, shape.rows, whole=True)
        if chained:
            self.buffers = self.buffers.chained(self.problem)
        self.buffers.chill(self.player)
        self._fill_other_inputs()
        # The buffers were filled on another stream, and this one waits for none.
        self.player.cupy.cuda.runtime.deviceSynchronize()

    @property
    def pairs(self) -> int:
        """Number of sets of buffers."""
        return len(self.buffers.arguments)

    @property
    def bytes(self) -> int:
        """Size of one input."""
        return self._size(self.problem.operands[0])

    @property
    def result_bytes(self) -> int:
        """Size of one output."""
        return self._size(self.problem.results[0])

    @functools.cached_property
    def sets(self) -> list[tuple[Any, ...]]:
        """Each set's operands in their order: CuPy arrays of their shapes, and NumPy's numbers."""
        operands = self.problem.operands
        return [tuple(map(self._operand, each, operands)) for each in self.buffers.arguments]

    @functools.cached_property
    def x(self) -> list[Any]:
        """The inputs as CuPy arrays of shape (rows, cols)."""
        return [arrays[0] for arrays in self.sets]

    @functools.cached_property
    def y(self) -> list[Any]:
        """The outputs as CuPy arrays: (rows, cols), or (rows,) for one number a row."""
        return [arrays[self.buffers.results[0]] for arrays in self.sets]

    @functools.cached_property
    def torch_x(self) -> list[Any]:
        """The inputs as PyTorch tensors."""
        return [self._tensor(array) for array in self.x]

    @functools.cached_property
    def torch_y(self) -> list[Any]:
        """The outputs as PyTorch tensors."""
        return [self._tensor(array) for array in self.y]

    @functools.cached_property
    def torch_stream(self) -> Any:
        """The stream as PyTorch sees it."""
        import torch

        return torch.cuda.ExternalStream(self.player.stream.ptr)

    def poison(self) -> None:
        """Fill the results of the first set with NaN, so that what is not written shows."""
        memset, first = self.player.cupy.cuda.runtime.memsetAsync, self.buffers.arguments[0]
        for which, operand in zip(self.buffers.results, self.problem.results, strict=True):
            memset(first[which], 0xFF, self._size(operand), self.player.stream.ptr)

    def _size(self, operand: Operand) -> int:
        return self.shape.rows * operand.bytes_per_row(self.shape.cols)

    def _fill_other_inputs(self) -> None:
        """Write what belongs to x into inputs beside it: results of others would overflow."""
        count = len(self.problem.inputs) - len(self.problem.hook_operands)
        if count == 1:
            return
        step = max(1, CHUNK // self.shape.cols)
        for x, *others in (arrays[:count] for arrays in self.sets):
            for first in range(0, self.shape.rows, step):
                part = slice(first, first + step)
                values = self.problem.function.other_inputs(x[part].astype("float64"))
                for array, value in zip(others, values, strict=True):
                    array[part] = value.astype(array.dtype)

    def _operand(self, word: int, operand: Operand) -> Any:
        if operand.extent is Extent.NUMBER:
            return np.uint64(word).reshape(1).view(numpy_dtype(operand.dtype))[0]
        return self._array(word, operand)

    def _array(self, pointer: int, operand: Operand) -> Any:
        cupy = self.player.cupy
        memory = cupy.cuda.UnownedMemory(pointer, self._size(operand), self.buffers)
        return cupy.ndarray(
            operand.shape(self.shape.rows, self.shape.cols),
            numpy_dtype(operand.dtype),
            cupy.cuda.MemoryPointer(memory, 0),
        )

    def _tensor(self, array: Any) -> Any:
        import torch

        if self.shape.dtype is DType.BFLOAT16:
            # DLPack of CuPy does not know ml_dtypes' bfloat16; its bits travel as integers.
            return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
        return torch.from_dlpack(array)
