"""Kernels of a world whose results the emulator computes, by the texts of the best guesses."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softgen.devices import emulator
from softgen.devices.emulator import program as of_emulator
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.problems.storage import numpy_dtype, storage_dtype
from softgen.source.render import render
from softgen.strategies.select import select
from tests.helpers.driver import FakeDriver, FakeKernel
from tests.helpers.torch_calls import World


class EmulatedKernel(FakeKernel):
    """A kernel of rows that follow each other, whose text is compiled in a folder."""

    def __init__(self, problem: Problem, driver: FakeDriver, programs: Path) -> None:
        super().__init__(problem, driver)
        self.programs = programs

    def results(self, inputs: Sequence[Any], rows: int) -> list[Any]:
        source = render(select(self.problem, rows, arch_named("sm_90")))
        with (self.programs / "lock").open("w") as lock:  # one process builds for all
            fcntl.flock(lock, fcntl.LOCK_EX)
            program = emulator.build([source])
        x, *others = map(in_storage, inputs, (each.dtype for each in self.problem.inputs))
        found = program.run_each(source, x.reshape(rows, -1), others=tuple(others))
        kinds = (numpy_dtype(each.dtype) for each in self.problem.results)
        return [each.view(kind) for each, kind in zip(found, kinds, strict=True)]


def in_storage(array: Any, dtype: Any) -> Any:
    """Return a copy of an operand in memory as the emulator takes it."""
    return np.array(array).view(storage_dtype(dtype))


def emulate(world: World, programs: Path) -> None:
    """Have the kernels of a world emulated. For a process of its own, which keeps programs."""
    vars(of_emulator)["program_folder"] = lambda: programs
    world.kernel = lambda problem, driver: EmulatedKernel(problem, driver, programs)
