"""The buffers that all competitors of a shape share, as each of their libraries sees them."""

from __future__ import annotations

import functools
from typing import Any

from softgen.bench.suites import Shape
from softgen.devices.gpu.device import current_arch
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.replay import Player
from softgen.spec.arch import Arch
from softgen.spec.dtypes import DType
from softgen.spec.numerics import numpy_dtype
from softgen.spec.problem import Problem
from softgen.tuning.measure import Buffers


class Arena:
    """Rotating pairs of input and output for one shape, and the stream that everything runs on.

    Launch i of a competitor reads input i and writes output i; the numbers wrap around, as they do
    for the tuner (`measure.Rotation`).

    Raises InvalidValueError if one pair does not fit in half of the free memory.

    Attributes:
        kernels: those of softgen's that were chosen so far, by the arguments of the choice.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.arch: Arch = current_arch()
        self.player = Player()
        self.kernels: dict[tuple[str | None, str | None, bool], LoadedKernel] = {}
        self.buffers = Buffers.allocate(
            Problem.of("softmax", shape.dtype, shape.cols), shape.rows, whole=True
        )
        self.buffers.chill(self.player)
        # The buffers were filled on another stream, and this one waits for none.
        self.player.cupy.cuda.runtime.deviceSynchronize()

    @property
    def pairs(self) -> int:
        """Number of pairs of buffers."""
        return len(self.buffers.inputs)

    @property
    def bytes(self) -> int:
        """Size of one input, and of one output."""
        return self.shape.rows * self.shape.cols * self.shape.dtype.itemsize

    @functools.cached_property
    def x(self) -> list[Any]:
        """The inputs as CuPy arrays of shape (rows, cols)."""
        return [self._array(pointer) for pointer in self.buffers.inputs]

    @functools.cached_property
    def y(self) -> list[Any]:
        """The outputs as CuPy arrays of shape (rows, cols)."""
        return [self._array(pointer) for pointer in self.buffers.outputs]

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
        """Fill the first output with NaN, so that what is not written shows."""
        self.player.cupy.cuda.runtime.memsetAsync(
            self.buffers.outputs[0], 0xFF, self.bytes, self.player.stream.ptr
        )

    def _array(self, pointer: int) -> Any:
        cupy = self.player.cupy
        memory = cupy.cuda.UnownedMemory(pointer, self.bytes, self.buffers)
        return cupy.ndarray(
            (self.shape.rows, self.shape.cols),
            numpy_dtype(self.shape.dtype),
            cupy.cuda.MemoryPointer(memory, 0),
        )

    def _tensor(self, array: Any) -> Any:
        import torch

        if self.shape.dtype is DType.BFLOAT16:
            # DLPack of CuPy does not know ml_dtypes' bfloat16; its bits travel as integers.
            return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
        return torch.from_dlpack(array)
