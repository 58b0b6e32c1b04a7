"""Scales: a number times every element, on its way in or out, or a number a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import FLOAT32_TINY, DType
from softgen.problems.hooks.base import Hook, Leaving
from softgen.problems.hooks.places import Place, one_term
from softgen.problems.operands import Extent, Operand


@dataclass(frozen=True)
class Scale(Hook):
    """Multiply by a number, as 1 / temperature.

    Attributes:
        sign: "positive", which moves no maximum and keeps the -inf of what is not there; or "any".
    """

    sign: str = "positive"

    kind = "scale"
    formula = "scale * x"

    @property
    def name(self) -> str:
        """As in names of kernels."""
        return "scale" if self.sign == "positive" else "scaleany"

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return a number of the type of the arithmetic."""
        # What float32 arithmetic takes for 0 makes NaN of the -inf of what is not there.
        least = "above 0" if compute is DType.FLOAT64 else "1.18e-38 or more"
        accepts = f"finite and {least}" if self.sign == "positive" else "finite"
        scale = Operand("scale", compute, Extent.NUMBER, False, "Compute", accepts=accepts)
        return (scale,)

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return a number whose products are rounded."""
        return (0.7 if self.sign == "positive" else -0.7,)

    def enter(self, x: Any, *values: Any) -> Any:
        """Return the products."""
        return x * _factor(x, values[0])

    def slope(self, entered: Any, *values: Any) -> Any:
        """Return the number."""
        return _factor(entered, values[0])

    def gain(self, x: Any, *values: Any) -> Any:
        """Return its size."""
        return abs(float(values[0]))

    @property
    def placed(self) -> bool:
        """Times any other number, the -inf of what is not there may be +inf, or NaN."""
        return self.sign != "positive"


@dataclass(frozen=True)
class RowScale(Hook):
    """Multiply by a number of the row, of any sign."""

    name = "scalerow"
    kind = "scale"
    formula = "scale[row] * x"
    by_row = True  # a number a row

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return an array of the type of the arithmetic, and where rows find their element."""
        scale = Operand("scale", compute, Extent.BROADCAST, False, "Compute")
        return (scale, *one_term("scale"))

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return four numbers, each for two rows."""
        import numpy as np

        return (np.array([0.7, -1.3, 0.0, 2.5]), 2, 4)

    def enter(self, x: Any, *values: Any) -> Any:
        """Return the products."""
        return x * _factor(x, row_values(x, *values))

    def slope(self, entered: Any, *values: Any) -> Any:
        """Return the rows' numbers."""
        return _factor(entered, row_values(entered, *values))

    def gain(self, x: Any, *values: Any) -> Any:
        """Return their sizes."""
        return abs(row_values(x, *values))


def _factor(x: Any, scale: Any) -> Any:
    """Return what the arithmetic of x takes a scale for: 0 where -ftz=true makes that of it."""
    import numpy as np

    if x.dtype != np.float32:
        return scale
    return np.where(np.abs(scale) < FLOAT32_TINY, np.float32(0), scale)


@dataclass(frozen=True)
class OutScale(Leaving):
    """Multiply the results by a number."""

    name = "outscale"
    formula = "out_scale * y"

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return a number of the type of the arithmetic."""
        accepts = "finite"
        return (Operand("out_scale", compute, Extent.NUMBER, False, "Compute", accepts=accepts),)

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return a number whose products are rounded."""
        return (0.3,)

    def leave(self, y: Any, *values: Any) -> Any:
        """Return the products."""
        return y * values[0]


@dataclass(frozen=True)
class RowOutScale(Leaving):
    """Multiply the results by a number of the row, as one that makes most of a type of 8 bits."""

    name = "outscalerow"
    kind = "outscale"
    formula = "out_scale[row] * y"
    by_row = True  # a number a row

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return an array of the type of the arithmetic, and where rows find their element."""
        scale = Operand("out_scale", compute, Extent.BROADCAST, False, "Compute")
        return (scale, *one_term("out_scale"))

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return three numbers, each for two rows."""
        import numpy as np

        return (np.array([0.3, -1.7, 5.0]), 2, 3)

    def leave(self, y: Any, *values: Any) -> Any:
        """Return the products."""
        return y * row_values(y, *values)


def row_values(x: Any, values: Any, every: Any, count: Any) -> Any:
    """Return the elements of an array for the rows of `x`, as a column."""
    import numpy as np

    place = Place(int(every), int(count), 1)
    return values.reshape(-1)[place.of(np.arange(len(x)))][:, None]
