"""One launch on the emulator: what is asked of it, what is sent, and what comes back."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from softgen.devices.emulator.shard import Shard
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.layouts import MOST_OUTER, AnyWidth, Strided
from softgen.problems.numerics import from_memory, in_memory, storage_dtype
from softgen.problems.operands import Extent, Operand
from softgen.problems.placement import Placement
from softgen.problems.problem import Problem
from softgen.source.render import Source

Storage = npt.NDArray[Any]

SECONDS = 60
_MOST_SHARED = 227 * 1024  # kMaxDynamicShared in include/simt_interface.h


@dataclass(frozen=True, eq=False)
class Job:
    """One launch of one kernel.

    Attributes:
        source: the kernel.
        x: its first input, shape (rows, cols); bfloat16 as uint16 bits.
        others: its other inputs, in operands' order.
        in_place: y is x itself.
        grid: number of blocks; what the variant's launch says by default. Blocks that stride over
            rows may be fewer; those that do not may be more, which then have nothing to do.
        x_offset: elements that x starts after a 16-byte boundary.
        y_offset: the same of y.
        others_offset: the same of its other inputs; x's by default.
        first_row: index of the first row of x, so that offsets are large where memory is small.
            That row is only a neighbour: its result is undefined. No two blocks may share a row.
            Of columns it is the first row of an outer index, all of whose rows are neighbours.
        together: blocks that run at a time, the last of them first; by default those of a cluster
            or of a cooperative grid, in order, and else one.
        dynamic_shared: bytes of dynamic shared memory; what the launch says by default.
        seconds: after which the launch counts as hung.
        placement: where rows lie, for a kernel of strided rows; by default they follow each other.
            What lies between is nobody's. `in_place` is with x's strides.
        shard: which device launches it, for a kernel of sharded rows: see shard.py.
    """

    source: Source
    x: Storage
    others: tuple[Storage, ...] = ()
    in_place: bool = False
    grid: int | None = None
    x_offset: int = 0
    y_offset: int = 0
    others_offset: int | None = None
    first_row: int = 0
    together: int | None = None
    dynamic_shared: int | None = None
    seconds: int = SECONDS
    placement: Placement | None = None
    shard: Shard | None = None

    @property
    def problem(self) -> Problem:
        """The kernel's problem, of as many columns as x has where a launch says how many."""
        problem = self.source.variant.problem
        shape: tuple[int, ...] = getattr(self.x, "shape", ())
        return problem.launched_on(shape[1]) if len(shape) == 2 else problem

    def __post_init__(self) -> None:
        problem = self.problem
        self._require_arrays()
        wanted = storage_dtype(problem.dtype)
        if self.x.dtype != wanted:
            raise InvalidTypeError(
                f"x has dtype {self.x.dtype}; {self.source.name} reads {problem.dtype.value}, "
                f"stored as {wanted}"
            )
        if self.x.ndim != 2 or self.x.shape[1] != problem.cols:
            raise InvalidValueError(f"x must have shape (rows, {problem.cols}), got {self.x.shape}")
        step = problem.layout.step
        if len(self.x) % step or self.first_row % step:
            raise InvalidValueError(
                f"{self.source.name} takes multiples of {step} rows, got {len(self.x)} from "
                f"{self.first_row} on"
            )
        for operand, array in zip(problem.inputs[1:], self.others, strict=True):
            operand.require(array.dtype, array.shape, self.x.shape[0], problem.cols)
        self._require_placement()
        if self.in_place and not problem.replacing:
            raise InvalidValueError("in place needs a result of x's dtype that may be x")
        if problem.sharded != (self.shard is not None):
            said = (
                "several devices hold its rows: give shard=, and run it by run_sharded()"
                if problem.sharded
                else "one device holds its rows: leave shard= out"
            )
            raise InvalidValueError(f"{self.source.name}: {said}")
        launch = self.source.variant.launch
        if self.grid is not None and not launch.strides:
            self._require_grid(self.grid)
        if (self.dynamic_shared or launch.dynamic_shared_bytes) > _MOST_SHARED:
            raise InvalidValueError(f"a block has at most {_MOST_SHARED} bytes of shared memory")
        if launch.cooperative and launch.cluster_size > 1:
            raise InvalidValueError("the emulator runs no cooperative grid of clusters")
        if self.together is not None and (launch.cooperative or launch.cluster_size > 1):
            raise InvalidValueError(f"which blocks of {self.source.name} run together is fixed")
        if self.first_row:
            if launch.cooperative or launch.workspace_bytes_per_row or self.grid is not None:
                raise InvalidValueError("first_row needs blocks that have their rows to themselves")
            if (self.first_row + step) % launch.rows_per_block != 0:
                raise InvalidValueError(
                    f"the row {step} behind first_row must be the first of a block, which has "
                    f"{launch.rows_per_block}"
                )

    def _require_arrays(self) -> None:
        """Raise an error unless there is a NumPy array for each input."""
        name, inputs = self.source.name, self.problem.inputs
        if len(self.inputs) != len(inputs):
            others = ", ".join(operand.name for operand in inputs[1:]) or "nothing"
            raise InvalidValueError(
                f"{name} takes {others} as others, got {len(self.others)} of them"
            )
        for operand, array in zip(inputs, self.inputs, strict=True):
            if not isinstance(array, np.ndarray | np.generic):
                raise InvalidTypeError(
                    f"{operand.name} must be a NumPy array or number of "
                    f"{storage_dtype(operand.dtype)}, got {type(array).__qualname__}"
                )

    def _require_placement(self) -> None:
        """Raise InvalidValueError unless the placement is one of the kernel's."""
        problem, placement = self.problem, self.placement
        if placement is None:
            return
        if not isinstance(problem.layout, Strided) or self.first_row:
            raise InvalidValueError(f"rows of {self.source.name} follow each other")
        if len(placement.sizes) > problem.layout.outer or placement.rows != len(self.x):
            raise InvalidValueError(
                f"{self.source.name} takes {problem.layout.outer} outer axes of {len(self.x)} "
                f"rows in all, got sizes {placement.sizes}"
            )
        if self.in_place and len(set(placement.strides)) > 1:
            raise InvalidValueError("in place the result's strides are x's")

    @property
    def _placed(self) -> Placement:
        problem, rows = self.problem, len(self.x)
        contiguous = Placement.contiguous(len(problem.whole_rows), rows, problem.cols)
        return self.placement or contiguous

    def _require_grid(self, grid: int) -> None:
        """Raise InvalidValueError for a grid that blocks which do not stride cannot have."""
        name, launch, rows = self.source.name, self.source.variant.launch, len(self.x)
        wanted = launch.grid(rows)
        # A block more would use a part of the workspace that is not there.
        if launch.workspace_bytes_per_row and grid != wanted:
            raise InvalidValueError(
                f"grid is {grid}, and {name} has a workspace, so that its grid is fixed: {rows} "
                f"rows take {wanted}; leave grid out"
            )
        if grid < wanted:
            raise InvalidValueError(
                f"grid is {grid}, and the blocks of {name} do not stride: {rows} rows take "
                f"{wanted} or more"
            )

    def message(self, index: int, left: int = 0) -> bytes:
        """Return the job as host/job.h describes it, followed by x.

        `left` launches on devices that hold rows together follow it.
        """
        problem, launch = self.problem, self.source.variant.launch
        rows = self.x.shape[0]
        # Only float32 arithmetic has a -ftz on the GPU, but the CPU's switch is for doubles too.
        flush = "-ftz=true" in self.source.options and problem.compute_dtype is DType.FLOAT32
        shared = self.dynamic_shared
        if shared is None:
            shared = launch.dynamic_shared_bytes
        first_block = 0
        grid = self.grid or launch.grid(rows)
        if self.first_row:
            of_rows = launch.cluster_size * launch.blocks_per_row
            grid = -(-(self.first_row + rows) // launch.rows_per_block) * of_rows
            first_block = (self.first_row + problem.layout.step) // launch.rows_per_block * of_rows
        together = self.together or (grid if launch.cooperative else launch.cluster_size)
        devices = self.shard.head(left) if self.shard else (0,) * 5
        head = struct.pack(
            "21q",
            *(index, grid, launch.block_size, first_block, rows, self.first_row),
            problem.layout.step,
            *(len(problem.operands), shared, launch.cluster_size, together),
            *(self.together is not None, launch.workspace_bytes(rows), flush),
            *(launch.dependent, self.seconds),
            *devices,
        )
        numbers = [np.array(n, np.int64) for n in self._placed.numbers(problem.layout)]
        if isinstance(problem.layout, AnyWidth):
            numbers = [np.array(problem.cols, np.int64)]
        if self.shard:
            numbers = self.shard.numbers(problem)
        stored = [
            in_memory(array, operand, problem)
            for array, operand in zip(self.inputs, problem.inputs, strict=True)
        ]
        arrays = b"".join(np.ascontiguousarray(a).tobytes() for a in (*stored, *numbers))
        given = (*zip(problem.inputs, self.inputs, strict=True),)
        told = (*zip(problem.layout_numbers, numbers, strict=True),)
        sizes = {operand.name: array.size for operand, array in (*given, *told)}
        described = (self._description(each, sizes.get(each.name, 1)) for each in problem.operands)
        return head + b"".join(described) + arrays

    @property
    def result_bytes(self) -> int:
        """What the emulator answers: the results, and what the launch did."""
        problem, rows = self.problem, len(self.x)
        return _WORK.size + sum(rows * o.bytes_per_row(problem.cols) for o in problem.results)

    def results_in(self, answer: bytes, at: int) -> tuple[Results, Work]:
        """Return the results, which begin at byte `at`, and what the launch did."""
        problem, rows = self.problem, len(self.x)
        arrays = []
        for operand in problem.results:
            shape, dtype = operand.shape(rows, problem.cols), storage_dtype(operand.dtype)
            array = np.frombuffer(answer, dtype, math.prod(shape), at)
            arrays.append(from_memory(array, operand, problem, rows).copy())
            at += array.nbytes
        return tuple(arrays), Work(*_WORK.unpack_from(answer, at))

    @property
    def inputs(self) -> tuple[Storage, ...]:
        """Every input, in operands' order."""
        return (self.x, *self.others)

    def _description(self, operand: Operand, size: int) -> bytes:
        problem = self.problem
        names = [each.name for each in problem.operands]
        same = self.in_place and operand in problem.replacing
        apart = operand.shared  # no elements of rows
        of_a_row = size if apart else operand.elements_per_row(problem.cols)
        elements = self.y_offset if operand.result else self.x_offset
        if operand in problem.inputs[1:] and self.others_offset is not None:
            elements = self.others_offset
        inner = problem.layout.step if operand.extent is Extent.ELEMENT else 1
        # What there is one of per row lies apart from any boundary of rows.
        shift = elements * operand.dtype.itemsize % 16 if operand.extent is Extent.ELEMENT else 0
        return struct.pack(
            "16s8q",
            *(operand.name.encode(), apart, of_a_row, inner, operand.dtype.itemsize, shift),
            *(not operand.result, operand.result, names.index(operand.may_be) if same else -1),
        ) + self._outer(operand)

    def _outer(self, operand: Operand) -> bytes:
        """Return the outer axes of an array whose rows do not follow each other, else none."""
        whole = self.problem.whole_rows
        if self.placement is None or operand not in whole:
            return bytes(8 * (1 + 2 * MOST_OUTER))
        sizes = self.placement.sizes
        strides = self.placement.strides[whole.index(operand)]
        padding = (0,) * (MOST_OUTER - len(sizes))
        return struct.pack(
            f"{1 + 2 * MOST_OUTER}q", len(sizes), *sizes, *padding, *strides, *padding
        )


@dataclass(frozen=True)
class Work:
    """What a launch did: calls of all its threads together.

    Attributes:
        accesses: loads and stores of operands.
        workspace: loads and stores of the workspace.
        shared: loads and stores of shared memory.
        exchanges: calls of a warp's lanes together.
        barriers: calls of `__syncthreads`.
        copies: copies to shared memory or L2 that a kernel does not wait for.
        pattern: a hash of which thread touches which bytes of operands and shared memory, and of
            which lanes exchange. Two kernels with the same one differ at most in the order of
            accesses between two calls that wait for other threads.
    """

    accesses: int
    workspace: int
    shared: int
    exchanges: int
    barriers: int
    copies: int
    pattern: int


_WORK = struct.Struct("6qQ")


Results = tuple[Storage, ...]
