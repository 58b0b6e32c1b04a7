"""softcap: c tanh(x / c), which keeps elements between -c and c, as Gemma 2 has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import Hook
from softgen.problems.operands import Extent, Operand


@dataclass(frozen=True)
class Softcap(Hook):
    """Bend elements towards -c and c. It moves no maximum; -inf becomes -c."""

    name = "softcap"
    formula = "softcap * tanh(x / softcap)"
    instructions = 8.0  # where all of 8 neighbours are below 0.8 c

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return c."""
        accepts = "finite and above 0"
        return (Operand("softcap", compute, Extent.NUMBER, False, "Compute", accepts=accepts),)

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return a c that leaves some elements as they are, nearly, and bends others."""
        return (10.0,)

    def enter(self, x: Any, *values: Any) -> Any:
        """Return c tanh(x / c) in a wider type: a kernel is held against the exact number."""
        import numpy as np

        (c,) = (np.asarray(value, np.longdouble) for value in values)
        return c * np.tanh(x.astype(np.longdouble) / c)

    def slope(self, entered: Any, *values: Any) -> Any:
        """Return 1 - tanh^2."""
        return 1 - (entered / float(values[0])) ** 2

    def steps(self, compute: DType) -> float:
        """Return twice what one element is off by: two may be off in opposite directions.

        In float64 that is its rounding, 2^-53. In float32 it is up to 2.5e-7, or 2.13 steps: the
        exponential off by 2 units in the last place (as ex2.approx is) and the quotient by 1 make
        1.1e-7 of it, and roundings the rest. To have less of it takes twice the instructions.
        """
        return 1.0 if compute is DType.FLOAT64 else 4.25

    def registers(self, compute: DType) -> int:
        """Return what the polynomial of some elements takes; tanh() in float64."""
        return 28 if compute is DType.FLOAT32 else 32
