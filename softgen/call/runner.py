r"""A call like one before: from its arrays to the driver, by code that is made for its signature.

    arrays -> request -> entry (seen before) -> launch -> result
                     \-> dispatch -> entry -/

A request is everything that decides how a call is computed; an entry is what dispatch found out
about it. Between them and the result there are no loops, and no call of softgen's own, which takes
0.16 us: the code is generated, once for an array library and the operands of a function.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from softgen.call.axes import is_of_ints
from softgen.call.code import Code
from softgen.call.library import Library, own_library_of
from softgen.call.outputs import Output
from softgen.call.views import extent
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.launcher import STREAM, Launcher
from softgen.problems.operands import Extent, Operand

# run(x, out, axis, dtype, tune, variant, batch_invariant, rest) returns the result, or a tuple of
# all; rest are the inputs beside x.
Run = Callable[..., Any]

# Programs whose shapes never repeat would fill the memory; starting afresh costs 50 us a shape.
MOST_CALLS = 4096

# Pointers are told apart up to the widest access of a thread.
ALIGNMENT_MASK = 15
# The null stream and its other name cannot be captured.
LAST_LEGACY_STREAM = 1

# A request begins with axis, dtype, tune, variant, batch_invariant, two words of the environment.
OPTIONS = 7

# What os.environ.get reads; it decodes at each look, 0.9 us, and this dict takes 0.03.
look_up: Callable[[bytes], bytes | None] = vars(os.environ)["_data"].get

# How far an input reaches, told by the distance of its address from that of the first result: equal
# to the first number where they lay so in the call that was checked, from the second on behind the
# result, up to the third in front of it.
Apart = tuple[int, int, int]


class Entry:
    """What dispatch found out about a request.

    Attributes:
        options: the first of the request, as the caller gave them.
        like: whether arrays are like those of the request, in one call, if the library tells.
        low: the bits of ALIGNMENT_MASK of each input's address, side by side in one number.
        context: of the device; a thread that has not used the device yet has none current.
        device: its number.
        take, put_back, make: those of the Launcher, of a launch's arguments.
        lend: puts a workspace's address among the values of a launch; None without one.
        makers: what allocates each result.
        apart: of each input that is an array, how far from the first result it has to lie.
        packers: of each number, what returns its word.
        words: of each number, the last int or float that was given and its word: packing takes
            0.5 us, and what else is a number may be an array, whose value changes.
    """

    __slots__ = (
        *("options", "like", "low", "context", "device", "take", "put_back", "make", "lend"),
        *("makers", "apart", "packers", "words"),
    )

    def __init__(
        self,
        request: tuple[Any, ...],
        library: Library,
        operands: Sequence[Operand],
        inputs: Sequence[Any],
        outputs: Sequence[Output],
        launch: Launcher,
    ) -> None:
        """Keep a call that has just been launched; its device is current.

        Args:
            request: its own.
            library: of all arrays.
            operands: of the kernel, which say what results and numbers are.
            inputs: x, and the others as the caller gave them.
            outputs: the results.
            launch: the launch.
        """
        arrays, results = [], [each.target for each in outputs]
        self.packers: list[Callable[[Any], int]] = []
        asked = [operand for operand in operands if not operand.result]
        for operand, given in zip(asked, inputs, strict=True):
            if operand.extent is Extent.NUMBER:
                self.packers.append(operand.word)
            else:
                arrays.append(given)
        self.options = request[:OPTIONS]
        self.like = library.alike(arrays)
        self.low = request[OPTIONS]
        self.context = require_device().cuda.driver.ctxGetCurrent()
        self.device = library.device(inputs[0])
        self.take, self.put_back, self.make = launch.take, launch.put_back, launch.make
        self.lend = launch.prepare
        made = [operand for operand in operands if operand.result]
        self.makers = tuple(
            library.maker(tuple(each.shape), operand.dtype)
            for operand, each in zip(made, results, strict=True)
        )
        self.apart = [_apart(library, each, results[0]) for each in arrays]
        self.words: list[tuple[Any, int]] = [(self.packers, 0)] * len(self.packers)


def _apart(library: Library, array: Any, y: Any) -> Apart:
    start, target = library.pointer(array), library.pointer(y)
    (low, high), (y_low, y_high) = extent(library, array), extent(library, y)
    behind, before = (y_high - target) - (low - start), (y_low - target) - (high - start)
    return start - target, behind, before


def is_apart(known: Sequence[Apart], target: int, starts: Sequence[int]) -> bool:
    """Whether inputs at these addresses share nothing with what is at `target`, or lie as known."""
    return all(
        start - target == same or start - target >= behind or start - target <= before
        for start, (same, behind, before) in zip(starts, known, strict=True)
    )


class Calls(dict[type, Run]):
    """The calls of one function: a run for each class of arrays, and at most MOST_CALLS entries.

    Two of the same function share no entry.

    `calls[type(x)](x, out, axis, dtype, tune, variant, batch_invariant, rest)` returns the result,
    or a tuple of all, by an entry or by `dispatch`. Threads need no lock: they find an entry or do
    not, and what changes in one is replaced in one step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[Hashable, Entry] = {}

    @property
    def operands(self) -> Sequence[Operand]:
        """What a call is given and makes, in the order of the kernel's arguments."""
        raise NotImplementedError

    def dispatch(self, request: tuple[Any, ...] | None, x: Any, out: Any, *asked: Any) -> Any:
        """Return the result of a call that has no entry, and keep one under `request`.

        Args:
            request: None for a call that cannot be kept.
            x: as in `api.softmax`.
            out: as in `api.softmax`.
            asked: axis, dtype, tune, variant, batch_invariant, and the inputs beside x.
        """
        raise NotImplementedError

    def __missing__(self, kind: type) -> Run:
        return self._first

    def _first(self, x: Any, out: Any, *asked: Any) -> Any:
        """Return the result for a class that has no run; a library's own class gets one."""
        library = own_library_of(x)
        if library is None:
            return self.dispatch(None, x, out, *asked)
        run = self[type(x)] = run_of(library, self)
        return run(x, out, *asked)

    def keep(
        self,
        request: tuple[Any, ...] | None,
        library: Library,
        operands: Sequence[Operand],
        inputs: Sequence[Any],
        out: Any,
        outputs: Sequence[Output],
        launch: Launcher,
    ) -> None:
        """Keep a call that has just been launched, with the arguments of `Entry`.

        One that needed a copy of the result, or that allocates where the kernel does not reach, is
        left to `dispatch`.
        """
        y = outputs[0].target
        if request is None or (y is not out if out is not None else _low(library, y)):
            return
        entry = Entry(request, library, operands, inputs, outputs, launch)
        if len(self.entries) >= MOST_CALLS:
            self.entries.clear()
        self.entries[request] = entry


