"""Kernels of a soak without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from tests.helpers.driver import FakeKernel, Seen


class Loaded(FakeKernel):
    """A kernel that spills nothing, and computes where `computes` is true."""

    local_bytes = 0
    computes = False

    def run(self, seen: Seen) -> None:
        if self.computes:
            with np.errstate(all="ignore"):  # what overflows is infinite, as on a GPU
                super().run(seen)


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """Let launches write results; they take most of the time of a call without a GPU."""
    Loaded.computes = True
    try:
        yield
    finally:
        Loaded.computes = False
