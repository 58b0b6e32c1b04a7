"""The code of a warm call, once for each array library.

A run puts everything that may decide how a request is computed into one flat key (nested tuples
take 0.08 us more, an Enum in them 0.15), and launches what the full path found out under it. A
request like the last one needs no key, whose hash takes 0.1 us. What a run touches are local and
cell variables: a method of softgen's own would take 0.05 to 0.1 us a call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from softgen.devices.gpu.device import require_device

# run(x, out, axis, dtype, tune, variant, batch_invariant) returns the result.
Run = Callable[..., Any]
# full(x, out, axis, dtype, tune, variant, batch_invariant, key) returns it by the full path. The
# key is None if the request cannot be kept.
Full = Callable[..., Any]


class Entry(NamedTuple):
    """What the full path found out about a request.

    Attributes:
        context: of the device; a thread that has not used the device yet has none current.
        device: its number.
        take, put_back, make, prepare, start: the parts of a Launcher.
        shape: of the result.
        allocate: what makes a result (see Library.result_maker).
        dtype: of the result, as the library has it.
        x_bytes: size of x.
        y_bytes: size of the result.
        alike: whether an array is like this x, if the library tells.
    """

    context: int
    device: int
    take: Any
    put_back: Any
    make: Any
    prepare: Any
    start: Any
    shape: tuple[int, ...]
    allocate: Any
    dtype: Any
    x_bytes: int
    y_bytes: int
    alike: Callable[[Any], bool]


Find = Callable[[Hashable], Entry | None]

# What os.environ.get reads; it decodes at each look, 0.9 us, and this dict takes 0.03.
look_up: Callable[[bytes], bytes | None] = vars(os.environ)["_data"].get

# Pointers are told apart up to the widest access of a thread.
ALIGNMENT_MASK = 15
# The null stream and its other name cannot be captured.
LAST_LEGACY_STREAM = 1


def never(x: Any) -> bool:
    """Tell of no array that it is like another, where a library does not."""
    return False


def is_captured(stream: int) -> bool:
    """Whether the stream of that handle is being captured into a CUDA graph."""
    return bool(require_device().cuda.runtime.streamIsCapturing(stream))
