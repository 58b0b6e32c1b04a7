"""Rows that several devices hold together, on the emulator: parts exchanged through mailboxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from softgen.devices.emulator import Job, Program, build, run
from softgen.devices.emulator.shard import Shard
from softgen.errors import EmulationError, InvalidValueError
from softgen.problems.numerics import Storage
from softgen.problems.shards import mailbox_bytes
from softgen.source.render import Source, render
from softgen.strategies.variants import parse_name
from softgen.verify.sharded import accuracy_of, agree
from tests.helpers.emulator_helpers import broken

# Two rows a block, a cluster, and the width of an empty shard, which holds one -inf.
WIDE = "softmax_f32_100_sharded_block_p4_c4_g64_b128_m1_pdl1"
CLUSTER = "softmax_f32_200_sharded_cluster_p4_c4_b32_k2_m1_pdl1"
EMPTY = "softmax_f32_1_sharded_block_p1_c1_g64_b64_m1"
LSE = "logsumexp_f32_100_sharded_block_p4_c4_g64_b64_m1"
LSE_CLUSTER = "logsumexp_f32_37_sharded_cluster_p1_c1_b32_k2_m1"

TAG = "messages[i] >> 32 == tag"
BUFFERS = "tag % 2 * room"
COUNTS = "add_count(count_of(mailbox, row), kLaunch);"
MINE = "slot_of(mailbox, row, tag, thread, shards, room)"
OTHERS = MINE.replace("mailbox", "peer")
AWAITED = "await_launch_before(x, y, mailboxes);"
ROWS = 5


def source(name: str) -> Source:
    return render(parse_name(name))


# All in one unit, which the tests share.
RIGHT = [source(name) for name in (WIDE, CLUSTER, EMPTY, LSE, LSE_CLUSTER)]
LOSSES = [
    source(name)
    for name in (
        "cross_entropy_f32_100_sharded_block_p4_c4_g64_b128_m1_pdl1",
        "cross_entropy_f32_200_sharded_cluster_p4_c4_b32_k2_m1_pdl1",
        "cross_entropy_f32_1_sharded_block_p1_c1_g64_b64_m1",
    )
]
WRONG = {
    "no tag": broken(RIGHT[0], TAG, "messages[i] >> 32 != 0"),
    "one buffer": broken(RIGHT[0], BUFFERS, "0 * room"),
    "no count": broken(RIGHT[0], COUNTS, "(void)0;"),
    "no wait": broken(RIGHT[0], AWAITED, ""),
    "another's": broken(RIGHT[0], MINE, OTHERS),
    "own logit": broken(LOSSES[1], "state.logit = all.logit;", ""),
    "last logit": broken(LOSSES[1], "min(whole.logit, parts[i].logit)", "parts[i].logit"),
    "own order": broken(RIGHT[3], "(parts_of_shards, shards)", "(parts_of_shards + shard, 1)"),
}


def program() -> Program:
    return build([*RIGHT, *LOSSES, *WRONG.values()])


def rows_of(kernel: Source, seed: int) -> Storage:
    """Return rows; of a width of 1, which stands for an empty shard, nothing but -inf."""
    cols = kernel.variant.problem.cols
    x = np.random.default_rng([seed, cols]).standard_normal((ROWS, cols)).astype("float32") * 4
    return np.full_like(x, -np.inf) if cols == 1 else x


def launches(
    kernels: Sequence[Source], count: int, late: int = 0, rows: int = ROWS, **shard: int
) -> list[Job]:
    """Return as many launches on each device; at each another device is late."""
    size = len(kernels)
    return [
        Job(
            *(kernel, rows_of(kernel, 10 * launch + device)[:rows]),
            shard=Shard(device, size, ROWS, late=late * (launch % size == device), **shard),
        )
        for launch in range(count)
        for device, kernel in enumerate(kernels)
    ]


def objections(jobs: Sequence[Job], shards: int) -> list[str]:
    """Return what is wrong with the results of launches that all devices have a part in.

    Of losses a shard of one column stands for an empty one.
    """
    results, late = program().run_sharded(jobs)
    found = [] if set(late) == {-1} else [f"late: {late}"]
    for first in range(0, len(jobs), shards):
        some = jobs[first : first + shards]
        of = results[first : first + shards]
        problem, others = some[0].source.variant.problem, some[0].others
        filled = [job.x for job in some if not others or job.x.shape[1] > 1]
        accuracy = accuracy_of(problem, filled, of, others=others)
        if not accuracy.ok:
            found.append(f"launch {first // shards}: {accuracy.message}")
        if not agree(problem, of):
            found.append(f"launch {first // shards}: bits")
    return found


def losses_of(kernels: Sequence[Source], late: int, **shard: int) -> list[Job]:
    """Return launches of losses: three, of targets in every shard and in none, and ignored."""
    widths = [kernel.variant.problem.cols for kernel in kernels]
    widths = [0 if width == 1 else width for width in widths]
    ends, size, found = np.cumsum([0, *widths]), len(kernels), []
    for launch in range(3):
        target = np.array([launch, ends[-1] - 1, -100, ends[-1], 99 + launch])
        others = (target, np.array(-100), np.array(0.125 * launch, "float32"))
        for device, kernel in enumerate(kernels):
            first = int(ends[device]) if widths[device] else 2**63 - 1
            wait = late * (launch % size == device)
            at = Shard(device, size, ROWS, late=wait, first=first, **shard)
            found.append(Job(kernel, rows_of(kernel, 10 * launch + device), others, shard=at))
    return found


@pytest.mark.parametrize("late", [0, 1, 6])
def test_losses(late: int) -> None:
    """Whichever shard has the target's column; none may, and a shard may have no column."""
    block, cluster, empty = LOSSES
    assert objections(losses_of([block, cluster, empty], late), 3) == []
    assert objections(losses_of([cluster, block], late), 2) == []


