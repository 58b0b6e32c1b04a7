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
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.replay import Launch
from softgen.errors import CompileError, InvalidValueError
from softgen.names import unknown
from softgen.spec.functions.base import Function
from softgen.tuning.measure import launch_over

LADDER = "ladder"
AGAIN = "softgen-again"
EXHAUSTIVE = "softgen-exhaustive"
INVARIANT = "softgen-invariant"


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
        result: returns the device address of the result of launch i, after it, if the competitor
            chose its own memory; None if that is output i.
    """

    launch: Launch
    library: Library = Library.CUPY
    note: str = ""
    collect: Callable[[], None] = _nothing
    result: Callable[[int], int] | None = None


@dataclass(frozen=True)
class Field:
    """Several settings of one competitor, the fastest of which counts.

    Attributes:
        settings: those that can be timed; the note of each is its name.
        left_out: why others cannot.
    """

    settings: tuple[Entrant, ...]
    left_out: tuple[Exception, ...]


class AbsentError(Exception):
    """The peer cannot take part; the message is the reason."""


@dataclass(frozen=True)
class Peer:
    """A competitor by name.

    Attributes:
        name: as in --peers and in the tables.
        prepare: returns the entrant, or several; AbsentError or any other exception makes the peer
            absent.
        packages: what has to be importable.
        compiles: whether every shape costs seconds of compilation: only landmarks are timed.
        functions: names of those that it has; None for all.
    """

    name: str
    prepare: Callable[[Arena], Entrant | Field]
    packages: tuple[str, ...] = ()
    compiles: bool = False
    functions: tuple[str, ...] | None = None

    def lacking(self, function: Function) -> str | None:
        """Return that it does not have the function, in words, or None."""
        has = self.functions is None or function.name in self.functions
        return None if has else f"has no {function}"

    def missing(self) -> str | None:
        """Return which package is not installed, in words, or None."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        return None


def softgen_entrant(
    arena: Arena,
    *,
    tune: str | None = None,
    variant: str | None = None,
    batch_invariant: bool = False,
) -> Entrant:
    """Return softgen's kernel for the arena's shape; the arguments are those of `softgen.plan`.

    The same arguments give the very same kernel, whatever another tuning would choose.
    """
    from softgen.call.plan import plan

    shape = arena.shape
    key = (tune, variant, batch_invariant)
    if key not in arena.kernels:
        arena.kernels[key] = plan(
            shape.function,
            shape.dtype,
            shape.cols,
            rows=shape.rows,
            tune=tune,
            variant=variant,
            batch_invariant=batch_invariant,
        ).loaded
    return _entrant_of(arena.kernels[key], arena)


def _entrant_of(kernel: LoadedKernel, arena: Arena) -> Entrant:
    launch = launch_over(arena.buffers, kernel, arena.player)
    return Entrant(launch, note=kernel.variant.strategy.label)


def exhaustive_field(arena: Arena) -> Field:
    """Return every setting of softgen's for the arena's shape that compiles without spills.

    Those of all strategies that are tuned, also where the cost model would not have them timed.
    """
    from softgen.devices.gpu.compile import compile_many
    from softgen.source.render import render
    from softgen.strategies.variants import candidates

    settings: list[Entrant] = []
    left_out: list[Exception] = []
    for made in compile_many(map(render, candidates(arena.problem, arena.shape.rows, arena.arch))):
        if isinstance(made, CompileError):
            left_out.append(made)
        elif made.local_bytes:
            left_out.append(AbsentError("spills registers"))
        else:
            settings.append(_entrant_of(made, arena))
    return Field(tuple(settings), tuple(left_out))


def own_peers() -> list[Peer]:
    """Return softgen's tuned call, its first guess, and its reproduction of OneFlow's choice."""
    return [
        Peer("softgen", softgen_entrant),
        Peer("softgen-untuned", lambda arena: softgen_entrant(arena, tune="off")),
        Peer("oneflow", lambda arena: softgen_entrant(arena, variant="oneflow")),
    ]


def extra_peers() -> dict[str, Peer]:
    """Return the peers of softgen's that are there to judge a run, by name.

    `softgen-again` is the kernel of `softgen`, timed once more: what its time differs by is the
    noise of the run. `softgen-exhaustive` is the best of all settings, whatever the tuner chose.
    `softgen-invariant` is what a call with batch_invariant=True runs.
    """
    peers = (
        Peer(AGAIN, softgen_entrant),
        Peer(EXHAUSTIVE, exhaustive_field, compiles=True),
        Peer(INVARIANT, lambda arena: softgen_entrant(arena, batch_invariant=True)),
    )
    return {peer.name: peer for peer in peers}


def ladder_peers() -> list[Peer]:
    """Return the steps of FastSoftmax's ladder of optimizations, each a variant by name."""
    if importlib.util.find_spec("softgen.strategies.lessons.ladder") is None:
        return []
    steps: Sequence[str] = importlib.import_module("softgen.strategies.lessons.ladder").LADDER

    def at(step: str) -> Peer:
        return Peer(step, lambda arena: softgen_entrant(arena, variant=step))

    return [at(step) for step in steps]


def all_peers() -> dict[str, Peer]:
    """Return every peer that takes part by default, by name, softgen's own first."""
    from softgen.bench.libraries import library_peers

    return {peer.name: peer for peer in (*own_peers(), *library_peers())}


def peers_for(suite: str, names: Sequence[str] | None) -> list[Peer]:
    """Return the peers named, or by default those of `all_peers` and the suite's own.

    The ladder is FastSoftmax's, and shapes that nobody chose are timed with the noise beside them.
    Raises InvalidValueError for an unknown name, listing the known ones.
    """
    known, extra = all_peers(), extra_peers()
    if names is None:
        own = {"fastsoftmax": ladder_peers(), "drawn": [extra[AGAIN]]}
        return [*known.values(), *own.get(suite, [])]
    known |= extra
    chosen: dict[str, Peer] = {}
    for name in names:
        if name == LADDER:
            chosen.update({peer.name: peer for peer in ladder_peers()})
        elif name in known:
            chosen[name] = known[name]
        else:
            raise InvalidValueError(unknown("peer", name, [*known, LADDER]))
    return list(chosen.values())
