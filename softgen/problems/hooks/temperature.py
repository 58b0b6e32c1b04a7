"""The temperature of a row: elements are divided by it, as 0 stands for the largest by 1 there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import FLOAT32_TINY, DType
from softgen.problems.hooks.base import OfFunction


@dataclass(frozen=True)
class Temperature(OfFunction):
    """Elements times 1 / temperature, which is rounded.

    Attributes:
        of_rows: whether each row has one of its own.
        gradient: never.
    """

    of_rows: bool = False
    gradient: bool = False

    name = "temperature"
    enters = True

    def enter(self, x: Any, *values: Any) -> Any:
        """Return x over the temperature of its row, NaN where that is none."""
        import numpy as np

        least = FLOAT32_TINY if x.itemsize == 4 else 0  # -ftz=true
        warm = np.asarray(values[0]).astype(x.dtype).reshape(-1, 1)
        none = (abs(warm) < least) | (warm == 0)
        with np.errstate(all="ignore"):
            inverse = 1 / np.where(none, 1, warm)
        return x * np.where(none, 1, np.where(inverse > least, inverse, np.nan)).astype(x.dtype)

    def registers(self, compute: DType) -> int:
        """Return what a number takes."""
        return compute.itemsize // 2
