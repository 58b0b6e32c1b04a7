"""Results of 16 bits are rounded once and to nearest: a bound of one step lets half a step pass."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from softgen.devices.emulator import build
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Rows
from softgen.problems.numerics import Float64, decode, encode
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.lessons.oneflowwarp import OneflowWarp
from softgen.strategies.registry import all_strategies
from softgen.strategies.tiles import Tiles
from softgen.strategies.variants import candidates
from softgen.verify.ways import layouts
from tests.helpers.emulator_helpers import ARCH, broken

HALVES = (DType.FLOAT16, DType.BFLOAT16)

# Columns for the strategies that take short rows, for those that do not, for the widest rows, and
# for rows of tiles.
WIDTHS = (100, 5000, 32768, 69)
WIDEST = max(WIDTHS)


def kernels(function: str, types: Sequence[DType], out: DType) -> list[Source]:
    """Return kernels of every strategy at the first width that it takes; types take turns."""
    found = []
    for number, kind in enumerate(all_strategies(), HALVES.index(out)):
        turned = [*types[number % len(types) :], *types[: number % len(types)]]
        problems = (Problem.of(function, x, cols, out_dtype=out) for cols in WIDTHS for x in turned)
        every = (list(candidates(problem, 64, ARCH, kind.name)) for problem in problems)
        found += [render(variant) for variant in layouts(next(filter(None, every), []))]
    narrow = {OneflowWarp, Tiles} if DType.FLOAT64 in types else set()
    wanted = {kind.name for kind in all_strategies() if Rows in kind.layouts and kind not in narrow}
    assert {source.variant.strategy.name for source in found} == wanted
    return found


def rows_of(finite: Float64, cols: int) -> Float64:
    """Return rows that begin with `finite` and go on with -inf, which adds nothing."""
    rows = np.full((len(finite), cols), -np.inf)
    rows[:, : finite.shape[1]] = finite
    return rows


def between(value: float, out: DType) -> tuple[Fraction, Fraction, Fraction]:
    """Return the numbers of `out` below and above `value`, and what is half-way between them."""
    bits = int(np.frombuffer(encode([value], out).tobytes(), np.uint16)[0])
    near = [
        np.array([bits + step], np.uint16).view(encode([0.0], out).dtype) for step in (-1, 0, 1)
    ]
    exact = sorted(Fraction(float(decode(one, out)[0])) for one in near)
    low, high = (exact[0], exact[1]) if Fraction(value) < exact[1] else (exact[1], exact[2])
    return low, high, (low + high) / 2


NARROW = tuple(dtype for dtype in DType if dtype is not DType.FLOAT64)


@pytest.mark.parametrize("out", HALVES, ids=lambda out: out.short)
@pytest.mark.parametrize("types", [NARROW, [DType.FLOAT64]], ids=["narrow", "f64"])
def test_one_divided_by_every_number_of_columns(types: Sequence[DType], out: DType) -> None:
    """n equal columns give 1 / n, which float32 knows well enough where it is not half-way."""
    counts = list(range(1, 65))
    wanted, told = [], []
    for n in counts:
        low, high, middle = between(1 / n, out)
        exact = Fraction(1, n)
        wanted.append(float(low if exact < middle else high) if n & (n - 1) else 1 / n)
        told.append(abs(exact / middle - 1) > 2**-18 or not n & (n - 1))
    assert sum(told) > 60
    finite = np.array([[0.0] * n + [-np.inf] * (64 - n) for n in counts])
    sources = kernels("softmax", types, out)
    program = build(sources)
    for source in sources:
        cols, dtype = source.variant.problem.cols, source.variant.problem.dtype
        some = slice(None) if cols < WIDEST else slice(2, None, 13)  # the widest take 10 s
        y = decode(program.run(source, encode(rows_of(finite[some], cols), dtype)), out)
        for i, n in enumerate(counts[some]):
            if told[n - 1]:
                assert (y[i, :n] == wanted[n - 1]).all(), (source.name, n)


def ties(out: DType) -> list[tuple[float, float]]:
    """Return values next to half-way between two numbers of `out`, and the nearer number.

    They are off by 2^-32 of them, away from the even number: a float32 in between is the half-way
    point itself, and from there rounding goes to the even one.
    """
    found = []
    for value in np.geomspace(0.01, 0.69, 48):
        low, high, middle = between(float(value), out)
        even_is_high = int(encode([float(high)], out).view(np.uint16)[0]) % 2 == 0
        off = -1 if even_is_high else 1
        exact = float(middle) * (1 + off * 2.0**-32)
        assert np.float32(exact) == float(middle) != exact
        found.append((exact, float(low if even_is_high else high)))
    return found


@pytest.mark.parametrize("out", HALVES, ids=lambda out: out.short)
def test_float64_is_not_rounded_twice(out: DType) -> None:
    """log_softmax of (0, t) begins with -log(1 + e^t): with t = log(e^v - 1) that is -v."""
    cases = ties(out)
    finite = np.array([[0.0, np.log(np.expm1(value))] for value, _ in cases])
    sources = kernels("log_softmax", [DType.FLOAT64], out)
    program = build(sources)
    for source in sources:
        cols = source.variant.problem.cols
        some = slice(None) if cols < WIDEST else slice(None, None, 12)  # the widest take 10 s
        y = decode(program.run(source, rows_of(finite[some], cols)), out)
        assert (y[:, 0] == [-nearest for _, nearest in cases[some]]).all(), source.name


@pytest.mark.parametrize("out", HALVES, ids=lambda out: out.short)
def test_both_mistakes_are_seen(out: DType) -> None:
    name = "half" if out is DType.FLOAT16 else "bfloat16"
    source = next(s for s in kernels("log_softmax", [DType.FLOAT64], out) if "_warp_" in s.name)
    once = f"__double2{name}(from[i])"
    twice = broken(source, once, f"__float2{name}_rn(static_cast<float>(from[i]))")
    cases = ties(out)
    finite = np.array([[0.0, np.log(np.expm1(value))] for value, _ in cases])
    x = rows_of(finite, source.variant.problem.cols)
    program = build([source, twice])
    right, wrong = (decode(program.run(one, x), out)[:, 0] for one in (source, twice))
    assert (right != wrong).all()
