"""Dropout of results by a counter-based generator: the same bits for any strategy.

Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; 7 rounds are
the fewest that pass BigCrush there). Element e of the result takes 16 bits of the counter
(e // 8, offset) under the key `seed`: of word e % 8 // 2 the lower half where e is even, else the
upper one. It stays where they are at least `threshold`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softgen.problems.dtypes import DType
from softgen.problems.hooks.base import Leaving
from softgen.problems.hooks.places import number
from softgen.problems.operands import Extent, Operand

_ROUNDS = 7

# What 16 bits can be: the probability is a multiple of 1 / 65536.
_VALUES = 2**16

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


@dataclass(frozen=True)
class Dropout(Leaving):
    """Multiply results by 0 with probability threshold / 65536, and the others by a number."""

    name = "dropout"
    formula = "kept_scale * y where kept"
    placed = True  # the column tells which bits decide
    leaves = True  # elements are dropped one by one
    instructions = 7.0  # as in a kernel with packs of 8 elements on an H200

    def operands(self, compute: DType) -> tuple[Operand, ...]:
        """Return what decides who is kept, and what those are multiplied by."""
        return (
            number("threshold", "0 to 65536: an element stays where its 16 bits are not less"),
            number("seed", "any 64 bits: the key of Philox4x32-7"),
            number("seed_offset", "any 64 bits: the upper half of its counter"),
            Operand("kept_scale", compute, Extent.NUMBER, False, "Compute", accepts="finite"),
        )

    def example(self, rows: int, cols: int) -> tuple[Any, ...]:
        """Return p = 0.3, nearly."""
        threshold = threshold_of(0.3)
        return (threshold, 2**40 + 12345, 2**33 + 7, kept_scale_of(threshold))

    def other_examples(self, rows: int) -> tuple[dict[str, Any], ...]:
        """Return p = 0, which keeps all, and p = 1, which keeps nothing: all would stay else."""
        return tuple({"threshold": threshold_of(p), "kept_scale": 1.0} for p in (0, 1))

    def leave(self, y: Any, *values: Any) -> Any:
        """Return what is kept, multiplied, and 0, or NaN where that was no number."""
        import numpy as np

        threshold, seed, offset, scale = values
        bits = bits_of(np.arange(y.size, dtype=np.uint64), int(seed), int(offset))
        kept = bits.reshape(y.shape) >= np.uint64(int(threshold))
        return np.where(kept, y * scale, y * 0)

    def registers(self, compute: DType) -> int:
        """Return what the generator takes."""
        return 20


def threshold_of(p: float) -> int:
    """Return the threshold for the multiple of 1 / 65536 that is nearest to `p`, from 0 to 1."""
    return round(p * _VALUES)


def kept_scale_of(threshold: int) -> float:
    """Return what keeps the mean where `threshold` in 65536 are dropped; 0 where all are."""
    return _VALUES / (_VALUES - threshold) if threshold < _VALUES else 0.0


def bits_of(elements: Any, seed: int, offset: int) -> Any:
    """Return the 16 random bits of each element, as an array of uint64.

    Args:
        elements: numbers of elements, an array of uint64.
        seed: 64 bits, of either sign.
        offset: 64 bits, of either sign.
    """
    import numpy as np

    counter = elements // np.uint64(8)
    words = philox(counter & np.uint64(_MASK), counter >> np.uint64(32), offset, seed)
    which = (elements % np.uint64(8)).astype(np.int64)
    word = np.choose(which // 2, words)
    return np.where(which % 2, word >> np.uint64(16), word & np.uint64(0xFFFF))


def philox(first: Any, second: Any, offset: int, seed: Any) -> list[Any]:
    """Return the four words of Philox4x32-7, each an array of uint64.

    Args:
        first: the first word of each counter, an array of uint64.
        second: its second word, likewise.
        offset: the other two, 64 bits of either sign.
        seed: the key, 64 bits of either sign; or an array of uint64.
    """
    import numpy as np

    mask, half = np.uint64(_MASK), np.uint64(32)
    words = [first, second]
    words += [np.full_like(first, offset >> shift & _MASK) for shift in (0, 32)]
    seeds = seed if isinstance(seed, np.ndarray) else np.uint64(seed & 2**64 - 1)
    keys = [seeds & mask, seeds >> half]
    for _ in range(_ROUNDS):
        products = [words[2 * i] * np.uint64(_MULTIPLIERS[i]) for i in (0, 1)]
        words = [
            (products[1] >> half) ^ words[1] ^ keys[0],
            products[1] & mask,
            (products[0] >> half) ^ words[3] ^ keys[1],
            products[0] & mask,
        ]
        keys = [(key + np.uint64(step)) & mask for key, step in zip(keys, _WEYL, strict=True)]
    return words
