"""What a competitor is, and how softgen's kernels enter: by a choice, or all of several settings.

A peer prepares an entrant for the buffers of a shape: a launch that reads input i and writes output
i. Whatever goes wrong on the way (not installed, shape refused, out of shared memory) makes it
absent, with the reason, and stops nobody else.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from softgen.bench import limit
from softgen.bench.buffers import SharedBuffers
from softgen.bench.shape import Shape
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.replay import Launch
from softgen.errors import CompileError, IllegalVariantError
from softgen.problems.arch import capability_name
from softgen.strategies.base import PDL_NEEDS
from softgen.strategies.variants import Variant, candidates
from softgen.tuning.measure import launch_over


class Library(Enum):
    """The library that captures a launch: PyTorch, which gives a graph its own memory, or CuPy.

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
        launch: enqueues launch i on the buffers' stream, which is the library's current one then.
        library: who captures it.
        note: what a reader of the figures has to know.
        collect: after launch(0), puts the result into the buffers' first output if the competitor
            chose its own memory.
        result: returns the device address of the result of launch i, after it, if the competitor
            chose its own memory; None if that is output i.
        computes: whether it computes the function on the buffers' inputs; what only moves their
            bytes, or computes others, has no error.
        coarseness: its error may be so many times the usual bound: more than 1 where it rounds to
            the type of x on the way to an exponential.
        first_alone: whether it gives only the first of a kernel's results.
        gives: the names of the results that it gives, where those are chosen; () for all.
        objection: returns what is wrong with the results of launch(0), or "", where they are no
            function's of the inputs.
    """

    launch: Launch
    library: Library = Library.CUPY
    note: str = ""
    collect: Callable[[], None] = _nothing
    result: Callable[[int], int] | None = None
    computes: bool = True
    coarseness: float = 1.0
    first_alone: bool = False
    gives: tuple[str, ...] = ()
    objection: Callable[[], str] | None = None


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


Prepare = Callable[[SharedBuffers], Entrant | Field]


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
        cases: whether it has other axes, hooks and views.
        samples: whether it draws samples of rows, or is timed beside those.
    """

    name: str
    prepare: Prepare
    packages: tuple[str, ...] = ()
    compiles: bool = False
    functions: tuple[str, ...] | None = None
    cases: bool = False
    samples: bool = False

    def lacking(self, shape: Shape) -> str | None:
        """Return what it does not have of what a shape is about, in words, or None."""
        function = shape.function
        if self.functions is not None and function.name not in self.functions:
            return f"has no {function}"
        if shape.case is not None and not self.cases:
            return "is called for rows of contiguous arrays alone"
        if shape.case is not None and shape.case.samples and not self.samples:
            return "draws no samples"
        return None

    def missing(self) -> str | None:
        """Return which package is not installed, in words, or None."""
        for package in self.packages:
            if importlib.util.find_spec(package) is None:
                return f"{package} is not installed"
        return None


def softgen_entrant(
    buffers: SharedBuffers,
    *,
    tune: str | None = None,
    variant: str | None = None,
    batch_invariant: bool = False,
    pdl: bool = True,
) -> Entrant:
    """Return softgen's kernel for the buffers' shape; the arguments are those of `softgen.plan`.

    The same arguments give the very same kernel, whatever another tuning would choose. Where there
    is a hook or a view it is the call on arrays that is timed.
    """
    from softgen.call.plan import plan

    shape = buffers.shape
    if shape.case is not None and shape.case.samples:
        from softgen.bench.choosing import softgen_sample

        return softgen_sample(buffers)
    if shape.case is not None and shape.case.called:
        options = {"tune": tune, "variant": variant, "batch_invariant": batch_invariant or None}
        return called_entrant(buffers, pdl=pdl, **options)
    key = (tune, variant, batch_invariant)
    if key not in buffers.kernels:
        buffers.kernels[key] = plan(
            shape.function,
            shape.dtype,
            shape.cols,
            rows=shape.rows,
            tune=tune,
            variant=variant,
            batch_invariant=batch_invariant,
            inner=shape.case.inner if shape.case else 1,
        ).loaded
    return entrant_of(buffers.kernels[key], buffers, pdl=pdl)


def called_entrant(buffers: SharedBuffers, **options: Any) -> Entrant:
    """Return softgen's call on the buffers' CuPy arrays; `options` as in `softgen.softmax`."""
    import softgen

    function, axis, pairs = (
        getattr(softgen, buffers.shape.function.name),
        buffers.shape.axis,
        buffers.pairs,
    )
    x, y, given = buffers.x, buffers.y, buffers.given

    def launch(i: int) -> None:
        function(x[i % pairs], axis, out=y[i % pairs], **options, **given)

    return Entrant(launch, note="a call")


def contiguous_entrant(buffers: SharedBuffers) -> Entrant:
    """Return softgen's call on a contiguous array in the place of a view, of the view's shape."""
    import softgen

    function, axis, pairs = (
        getattr(softgen, buffers.shape.function.name),
        buffers.shape.axis,
        buffers.pairs,
    )
    x, y = buffers.contiguous_x, buffers.y

    def launch(i: int) -> None:
        function(x[i % pairs], axis, out=y[i % pairs])

    return Entrant(launch, note="a call on a contiguous array", computes=False)


def entrant_of(kernel: LoadedKernel, buffers: SharedBuffers, *, pdl: bool = True) -> Entrant:
    """Return a compiled kernel of softgen's as a competitor; its setting is the note."""
    launch = launch_over(buffers.allocated, kernel, buffers.player, pdl=pdl)
    return Entrant(launch, note=kernel.variant.strategy.label)


def field_of(buffers: SharedBuffers, variants: Iterable[Variant]) -> Field:
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
            variant.check(buffers.arch)
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
            settings.append(entrant_of(made, buffers))
    return Field(tuple(settings), tuple(left_out))


def dependent_copies(buffers: SharedBuffers) -> Field:
    """Return copies, or reads if no element is written, each launched before the last has ended."""
    if buffers.arch.compute_capability < PDL_NEEDS:
        raise AbsentError(f"needs {capability_name(PDL_NEEDS)} or later")
    sweeps = limit.settings_for(buffers.problem)
    return Field(
        tuple(
            Entrant(
                limit.launch_of(sweep, buffers, dependent=True), note=sweep.label, computes=False
            )
            for sweep in sweeps
        ),
        (),
    )


def exhaustive_field(buffers: SharedBuffers) -> Field:
    """Return every setting of softgen's for the buffers' shape that compiles without spills.

    Those of all strategies that are tuned, also where the cost model would not have them timed.
    """
    return field_of(buffers, candidates(buffers.problem, buffers.shape.rows, buffers.arch))
