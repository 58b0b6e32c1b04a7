"""merge: a monoid, and the third part of softmax in pieces: partial, merge, finish.

The bounds, to first order in u = 2^-53 (docs/numerics.md derives them). The terms of a row are
exp(x - M), M being its maximum, which is exact. What an element x adds to a sum goes through the
differences x - m_0, m_0 - m_1, ..., m_k - M, each rounded: none is positive and they add up to
x - M, so that rounding makes an error of at most |x - M| u in the exponent, whatever the tree.
Weighted by the terms' shares p of the sum D that is u times the entropy of p less log(D), at most
u log(n) for n elements. On its way through k merges an element meets k + 1 exponentials (2u each:
one unit in the last place), k products (u) and at most n - 1 additions (u).
"""

from __future__ import annotations

import itertools
import math
import sys
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import softgen
from softgen.call.merge import largest_by_bits
from softgen.devices import emulator
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems import numerics
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions.partial import pair
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.select import select

Array = npt.NDArray[Any]
Pair = tuple[Array, Array]

U = 2.0**-53
NOTHING = (np.array([-np.inf]), np.array([0.0]))
LARGEST = float(np.finfo(np.float64).max)
SMALLEST = float(np.finfo(np.float64).smallest_subnormal)

elements = st.one_of(
    st.floats(-30, 30),
    st.floats(-1e4, 1e4),
    st.floats(-LARGEST, LARGEST),
    st.sampled_from((-math.inf, 0.0, -0.0, LARGEST, -LARGEST, SMALLEST, 1e300, -1e300, 709.0)),
)
parts = st.one_of(
    st.lists(elements, min_size=1, max_size=12),
    st.integers(1, 5).map(lambda n: [-math.inf] * n),
    st.floats(-100, 100).map(lambda x: [x]),
    st.tuples(st.floats(-1e5, 1e5), st.integers(1, 40)).map(lambda p: [p[0]] * p[1]),
)
rows_in_parts = st.lists(parts, min_size=1, max_size=8)

# A machine may have other work.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pair_of(values: Array) -> Pair:
    with np.errstate(all="ignore"):  # finfo's extremes lie further apart than the largest number
        m, d = pair(values)
    return np.asarray(m), np.asarray(d)


def sum_error(n: int, merges: int) -> float:
    """Return the bound of the relative error of the sum of n terms through that many merges."""
    return (math.log(n) + (n - 1) + 2 * (merges + 1) + merges) * U * 1.001


def same(a: Array, b: Array, error: float) -> None:
    """Hold results against each other, of which each may be off by half of `error`."""
    with np.errstate(all="ignore"):
        near = (a == b) | (np.isnan(a) & np.isnan(b))
        near |= np.abs(a - b) <= error * np.abs(b) + 2.0**-1060  # where terms lose their digits
    assert near.all(), (a, b, error)


def bits(pair_: Pair) -> tuple[bytes, ...]:
    return tuple(each.tobytes() for each in pair_)


def merged(pairs: list[Pair], random: Random) -> tuple[Pair, int]:
    """Return the pairs merged in any order and tree, and how many merges an element meets."""
    forest = [(each, 0) for each in random.sample(pairs, len(pairs))]
    for _ in range(random.randrange(3)):
        forest.insert(random.randrange(len(forest) + 1), (NOTHING, 0))
    while len(forest) > 1 or random.random() < 0.2:
        count = random.randint(1, min(4, len(forest)))
        at = random.randint(0, len(forest) - count)
        taken = forest[at : at + count]
        whole = softgen.merge(*(each for each, _ in taken))
        forest[at : at + count] = [(whole, 1 + max(depth for _, depth in taken))]
    return forest[0]


@patient
@given(st.integers(0), rows_in_parts)
def test_any_tree_of_any_pieces_gives_the_pair_of_the_row(
    seed: int, pieces: list[list[float]]
) -> None:
    row = np.array([list(itertools.chain(*pieces))])
    cut = [np.array([piece]) for piece in pieces]
    (m, d), depth = merged([pair_of(piece) for piece in cut], Random(seed))
    whole_m, whole_d = pair_of(row)
    error = sum_error(row.size, depth) + sum_error(row.size, 0)
    np.testing.assert_array_equal(m, whole_m)
    same(d, whole_d, error)

    finish, softmax = softgen.Function.of("finish"), softgen.Function.of("softmax")
    with np.errstate(all="ignore"):
        (wanted,) = softmax.reference(row)
        found = np.concatenate([finish.reference(piece, m, d)[0] for piece in cut], axis=1)
    # The same x - max on both sides; an exponential and a quotient each.
    same(found, wanted, error + 6 * U)


