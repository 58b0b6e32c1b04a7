"""Which candidates are worth timing: a model of their time, so that a tuning takes seconds.

A strategy's own `estimate`, which was fitted to device times, is the main term. What is multiplied
to it tells settings of one strategy apart that cannot keep the memory busy, or leave threads idle.
"""

from __future__ import annotations

import math

from softgen.problems.arch import KIB, MOST_REGISTERS, Arch
from softgen.problems.problem import Problem
from softgen.strategies import registers
from softgen.strategies.base import Strategy
from softgen.strategies.launch import Launch, blocks_per_multiprocessor
from softgen.strategies.variants import Variant, candidates

# Bytes that an SM must have on their way to keep its share of the memory busy: 4.8 TB/s for about
# 700 ns, over the 132 SMs of an H200.
BYTES_IN_FLIGHT = 25 * KIB

# A strategy is plausible if its estimate is within this factor of the best one's: estimates were
# off by up to 1.35 (float32 128 x 4194304 on an H200). Of each, so many are timed anyway.
STRATEGY_WITHIN = 1.6
LEAST_STRATEGIES = 2
LEAST_OF_STRATEGY = 3

# When it was fitted, the cost of 21 winners on an H200 was within 1.16 of the least, but for one
# that is the best of its strategy.
VARIANT_WITHIN = 1.3
MOST = 38
# Costs within this factor say nothing, and the order of the candidates counts: bfloat16 axis 0 of
# (64, 21, 512, 512) takes 355 us by the third, which has 1.002 of the least cost as 150 have, and
# 385 by the best of the 38 that cost least.
ALIKE = 1.05


def worth_timing(problem: Problem, rows: int, arch: Arch) -> list[Variant]:
    """Return the candidates that may win for `rows` rows on `arch`, best guess first.

    They are in the order of `candidates`, so those of one strategy follow each other.
    """
    found = list(candidates(problem, rows, arch))
    plausible = _plausible(found, rows, arch)
    costs = {v: cost(v, rows, arch) for v in found if type(v.strategy) in plausible}
    if not costs:
        return []
    cheapest = sorted(costs, key=lambda variant: costs[variant])  # stable: ties by best guess
    least = costs[cheapest[0]]
    kept = {found[0]}
    for kind in plausible:
        kept.update([v for v in cheapest if type(v.strategy) is kind][:LEAST_OF_STRATEGY])
        kept.add(next(v for v in found if type(v.strategy) is kind))
    steps = {v: int(math.log(each / least, ALIKE)) for v, each in costs.items()}
    for variant in sorted(costs, key=lambda variant: steps[variant]):
        if len(kept) < MOST and costs[variant] <= VARIANT_WITHIN * least:
            kept.add(variant)
    return [variant for variant in found if variant in kept]


def cost(variant: Variant, rows: int, arch: Arch) -> float:
    """Return about the time of `variant` over that of a copy."""
    problem, strategy, launch = variant.problem, variant.strategy, variant.launch
    held = elements_held(strategy)
    resident = _resident_blocks(_registers(strategy, held, problem), launch, arch)
    return (
        strategy.estimate(problem, rows, arch)
        * _starved(held, resident, problem, launch, rows, arch)
        * _idle(held, problem, launch, rows, arch)
        * _tail(resident, launch, rows, arch)
    )


def elements_held(strategy: Strategy) -> int:
    """Return how many elements a thread loads before it waits, by the knobs that strategies share.

    Those that hold a row say `cols_per_thread` (and `rows_per_access`), those that walk over it
    `unroll` packs.
    """
    knobs = strategy.knobs
    walks = knobs.get("pack_size", 1) * knobs.get("unroll", 1)
    held = knobs.get("cols_per_thread", walks) * knobs.get("rows_per_access", 1)
    if "threads_across" in knobs and "cols_per_thread" in knobs:
        return held * knobs["pack_size"]  # of so many rows each
    return held


def _plausible(found: list[Variant], rows: int, arch: Arch) -> list[type[Strategy]]:
    """Return the strategies near the best one by estimate, and never fewer than two."""
    kinds = list(dict.fromkeys(type(variant.strategy) for variant in found))
    estimates = [kind.estimate(found[0].problem, rows, arch) for kind in kinds]
    return [
        kind
        for i, (kind, estimate) in enumerate(zip(kinds, estimates, strict=True))
        if i < LEAST_STRATEGIES or estimate <= STRATEGY_WITHIN * estimates[0]
    ]


def _registers(strategy: Strategy, held: int, problem: Problem) -> int:
    """Return a guess of the registers of a thread: the compiler has not run yet."""
    stored = problem.dtype if strategy.knobs.get("packed") else problem.compute_dtype
    others = registers.OTHER[problem.compute_dtype]
    held -= strategy.knobs.get("shared_cols", 0) * strategy.knobs.get("pack_size", 1)
    return min(MOST_REGISTERS, held * stored.itemsize // 4 + others)


def _resident_blocks(registers: int, launch: Launch, arch: Arch) -> int:
    """Return the blocks of an SM."""
    return max(1, blocks_per_multiprocessor(launch, registers, launch.shared_bytes, arch))


def _starved(
    held: int, resident: int, problem: Problem, launch: Launch, rows: int, arch: Arch
) -> float:
    """Return how many times more bytes should be on their way than are; 1 if enough."""
    of_block = held * launch.block_size * problem.dtype.itemsize
    # A ring in shared memory is filled by copies that no thread waits for.
    of_block = max(of_block, launch.dynamic_shared_bytes)
    blocks = min(resident * arch.multiprocessors, launch.grid(rows))
    everything = rows * problem.cols * problem.dtype.itemsize
    wanted = min(BYTES_IN_FLIGHT * arch.multiprocessors, everything)
    return max(1.0, wanted / (blocks * of_block))


def _idle(held: int, problem: Problem, launch: Launch, rows: int, arch: Arch) -> float:
    """Return the elements that the threads of a row could hold over those that there are.

    Where SMs have nothing to do, idle threads take nobody's place: bfloat16 1 x 2745 was fastest
    with 512 threads of which a third hold a row. Nor where an SM has two blocks: axis 1 of (32,
    512, 49) takes 4.3 us by 256 blocks, of which 98 threads in 128 hold packs, and 4.7 by 128.
    """
    if launch.grid(rows) <= 2 * arch.multiprocessors:
        return 1.0
    covered = held * launch.block_size * launch.cluster_size / launch.rows_per_block
    return max(1.0, covered / problem.cols)


def _tail(resident: int, launch: Launch, rows: int, arch: Arch) -> float:
    """Return what a last wave of few blocks costs: little, as blocks do not run in step."""
    waves = launch.grid(rows) / (resident * arch.multiprocessors)
    whole = -(-launch.grid(rows) // (resident * arch.multiprocessors))
    return (whole / waves) ** 0.25 if waves > 1 else 1.0
