"""Calls of softgen on CuPy's arrays, which tests/differential draws, on a stand-in or on a GPU."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.call import kernels
from softgen.source.render import Source
from softgen.tuning import policy
from tests.differential.calls import Cupy, call, native, stored_of
from tests.differential.regimes import Random
from tests.differential.storage import Stored
from tests.helpers.cupy_calls import ARCH, CupyArray, cupy_array, on_cupy
from tests.soak.run import Drawn
from tests.soak.stand_in import Loaded, computing

MOST_ELEMENTS = 3000  # of a call on the stand-in
FRESH_SHAPE = (120, 60, 4)  # parts of it are shapes of their own


class OnCupy:
    """Calls of softgen on CuPy's arrays."""

    def __init__(self, library: Any, most: int | None, x: Any) -> None:
        """Make calls.

        Args:
            library: of the arrays, as tests/differential takes it.
            most: elements of a call's x; None for any number.
            x: (a, b, columns), of which fresh shapes are parts.
        """
        self.library, self.most, self.x = library, most, x
        self.flat = x.reshape(-1, x.shape[-1])

    def drawn(self, seed: int, number: int) -> Drawn | None:
        """Return a call of a seed."""
        one = call(seed, number, self.library)
        return one if self.most is None or one.rows.x.size <= self.most else None

    def wrong(self, one: Drawn) -> list[str] | None:
        """Make a call and return what `Drawn.wrong` says of it."""
        return one.wrong()

    def fresh(self, random: Random) -> Any:
        """Make a call on some rows, which are a view of more or lie one behind the other."""
        function = (softgen.softmax, softgen.log_softmax, softgen.logsumexp)[random.integers(3)]
        a, b, _ = self.x.shape
        if random.random() < 0.5:
            return function(self.x[: random.integers(1, a + 1), : random.integers(1, b + 1)])
        return function(self.flat[: random.integers(1, a * b + 1)])


class CupyStandIn(OnCupy):
    """CuPy's calls without a GPU: softgen chooses kernels and emits them, and none is compiled.

    A call that is compared is computed by its function's definition; others are launched, and write
    nothing. Memory of the device is what arrays hold that are alive.
    """

    most_device = 2**14

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        real = kernels.kernel_for
        self.world = on_cupy(patch)
        patch.setattr(self.world, "kernel_for", real)
        patch.setattr(kernels, "_kernels", {})
        patch.setattr(kernels, "compile_source", self._loaded)
        patch.setattr(policy, "arch_of", lambda device: ARCH)
        patch.setenv("SOFTGEN_TUNE", "off")
        super().__init__(self, MOST_ELEMENTS, cupy_array(np.zeros(FRESH_SHAPE, "float32")))

    def _loaded(self, source: Source) -> Loaded:
        return Loaded(source.variant.problem, self.world.driver, source.variant)

    def device(self, stored: Stored, dtype: str) -> Any:
        """Return an array of the stand-in."""
        return cupy_array(native(stored, dtype))

    def host(self, array: Any) -> Stored:
        """Return an array's elements as they are stored."""
        return stored_of(np.asarray(array))

    def wrong(self, one: Drawn) -> list[str] | None:
        """Make a call and return what `Drawn.wrong` says of it."""
        with computing():
            return one.wrong()

    def device_bytes(self) -> int:
        """Return the bytes of all arrays that are alive, each piece of memory once."""
        found = {}
        for each in gc.get_objects():
            if issubclass(type(each), CupyArray):
                while isinstance(each.base, np.ndarray):
                    each = each.base
                found[id(each)] = each.nbytes
        return sum(found.values())

    def forget(self) -> None:
        """Forget launches and requests."""
        self.world.driver.forget()
        self.world.dispatched.clear()
        self.world.variants.clear()


class CupyOnGpu(OnCupy):
    """CuPy's calls on the current GPU; memory is what the driver says is not free."""

    most_device = 16 * 2**20  # it takes 2 MiB at once, and other programs may take some

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        import cupy

        patch.setenv("SOFTGEN_TUNE", "off")
        self.cupy = cupy
        super().__init__(Cupy(), None, cupy.zeros(FRESH_SHAPE, "float32"))

    def device_bytes(self) -> int:
        """Return what is not free, when CuPy's pool has given back what no array holds."""
        self.cupy.cuda.Device().synchronize()
        self.cupy.get_default_memory_pool().free_all_blocks()
        free, total = self.cupy.cuda.runtime.memGetInfo()
        return int(total - free)

    def forget(self) -> None:
        """Forget nothing."""
