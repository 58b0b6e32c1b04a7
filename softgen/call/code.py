"""How generated code asks an array of a library for what a call needs (runner.py)."""

from __future__ import annotations

from typing import Any, NamedTuple


class Code(NamedTuple):
    """Pieces of the text; `{}` stands for the name of an array.

    Attributes:
        address: its address.
        facts: what decides, beside its address, how it is computed.
        served: whether a launch may take `out` and arrays, by their names.
        beside: whether it may take one array beside x; empty where `served` tells.
        stream: the handle of the caller's stream on the device of `entry`.
        make: what makes a result with `make_{}`, as the library's `maker` returns it.
        written: what is done to `out` behind a launch.
        compares: when `Entry.like` tells what arrays are like; empty for never.
        mallocs_in_capture: as in Library.
        uses: what these names are.
    """

    address: str
    facts: str
    served: str
    beside: str
    stream: str
    make: str
    written: str
    compares: str
    mallocs_in_capture: bool
    uses: dict[str, Any]
