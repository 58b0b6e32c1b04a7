"""Calls like one before: what is kept, under what, and what may not be launched by it.

Of CuPy's arrays with the code that is made for them, and of those of a library that compares and
allocates in a capture, as PyTorch does; its own is in tests/cpu/torch.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.call import dispatch, runner
from softgen.call.cupy_library import CupyLibrary
from softgen.call.kernel import Kernel
from softgen.errors import CaptureError, InvalidTypeError, InvalidValueError
from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.dtypes import DType, Float8, FloatType
from softgen.problems.exact import exact_results
from softgen.problems.numerics import encode, numpy_dtype
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.strategies.variants import best_guess
from tests.helpers.cupy_calls import (
    CupyArray,
    GuardedLibrary,
    Interface,
    World,
    cupy_array,
    drawn,
    on_cupy,
)
from tests.helpers.driver import CONTEXT, COOPERATIVE, POISON, WORKSPACE, FakeError, FakeKernel

DEFAULTS = (-1, None, None, None, None)


class Subclass(CupyArray):
    pass


@pytest.fixture(params=[CupyLibrary, GuardedLibrary])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    return on_cupy(monkeypatch, request.param)


def empty(*shape: int, kind: Any = "f4", off: int = 0) -> Any:
    return cupy_array(np.full(shape, POISON if kind != "u1" else 77, kind), off=off)


def on_device_1(x: Any) -> Any:
    x.number = 1
    return x


def in_columns(x: Any) -> Any:
    """Return the same values where the last axis is not the contiguous one."""
    return cupy_array(x.T).T


def pitched(rows: int, cols: int, pitch: int, seed: int = 0) -> Any:
    return drawn(rows, pitch, seed=seed)[:, :cols]


def inputs_of(
    function: str, rows: int = 6, cols: int = 8, seed: int = 0, kind: str = "f4"
) -> tuple[Any, ...]:
    """Return inputs, of which no two are alike."""
    x = drawn(rows, cols, seed=seed, kind=kind)
    wide = "f4" if kind == "f2" else kind
    a_row = [cupy_array(np.abs(drawn(rows, seed=seed + i, kind=wide)) + i) for i in (1, 2)]
    return {
        "finish": (x, *a_row),
        "softmax_backward": (x, drawn(rows, cols, seed=seed + 1, kind=kind)),
        "cross_entropy_grad": (x, cupy_array(np.arange(rows) % cols), -100, 0.5 + seed, 0.25),
    }.get(function, (x,))


def call(function: str, x: Any, *rest: Any, out: Any = None, options: Any = DEFAULTS) -> Any:
    return dispatch.calls_of(function)[type(x)](x, out, *options, rest)


def entries(function: str = "softmax") -> Any:
    return dispatch.calls_of(function).entries


def require_right(found: Any, function: str, *inputs: Any, rtol: float = 2e-6) -> None:
    """Raise AssertionError unless results are those of these inputs."""
    x = inputs[0]
    problem = Problem.of(function, x.dtype.name, x.shape[-1])
    given = [np.asarray(each).reshape(-1, *np.shape(each)[1:]) for each in inputs]
    given = [
        each.reshape(-1, x.shape[-1])
        if operand.extent is Extent.ELEMENT
        else each.reshape(() if operand.extent is Extent.NUMBER else -1)
        for operand, each in zip(problem.inputs, given, strict=True)
    ]
    wanted = exact_results(problem, given)
    for operand, mine, right in zip(
        problem.results, found if len(wanted) > 1 else (found,), wanted, strict=True
    ):
        assert mine.shape == (x.shape if operand.extent is Extent.ELEMENT else x.shape[:-1])
        np.testing.assert_allclose(mine, right.reshape(mine.shape), rtol=rtol, atol=1e-6)


# One result and several, inputs beside x of a row and of whole rows, numbers
FUNCTIONS = (
    "softmax",
    "softmax_lse",
    "partial",
    "finish",
    "softmax_backward",
    "cross_entropy_grad",
)
functions = pytest.mark.parametrize("function", FUNCTIONS)


@functions
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_a_call_like_one_before_is_launched(function: str, kind: str, world: World) -> None:
    for seed in range(3):
        inputs = inputs_of(function, seed=seed, kind=kind)
        found = call(function, *inputs)
        require_right(found, function, *inputs, rtol=2e-3 if kind == "f2" else 2e-6)
        results = found if isinstance(found, tuple) else (found,)
        assert {type(each) for each in results} == {CupyArray}
        wanted = [each.dtype.value for each in world.last().results]
        assert [each.dtype for each in results] == wanted
        assert world.made == (seed + 1) * len(results)
    assert world.cold == len(world.variants) == 1
    assert len(world.driver.launches) == 3


def test_a_request_like_the_last_one_is_not_looked_up(world: World) -> None:
    call("softmax", drawn(6, 8))
    call("softmax", drawn(6, 8))
    entries().clear()
    x = drawn(6, 8, seed=1)
    require_right(call("softmax", x), "softmax", x)
    assert world.cold == 1


@functions
def test_two_shapes_in_turns(function: str, world: World) -> None:
    for seed, rows in enumerate((6, 5, 6, 5, 6, 6, 5, 5)):
        inputs = inputs_of(function, rows, seed=seed)
        require_right(call(function, *inputs), function, *inputs)
    assert world.cold == 2


OTHER_X: dict[str, Callable[[], Any]] = {
    "shape": lambda: drawn(8, 6),
    "rank": lambda: drawn(2, 3, 8),
    "dtype": lambda: drawn(6, 8, kind="f2"),
    "device": lambda: on_device_1(drawn(6, 8)),
    "alignment": lambda: drawn(6, 8, off=4),
    "columns": lambda: in_columns(drawn(6, 8)),
    "pitch": lambda: pitched(6, 8, 12),
    "subclass": lambda: drawn(6, 8).view(Subclass),
}


@pytest.mark.parametrize("with_out", [False, True])
@pytest.mark.parametrize("other", OTHER_X)
def test_any_other_x_goes_to_dispatch(other: str, with_out: bool, world: World) -> None:
    out = empty(6, 8) if with_out else None
    for _ in range(2):
        call("softmax", drawn(6, 8), out=out)
    world.closed = True
    assert call("softmax", OTHER_X[other](), out=out) == "dispatch"
    assert len(world.driver.launches) == 2


OTHER_OUT: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "shape": lambda: empty(8, 6),
    "dtype": lambda: empty(6, 8, kind="f2"),
    "device": lambda: on_device_1(empty(6, 8)),
    "alignment": lambda: empty(6, 8, off=4),
    "columns": lambda: in_columns(empty(6, 8)),
    "pitch": lambda: empty(6, 12)[:, :8],
    "subclass": lambda: empty(6, 8).view(Subclass),
    "list": lambda: [[1.0]],
}


@pytest.mark.parametrize("other", OTHER_OUT)
def test_any_other_out_goes_to_dispatch(other: str, world: World) -> None:
    out = empty(6, 8)
    for _ in range(2):
        call("softmax", drawn(6, 8), out=out)
    assert world.cold == 1
    world.closed = True
    assert call("softmax", drawn(6, 8), out=OTHER_OUT[other]()) == "dispatch"
    assert len(world.driver.launches) == 2


OTHER_BESIDE: dict[str, Callable[[], Any]] = {
    "shape": lambda: drawn(5),
    "rank": lambda: drawn(6, 1),
    "dtype": lambda: drawn(6, kind="f8"),
    "device": lambda: on_device_1(drawn(6)),
    "alignment": lambda: drawn(6, off=4),
    "pitch": lambda: drawn(12)[::2],
    "subclass": lambda: drawn(6).view(Subclass),
    "numpy": lambda: np.zeros(6, "f4"),
    "None": lambda: None,
    "list": lambda: [1.0] * 6,
}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("other", OTHER_BESIDE)
def test_any_other_input_beside_x_goes_to_dispatch(other: str, which: int, world: World) -> None:
    x, *pair = inputs_of("finish")
    for _ in range(2):
        call("finish", x, *pair)
    kept = dict(entries("finish"))
    world.closed = True
    given = list(pair)
    given[which] = OTHER_BESIDE[other]()
    assert call("finish", x, *given) == "dispatch"
    assert len(world.driver.launches) == 2
    assert entries("finish") == kept
    require_right(call("finish", x, *pair), "finish", x, *pair)


def test_which_of_two_inputs_starts_off_a_boundary_counts(world: World) -> None:
    """Each has a place of its own among the bits, of which a half takes those from 2 to 14."""
    offs = [(8, 0), (0, 2), (2, 0), (0, 8), (0, 4), (4, 0), (4, 2), (2, 4), (2, 2), (8, 8)]
    for _ in range(2):
        for off_dy, off_y in offs:
            dy = drawn(6, 8, kind="f2", off=off_dy)
            y = drawn(6, 8, kind="f2", off=off_y, seed=1)
            dx = call("softmax_backward", dy, y, options=(-1, "float32", *DEFAULTS[2:]))
            require_right(dx, "softmax_backward", dy, y)
    assert world.cold == len(offs)


@pytest.mark.parametrize("rest", [(), (1,), (1, 2, 3)])
def test_inputs_of_another_number_are_refused_and_harm_nothing(rest: Any, world: World) -> None:
    inputs = inputs_of("finish")
    call("finish", *inputs)
    with pytest.raises(ValueError, match="zip"):
        call("finish", inputs[0], *(inputs[i % 3] for i in rest))
    assert len(world.driver.launches) == 1
    require_right(call("finish", *inputs), "finish", *inputs)


def test_what_dispatch_raises_is_raised_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for out, options in (
        (None, ("a", *DEFAULTS[1:])),
        ([[1.0]], DEFAULTS),
        (None, (["no hash"], *DEFAULTS[1:])),
    ):
        world.dispatched.clear()
        with pytest.raises(InvalidTypeError) as error:
            call("softmax", drawn(6, 8), out=out, options=options)
        assert world.cold == 1
        assert error.value.__context__ is None


@pytest.mark.parametrize("function", ["softmax", "softmax_lse", "finish"])
@pytest.mark.parametrize("where", range(5))
def test_other_options_go_to_dispatch(where: int, function: str, world: World) -> None:
    inputs = inputs_of(function)
    for _ in range(2):
        call(function, *inputs)
    world.closed = True
    for other in ("other", ["no hash"], np.zeros(2)):
        options: list[Any] = list(DEFAULTS)
        options[where] = other
        assert call(function, *inputs, options=options) == "dispatch"
    assert world.dispatched[-1][0] is None  # that can be kept under nothing
    assert len(world.driver.launches) == 2


@pytest.mark.parametrize("kept", [1, (1,), (0, 1)])
def test_an_axis_that_only_equals_goes_to_dispatch(kept: Any, world: World) -> None:
    x = drawn(6, 8)
    for _ in range(2):
        call("softmax", x, options=(kept, *DEFAULTS[1:]))
    world.closed = True
    for only_equal in (bool, float, np.int64):
        axis = tuple(map(only_equal, kept)) if isinstance(kept, tuple) else only_equal(kept)
        assert call("softmax", x, options=(axis, *DEFAULTS[1:])) == "dispatch"
    assert len(world.driver.launches) == 2
    for _ in range(2):
        assert call("softmax", x, options=(kept, *DEFAULTS[1:])).shape == x.shape


def test_each_axis_dtype_and_choice_has_its_own_entry(world: World) -> None:
    x = drawn(8, 8)
    for _ in range(2):
        for axis in (-1, 0, 1, (0, 1), None):
            y = softgen.softmax(x, axis)
            wide = np.exp(np.asarray(x, "f8"))
            wanted = wide / wide.sum(None if axis is None else axis, keepdims=True)
            np.testing.assert_allclose(y, wanted, rtol=2e-6)
        for kind in ("float16", "float64", "float32"):
            assert softgen.softmax(x, dtype=kind).dtype == kind
        for variant in ("warp", "block"):
            softgen.softmax(x, variant=variant)
    assert world.cold == 10
    softgen.softmax(x, tune="force")
    softgen.softmax(x, tune="force")  # times again: never kept
    assert world.cold == 12


@functions
@pytest.mark.parametrize("name", ["SOFTGEN_TUNE", "SOFTGEN_BATCH_INVARIANT"])
def test_the_environment_is_a_part_of_the_request(
    name: str, function: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, one, other = inputs_of(function), "on", "off"
    if name == "SOFTGEN_BATCH_INVARIANT":
        one, other = "1", "0"
    monkeypatch.delenv(name, raising=False)
    for value, dispatched in ((None, 1), (one, 2), (one, 2), (other, 3), (None, 3), (other, 3)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
        require_right(call(function, *inputs), function, *inputs)
        assert world.cold == dispatched


@functions
def test_where_another_context_is_current_dispatch_makes_it_so(function: str, world: World) -> None:
    """0: a thread that has not used CUDA yet. Or a green context, where many calls follow."""
    inputs = inputs_of(function)
    for _ in range(2):
        call(function, *inputs)
    for other in (0, CONTEXT + 1):
        world.driver.context, world.closed = other, True
        assert call(function, *inputs) == "dispatch"
        world.closed = False
        for _ in range(4):
            require_right(call(function, *inputs), function, *inputs)
        world.dispatched.clear()
        call(function, *inputs)
        assert world.dispatched == []


def test_a_launch_goes_to_the_stream_that_is_current(world: World) -> None:
    for stream in (5, 7, 0, 2, 5):
        world.driver.stream = stream
        call("softmax", drawn(6, 8))
        assert world.driver.launches[-1].stream == stream
    assert world.cold == 1


def test_views_are_kept_by_their_strides(world: World) -> None:
    for seed in range(3):
        x = pitched(6, 8, 12, seed)
        require_right(call("softmax", x), "softmax", x)
    assert (world.cold, world.copied) == (1, 0)
    for other in (
        pitched(6, 8, 16),
        drawn(6, 13)[:, 1:9],
        pitched(12, 8, 12)[::2],
        pitched(6, 8, 12)[::-1],
        drawn(6, 8),
    ):
        dispatched = world.cold
        for _ in range(2):
            require_right(call("softmax", other), "softmax", other)
        assert world.cold == dispatched + 1
    require_right(call("softmax", x), "softmax", x)


def test_a_view_in_a_capture_or_with_no_context(world: World) -> None:
    x = pitched(6, 8, 12)
    call("softmax", x)
    world.driver.context, world.closed = 0, True
    assert call("softmax", x) == "dispatch"
    world.driver.context, world.closed = CONTEXT, False
    for _ in range(2):
        call("softmax", x)
    world.closed = True
    world.driver.capturing.add(world.driver.stream)
    captured = call("softmax", x)
    if softgen.call.library._cupy_library().mallocs_in_capture:
        assert captured == "dispatch"
    else:
        require_right(captured, "softmax", x)


# out=


def test_results_go_where_the_caller_says(world: World) -> None:
    memory = drawn(18, 8)
    x, beside, before = memory[6:12], memory[12:], memory[:6]
    values, other = x.copy(), empty(6, 8)
    call("softmax", x)
    for out in (other, beside, before, other, beside):
        assert call("softmax", x, out=out) is out
        require_right(out, "softmax", values)
        np.testing.assert_array_equal(x, values)
    assert world.cold == 2
    for seed in range(3):
        x[...] = drawn(6, 8, seed=seed)
        values = x.copy()
        assert call("softmax", x, out=x) is x
        require_right(x, "softmax", values)
    call("softmax", x, out=other)
    assert world.cold == 3
    world.driver.context, world.closed = 0, True
    assert call("softmax", x, out=x) == "dispatch"


@pytest.mark.parametrize("shift", [-48, -4, 4, 48])
@pytest.mark.parametrize("in_place_first", [False, True])
def test_an_overlap_is_left_to_dispatch_which_refuses_it(
    shift: int, in_place_first: bool, world: World
) -> None:
    memory = drawn(3 * 48)
    x = memory[48:96].reshape(6, 8)
    call("softmax", x, out=x if in_place_first else empty(6, 8))
    out = memory[48 + shift :][:48].reshape(6, 8)
    before = memory.copy()
    if abs(shift) == 48:  # which only touches it
        call("softmax", x, out=out)
        return
    with pytest.raises(InvalidValueError, match="overlaps x"):
        call("softmax", x, out=out)
    np.testing.assert_array_equal(memory, before)
    assert len(world.driver.launches) == 1


@pytest.mark.parametrize(("x_at", "out_at"), [(48, 1), (0, 47)])
def test_an_overlap_of_one_element_is_refused(x_at: int, out_at: int, world: World) -> None:
    """With an entry for an x and an out that start off 16-byte boundaries as they do."""
    memory = drawn(96)
    x, out = (memory[start:][:48].reshape(6, 8) for start in (x_at, out_at))
    for _ in range(2):
        call("softmax", drawn(6, 8), out=empty(6, 8, off=out_at * 4 % 16))
    with pytest.raises(InvalidValueError, match="overlaps x"):
        call("softmax", x, out=out)
    assert world.cold == 2
    assert len(world.driver.launches) == 2


def test_x_with_other_strides_is_not_in_place(world: World) -> None:
    x = drawn(8, 8)
    for _ in range(2):
        call("softmax", x, out=x)
    before = x.copy()
    with pytest.raises(InvalidValueError, match="overlaps x"):
        call("softmax", x, out=x[::-1])
    np.testing.assert_array_equal(x, before)
    require_right(call("softmax", x, out=x.T), "softmax", before)  # written elsewhere, then copied
    require_right(x.T, "softmax", before)


@pytest.mark.parametrize("which", [1, 2])
def test_an_out_that_overlaps_another_input_is_refused(which: int, world: World) -> None:
    memory = drawn(3 * 64, off=4)
    x, pair = memory[:48].reshape(6, 8), [cupy_array(drawn(6), off=4), cupy_array(drawn(6), off=4)]
    mine = memory[120:126]
    pair[which - 1] = mine
    mine[...] = np.arange(1, 7)
    for out in (
        empty(6, 8, off=4),
        empty(6, 8, off=4),
        memory[48 + 16 : 48 * 2 + 16].reshape(6, 8),
    ):
        call("finish", x, *pair, out=out)
        require_right(out, "finish", x, *pair, rtol=1e-5)
    assert world.cold == 1
    for start in (76, 120 - 47, 124):
        with pytest.raises(InvalidValueError, match="out overlaps"):
            call("finish", x, *pair, out=memory[start:][:48].reshape(6, 8))


def test_a_result_that_was_copied_is_not_kept(world: World) -> None:
    out = in_columns(empty(6, 8))
    for seed in range(2):
        x = drawn(6, 8, seed=seed)
        assert call("softmax", x, out=out) is out
        require_right(out, "softmax", x)
    assert entries() == {}


@pytest.mark.parametrize("axis", [(0, 2), -1])
def test_an_input_that_was_copied_is_not_kept(axis: Any, world: World) -> None:
    x = drawn(4, 5, 6) if axis != -1 else in_columns(drawn(6, 8))
    for seed in range(2):
        x[...] = drawn(*x.shape, seed=seed)
        y = softgen.softmax(x, axis)
        np.testing.assert_allclose(y.sum(axis), np.ones(y.sum(axis).shape), rtol=1e-6)
    assert entries() == {}
    assert world.copied == 2


@pytest.mark.parametrize("subclassed", [(True, False), (False, True), (True, True)])
def test_a_subclass_is_not_kept(subclassed: tuple[bool, bool], world: World) -> None:
    x, out = (
        each.view(Subclass) if sub else each
        for each, sub in zip((drawn(6, 8), empty(6, 8)), subclassed, strict=True)
    )
    for _ in range(2):
        assert call("softmax", x, out=out) is out
        require_right(out, "softmax", x)
    assert entries() == {}
    assert world.cold == 2


def test_a_subclass_brings_its_other_inputs_along(world: World) -> None:
    x, *pair = inputs_of("finish")
    for _ in range(2):
        require_right(call("finish", x.view(Subclass), *pair), "finish", x, *pair)
    assert entries("finish") == {}


def test_an_array_of_another_library_is_served_and_not_kept(world: World) -> None:
    x = drawn(6, 8)
    for _ in range(2):
        require_right(softgen.softmax(Interface(x)), "softmax", x)
    assert (world.cold, entries()) == (2, {})


@pytest.mark.parametrize("x", [None, [[1.0]], np.zeros(3)])
def test_what_is_no_array_of_a_gpu_is_refused_and_not_kept(x: Any, world: World) -> None:
    with pytest.raises(InvalidTypeError):
        softgen.softmax(x)
    assert type(x) not in dispatch.calls_of("softmax")


# What is allocated


def test_an_allocator_that_aligns_to_less_is_left_to_dispatch(world: World) -> None:
    for off, dispatched in ((4, 1), (4, 2), (0, 3), (0, 3), (4, 4), (0, 4)):
        world.off = off
        x = drawn(6, 8)
        require_right(call("softmax", x), "softmax", x)
        assert world.cold == dispatched


@pytest.mark.parametrize("function", ["softmax", "softmax_lse", "finish"])
def test_cupy_allocates_nothing_in_a_capture(function: str, world: World) -> None:
    """Also where only the first of two results has its place; PyTorch has a pool for it."""
    inputs, out = inputs_of(function), empty(6, 8)
    for _ in range(2):
        call(function, *inputs)
        call(function, *inputs, out=out)
    made, launches = world.made, len(world.driver.launches)
    world.driver.stream = 0x77
    world.driver.capturing = {0x77}
    mallocs = softgen.call.library._cupy_library().mallocs_in_capture
    for given in (None, out):
        if mallocs and (given is None or function == "softmax_lse"):
            with pytest.raises(CaptureError, match="cannot be allocated"):
                call(function, *inputs, out=given)
            assert (world.made, len(world.driver.launches)) == (made, launches)
        else:
            cold = world.cold
            require_right(call(function, *inputs, out=given), function, *inputs)
            assert world.driver.launches[-1].stream == 0x77
            assert world.cold == cold
    world.driver.stream = 0x78
    require_right(call(function, *inputs, out=out), function, *inputs)


@pytest.mark.parametrize("stream", [0, 1])
def test_streams_that_cannot_be_captured_are_not_asked_about(stream: int, world: World) -> None:
    call("softmax", drawn(6, 8))
    world.driver.stream = stream
    world.driver.capturing = {stream}  # as if: CUDA's answer for the null stream may be an error
    call("softmax", drawn(6, 8))
    assert world.cold == 1


@pytest.mark.parametrize("dtype", [*DType, Float8.E4M3, Float8.E5M2])
def test_results_of_every_dtype(dtype: FloatType, world: World) -> None:
    kind = numpy_dtype(dtype)
    x = drawn(6, 8, kind="f2")
    wide = np.exp(np.asarray(x, "f8"))
    wanted = wide / wide.sum(-1, keepdims=True)
    options = (-1, dtype.value, None, None, None)
    out = empty(6, 8, kind="u1" if isinstance(dtype, Float8) else kind)
    for given in (None, None, out, out):
        y = call("softmax", x, out=given, options=options)
        assert y.dtype == out.dtype
        if isinstance(dtype, Float8):
            np.testing.assert_array_equal(y, encode(wanted, dtype))
        else:
            np.testing.assert_allclose(y.astype("f8"), wanted, rtol=1e-2, atol=1e-6)
    assert world.cold == 2


def test_shapes_that_never_repeat_fill_no_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MOST_CALLS", 4)
    for rows in range(1, 7):
        call("softmax", drawn(rows, 8))
    assert len(entries()) == 2


def test_entries_keep_no_array_alive(world: World) -> None:
    gone: list[tuple[str, Any]] = []
    for function in FUNCTIONS:
        for with_out in (False, function != "partial"):
            inputs, out = inputs_of(function), empty(6, 8) if with_out else None
            for _ in range(2):
                found = call(function, *inputs, out=out)
            found = found if isinstance(found, tuple) else (found,)
            arrays = [each for each in (*inputs, *found) if isinstance(each, CupyArray)]
            assert len(arrays) > len(found)
            gone += [(function, weakref.ref(each)) for each in arrays]
    del inputs, found, out, arrays
    world.dispatched.clear()
    gc.collect()  # of all at once: it takes half a second
    assert [function for function, ref in gone if ref() is not None] == []


def test_a_0d_cupy_array_is_not_copied(world: World) -> None:
    """CuPy's ascontiguousarray would make a 1-d one of it, which no call keeps."""
    x = cupy_array(np.float32(3))
    assert CupyLibrary().contiguous(x) is x
    for _ in range(2):
        assert softgen.softmax(x) == 1
    assert world.cold == 1


