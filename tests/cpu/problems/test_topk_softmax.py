"""What is right of a choice: its order, ties, groups, and what is as right of close scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.functions import function_named
from softgen.problems.functions.topk_softmax import TopkSoftmax
from softgen.problems.numerics import Accuracy, check, encode
from softgen.problems.problem import Problem

COLS = 16


def judged(function: TopkSoftmax, x: Any, ids: Any = None, bias: Any = None) -> Accuracy:
    """Return the verdict on a choice of rows, with the weights of its columns."""
    problem = Problem.of(function, DType.FLOAT32, COLS)
    given = (x, *((bias,) if function.bias else ()), np.float64(1.0))
    inputs = [encode(v, o.dtype) for v, o in zip(given, problem.inputs, strict=True)]
    weights, exact = function.reference(*given)
    if ids is not None:
        exact = np.asarray(ids, np.int32)
        s = 1 / (1 + np.exp(-x)) if function.sigmoid else function._scores(x)
        weights = np.take_along_axis(s, exact.astype(np.int64).clip(0, COLS - 1), axis=1)
    return check((encode(weights, DType.FLOAT32), exact.astype(np.int32)), inputs, problem)


def a_row() -> Any:
    x = np.zeros((1, COLS))
    x[0, [3, 7, 9, 12]] = [2, 3, 2, 1]
    return x


@pytest.mark.parametrize(
    ("ids", "right"),
    [
        ([7, 3, 9, 12], True),
        ([7, 9, 3, 12], False),  # ties go to the lower column
        ([7, 3, 12, 9], False),  # the larger is first
        ([7, 3, 9, 9], False),
        ([7, 3, 9, 0], False),
        ([7, 3, 9, 16], False),
        ([7, 3, 9, -1], False),
    ],
)
def test_the_largest_are_first_and_ties_go_to_the_lower(ids: list[int], right: bool) -> None:
    assert judged(TopkSoftmax(4), a_row(), [ids]).ok is right
    assert judged(TopkSoftmax(4, sigmoid=True), a_row(), [ids]).ok is right


def test_of_elements_that_are_alike_the_lowest_are_chosen() -> None:
    x = np.zeros((1, COLS))
    assert judged(TopkSoftmax(3), x, [[0, 1, 2]]).ok
    assert not judged(TopkSoftmax(3), x, [[0, 1, 3]]).ok
    x[0, 5:] = -np.inf
    assert judged(TopkSoftmax(7), x, [[0, 1, 2, 3, 4, 5, 6]]).ok
    assert not judged(TopkSoftmax(7), x, [[0, 1, 2, 3, 4, 5, 7]]).ok


def test_scores_that_are_closer_than_their_error_may_change_places() -> None:
    x, bias = np.zeros((1, COLS)), np.zeros(COLS)
    function = TopkSoftmax(2, sigmoid=True, bias=True)
    x[0, [4, 6]] = [1, 1 + 1e-7]
    assert judged(function, x, [[6, 4]], bias).ok
    assert judged(function, x, [[4, 6]], bias).ok
    x[0, 6] = 1 + 1e-4
    assert judged(function, x, [[6, 4]], bias).ok
    assert not judged(function, x, [[4, 6]], bias).ok
    assert not judged(TopkSoftmax(2), x, [[4, 6]]).ok  # of elements there is no error
    bias[9] = 2  # the bias is for the choice alone
    assert judged(function, x, [[9, 6]], bias).ok


@pytest.mark.parametrize(
    ("infinite", "groups", "right"),
    [(-np.inf, 0, [15, 14]), (-np.inf, 4, [15, 14]), (np.inf, 0, [0, 15]), (np.inf, 4, [0, 3])],
)
def test_a_bias_that_is_infinite_excuses_nothing(
    infinite: float, groups: int, right: list[int]
) -> None:
    """An error in proportion to it would let any column stand in the place of any other."""
    x, bias = np.linspace(-1, 1, COLS)[None], np.zeros(COLS)
    bias[0] = infinite
    function = TopkSoftmax(2, sigmoid=True, bias=True, groups=groups, kept_groups=groups // 4)
    for ids in ([15, 14], [15, 0], [0, 15], [0, 3]):
        assert judged(function, x, [ids], bias).ok is (ids == right)


def test_groups_that_are_as_good_may_be_kept() -> None:
    x, bias = np.zeros((1, COLS)), np.zeros(COLS)
    x[0, [0, 1, 5, 6, 8]] = [1, 1, 1, 1 + 1e-7, 3]
    function = TopkSoftmax(2, sigmoid=True, bias=True, groups=4, kept_groups=1)
    assert judged(function, x, [[6, 5]], bias).ok
    assert judged(function, x, [[0, 1]], bias).ok
    assert not judged(function, x, [[8, 9]], bias).ok  # one alone is no pair
    assert not judged(function, x, [[8, 6]], bias).ok
    largest = TopkSoftmax(2, sigmoid=True, groups=4, kept_groups=1)
    assert judged(largest, x, [[8, 9]]).ok
    assert not judged(largest, x, [[0, 1]]).ok


def test_rows_that_have_no_scores() -> None:
    x = np.zeros((4, COLS))
    x[0, 3], x[1, 3], x[2], x[3, 1:] = np.nan, np.inf, -np.inf, -np.inf
    for sigmoid, bad in ((False, [0, 1, 2]), (True, [0])):
        with np.errstate(invalid="ignore"):
            weights, ids = TopkSoftmax(2, sigmoid=sigmoid).reference(x, np.float64(1.0))
        assert np.isnan(weights).all(axis=1).tolist() == [row in bad for row in range(4)]
        assert (ids[bad] == [0, 1]).all()
        assert weights[3].tolist() == [0.5 if sigmoid else 1.0, 0]
    renormalized = TopkSoftmax(2, sigmoid=True, renormalize=True)
    weights, _ = renormalized.reference(np.full((1, COLS), -1e30), np.float64(1.0))
    assert weights.tolist() == [[0.5, 0.5]]


def test_where_the_sizes_of_terms_overflow_no_larger_error_is_excused() -> None:
    """Two upstreams cancel. Of the larger ones the absolute values have no sum in float64."""
    problem = Problem.of("topk_softmax_backward_k2", "float64", COLS)
    for size in (1.0, 1e308):
        upstream, dx = np.array([[size, -size]]), np.zeros((1, COLS))
        given = (np.zeros((1, COLS)), np.ones((1, 2)), np.array([[3, 5]], np.int32), upstream)
        dx[0, [3, 5]] = upstream
        assert check((dx,), given, problem).ok
        for share in (1e-15, 1e-12) if size == 1 else (1e-12,):
            dx[0, 0] = share * size  # exactly 0
            assert check((dx,), given, problem).ok is (share == 1e-15)


@pytest.mark.parametrize(("dtype", "apart"), [("float32", 1e-4), ("float64", 1e-12)])
def test_a_choice_is_judged_by_the_error_of_its_own_arithmetic(dtype: str, apart: float) -> None:
    """Of scores that are further apart than that, the lower one is wrong; of nearer ones right."""
    problem = Problem.of("topk_softmax_k1_sigmoid_bias", dtype, COLS)
    kind, x = np.dtype(dtype).type, np.full((1, COLS), -50.0)
    for far in (True, False):
        x[0, [3, 5]] = [0, apart if far else apart * 1e-4]
        given = (x.astype(kind), np.zeros(COLS, kind), np.array(1, kind))
        for column, right in ((5, True), (3, not far)):
            weight = 1 / (1 + np.exp(-given[0][0, column], dtype=np.float64))
            found = (np.array([weight], kind), np.array([column], np.int32))
            assert check(found, given, problem).ok is right, (far, column)


@pytest.mark.parametrize(
    "name",
    [
        "topk_softmax_k64",
        "topk_softmax_k1_sigmoid_bias_g32of1_norm",
        "topk_softmax_backward_k9_norm",
    ],
)
def test_names_lead_back(name: str) -> None:
    function = function_named(name)
    assert function is not None
    assert function.name == name


@pytest.mark.parametrize(
    "name",
    [
        *("topk_softmax", "topk_softmax_k0", "topk_softmax_k65", "topk_softmax_k08"),
        *("topk_softmax_k2_x", "topk_softmax_k2_g33of1", "topk_softmax_k2_g4of5"),
        *("topk_softmax_k2_norm_bias", "topk_softmax_backward_k65"),
        "topk_softmax_backward_k2_bias",
    ],
)
def test_names_of_nothing(name: str) -> None:
    assert function_named(name) is None


@pytest.mark.parametrize("name", ["topk_softmax_k8", "topk_softmax_backward_k8"])
def test_columns_that_int32_cannot_name_are_refused(name: str) -> None:
    assert Problem.of(name, "float16", 2**31 - 1).cols == 2**31 - 1
    with pytest.raises(InvalidValueError, match=r"up to 2\*\*31 - 1 columns, got 2147483648"):
        Problem.of(name, "float16", 2**31)
