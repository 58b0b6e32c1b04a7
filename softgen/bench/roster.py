"""Who takes part: by default, of a suite, or by a name that --peers gives."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from softgen.bench.choosing import choosing_peers, sampling_peers, yardsticks
from softgen.bench.host import numpy_peers
from softgen.bench.libraries import autotuned_peers, lesson_peers, library_peers
from softgen.bench.named import (
    article_peers,
    ladder_peers,
    pack_peers,
    searched_ladder,
    variant_peer,
)
from softgen.bench.peers import (
    Peer,
    contiguous_entrant,
    dependent_copies,
    exhaustive_field,
    softgen_entrant,
)
from softgen.bench.record import LIMIT
from softgen.bench.shape import Shape
from softgen.bench.suites import SUITES
from softgen.errors import InvalidValueError
from softgen.names import unknown

AGAIN = "softgen-again"
EXHAUSTIVE = "softgen-exhaustive"
INVARIANT = "softgen-invariant"
PLAIN = "softgen-plain"
CONTIGUOUS = "softgen-contiguous"
DEPENDENT_COPY = "copy-dependent"

# Groups of peers by one name, as --peers takes it.
GROUPS = {"ladder": ladder_peers, "ladder-best": searched_ladder}

# The suite, and its one shape, that are also computed on the CPU: those of the article's CPU line.
HOST_SUITE, HOST_ROWS, HOST_COLS = "online", 20000, 5000


def own_peers() -> list[Peer]:
    """Return softgen's tuned call, its first guess, and its reproduction of OneFlow's choice."""
    return [
        Peer("softgen", softgen_entrant, cases=True, samples=True),
        Peer("softgen-untuned", lambda buffers: softgen_entrant(buffers, tune="off"), cases=True),
        Peer("oneflow", lambda buffers: softgen_entrant(buffers, variant="oneflow")),
    ]


def extra_peers() -> dict[str, Peer]:
    """Return the peers of softgen's that are there to judge a run, by name.

    `softgen-again` is the kernel of `softgen`, timed once more: what its time differs by is the
    noise of the run. `softgen-exhaustive` is the best of all settings, whatever the tuner chose.
    `softgen-invariant` is what a call with batch_invariant=True runs, `softgen-plain` the kernel of
    `softgen` by plain launches. `softgen-contiguous` is the call on a contiguous array in the place
    of a view. `copy-dependent` is the fastest copy, or read, by dependent ones.
    """
    peers = (
        Peer(AGAIN, softgen_entrant, cases=True),
        Peer(EXHAUSTIVE, exhaustive_field, compiles=True),
        Peer(INVARIANT, lambda buffers: softgen_entrant(buffers, batch_invariant=True), cases=True),
        Peer(PLAIN, lambda buffers: softgen_entrant(buffers, pdl=False), cases=True),
        Peer(CONTIGUOUS, contiguous_entrant, cases=True),
        Peer(DEPENDENT_COPY, dependent_copies, cases=True),
    )
    return {peer.name: peer for peer in peers}


def all_peers() -> dict[str, Peer]:
    """Return every peer that takes part by default, by name, softgen's own first."""
    return {peer.name: peer for peer in (*own_peers(), *library_peers())}


def peers_of_suites() -> dict[str, list[Peer]]:
    """Return what a suite times beside the peers of `all_peers`, by its name.

    The kernels of the piece whose shapes they are; and where nobody chose the shapes, the noise.
    """
    return {
        "triton": lesson_peers(),
        "fastsoftmax": searched_ladder(),
        "online": [*article_peers(), *numpy_peers()],
        "packs": pack_peers(),
        "compiled": autotuned_peers(),
        "short": [extra_peers()[name] for name in (PLAIN, DEPENDENT_COPY, AGAIN)],
        "drawn": [extra_peers()[AGAIN]],
        "routing": [*yardsticks(), *choosing_peers()],
        "sample": sampling_peers(),
    }


@functools.cache
def others() -> frozenset[str]:
    """Return the names of the peers that run nothing of softgen's, and of the limit."""
    peers = (
        *(*library_peers(), *autotuned_peers(), *lesson_peers(), *numpy_peers()),
        *(*choosing_peers(), *sampling_peers()),
    )
    return frozenset({LIMIT, *(peer.name for peer in peers)})


def named_peers(names: Sequence[str]) -> list[Peer]:
    """Return the peers, groups of peers and variants of those names, each once.

    Raises InvalidValueError for an unknown name, listing the known ones.
    """
    known = all_peers() | extra_peers()
    for of_suite in peers_of_suites().values():
        known |= {peer.name: peer for peer in of_suite}
    chosen: dict[str, Peer] = {}
    for name in names:
        if name in GROUPS:
            chosen.update({peer.name: peer for peer in GROUPS[name]()})
        elif (peer := known.get(name) or variant_peer(name)) is not None:
            chosen[name] = peer
        else:
            more = ", and any variant: a strategy, a setting, a named choice, a full name"
            raise InvalidValueError(unknown("peer", name, [*known, *GROUPS], more))
    return list(chosen.values())


def peers_for(shape: Shape, names: Sequence[str] | None) -> list[Peer]:
    """Return the peers named, or by default those of `all_peers` and of the shape's suite."""
    if names is not None:
        return named_peers(names)
    if shape.suite in SUITES and (of_suite := SUITES[shape.suite].peers) is not None:
        return named_peers(of_suite)
    found = [*all_peers().values(), *peers_of_suites().get(shape.suite, [])]
    if (shape.suite, shape.rows, shape.cols) == (HOST_SUITE, HOST_ROWS, HOST_COLS):
        return found
    on_host = {peer.name for peer in numpy_peers()}
    return [peer for peer in found if peer.name not in on_host]
