"""What counts as a right answer: storage, the reference, the bounds and the regimes."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.problems import numerics
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.exact import hooked, slack
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.numerics import (
    Float64,
    Storage,
    decode,
    encode,
    exact_results,
    other_inputs,
    storage_dtype,
    varied_inputs,
)
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import best_guess, parse_name
from softgen.verify.regimes import REGIMES, Slices
from tests.helpers.single import check, reference

SOFTMAX, LOG = SOFTMAX, LOG_SOFTMAX
SIXTEEN = [DType.FLOAT16, DType.BFLOAT16]


def exact_bits(dtype: DType) -> tuple[Float64, np.ndarray[tuple[int, ...], np.dtype[np.uint16]]]:
    """Return every finite value of a 16-bit type, in order, and its bits."""
    bits = np.arange(65536, dtype=np.uint16)
    values = decode(bits.view(storage_dtype(dtype)), dtype)
    finite = np.isfinite(values)
    order = np.argsort(values[finite], kind="stable")
    return values[finite][order], bits[finite][order]


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_encode_is_the_inverse_of_decode(dtype: DType) -> None:
    values, bits = exact_bits(dtype)
    assert np.array_equal(encode(values, dtype).view(np.uint16), bits)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_encode_rounds_to_nearest_even_and_once(dtype: DType) -> None:
    """Just above a midpoint: rounded through float32 it would become the midpoint and go down."""
    values = np.unique(exact_bits(dtype)[0])
    middle = (values[:-1] + values[1:]) / 2
    up = decode(encode(np.nextafter(middle, np.inf), dtype), dtype)
    down = decode(encode(np.nextafter(middle, -np.inf), dtype), dtype)
    assert np.array_equal(up, values[1:])
    assert np.array_equal(down, values[:-1])
    at = encode(middle, dtype).view(np.uint16)
    assert (at % 2 == 0).all()


@pytest.mark.parametrize("dtype", list(DType))
def test_nan_and_infinity_survive(dtype: DType) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0.0]])
    y = decode(encode(x, dtype), dtype)
    assert np.array_equal(y, x, equal_nan=True)


def test_decode_takes_signaling_nan_without_a_warning() -> None:
    assert np.isnan(decode(np.array([0x7F81], np.uint16), DType.BFLOAT16)).all()


def test_encode_takes_signaling_nan_without_a_warning() -> None:
    """A .npy file may hold one."""
    x = np.array([[0x7F800001]], np.uint32).view(np.float32)
    for dtype in DType:
        assert np.isnan(decode(encode(x, dtype), dtype)).all()


@pytest.mark.parametrize("algorithm", [SOFTMAX, LOG])
def test_rows_without_an_answer_are_nan_and_leave_the_others_alone(algorithm: Function) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[0, nan, 1], [0, inf, 1], [-inf, -inf, -inf], [inf, nan, -inf], [0, 1, 2]])
    y = reference(algorithm, x)
    assert np.isnan(y[:4]).all()
    assert np.isfinite(y[4]).all()


def test_reference_of_known_rows() -> None:
    big = np.finfo(np.float64).max
    x = np.array([[-np.inf, 0, 0, -np.inf], [big] * 4, [-big] * 4])
    assert reference(SOFTMAX, x).tolist() == [[0, 0.5, 0.5, 0], [0.25] * 4, [0.25] * 4]
    log = reference(LOG, x)
    assert log[0, 0] == -np.inf
    assert np.allclose(log[1:], -np.log(4), rtol=1e-15)
    assert reference(SOFTMAX, np.zeros((0, 4))).shape == (0, 4)


def problem(algorithm: Function, dtype: DType) -> Problem:
    return Problem.of(algorithm, DType.FLOAT64, 64, out_dtype=dtype)


def rows() -> Float64:
    return np.random.default_rng(3).standard_normal((5, 64)) * 4


@pytest.mark.parametrize("algorithm", [SOFTMAX, LOG])
@pytest.mark.parametrize("dtype", list(DType))
def test_the_correctly_rounded_result_is_right(algorithm: Function, dtype: DType) -> None:
    x = rows()
    result = check(encode(reference(algorithm, x, dtype), dtype), x, problem(algorithm, dtype))
    assert result.ok
    assert result.worst <= (0 if dtype in SIXTEEN else result.bound / 8)


@pytest.mark.parametrize(("dtype", "bound"), [(DType.FLOAT32, 2e-6), (DType.FLOAT64, 1e-14)])
def test_the_bounds_of_wide_results(dtype: DType, bound: float) -> None:
    x = rows()
    right = reference(SOFTMAX, x, dtype)
    rounded = 1 + abs(np.log(right[2, 5])) / 90 if dtype is DType.FLOAT64 else 1
    for factor, ok in ((0.8, True), (1.2, False)):
        wrong = right.copy()
        wrong[2, 5] *= 1 + factor * bound * rounded
        result = check(encode(wrong, dtype), x, problem(SOFTMAX, dtype))
        assert result.ok is ok
        assert result.index == (2, 5)
        assert result.worst == pytest.approx(factor * bound, rel=0.1)
    log = reference(LOG, x, dtype)
    log[1, 0] += 1.2 * bound * (1 + abs(log[1, 0]))
    assert not check(encode(log, dtype), x, problem(LOG, dtype)).ok


LONG_DOUBLE = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant <= 52, reason="long double is float64 here"
)


def wide_rows() -> Float64:
    x: Float64 = REGIMES["wide_spread"].array(3, 1000, DType.FLOAT64)
    return x


@LONG_DOUBLE
@pytest.mark.parametrize("algorithm", [SOFTMAX, LOG])
def test_the_reference_of_float64_is_rounded_once(algorithm: Function) -> None:
    """Compare it with 50 digits."""
    with decimal.localcontext() as context:
        context.prec = 50
        row = [decimal.Decimal(float(value)) for value in wide_rows()[0, :100]]
        terms = [(value - max(row)).exp() for value in row]
        total = sum(terms, decimal.Decimal(0))
        if algorithm == SOFTMAX:
            exact = [term / total for term in terms]
        else:
            exact = [value - max(row) - total.ln() for value in row]
        y = reference(algorithm, wide_rows()[:1, :100], DType.FLOAT64)[0]
        for got, wanted in zip(y, exact, strict=True):
            scale = abs(wanted) + (1 if algorithm is LOG else 0)
            assert abs(decimal.Decimal(float(got)) - wanted) <= scale * decimal.Decimal(2) ** -52


@LONG_DOUBLE
def test_wide_spreads_need_the_bound_that_float64_has() -> None:
    """Plain float64 is off by 5e-14, as far as x - max is rounded; a kernel may be no further."""
    x = wide_rows()
    y, exact = reference(SOFTMAX, x), reference(SOFTMAX, x, DType.FLOAT64)
    seen = exact > 1e-290
    assert 1e-14 < (np.abs(y - exact)[seen] / exact[seen]).max() < 8e-14
    assert check(y, x, problem(SOFTMAX, DType.FLOAT64)).ok
    row, col = np.unravel_index(np.where(seen, exact, 1).argmin(), x.shape)
    for error, ok in ((7e-14, True), (9e-14, False)):
        wrong = exact.copy()
        wrong[row, col] *= 1 + error
        assert check(wrong, x, problem(SOFTMAX, DType.FLOAT64)).ok is ok


@LONG_DOUBLE
def test_a_kernels_exponent_is_rounded_too() -> None:
    wide = Problem.of(SOFTMAX, "float64", 1000)
    x = wide_rows()
    y = run(render(best_guess(wide, 3, arch_named("sm_90"), "block")), x)
    exact = reference(SOFTMAX, x, DType.FLOAT64)
    seen = exact > 1e-290
    assert (np.abs(y - exact)[seen] / exact[seen]).max() > 1e-14
    assert check(y, x, wide).ok


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_16_bit_result_may_be_the_neighbour_and_no_further(dtype: DType) -> None:
    x = rows()
    right = encode(reference(SOFTMAX, x), dtype).view(np.uint16)
    for steps, ok in ((1, True), (2, False)):
        for sign in (1, -1):
            wrong = right.copy()
            wrong[4, 7] = int(wrong[4, 7]) + sign * steps
            result = check(wrong.view(storage_dtype(dtype)), x, problem(SOFTMAX, dtype))
            assert (result.ok, result.worst, result.index) == (ok, steps, (4, 7))


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_a_gradient_of_16_bits_is_rounded_as_its_own_type_is(dtype: DType) -> None:
    """A share of it that bfloat16 rounds away is 8 to 16 steps of float16."""
    given = Problem.of("logsumexp_backward", DType.FLOAT32, 64, out_dtype=dtype)
    x = rows().astype(np.float32)
    inputs = (x, *other_inputs(x, given))
    right = encode(exact_results(given, inputs)[0], dtype).view(np.uint16)
    for steps, ok in ((1, True), (3, False)):
        wrong = right.copy()
        wrong[4, 7] += steps
        assert numerics.check([wrong.view(storage_dtype(dtype))], inputs, given).ok is ok


def test_bfloat16_results_that_float32_flushes_may_be_0() -> None:
    x = encode([[0.0, -87.4, -100.0, -80.0]], DType.BFLOAT16)
    small = Problem.of(SOFTMAX, "bfloat16", 4)
    y = encode(reference(SOFTMAX, decode(x, DType.BFLOAT16)), DType.BFLOAT16)
    for column, ok in ((1, True), (2, True), (3, False)):
        flushed = y.copy()
        flushed[0, column] = 0
        assert check(flushed, x, small).ok is ok


@pytest.mark.parametrize("scale", [5.0, -5.0, 1.0])
def test_results_that_are_flushed_before_they_are_scaled_may_not_be_0(scale: float) -> None:
    """Of 3e-38 and -3e-38 the probability is 6e-39, below the smallest normal number."""
    scaled = parse_name("softmax_bf16_4_outscale_safe_b128").problem
    x = encode([[0, np.log(4.5e-38 / abs(scale)), -1, -2]], DType.BFLOAT16)
    inputs = (x, np.array([scale], np.float32))
    (y,) = exact_results(scaled, [decode(x, DType.BFLOAT16), inputs[1]])
    result = encode(y, DType.BFLOAT16)
    assert numerics.check([result], inputs, scaled).ok
    for column in (1, 2):
        flushed = result.copy()
        flushed[0, column] = 0
        assert not numerics.check([flushed], inputs, scaled).ok


@pytest.mark.parametrize("scale", [4.0, 0.25])
def test_gradients_that_are_flushed_before_slopes_multiply_them_may_be_0(scale: float) -> None:
    """p of 8e-39 is flushed, and times a scale of 4 it would be a normal number."""
    scaled = Problem.of("cross_entropy_grad", "bfloat16", 4, hooks=("scale",))
    x = encode([[0, np.log(8e-39) / scale, -80 / scale, -1]], DType.BFLOAT16)
    numbers = [np.array([3]), np.array(-100), *np.array([1, 0, scale], np.float32)]
    inputs = (x, *(np.asarray(each) for each in numbers))
    exact = exact_results(scaled, [decode(x, DType.BFLOAT16), *inputs[1:]])
    results = [encode(each, o.dtype) for each, o in zip(exact, scaled.results, strict=True)]
    for column in (1, 2):
        found = [each.copy() for each in results]
        found[0][0, column] = 0
        assert numerics.check(found, inputs, scaled).ok is (column == 1)


@pytest.mark.parametrize("dtype", DType)
def test_no_other_result_stands_for_an_infinite_one_whose_terms_cancel(dtype: DType) -> None:
    problem = Problem.of("topk_softmax_backward_k1_sigmoid", dtype, 4)
    x, ids = encode(np.zeros((1, 4)), dtype), np.array([2], np.int32)
    given = (x, *(np.array([each], problem.compute_dtype.value) for each in (0.5, np.inf)))
    inputs = (*given[:2], ids, given[2])
    for value, ok in ((np.inf, True), (5.0, False), (-np.inf, False), (np.nan, False)):
        dx = encode(np.array([[0, 0, value, 0]]), dtype)
        assert numerics.check([dx], inputs, problem).ok is ok


def test_a_row_that_is_ignored_has_a_gradient_of_0_whatever_slopes_are() -> None:
    capped = Problem.of("cross_entropy_grad", "float32", 3, hooks=("softcap",))
    x = np.array([[1, np.nan, 2]] * 2)
    numbers = [np.array(value) for value in (-100, 1.0, 0.0, 30.0)]
    dx, *_ = exact_results(capped, [x, np.array([-100, 0]), *numbers])
    assert (dx[0] == 0).all()
    assert np.isnan(dx[1]).all()


def test_a_gradient_moves_with_elements_as_far_as_a_hook_has_them_off() -> None:
    """Where p (log p + H) of an entropy is nearly 0 its size allows nothing."""
    problem = Problem.of("token_log_probs_backward_entropy", "float32", 3, hooks=("softcap",))
    x = np.array([[9.0, -20, -20]], np.float32)
    others = other_inputs(x, problem)
    inputs = (x, *others[:2], np.zeros_like(others[2]), *others[3:])
    (right,) = exact_results(problem, inputs)
    slope = 1 - np.tanh(x[0, 0] / inputs[-1]) ** 2
    off = np.max(slack(problem, hooked(problem, inputs)[0]))
    for times, ok in ((0.9, True), (3, False)):
        dx = right.astype(np.float32)
        dx[0, 0] += float(times * off * slope * inputs[5][0])
        assert numerics.check([dx], inputs, problem).ok is ok


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("topk_softmax_backward_k1_sigmoid", {"weights": [2.5], "upstream": [-1.5], "ids": [1]}),
        ("logsumexp_backward", {"lse": [0.0], "upstream": [-3.75]}),
    ],
)
def test_gradients_that_are_flushed_before_upstream_multiplies_them_may_be_0(
    name: str, others: dict[str, list[float]]
) -> None:
    """A factor of 6e-39 is flushed, and times the upstream gradient it is a normal number."""
    given = Problem.of(name, "bfloat16", 2)
    for size, ok in ((6e-39, True), (1e-35, False)):
        x = [[0, np.log(size) * (-1 if "sigmoid" in name else 1)]]
        values: dict[str, Any] = {"x": x, **others}
        inputs = [encode(values[each.name], each.dtype) for each in given.inputs]
        pairs = zip(inputs, given.inputs, strict=True)
        exact = exact_results(given, [decode(v, o.dtype) for v, o in pairs])
        dx = encode(exact[0], DType.BFLOAT16)
        assert abs(exact[0][0, 1]) > 1.2e-38
        assert numerics.check([dx], inputs, given).ok
        dx[0, 1] = 0
        assert numerics.check([dx], inputs, given).ok is ok


@pytest.mark.parametrize("hook", ["scaleany", "softcap", "biasf32any"])
def test_what_is_given_of_a_row_is_of_what_hooks_make_of_it(hook: str) -> None:
    x = np.random.default_rng(0).normal(size=(9, 40)).astype("float32")
    given = Problem.of("logsumexp_backward", "float32", 40, hooks=(hook,))
    inputs = (x, *other_inputs(x, given))
    entered, lse, *_ = hooked(given, inputs)
    np.testing.assert_allclose(lse, np.log(np.exp(entered).sum(axis=1)), rtol=1e-6)


@pytest.mark.parametrize("function", all_functions(), ids=lambda function: function.name)
def test_arrays_of_an_element_a_place_have_as_many_as_is_said(function: Function) -> None:
    """A kernel that finds places by a larger number reads what lies behind the array."""
    problem = Problem.of(function, "float32", 96)
    x = np.zeros((11, 96), np.float32)
    given = (x, *other_inputs(x, problem))
    for inputs in (given, *varied_inputs(given, problem)):
        by_name = dict(zip((each.name for each in problem.inputs), inputs, strict=True))
        for operand in problem.inputs:
            if operand.extent is Extent.BROADCAST:
                assert by_name[operand.name].size == by_name[f"{operand.name}_count"]


def test_sums_of_float64_that_overflow_are_judged_in_more_than_float64() -> None:
    """NumPy adds eight sums side by side: one of them is infinite here, and one minus infinity."""
    narrow = Problem.of("log_softmax_backward", "float64", 16, out_dtype="bfloat16")
    dy = np.tile([1.7e308, -1.7e308, 0, 0, 0, 0, 0, 0], 2)[None]
    y = np.full((1, 16), -np.log(16))
    exact = exact_results(narrow, [dy, y], wide=True)
    assert not np.isnan(exact[0]).any()
    assert numerics.check([encode(exact[0], DType.BFLOAT16)], (dy, y), narrow).ok


@LONG_DOUBLE
@pytest.mark.parametrize("name", ["softmax_backward", "log_softmax_backward"])
def test_sizes_of_terms_that_overflow_in_float64_excuse_nothing(name: str) -> None:
    """Of an infinite size any result is within a share."""
    given = Problem.of(name, "float64", 64)
    dy = np.full((1, 64), np.finfo(np.float64).max)
    inputs = (dy, *other_inputs(dy, given))
    (right,) = exact_results(given, inputs, wide=True)
    assert np.isfinite(right).all()
    assert numerics.check([right], inputs, given).ok
    for factor, ok in ((1 + 1e-14, True), (1 + 1e-11, False)):
        assert numerics.check([right * factor], inputs, given).ok is ok


def test_log_softmax_near_zero_has_the_absolute_bound_of_float32() -> None:
    x = encode([[16.0, 0.0]], DType.FLOAT16)  # the first result is -1.1e-7
    zero = encode([[0.0, -16.0]], DType.FLOAT16)
    assert check(zero, x, Problem.of(LOG, "float16", 2)).ok
    assert not check(encode([[1e-5, -16.0]], DType.FLOAT16), x, Problem.of(LOG, "float16", 2)).ok


@pytest.mark.parametrize("algorithm", [SOFTMAX, LOG])
@pytest.mark.parametrize("dtype", list(DType))
def test_nan_infinity_and_zero_must_be_exact(algorithm: Function, dtype: DType) -> None:
    x = np.array([[-np.inf, 1.0, 0.0, 1.0] * 16, [0.0] * 63 + [np.nan]])
    right = reference(algorithm, x)
    cases = {(0, 0): 1e-45, (0, 1): np.nan, (1, 3): 0.5}
    for index, value in cases.items():
        wrong = right.copy()
        wrong[index] = value if algorithm == SOFTMAX or index != (0, 0) else -3e38
        stored = encode(wrong, dtype)
        if index == (0, 0) and dtype in SIXTEEN:
            stored.view(np.uint16)[0, 0] = 1 if algorithm == SOFTMAX else 0xFB00
        result = check(stored, x, problem(algorithm, dtype))
        assert not result.ok
        assert result.worst == np.inf
        assert result.index == index
        assert f"y[{index[0]}, {index[1]}]" in result.message


@pytest.mark.parametrize(
    ("function", "results", "passes", "limit"),
    [
        ("cross_entropy", (0.0, 2.5), (-6e-8, 2.5), "at least 0"),
        ("cross_entropy", (0.0, 2.5), (0.0, 2.4999998), "at least the row's largest element"),
        ("entropy_lse", (0.0, 2.5), (-6e-8, 2.5), "at least 0"),
        ("token_log_probs", (0.0,), (6e-8,), "at most 0"),
        ("partial", (2.5, 1.0), (2.5, 0.99999994), "at least 1"),
        ("softmax", ([1.0, 0.0, 0.0],), ([1.0000001, 0.0, 0.0],), "from 0 to 1"),
        ("log_softmax", ([0.0, -97.5, -np.inf],), ([6e-8, -97.5, -np.inf],), "at most 0"),
    ],
)
def test_no_result_passes_its_limit_by_its_last_bit(
    function: str, results: tuple[object, ...], passes: tuple[object, ...], limit: str
) -> None:
    problem = Problem.of(function, "float32", 3)
    x = np.array([[2.5, -95.0, -np.inf]], np.float32)
    first = np.zeros(1, np.int64)
    others: dict[str, Storage] = {"target": first, "ids": first, "z_loss": np.array(0, np.float32)}
    rest: list[Storage] = [
        others.get(operand.name, value)
        for operand, value in zip(problem.inputs[1:], other_inputs(x, problem), strict=True)
    ]
    right, wrong = ([np.array([v], np.float32) for v in each] for each in (results, passes))
    assert numerics.check(right, (x, *rest), problem).ok
    found = numerics.check(wrong, (x, *rest), problem)
    assert not found.ok
    assert found.message.endswith(f" is {limit}, to the last bit")


def test_limits_leave_out_rows_whose_exact_results_pass_them() -> None:
    """The loss of an ignored row is 0 and its lse -inf; the sum of a row of -inf is 0."""
    x = np.array([[2.5, 1.0, 0.0], [-np.inf] * 3, [np.nan, 1.0, 0.0]], np.float32)
    sums = np.array([1.3052154, 0, np.nan], np.float32)
    maxima = np.array([2.5, -np.inf, np.nan], np.float32)
    assert numerics.check((maxima, sums), (x,), Problem.of("partial", "float32", 3)).ok
    problem = Problem.of("cross_entropy", "float32", 3)
    numbers = [np.array(-100), np.array(0, np.float32)]
    loss = np.array([0, np.nan, np.nan], np.float32)
    lse = np.array([-np.inf, -np.inf, np.nan], np.float32)
    inputs = (x, np.array([-100, 0, 0]), *numbers)
    assert numerics.check((loss, lse), inputs, problem).ok


def test_a_loss_less_a_z_loss_may_be_below_0() -> None:
    """Its terms cancel: what rounding leaves has either sign."""
    problem = Problem.of("cross_entropy", "float32", 2)
    x = np.array([[1.0, 0.0]], np.float32)
    lse = np.float32(np.log(np.exp(1.0) + 1))
    for z_loss, ok in ((np.float32(-(lse - 1) / lse**2), True), (np.float32(0), False)):
        inputs = (x, np.array([0]), np.array(-100), np.array(z_loss))
        loss = np.array([-1e-7], np.float32) if ok else np.array([lse - 1], np.float32)
        results = (loss, np.array([lse], np.float32))
        assert numerics.check(results, inputs, problem).ok
        below = (np.array([-1e-7], np.float32), results[1])
        assert numerics.check(below, inputs, problem).ok is ok
        too_low = (loss, np.array([0.5], np.float32))
        assert not numerics.check(too_low, inputs, problem).ok


def test_what_overflows_the_result_is_its_infinity() -> None:
    big = float(np.finfo(np.float32).max)
    x = np.array([[big, -big]], np.float32)
    y = np.array([[0, -np.inf]], np.float32)
    assert check(y, x, Problem.of(LOG, "float32", 2)).ok
    y[0, 1] = np.inf
    assert not check(y, x, Problem.of(LOG, "float32", 2)).ok


def test_the_message_has_plain_numbers() -> None:
    problem = Problem.of("softmax", "float32", 4)
    wrong = np.full((1, 4), np.inf, np.float32)
    message = check(wrong, np.zeros((1, 4), np.float32), problem).message
    assert "y[0, 0] = inf, wanted 0.25, error inf" in message


def test_lse_beside_results_may_be_infinity_where_there_is_nan_and_infinity() -> None:
    x = np.zeros((2, 4), np.float32)
    x[:, 1], x[0, 2] = np.nan, np.inf
    y = np.full_like(x, np.nan)
    for function, lse, right in (
        ("softmax_lse", [np.inf, np.nan], True),
        ("softmax_lse", [np.nan, np.nan], True),
        ("softmax_lse", [np.inf, np.inf], False),
        ("softmax_lse", [0, np.nan], False),
        ("logsumexp", [np.inf, np.nan], False),
    ):
        problem = Problem.of(function, "float32", 4)
        of_rows = np.array(lse, np.float32)
        results = (y, of_rows) if function == "softmax_lse" else (of_rows,)
        assert numerics.check(results, (x,), problem).ok is right, (function, lse)
        if function == "softmax_lse":  # the infinity is the first row's sink
            sunk = Problem.of(function, "float32", 4, hooks=["sinkf32"])
            sink = (np.array([np.inf, 0], np.float32), np.array(1), np.array(2))
            without = np.where(np.isinf(x), np.float32(0), x)
            assert numerics.check(results, (without, *sink), sunk).ok is right, lse


def test_an_empty_result_is_right() -> None:
    empty = np.zeros((0, 4), np.float32)
    result = check(empty, empty, Problem.of(SOFTMAX, "float32", 4))
    assert (result.ok, result.worst, result.index) == (True, 0, None)


@pytest.mark.parametrize("dtype", list(DType))
def test_regimes_are_what_their_names_say(dtype: DType) -> None:
    slices = Slices(pack=4, warp=128, block=512)
    x = {
        name: decode(regime.array(6, 1000, dtype, slices), dtype)
        for name, regime in REGIMES.items()
        if regime.applies(1000)
    }
    assert np.isnan(x["nan"]).sum() == 3
    assert np.isposinf(x["plus_inf"]).any(axis=1).tolist() == [True, False] * 3
    assert np.isneginf(x["all_minus_inf"]).all()
    for name, width in (("pack", 4), ("warp", 128), ("block_slice", 512)):
        hidden = np.isneginf(x[f"minus_inf_{name}"])
        assert hidden[0, :width].all()
        assert hidden[1, -width:].all()
        assert (hidden.sum(axis=1)[:2] == width).all()
        assert not hidden.all(axis=1).any()
    assert 0 < np.isneginf(x["some_minus_inf"]).mean() < 1
    assert not np.isneginf(x["some_minus_inf"]).all(axis=1).any()
    lowest = -x["finfo_max_row"]
    assert (x["finfo_min_row"][::2] == lowest[::2]).all()
    assert set(x["finfo_min_row"][1]) == {-np.inf, lowest[0, 0]}
    if dtype is not DType.BFLOAT16:
        assert (x["finfo_max_row"] == np.finfo(dtype.value).max).all()
    assert np.isfinite(x["large_magnitude"]).all()
    assert np.abs(x["large_magnitude"]).max() > x["finfo_max_row"].max() * 0.9
    assert len(np.unique(x["all_equal"])) == 1


@pytest.mark.parametrize("cols", [1, 2, 3, 33])
def test_slices_leave_a_finite_element_in_narrow_rows(cols: int) -> None:
    for name in ("minus_inf_pack", "minus_inf_warp", "minus_inf_block_slice", "some_minus_inf"):
        x = REGIMES[name].array(9, cols, DType.FLOAT32)
        assert np.isfinite(x).any(axis=1).all(), name
    assert REGIMES["one_column"].applies(cols) is (cols == 1)
    assert REGIMES["odd_cols"].applies(cols) is (cols % 2 == 1)


@pytest.mark.parametrize(
    ("below", "error", "ok"),
    [
        (0, 1.9e-6, True),
        (0, 2.1e-6, False),
        (10, 2.8e-6, True),  # of 2e-6 + 10 * 9e-8
        (10, 3.0e-6, False),
        (60, 7.3e-6, True),
        (60, 7.5e-6, False),
        # Below the floor 1e-30 the step there is an absolute one: 8.2e-36 of e^-80, 1.8e-35.
        (80, 0.44, True),
        (80, 0.48, False),
    ],
)
def test_what_a_rounded_exponent_may_add(below: float, error: float, ok: bool) -> None:
    problem = Problem.of("softmax", "float32", 2)
    x = np.array([[0.0, -below]], np.float32)
    y = reference(problem.function, x.astype(np.float64))
    y[0, 1] *= 1 + error
    assert check(encode(y, DType.FLOAT32), x, problem, 9e-8).ok == ok
    assert check(encode(y, DType.FLOAT32), x, problem).ok == (error < 2e-6)


def test_a_rounded_exponent_adds_nothing_to_other_results() -> None:
    """An exponent error of 1 lets float32's softmax be anything, and nothing else."""
    x = np.array([[0.0, -3.0]], np.float32)
    for function, out in (
        ("softmax", "float16"),
        ("softmax", "float64"),
        ("log_softmax", "float32"),
    ):
        problem = Problem.of(function, "float32", 2, out_dtype=out)
        y = reference(problem.function, x.astype(np.float64), problem.out_dtype)
        wrong = encode(y * 1.01, problem.out_dtype)
        assert not check(wrong, x, problem, 1.0).ok


class OnADevice:
    """An array as CuPy's, which NumPy cannot take for one of its own."""

    def __init__(self, of: Any) -> None:
        self.of, self.shape = of, of.shape

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, which: Any) -> OnADevice:
        return OnADevice(self.of[which])

    def argmax(self, axis: int) -> OnADevice:
        return OnADevice(self.of.argmax(axis))

    def tolist(self) -> Any:
        return self.of.tolist()

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed")


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_grad", "token_log_probs"])
def test_targets_are_chosen_of_arrays_on_a_device_too(name: str) -> None:
    x = np.random.default_rng(4).standard_normal((9, 5))
    function = Function.of(name)
    for mine, numpys in zip(
        function.other_inputs(OnADevice(x)), function.other_inputs(x), strict=True
    ):
        np.testing.assert_array_equal(mine, numpys)