@pytest.mark.parametrize("how", ["own logit", "last logit"])
def test_broken_losses_are_seen(how: str) -> None:
    assert objections(losses_of([LOSSES[0], WRONG[how]], 0), 2)


def test_losses_of_a_device_that_never_comes() -> None:
    jobs = losses_of([LOSSES[0], LOSSES[1], LOSSES[0]], 0, patience=40)
    results, late = program().run_sharded([j for j in jobs if j.shard and j.shard.shard != 1])
    assert late == (1, -1, 1)
    for loss, lse in results:
        assert loss[2] == 0  # of the row that is ignored
        assert np.isneginf(lse[2])
        assert np.isnan(np.delete(loss, 2)).all()


@pytest.mark.parametrize("late", [0, 1, 6])
def test_uneven_and_empty_shards(late: int) -> None:
    """Devices run kernels of their own, of several strategies; each is late in some launch."""
    wide, cluster, empty, *_ = RIGHT
    assert objections(launches([wide, empty, cluster], 4, late), 3) == []


def test_all_devices_get_the_same_bits() -> None:
    assert objections(launches([RIGHT[3], RIGHT[4], RIGHT[3]], 3, 2), 3) == []
    jobs = launches([WRONG["own order"], RIGHT[4]], 1)
    assert any(text.endswith("bits") for text in objections(jobs, 2))


def test_rows_that_are_not_finite() -> None:
    """A shard of -inf, NaN or +inf on one device, and a row that is -inf on all."""
    jobs = launches([RIGHT[0], RIGHT[1]], 1)
    first, second = (job.x for job in jobs)
    first[0], second[1] = -np.inf, -np.inf
    first[2, 3], second[3, 150] = np.nan, np.inf
    first[4], second[4] = -np.inf, -np.inf
    assert objections(jobs, 2) == []
    results, _ = program().run_sharded(jobs)
    assert not results[0][0][0].any()
    assert not results[1][0][1].any()
    for each in results:
        assert np.isnan(each[0][2:]).all()
        assert not np.isnan(each[0][:2]).any()


def test_a_device_may_be_a_launch_ahead() -> None:
    """One row: nothing but the row's own launches holds a device back."""
    kernels = [RIGHT[0], RIGHT[1], RIGHT[0]]
    assert objections(launches(kernels, 7, 3, rows=1), 3) == []


def test_launches_of_fewer_rows_count_for_their_rows_alone() -> None:
    rows = (5, 1, 3, 5)
    jobs = [
        Job(job.source, job.x[: rows[i // 2]], shard=job.shard)
        for i, job in enumerate(launches([RIGHT[0], RIGHT[1]], len(rows), 2))
    ]
    assert objections(jobs, 2) == []


def test_a_device_that_never_comes() -> None:
    """Those that wait write NaN, name it, and wait for it once and not for each row."""
    wide, cluster, *_ = RIGHT
    jobs = launches([wide, cluster, wide], 2, patience=40)
    present = [job for job in jobs if job.shard and job.shard.shard != 1]
    results, late = program().run_sharded(present)
    assert late == (1, -1, 1)
    assert all(np.isnan(y).all() for each in results for y in each)


def test_a_device_that_comes_too_late() -> None:
    """Its peer gave up; it has all it needs, and its own results are right."""
    jobs = launches([RIGHT[0], RIGHT[1]], 1, late=200, patience=5)
    results, late = program().run_sharded(jobs)
    assert late == (-1, 0)
    assert np.isnan(results[1][0]).all()
    assert np.isfinite(results[0][0]).all()


@pytest.mark.parametrize("how", ["no tag", "one buffer", "no count"])
def test_a_broken_exchange_is_seen(how: str) -> None:
    kernels = [WRONG[how], RIGHT[1]]
    jobs = launches(kernels, 4, 3, rows=1, patience=50)
    assert objections(jobs, 2)


def test_rules_of_mailboxes() -> None:
    with pytest.raises(EmulationError, match=r"touched (an array|a mailbox) before await_launch"):
        program().run_sharded(launches([WRONG["no wait"], RIGHT[1]], 1))
    with pytest.raises(EmulationError, match=r"of device 0 read mailbox 1, which is another dev"):
        program().run_sharded(launches([WRONG["another's"], RIGHT[1]], 1))
    small = [
        Job(job.source, job.x, shard=Shard(job.shard.shard, 2, 1))
        for job in launches([RIGHT[0], RIGHT[1]], 1)
        if job.shard
    ]
    with pytest.raises(EmulationError, match="past the end of mailbox"):
        program().run_sharded(small)


def test_what_is_refused() -> None:
    kernel, x = RIGHT[0], rows_of(RIGHT[0], 0)
    with pytest.raises(InvalidValueError, match="give shard=, and run it by run_sharded"):
        run(kernel, x)
    alone = render(parse_name("softmax_f32_8_safe_b128"))
    with pytest.raises(InvalidValueError, match="leave shard= out"):
        run(alone, np.zeros((2, 8), "float32"), shard=Shard(0, 1, ROWS))
    with pytest.raises(InvalidValueError, match="are for run_sharded"):
        run(kernel, x, shard=Shard(0, 1, ROWS))
    with pytest.raises(InvalidValueError, match="shard must be from 0 to 1, got 2"):
        Shard(2, 2, 1)
    with pytest.raises(InvalidValueError, match="shards must be from 1 to 8, got 9"):
        mailbox_bytes(9, 1)
    jobs = [Job(kernel, x, shard=Shard(0, 1, room)) for room in (5, 6)]
    with pytest.raises(InvalidValueError, match="as many shards, with as much room"):
        program().run_sharded(jobs)
