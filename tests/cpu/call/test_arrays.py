"""What softgen asks of arrays, with fakes in place of a GPU's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softgen.call import library as libraries
from softgen.call.library import library_of, usable_alignment
from softgen.call.outputs import Output, resolve_output
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm_run import Find, Full, Run
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.spec.dtypes import DType, ElementType, Float8, FloatType, Integer
from softgen.spec.numerics import numpy_dtype
from softgen.spec.problem import Problem, natural_alignment
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
    class Interface:
        __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012

    mine, theirs, shared = fake_cupy.ndarray(), Interface(), OnDevice(2)
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


# PyTorch, which the tests do not install


class FakeTensor:
    """A tensor, as far as softgen looks at one."""

    def __init__(self, device: str = "cuda:1", requires_grad: bool = False) -> None:
        self.device, self.requires_grad = device, requires_grad
        self.is_cuda = device.startswith("cuda")
        self.dtype: Any = "torch.bfloat16"
        self.shape = (4, 10)
        self.filled_from: Any = None

    def data_ptr(self) -> int:
        return 0x7000

    def get_device(self) -> int:
        return 1

    def stride(self) -> tuple[int, ...]:
        return (10, 1)

    def element_size(self) -> int:
        return 2

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> FakeTensor:
        return self

    def copy_(self, source: Any) -> None:
        self.filled_from = source


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("torch")
    module.Tensor = FakeTensor
    for name in ("float16", "bfloat16", "float32", "float64", "bool", "int32", "int64"):
        setattr(module, name, f"torch.{name}")
    module.is_grad_enabled = lambda: True
    module.device = lambda kind, number: f"{kind}:{number}"
    module.empty = lambda shape, dtype, device: (shape, dtype, device)
    guards = SimpleNamespace(_empty_strided_cuda=lambda *facts: ("direct", *facts))
    module._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda device: 0xABC + device,
        _dynamo=SimpleNamespace(guards=guards),
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    # Of PyTorch's own tensors are the tests of tests/cpu/torch/test_eager.py.
    eager = SimpleNamespace(require_launchable=lambda x: None)
    monkeypatch.setitem(sys.modules, "softgen.call.eager", eager)
    monkeypatch.setattr(libraries, "require_device", lambda: None)
    libraries._torch_library.cache_clear()
    monkeypatch.setattr(libraries, "_torch_library", TorchLibrary)
    return module


def test_what_softgen_asks_of_tensors(torch: ModuleType) -> None:
    x = FakeTensor()
    library, same = library_of(x)
    assert same is x
    assert isinstance(library, TorchLibrary)
    assert library.pointer(x) == 0x7000
    assert library.dtype(x) is DType.BFLOAT16
    assert library.device(x) == 1
    assert library.byte_strides(x) == (20, 2)
    assert library.is_contiguous(x)
    assert library.contiguous(x) is x
    assert library.empty((2, 3), DType.FLOAT64, 1) == ((2, 3), "torch.float64", "cuda:1")
    assert library.stream(1) == 0xABD
    other = FakeTensor()
    library.assign(other, x)
    assert other.filled_from is x
    assert not library.mallocs_in_capture
    x.dtype = "torch.int64"
    assert library.element_type(x) is Integer.INT64
    with pytest.raises(InvalidTypeError, match="dtype 'int64' is not supported"):
        library.dtype(x)


def test_tensors_are_made_past_the_dispatcher_where_that_is_possible(torch: Any) -> None:
    make, dtype = TorchLibrary().result_maker((2, 3, 4), DType.FLOAT64)
    assert dtype == "torch.float64"
    assert make() == ("direct", (2, 3, 4), (12, 4, 1), "torch.float64")
    del torch._C._dynamo.guards._empty_strided_cuda
    make, _ = TorchLibrary().result_maker((2, 3, 4), DType.FLOAT64)
    assert make() == ((2, 3, 4), "torch.float64", "cuda")


# resolve_output


@dataclass(eq=False)
class Array:
    """An array somewhere in a made-up memory."""

    shape: tuple[int, ...]
    start: int = 0
    dtype: FloatType = DType.FLOAT32
    device: int = 0
    strides: tuple[int, ...] = ()  # in elements; C order by default
    filled_from: Any = None

    def __post_init__(self) -> None:
        if not self.strides:
            step, strides = 1, []
            for length in reversed(self.shape):
                strides.append(step)
                step *= max(1, length)
            self.strides = tuple(reversed(strides))


class Subclass(Array):
    """Of another type."""


@dataclass
class FakeLibrary:
    """softgen.call.library.Library over `Array`."""

    mallocs_in_capture: bool = False
    array_type: type = Array
    address: Callable[[Any], int] = field(default=lambda x: int(x.start))
    made: list[Array] = field(default_factory=list)

    def pointer(self, x: Array) -> int:
        return x.start

    def dtype(self, x: Array) -> DType:
        return DType.of(x.dtype)

    def holds_float8(self, x: Array, dtype: Float8) -> bool:
        return x.dtype is dtype

    def element_type(self, x: Array) -> ElementType:
        return x.dtype

    def device(self, x: Array) -> int:
        return x.device

    def byte_strides(self, x: Array) -> tuple[int, ...]:
        return tuple(stride * x.dtype.itemsize for stride in x.strides)

    def is_contiguous(self, x: Array) -> bool:
        return x.strides == Array(x.shape).strides

    def view_key(self, arrays: Sequence[Any]) -> None:
        raise AssertionError("resolve_output keeps nothing")

    def contiguous(self, x: Array) -> Array:
        raise AssertionError("resolve_output copies nothing")

    def empty(self, shape: tuple[int, ...], dtype: FloatType, device: int) -> Array:
        self.made.append(Array(shape, 1 << 30, dtype, device))
        return self.made[-1]

    def copy(self, x: Array) -> Array:
        raise AssertionError("resolve_output copies nothing")

    def permuted(self, x: Array, order: Sequence[int]) -> Array:
        raise AssertionError("resolve_output moves no axis")

    def broadcast(self, x: Array, shape: tuple[int, ...]) -> Array:
        raise AssertionError("resolve_output broadcasts nothing")

    def assign(self, target: Array, source: Array) -> None:
        target.filled_from = source

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        raise AssertionError("resolve_output launches nothing")

    def stream(self, device: int) -> int:
        raise AssertionError("resolve_output launches nothing")

    def warm_run(self, find: Find, full: Full) -> Run:
        raise AssertionError("resolve_output keeps nothing")

    def result_maker(self, shape: tuple[int, ...], dtype: FloatType) -> tuple[Any, Any]:
        raise AssertionError("resolve_output keeps nothing")

    def fill(self, x: Array, value: float) -> None:
        raise AssertionError("resolve_output computes nothing")

    def alike(self, x: Array) -> Callable[[Any], bool]:
        raise AssertionError("resolve_output keeps nothing")

    def like(self, x: Array) -> Callable[[Any], bool]:
        raise AssertionError("resolve_output keeps nothing")

    def maker(self, shape: tuple[int, ...], dtype: FloatType) -> Callable[[], Any]:
        raise AssertionError("resolve_output keeps nothing")


X = Array((4, 8), start=1000)  # 128 bytes


def test_without_out_there_is_a_new_array() -> None:
    library = FakeLibrary()
    y = resolve_output(library, Array((4, 8), device=3), None, DType.FLOAT16)
    assert library.made == [y.target]
    assert y.result is y.target
    assert (y.target.shape, y.target.dtype, y.target.device) == ((4, 8), DType.FLOAT16, 3)
    assert y.finish(library) is y.target
    assert y.target.filled_from is None


@pytest.mark.parametrize("shape", [(0, 8), (4, 0), (0,), (3, 0, 2)])
def test_nothing_to_compute(shape: tuple[int, ...]) -> None:
    x = Array(shape)
    for out in (None, Array(shape), Array(shape, strides=(0,) * len(shape))):
        y = resolve_output(FakeLibrary(), x, out, DType.FLOAT32)
        assert y.target.shape == shape
        assert out is None or y.result is y.target is out


def test_a_0d_array_has_one_element() -> None:
    assert resolve_output(FakeLibrary(), Array(()), None, DType.FLOAT32).target.shape == ()


@pytest.mark.parametrize("start", [1000, 1128, 872, 0, 5000])
def test_out_may_be_x_or_lie_beside_it(start: int) -> None:
    library, out = FakeLibrary(), Array((4, 8), start=start)
    assert resolve_output(library, X, out, DType.FLOAT32) == Output(out, out)
    assert library.made == []
    assert resolve_output(library, X, X, DType.FLOAT32).target is X


@pytest.mark.parametrize("start", [1004, 996, 1124, 876])
def test_out_may_not_overlap_x(start: int) -> None:
    with pytest.raises(InvalidValueError, match=r"out overlaps x without being x; pass x itself"):
        resolve_output(FakeLibrary(), X, Array((4, 8), start=start), DType.FLOAT32)


def test_a_strided_x_may_be_overlapped_because_it_is_copied_first() -> None:
    columns = Array((4, 8), start=1000, strides=(16, 2))
    out = Array((4, 8), start=1064)
    assert resolve_output(FakeLibrary(), columns, out, DType.FLOAT32).target is out
    assert resolve_output(FakeLibrary(), columns, columns, DType.FLOAT32).result is columns


def test_in_place_needs_elements_of_one_size() -> None:
    narrow = Array((4, 8), start=1000, dtype=DType.FLOAT16)
    with pytest.raises(InvalidValueError, match="overlaps"):
        resolve_output(FakeLibrary(), X, narrow, DType.FLOAT16)
    beside = Array((4, 8), start=1128, dtype=DType.FLOAT16)
    assert resolve_output(FakeLibrary(), X, beside, DType.FLOAT16).target is beside
    before = Array((4, 8), start=1000 - 64, dtype=DType.FLOAT16)
    assert resolve_output(FakeLibrary(), X, before, DType.FLOAT16).target is before
    halves = Array((4, 8), start=2000, dtype=DType.FLOAT16)
    twins = Array((4, 8), start=2000, dtype=DType.BFLOAT16)
    assert resolve_output(FakeLibrary(), halves, twins, DType.BFLOAT16).target is twins


@settings(deadline=None)
@given(st.integers(0, 400), dtypes, dtypes)
def test_overlap_is_sharing_a_byte(start: int, x_type: DType, y_type: DType) -> None:
    x, out = Array((4, 4), 200, x_type), Array((4, 4), start, y_type)
    x_bytes = set(range(200, 200 + 16 * x_type.itemsize))
    y_bytes = set(range(start, start + 16 * y_type.itemsize))
    fine = x_bytes == y_bytes or not x_bytes & y_bytes
    if fine:
        assert resolve_output(FakeLibrary(), x, out, y_type).target is out
    else:
        with pytest.raises(InvalidValueError, match="overlaps"):
            resolve_output(FakeLibrary(), x, out, y_type)


def test_a_strided_out_gets_a_copy_of_a_scratch_array() -> None:
    library, out = FakeLibrary(), Array((4, 8), start=1064, strides=(16, 2))
    y = resolve_output(library, X, out, DType.FLOAT32)
    assert library.made == [y.target]
    assert library.is_contiguous(y.target)
    assert y.result is out
    assert out.filled_from is None
    assert y.finish(library) is out
    assert out.filled_from is y.target


def test_negative_strides_are_strides() -> None:
    out = Array((4, 8), start=5000, strides=(-8, 1))
    y = resolve_output(FakeLibrary(), X, out, DType.FLOAT32)
    assert y.target is not out
    assert y.result is out


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (Array((8, 4)), InvalidValueError, r"^out must have shape \(4, 8\), got \(8, 4\)$"),
        (Array((32,)), InvalidValueError, r"^out must have shape \(4, 8\), got \(32,\)$"),
        (
            Array((4, 8), dtype=DType.FLOAT16),
            InvalidValueError,
            "^out must be float32, got float16; pass dtype= for another result type$",
        ),
        (
            Array((4, 8), device=2),
            InvalidValueError,
            "^out must be on device 0 like x, got device 2$",
        ),
        (Array((4, 8), strides=(0, 1)), InvalidValueError, "a stride is 0, as after broadcast_to"),
        (Array((4, 8), strides=(1, 0)), InvalidValueError, "a stride is 0, as after broadcast_to"),
        (np.zeros((4, 8), "f4"), InvalidTypeError, r"x's library .*\.Array\), got numpy\.ndarray$"),
        ("y", InvalidTypeError, r"got builtins\.str$"),
    ],
)
def test_an_out_that_does_not_fit(out: Any, error: type[Exception], message: str) -> None:
    library = FakeLibrary()
    with pytest.raises(error, match=message):
        resolve_output(library, X, out, DType.FLOAT32)
    assert library.made == []


def test_a_stride_of_0_along_an_axis_of_one_repeats_nothing() -> None:
    x = Array((1, 8), start=1000)
    out = Array((1, 8), start=5000, strides=(0, 1))
    assert resolve_output(FakeLibrary(), x, out, DType.FLOAT32).result is out


def test_an_out_whose_elements_overlap_each_other_is_refused() -> None:
    windows = Array((4, 8), start=5000, strides=(1, 1))  # as_strided: a sliding window
    with pytest.raises(InvalidValueError, match="repeats its elements"):
        resolve_output(FakeLibrary(), X, windows, DType.FLOAT32)


@pytest.mark.parametrize("swap", [lambda a, b: (a, b), lambda a, b: (b, a)])
def test_an_out_of_a_subclass_is_of_the_same_library(
    swap: Callable[[Array, Array], tuple[Array, Array]],
) -> None:
    x, out = swap(X, Subclass((4, 8), start=5000))
    assert resolve_output(FakeLibrary(), x, out, DType.FLOAT32).target is out
