"""What a competitor is, and how softgen's kernels enter: by a choice, or all of several settings.

A peer prepares an entrant for an arena: a launch that reads input i and writes output i. Whatever
goes wrong on the way (not installed, shape refused, out of shared memory) makes it absent, with the
reason, and stops nobody else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from softgen.bench import limit
from softgen.bench.arena import Arena
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.replay import Launch
from softgen.errors import CompileError, IllegalVariantError
from softgen.spec.arch import capability_name
from softgen.spec.functions.base import Function
from softgen.strategies.base import PDL_NEEDS
from softgen.strategies.variants import Variant, candidates
from softgen.tuning.measure import launch_over


class Library(Enum):
    """Whose capture a launch needs: PyTorch's, which gives a graph memory of its own, or CuPy's.

    What runs on the CPU needs none: a launch is a call, and has its result when it returns.
    """

    CUPY = "cupy"
    TORCH = "torch"
    HOST = "host"


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
        computes: whether it computes the function; what only moves its bytes has no error.
    """

    launch: Launch
    library: Library = Library.CUPY
    note: str = ""
    collect: Callable[[], None] = _nothing
    result: Callable[[int], int] | None = None
    computes: bool = True


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


Prepare = Callable[[Arena], Entrant | Field]


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
    prepare: Prepare
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
    pdl: bool = True,
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
    return entrant_of(arena.kernels[key], arena, pdl=pdl)


def entrant_of(kernel: LoadedKernel, arena: Arena, *, pdl: bool = True) -> Entrant:
    """Return a compiled kernel of softgen's as a competitor; its setting is the note."""
    launch = launch_over(arena.buffers, kernel, arena.player, pdl=pdl)
    return Entrant(launch, note=kernel.variant.strategy.label)


def field_of(arena: Arena, variants: Iterable[Variant]) -> Field:
    """Return those of softgen's `variants` that compile without spills, as one competitor.

    Raises AbsentError with the first reason if all are illegal.
    """
    from softgen.devices.gpu.compile import compile_many
    from softgen.source.render import render

    legal: list[Variant] = []
    settings: list[Entrant] = []
    left_out: list[Exception] = []
    for variant in variants:
        try:
            variant.check(arena.arch)
            legal.append(variant)
        except IllegalVariantError as error:
            left_out.append(error)
    if left_out and not legal:
        raise AbsentError(str(left_out[0]))
    for made in compile_many(map(render, legal)):
        if isinstance(made, CompileError):
            left_out.append(made)
        elif made.local_bytes:
            left_out.append(AbsentError("spills registers"))
        else:
            settings.append(entrant_of(made, arena))
    return Field(tuple(settings), tuple(left_out))


def dependent_copies(arena: Arena) -> Field:
    """Return copies, or reads if no element is written, each launched before the last has ended."""
    if arena.arch.compute_capability < PDL_NEEDS:
        raise AbsentError(f"needs {capability_name(PDL_NEEDS)} or later")
    sweeps = limit.settings(arena.problem.writes_elements)
    return Field(
        tuple(
            Entrant(limit.launch_of(sweep, arena, dependent=True), note=sweep.label, computes=False)
            for sweep in sweeps
        ),
        (),
    )


def exhaustive_field(arena: Arena) -> Field:
    """Return every setting of softgen's for the arena's shape that compiles without spills.

    Those of all strategies that are tuned, also where the cost model would not have them timed.
    """
    return field_of(arena, candidates(arena.problem, arena.shape.rows, arena.arch))
