"""Operands that are integers or booleans: how they are spelled and stored."""

from __future__ import annotations

import numpy as np
import pytest

from softgen.errors import InvalidValueError
from softgen.problems.dtypes import Integer
from softgen.problems.numerics import decode, encode, numpy_dtype, storage_dtype
from softgen.problems.operands import Extent, Operand


@pytest.mark.parametrize(
    ("kind", "size", "parameter"),
    [
        (Integer.BOOL, 1, "const bool* ids"),
        (Integer.INT32, 4, "const int* ids"),
        (Integer.INT64, 8, "const long long* ids"),
    ],
)
def test_arrays_and_numbers_are_spelled_and_sized(kind: Integer, size: int, parameter: str) -> None:
    ids = Operand("ids", kind, Extent.ROW, result=False, cuda=kind.cuda)
    assert ids.parameter == parameter
    assert ids.bytes_per_row(1000) == size
    count = Operand("count", kind, Extent.NUMBER, result=False, cuda=kind.cuda)
    assert count.parameter == f"{kind.cuda} count"
    assert numpy_dtype(kind) == storage_dtype(kind) == np.dtype(kind.value)


def test_values_are_kept_to_the_bit_and_refused_where_the_type_has_none() -> None:
    seed = 2**53 + 1  # no float64
    assert int(decode(encode(seed, Integer.INT64), Integer.INT64)) == seed
    assert encode([True, False], Integer.BOOL).tolist() == [True, False]
    for value, kind in ((2**31, Integer.INT32), (2, Integer.BOOL), (0.5, Integer.INT64)):
        with pytest.raises(InvalidValueError, match=f"{kind.value} does not hold all"):
            encode(value, kind)
