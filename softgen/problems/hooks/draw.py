"""The noise that draws an element of each row: by a counter-based generator, column by column.

Column c takes 16 bits of Philox4x32-7 as dropout takes them, of the counter (c // 8, row, offset)
under the key `seed`, and 32 more, word 0 of the counter (c + 2^31, row, offset); where each row has
a seed of its own the row's number is 0. With v the middle of what 48 bits leave of it,
E = -log(1 - v) is exponential, and the largest x / temperature - log(E) is a sample of
softmax(x / temperature). The first bits tell of most elements that they are no sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import OfFunction
from softgen.problems.hooks.dropout import philox


@dataclass(frozen=True)
class Draw(OfFunction):
    """Of the elements that a thread has seen the one with the largest score.

    Attributes:
        temperatures: whether each row has a temperature of its own.
        seeds: whether each row has a seed of its own.
        filtered: whether only the largest of a row are drawn, so that it is not done as they come.
        gradient: never.
    """

    temperatures: bool = False
    seeds: bool = False
    filtered: bool = False
    gradient: bool = False

    name = "draw"
    placed = True  # the column tells which bits make the noise
    enters = True  # they are seen there, and stay what they are
    computes = False  # elements stay what they are

    @property
    def by_row(self) -> bool:
        """One seed makes other noise in each row."""
        return not self.seeds

    def registers(self, compute: DType) -> int:
        """Return what the generator takes, and what is known of the row.

        With 36 two packs of bfloat16 32000 spilled 16 bytes in 1024 threads of `online`.
        """
        return 40 + compute.itemsize


def noise(rows: int, cols: int, seed: Any, offset: int) -> Any:
    """Return log(E) of each element, exactly, as float64.

    Args:
        rows: how many.
        cols: how many of each.
        seed: an integer, or an array of one a row.
        offset: 64 bits, of either sign.
    """
    import numpy as np

    each = np.ndim(seed) > 0
    row = np.arange(rows) * (not each)
    keys = np.asarray(seed).astype(np.int64).astype(np.uint64)[:, None] if each else int(seed)

    def words(first: Any) -> list[Any]:
        shape = (rows, len(first))
        counter = np.broadcast_to(first.astype(np.uint64), shape)
        second = np.broadcast_to(row.astype(np.uint64)[:, None], shape)
        return philox(counter, second, int(offset), keys)

    count, half, mask = -(-cols // 8), np.uint64(16), np.uint64(2**16 - 1)
    halves = [part for word in words(np.arange(count)) for part in (word & mask, word >> half)]
    high = np.stack(halves, axis=2).reshape(rows, 8 * count)[:, :cols].astype(np.float64)
    low = words(np.arange(cols) + 2**31)[0].astype(np.float64)
    return np.log(-np.log1p(-(high * 2.0**32 + low + 0.5) * 2.0**-48))
