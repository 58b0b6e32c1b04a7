"""Hard inputs by name: what every kernel is verified on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from softgen.problems.arch import WARP_SIZE
from softgen.problems.dtypes import DType
from softgen.problems.numerics import Float64, Storage, encode
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy

_FINFO_MAX = {
    DType.FLOAT16: 65504.0,
    DType.BFLOAT16: 255 * 2.0**120,
    DType.FLOAT32: float(np.finfo(np.float32).max),
    DType.FLOAT64: float(np.finfo(np.float64).max),
}


# A NaN all of whose bits are set, in float32 too: the complement of what it may become is 0.
_ALL_ONES = float(np.array(2**64 - 1, np.uint64).view(np.float64))

# The smallest number above 0 that -ftz leaves alone.
_TINY = {
    DType.FLOAT16: 2.0**-14,
    DType.BFLOAT16: 2.0**-126,
    DType.FLOAT32: 2.0**-126,
    DType.FLOAT64: 2.0**-1022,
}


@dataclass(frozen=True)
class Slices:
    """How a row is dealt out: adjacent columns, in accesses of a thread, a warp and a block.

    Attributes:
        pack: columns that one access of a thread covers.
        warp: the same of a warp.
        block: the same of the threads of a block that share a row: where their second round starts.
        part: columns of a rank of a cluster, or of a chunk; 0 where a row is not cut into parts.
    """

    pack: int = 4
    warp: int = 4 * WARP_SIZE
    block: int = 4 * 128
    part: int = 0

    @classmethod
    def of(cls, strategy: Strategy, problem: Problem) -> Slices:
        """Return the slices of a strategy, from the knobs it has.

        A thread of those of columns has single elements, a warp and a block so many rows of those.
        """
        knobs = strategy.knobs
        if across := int(knobs.get("threads_across", 0)):
            block = int(knobs["block_size"]) // across
            return cls(1, min(block, max(1, WARP_SIZE // across)), block, strategy.part(problem))
        pack = int(knobs.get("pack_size", 1))
        if "outers" in knobs:
            share = int(knobs["threads_per_row"])
            return cls(1, share, share, share)
        threads = int(knobs.get("thread_group_width", knobs.get("block_size", 128)))
        return cls(pack, pack * WARP_SIZE, pack * threads, strategy.part(problem))


Make = Callable[[int, int, DType, Slices], Float64]


@dataclass(frozen=True)
class Regime:
    """A kind of input.

    Attributes:
        make: values for (rows, cols, dtype, slices); the same on every call.
        applies: whether the kind means anything for this number of columns.
        rows: how many rows it takes to show all of it; where rows are wide, `rows_if_wide`.
    """

    make: Make
    applies: Callable[[int], bool] = lambda cols: True
    rows: int = 3
    rows_if_wide: int = 1

    def array(self, rows: int, cols: int, dtype: DType, slices: Slices = Slices()) -> Storage:
        """Return the input in storage form."""
        return encode(self.make(rows, cols, dtype, slices), dtype)


def _random(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """Normal values, scaled so that a row's results span many orders of magnitude."""
    generator = np.random.default_rng([rows, cols])
    return generator.standard_normal((rows, cols)) * (1.0 + np.arange(rows)[:, None] % 5 * 3)


