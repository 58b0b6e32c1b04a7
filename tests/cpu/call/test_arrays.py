"""What softgen asks of arrays, with fakes in place of a GPU's."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softgen.call import library as libraries
from softgen.call.cupy_library import CupyLibrary
from softgen.call.library import library_of, usable_alignment
from softgen.call.outputs import resolve_output
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType, FloatType
from softgen.problems.numerics import numpy_dtype
from softgen.problems.problem import Problem, natural_alignment
from tests.helpers.cupy_calls import CupyArray, Interface, World, cupy_array
from tests.helpers.drawn import widths

dtypes = st.sampled_from(DType)


# usable_alignment


def rows_keep(alignment: int, dtype: DType, pointer: int, cols: int, rows: int = 3) -> bool:
    """Whether rows from `pointer` on start on `alignment` elements, or on 16 bytes if less."""
    unit = min(16, alignment * dtype.itemsize)
    return all((pointer + row * cols * dtype.itemsize) % unit == 0 for row in range(rows))


def alignment_of(natural: int, dtype: DType, out: DType, x: int, y: int) -> int:
    operands = Problem.of("softmax", dtype, 1, out_dtype=out).operands
    return usable_alignment(natural, operands, (x, y))


@settings(deadline=None, max_examples=300)
@given(dtypes, dtypes, widths, st.integers(0, 64), st.integers(0, 64))
def test_the_alignment_is_the_largest_that_all_rows_have(
    dtype: DType, out: DType, cols: int, x_offset: int, y_offset: int
) -> None:
    x, y = 4096 + x_offset * dtype.itemsize, 8192 + y_offset * out.itemsize
    natural = natural_alignment(dtype, cols)
    alignment = alignment_of(natural, dtype, out, x, y)
    assert alignment in (1, 2, 4, 8)
    assert alignment <= natural
    assert rows_keep(alignment, dtype, x, cols)
    assert rows_keep(alignment, out, y, cols)
    larger = 2 * alignment
    assert larger > natural or not (rows_keep(larger, dtype, x, 0) and rows_keep(larger, out, y, 0))


@pytest.mark.parametrize(
    ("x", "y", "alignment"),
    [(0, 0, 4), (16, 32, 4), (8, 0, 2), (0, 8, 2), (4, 0, 1), (0, 12, 1), (8, 4, 1)],
)
def test_alignment_of_float32_rows_of_1000(x: int, y: int, alignment: int) -> None:
    assert alignment_of(4, DType.FLOAT32, DType.FLOAT32, 1024 + x, 1024 + y) == alignment


def test_a_wide_result_is_aligned_to_16_bytes_at_most() -> None:
    assert alignment_of(8, DType.FLOAT16, DType.FLOAT64, 0, 16) == 8
    assert alignment_of(8, DType.FLOAT16, DType.FLOAT64, 0, 8) == 1
    assert alignment_of(2, DType.FLOAT64, DType.FLOAT16, 0, 4) == 2
    assert alignment_of(2, DType.FLOAT64, DType.FLOAT16, 0, 2) == 1


@pytest.mark.parametrize(("x", "y"), [(1, 0), (2, 0), (0, 3), (0, 2)])
def test_an_address_between_elements_is_refused(x: int, y: int) -> None:
    with pytest.raises(InvalidValueError, match="no multiple of its element size; copy it first"):
        alignment_of(4, DType.FLOAT32, DType.FLOAT32, 1024 + x, 1024 + y)


# library_of, on a machine that may have no GPU

ACCEPTED = "a CuPy array, a PyTorch CUDA tensor, or an object with __cuda_array_interface__"


@pytest.mark.parametrize(
    ("x", "kind", "hint"),
    [
        (np.zeros(3), "numpy.ndarray", "Move it with cupy.asarray(x)"),
        (np.float32(3), "numpy.float32", "Move it with cupy.asarray(x)"),
        ([1.0, 2.0], "builtins.list", "Make a CuPy array of it"),
        (None, "builtins.NoneType", "Make a CuPy array of it"),
        (1.5, "builtins.float", "Make a CuPy array of it"),
        ("x", "builtins.str", "Make a CuPy array of it"),
    ],
)
@pytest.mark.parametrize("with_cupy", [True, False])
def test_what_is_on_no_gpu_says_how_to_move_it(
    x: Any, kind: str, hint: str, with_cupy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_cupy:
        import cupy  # noqa: F401
    else:
        monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(InvalidTypeError) as caught:
        library_of(x)
    message = str(caught.value)
    assert message.startswith(f"got {kind}; softgen takes {ACCEPTED}")
    assert message.endswith(hint)
    assert isinstance(caught.value, TypeError)


class FakeCupy:
    """Stands for the cupy module behind the protocols."""

    class ndarray:
        pass

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []

    def asarray(self, x: Any) -> Any:
        self.taken.append(("asarray", x))
        return self.ndarray()

    def from_dlpack(self, x: Any) -> Any:
        self.taken.append(("from_dlpack", x))
        return self.ndarray()


@pytest.fixture
def fake_cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    library = SimpleNamespace(cupy=fake)
    monkeypatch.setattr(libraries, "_cupy_library", lambda: library)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@dataclass
class OnDevice:
    """An object that other libraries may share through DLPack."""

    kind: int

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


def test_protocols_become_cupy_arrays(fake_cupy: FakeCupy) -> None:
    mine, theirs, shared = fake_cupy.ndarray(), Interface(None), OnDevice(2)
    assert library_of(mine)[1] is mine
    assert fake_cupy.taken == []
    for given_array in (theirs, shared):
        library, x = library_of(given_array)
        assert isinstance(x, fake_cupy.ndarray)
        assert vars(library)["cupy"] is fake_cupy
    assert fake_cupy.taken == [("asarray", theirs), ("from_dlpack", shared)]


def test_dlpack_of_another_device_is_refused(fake_cupy: FakeCupy) -> None:
    for kind in (1, 3, 8, 10):  # CPU, pinned CPU memory, Metal, ROCm
        with pytest.raises(InvalidTypeError, match=r"OnDevice; softgen takes a CuPy array"):
            library_of(OnDevice(kind))
    assert fake_cupy.taken == []


def test_numpy_dtypes() -> None:
    assert [numpy_dtype(d) for d in (DType.FLOAT16, DType.FLOAT32, DType.FLOAT64)] == [
        np.dtype("f2"),
        np.dtype("f4"),
        np.dtype("f8"),
    ]
    assert numpy_dtype(DType.BFLOAT16) == np.dtype(ml_dtypes.bfloat16)


# resolve_output


MEMORY = cupy_array(np.zeros(8192, "u1"))


def at(
    shape: tuple[int, ...],
    start: int = 0,
    dtype: FloatType = DType.FLOAT32,
    *,
    device: int = 0,
    strides: tuple[int, ...] | None = None,
) -> Any:
    """Return an array so many bytes behind a 16-byte boundary, its strides in elements."""
    kind = numpy_dtype(dtype)
    steps = None if strides is None else tuple(step * kind.itemsize for step in strides)
    array = np.ndarray(shape, kind, MEMORY, start, steps).view(CupyArray)
    array.number = device
    return array


class Subclass(CupyArray):
    """Of another type."""


@pytest.fixture
def library(world: World) -> CupyLibrary:
    return CupyLibrary()


X = at((4, 8), 1000)  # 128 bytes


def test_without_out_there_is_a_new_array(
    library: CupyLibrary, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []

    def on_device(device: int) -> Any:
        devices.append(device)
        return contextlib.nullcontext()

    monkeypatch.setattr("softgen.call.cupy_library.on_device", on_device)
    y = resolve_output(library, at((4, 8), device=3), None, DType.FLOAT16)
    assert (world.made, devices) == (1, [3])
    assert y.result is y.target
    assert (y.target.shape, y.target.dtype) == ((4, 8), np.float16)
    y.target[...] = 5
    assert y.finish(library) is y.target
    assert (y.target == 5).all()


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (0,), (3, 0, 2)])
def test_nothing_to_compute(shape: tuple[int, ...], library: CupyLibrary) -> None:
    x = at(shape)
    for out in (None, at(shape), at(shape, strides=(0,) * len(shape))):
        y = resolve_output(library, x, out, DType.FLOAT32)
        assert y.target.shape == shape
        assert out is None or y.result is y.target is out


def test_a_0d_array_has_one_element(library: CupyLibrary) -> None:
    assert resolve_output(library, at(()), None, DType.FLOAT32).target.shape == ()


@pytest.mark.parametrize("start", [1000, 1128, 872, 0, 5000])
def test_out_may_be_x_or_lie_beside_it(start: int, library: CupyLibrary, world: World) -> None:
    out = at((4, 8), start)
    y = resolve_output(library, X, out, DType.FLOAT32)
    assert y.target is y.result is out
    assert world.made == 0
    assert resolve_output(library, X, X, DType.FLOAT32).target is X


@pytest.mark.parametrize("start", [1004, 996, 1124, 876])
def test_out_may_not_overlap_x(start: int, library: CupyLibrary) -> None:
    with pytest.raises(InvalidValueError, match=r"out overlaps x without being x; pass x itself"):
        resolve_output(library, X, at((4, 8), start), DType.FLOAT32)


def test_a_strided_x_may_be_overlapped_because_it_is_copied_first(library: CupyLibrary) -> None:
    columns = at((4, 8), 1000, strides=(16, 2))
    out = at((4, 8), 1064)
    assert resolve_output(library, columns, out, DType.FLOAT32).target is out
    assert resolve_output(library, columns, columns, DType.FLOAT32).result is columns


def test_in_place_needs_elements_of_one_size(library: CupyLibrary) -> None:
    narrow = at((4, 8), 1000, dtype=DType.FLOAT16)
    with pytest.raises(InvalidValueError, match="overlaps"):
        resolve_output(library, X, narrow, DType.FLOAT16)
    beside = at((4, 8), 1128, dtype=DType.FLOAT16)
    assert resolve_output(library, X, beside, DType.FLOAT16).target is beside
    before = at((4, 8), 1000 - 64, dtype=DType.FLOAT16)
    assert resolve_output(library, X, before, DType.FLOAT16).target is before
    halves = at((4, 8), 2000, dtype=DType.FLOAT16)
    twins = at((4, 8), 2000, dtype=DType.BFLOAT16)
    assert resolve_output(library, halves, twins, DType.BFLOAT16).target is twins


@pytest.mark.parametrize("x_type", DType)
def test_overlap_is_sharing_a_byte(x_type: DType, library: CupyLibrary) -> None:
    x, x_bytes = at((4, 4), 200, x_type), set(range(200, 200 + 16 * x_type.itemsize))
    for start, y_type in itertools.product(range(400), DType):
        out, y_bytes = at((4, 4), start, y_type), set(range(start, start + 16 * y_type.itemsize))
        if x_bytes == y_bytes or not x_bytes & y_bytes:
            assert resolve_output(library, x, out, y_type).target is out
        else:
            with pytest.raises(InvalidValueError, match="overlaps"):
                resolve_output(library, x, out, y_type)


def test_a_strided_out_gets_a_copy_of_a_scratch_array(library: CupyLibrary, world: World) -> None:
    out = at((4, 8), 1064, strides=(16, 2))
    y = resolve_output(library, X, out, DType.FLOAT32)
    assert world.made == 1
    assert library.is_contiguous(y.target)
    assert y.result is out
    y.target[...], out[...] = 5, 0
    assert y.finish(library) is out
    assert (out == 5).all()


def test_negative_strides_are_strides(library: CupyLibrary) -> None:
    out = at((4, 8), 5000, strides=(-8, 1))
    y = resolve_output(library, X, out, DType.FLOAT32)
    assert y.target is not out
    assert y.result is out


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (at((8, 4)), InvalidValueError, r"^out must have shape \(4, 8\), got \(8, 4\)$"),
        (at((32,)), InvalidValueError, r"^out must have shape \(4, 8\), got \(32,\)$"),
        (
            at((4, 8), dtype=DType.FLOAT16),
            InvalidValueError,
            "^out must be float32, got float16; pass dtype= for another result type$",
        ),
        (
            at((4, 8), device=2),
            InvalidValueError,
            "^out must be on device 0 like x, got device 2$",
        ),
        (at((4, 8), strides=(0, 1)), InvalidValueError, "a stride is 0, as after broadcast_to"),
        (at((4, 8), strides=(1, 0)), InvalidValueError, "a stride is 0, as after broadcast_to"),
        ([[1.0]], InvalidTypeError, r"x's library .*\.CupyArray\), got builtins\.list$"),
        ("y", InvalidTypeError, r"got builtins\.str$"),
        (object(), InvalidTypeError, r"got builtins\.object as out; softgen takes a CuPy array"),
    ],
)
def test_an_out_that_does_not_fit(
    out: Any, error: type[Exception], message: str, library: CupyLibrary, world: World
) -> None:
    with pytest.raises(error, match=message):
        resolve_output(library, X, out, DType.FLOAT32)
    assert world.made == 0


def test_a_stride_of_0_along_an_axis_of_one_repeats_nothing(library: CupyLibrary) -> None:
    x = at((1, 8), 1000)
    out = at((1, 8), 5000, strides=(0, 1))
    assert resolve_output(library, x, out, DType.FLOAT32).result is out


def test_an_out_whose_elements_overlap_each_other_is_refused(library: CupyLibrary) -> None:
    windows = at((4, 8), 5000, strides=(1, 1))  # as_strided: a sliding window
    with pytest.raises(InvalidValueError, match="repeats its elements"):
        resolve_output(library, X, windows, DType.FLOAT32)


@pytest.mark.parametrize("swap", [lambda a, b: (a, b), lambda a, b: (b, a)])
def test_an_out_of_a_subclass_is_of_the_same_library(
    swap: Callable[[Any, Any], tuple[Any, Any]], library: CupyLibrary
) -> None:
    x, out = swap(X, at((4, 8), 5000).view(Subclass))
    assert resolve_output(library, x, out, DType.FLOAT32).target is out
