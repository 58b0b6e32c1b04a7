"""The code of a warm call, once for each array library.

A run puts everything that may decide how a request is computed into one flat key (nested tuples
take 0.08 us more, an Enum in them 0.15), and launches what the full path found out under it. A
request like the last one needs no key, whose hash takes 0.1 us. What a run touches are local and
cell variables: a method of softgen's own would take 0.05 to 0.1 us a call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Any

from softgen.devices.gpu.device import require_device

# run(x, out, axis, dtype, tune, variant, batch_invariant) returns the result.
Run = Callable[..., Any]
# full(x, out, axis, dtype, tune, variant, batch_invariant, key) returns it by the full path. The
# key is None if the request cannot be kept.
Full = Callable[..., Any]
# The context of the device, which the calling thread must have current (one that has not used the
# device yet has none), and its number; the parts of a Launcher; what makes a result; its dtype; the
# sizes of x and of the result in bytes; whether an array is like this x, if the library tells.
Entry = tuple[int, int, Any, Any, Any, Any, Any, Any, Any, int, int, Callable[[Any], bool]]
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
