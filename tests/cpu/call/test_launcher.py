"""What the driver gets of a launch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.devices.gpu.launcher import Launcher
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.operands import Extent, Operand
from softgen.strategies.launch import Launch
from tests.helpers.driver import COOPERATIVE, PROGRAMMATIC, WORKSPACE, FakeDriver, FakeError, Seen

FUNCTION = 0xF00


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    fake.serve(monkeypatch)
    fake.kernels[FUNCTION] = 4, lambda seen: None  # two operands, rows, workspace
    return fake


def launch_of(scratch: Any = None, arrays: int = 2, fixed: Any = None, **shape: Any) -> Launcher:
    how = Launch(128, rows_per_block=4, static_shared_bytes=0, **shape)
    return Launcher(SimpleNamespace(ptr=FUNCTION), arrays, how, 6, 0, scratch, fixed)


def test_a_launch_gives_the_driver_what_the_strategy_says(driver: FakeDriver) -> None:
    launch_of(dynamic_shared_bytes=4096)((0x7F00_0000_1000, 0x7F00_0000_2000), 0x77)
    arguments = (0x7F00_0000_1000, 0x7F00_0000_2000, 6, 0)
    assert driver.launches == [Seen((), FUNCTION, (2, 1, 1), (128, 1, 1), 4096, 0x77, arguments)]


def test_numbers_are_words_beside_the_addresses(driver: FakeDriver) -> None:
    driver.kernels[FUNCTION] = 7, lambda seen: None
    number = Operand("scale", DType.FLOAT32, Extent.NUMBER, False, "Compute")
    launch = launch_of(arrays=5, fixed={3: 0x55, 4: 0x66})
    launch((0x1000, 0x2000, number.word(0.7)), 0x77)
    assert driver.launches[0].arguments == (0x1000, 0x2000, 0x3F333333, 0x55, 0x66, 6, 0)


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
    (seen,) = driver.launches
    assert seen.attributes == (COOPERATIVE,)
    assert seen.arguments == (1, 2, 6, WORKSPACE + 96)
    ((key, found, stream),) = driver.given_back
    assert (key, found.address, stream) == ((0, 0x77), WORKSPACE + 96, 0x77)


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_launch_that_may_start_before_the_one_before_has_ended(
    driver: FakeDriver, cooperative: bool
) -> None:
    launch_of(dependent=True, cooperative=cooperative)((1, 2), 0x77)
    assert driver.launches[0].attributes == (*[COOPERATIVE] * cooperative, PROGRAMMATIC)


def test_a_workspace_of_the_callers_own(driver: FakeDriver) -> None:
    launch_of(cooperative=True, workspace_bytes_per_row=16, scratch=0x5000)((1, 2), 0x77)
    assert driver.launches[0].arguments == (1, 2, 6, 0x5000)
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


def test_a_launch_may_fail_and_be_tried_again(driver: FakeDriver) -> None:
    launch = launch_of()
    driver.refusal = 2
    for _ in range(2):
        with pytest.raises(FakeError, match="error 2"):
            launch((1, 2), 0)
    driver.refusal = 0
    launch((1, 2), 0)
    assert driver.launches[0].arguments[:2] == (1, 2)


def test_threads_do_not_share_arguments(driver: FakeDriver) -> None:
    """The driver is slow here, and each launch still sees its own addresses."""
    ours: dict[int, int] = {}

    def slow(how: Any, function: int, addresses: int) -> int:
        for _ in range(20):
            x, y, _, _ = driver.read(4, addresses)
            assert y == x + 1
        ours[how.stream or 0] = x
        return 0

    driver.launch = slow  # type: ignore[method-assign]
    launch = launch_of()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: launch((1000 * i, 1000 * i + 1), i), range(2000)))
    assert ours == {i: 1000 * i for i in range(2000)}
