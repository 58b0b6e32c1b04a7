"""Warm calls: a request that was seen before goes from its arrays to the driver, past all checks.

The full path checks a request, chooses, compiles and launches; what it found out is kept under
everything that it depended on. The next call like it builds the same key, which is about 1 us of
Python beside the allocation and the launch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

from softgen.call.library import Library, library_of
from softgen.call.outputs import Output
from softgen.call.warm_more import prepare_of
from softgen.call.warm_run import ALIGNMENT_MASK, Entry, Full, Run
from softgen.call.warm_views import View, ViewKey, around
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.launcher import Launcher
from softgen.spec.operands import Extent, Operand

# Programs whose shapes never repeat would fill the memory; starting afresh costs 50 us a shape.
MOST_CALLS = 4096

OPTIONS = 5  # axis, dtype, tune, variant, batch_invariant


class WarmCalls(dict[type, Run]):
    """The requests that were seen before, at most MOST_CALLS: a run for each type of array.

    `calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant, rest)` returns the result,
    or a tuple of all, warm or by the full path; rest are the inputs beside x, by default none.
    Threads need no lock: they find an entry or do not, and entries never change.
    """

    def __init__(self, full: Full) -> None:
        super().__init__()
        self.full = full
        self.entries: dict[Hashable, tuple[Any, ...]] = {}
        self.views: dict[Hashable, View] = {}

    def __missing__(self, kind: type) -> Run:
        return self._first

    def _first(self, x: Any, out: Any, *options_and_rest: Any) -> Any:
        """Return the result for a type that has no run; a library's own class gets one."""
        library, array = library_of(x)
        if type(x) is library.array_type:
            full = around(library, self.full, self.views)
            run = self[type(x)] = library.warm_run(self.entries.get, full)
            return run(x, out, *options_and_rest)
        rest = () if len(options_and_rest) <= OPTIONS else options_and_rest[OPTIONS]
        return self.full(array, out, *options_and_rest[:OPTIONS], rest, None)

    def remember(
        self,
        key: Hashable,
        library: Library,
        operands: Sequence[Operand],
        x: Any,
        out: Any,
        y: Output,
        launch: Launcher,
        others: Sequence[Any] = (),
        more: Sequence[Output] = (),
    ) -> None:
        """Keep a call that has just been launched; its device is current.

        One that needed a copy of the result, or that allocates where the kernel does not reach,
        is left to the full path.

        Args:
            key: of the request; None for one that cannot be kept.
            library: of all arrays.
            operands: those of the launch, in the order of its values.
            x: the input.
            out: the caller's array for the first result, or None.
            y: the first result.
            launch: the launch.
            others: the inputs beside x, as the caller gave them.
            more: the results beside y, which were allocated.
        """
        if key is None or (out is not None and y.target is not out):
            return
        if out is None and library.pointer(y.target) & ALIGNMENT_MASK:
            return
        if isinstance(key, ViewKey):
            if len(self.views) >= MOST_CALLS:
                self.views.clear()
            self.views[key] = View.of(library, operands, x, y, launch, others, more)
            return
        place = [operand.result for operand in operands].index(True)
        dtype, shape = operands[place].float_type, tuple(y.target.shape)
        allocate, element = library.result_maker(shape, dtype)
        entry = Entry(
            require_device().cuda.driver.ctxGetCurrent(),
            library.device(x),
            launch.take,
            launch.put_back,
            launch.make,
            prepare_of(library, operands, others, y, more, launch.prepare),
            place,
            shape,
            allocate,
            (
                element,
                math.prod(x.shape) * library.dtype(x).itemsize,
                math.prod(shape) * dtype.itemsize,
            ),
            0 if launch.prepare else _second(operands, others, more),
            library.alike(x),
        )
        if len(self.entries) >= MOST_CALLS:
            self.entries.clear()
        self.entries[key] = tuple(entry)


def _second(operands: Sequence[Operand], others: Sequence[Any], more: Sequence[Output]) -> int:
    """Return the `second` of an entry whose launch has nothing to prepare.

    The arguments are those of `WarmCalls.remember`.
    """
    if len(others) != 1 or more:
        return 0
    _, place, *_ = [place for place, operand in enumerate(operands) if not operand.result]
    return place if operands[place].extent is Extent.ELEMENT else 0
