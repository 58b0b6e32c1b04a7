"""A small part of the differential run, and that it would see what is wrong.

All of it on request: `python -m tests.differential 4000`, on a GPU with `--device cuda`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.hooks.known import HOOKS
from softgen.problems.operands import Operand
from tests import differential as package
from tests.differential import hooks
from tests.differential.__main__ import SEED
from tests.differential.bounds import About, objection
from tests.differential.cases import Case, Kernel, functions, kernel
from tests.differential.dropout import philox
from tests.differential.emulated import Emulator, Outcome
from tests.differential.functions import LOGARITHM, TERMS, VALUE, Wanted
from tests.differential.inputs import function_inputs
from tests.differential.rows import Entered
from tests.differential.run import Report, differential
from tests.differential.storage import LARGEST, Stored, exact, rounded, steps

ARCH = arch_named(DEFAULT_ARCH)
FOLDER = Path(package.__file__).parent

# The modules that say what is right.
REFERENCE = ("bounds", "dropout", "functions", "reference", "rows", "storage")

# Kernels of the seed, of as many functions, strategies and layouts as there are numbers.
NUMBERS = (2, 36, 39, 52, 53, 58, 89, 106)


def test_drawn_kernels_are_right() -> None:
    report = Report()
    differential(report, 0, SEED, ARCH, drawn=[kernel(SEED, number, ARCH) for number in NUMBERS])
    print(report)
    assert report.results >= 50
    assert not report.wrong, "\n".join(report.wrong)
    assert len(report.covered["strategy"]) >= 5


class Spoiled:
    """Runs kernels, and gives one element of each result another step, or another kind."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.emulator = Emulator(kernels)

    def run(self, drawn: Kernel, cases: Sequence[Case]) -> list[Outcome]:
        return [
            each if isinstance(each, str) else tuple(map(self.spoiled, drawn.problem.results, each))
            for each in self.emulator.run(drawn, cases)
        ]

    @staticmethod
    def spoiled(operand: Operand, result: Stored) -> Stored:
        dtype, found = str(operand.dtype), result.copy()
        last = exact(found.reshape(-1)[-1:], dtype)
        other = 1.5 * last - 1 if np.isfinite(last).all() else np.zeros(1)
        found.reshape(-1)[-1:] = rounded(other, dtype)
        return found


def test_one_element_that_is_wrong_is_seen_in_each_result() -> None:
    report, drawn = Report(), [kernel(SEED, number, ARCH) for number in NUMBERS]
    differential(report, 0, SEED, ARCH, runner=Spoiled, drawn=drawn)
    wrong = sum(len(one.problem.results) * one.runs for one in drawn)
    assert len(report.wrong) == wrong