# Numbers


def number_of(world: World) -> int:
    """Return the word of the scale in the last launch: x, y, the scale, rows, a workspace."""
    return world.words()[2]


def test_each_call_passes_its_own_number(world: World) -> None:
    x = drawn(6, 8)
    for number, bits in (
        (1.0, 0x3F800000),
        (0.7, 0x3F333333),
        (2.0, 0x40000000),
        (2.0, 0x40000000),
    ):
        y = softgen.softmax(x, scale=number)
        assert number_of(world) == bits
        require_right(y, "softmax", x * np.float32(number))
    assert world.cold == 1


def scaled(world: World) -> Kernel:
    """Return a plan that takes a number of its caller as it is."""
    problem = Problem.of("softmax", "float32", 8, hooks=("scale",))
    variant = best_guess(problem, 6, arch_named(DEFAULT_ARCH))
    loaded: Any = FakeKernel(problem, world.driver, variant)
    return Kernel(loaded)


@pytest.mark.parametrize("number", [None, "a", [1.0], 1e300, np.ones(2)])
def test_what_is_no_such_number_is_refused(number: Any, world: World) -> None:
    """By the first calls behind that which is kept, too."""
    x, kernel = drawn(6, 8), scaled(world)
    kernel(x, 1.0)
    for first in (number, number, 0.5, number):
        if first is number:
            with pytest.raises((InvalidTypeError, InvalidValueError), match=r"scale must"):
                kernel(x, number)
        else:
            require_right(kernel(x, first), "softmax", x * np.float32(first))
    assert len(world.driver.launches) == 2


