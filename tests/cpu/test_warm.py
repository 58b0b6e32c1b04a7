"""Warm calls: what is kept, what is not, and the launch, with fakes in place of a GPU's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from softgen import launcher, warm
from softgen.launcher import Launcher
from softgen.outputs import Output
from softgen.policy import settings
from softgen.problem import DType
from softgen.strategies import Launch
from softgen.warm import MOST_CALLS, WarmCalls

CONTEXT = 0x555


@dataclass(eq=False)
class Array:
    """A float32 array somewhere in a made-up memory."""

    shape: tuple[int, ...]
    start: int = 0
    contiguous: bool = True
    gradient: bool = False


class Subclass(Array):
    pass


@dataclass
class FakeLibrary:
    """softgen.arrays.Library over `Array`."""

    mallocs_in_capture: bool = True
    array_type: type = Array
    fresh: int = 1 << 20
    current: int = 0
    made: list[Array] = field(default_factory=list)

    def pointer(self, x: Array) -> int:
        return x.start

    def dtype(self, x: Array) -> DType:
        return DType.FLOAT32

    def device(self, x: Array) -> int:
        return 0

    def byte_strides(self, x: Array) -> tuple[int, ...]:
        raise AssertionError

    def is_contiguous(self, x: Array) -> bool:
        return x.contiguous

    def contiguous(self, x: Array) -> Array:
        raise AssertionError

    def empty(self, shape: tuple[int, ...], dtype: DType, device: int) -> Array:
        raise AssertionError

    def assign(self, target: Array, source: Array) -> None:
        raise AssertionError

    def stream(self, device: int) -> int:
        return self.current

    def facts(self, x: Array) -> tuple[int, Hashable]:
        return x.start, (x.shape, x.start & 15, x.contiguous, x.gradient)

    def is_plain(self, x: Array) -> bool:
        return x.contiguous and not x.gradient

    def allocator(self, shape: tuple[int, ...], dtype: DType) -> Callable[[], Array]:
        def allocate() -> Array:
            self.made.append(Array(shape, self.fresh))
            return self.made[-1]

        return allocate


class FakeDriver:
    """Reads the arguments of a launch as the driver does."""

    def __init__(self) -> None:
        self.context = CONTEXT
        self.capturing: set[int] = set()
        self.launches: list[tuple[Any, ...]] = []

    def ctxGetCurrent(self) -> int:
        return self.context

    def streamIsCapturing(self, stream: int) -> bool:
        return stream in self.capturing

    def launchKernel(self, *given: int) -> None:
        *fixed, stream, addresses, extra = given
        assert extra == 0
        self.launches.append(("plain", *fixed, stream, self.read(addresses)))

    def launchCooperativeKernel(self, *given: int) -> None:
        *fixed, stream, addresses = given
        self.launches.append(("together", *fixed, stream, self.read(addresses)))

    def read(self, addresses: int) -> tuple[int, ...]:
        each = (ctypes.c_uint64 * 4).from_address(addresses)
        return tuple(ctypes.c_uint64.from_address(each[i]).value for i in range(4))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    cupy = SimpleNamespace(cuda=SimpleNamespace(driver=fake, runtime=fake))
    for module in (launcher, warm):
        monkeypatch.setattr(module, "require_device", lambda: cupy)
    monkeypatch.setattr(launcher, "workspace", lambda device, stream, size: 0x9000 + size)
    monkeypatch.setattr(warm, "_libraries", {})
    return fake


def launch_of(rows: int = 6, **shape: Any) -> Launcher:
    function = SimpleNamespace(ptr=0xF00)
    return Launcher(
        function, Launch(128, rows_per_block=4, static_shared_bytes=0, **shape), rows, 0
    )


# The launch


def test_a_launch_gives_the_driver_what_the_strategy_says(driver: FakeDriver) -> None:
    launch_of(dynamic_shared_bytes=4096)(0x7F00_0000_1000, 0x7F00_0000_2000, 0x77)
    arguments = (0x7F00_0000_1000, 0x7F00_0000_2000, 6, 0)
    assert driver.launches == [("plain", 0xF00, 2, 1, 1, 128, 1, 1, 4096, 0x77, arguments)]


def test_a_cooperative_launch_with_a_workspace(driver: FakeDriver) -> None:
    launch_of(cooperative=True, workspace_bytes_per_row=16)(1, 2, 0x77)
    assert driver.launches == [
        ("together", 0xF00, 2, 1, 1, 128, 1, 1, 0, 0x77, (1, 2, 6, 0x9000 + 96))
    ]


def test_a_launch_may_fail_and_be_tried_again(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: int) -> None:
        raise RuntimeError("the driver refuses")

    monkeypatch.setattr(driver, "launchKernel", refuse)
    launch = launch_of()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="refuses"):
            launch(1, 2, 0)


def test_threads_do_not_share_arguments(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is slow here, and each launch still sees its own addresses."""
    launch = launch_of()
    ours: dict[int, int] = {}

    def slow(*given: int) -> None:
        for _ in range(20):
            x, y, _, _ = driver.read(given[-2])
            assert y == x + 1
        ours[given[-3]] = x

    monkeypatch.setattr(driver, "launchKernel", slow)
    launch = launch_of()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: launch(1000 * i, 1000 * i + 1, i), range(2000)))
    assert ours == {i: 1000 * i for i in range(2000)}


# What is kept


def remembered(x: Array, out: Array | None = None, **library: Any) -> tuple[WarmCalls, FakeLibrary]:
    calls, fake = WarmCalls(), FakeLibrary(**library)
    target = Array(x.shape, fake.fresh) if out is None else out
    calls.remember(fake, x, out, "options", Output(target, target, 48), launch_of())
    return calls, fake