def _at(value: float) -> Make:
    """Put `value` in one column of each second row, another column each time."""

    def make(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
        x = _random(rows, cols, dtype, slices)
        for row in range(0, rows, 2):
            x[row, (row * 37 + cols - 1) % cols] = value
        return x

    return make


def _some_minus_inf(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    x = _random(rows, cols, dtype, slices)
    hidden = np.random.default_rng([cols, rows]).random((rows, cols)) < 0.5
    hidden[:, cols // 2] = False
    x[hidden] = -np.inf
    return x


def _minus_inf_slice(size: Callable[[Slices], int]) -> Make:
    """Fill slices with -inf: the first of a row, the last, or all but one element."""

    def make(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
        x = _random(rows, cols, dtype, slices)
        width = min(size(slices), cols - 1)
        for row in range(rows):
            if row % 3 == 0:
                x[row, :width] = -np.inf
            elif row % 3 == 1:
                x[row, cols - width :] = -np.inf
            else:
                start = cols // 2 // width * width if width else 0
                x[row, start : start + width] = -np.inf
                x[row, cols - 1] = 1.0
        return x

    return make


def _minus_inf_share(size: Callable[[Slices], int]) -> Make:
    """Fill all that one lane or warp holds with -inf, over all its rounds: the first's, the last's.

    Or all but that of the one in the middle. Rows may start within a pack, so a share is taken one
    pack wider than it is.
    """

    def make(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
        x = _random(rows, cols, dtype, slices)
        width, columns = size(slices), np.arange(cols)
        shares = max(1, slices.block // width)
        for row in range(rows):
            chosen = (0, shares - 1, shares // 2)[row % 3]
            mine = np.zeros(cols, bool)
            for before in (0, slices.pack - 1):
                at = columns + before
                at = (at % slices.part if slices.part else at) % slices.block
                mine |= at // width == chosen
            x[row, ~mine if row % 3 == 2 else mine] = -np.inf
            x[row, cols - 1] = 1.0
        return x

    return make


def _constant(value: Callable[[DType], float]) -> Make:
    return lambda rows, cols, dtype, slices: np.full((rows, cols), value(dtype))


def _finfo_min(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """The lowest finite number, and in each second row -inf beside it."""
    x = np.full((rows, cols), -_FINFO_MAX[dtype])
    x[1::2, 1::3] = -np.inf
    return x


def _large_magnitude(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    uniform = np.random.default_rng([rows, cols]).uniform(-1, 1, (rows, cols))
    return uniform * _FINFO_MAX[dtype]


def _far_from_zero(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """Values around 1.3 * 2^26, -1.9 * 2^21, -1.3 * 2^15 and 2^21.

    From 2^21 on x - max is exact in float32; at -1.9 * 2^21 a whole max log2(e) is past 2^24 with
    1.5 * 2^23 added, so no longer exact. Powers of two have no rounding error times log2(e).
    """
    sizes = np.array([1.3 * 2**26, -1.9 * 2**21, -1.3 * 2**15, 2.0**21])
    far = np.minimum(np.abs(sizes), _FINFO_MAX[dtype] / 2) * np.sign(sizes)
    x: Float64 = np.random.default_rng([rows, cols]).standard_normal((rows, cols)) * 10
    x += far[np.arange(rows) % sizes.size, None]
    return x


def _peaks(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """One value of 1000 in a row, where slices meet: exp overflows unless it is the maximum.

    Also the other way around: whatever is summed twice, or left out, is 1 there and not 0.
    """
    x = _random(rows, cols, dtype, slices)
    sizes = (slices.pack, slices.warp, slices.block, slices.part)
    edges = [edge for size in sizes for edge in (size - 1, size)]
    places = list(dict.fromkeys([0, cols - 1, 1, cols - 2, *edges, cols // 2]))
    places = [place for place in places if 0 <= place < cols]
    for row in range(rows):
        x[row, places[row % len(places)]] = 1000.0
    return x


def _late_maximum(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """Rows whose sum is rescaled in every step, once at the end, or never; then in equal terms.

    Equal terms are all rounded the same way, so what a sum loses adds up: for those of -0.8 and
    -1.55 to 4e-6 over 300 additions. Every thread begins with something larger, or they are 1.
    """
    x = np.empty((rows, cols))
    for row in range(rows):
        x[row] = (np.linspace(0, 12, cols), -0.8, -1.55)[row % 3]
        if row % 3:
            x[row, : slices.block : slices.pack] = 0.0
        if row % 3 == 1:
            x[row, -1] = 5.0
    return x


def _zero_maximum(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """A maximum of 0, of -0, and of the smallest number above 0: where the sign of bits changes."""
    x = -np.abs(_random(rows, cols, dtype, slices))
    top = (0.0, -0.0, _TINY[dtype])
    for row in range(rows):
        x[row, row * 5 % cols] = top[row % 3]
    return x


def _wide_spread(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """Values of sigma 100: down to e^-600 of a row's largest result, where x - max is rounded."""
    return np.random.default_rng([rows, cols]).standard_normal((rows, cols)) * 100


# Of 16 bits. In float32 2^d 2^-d is below 1, where d is what rounding x log2(e) takes from it.
_SURE = (1.71875, -5.6875, 24.25, -103.0, 528.0, -984.0, 6368.0, 47872.0)


def _confident(rows: int, cols: int, dtype: DType, slices: Slices) -> Float64:
    """One element far above all others: by 200 or more, by 16 where one is next, or all are -inf.

    So nothing, or hardly anything, is added to the largest one's term.
    """
    below = 200 + 100 * np.abs(np.random.default_rng([rows, cols]).standard_normal((rows, cols)))
    x: Float64 = np.resize(_SURE, rows)[:, None] - below
    x[1::2] = -np.inf
    for row in range(rows):
        largest = _SURE[row % len(_SURE)]
        if row % 4 == 2:
            x[row, (row * 11 + 1) % cols] = largest - 16
        x[row, row * 11 % cols] = largest
    return x


REGIMES: dict[str, Regime] = {
    "random": Regime(_random),
    "nan": Regime(_at(np.nan)),
    "nan_of_ones": Regime(_at(_ALL_ONES)),
    "plus_inf": Regime(_at(np.inf)),
    "some_minus_inf": Regime(_some_minus_inf),
    "all_minus_inf": Regime(_constant(lambda dtype: -np.inf)),
    "minus_inf_pack": Regime(_minus_inf_slice(lambda slices: slices.pack), rows_if_wide=3),
    "minus_inf_warp": Regime(_minus_inf_slice(lambda slices: slices.warp), rows_if_wide=3),
    "minus_inf_block_slice": Regime(_minus_inf_slice(lambda slices: slices.block), rows_if_wide=3),
    "minus_inf_lane_share": Regime(_minus_inf_share(lambda slices: slices.pack), rows_if_wide=3),
    "minus_inf_warp_share": Regime(
        _minus_inf_share(lambda slices: min(slices.warp, slices.block)), rows_if_wide=3
    ),
    "minus_inf_part": Regime(
        _minus_inf_slice(lambda slices: slices.part or slices.block), rows_if_wide=3
    ),
    "finfo_min_row": Regime(_finfo_min, rows=2, rows_if_wide=2),
    "finfo_max_row": Regime(_constant(lambda dtype: _FINFO_MAX[dtype])),
    "all_equal": Regime(_constant(lambda dtype: 0.75)),
    "confident": Regime(_confident, rows=8, rows_if_wide=4),
    "large_magnitude": Regime(_large_magnitude),
    "far_from_zero": Regime(_far_from_zero, rows=4, rows_if_wide=2),
    "wide_spread": Regime(_wide_spread),
    "peaks": Regime(_peaks, rows=13, rows_if_wide=6),
    "late_maximum": Regime(_late_maximum, rows_if_wide=3),
    "zero_maximum": Regime(_zero_maximum, rows_if_wide=3),
    "one_column": Regime(_random, applies=lambda cols: cols == 1),
    "odd_cols": Regime(_random, applies=lambda cols: cols % 2 == 1),
}
