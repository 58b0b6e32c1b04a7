"""The code of a warm call, once for each array library.

A run puts everything that may decide how a request is computed into one flat key (nested tuples
take 0.08 us more, an Enum in them 0.15), and launches what the full path found out under it. A
request like the last one needs no key, whose hash takes 0.1 us. What a run touches are local and
cell variables: a method of softgen's own would take 0.05 to 0.1 us a call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from softgen.devices.gpu.device import require_device

# run(x, out, axis, dtype, tune, variant, batch_invariant, rest) returns the result, or a tuple of
# all; rest are the inputs beside x, by default none.
Run = Callable[..., Any]
# full(x, out, axis, dtype, tune, variant, batch_invariant, rest, key) returns it by the full path.
# The key is None if the request cannot be kept.
Full = Callable[..., Any]
# prepare(arguments, stream, result, rest) puts what a launch takes beside x and the first result
# among its values, and returns what the call returns; None if the full path has to.
Prepare = Callable[[Any, int, Any, tuple[Any, ...]], Any]


class Entry(NamedTuple):
    """What the full path found out about a request; kept as a plain tuple, which unpacks quicker.

    Attributes:
        context: of the device; a thread that has not used the device yet has none current.
        device: its number.
        take, put_back, make: the parts of a Launcher.
        prepare: what is left to do before the launch, or None.
        place: of the first result among the values.
        shape: of the first result.
        allocate: what makes a result (see Library.result_maker).
        wanted: of an array that is given for the result: its dtype, as the library has it, the
            size of x and its own in bytes.
        second: place among the values of an input beside x, where that is all that `prepare` takes;
            else 0.
        alike: whether an array is like this x, if the library tells.
    """

    context: int
    device: int
    take: Any
    put_back: Any
    make: Any
    prepare: Prepare | None
    place: int
    shape: tuple[int, ...]
    allocate: Any
    wanted: tuple[Any, int, int]
    second: int
    alike: Callable[[Any], bool]


Find = Callable[[Hashable], tuple[Any, ...] | None]

# What os.environ.get reads; it decodes at each look, 0.9 us, and this dict takes 0.03.
look_up: Callable[[bytes], bytes | None] = vars(os.environ)["_data"].get

# SOFTGEN_TUNE and SOFTGEN_BATCH_INVARIANT as they are, which decide for any request.
Environment = tuple[bytes | None, bytes | None]


def environment() -> Environment:
    """Return both as they stand."""
    return look_up(b"SOFTGEN_TUNE"), look_up(b"SOFTGEN_BATCH_INVARIANT")


# Pointers are told apart up to the widest access of a thread.
ALIGNMENT_MASK = 15
# The null stream and its other name cannot be captured.
LAST_LEGACY_STREAM = 1


def never(*arrays: Any) -> bool:
    """Tell of no arrays that they are like others, where a library does not."""
    return False


def known(arrays: Sequence[Any], kind: type) -> bool:
    """Whether all are a library's own arrays, numbers or None: no subclass, no other library's."""
    return all(each is None or type(each) in (kind, float, int, bool) for each in arrays)


def is_captured(stream: int) -> bool:
    """Whether the stream of that handle is being captured into a CUDA graph."""
    return bool(require_device().cuda.runtime.streamIsCapturing(stream))
