"""Who is dropped: Philox4x32 with 7 rounds, written from the paper and docs/hooks.md.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, figure 2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_ROUNDS = 7


def kept(rows: int, cols: int, threshold: int, seed: int, offset: int) -> npt.NDArray[np.bool_]:
    """Return which elements stay: those whose 16 bits are not less than `threshold`."""
    element = np.arange(rows * cols, dtype=np.uint64)
    block, place = element // np.uint64(8), (element % np.uint64(8)).astype(np.int64)
    words = np.stack(philox(block, offset % 2**64, seed % 2**64))
    word = words[place // 2, np.arange(rows * cols)]
    bits = np.where(place % 2 == 0, word & np.uint64(0xFFFF), word >> np.uint64(16))
    return (bits.astype(np.int64) >= threshold).reshape(rows, cols)


def philox(low: npt.NDArray[np.uint64], high: int, key: int) -> list[npt.NDArray[np.uint64]]:
    """Return the four words of the counter (low, high), each of 64 bits, under a key of 64."""
    word, half = np.uint64(2**32 - 1), np.uint64(32)
    c0, c1 = low & word, low >> half
    c2 = np.full_like(low, np.uint64(high & 0xFFFFFFFF))
    c3 = np.full_like(low, np.uint64(high >> 32))
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(_ROUNDS):
        left, right = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (right >> half) ^ c1 ^ np.uint64(k0),
            right & word,
            (left >> half) ^ c3 ^ np.uint64(k1),
            left & word,
        )
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]
