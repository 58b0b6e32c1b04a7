"""Warm calls on views: like those on contiguous arrays, with strides in the key and in the launch.

A run that finds no entry for a request comes here before the full path; one of contiguous arrays,
whose run knows no views, pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from softgen.call.library import Library
from softgen.call.outputs import Output
from softgen.call.views import extent
from softgen.call.warm_more import prepare_of
from softgen.call.warm_run import ALIGNMENT_MASK, LAST_LEGACY_STREAM, Full, Prepare, look_up
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.launcher import STREAM, Launcher
from softgen.spec.operands import Extent, Operand


class ViewKey(NamedTuple):
    """The key of a request with views; the type tells it from others.

    Attributes:
        arrays: shapes, strides, types, device, and how the arrays lie to 16 bytes.
        options: the call's, and the environment's.
    """

    arrays: Hashable
    options: tuple[Any, ...]


class Input(NamedTuple):
    """An input that is an array.

    Attributes:
        place: among the values.
        number: among the inputs beside x; -1 for x.
        reach: how far it reaches from its address, in bytes, below and above.
        behind: how far it lay behind the first result in the call that was checked.
    """

    place: int
    number: int
    reach: tuple[int, int]
    behind: int

    def is_apart(self, start: int, target: int, of_target: tuple[int, int]) -> bool:
        """Whether at `start` it shares no element with a result at `target`, or is that itself."""
        return (
            start - target == self.behind
            or start + self.reach[1] <= target + of_target[0]
            or target + of_target[1] <= start + self.reach[0]
        )


class View(NamedTuple):
    """What the full path found out about such a request.

    Attributes:
        context: of the device.
        device: its number.
        launch: whose values have the strides.
        prepare: what is left to do before the launch, or None.
        place: of the first result among the values.
        make: makes the first result.
        y: how far the first result reaches from its address, in bytes, below and above.
        inputs: the arrays among the inputs.
    """

    context: int
    device: int
    launch: Launcher
    prepare: Prepare | None
    place: int
    make: Callable[[], Any]
    y: tuple[int, int]
    inputs: tuple[Input, ...]

    @classmethod
    def of(
        cls,
        library: Library,
        operands: Sequence[Operand],
        x: Any,
        y: Output,
        launch: Launcher,
        others: Sequence[Any],
        more: Sequence[Output],
    ) -> View:
        """Return what is kept of a call that has just been launched; its device is current."""
        target = library.pointer(y.target)
        first = [operand.result for operand in operands].index(True)
        places = [place for place, operand in enumerate(operands) if not operand.result]
        inputs = [
            Input(place, number, _reach(library, each), library.pointer(each) - target)
            for number, (place, each) in enumerate(zip(places, (x, *others), strict=False), -1)
            if operands[place].extent is not Extent.NUMBER
        ]
        return cls(
            require_device().cuda.driver.ctxGetCurrent(),
            library.device(x),
            launch,
            prepare_of(library, operands, others, y, more, launch.prepare, arrays=False),
            first,
            library.maker(tuple(y.target.shape), operands[first].float_type),
            _reach(library, y.target),
            tuple(inputs),
        )


def around(library: Library, full: Full, views: dict[Hashable, View]) -> Full:
    """Return the full path with a look at warm calls on views before it."""
    runtime, driver = require_device().cuda.runtime, require_device().cuda.driver
    mallocs, address = library.mallocs_in_capture, library.address

    def run(x: Any, out: Any, *request: Any) -> Any:
        *options, rest, key = request
        arrays = library.view_key((x, out, *rest))
        if arrays is None or type(options[0]) is not int:  # True and 1.0 equal the axis 1
            return full(x, out, *request)
        environment = look_up(b"SOFTGEN_TUNE"), look_up(b"SOFTGEN_BATCH_INVARIANT")
        key = ViewKey(arrays, (*options, *environment))
        try:
            view = views.get(key)
        except TypeError:  # an option that has no hash
            return full(x, out, *options, rest, None)
        if view is None or driver.ctxGetCurrent() != view.context:
            return full(x, out, *options, rest, key)
        stream = library.stream(view.device)
        if out is None:
            if mallocs and stream > LAST_LEGACY_STREAM and runtime.streamIsCapturing(stream):
                return full(x, out, *options, rest, key)
            y = view.make()
        else:
            y = out
        target = address(y)
        if out is None and target & ALIGNMENT_MASK:
            return full(x, out, *options, rest, key)
        try:
            mine = view.launch.take()
        except IndexError:
            mine = view.launch.make()
        values, go, _, _ = mine
        values[view.place], values[STREAM] = target, stream
        for each in view.inputs:
            start = values[each.place] = address(x if each.number < 0 else rest[each.number])
            if not each.is_apart(start, target, view.y):
                return full(x, out, *options, rest, key)
        if view.prepare is not None:
            y = view.prepare(mine, stream, y, rest)
            if y is None:
                return full(x, out, *options, rest, key)
        if go():  # the driver refused; the full path finds out why
            return full(x, out, *options, rest, key)
        view.launch.put_back(mine)
        return y

    return run


def _reach(library: Library, array: Any) -> tuple[int, int]:
    start = library.pointer(array)
    low, high = extent(library, array)
    return low - start, high - start
