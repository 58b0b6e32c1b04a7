"""Names, dtypes, widths and alignments of a request."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.hooks.known import HOOKS
from softgen.problems.problem import MAX_COLS, MAX_INT32_COLS, Problem, natural_alignment
from tests.helpers.drawn import alignments, problems, widths


class TorchLikeDtype:
    """Prints as PyTorch's dtypes do."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


SPELLINGS = [
    ("float16", DType.FLOAT16),
    (np.float16, DType.FLOAT16),
    (np.dtype("float16"), DType.FLOAT16),
    (TorchLikeDtype("float16"), DType.FLOAT16),
    ("bfloat16", DType.BFLOAT16),
    (ml_dtypes.bfloat16, DType.BFLOAT16),
    (np.dtype(ml_dtypes.bfloat16), DType.BFLOAT16),
    (TorchLikeDtype("bfloat16"), DType.BFLOAT16),
    ("float32", DType.FLOAT32),
    (np.float32, DType.FLOAT32),
    (np.dtype("<f4"), DType.FLOAT32),
    (TorchLikeDtype("float32"), DType.FLOAT32),
    ("torch.float32", DType.FLOAT32),
    (DType.FLOAT32, DType.FLOAT32),
    (np.float64, DType.FLOAT64),
    (np.dtype(float), DType.FLOAT64),
    (TorchLikeDtype("float64"), DType.FLOAT64),
]


@pytest.mark.parametrize(("given_dtype", "member"), SPELLINGS, ids=lambda value: repr(value))
def test_dtypes_of_all_libraries(given_dtype: object, member: DType) -> None:
    assert DType.of(given_dtype) is member


@pytest.mark.parametrize(
    "unknown",
    [
        *("int32", "float", "float8_e4m3fn", "", "Float32", None, 7, float, []),
        *(np.int8, np.dtype("bool"), np.complex64, np.dtype(">f4"), ml_dtypes.float8_e5m2),
        TorchLikeDtype("int64"),
    ],
    ids=repr,
)
def test_other_dtypes_name_the_accepted_ones(unknown: object) -> None:
    with pytest.raises(InvalidTypeError) as caught:
        DType.of(unknown)
    message = str(caught.value)
    assert "float16, bfloat16, float32, float64" in message
    assert "Cast the input first" in message


def test_an_unknown_dtype_is_named_without_its_module() -> None:
    with pytest.raises(TypeError, match=r"^dtype 'int64' is not supported"):
        DType.of(TorchLikeDtype("int64"))


def test_facts_of_the_dtypes() -> None:
    facts = {d: (d.itemsize, d.short, d.cuda, d.max_pack) for d in DType}
    assert facts == {
        DType.FLOAT16: (2, "f16", "__half", 8),
        DType.BFLOAT16: (2, "bf16", "__nv_bfloat16", 8),
        DType.FLOAT32: (4, "f32", "float", 4),
        DType.FLOAT64: (8, "f64", "double", 2),
    }


def test_algorithms_by_name_and_by_member() -> None:
    assert Function.of("softmax") == SOFTMAX
    assert Function.of(LOG_SOFTMAX) == LOG_SOFTMAX
    assert Function.of("log_softmax") == LOG_SOFTMAX


@pytest.mark.parametrize("unknown", ["Softmax", "logsoftmax", "", None, 1, ["softmax"]])
def test_other_algorithms_name_the_known_ones(unknown: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"unknown function.*softgen knows: .*finish, log"):
        Function.of(unknown)


@pytest.mark.parametrize("cols", [1.0, True, "8", None, np.float32(8), [8]])
def test_widths_of_another_type(cols: Any) -> None:
    with pytest.raises(InvalidTypeError, match="cols must be an int, got "):
        Problem.of("softmax", "float32", cols)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8])
def test_numpy_integers_are_integers(kind: Any) -> None:
    problem = Problem.of("softmax", "float32", kind(96), alignment=kind(2))
    assert problem == Problem.of("softmax", "float32", 96, alignment=2)
    assert type(problem.cols) is type(problem.alignment) is int


@pytest.mark.parametrize("cols", [0, -1, MAX_COLS + 1, 10**30])
def test_widths_out_of_range(cols: int) -> None:
    with pytest.raises(InvalidValueError, match=rf"cols must be from 1 to 2\*\*40, got {cols}$"):
        Problem.of("softmax", "float32", cols)


