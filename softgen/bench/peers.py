"""The competitors: softgen's own ways to choose a kernel here, other libraries' beside this file.

A peer prepares an entrant for an arena: a launch that reads input i and writes output i. Whatever
goes wrong on the way (not installed, shape refused, out of shared memory) makes it absent, with the
reason, and stops nobody else.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from softgen.bench.arena import Arena
from softgen.errors import InvalidValueError
from softgen.replay import Launch


class Library(Enum):
    """Whose capture a launch needs: PyTorch's, which gives a graph memory of its own, or CuPy's."""

    CUPY = "cupy"
    TORCH = "torch"


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Entrant:
    """A competitor that is ready for one shape.

    Attributes:
        launch: enqueues launch i on the arena's stream, which is the library's current one then.
        library: who captures it.
        note: what a reader of the figures has to know.
        collect: after launch(0), puts the result into the arena's first output if the competitor
            chose its own memory.
    """

    launch: Launch
    library: Library = Library.CUPY
    note: str = ""
    collect: Callable[[], None] = _nothing


class AbsentError(Exception):
    """The peer cannot take part; the message is the reason."""


@dataclass(frozen=True)
class Peer:
    """A competitor by name.

    Attributes:
        name: as in --peers and in the tables.
        prepare: returns the entrant; AbsentError or any other exception makes the peer absent.
        packages: what has to be importable.
        compiles: whether every shape costs seconds of compilation: only landmarks are timed.
    """

    name: str
    prepare: Callable[[Arena], Entrant]
    packages: tuple[str, ...] = ()
    compiles: bool = False

    def missing(self) -> str | None:
        """Return which package is not installed, in words, or None."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        return None


def softgen_entrant(
    arena: Arena, *, tune: str | None = None, variant: str | None = None
) -> Entrant:
    """Return softgen's kernel for the arena's shape; the arguments are those of `softgen.plan`."""
    from softgen.api import plan

    shape, buffers, pairs = arena.shape, arena.buffers, arena.pairs
    kernel = plan("softmax", shape.dtype, shape.cols, rows=shape.rows, tune=tune, variant=variant)

    def launch(i: int) -> None:
        x, y = buffers.inputs[i % pairs], buffers.outputs[i % pairs]
        kernel.launch(x, y, shape.rows, arena.player.stream.ptr)

    return Entrant(launch, note=kernel.variant.strategy.label)


def own_peers() -> list[Peer]:
    """Return softgen's tuned call, its first guess, and its reproduction of OneFlow's choice."""
    return [
        Peer("softgen", softgen_entrant),
        Peer("softgen-untuned", lambda arena: softgen_entrant(arena, tune="off")),
        Peer("oneflow", lambda arena: softgen_entrant(arena, variant="oneflow")),
    ]


LADDER = "ladder"


def ladder_peers() -> list[Peer]:
    """Return the steps of FastSoftmax's ladder of optimizations, each a variant by name."""
    if importlib.util.find_spec("softgen.ladder") is None:
        return []
    steps: Sequence[str] = importlib.import_module("softgen.ladder").LADDER

    def at(step: str) -> Peer:
        return Peer(step, lambda arena: softgen_entrant(arena, variant=step))

    return [at(step) for step in steps]


def all_peers() -> dict[str, Peer]:
    """Return every peer that takes part by default, by name, softgen's own first."""
    from softgen.bench.libraries import library_peers

    return {peer.name: peer for peer in (*own_peers(), *library_peers())}


def peers_for(suite: str, names: Sequence[str] | None) -> list[Peer]:
    """Return the peers named, or by default all of them, and the ladder on its own suite.

    Raises InvalidValueError for an unknown name, listing the known ones.
    """
    known = all_peers()
    if names is None:
        return [*known.values(), *(ladder_peers() if suite == "fastsoftmax" else [])]
    chosen: dict[str, Peer] = {}
    for name in names:
        if name == LADDER:
            chosen.update({peer.name: peer for peer in ladder_peers()})
        elif name in known:
            chosen[name] = known[name]
        else:
            raise InvalidValueError(
                f"unknown peer {name!r}; softgen knows: {', '.join([*known, LADDER])}"
            )
    return list(chosen.values())
