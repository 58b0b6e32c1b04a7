"""The options of every public call: which it takes, what it refuses, and how it reads."""

from __future__ import annotations

import inspect
import pydoc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.call.options import AxisOptions, HookOptions, Options
from softgen.errors import InvalidTypeError, InvalidValueError
from tests.helpers.cupy_calls import World, cupy_array, drawn
from tests.helpers.driver import PROGRAMMATIC

ROWS = COLS = 4  # so that axes may be swapped


def rows(value: float = 1.0) -> Any:
    return cupy_array(np.full(ROWS, value, "f4"))


def classes() -> Any:
    return cupy_array(np.arange(ROWS) % COLS)


# What each takes beside x
BESIDE: dict[str, Callable[[], tuple[Any, ...]]] = {
    "softmax": lambda: (),
    "log_softmax": lambda: (),
    "logsumexp": lambda: (),
    "entropy": lambda: (),
    "partial": lambda: (),
    "finish": lambda: (rows(3), rows(2)),
    "softmax_backward": lambda: (drawn(ROWS, COLS, seed=1),),
    "log_softmax_backward": lambda: (drawn(ROWS, COLS, seed=1),),
    "logsumexp_backward": lambda: (rows(3), rows()),
    "entropy_backward": lambda: (rows(3), rows(2), rows()),
    "token_log_probs": lambda: (classes(),),
    "token_log_probs_backward": lambda: (classes(), rows(3), rows()),
    "cross_entropy": lambda: (classes(),),
    "cross_entropy_grad": lambda: (classes(),),
    "cross_entropy_backward": lambda: (classes(), rows(3), rows()),
}
# The gradients that take some of them.
WITH_SOME_HOOKS = ("cross_entropy_grad", "cross_entropy_backward")
WITH_HOOKS = ("softmax", "log_softmax", "logsumexp", "entropy", "token_log_probs", "cross_entropy")
WITH_AXIS = tuple(name for name in BESIDE if not name.startswith(("token", "cross")))
every = pytest.mark.parametrize("name", BESIDE)


def call(name: str, *axis: int, **options: Any) -> Any:
    return getattr(softgen, name)(drawn(ROWS, COLS), *BESIDE[name](), *axis, **options)


def require_same(found: Any, wanted: Any) -> None:
    results = [each if isinstance(each, tuple) else (each,) for each in (found, wanted)]
    for mine, right in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, right)


@every
def test_a_name_that_is_no_option_is_refused_with_a_hint(name: str, world: World) -> None:
    with pytest.raises(InvalidTypeError, match=r"'variants'.*variant"):
        call(name, variants="warp")
    with pytest.raises(TypeError, match="unknown argument 'temprature'"):
        call(name, temprature=2.0)
    assert world.driver.launches == []


@every
def test_each_option_arrives(name: str, world: World) -> None:
    """With one, as without, of a call before and of the next."""
    plain = call(name)
    _, _, _, _, _, *without, _ = world.dispatched[0]
    assert without == [None, None, None]
    assert PROGRAMMATIC in world.driver.launches[-1].attributes
    for option, value in (("tune", "off"), ("variant", "safe"), ("batch_invariant", True)):
        for _ in range(2):
            require_same(call(name, **{option: value}), plain)
        assert PROGRAMMATIC in world.driver.launches[-1].attributes
        _, _, _, _, _, *asked, _ = world.dispatched[-1]
        names = ("tune", "variant", "batch_invariant")
        assert asked == [value if each == option else None for each in names]
    assert world.cold == 4
    for _ in range(2):
        require_same(call(name, pdl=False), plain)
        assert PROGRAMMATIC not in world.driver.launches[-1].attributes
    assert world.cold == 5
    require_same(call(name, tune=None, pdl=True), plain)
    assert PROGRAMMATIC in world.driver.launches[-1].attributes


@every
def test_a_wrong_value_is_refused(name: str, world: World) -> None:
    for option, value in (("tune", "sometimes"), ("variant", "wrap")):
        with pytest.raises(ValueError, match=value):
            call(name, **{option: value})
    assert world.driver.launches == []


