"""What C++ leaves undefined stops a kernel on the emulator, or makes its result always wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError, InvalidValueError
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.split import Split
from softgen.strategies.variants import Variant
from tests.helpers.emulator_helpers import (
    broken,
    input_of,
    report_of,
    run_rows,
    source_of,
    written,
)


def report(source: Source) -> str:
    """Return the report that stops `source`."""
    return report_of(source, 2)


STORE = "\n  if (blockIdx.x < rows) y[blockIdx.x * kCols + threadIdx.x] = x[threadIdx.x];"


def test_a_divergent_barrier_on_one_line() -> None:
    text = report(written("  if (threadIdx.x < 32) __syncthreads(); else __syncthreads();" + STORE))
    assert "divergent barrier: the threads of block 0 wait at different __syncthreads" in text


def test_a_divergent_barrier_in_a_helper() -> None:
    source = written("  if (threadIdx.x < 32) { meet(); } else { meet(); }" + STORE)
    helper = broken(source, 'extern "C"', '__device__ void meet() { __syncthreads(); }\nextern "C"')
    assert "divergent barrier" in report(helper)


def test_the_same_barrier_in_every_round_is_none() -> None:
    source = written("  for (int i = 0; i < 3; ++i) __syncthreads();" + STORE)
    assert run_rows(source, 2).shape == (2, 64)


def test_a_copy_past_the_end_of_a_variable() -> None:
    body = """
  float mine[4] = {};
  float more[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int p = 0; p <= 1 + static_cast<int>(rows > 99); ++p) memcpy(&mine[4 * p], more, 16);
"""
    text = report(written(body + STORE))
    assert "thread 0 of block 0 copied past the end of a variable at" in text
    assert ".cu:" in text


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("n += 2147483647;", "overflow in a sum of 'int'"),
        ("n = -2147483647 - n;", "overflow in a difference of 'int'"),
        ("n *= 2147483647;", "overflow in a product of 'int'"),
        ("n = -2147483647 - 1 + n - n; n = -n;", "overflow in a negation of 'int'"),
        ("n = 7 / (n - n);", "division by zero, or overflow in it, of 'int'"),
        ("n = 1 << (n + 30);", "shift of 'int' by 32"),
    ],
)
def test_arithmetic_that_has_no_result(statement: str, message: str) -> None:
    keep = "\n  if (n == 42) y[0] = 0;"
    text = report(written(f"  int n = static_cast<int>(rows);\n  {statement}{keep}" + STORE))
    assert f"thread 0 of block 0: {message}" in text
    assert ".cu:" in text


def test_a_variable_that_nobody_set_makes_results_wrong() -> None:
    source = source_of("safe", 1000)
    right = run_rows(source, 3)
    assert "Compute m = negative_infinity();" in source.text
    wrong = run_rows(broken(source, "Compute m = negative_infinity();", "Compute m;"), 3)
    least = np.full((1, 1000), np.finfo(np.float32).min, np.float32)
    unset = broken(source, "Compute m = negative_infinity();", "Compute m;")
    assert (build([source]).run(source, least) == np.float32(0.001)).all()
    assert np.isnan(build([unset]).run(unset, least)).all()
    assert (wrong == right).all()  # ordinary values hide it


@pytest.mark.parametrize("name", ["one", "other"])
def test_a_shared_variable_that_is_run_over(name: str) -> None:
    body = f"""
  __shared__ float one[32];
  __shared__ float other[32];
  float* at = {name};
  if (threadIdx.x < 32) one[threadIdx.x] = other[threadIdx.x] = 1;
  __syncthreads();
  for (int i = 0; i < 32; ++i) ++at;
  if (threadIdx.x == 0 && rows > 0) *at = 2;
"""
    text = report(written(body + STORE))
    assert re.search(r"thread 0 .*wrote 4 bytes outside of .*static shared memory", text)


def test_a_wait_that_is_missing_shows_where_blocks_run_in_another_order() -> None:
    problem = Problem.of("softmax", "float32", 1000)
    source = render(Variant(problem, Split(4, 8, 64, 1, False)))
    hasty = broken(source, "while (!is_there(slot)) slot = look_at(from);", "")
    x = input_of(source, 5)
    program = build([source, hasty])
    right = program.run(source, x)
    assert (program.run(source, x, together=6) == right).all()
    assert (program.run(hasty, x) == right).all()  # every block had ended before it was waited for
    result = program.run_all([Job(hasty, x, together=6)])[0]
    assert isinstance(result, EmulationError) or not (result == right).all()


def test_blocks_of_a_cooperative_grid_run_together_anyway() -> None:
    from tests.cpu.devices.test_emulator_cooperative import cooperative

    source = cooperative()
    with pytest.raises(InvalidValueError, match=r"which blocks of .* run together is fixed"):
        Job(source, input_of(source, 2), together=2)
