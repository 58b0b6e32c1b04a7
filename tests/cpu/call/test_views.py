"""Calls on views: where a launch finds their rows, what is copied, and what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen.call import views
from softgen.call.cupy_library import CupyLibrary
from softgen.call.kernel import Kernel
from softgen.call.views import share_memory
from softgen.errors import InvalidValueError
from softgen.problems.layouts import ROWS, Strided
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.select import select
from softgen.strategies.variants import Variant, best_guess
from softgen.tuning import cache, policy
from softgen.tuning.entry import Key
from tests.helpers.cupy_calls import ARCH, World, cupy_array, zeros
from tests.helpers.driver import POISON, FakeKernel


def softmax(x: Any) -> Any:
    e = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


BASE = cupy_array(np.random.default_rng(0).standard_normal((6, 4, 5, 48)).astype("float32"))

# Each view, how many outer axes are left, and the alignment of its rows in elements.
VIEWS: dict[str, tuple[Callable[[Any], Any], str, int]] = {
    "the first columns": (lambda b: b.reshape(120, 48)[:, :32], "strided1", 4),
    "the first columns, odd": (lambda b: b.reshape(120, 48)[:, :33], "strided1", 1),
    "columns within": (lambda b: b.reshape(120, 48)[:, 6:38], "strided1", 2),
    "every second row": (lambda b: b.reshape(120, 48)[::2], "strided1", 4),
    "rows that go down": (lambda b: b.reshape(120, 48)[::-1], "strided1", 4),
    "axes that join": (lambda b: b[:, :, :, :40], "strided1", 4),
    "one of a batch's": (lambda b: b[:, 1, 2], "strided1", 4),
    "a slice of a batch": (lambda b: b[:, :2], "strided2", 4),
    "two axes": (lambda b: b[:, :, ::2], "strided2", 4),
    "two that are swapped": (lambda b: b.swapaxes(0, 1), "strided3", 4),
    "three axes": (lambda b: b[::-2, ::3, ::2], "strided3", 4),
    "a broadcast row": (lambda b: np.broadcast_to(b[0, 0, 0], (7, 48), subok=True), "strided1", 4),
    "one row of another array": (lambda b: b[0, 0, :1, :17], "", 1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_read_where_it_lies(name: str, world: World) -> None:
    view, layout, alignment = VIEWS[name]
    x = view(BASE)
    for _ in range(3):
        y = world("softmax", x)
        assert y.flags.c_contiguous
        assert y.shape == x.shape
        np.testing.assert_allclose(y, softmax(x), rtol=1e-6)
    assert (world.last().layout.label, world.last().alignment) == (layout, alignment)
    assert (world.copied, world.cold, world.made) == (0, 1, 3)


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "a broadcast row"])
def test_a_view_is_written_where_it_lies_and_what_is_between_stays(name: str, world: World) -> None:
    view = VIEWS[name][0]
    x, memory = view(BASE), cupy_array(np.full_like(BASE, POISON))
    out = view(memory)
    for _ in range(2):
        out[...] = 0
        assert world("softmax", x, out=out) is out
        np.testing.assert_allclose(out, softmax(x), rtol=1e-6)
    out[...] = POISON
    assert (memory == POISON).all()
    assert world.made == world.copied == 0
    assert world.cold == 1
    contiguous = cupy_array(x)
    world("softmax", contiguous, out=out)
    np.testing.assert_allclose(out, softmax(x), rtol=1e-6)
    out[...] = POISON
    assert (memory == POISON).all()


@pytest.mark.parametrize("name", [name for name in VIEWS if name != "a broadcast row"])
def test_a_view_in_place(name: str, world: World) -> None:
    memory = BASE.copy()
    x = VIEWS[name][0](memory)
    wanted = softmax(x)
    between = memory.copy()
    VIEWS[name][0](between)[...] = 0
    assert world("softmax", x, out=x) is x
    np.testing.assert_allclose(x, wanted, rtol=1e-6)
    x[...] = 0
    assert (memory == between).all()
    assert world.made == world.copied == 0


def test_a_warm_call_is_for_the_same_strides_alone(world: World) -> None:
    rows = BASE.reshape(120, 48)
    world("softmax", rows[:60, :32])
    world("softmax", rows[60:, 8:40])  # as far apart, and as aligned
    assert world.cold == 1
    for other in (rows[::2, :32], rows[60:, 2:34], zeros(60, 40)[:, :32]):
        y = world("softmax", other)
        np.testing.assert_allclose(y, softmax(other), rtol=1e-6)
    assert world.cold == 4
    assert len(world.variants) == 4


def test_a_warm_call_checks_where_the_result_lies(world: World) -> None:
    memory = zeros(20, 96)
    memory[...] = np.random.default_rng(1).standard_normal(memory.shape)
    left, right = memory[:, :32], memory[:, 48:80]
    world("softmax", left, out=right)
    wanted = softmax(left)
    world("softmax", left, out=right)  # the same distance
    assert world.cold == 1
    np.testing.assert_allclose(right, wanted, rtol=1e-6)
    other = zeros(40, 96)
    world("softmax", left, out=other[:20, :32])  # far off
    assert world.cold == 1
    with pytest.raises(InvalidValueError, match="out overlaps x without being x"):
        world("softmax", left, out=memory[:, 16:48])
    assert world.cold == 2


APART = {
    "rows in turns": lambda b: (b[::2], b[1::2]),
    "halves of rows": lambda b: (b[:, :24], b[:, 24:]),
    "odd parts of rows": lambda b: (b[:, :17], b[:, 18:35]),
    "halves of a batch": lambda b: (b.reshape(6, 20, 48)[:, :10], b.reshape(6, 20, 48)[:, 10:]),
}
OVERLAPPING = {
    "rows that are shared": lambda b: (b[:-2:2], b[2::2]),
    "columns that are shared": lambda b: (b[:, :24], b[:, 23:47]),
    "other rows of one": lambda b: (b[:60], b[::2]),
    "a view of itself, backwards": lambda b: (b, b[::-1]),
}


@pytest.mark.parametrize("name", APART)
def test_x_and_its_result_may_lie_between_each_other(name: str, world: World) -> None:
    memory = BASE.copy().reshape(120, 48)
    x, out = APART[name](memory)
    before, wanted = x.copy(), softmax(x)
    world("softmax", x, out=out)
    np.testing.assert_allclose(out, wanted, rtol=1e-6)
    assert (x == before).all()


@pytest.mark.parametrize("name", OVERLAPPING)
def test_x_and_its_result_may_not_share_an_element(name: str, world: World) -> None:
    memory = BASE.copy().reshape(120, 48)
    x, out = OVERLAPPING[name](memory)
    with pytest.raises(InvalidValueError, match=r"pass x itself \(in place\), a view that has no"):
        world("softmax", x, out=out)
    assert (memory == BASE.reshape(120, 48)).all()
    assert world.variants == []


def test_sharing_memory_is_told_to_the_byte(world: World) -> None:
    library = CupyLibrary()
    memory = zeros(8, 10)
    assert not share_memory(library, memory[:, :5], memory[:, 5:])
    assert share_memory(library, memory[:, :5], memory[:, 4:])
    halves = memory[:, :5].view("f2")
    assert not share_memory(library, halves, memory[:, 5:])
    assert share_memory(library, halves, memory[:, 4:])
    assert not share_memory(library, memory[:0], memory[:0])


COPIED: dict[str, Callable[[Any], Any]] = {
    "every second column": lambda b: b[..., ::2],
    "the last axis is another": lambda b: b.swapaxes(2, 3),
    "columns that go down": lambda b: b[..., ::-1],
    "four axes": lambda b: b.reshape(3, 2, 2, 2, 5, 48)[:2, :, 0, :, ::2].swapaxes(0, 2),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_no_kernel_takes_is_copied_and_told(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOFTGEN_DEBUG", "1")
    x = COPIED[name](BASE)
    first = next(views._copies)
    for _ in range(2):
        np.testing.assert_allclose(world("softmax", x), softmax(x), rtol=1e-6)
    assert (world.copied, world.cold) == (2, 2)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert (
        f"softgen: copied an input of shape {x.shape} and strides {x.strides} in bytes" in told[0]
    )
    assert told[1].endswith(f"{first + 2} such copies so far")
    out = COPIED[name](cupy_array(np.full((6, 4, 5, 48), POISON, "f4")))
    assert world("softmax", cupy_array(x), out=out) is out
    np.testing.assert_allclose(out, softmax(x), rtol=1e-6)
    assert world.copied == 2


def test_x_is_read_in_place_where_only_the_result_is_copied(world: World) -> None:
    x = BASE[:, :2]
    out = zeros(6, 2, 5, 96)[..., ::2]
    world("softmax", x, out=out)
    np.testing.assert_allclose(out, softmax(x), rtol=1e-6)
    assert world.last().layout == Strided(2)
    assert world.copied == 0


def test_functions_of_rows(world: World) -> None:
    x = BASE[:, :, ::2]
    for _ in range(2):
        y, lse = world("log_softmax_lse", x)
        assert lse.shape == x.shape[:-1]
        assert lse.flags.c_contiguous
        np.testing.assert_allclose(np.exp(y), softmax(x), rtol=1e-5)
    assert (world.cold, world.last().layout) == (1, Strided(2))
    for _ in range(2):
        np.testing.assert_allclose(world("logsumexp", x), lse, rtol=1e-6)
    assert world.cold == 2
    m, d = x.max(-1), np.exp(x - x.max(-1, keepdims=True)).sum(-1)
    for _ in range(2):
        np.testing.assert_allclose(world("finish", x, m, d), softmax(x), rtol=1e-5)
    assert world.cold == 3
    out = zeros(6, 4, 3, 96)[..., :48]
    for _ in range(2):
        np.testing.assert_allclose(world("finish", x, m, d, out=out), softmax(x), rtol=1e-5)
        assert world.cold == 4


def test_both_inputs_of_a_gradient_may_be_views(world: World) -> None:
    dy = BASE[:, :, :3:2]
    y = softmax(cupy_array(BASE.swapaxes(0, 1))).astype("f4").swapaxes(0, 1)[:, :, 1::2]
    wanted = y * (dy - (dy * y).sum(-1, keepdims=True))
    for _ in range(2):
        np.testing.assert_allclose(world("softmax_backward", dy, y), wanted, rtol=1e-4, atol=1e-6)
    assert (world.cold, world.copied, world.last().layout) == (1, 0, Strided(3))
    other = cupy_array(y)
    np.testing.assert_allclose(world("softmax_backward", dy, other), wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(InvalidValueError, match="out overlaps y"):
        world("softmax_backward", dy, y, out=y)
    memory = zeros(6, 4, 2, 96)
    memory[..., 48:] = y
    for _ in range(2):
        world("softmax_backward", dy, memory[..., 48:], out=memory[..., :48])
        np.testing.assert_allclose(memory[..., :48], wanted, rtol=1e-4, atol=1e-6)
    crossed = np.lib.stride_tricks.as_strided(memory[..., 48:], strides=memory.strides, subok=True)
    assert world.cold == 4
    with pytest.raises(InvalidValueError, match="out overlaps y"):
        world("softmax_backward", dy, crossed, out=memory[..., 8:56])
    skewed = zeros(6, 4, 3, 48)[:, :, ::2][..., ::-1]
    np.testing.assert_allclose(world("softmax_backward", dy, skewed), 0, atol=0)
    assert world.copied == 1


def test_a_choice_that_takes_no_views_has_them_copied(world: World) -> None:
    x = BASE[:, :2]
    for choice in ("recurrence", "softmax_f32_48_warp_p4_c8_g8_r1_pad_b128"):
        out = zeros(6, 2, 5, 96)[..., :48]
        np.testing.assert_allclose(
            world("softmax", x, variant=choice, out=out), softmax(x), rtol=1e-6
        )
        assert world.last().layout == ROWS
    assert world.copied == 2
    world("softmax", x, variant="warp")
    assert world.last().layout == Strided(2)


def test_the_kernel_is_that_of_contiguous_rows_and_nothing_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare = Problem.of("softmax", "bfloat16", 4096)
    wanted = list(best_guess(bare, 8192, ARCH, name) for name in ("online", "block"))
    stored: list[Any] = [None]
    keys: list[Any] = []

    def load(key: Any, arch: Any, quiet: bool = False) -> Any:
        keys.append(key)
        return stored[0]

    monkeypatch.setattr(policy, "arch_of", lambda device: ARCH)
    monkeypatch.setattr(policy, "environment", lambda device: None)
    monkeypatch.setattr(Key, "of", lambda problem, rows, environment: problem)
    monkeypatch.setattr(cache, "load", load)
    monkeypatch.setattr(policy, "_tune_and_log", lambda problem, rows: pytest.fail("tuned"))
    view = Problem.of("softmax", "bfloat16", 4096, layout=Strided(2))
    shipped = policy.choose(view, 8192, 0, "on")
    assert shipped.origin == "shipped"
    assert shipped.variant.strategy == policy.choose(bare, 8192, 0, "on").variant.strategy
    for variant in wanted:
        stored[0] = SimpleNamespace(winner=variant)
        found = policy.choose(view, 8192, 0, "on")
        assert found == (Variant(view, variant.strategy), "from the cache")
    assert set(keys) == {bare}
    stored[0] = None
    odd = Problem.of("softmax", "float32", 1234, layout=Strided(1))
    assert policy.choose(odd, 100, 0, "on").origin == "best guess"
    assert policy.choose(odd, 100, 0, "on").variant.problem == odd


def planned(variant: str, world: World) -> Kernel:
    named = select(Problem.of("softmax", "float32", 48, layout=Strided(2)), 60, ARCH, variant)
    loaded: Any = FakeKernel(named.problem, world.driver, named)
    return Kernel(loaded)


def test_a_plan_for_views(world: World) -> None:
    kernel = planned("warp", world)
    for x in (BASE[:, :, ::2], BASE[:, :2], BASE, BASE[:, 1], BASE[:, 1, 1]):
        for _ in range(2):
            np.testing.assert_allclose(kernel(x), softmax(x), rtol=1e-6)
        out = zeros(*x.shape[:-1], 64)[..., :48]
        np.testing.assert_allclose(kernel(x, out), softmax(x), rtol=1e-6)
        assert kernel(x, out) is out
    for x in (BASE[::2, ::3, ::2], zeros(4, 96)[:, ::2]):
        with pytest.raises(InvalidValueError, match=r"other axes join to 2 at most; x has strides"):
            kernel(x)
    assert world.copied == 0
    bare = best_guess(Problem.of("softmax", "float32", 48), 60, ARCH)
    loaded: Any = FakeKernel(bare.problem, world.driver, bare)
    with pytest.raises(InvalidValueError, match=r"plan with strided=1, 2 or 3 for views"):
        Kernel(loaded)(BASE[:, :2])


def test_batch_invariant_calls_copy_views_whose_rows_start_off_their_boundary(
    world: World,
) -> None:
    x = BASE.reshape(120, 48)[:, 6:38]
    np.testing.assert_allclose(world("softmax", x, batch_invariant=True), softmax(x), rtol=1e-6)
    assert (world.copied, world.last().layout) == (1, ROWS)
    x = BASE.reshape(120, 48)[:, :32]
    world("softmax", x, batch_invariant=True)
    assert world.copied == 1
    assert [v.problem.layout for v in world.variants[-3:]] == [Strided(1), ROWS, Strided(1)]


def test_a_batch_invariant_call_copies_views_that_have_another_kernel(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where that of contiguous rows leaves no registers for strides."""
    kernel_for = world.kernel_for

    def other(
        problem: Problem, rows: int, device: int, mode: str, choice: Any, library: Any
    ) -> Any:
        views = problem.layout != ROWS
        return kernel_for(problem, rows, device, mode, "safe" if views else "warp", library)

    monkeypatch.setattr(world, "kernel_for", other)
    x, out = BASE.reshape(120, 48)[:, :32], BASE.copy().reshape(120, 48)[:, :32]
    world("softmax", x, out=out, batch_invariant=True)
    np.testing.assert_allclose(out, softmax(x), rtol=1e-6)
    assert (world.copied, world.made, world.last().layout) == (1, 1, ROWS)


def test_texts_say_where_rows_are() -> None:
    text = render(best_guess(Problem.of("softmax", "float32", 48, layout="strided2"), 9, ARCH)).text
    assert "x: float32 [rows / size1][size1][48], strided\n" in text
    assert "aligned: x and y to 16 bytes (bases and strides)" in text