@patient
@given(parts, parts)
def test_two_commute_to_the_bit(a: list[float], b: list[float]) -> None:
    first, second = pair_of(np.array([a])), pair_of(np.array([b]))
    assert bits(softgen.merge(first, second)) == bits(softgen.merge(second, first))


@patient
@given(parts, parts, parts)
def test_three_associate_within_the_bound(a: list[float], b: list[float], c: list[float]) -> None:
    p, q, r = (pair_of(np.array([each])) for each in (a, b, c))
    left = softgen.merge(softgen.merge(p, q), r)
    n = len(a) + len(b) + len(c)
    for other in (softgen.merge(p, softgen.merge(q, r)), softgen.merge(q, r, p)):
        np.testing.assert_array_equal(left[0], other[0])
        same(left[1], other[1], 2 * sum_error(n, 2))


@patient
@given(parts)
def test_a_piece_of_minus_infinity_is_neutral_to_the_bit(values: list[float]) -> None:
    one = pair_of(np.array([values]) + 0.0)  # without -0, of which merge makes 0
    for found in (
        softgen.merge(one),
        softgen.merge(one, NOTHING),
        softgen.merge(NOTHING, NOTHING, one, NOTHING),
    ):
        assert bits(found) == bits(one)
    assert bits(softgen.merge(NOTHING, NOTHING)) == bits(NOTHING)


@patient
@given(rows_in_parts, st.sampled_from((math.nan, math.inf)), st.integers(0))
def test_nan_and_infinity_anywhere_give_nan_twice(
    pieces: list[list[float]], value: float, seed: int
) -> None:
    random = Random(seed)
    piece = random.choice(pieces)
    piece[random.randrange(len(piece))] = value
    (m, d), _ = merged([pair_of(np.array([piece])) for piece in pieces], random)
    assert np.isnan(m).all()
    assert np.isnan(d).all()


@pytest.mark.parametrize(("m", "d"), [(np.nan, 1), (1, np.nan), (np.inf, 1), (-np.inf, np.nan)])
def test_a_pair_that_no_kernel_writes_gives_nan_twice(m: float, d: float) -> None:
    odd = (np.array([m], float), np.array([d], float))
    sound = (np.array([3.0]), np.array([2.0]))
    for found in (softgen.merge(odd), softgen.merge(sound, odd), softgen.merge(odd, sound)):
        assert np.isnan(found).all()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_shape_and_dtype_stay(shape: tuple[int, ...], dtype: str) -> None:
    one = (np.full(shape, 2, dtype), np.full(shape, 3, dtype))
    m, d = softgen.merge(one, one)
    assert (m.shape, m.dtype, d.shape, d.dtype) == (shape, dtype, shape, dtype)
    assert (m == 2).all()
    assert (d == 6).all()
    assert m is not one[0]


def test_the_largest_by_bits_is_the_largest() -> None:
    """CuPy's own maximum flushes subnormal numbers, which NumPy's does not."""
    random = np.random.default_rng(0)
    special = np.array([0, -0.0, 1e-39, -1e-39, 1e-45, -1e-45, 3e38, -3e38, np.inf, -np.inf])
    bits = random.integers(0, 2**32, (3, 10_000), np.uint32).view(np.float32)
    drawn = np.where(np.isnan(bits), np.float32(1), bits)
    chosen = random.choice(special, (3, 10_000)).astype(np.float32)
    subnormal = (random.uniform(-1, 1, (3, 10_000)) * 2.0**-126).astype(np.float32)
    for one in (drawn, chosen, subnormal):
        wanted = np.maximum(np.maximum(one[0], one[1]), one[2]) + np.float32(0)
        assert largest_by_bits(np, [*one]).tobytes() == wanted.tobytes()


