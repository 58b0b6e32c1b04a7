"""Runs shape after shape and yields what was found at each as soon as it is known."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from softgen.bench.buffers import SharedBuffers
from softgen.bench.machine import machine
from softgen.bench.peers import Peer
from softgen.bench.race import Race, Settings
from softgen.bench.record import Finding, Record, Regime, Status, records_of
from softgen.bench.shape import Shape
from softgen.devices.gpu.device import require_device
from softgen.errors import InvalidValueError

Report = Callable[[str], None]


def run(
    shapes: Sequence[Shape],
    peers_for: Callable[[Shape], Sequence[Peer]],
    settings: Settings,
    report: Report = lambda message: None,
) -> Iterator[list[Record]]:
    """Time the peers at every shape, and yield the records of each as soon as it is done.

    Args:
        shapes: what to time.
        peers_for: returns the peers for a shape.
        settings: how to time.
        report: told what is being done, in a few words.

    Raises NoDeviceError without a GPU.
    """
    where = machine()
    spent: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for shape in shapes:
        findings = _at(shape, peers_for(shape), settings, spent[shape.suite], report)
        _give_memory_back()
        yield records_of(shape, findings, where, settings.regime)


def _at(
    shape: Shape,
    peers: Sequence[Peer],
    settings: Settings,
    spent: dict[str, float],
    report: Report,
) -> list[Finding]:
    try:
        buffers = SharedBuffers(shape, chained=settings.regime is Regime.CHAINED)
    except InvalidValueError as error:  # too large for this GPU, or no chain
        reason = str(error)
        return [Finding(peer.name, Status.ABSENT, note=reason) for peer in peers]
    race = Race(buffers, settings, spent)
    for peer in peers:
        report(f"{shape.label}: {peer.name}")
        race.admit(peer)
    report(f"{shape.label}: timing")
    return race.findings()


def _give_memory_back() -> None:
    """Return what both libraries cached to the driver: neither sees what the other holds."""
    require_device().get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    # A code object is compiled anew for eight shapes, then never again: forget the earlier ones.
    # Not between two peers of a shape, whose first would be compiled again in the capture.
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
