"""Types of 8 bits: what they hold, how numbers are rounded to them, and who may have them."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType, Float8, result_type
from softgen.problems.numerics import check, decode, encode
from softgen.problems.problem import Problem

LARGEST = {Float8.E4M3: 448.0, Float8.E5M2: 57344.0}
SMALLEST = {Float8.E4M3: 2.0**-9, Float8.E5M2: 2.0**-16}
DIGITS = {Float8.E4M3: 3, Float8.E5M2: 2}


@pytest.mark.parametrize("dtype", list(Float8))
def test_the_numbers_of_a_type(dtype: Float8) -> None:
    """Every finite one is there, built from its digits and exponent."""
    digits, smallest = DIGITS[dtype], SMALLEST[dtype]
    steps = 2**digits
    subnormal = [smallest * i for i in range(steps)]
    normal = [smallest * (steps + i) * 2**exponent for exponent in range(31) for i in range(steps)]
    wanted = [number for number in subnormal + normal if number <= LARGEST[dtype]]
    bits = np.arange(len(wanted), dtype=np.uint8)
    assert decode(bits, dtype).tolist() == wanted
    assert decode(bits | 0x80, dtype).tolist() == [-number for number in wanted]
    assert encode(wanted, dtype).tolist() == bits.tolist()
    assert encode([-number for number in wanted], dtype).tolist() == (bits | 0x80).tolist()


@pytest.mark.parametrize("dtype", list(Float8))
def test_rounding_is_to_nearest_even_and_saturates(dtype: Float8) -> None:
    numbers = decode(np.arange(dtype.largest_bits + 1, dtype=np.uint8), dtype)
    middle = (numbers[:-1] + numbers[1:]) / 2
    assert np.array_equal(decode(encode(np.nextafter(middle, 9e9), dtype), dtype), numbers[1:])
    assert np.array_equal(decode(encode(np.nextafter(middle, 0), dtype), dtype), numbers[:-1])
    assert (encode(middle, dtype) % 2 == 0).all()
    beyond = np.array([LARGEST[dtype] * 1.5, np.inf, -np.inf, -1e30])
    assert (decode(encode(beyond, dtype), dtype) == np.sign(beyond) * LARGEST[dtype]).all()
    assert np.isnan(decode(encode([np.nan], dtype), dtype)).all()
    assert np.isnan(decode(np.array([0xFF], np.uint8), dtype)).all()


def test_a_result_is_the_rounded_value_or_its_neighbour() -> None:
    problem = Problem.of("softmax", "float32", 4, out_dtype="float8_e4m3fn")
    x = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    right = encode([[0.5, 0.25, 0.125, 0.125]], Float8.E4M3)
    for wrong_by, ok in ((0, True), (1, True), (-1, True), (2, False), (-2, False)):
        y = right.copy()
        y[0, 1] = int(y[0, 1]) + wrong_by
        assert check((y,), (x,), problem).ok is ok
    x[0, 3] = -np.inf  # exactly 0, and no neighbour of it
    y = encode(np.exp(x) / np.exp(x).sum(), Float8.E4M3)
    assert check((y,), (x,), problem).ok
    y[0, 3] = 1
    assert not check((y,), (x,), problem).ok


def test_minus_infinity_saturates_in_log_softmax() -> None:
    problem = Problem.of("log_softmax", "float32", 3, out_dtype="float8_e5m2")
    x = np.array([[0, -np.inf, -1e6]], np.float32)
    y = encode([[0, -57344, -57344]], Float8.E5M2)
    assert check((y,), (x,), problem).ok
    y[0, 1] = 0x7F
    assert not check((y,), (x,), problem).ok


def test_names_and_who_has_them() -> None:
    problem = Problem.of("softmax", "bfloat16", 300, out_dtype="float8_e5m2")
    assert problem.stem == "softmax_bf16_to_e5m2"
    assert (problem.bytes_per_row, problem.needs) == (300 * 3, (8, 9))
    assert result_type("torch.float8_e4m3fn") is Float8.E4M3
    assert result_type(DType.FLOAT16) is DType.FLOAT16
    with pytest.raises(InvalidTypeError, match=r"did you mean 'float8_e4m3fn'\? softgen writes"):
        result_type("float8_e4m3fm")
    with pytest.raises(
        InvalidTypeError, match="'float8_e5m2' is not supported; only results have it;"
    ):
        Problem.of("softmax", "float8_e5m2", 300)
    with pytest.raises(InvalidValueError, match="arithmetic in float32, not of float64; cast x"):
        Problem.of("softmax", "float64", 300, out_dtype="float8_e5m2")
    with pytest.raises(InvalidValueError, match="logsumexp has no results of float8_e5m2; softmax"):
        Problem.of("logsumexp", "float32", 300, out_dtype="float8_e5m2")