def test_what_is_no_row_of_pairs_is_refused() -> None:
    one, other = np.ones(3), np.ones(4)
    with pytest.raises(InvalidValueError, match=r"no pairs; write merge\(\(m1, d1\), \(m2, d2\)\)"):
        softgen.merge()
    with pytest.raises(InvalidTypeError, match="argument 0 of merge is a ndarray and no pair"):
        softgen.merge(one, one)  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="argument 1 of merge is a tuple of 3 and no pair"):
        softgen.merge((one, one), (one, one, one))  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match=r"m of pair 0 is a builtins\.tuple"):
        softgen.merge([(one, one), (one, one)])  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match=r"d of pair 1 has shape \(4,\) where m of pair 0"):
        softgen.merge((one, one), (one, other))
    with pytest.raises(InvalidTypeError, match="m of pair 1 has dtype float32 where"):
        softgen.merge((one, one), (one.astype("float32"), one))
    with pytest.raises(InvalidTypeError, match="d of pair 0 is int64; pairs are float32 or"):
        softgen.merge((one, np.ones(3, int)))


class FakeTensor:
    """As much of a tensor as is looked at before anything is computed."""

    shape = (3,)

    def __init__(self, dtype: str, device: str) -> None:
        self.dtype, self.device = dtype, device


def test_libraries_and_devices_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        Tensor = FakeTensor

    monkeypatch.setitem(sys.modules, "torch", Torch)
    near, far = (FakeTensor("torch.float64", f"cuda:{i}") for i in range(2))
    with pytest.raises(InvalidTypeError, match=r"m of pair 1 has library torch where .* numpy"):
        softgen.merge((np.ones(3), np.ones(3)), (near, near))
    with pytest.raises(InvalidValueError, match=r"m of pair 1 has device cuda:1 where .* cuda:0"):
        softgen.merge((near, near), (far, far))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_kernels_in_three_steps(dtype: str) -> None:
    """Three pieces of seven rows: partial of each, merge, finish of each, against float64.

    Bounds of the parts add up: that of finish, and for float32 of the sums from partial and of
    two exponentials and additions in merge, which together are again not more than that.
    """
    rng, cuts = np.random.default_rng(5), (0, 300, 301, 1000)
    kind = DType.of(dtype)
    values = rng.standard_normal((7, cuts[-1])) * 4
    values[1] += 1e4
    values[2, :300] = -np.inf
    values[3, 300:] = -np.inf
    values[4] = -np.inf
    values[5, 300] = np.nan
    values[6, 12] = np.inf
    x = numerics.encode(values, kind)
    chunks = [np.ascontiguousarray(x[:, a:b]) for a, b in itertools.pairwise(cuts)]
    sources = {
        (name, chunk.shape[1]): render(
            select(Problem.of(name, kind, chunk.shape[1]), 7, arch_named("sm_90"), None)
        )
        for name in ("partial", "finish")
        for chunk in chunks
    }
    program = emulator.build(list(sources.values()))
    pairs = []
    for chunk in chunks:
        m, d = program.run_each(sources["partial", chunk.shape[1]], chunk)
        pairs.append((m, d))
    whole = softgen.merge(*pairs)
    exact = pair_of(numerics.decode(x, kind))
    np.testing.assert_array_equal(whole[0].astype("float64"), exact[0])
    bound = 2e-14 if kind is DType.FLOAT64 else 2e-6
    np.testing.assert_allclose(whole[1].astype("float64"), exact[1], rtol=bound, atol=0)

    y = np.concatenate(
        [program.run(sources["finish", c.shape[1]], c, others=whole) for c in chunks], axis=1
    )
    (wanted,) = numerics.reference(
        softgen.Function.of("softmax"), numerics.decode(x, kind), wide=kind is DType.FLOAT64
    )
    if kind is DType.BFLOAT16:
        checked = numerics.check((y,), (x,), Problem.of("softmax", kind, cuts[-1]))
        assert checked.ok, checked.message
    else:
        floor = 1e-290 if kind is DType.FLOAT64 else 1e-30
        np.testing.assert_allclose(numerics.decode(y, kind), wanted, rtol=2 * bound, atol=floor)
    assert np.isnan(numerics.decode(y, kind)[4:]).all()