def _low(library: Library, array: Any) -> int:
    return library.pointer(array) & ALIGNMENT_MASK


def run_of(library: Library, calls: Calls) -> Run:
    """Return the run of a library's own arrays."""
    made: dict[str, Any] = {}
    exec(_compiled(text_of(library.code, calls.operands)), made)
    device = require_device().cuda
    run: Run = made["make"](
        calls.entries,
        calls.dispatch,
        device.driver.ctxGetCurrent,
        device.runtime.streamIsCapturing,
        look_up,
        is_of_ints,
        is_apart,
        **library.code.uses,
    )
    return run


@functools.cache
def _compiled(text: str) -> Any:
    return compile(text, "<softgen run>", "exec")


# What a library has no need of is an empty line. `given` stands for the arguments of a run.
TEMPLATE = """\
def make(entries, dispatch, current_context, is_capturing, look, is_of_ints, is_apart, {uses}):
    last, recent = None, (None, None)

    def run(x, out, axis, dtype, tune, variant, batch_invariant, rest=()):
        nonlocal last, recent
        request = entry = None
        mode, invariant = look(b"SOFTGEN_TUNE"), look(b"SOFTGEN_BATCH_INVARIANT")
        try:
            {unpack}
            {addresses}
            low = {low} if {present} else None  # what is at 0 is empty, or was freed
            {likeness}
            if entry is None and {served}:
                request = (
                    axis, dtype, tune, variant, batch_invariant, mode, invariant, low,
                    {facts}, None if out is None else ({out_facts}),
                )
                asked, entry = recent  # as one: another thread may replace it
                if request != asked:  # which takes less time than to hash
                    entry = entries.get(request)
                # True and 1.0 equal the axis 1, and are refused.
                if entry is not None and type(axis) is not int and not is_of_ints(axis):
                    entry = None
                {renew}
                if entry is not None and out is None:
                    last, recent = entry, (request, entry)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            # No array of the library, one without memory, or an option without a hash.
            request = entry = None
        if entry is None or current_context() != entry.context:
            last, recent = None, (None, None)  # of another context, it would be found again
            return dispatch(request, {given})
        stream = {stream}
        {capture}
        {makers}, = entry.makers
        if out is None:
            {make_y}
            fits = not y_at & 15
        else:
            y, y_at = out, {out_address}
            fits = y_at and is_apart(entry.apart, y_at, ({starts},))
        if not fits:
            return dispatch(request, {given})
        {make_others}
        {pack}
        try:
            mine = entry.take()
        except IndexError:
            mine = entry.make()
        values, go, _, _ = mine
        {values}
        values[{stream_place}] = stream
        if entry.lend is not None:
            entry.lend(mine, stream)
        if go():  # the driver refused; dispatch finds out why
            return dispatch(request, {given})
        entry.put_back(mine)
        {written}
        return {returned}

    return run
"""

