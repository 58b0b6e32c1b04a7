"""The buffers that all competitors of a shape share, as each of their libraries sees them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from softgen.bench.cases import HOOKED, VIEWS, Exact
from softgen.bench.check import CHUNK, chosen_columns
from softgen.bench.shape import Shape
from softgen.devices.gpu.device import current_arch
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.replay import Player
from softgen.errors import InvalidValueError
from softgen.problems.arch import Arch
from softgen.problems.dtypes import DType, Integer
from softgen.problems.numerics import numpy_dtype
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from softgen.tuning.measure import Buffers, memory


class SharedBuffers:
    """Rotating sets of operands for one shape, and the stream that everything runs on.

    Launch i of a competitor reads input i and writes output i, the first operand and the first
    result of set i; the numbers wrap around, as they do for the tuner (`measure.Rotation`).

    If launches are chained, input i + 1 is output i. If x is a view, a set holds the whole array,
    and the arrays here are views of it.

    Raises InvalidValueError if one set does not fit in half of the free memory, if launches of the
    function, or of a view, cannot be chained, or if the function takes an array that is broadcast.

    Attributes:
        problem: what is computed of the operands; without the shape's hook.
        kernels: softgen's kernels that were chosen so far, by the arguments of the choice.
    """

    def __init__(self, shape: Shape, *, chained: bool = False) -> None:
        known = shape.function.timed_inputs(1, shape.cols)
        shared = [each for each in shape.problem.inputs if each.extent is Extent.BROADCAST]
        if any(each.name not in known for each in shared):
            raise InvalidValueError(
                f"{shape.function.name} takes an array that is broadcast over rows, and bench has "
                "none for it; `softgen tune` times its candidates"
            )
        integers = any(isinstance(each.dtype, Integer) for each in shape.problem.results)
        if integers and chosen_columns(shape.problem) is None:
            raise InvalidValueError(
                f"{shape.function.name} gives integers that are no choice, and bench compares none "
                "of them; `softgen verify` checks it and `softgen tune` times it"
            )
        self.shape = shape
        self.arch: Arch = current_arch()
        self.player = Player()
        self.kernels: dict[tuple[str | None, str | None, bool], LoadedKernel] = {}
        self.problem = shape.problem
        self._swept: Any = None
        rows, cols = shape.allocated
        whole = (
            self.problem if cols == shape.cols else Problem.of(shape.function, shape.dtype, cols)
        )
        self.allocated = Buffers.allocate(whole, rows, whole=True)
        if chained:
            if shape.case and shape.case.view:
                raise InvalidValueError("launches of a view cannot be chained: results are whole")
            self.allocated = self.allocated.chained(self.problem)
        self.allocated.chill(self.player)
        self._fill_other_inputs()
        # The buffers were filled on another stream, and this one waits for none.
        self.player.cupy.cuda.runtime.deviceSynchronize()

    @property
    def pairs(self) -> int:
        """Number of sets of buffers."""
        return len(self.allocated.arguments)

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
        """Each set's operands in their order: CuPy arrays as a caller has them; NumPy's numbers."""
        operands = self.problem.operands
        return [tuple(map(self._operand, each, operands)) for each in self.allocated.arguments]

    @functools.cached_property
    def x(self) -> list[Any]:
        """The inputs as CuPy arrays, whose shape is (rows, cols) or that of the case."""
        return [arrays[0] for arrays in self.sets]

    @functools.cached_property
    def y(self) -> list[Any]:
        """The outputs as CuPy arrays: as x, or without its axis for one number a row."""
        return [arrays[self.allocated.results[0]] for arrays in self.sets]

    @functools.cached_property
    def torch_inputs(self) -> list[tuple[Any, ...]]:
        """Each set's inputs as PyTorch tensors."""
        count = len(self.problem.inputs)
        return [tuple(map(self._tensor, arrays[:count])) for arrays in self.sets]

    @property
    def torch_x(self) -> list[Any]:
        """The first inputs as PyTorch tensors."""
        return [inputs[0] for inputs in self.torch_inputs]

    @functools.cached_property
    def torch_y(self) -> list[Any]:
        """The outputs as PyTorch tensors."""
        return [self._tensor(array) for array in self.y]

    @functools.cached_property
    def torch_results(self) -> list[dict[str, Any]]:
        """Each set's results as PyTorch tensors, by name."""
        names = [operand.name for operand in self.problem.results]
        found = [[self._tensor(arrays[i]) for i in self.allocated.results] for arrays in self.sets]
        return [dict(zip(names, tensors, strict=True)) for tensors in found]

    @functools.cached_property
    def contiguous_x(self) -> list[Any]:
        """Contiguous arrays of the shape of x, in the memory that x is a view of."""
        x, case = self.problem.operands[0], self.shape.case
        shape = case.x_shape if case else x.shape(self.shape.rows, self.shape.cols)
        return [self._array(address, x, shape) for address in self.allocated.inputs]

    @functools.cached_property
    def given(self) -> Mapping[str, Any]:
        """What the shape's hook takes: numbers, and CuPy arrays that all sets share."""
        case = self.shape.case
        if case is None or not case.hook:
            return {}
        asarray = self.player.cupy.asarray
        found = HOOKED[case.hook].given(case.shape)
        given = {
            name: asarray(value) if isinstance(value, np.ndarray) else value
            for name, value in found.items()
        }
        # The uploads are of another stream than the launches: the first check of a bias of 134 MB
        # found a kernel wrong, the second one none.
        self.player.cupy.cuda.runtime.deviceSynchronize()
        return given

    @functools.cached_property
    def torch_given(self) -> dict[str, Any]:
        """The same with PyTorch tensors."""
        return {
            name: self._tensor(value) if hasattr(value, "dtype") else value
            for name, value in self.given.items()
        }

    @functools.cached_property
    def exact(self) -> Exact | None:
        """What computes the exact results of rows where there is a hook."""
        case = self.shape.case
        return Exact(self.shape.function, case.shape, self.given) if case and case.hook else None

    @functools.cached_property
    def swept(self) -> list[tuple[int, ...]]:
        """The device addresses that the limit goes over, a tuple a set: from, and to.

        Those of the operands, unless more than those has to be moved. It joins two inputs that are
        as large as the result.
        """
        if self.swept_bytes == self.bytes:
            second = (
                (1,)
                if self.problem.writes_elements and len(self.problem.element_inputs) == 2
                else ()
            )
            which = (0, *second, self.allocated.results[0])
            return [tuple(words[i] for i in which) for words in self.allocated.arguments]
        step = -(-self.swept_bytes // 256) * 256
        self._swept = memory(2 * self.pairs * step)
        first = self._swept.data.ptr
        return [(first + 2 * i * step, first + (2 * i + 1) * step) for i in range(self.pairs)]

    @property
    def given_bytes(self) -> int:
        """Size of what the shape's hook takes."""
        return self.shape.case.given_bytes if self.shape.case else 0

    @property
    def swept_bytes(self) -> int:
        """What a copy reads, and writes, that moves as much as the call has to.

        Where elements are chosen it is what a read reads: rows, and as much as what is written.
        """
        if chosen_columns(self.problem) is not None:
            return self.bytes + sum(map(self._size, self.problem.results))
        return self.bytes + self.given_bytes // 2

    @functools.cached_property
    def torch_stream(self) -> Any:
        """The stream as PyTorch sees it."""
        import torch

        return torch.cuda.ExternalStream(self.player.stream.ptr)

    def poison(self) -> None:
        """Fill the results of the first set with NaN, so that what is not written shows."""
        memset, first = self.player.cupy.cuda.runtime.memsetAsync, self.allocated.arguments[0]
        for which, operand in zip(self.allocated.results, self.problem.results, strict=True):
            memset(first[which], 0xFF, self._size(operand), self.player.stream.ptr)

    def _size(self, operand: Operand) -> int:
        return self.shape.rows * operand.bytes_per_row(self.shape.cols)

    def _fill_other_inputs(self) -> None:
        """Write what belongs to x into inputs beside it: results of others would overflow.

        But for what a function has for timing, which is there already.
        """
        function, inputs = self.problem.function, self.problem.inputs[1:]
        known = function.timed_inputs(1, self.shape.cols)
        mine = [i for i, each in enumerate(inputs) if each.name not in known]
        if not mine:
            return
        for x, *others in self.sets:
            step = max(1, CHUNK * len(x) // x.size)
            for first in range(0, len(x), step):
                part = slice(first, first + step)
                values = function.other_inputs(x[part].astype("float64"))
                for i in mine:
                    # What does not follow from x is of NumPy, such as gradients.
                    value = self.player.cupy.asarray(values[i])
                    others[i][part] = value.astype(others[i].dtype)

    def _operand(self, word: int, operand: Operand) -> Any:
        if operand.extent is Extent.NUMBER:
            return np.uint64(word).reshape(1).view(numpy_dtype(operand.dtype))[0]
        case = self.shape.case
        if operand.extent is Extent.BROADCAST:  # one number for all rows
            return self._array(word, operand, ())
        if case is None:
            return self._array(word, operand, operand.shape(self.shape.rows, self.shape.cols))
        if operand.extent is not Extent.ELEMENT:
            return self._array(word, operand, case.row_shape)
        if operand.result or not case.view:
            return self._array(word, operand, case.x_shape)
        return VIEWS[case.view](self._array(word, operand, case.shape))

    def _array(self, pointer: int, operand: Operand, shape: tuple[int, ...]) -> Any:
        cupy, dtype = self.player.cupy, numpy_dtype(operand.dtype)
        size = math.prod(shape) * dtype.itemsize
        owned = cupy.cuda.UnownedMemory(pointer, size, self.allocated)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(owned, 0))

    def _tensor(self, array: Any) -> Any:
        import torch

        if array.ndim == 0:
            return array.item()
        if array.dtype == numpy_dtype(DType.BFLOAT16):
            # DLPack of CuPy does not know ml_dtypes' bfloat16; its bits travel as integers.
            return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
        if array.dtype == bool:
            return torch.from_dlpack(array.view("uint8")).view(torch.bool)
        return torch.from_dlpack(array)