def addresses(driver: FakeDriver) -> list[tuple[int, int]]:
    return [launch[-1][:2] for launch in driver.launches]


def test_a_call_like_one_before_is_launched(driver: FakeDriver) -> None:
    calls, library = remembered(Array((6, 8), 0x1000))
    y = calls.run(Array((6, 8), 0x2000), None, "options")
    assert [y] == library.made
    assert y.shape == (6, 8)
    assert addresses(driver) == [(0x2000, 1 << 20)]


@pytest.mark.parametrize(
    ("x", "out", "options"),
    [
        (Array((8, 6), 0x1000), None, "options"),
        (Array((6, 8), 0x1004), None, "options"),
        (Array((6, 8), 0x1000, contiguous=False), None, "options"),
        (Array((6, 8), 0x1000, gradient=True), None, "options"),
        (Array((6, 8), 0x1000), Array((6, 8), 0x2000), "options"),
        (Array((6, 8), 0x1000), None, "others"),
        (Array((6, 8), 0x1000), None, ["no hash"]),
        (Subclass((6, 8), 0x1000), None, "options"),
        ([[1.0]], None, "options"),
        (None, None, "options"),
    ],
)
def test_any_other_call_takes_the_full_path(
    x: Any, out: Any, options: Any, driver: FakeDriver
) -> None:
    calls, library = remembered(Array((6, 8), 0x1000))
    assert calls.run(x, out, options) is None
    assert not library.made
    assert not driver.launches


def test_where_another_device_is_current_the_full_path_is_taken(driver: FakeDriver) -> None:
    calls, library = remembered(Array((6, 8), 0x1000))
    for other in (0, CONTEXT + 1):  # 0: a thread that has not used CUDA yet
        driver.context = other
        assert calls.run(Array((6, 8), 0x1000), None, "options") is None
    assert not library.made
    assert not driver.launches


def test_results_go_where_the_caller_says(driver: FakeDriver) -> None:
    x, out = Array((6, 8), 0x1000), Array((6, 8), 0x2000)
    calls, _ = remembered(x, out)
    assert calls.run(x, out, "options") is out
    assert calls.run(x, x, "options") is x
    beside = Array((6, 8), 0x1000 + 6 * 8 * 4)
    assert calls.run(x, beside, "options") is beside
    assert addresses(driver) == [(0x1000, 0x2000), (0x1000, 0x1000), (0x1000, beside.start)]


@pytest.mark.parametrize("shift", [-16, 16, -176, 176])
def test_an_overlap_is_left_to_the_full_path_which_refuses_it(
    shift: int, driver: FakeDriver
) -> None:
    calls, _ = remembered(Array((6, 8), 0x1000), Array((6, 8), 0x2000))
    assert calls.run(Array((6, 8), 0x1000), Array((6, 8), 0x1000 + shift), "options") is None
    assert driver.launches == []


def test_an_out_of_a_subclass_takes_the_full_path(driver: FakeDriver) -> None:
    calls, _ = remembered(Array((6, 8), 0x1000), Array((6, 8), 0x2000))
    assert calls.run(Array((6, 8), 0x1000), Subclass((6, 8), 0x2000), "options") is None


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (Array((6, 8), contiguous=False), None),
        (Array((6, 8), gradient=True), None),
        (Subclass((6, 8)), None),
        (Array((6, 8)), Subclass((6, 8), 0x2000)),
    ],
)
def test_what_is_not_kept(x: Array, out: Array | None, driver: FakeDriver) -> None:
    calls, _ = remembered(x, out)
    assert calls._calls == {}


def test_a_result_that_was_copied_is_not_kept(driver: FakeDriver) -> None:
    calls, out = WarmCalls(), Array((6, 8), 0x2000)
    y = Output(Array((6, 8), 0x3000), out, 48)
    calls.remember(FakeLibrary(), Array((6, 8)), out, "options", y, launch_of())
    assert calls._calls == {}


def test_an_allocator_that_aligns_to_less_is_left_to_the_full_path(driver: FakeDriver) -> None:
    calls, _ = remembered(Array((6, 8)), fresh=(1 << 20) + 8)
    assert calls._calls == {}
    calls, library = remembered(Array((6, 8)))
    library.fresh += 8
    assert calls.run(Array((6, 8)), None, "options") is None
    assert driver.launches == []


def test_nothing_is_allocated_in_a_capture(driver: FakeDriver) -> None:
    x, out = Array((6, 8), 0x1000), Array((6, 8), 0x2000)
    calls, library = remembered(x)
    library.current = 0x77
    driver.capturing = {0x77}
    assert calls.run(x, None, "options") is None
    assert not library.made
    assert not driver.launches
    library.mallocs_in_capture = False
    assert calls.run(x, None, "options") is library.made[-1]
    calls, library = remembered(x, out)
    library.current = 0x77
    assert calls.run(x, out, "options") is out


def test_shapes_that_never_repeat_fill_no_memory(driver: FakeDriver) -> None:
    calls, library, launch = WarmCalls(), FakeLibrary(), launch_of()
    for rows in range(MOST_CALLS + 2):
        x = Array((rows + 1, 8))
        y = Array(x.shape, 1 << 20)
        calls.remember(library, x, None, "options", Output(y, y, 8), launch)
    assert len(calls._calls) == 2


# The environment is a part of the request


def test_settings_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings() == (None, None)
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    assert settings() == (b"off", None)
    monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", "1")
    assert settings() == (b"off", b"1")
    monkeypatch.delenv("SOFTGEN_TUNE")
    assert settings() == (None, b"1")