@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_shares_no_code_with_softgen(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imported = {
        module
        for node in ast.walk(tree)
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    known = {f"tests.differential.{other}" for other in REFERENCE}
    standard = {"__future__", "collections.abc", "dataclasses", "re", "typing"}
    assert imported <= known | standard | {"numpy", "numpy.typing"}


def test_every_function_and_every_hook_is_drawn() -> None:
    assert "softmax" in functions()  # which raises for one that the reference does not know
    assert {each for of in hooks.NAMES.values() for each in of} == {hook.name for hook in HOOKS}


def test_an_entropy_is_drawn_as_a_kernel_returns_it() -> None:
    """That of float32 arithmetic, whose results below 1.18e-38 are 0, is no subnormal number."""
    x = np.full((1, 32), -110.0, np.longdouble)
    x[0, :2] = 0, -93  # p log p of the second is 3.8e-39
    rows = Entered(x, None, np.zeros(1, np.longdouble), 0.0)
    draw = functools.partial(
        function_inputs, np.random.default_rng(0), "entropy_backward", rows, "bfloat16"
    )
    assert draw("float32")["entropy"].tolist() == [0]
    assert 3.7e-39 < draw("float64")["entropy"][0] < 3.9e-39


def test_philox_gives_the_numbers_of_its_authors() -> None:
    """Known answers of Random123 for 7 rounds of philox4x32."""
    zeros, ones = 0, 2**64 - 1
    for word, wanted in (
        (zeros, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
        (ones, [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
    ):
        found = philox(np.array([word], np.uint64), word, word)
        assert [int(each[0]) for each in found] == wanted


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_bits_of_small_types_are_those_of_ml_dtypes(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype))
    bits = np.arange(2 ** (8 * kind.itemsize)).astype(f"uint{8 * kind.itemsize}")
    with np.errstate(invalid="ignore"):  # signaling NaN
        known = bits.view(kind).astype(np.float64)
    np.testing.assert_array_equal(exact(bits, dtype), known)
    finite = np.isfinite(known)
    np.testing.assert_array_equal(rounded(known[finite], dtype), bits[finite])
    values = np.random.default_rng(0).standard_normal(5000) * LARGEST[dtype] ** 0.5
    # Theirs rounds float64 in two steps, by float32; these values have no more digits than that.
    values = values.astype(np.float32).astype(np.float64)
    nearest = values.astype(kind).astype(np.float64)
    np.testing.assert_array_equal(exact(rounded(values, dtype), dtype), nearest)
    assert exact(rounded(1e39, dtype), dtype) == (np.inf if dtype == "bfloat16" else LARGEST[dtype])


def about(dtype: str, **more: Any) -> About:
    compute = "float64" if dtype == "float64" else "float32"
    return About(dtype, compute, np.zeros(1, np.longdouble), **more)


@pytest.mark.parametrize(
    ("dtype", "measure", "right", "least"),
    [
        ("float32", VALUE, 0.3, 2e-6 * 0.3),
        ("float32", VALUE, 1e-33, 2e-36),
        ("float32", LOGARITHM, -3.0, 8e-6),
        ("float32", TERMS, 0.5, 2e-6 * 4),
        ("float64", VALUE, 0.3, 1.1e-14 * 0.3),
        ("float64", LOGARITHM, 5.0, 6e-14),
        ("float64", TERMS, 0.5, 4e-14),
    ],
)
def test_what_is_off_by_more_than_its_bound_is_seen(
    dtype: str, measure: str, right: float, least: float
) -> None:
    wanted = Wanted(np.array([right], np.longdouble), measure, size=np.array([4.0]))
    wanted.size = wanted.size if measure == TERMS else None
    for off, is_wrong in ((0.9, False), (1.5, True), (-0.9, False), (-1.5, True)):
        got = rounded(wanted.exact + off * least, dtype)
        assert bool(objection(got, wanted, about(dtype))) is is_wrong, off


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_a_neighbour_is_right_and_the_next_one_is_not(dtype: str) -> None:
    wanted = Wanted(np.array([0.3], np.longdouble), VALUE)
    number = int(steps(wanted.exact, dtype)[0])
    kind = rounded(wanted.exact, dtype).dtype
    for off, is_wrong in ((0, False), (1, False), (-1, False), (2, True), (-2, True)):
        bits = np.array([number + off]).astype(f"uint{8 * kind.itemsize}")
        assert bool(objection(bits.view(kind), wanted, about(dtype))) is is_wrong, off


def test_kinds_of_numbers_and_limits_are_exact() -> None:
    def wrong(got: float, right: float, measure: str = VALUE, **more: Any) -> bool:
        hidden = more.pop("hidden", None)
        wanted = Wanted(np.array([right], np.longdouble), measure, **more)
        what = about("float32", hidden=hidden)
        return bool(objection(np.array([got], np.float32), wanted, what))

    assert wrong(0.0, np.nan)
    assert wrong(np.nan, 0.0)
    assert not wrong(np.nan, np.nan)
    assert wrong(3e38, np.inf)
    assert wrong(np.inf, 3e38)
    assert not wrong(np.inf, 1e39)
    assert wrong(1e-40, 0.0, hidden=np.array([True]))
    assert not wrong(1e-40, 0.0)
    assert wrong(-6e-8, 0.0, LOGARITHM, above=0.0)
    assert wrong(6e-8, -1e-9, LOGARITHM, below=0.0)
    assert not wrong(0.0, -1e-9, LOGARITHM, below=0.0)