@every
def test_dim_is_another_name_of_axis(name: str, world: World) -> None:
    if name not in WITH_AXIS:
        for axis in ({"dim": 1}, {"axis": 1}):
            with pytest.raises(InvalidTypeError, match="unknown argument"):
                call(name, **axis)
        return
    wanted = call(name, 0)
    for options in ({"dim": 0}, {"axis": 0}, {"axis": 0, "dim": 0}, {"axis": -1, "dim": 0}):
        require_same(call(name, **options), wanted)
    require_same(call(name, dim=-1), call(name))
    require_same(call(name, dim=None), call(name))
    with pytest.raises(InvalidValueError, match="axis=0 and dim=1 differ; give one"):
        call(name, 0, dim=1)


@every
def test_hooks_are_taken_where_there_are_some(name: str, world: World) -> None:
    for hook, value in (("scale", 0.5), ("softcap", 2.0), ("mask", np.ones(COLS, bool))):
        value = cupy_array(value) if hook == "mask" else value
        if name in WITH_SOME_HOOKS and hook == "mask":
            with pytest.raises(InvalidValueError, match=f"mask means nothing to {name}"):
                call(name, **{hook: value})
        elif name not in (*WITH_HOOKS, *WITH_SOME_HOOKS):
            with pytest.raises(InvalidTypeError, match=f"unknown argument '{hook}'"):
                call(name, **{hook: value})
        else:
            call(name, **{hook: value}, tune="off", pdl=False)
            assert [each.name for each in world.last().hooks] == [hook]
            assert world.dispatched[-1][5] == "off"
            assert PROGRAMMATIC not in world.driver.launches[-1].attributes


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_each_call_asks_for_its_function(name: str, world: World) -> None:
    x, out = drawn(ROWS, COLS), cupy_array(np.zeros((ROWS, COLS), "f4"))
    for options in ({}, {"tune": "off"}, {"scale": 1.0}):
        call = getattr(softgen, name)
        assert call(x, out=out, **options) is out
        assert world.driver.names[-1] == name
        y, lse = call(x, return_lse=True, **options)
        assert world.driver.names[-1] == f"{name}_lse"
        np.testing.assert_array_equal(y, out)
        np.testing.assert_allclose(lse, softgen.logsumexp(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["logsumexp", "entropy"])
def test_axes_are_kept_also_where_dim_names_them(name: str, world: World) -> None:
    x, of = drawn(2, 3, 4), getattr(softgen, name)
    for axis, shape in ((0, (1, 3, 4)), (-1, (2, 3, 1)), ((0, 1), (1, 1, 4)), (None, (1, 1, 1))):
        assert of(x, axis, keepdim=True).shape == shape
        assert of(x, axis, keepdim=True, tune="off").shape == shape
        if axis is not None:
            assert of(x, dim=axis, keepdim=True).shape == shape


@every
def test_a_signature_names_the_options(name: str) -> None:
    """Of the call itself; help() says them by their class, which documents each."""
    of = getattr(softgen, name)
    parameters = inspect.signature(of).parameters
    assert [*parameters][-1] == "options"
    kind = parameters["options"].annotation.removeprefix("Unpack[").removesuffix("]")
    assert kind in ("Options", "AxisOptions", "HookedOptions", "HookedAxisOptions")
    hooked = name in (*WITH_HOOKS, *WITH_SOME_HOOKS)
    assert ("Axis" in kind, "Hooked" in kind) == (name in WITH_AXIS, hooked)
    assert ("axis" in parameters) == (name in WITH_AXIS)
    assert not {*AxisOptions.__annotations__, *HookOptions.__annotations__} & {*parameters}
    text = pydoc.plain(pydoc.render_doc(of))
    first = text.splitlines()[2]
    assert first.startswith(f"{name}(")
    assert f"**options: 'Unpack[{kind}]'" in text


@pytest.mark.parametrize("kind", [Options, AxisOptions, HookOptions])
def test_each_option_is_documented(kind: Any) -> None:
    documented = inspect.getdoc(kind) or ""
    own = {*kind.__annotations__} - ({*Options.__annotations__} if kind is AxisOptions else set())
    assert all(f"\n    {option}: " in documented for option in own)