def test_a_number_that_changes_in_place_is_read_anew(world: World) -> None:
    x, kernel, number = drawn(6, 8), scaled(world), np.array(1.0)
    for value in (1.0, 2.0, 3.0):
        number[...] = value
        require_right(kernel(x, number), "softmax", x * np.float32(value))
    assert world.cold == 1


def test_an_equal_number_of_another_type_is_the_same(world: World) -> None:
    x, kernel = drawn(6, 8), scaled(world)
    for number in (2.0, 2, np.float32(2), np.float64(2), -0.0, 0, False, True, 1.0):
        kernel(x, number)
        assert number_of(world) == int(np.float32(number).view("u4")), repr(number)


# What goes wrong on the way


@pytest.mark.parametrize("function", ["softmax", "softmax_lse"])
def test_a_launch_that_is_refused_goes_to_dispatch(
    function: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fewer(kernel: Any, rows: int, stream: int, library: Any, *_: Any, pdl: bool) -> Any:
        world.driver.refusal = 0
        return kernel.launcher(rows, library)

    monkeypatch.setattr(dispatch, "launch_on_fewer", fewer)
    inputs = inputs_of(function)
    for refusal, cold in ((720, 1), (0, 2), (0, 2), (720, 3), (0, 3)):
        world.driver.refusal = refusal  # 720: the stream has too few SMs; what runs is not kept
        require_right(call(function, *inputs), function, *inputs)
        assert world.cold == cold
    world.driver.refusal = 700
    with pytest.raises(FakeError, match="error 700"):
        call(function, *inputs)


@functions
def test_an_error_in_the_middle_leaves_nothing_behind(
    function: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments that were taken for a launch that never was are nobody's."""
    world.driver.shape = {"cooperative": True, "workspace_bytes_per_row": 16}
    inputs = inputs_of(function)
    for _ in range(2):
        call(function, *inputs)
    (entry,) = entries(function).values()

    def fail(*given: Any) -> Any:
        raise MemoryError("no workspace")

    with monkeypatch.context() as patch:
        patch.setattr(world.driver, "lend", fail)
        with pytest.raises(MemoryError, match="no workspace"):
            call(function, *inputs)
    with pytest.raises(IndexError):
        entry.take()
    given_back = len(world.driver.given_back)
    for seed in range(2):
        inputs = inputs_of(function, seed=seed)
        require_right(call(function, *inputs), function, *inputs)
    assert len(world.driver.given_back) == given_back + 2
    assert world.cold == 1


@pytest.mark.parametrize("function", ["softmax", "softmax_lse"])
def test_a_workspace_comes_behind_all_operands(function: str, world: World) -> None:
    world.driver.shape = {"cooperative": True, "workspace_bytes_per_row": 16, "dependent": False}
    x = drawn(6, 8)
    for count in (1, 2, 3):
        require_right(call(function, x), function, x)
        assert world.driver.launches[-1].attributes == (COOPERATIVE,)
        assert world.words()[-2:] == (6, WORKSPACE + 96)
        assert len(world.driver.given_back) == count
    assert world.cold == 1


def test_what_another_thread_launches_meanwhile_is_not_launched_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the comparison with the last request and its launch another one becomes the last."""
    world = on_cupy(monkeypatch, GuardedLibrary)
    x, other = drawn(6, 8), drawn(5, 8)
    for each in (other, x, other, x):
        call("softmax", each)
    entry = next(each for each in entries().values() if each.like(x))
    like = entry.like

    def slow(*arrays: Any) -> Any:
        found = like(*arrays)
        entry.like = like
        require_right(call("softmax", other), "softmax", other)
        return found

    entry.like = slow
    require_right(call("softmax", x), "softmax", x)
    assert entry.like is like
    assert world.cold == 2


def test_threads_share_nothing_but_entries(world: World) -> None:
    def work(seed: int) -> None:
        for rows in (5, 6, 5):
            function = FUNCTIONS[seed % len(FUNCTIONS)]
            inputs = inputs_of(function, rows, seed=seed)
            require_right(call(function, *inputs), function, *inputs)
            x, number = drawn(rows, 8, seed=seed), 0.25 * (seed + 1)
            y = softgen.softmax(x, scale=number)
            require_right(y, "softmax", x * np.float32(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(48)))


# The text


def test_a_plan_and_a_function_share_no_entries(world: World) -> None:
    problem = Problem.of("log_softmax", "float32", 8)
    variant = best_guess(problem, 6, arch_named(DEFAULT_ARCH))
    loaded: Any = FakeKernel(problem, world.driver, variant)
    kernel, x = Kernel(loaded), drawn(6, 8)
    for _ in range(2):
        require_right(softgen.softmax(x), "softmax", x)
        require_right(kernel(x), "log_softmax", x)
    assert world.cold == 2
