"""FastSoftmax's ladder and the kernels of the online-softmax articles, each a setting with a name.

Sources: FastSoftmax (SzymonOzog), a softmax that becomes fast in steps, one change each; Milakov &
Gimelshein (arXiv 1805.02867) with their benchmark, NVIDIA/online-softmax. docs/ladder.md walks up.
"""

from __future__ import annotations

from collections.abc import Callable

from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.strategies.base import Strategy
from softgen.strategies.lessons.recurrence import Recurrence
from softgen.strategies.lessons.serial import Serial
from softgen.strategies.lessons.threepass import Threepass
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe

# Registers of elements that a thread has in flight where loads are unrolled: four packs of float32.
# They fit every element type and block without a spill.
_IN_FLIGHT = 16


def _unroll(problem: Problem) -> int:
    """Return how many of the widest packs a thread loads before it uses the first."""
    words = problem.dtype.max_pack * problem.compute_dtype.itemsize // 4
    return max(1, min(4, _IN_FLIGHT // words))


def _block(problem: Problem) -> int:
    """Return the threads in a block, the same on every step, so that a step changes one thing.

    Few enough that a thread of a narrow row still has something to unroll.
    """
    widest = 512 if problem.compute_dtype is DType.FLOAT64 else 1024
    each = problem.dtype.max_pack * _unroll(problem)
    return _power_of_two(problem.cols // each, 64, widest)


def _article_block(problem: Problem) -> int:
    """Return the threads in a block as the articles' benchmark does: at least 8 elements each."""
    return _power_of_two(problem.cols // 8, 32, 256)


def _power_of_two(most: int, low: int, high: int) -> int:
    """Return the largest power of two up to `most`, within `low` and `high`."""
    return min(high, max(low, 1 << max(0, most.bit_length() - 1)))


def _float4(problem: Problem) -> Threepass:
    return Threepass(problem.dtype.max_pack, 1, True, True, _block(problem))


def _unrolled(problem: Problem) -> Threepass:
    return Threepass(problem.dtype.max_pack, _unroll(problem), True, True, _block(problem))


def _online_rescale(problem: Problem) -> Online:
    return Online(problem.dtype.max_pack, _unroll(problem), _block(problem))


_STEPS: dict[str, Callable[[Problem], Strategy]] = {
    "naive": lambda problem: Serial(32),
    "tree": lambda problem: Threepass(1, 1, False, False, _block(problem)),
    "coalesced": lambda problem: Threepass(1, 1, True, False, _block(problem)),
    "shuffle": lambda problem: Safe(_block(problem)),
    "float4": _float4,
    "unrolled": _unrolled,
    "online_rescale": _online_rescale,
    "article_safe": lambda problem: Safe(_article_block(problem)),
    "article_online": lambda problem: Recurrence(_article_block(problem)),
}

ARTICLES = ("article_safe", "article_online")
LADDER = tuple(name for name in _STEPS if name not in ARTICLES)


def step(name: str, problem: Problem) -> Strategy:
    """Return the setting of a step of LADDER, or of a kernel of ARTICLES, for `problem`.

    "float4" takes packs of 16 bytes whatever the type: four elements of float32, eight of bfloat16.

    Raises InvalidValueError for another name.
    """
    try:
        return _STEPS[name](problem)
    except KeyError:
        raise InvalidValueError(
            f"unknown step {name!r}; the ladder is {', '.join(LADDER)}; "
            f"beside it there are {', '.join(ARTICLES)}"
        ) from None
