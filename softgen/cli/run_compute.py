"""The kernel of `softgen run`, on a GPU or on the CPU emulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from softgen.cli import options
from softgen.spec.problem import Problem
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softgen.source.render import Source
    from softgen.spec.arch import Arch


@dataclass(frozen=True)
class Computed:
    """Results and where they came from, in storage form. Nothing is timed on the CPU.

    `arch` is what the variant was chosen for.
    """

    results: tuple[NDArray[Any], ...]
    variant: Variant
    device: str
    arch: Arch
    microseconds: float | None = None


def compute(
    where: options.Device,
    problem: Problem,
    inputs: Sequence[NDArray[Any]],
    choice: Variant | str | None,
    emulating: AbstractContextManager[object],
    text: Source | None = None,
) -> Computed:
    """Compute inputs in storage form on the GPU, or with the same text on the emulator.

    `emulating` is entered while the emulator is at work, and not before all is known to be legal.
    `text` is one that was edited, of the variant `choice`.
    """
    if where is options.Device.CUDA:
        from softgen.cli.run_gpu import run_on_gpu

        made = run_on_gpu(problem, inputs, choice, text)
        return Computed(made.results, made.variant, made.arch.device, made.arch, made.microseconds)

    from softgen.devices import emulator
    from softgen.source.render import render
    from softgen.spec.arch import DEFAULT_ARCH, arch_named
    from softgen.strategies.select import select
    from softgen.tuning.policy import debugging, tell

    debug, start = debugging(), time.perf_counter()
    arch = arch_named(DEFAULT_ARCH)
    x, *others = inputs
    variant = select(problem, x.shape[0], arch, choice)
    source = text or render(variant)
    if debug:
        origin = "best guess" if choice is None else "asked for"
        tell(variant, x.shape[0], "the CPU emulator", origin, start)
    with emulating:
        results = emulator.run_each(source, x, others=tuple(others))
    return Computed(results, variant, "cpu emulator", arch)
