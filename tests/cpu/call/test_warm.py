"""Warm calls: what is kept, what is not, and the launch, with fakes in place of a GPU's."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import softgen
from softgen.call import (
    cupy_library,
    library,
    torch_library,
    warm,
    warm_more,
    warm_run,
    warm_views,
)
from softgen.call.cupy_library import CupyLibrary
from softgen.call.library import Library
from softgen.call.outputs import Output
from softgen.call.torch_library import TorchLibrary
from softgen.call.warm import MOST_CALLS, WarmCalls
from softgen.call.warm_run import never
from softgen.call.warm_views import ViewKey
from softgen.devices.gpu import launcher
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.spec.dtypes import DType, Float8, FloatType
from softgen.spec.numerics import numpy_dtype
from softgen.spec.operands import Extent, Operand
from softgen.strategies.launch import Launch

CONTEXT = 0x555
FRESH = 1 << 20
DEFAULTS = (-1, None, None, None, None)
F4 = np.dtype("f4")


class Base:
    """As CuPy's arrays have one, whose __new__ is the quick one."""


class Array(Base):
    """An array somewhere in a made-up memory, which looks like CuPy's and like PyTorch's."""

    world: World

    def __init__(
        self,
        shape: tuple[int, ...],
        start: int = 0,
        *,
        dtype: Any = F4,
        device: int = 0,
        contiguous: bool = True,
        gradient: bool = False,
        pitch: int = 0,
    ) -> None:
        """Args: elements from one row to the next where they are more than the columns."""
        self.shape, self.dtype, self.requires_grad = shape, np.dtype(dtype), gradient
        self.itemsize = self.dtype.itemsize
        self.data = SimpleNamespace(ptr=start, device_id=device)
        self.device = SimpleNamespace(id=device)
        self._c_contiguous = contiguous and not pitch
        self.pitch = pitch

    def _init(self, shape: tuple[int, ...], dtype: Any, *nothing: None) -> None:
        assert nothing == (None, None, None)
        Array.__init__(self, shape, self.world.fresh, dtype=dtype)
        self.world.made.append(self)

    def data_ptr(self) -> int:
        if self.data.ptr < 0:
            raise RuntimeError("no memory of its own")
        return int(self.data.ptr)

    def get_device(self) -> int:
        return int(self.data.device_id)

    def is_contiguous(self) -> bool:
        return self._c_contiguous

    def stride(self) -> tuple[int, ...]:
        dense = [int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape))]
        return (self.pitch, *dense[1:]) if self.pitch else tuple(dense)

    def element_size(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(step * self.dtype.itemsize for step in self.stride())


class Subclass(Array):
    pass


class Guards:
    """As PyTorch's TensorGuards: one call that compares all that it knows of a tensor."""

    def __init__(self, x: Array, **sizes_and_strides: list[list[int]]) -> None:
        assert sizes_and_strides == {
            "dynamic_dims_sizes": [list(x.shape)],
            "dynamic_dims_strides": [list(x.stride())],
        }
        self.known = self.facts(x)

    def facts(self, x: Array) -> tuple[Any, ...]:
        lie = x.stride(), x.is_contiguous()
        return x.shape, x.dtype, x.get_device(), lie, x.requires_grad

    def check(self, x: Any) -> bool:
        return type(x) is Array and self.facts(x) == self.known


# Kinds of launch attributes: CU_LAUNCH_ATTRIBUTE_COOPERATIVE, _PROGRAMMATIC_STREAM_SERIALIZATION.
COOPERATIVE, PROGRAMMATIC = 2, 6


class FakeError(Exception):
    """As CuPy's CUDADriverError."""

    def __init__(self, status: int) -> None:
        super().__init__(f"error {status}")
        self.status = status


class Attribute(ctypes.Structure):
    """As CUlaunchAttribute, of those that are on or off."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("value", ctypes.c_int),
        ("rest", ctypes.c_ubyte * 60),
    )


class Config(ctypes.Structure):
    """As CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class FakeDriver:
    """Reads the configuration and the arguments of a launch as the driver does."""

    CUDADriverError = FakeError

    def __init__(self) -> None:
        self.context = CONTEXT
        self.capturing: set[int] = set()
        self.launches: list[tuple[Any, ...]] = []
        self.refusal = 0  # the error of every launch
        self.given_back: list[tuple[Any, ...]] = []
        self.arguments = 4  # of a launch: operands, rows, workspace

    def ctxGetCurrent(self) -> int:
        return self.context

    def streamIsCapturing(self, stream: int) -> bool:
        return stream in self.capturing

    def launch_of(self, configuration: int, function: int, addresses: int) -> Callable[[], int]:
        return lambda: self.launch(Config.from_address(configuration), function, addresses)

    def launch(self, how: Config, function: int, addresses: int) -> int:
        if not self.refusal:
            kinds = tuple(how.attributes[i].kind for i in range(how.attribute_count))
            assert all(how.attributes[i].value == 1 for i in range(how.attribute_count))
            fixed = (function, *how.grid, *how.block, how.shared_bytes, how.stream or 0)
            self.launches.append((kinds, *fixed, self.read(addresses)))
        return self.refusal

    def lend(self, scratch: Any, device: int, stream: int, size: int) -> tuple[Any, Any]:
        return (device, stream), SimpleNamespace(address=0x9000 + size)

    def give_back(self, *lent: Any) -> None:
        self.given_back.append(lent)

    def read(self, addresses: int) -> tuple[int, ...]:
        each = (ctypes.c_uint64 * self.arguments).from_address(addresses)
        return tuple(ctypes.c_uint64.from_address(address).value for address in each)


class World:
    """A library over `Array`, and a full path that only counts and keeps."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.fresh = FRESH
        self.current = 0
        self.tracks = True  # whether PyTorch computes gradients
        self.made: list[Array] = []
        self.full: list[Any] = []
        self.target: Array | None = None  # of the full path, if not where the result goes
        self.calls = WarmCalls(self.full_path)

    def full_path(self, x: Any, out: Any, *options_and_key: Any) -> str:
        self.full.append(options_and_key[-1])
        result = Array(x.shape, self.fresh) if out is None else out
        y = Output(self.target or result, result)
        self.calls.remember(
            *(options_and_key[-1], self.library, operands_of((), 1, y.target), x, out, y),
            launch_of(),
        )
        return "full"

    def call(self, x: Any, out: Any = None, *options: Any) -> Any:
        return self.calls[type(x)](x, out, *(options or DEFAULTS))


def operands_of(rest: tuple[Any, ...], results: int, y: Any) -> list[Operand]:
    """Return operands for x, rest and results of y's type; numbers come last, as those of hooks."""
    name = y.dtype.name if isinstance(y, Array) else "float32"
    of_y = Float8.E4M3 if name == "uint8" else DType.of(name)
    arrays = [each for each in rest if not isinstance(each, float)]
    kinds = [(Extent.ELEMENT, False)]
    kinds += [
        (Extent.ELEMENT if len(getattr(each, "shape", ())) == 2 else Extent.ROW, False)
        for each in arrays
    ]
    kinds += [(Extent.ELEMENT, True)] * results
    kinds += [(Extent.NUMBER, False)] * (len(rest) - len(arrays))
    return [
        Operand(f"operand{i}", of_y if result else DType.FLOAT32, extent, result, "float")
        for i, (extent, result) in enumerate(kinds)
    ]


class Wider(World):
    """As `World`, of a function with other inputs, or with results of one element a row."""

    def __init__(self, library: Library, rows: int, y_is_row: bool = False, **shape: Any) -> None:
        """Args: how many results there are beside the first, whether that has one a row too."""
        super().__init__(library)
        self.rows, self.y_is_row, self.shape = rows, y_is_row, shape

    def full_path(self, x: Any, out: Any, *options_rest_key: Any) -> str:
        rest, key = options_rest_key[-2:]
        self.full.append(key)
        wanted = x.shape[:-1] if self.y_is_row else x.shape
        y = Array(wanted, self.fresh) if out is None else out
        more = [Output(*[Array(x.shape[:-1], self.fresh)] * 2) for _ in range(self.rows)]
        operands = operands_of(rest, 1 + len(more), y)
        launch = launch_of(arrays=len(operands), **self.shape)
        self.calls.remember(key, self.library, operands, x, out, Output(y, y), launch, rest, more)
        return "full"

    def with_rest(self, x: Any, *rest: Any, out: Any = None) -> Any:
        return self.calls[type(x)](x, out, *DEFAULTS, rest)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    cupy = SimpleNamespace(
        ndarray=Array,
        cuda=SimpleNamespace(
            driver=fake,
            runtime=fake,
            get_current_stream=lambda device: SimpleNamespace(ptr=Array.world.current),
        ),
    )
    modules = (cupy_library, library, torch_library, launcher, warm, warm_more, warm_run)
    for module in (*modules, warm_views):
        monkeypatch.setattr(module, "require_device", lambda: cupy)
    monkeypatch.setattr(launcher, "workspace", fake)
    monkeypatch.setattr(launcher, "launch_of", fake.launch_of)
    return fake


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("torch")
    module.Tensor = Array
    module.float16, module.float32, module.float64 = np.dtype("f2"), F4, np.dtype("f8")
    module.bfloat16 = np.dtype(ml_dtypes.bfloat16)
    module.float8_e4m3fn = np.dtype("uint8")
    module.bool, module.int32, module.int64 = map(np.dtype, ("bool", "int32", "int64"))

    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Array:
        Array.world.made.append(Array(shape, Array.world.fresh, dtype=dtype))
        return Array.world.made[-1]

    module.is_grad_enabled = lambda: Array.world.tracks
    module._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda device: Array.world.current,
        _dynamo=SimpleNamespace(guards=SimpleNamespace(_empty_strided_cuda=empty)),
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture(params=["cupy", "torch", "torch with guards"])
def world(
    request: pytest.FixtureRequest, driver: FakeDriver, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> World:
    if "guards" in request.param:
        torch._C._dynamo.guards.TensorGuards = Guards
    made = World(CupyLibrary() if request.param == "cupy" else TorchLibrary())
    monkeypatch.setattr(Array, "world", made, raising=False)
    monkeypatch.setattr(warm, "library_of", lambda x: (made.library, x))
    return made


def launch_of(
    rows: int = 6, scratch: Any = None, arrays: int = 2, fixed: Any = None, **shape: Any
) -> Any:
    function = SimpleNamespace(ptr=0xF00)
    how = Launch(128, rows_per_block=4, static_shared_bytes=0, **shape)
    return launcher.Launcher(function, arrays, how, rows, 0, scratch, fixed or {})


# The launch


def test_a_launch_gives_the_driver_what_the_strategy_says(driver: FakeDriver) -> None:
    launch_of(dynamic_shared_bytes=4096)((0x7F00_0000_1000, 0x7F00_0000_2000), 0x77)
    arguments = (0x7F00_0000_1000, 0x7F00_0000_2000, 6, 0)
    assert driver.launches == [((), 0xF00, 2, 1, 1, 128, 1, 1, 4096, 0x77, arguments)]


def test_numbers_are_words_beside_the_addresses(driver: FakeDriver) -> None:
    driver.arguments = 7
    number = Operand("scale", DType.FLOAT32, Extent.NUMBER, False, "Compute")
    launch = launch_of(arrays=5, fixed={3: 0x55, 4: 0x66})
    launch((0x1000, 0x2000, number.word(0.7)), 0x77)
    assert driver.launches[0][-1] == (0x1000, 0x2000, 0x3F333333, 0x55, 0x66, 6, 0)


def test_a_number_is_its_bits_in_the_low_bytes_of_a_word() -> None:
    def word(kind: DType, value: Any) -> int:
        return Operand("scale", kind, Extent.NUMBER, False, "Compute").word(value)

    assert word(DType.FLOAT32, -2.0) == 0xC0000000
    assert word(DType.FLOAT64, np.float64(-2.0)) == 0xC000000000000000
    with pytest.raises(InvalidTypeError, match="scale must be one number of float32, got 'a'"):
        word(DType.FLOAT32, "a")
    with pytest.raises(InvalidValueError, match=r"scale must fit float32, got 1e\+300"):
        word(DType.FLOAT32, 1e300)


def test_a_cooperative_launch_with_a_workspace(driver: FakeDriver) -> None:
    launch_of(cooperative=True, workspace_bytes_per_row=16)((1, 2), 0x77)
    assert driver.launches == [
        ((COOPERATIVE,), 0xF00, 2, 1, 1, 128, 1, 1, 0, 0x77, (1, 2, 6, 0x9000 + 96))
    ]
    ((key, found, stream),) = driver.given_back
    assert (key, found.address, stream) == ((0, 0x77), 0x9000 + 96, 0x77)


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_launch_that_may_start_before_the_one_before_has_ended(
    driver: FakeDriver, cooperative: bool
) -> None:
    launch_of(dependent=True, cooperative=cooperative)((1, 2), 0x77)
    assert driver.launches[0][0] == (*[COOPERATIVE] * cooperative, PROGRAMMATIC)


def test_a_workspace_of_the_callers_own(driver: FakeDriver) -> None:
    launch_of(cooperative=True, workspace_bytes_per_row=16, scratch=0x5000)((1, 2), 0x77)
    assert driver.launches[0][-1] == (1, 2, 6, 0x5000)
    assert driver.given_back == []


@pytest.mark.parametrize("status", [720, 912])
def test_a_launch_that_the_streams_multiprocessors_do_not_hold(
    driver: FakeDriver, status: int
) -> None:
    driver.refusal = status
    with pytest.raises(softgen.LaunchError, match=f"error {status}"):
        launch_of(workspace_bytes_per_row=16)((1, 2), 0x77)
    assert driver.given_back == []  # what a launch that failed has left is nobody's


def test_another_error_of_the_driver_is_passed_on(driver: FakeDriver) -> None:
    driver.refusal = 700
    with pytest.raises(FakeError, match="error 700"):
        launch_of()((1, 2), 0x77)


def test_a_warm_launch_that_is_refused_takes_the_full_path(
    world: World, driver: FakeDriver
) -> None:
    x = Array((6, 8), 0x1000)
    world.call(x)
    driver.refusal = 720
    assert world.call(x) == "full"
    assert len(world.full) == 2
    driver.refusal = 0
    assert world.call(x) is world.made[-1]


def test_a_launch_may_fail_and_be_tried_again(driver: FakeDriver) -> None:
    launch = launch_of()
    driver.refusal = 2
    for _ in range(2):
        with pytest.raises(FakeError, match="error 2"):
            launch((1, 2), 0)
    driver.refusal = 0
    launch((1, 2), 0)
    assert driver.launches[0][-1][:2] == (1, 2)


def test_threads_do_not_share_arguments(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is slow here, and each launch still sees its own addresses."""
    ours: dict[int, int] = {}

    def slow(how: Config, function: int, addresses: int) -> int:
        for _ in range(20):
            x, y, _, _ = driver.read(addresses)
            assert y == x + 1
        ours[how.stream or 0] = x
        return 0

    monkeypatch.setattr(driver, "launch", slow)
    launch = launch_of()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: launch((1000 * i, 1000 * i + 1), i), range(2000)))
    assert ours == {i: 1000 * i for i in range(2000)}


# What is kept

X = Array((6, 8), 0x1000)
OUT = Array((6, 8), 0x2000)


def addresses(driver: FakeDriver) -> list[tuple[int, int]]:
    return [launch[-1][:2] for launch in driver.launches]


def test_a_call_like_one_before_is_launched(world: World, driver: FakeDriver) -> None:
    assert world.call(X) == "full"
    y = world.call(Array((6, 8), 0x2000))
    assert [y] == world.made
    assert type(y) is Array
    assert (y.shape, y.dtype) == ((6, 8), F4)
    assert addresses(driver) == [(0x2000, FRESH)]
    assert len(world.full) == 1


def test_a_request_like_the_last_one_is_not_looked_up(world: World, driver: FakeDriver) -> None:
    world.call(X)
    world.call(X)
    world.calls.entries.clear()
    if isinstance(world.library, TorchLibrary) and world.library.alike(X) is never:
        assert world.call(X) == "full"
    else:
        assert world.call(Array((6, 8), 0x3000)) is world.made[-1]
        assert addresses(driver)[-1] == (0x3000, FRESH)


def test_two_shapes_in_turns(world: World, driver: FakeDriver) -> None:
    other = Array((5, 8), 0x4000)
    for x in (X, other):
        world.call(x)
    for x in (X, other, X, X, other, other):
        y = world.call(x)
        assert y.shape == x.shape
        assert addresses(driver)[-1] == (x.data.ptr, FRESH)
    assert len(world.full) == 2


@pytest.mark.parametrize("out", [None, OUT])
@pytest.mark.parametrize(
    "x",
    [
        Array((8, 6), 0x1000),
        Array((6, 8), 0x1000, dtype="f2"),
        Array((6, 8), 0x1000, device=1),
        Array((6, 8), 0x1004),
        Array((6, 8), 0x1000, contiguous=False),
        Subclass((6, 8), 0x1000),
    ],
)
def test_any_other_x_takes_the_full_path(
    x: Any, out: Array | None, world: World, driver: FakeDriver
) -> None:
    world.call(X, out)
    assert world.call(x, out) == "full"
    assert not driver.launches


@pytest.mark.parametrize(
    "out",
    [
        None,
        Array((8, 6), 0x2000),
        Array((6, 8), 0x2000, dtype="f2"),
        Array((6, 8), 0x2000, device=1),
        Array((6, 8), 0x2004),
        Array((6, 8), 0x2000, contiguous=False),
        Subclass((6, 8), 0x2000),
        [[1.0]],
    ],
)
def test_any_other_out_takes_the_full_path(out: Any, world: World, driver: FakeDriver) -> None:
    world.call(X, OUT)
    assert world.call(X, out) == "full"
    assert not driver.launches
    assert len(world.full) == 2


def test_what_the_full_path_raises_is_raised_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(*given: Any) -> None:
        asked.append(given)
        raise InvalidTypeError("refused")

    monkeypatch.setattr(world.calls, "full", refuse)
    for out, options in (
        (None, DEFAULTS),
        ([[1.0]], DEFAULTS),
        (None, (["no hash"], *DEFAULTS[1:])),
    ):
        asked.clear()
        with pytest.raises(InvalidTypeError, match="refused") as error:
            world.call(X, out, *options)
        assert len(asked) == 1
        assert error.value.__context__ is None


def test_out_where_none_was_takes_the_full_path(world: World, driver: FakeDriver) -> None:
    world.call(X)
    assert world.call(X, OUT) == "full"
    assert not driver.launches


@pytest.mark.parametrize("where", range(5))
def test_other_options_take_the_full_path(where: int, world: World, driver: FakeDriver) -> None:
    world.call(X)
    for other in ("other", ["no hash"], np.zeros(2)):
        options: list[Any] = list(DEFAULTS)
        options[where] = other
        assert world.call(X, None, *options) == "full"
    assert world.full[-1] is None
    assert not driver.launches


@pytest.mark.parametrize("axis", [True, 1.0, np.int64(1)])
def test_an_axis_that_only_equals_takes_the_full_path(
    axis: Any, world: World, driver: FakeDriver
) -> None:
    world.call(X, None, 1, *DEFAULTS[1:])
    assert world.call(X, None, axis, *DEFAULTS[1:]) == "full"
    assert not driver.launches
    assert world.call(X, None, 1, *DEFAULTS[1:]) is world.made[-1]


@pytest.mark.parametrize("name", ["SOFTGEN_TUNE", "SOFTGEN_BATCH_INVARIANT"])
def test_the_environment_is_a_part_of_the_request(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.call(X)
    monkeypatch.setenv(name, "1")
    assert world.call(X) == "full"
    assert world.call(X) is world.made[-1]
    monkeypatch.setenv(name, "0")
    assert world.call(X) == "full"
    monkeypatch.delenv(name)
    assert world.call(X) is world.made[-1]


def test_a_tensor_takes_the_full_path_if_it_wants_a_gradient_or_has_no_memory(
    driver: FakeDriver, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(TorchLibrary())
    monkeypatch.setattr(warm, "library_of", lambda x: (world.library, x))
    world.call(X)
    assert world.call(Array((6, 8), 0x1000, gradient=True)) == "full"
    assert world.call(Array((6, 8), -1)) == "full"
    assert world.full[-1] is None
    assert not driver.launches


def test_a_tensor_that_wants_a_gradient_is_warm_where_none_is_computed(
    world: World, driver: FakeDriver
) -> None:
    """As in the forward pass of autograd's functions; where gradients are on, nothing is."""
    wants, plain = Array((6, 8), 0x1000, gradient=True), Array((6, 8), 0x2000)
    world.tracks = False
    for x in (wants, plain, wants):
        world.call(x)
        assert world.call(x) is world.made[-1]
    world.tracks = True
    if isinstance(world.library, TorchLibrary):
        assert world.call(wants) == "full"
        assert world.call(wants) == "full"
    assert world.call(plain) is world.made[-1]


def test_where_another_device_is_current_the_full_path_is_taken(
    world: World, driver: FakeDriver
) -> None:
    world.call(X)
    world.call(X, OUT)
    kept = dict(world.calls.entries)
    for other in (0, CONTEXT + 1):  # 0: a thread that has not used CUDA yet
        driver.context = other
        assert world.call(X) == "full"
        assert world.call(X, OUT) == "full"
        world.calls.entries.update(kept)
    assert not world.made
    assert not driver.launches


def test_views_are_kept_by_their_strides(world: World, driver: FakeDriver) -> None:
    view = Array((6, 8), 0x1000, pitch=12)
    assert world.call(view) == "full"
    y = world.call(Array((6, 8), 0x3000, pitch=12))
    assert [y] == world.made
    assert addresses(driver) == [(0x3000, FRESH)]
    for other in (
        Array((6, 8), 0x1000, pitch=16),
        Array((6, 8), 0x1004, pitch=12),
        Array((6, 8), 0x1000, pitch=12, dtype="f8"),
        Array((6, 8), 0x1000),
        Subclass((6, 8), 0x1000, pitch=12),
    ):
        assert world.call(other) == "full"
    assert [type(key) for key in world.calls.views] == [ViewKey] * 4
    for where in range(len(DEFAULTS)):
        options: list[Any] = [*DEFAULTS]
        options[where] = "another"
        assert world.call(view, None, *options) == "full"
    assert world.call(view, None, True, *DEFAULTS[1:]) == "full"
    assert world.call(view) is world.made[-1]


def test_a_result_that_is_a_view(
    world: World, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Array((6, 8), 0x5000, pitch=16)
    assert world.call(X, out) == "full"
    assert world.call(X, out) is out
    assert world.call(Array((6, 8), 0x2000), out) is out
    assert addresses(driver) == [(0x1000, 0x5000), (0x2000, 0x5000)]
    between = Array((6, 8), 0x2020, pitch=16)
    # The real path raises here, and keeps nothing.
    monkeypatch.setattr(world.calls, "remember", lambda *given: None)
    assert world.call(Array((6, 8), 0x2000), between) == "full"


def test_a_view_in_a_capture_or_with_no_context(world: World, driver: FakeDriver) -> None:
    view = Array((6, 8), 0x1000, pitch=12)
    world.call(view)
    driver.context = 0
    assert world.call(view) == "full"
    driver.context = CONTEXT
    world.call(view)
    world.current = 0x77
    driver.capturing.add(0x77)
    captured = world.call(view)
    assert captured == "full" if world.library.mallocs_in_capture else captured is world.made[-1]


def test_a_view_that_wants_a_gradient_takes_the_full_path(world: World) -> None:
    view = Array((6, 8), 0x1000, pitch=12)
    world.call(view)
    view.requires_grad = True
    full = world.call(view)
    assert full == "full" if isinstance(world.library, TorchLibrary) else full is world.made[-1]
    world.tracks = False  # then it is as any other
    assert world.call(view) is world.made[-1]


def test_results_go_where_the_caller_says(world: World, driver: FakeDriver) -> None:
    world.call(X, OUT)
    assert world.call(X, OUT) is OUT
    assert world.call(X, X) is X
    beside = Array((6, 8), 0x1000 + 6 * 8 * 4)
    assert world.call(X, beside) is beside
    assert addresses(driver) == [(0x1000, 0x2000), (0x1000, 0x1000), (0x1000, beside.data.ptr)]


@pytest.mark.parametrize("shift", [-16, 16, -176, 176])
def test_an_overlap_is_left_to_the_full_path_which_refuses_it(
    shift: int, world: World, driver: FakeDriver
) -> None:
    world.call(X, OUT)
    assert world.call(X, Array((6, 8), 0x1000 + shift)) == "full"
    assert driver.launches == []


def test_a_result_that_was_copied_is_not_kept(world: World) -> None:
    world.target = Array((6, 8), 0x3000)
    world.call(X, OUT)
    assert world.calls.entries == {}


@pytest.mark.parametrize(
    ("x", "out"), [(Subclass((6, 8)), None), (X, Subclass((6, 8), 0x2000)), (Subclass((6, 8)), OUT)]
)
def test_a_subclass_is_not_kept(x: Array, out: Array | None, world: World) -> None:
    for _ in range(2):
        assert world.call(x, out) == "full"
    assert world.calls.entries == {}


def test_what_is_no_array_of_a_gpu_is_refused_and_not_kept() -> None:
    calls = WarmCalls(lambda *given: None)
    for x in (None, [[1.0]], np.zeros(3)):
        with pytest.raises(InvalidTypeError):
            calls[type(x)](x, None, *DEFAULTS)
    assert not calls


def test_an_allocator_that_aligns_to_less_is_left_to_the_full_path(
    world: World, driver: FakeDriver
) -> None:
    world.fresh += 8
    world.call(X)
    assert world.calls.entries == {}
    world.fresh -= 8
    world.call(X)
    world.fresh += 8
    assert world.call(X) == "full"
    assert driver.launches == []


def test_cupy_allocates_nothing_in_a_capture(world: World, driver: FakeDriver) -> None:
    world.call(X)
    world.call(X, OUT)
    world.current = 0x77
    driver.capturing = {0x77}
    if world.library.mallocs_in_capture:
        assert world.call(X) == "full"
        assert not world.made
        assert not driver.launches
    else:
        assert world.call(X) is world.made[-1]
    assert world.call(X, OUT) is OUT
    assert driver.launches[-1][-2] == 0x77


@pytest.mark.parametrize("dtype", [*DType, Float8.E4M3])
def test_results_of_every_dtype(dtype: FloatType, world: World) -> None:
    result = Array((6, 8), 0x2000, dtype=numpy_dtype(dtype))
    world.target = result
    world.call(X, result, -1, dtype, None, None, None)
    assert world.call(X, result, -1, dtype, None, None, None) is result
    world.call(X, None, -1, dtype, None, None, None)
    assert world.call(X, None, -1, dtype, None, None, None).dtype is result.dtype


def test_shapes_that_never_repeat_fill_no_memory(world: World) -> None:
    for rows in range(MOST_CALLS + 2):
        world.call(Array((rows + 1, 8)))
    assert len(world.calls.entries) == 2


def test_a_0d_cupy_array_is_not_copied(driver: FakeDriver) -> None:
    """CuPy's ascontiguousarray would make a 1-d one of it, which no call keeps."""
    x = Array(())
    x.flags = SimpleNamespace(c_contiguous=True)  # type: ignore[attr-defined]
    assert CupyLibrary().contiguous(x) is x


# More than one input or result

M, D = Array((6,), 0x5000), Array((6,), 0x6000)


@pytest.fixture
def widened(world: World, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes a `Wider` the world."""

    def widen(rows: int, *, arguments: int, y_is_row: bool = False, **shape: Any) -> Wider:
        made = Wider(world.library, rows, y_is_row, **shape)
        driver.arguments = arguments
        monkeypatch.setattr(Array, "world", made)
        monkeypatch.setattr(warm, "library_of", lambda x: (made.library, x))
        return made

    return widen


@pytest.fixture
def with_lse(widened: Any) -> Wider:
    """Return the world of softmax_lse: x, y and lse, rows, no workspace."""
    made: Wider = widened(1, arguments=5)
    return made


@pytest.fixture
def pairs(widened: Any) -> Wider:
    """Return the world of partial: x, maxima, sums."""
    made: Wider = widened(1, arguments=5, y_is_row=True)
    return made


@pytest.fixture
def finishing(widened: Any) -> Wider:
    """Return the world of finish: x, maxima, sums, y."""
    made: Wider = widened(0, arguments=6)
    return made


def test_each_warm_call_passes_its_own_number(widened: Any, driver: FakeDriver) -> None:
    world = widened(1, arguments=6)
    assert world.with_rest(X, 1.0) == "full"
    for number, bits in ((0.7, 0x3F333333), (-2.0, 0xC0000000)):
        world.made.clear()
        assert list(world.with_rest(X, number)) == world.made
        assert driver.launches[-1][-1] == (0x1000, FRESH, FRESH, bits, 6, 0)
    world.calls.remember = lambda *given: None
    assert world.with_rest(X, 1) == "full"  # which checks what is no float
    assert world.with_rest(X, "a") == "full"


def test_two_results_are_made_and_returned(with_lse: Wider, driver: FakeDriver) -> None:
    assert with_lse.call(X) == "full"
    for start in (0x3000, 0x4000):
        with_lse.made.clear()
        y, lse = with_lse.call(Array((6, 8), start))
        assert [y, lse] == with_lse.made
        assert (y.shape, y.dtype, lse.shape, lse.dtype) == ((6, 8), F4, (6,), F4)
        assert type(lse) is Array
        assert driver.launches[-1][-1] == (start, FRESH, FRESH, 6, 0)
    assert len(with_lse.full) == 1


def test_the_first_of_two_results_goes_where_the_caller_says(
    with_lse: Wider, driver: FakeDriver
) -> None:
    with_lse.call(X, OUT)
    y, lse = with_lse.call(X, OUT)
    assert y is OUT
    assert [lse] == with_lse.made
    assert driver.launches[-1][-1] == (0x1000, 0x2000, FRESH, 6, 0)
    y, lse = with_lse.call(X, X)
    assert y is X
    overlapping = Array((6, 8), 0x1010)
    assert with_lse.call(X, overlapping) == "full"


def test_results_of_a_row_each(pairs: Wider, driver: FakeDriver) -> None:
    pairs.call(X)
    m, d = pairs.call(X)
    assert [m, d] == pairs.made
    assert m.shape == d.shape == (6,)
    assert driver.launches[-1][-1] == (0x1000, FRESH, FRESH, 6, 0)


def test_four_results_and_two_inputs(widened: Any, driver: FakeDriver) -> None:
    world = widened(3, arguments=9)
    world.with_rest(X, M, D)
    found = world.with_rest(X, M, D)
    assert list(found) == world.made
    assert [each.shape for each in found] == [(6, 8), (6,), (6,), (6,)]
    assert driver.launches[-1][-1] == (0x1000, 0x5000, 0x6000, *[FRESH] * 4, 6, 0)


def test_an_out_of_one_element_a_row(widened: Any, driver: FakeDriver) -> None:
    world = widened(0, arguments=4, y_is_row=True)
    x, out = Array((6, 1), 0x1000), Array((6,), 0x2000)
    world.call(x, out)
    assert world.call(x, out) is out
    assert addresses(driver) == [(0x1000, 0x2000)]
    world.calls.remember = lambda *given: None  # the real path raises here, and keeps nothing
    # As many bytes as x, and refused all the same: only what has x's shape may be x.
    for other in (Array((6,), 0x1000), Array((6, 1), 0x2000), Array((6, 1), 0x1000)):
        assert world.call(x, other) == "full"


def test_other_inputs_come_before_the_result(finishing: Wider, driver: FakeDriver) -> None:
    assert finishing.with_rest(X, M, D) == "full"
    other = Array((6,), 0x7000), Array((6,), 0x8000)
    y = finishing.with_rest(Array((6, 8), 0x3000), *other)
    assert [y] == finishing.made
    assert y.shape == (6, 8)
    assert finishing.with_rest(X, M, M, out=X) == "full"  # kept beside the one without out
    assert finishing.with_rest(X, M, M, out=X) is X
    assert [launch[-1] for launch in driver.launches] == [
        (0x3000, 0x7000, 0x8000, FRESH, 6, 0),
        (0x1000, 0x5000, 0x5000, 0x1000, 6, 0),
    ]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    "other",
    [
        Array((5,), 0x5000),
        Array((6, 1), 0x5000),
        Array((6,), 0x5000, dtype="f8"),
        Array((6,), 0x5000, device=1),
        Array((6,), 0x5002),
        Array((6,), 0x5000, contiguous=False),
        Subclass((6,), 0x5000),
        np.zeros(6, "f4"),
        None,
    ],
)
def test_another_pair_takes_the_full_path_and_harms_nothing(
    which: int, other: Any, finishing: Wider, driver: FakeDriver
) -> None:
    finishing.with_rest(X, M, D)
    pair = [M, D]
    pair[which] = other
    assert finishing.calls.entries
    kept = dict(finishing.calls.entries)
    finishing.calls.remember = lambda *given: None  # type: ignore[method-assign]
    assert finishing.with_rest(X, *pair) == "full"
    assert not driver.launches
    assert finishing.calls.entries == kept
    assert finishing.with_rest(X, M, D) is finishing.made[-1]
    assert driver.launches[-1][-1] == (0x1000, 0x5000, 0x6000, FRESH, 6, 0)


def test_a_second_input_that_lies_elsewhere_is_warm_from_its_third_call(widened: Any) -> None:
    """The first finds that it is another, the second keeps it: no other request comes between."""
    world = widened(0, arguments=5)
    aligned, odd = Array((6, 8), 0x5000), Array((6, 8), 0x5004)
    for y in (aligned, odd, aligned):
        calls = [world.with_rest(X, y) for _ in range(4)]
        assert "full" not in calls[2:]


def test_a_pair_that_wants_a_gradient_takes_the_full_path(
    finishing: Wider, driver: FakeDriver
) -> None:
    finishing.with_rest(X, M, D)
    wants = Array((6,), 0x5000, gradient=True)
    if isinstance(finishing.library, TorchLibrary):
        assert finishing.with_rest(X, wants, D) == "full"
        assert finishing.with_rest(X, wants, D) == "full"
        assert not driver.launches
        finishing.tracks = False
        assert finishing.with_rest(X, wants, D) is finishing.made[-1]
        finishing.tracks = True  # what was kept under torch.no_grad() is no leave for this call
        assert finishing.with_rest(X, wants, D) == "full"


@pytest.mark.parametrize("start", [0x5000 - 188, 0x5000 + 20, 0x6000 - 100])
def test_an_out_that_overlaps_the_pair_takes_the_full_path(
    start: int, finishing: Wider, driver: FakeDriver
) -> None:
    out = Array((6, 8), 0x2004)
    finishing.with_rest(X, M, D, out=out)
    assert finishing.with_rest(X, M, D, out=out) is out
    assert finishing.with_rest(X, M, D, out=Array((6, 8), start)) == "full"
    beside = Array((6, 8), 0x5000 - 6 * 8 * 4 - 12)
    launched = len(driver.launches)
    finishing.with_rest(X, M, D, out=beside)
    finishing.with_rest(X, M, D, out=beside)
    assert len(driver.launches) > launched


@pytest.mark.parametrize("where", range(5))
def test_other_options_of_more_results_take_the_full_path(
    where: int, with_lse: Wider, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_lse.call(X)
    options: list[Any] = list(DEFAULTS)
    options[where] = "other"
    assert with_lse.call(X, None, *options) == "full"
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    assert with_lse.call(X) == "full"
    assert not driver.launches


def test_more_results_in_a_capture(with_lse: Wider, driver: FakeDriver) -> None:
    """CuPy allocates none there, also where the first has its place; PyTorch has a pool for it."""
    with_lse.call(X)
    with_lse.call(X, OUT)
    with_lse.current = 0x77
    driver.capturing = {0x77}
    mallocs = with_lse.library.mallocs_in_capture
    for out in (None, OUT):
        found = with_lse.call(X, out)
        assert (found == "full") == mallocs
    assert bool(driver.launches) != mallocs
    with_lse.current = 0x78
    assert with_lse.call(X, OUT)[0] is OUT
    assert driver.launches[-1][-2] == 0x78


def test_another_input_of_whole_rows_lies_as_at_the_launch(
    widened: Any, driver: FakeDriver
) -> None:
    """4 bytes further on its rows start elsewhere within packs: another kernel's."""
    world = widened(0, arguments=5)
    y = Array((6, 8), 0x5000)
    world.with_rest(X, y)
    assert [world.with_rest(X, y)] == world.made
    assert driver.launches[-1][-1] == (0x1000, 0x5000, FRESH, 6, 0)
    assert world.with_rest(X, Array((6, 8), 0x5004)) == "full"
    assert len(driver.launches) == 1


def test_other_inputs_in_a_capture(finishing: Wider, driver: FakeDriver) -> None:
    finishing.with_rest(X, M, D, out=OUT)
    finishing.current = 0x77
    driver.capturing = {0x77}
    assert finishing.with_rest(X, M, D, out=OUT) is OUT


def test_a_workspace_beside_more_results(widened: Any, driver: FakeDriver) -> None:
    world = widened(1, arguments=5, cooperative=True, workspace_bytes_per_row=16)
    world.call(X)
    assert len(world.call(X)) == 2
    assert driver.launches[-1][0] == (COOPERATIVE,)
    assert driver.launches[-1][-1] == (0x1000, FRESH, FRESH, 6, 0x9000 + 96)
    assert len(driver.given_back) == 1


def test_where_another_device_is_current_more_results_take_the_full_path(
    with_lse: Wider, driver: FakeDriver
) -> None:
    with_lse.call(X)
    driver.context = CONTEXT + 1
    assert with_lse.call(X) == "full"
    assert not driver.launches


def test_a_refused_launch_of_more_results_takes_the_full_path(
    with_lse: Wider, driver: FakeDriver
) -> None:
    with_lse.call(X)
    driver.refusal = 720
    assert with_lse.call(X) == "full"
    driver.refusal = 0
    y, lse = with_lse.call(X)
    assert (y.shape, lse.shape) == ((6, 8), (6,))


def test_a_subclass_brings_its_other_inputs_along(finishing: Wider) -> None:
    for _ in range(2):
        assert finishing.with_rest(Subclass((6, 8)), M, D) == "full"
    assert finishing.calls.entries == {}


# The public call


def test_dim_is_another_name_of_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    from softgen.call import api

    for name in ("softmax", "log_softmax", "partial"):
        monkeypatch.setattr(api, f"_{name}", {str: lambda *request: request})
        call = getattr(api, name)
        assert call("x", dim=1) == call("x", 1) == call("x", 1, dim=1) == call("x", axis=1)
        assert call("x", dim=-1) == call("x")
        with pytest.raises(InvalidValueError, match="axis=0 and dim=1 differ; give one"):
            call("x", 0, dim=1)


def test_each_call_asks_for_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from softgen.call import api

    call: Any
    for name in ("softmax", "softmax_lse", "log_softmax", "log_softmax_lse", "partial", "finish"):
        asked = {str: lambda *request, name=name: (name, *request)}
        monkeypatch.setattr(api, f"_{name}", asked)
    options = (-1, None, None, None, None)
    for call in (api.softmax, api.log_softmax):
        name = call.__name__
        assert call("x", out="y") == (name, "x", "y", *options, ())
        assert call("x", return_lse=True) == (f"{name}_lse", "x", None, *options, ())
    call = api.partial
    assert call("x") == ("partial", "x", None, *options, ())
    assert api.finish("x", "m", "d") == ("finish", "x", None, *options, ("m", "d"))