# A request like the last one needs no key, where a library tells in one call what arrays are like.
LIKENESS = """\
seen = last  # another thread may replace it
if seen is not None and out is None and low == seen.low and seen.like({arrays}) and {when}:
    was_axis, was_dtype, was_tune, was_variant, was_fixed, was_mode, was_word = seen.options
    if (
        axis is was_axis
        and dtype is was_dtype
        and tune is was_tune
        and variant is was_variant
        and batch_invariant is was_fixed
        and mode is was_mode
        and invariant is was_word
    ):
        entry = seen
"""

# A comparison holds in one state of the thread: autocast, inference mode and the first call of
# compiled code have others.
RENEW = """\
if entry is not None and entry is seen and not entry.like({arrays}):
    entry.like = alike(({arrays},))
"""

# Packing takes 0.5 us, and a number is often the last one.
PACK = """\
was, word_{name} = entry.words[{i}]
if {name} is not was:
    word_{name} = entry.packers[{i}]({name})
    if type({name}) is float or type({name}) is int:
        entry.words[{i}] = {name}, word_{name}
"""

# An allocation may call cudaMalloc, which breaks a capture.
CAPTURE = """\
if {allocates}stream > {legacy} and is_capturing(stream):
    return dispatch(request, {given})
"""

GIVEN = "x, out, axis, dtype, tune, variant, batch_invariant, rest"


def text_of(code: Code, operands: Sequence[Operand]) -> str:
    """Return the text of the code for a library and the operands of a function."""
    names, arrays = ["x"], ["x"]
    numbers: list[str] = []
    results: list[str] = []
    for place, operand in enumerate(operands[1:], 1):
        kind, letter = arrays, "a"
        if operand.result:
            kind, letter = results, "y"
        elif operand.extent is Extent.NUMBER:
            kind, letter = numbers, "n"
        names.append("y" if operand.result and not results else f"{letter}{place}")
        kind.append(names[-1])
    beside = [name for name in names[1:] if name not in results]
    address = code.address.format
    words = {name: f"{name}_at" for name in (*arrays, "y")}
    words |= {name: f"word_{name}" for name in numbers}
    words |= {name: address(name) for name in results[1:]}
    allocates = "" if len(results) > 1 else "out is None and "
    likeness = LIKENESS.format(arrays=", ".join(arrays), when=code.compares)
    capture = CAPTURE.format(allocates=allocates, legacy=LAST_LEGACY_STREAM, given=GIVEN)
    return _filled(
        TEMPLATE,
        uses=", ".join(code.uses),
        unpack=f"({', '.join(beside)},) = rest" if beside else "",
        addresses="\n".join(f"{name}_at = {address(name)}" for name in arrays),
        low=" | ".join(f"({name}_at & 15) << {4 * i}" for i, name in enumerate(arrays)),
        present=" and ".join(f"{name}_at" for name in arrays),
        likeness=likeness if code.compares else "",
        renew=RENEW.format(arrays=", ".join(arrays)) if code.compares else "",
        served=" and ".join(
            [
                code.served.format(", ".join(arrays)),
                *(code.beside.format(name) for name in arrays[1:] if code.beside),
            ]
        ),
        facts=", ".join(code.facts.format(name) for name in arrays),
        out_facts=f"{code.facts.format('out')}, {address('out')} & 15",
        given=GIVEN,
        stream=code.stream,
        capture=capture if code.mallocs_in_capture else "",
        makers=", ".join(f"make_{name}" for name in results),
        make_y=f"{code.make.format('y')}\ny_at = {address('y')}",
        out_address=address("out"),
        starts=", ".join(f"{name}_at" for name in arrays),
        make_others="\n".join(code.make.format(name) for name in results[1:]),
        pack="".join(PACK.format(name=name, i=i) for i, name in enumerate(numbers)),
        values="\n".join(f"values[{i}] = {words[name]}" for i, name in enumerate(names)),
        stream_place=str(STREAM),
        written=code.written,
        returned=", ".join(results),
    )


def _filled(template: str, **parts: str) -> str:
    """Return a template with its parts; one alone on a line is indented as that line is."""
    lines = []
    for line in template.splitlines():
        alone = re.fullmatch(r"( *)\{(\w+)\}", line)
        if alone:
            lines += [alone[1] + each for each in parts[alone[2]].splitlines()]
        else:
            lines.append(line.format(**parts))
    return "\n".join(lines) + "\n"