@pytest.mark.parametrize("alignment", [0, -1, -4, 3, 6, 12])
def test_alignments_that_are_no_power_of_two(alignment: int) -> None:
    with pytest.raises(InvalidValueError, match=rf"power of two \(in elements\), got {alignment}$"):
        Problem.of("softmax", "float32", 1024, alignment=alignment)


@pytest.mark.parametrize("alignment", [True, 2.0, "2", [4]])
def test_alignments_of_another_type(alignment: Any) -> None:
    with pytest.raises(InvalidTypeError, match="alignment must be an int"):
        Problem.of("softmax", "float32", 1024, alignment=alignment)


@pytest.mark.parametrize(
    ("dtype", "cols", "alignment"),
    [
        ("float32", 1000, 4),
        ("float32", 1002, 2),
        ("float32", 1001, 1),
        ("float16", 1000, 8),
        ("bfloat16", 1004, 4),
        ("float64", 1000, 2),
        ("float64", 1001, 1),
        ("float32", 1, 1),
    ],
)
def test_the_alignment_of_allocated_arrays(dtype: str, cols: int, alignment: int) -> None:
    assert Problem.of("softmax", dtype, cols).alignment == alignment


@settings(deadline=None)
@given(st.sampled_from(DType), widths, alignments)
def test_alignment_is_what_rows_have(dtype: DType, cols: int, asked: int | None) -> None:
    problem = Problem.of("softmax", dtype, cols, alignment=asked)
    alignment, size = problem.alignment, dtype.itemsize
    # Rows that start so far apart, the first on a 16-byte boundary, all keep the promise.
    assert cols * size % (alignment * size) == 0
    assert alignment * size <= 16
    assert asked is None or alignment <= asked
    # And no larger promise could be kept, or was allowed.
    larger = 2 * alignment
    assert larger * size > 16 or cols % larger or (asked is not None and larger > asked)
    assert natural_alignment(dtype, cols) == Problem.of("softmax", dtype, cols).alignment


@settings(deadline=None)
@given(problems)
def test_arithmetic_is_never_narrower_than_an_array(problem: Problem) -> None:
    types = {problem.dtype, problem.out_dtype}
    wanted = DType.FLOAT64 if DType.FLOAT64 in types else DType.FLOAT32
    assert problem.compute_dtype is wanted
    sizes = problem.dtype.itemsize + problem.out_dtype.itemsize
    assert problem.bytes_per_row == problem.cols * sizes


def test_indices_widen_where_a_block_could_run_past_2_to_the_31() -> None:
    assert not Problem.of("softmax", "float32", MAX_INT32_COLS).wide_index
    assert Problem.of("softmax", "float32", MAX_INT32_COLS + 1).wide_index
    # A block of 1024 threads with 8 packs of 8 elements looks that far past the row.
    assert MAX_INT32_COLS + 1024 * 8 * 8 < 2**31


def test_labels() -> None:
    label = Problem.of("log_softmax", "bfloat16", 1024, out_dtype="float32", alignment=2).label
    assert label == "log_softmax_bf16_to_f32_1024_align2"
    assert Problem.of("softmax", "float32", 1024, out_dtype="float32").label == "softmax_f32_1024"
    assert Problem.of("softmax", "float32", 1024, alignment=64).label == "softmax_f32_1024"


@settings(deadline=None)
@given(problems, problems)
def test_labels_are_unique(one: Problem, other: Problem) -> None:
    assert (one.label == other.label) == (one == other)


def test_problems_are_values() -> None:
    one, other = (Problem.of("softmax", np.float16, 8) for _ in range(2))
    assert one == other
    assert len({one, other}) == 1


def test_the_text_of_a_dtype_is_its_name() -> None:
    """Or Typer 0.27 takes the parsed value of --dtype for an unknown one, and gives None."""
    assert [str(dtype) for dtype in DType] == ["float16", "bfloat16", "float32", "float64"]


def test_every_function_and_hook_says_what_it_computes() -> None:
    """As headers of emitted files and `softgen functions` have it."""
    functions = all_functions()
    hooks = [*HOOKS, *(hook for function in functions for hook in function.modifiers)]
    said = [each.formula for each in functions] + [each.formula for each in hooks]
    for formula in said:
        assert isinstance(formula, str)
        assert formula
        assert "None" not in formula
