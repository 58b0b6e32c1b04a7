"""Numerics of functions with one input and one result, as most tests need them."""

from __future__ import annotations

from softgen.problems import numerics
from softgen.problems.dtypes import DType, FloatType
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.numerics import Accuracy, Float64, Storage
from softgen.problems.problem import Problem

BOTH = (SOFTMAX, LOG_SOFTMAX)


def check(y: Storage, x: Storage, problem: Problem, exponent_error: float = 0.0) -> Accuracy:
    """Compare the only result with the reference of the only input."""
    return numerics.check((y,), (x,), problem, exponent_error)


def reference(function: Function, x: Float64, out_dtype: FloatType | None = None) -> Float64:
    """Return the only result, for float64 rounded from long double."""
    (y,) = numerics.reference(function, x, wide=out_dtype is DType.FLOAT64)
    return y
