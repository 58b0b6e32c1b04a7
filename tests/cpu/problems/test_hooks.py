"""What hooks are, without a kernel: places of broadcast arrays, the generator, the reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from softgen.errors import InvalidTypeError, InvalidValueError, SoftgenError
from softgen.problems.arch import arch_named
from softgen.problems.exact import exact_results
from softgen.problems.functions import all_functions
from softgen.problems.functions.cross_entropy import CrossEntropyGrad
from softgen.problems.hooks.base import Hook, OfFunction
from softgen.problems.hooks.dropout import bits_of, kept_scale_of, threshold_of
from softgen.problems.hooks.known import ARGUMENTS, HOOKS, hook_named
from softgen.problems.hooks.places import place_of
from softgen.problems.hooks.target import Target
from softgen.problems.numerics import check, decode, encode, hook_examples, varied_inputs
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import best_guess

H200 = arch_named("sm_90")


def test_places_are_those_of_numpys_broadcast() -> None:
    """Of every way to broadcast up to four axes; what has no place are three groups that step."""
    rows = (2, 3, 4, 5)
    without = []
    for shape in itertools.product(*((1, length) for length in rows)):
        array = np.arange(np.prod(shape)).reshape(shape)
        strides = [stride // array.itemsize for stride in array.strides]
        place = place_of(shape, strides, rows)
        if place is None:
            without.append(shape)
            continue
        wanted = np.broadcast_to(array, rows).reshape(-1)
        assert (place.of(np.arange(wanted.size)) == wanted).all(), shape
    assert without == [(2, 1, 4, 1)]


def test_lines_of_a_slice_have_places() -> None:
    whole = np.arange(4 * 6 * 8).reshape(4, 6, 8)
    part = whole[::2, 1:5, :3]
    strides = [stride // 8 for stride in part.strides[:2]]
    place = place_of((2, 4), strides, (2, 4))
    assert place is not None
    at = place.of(np.arange(8)) + 8  # the slice begins at whole[0, 1]
    assert (whole.reshape(-1)[at] == part[..., 0].reshape(-1)).all()


def test_the_generator_is_philox() -> None:
    """The first of the known answers of Random123, for philox4x32 with 7 rounds."""
    bits = bits_of(np.arange(8, dtype=np.uint64), 0, 0).astype("<u2")
    assert bits.view("<u4").tolist() == [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]


def test_dropout_keeps_what_it_should() -> None:
    """Of 400000 elements, a row's neighbours too; the standard deviation is 0.0007."""
    bits = bits_of(np.arange(400000, dtype=np.uint64), 7, 9)
    kept = bits >= threshold_of(0.3)
    assert abs(kept.mean() - 0.7) < 0.003
    for distance in (1, 2, 8):
        assert abs((kept[distance:] & kept[:-distance]).mean() - 0.49) < 0.004
    assert (bits_of(np.arange(8, dtype=np.uint64), 7, 10) != bits[:8]).all()
    assert [threshold_of(p) for p in (0.0, 2**-18, 0.1, 1.0)] == [0, 0, 6554, 65536]
    assert kept_scale_of(6554) * (65536 - 6554) / 65536 == 1
    assert kept_scale_of(65536) == 0


def test_dropout_is_verified_with_all_kept_as_they_are_and_with_none() -> None:
    """With p = 1 it is the threshold alone that makes results 0: they are times 1."""
    problem = Problem.of("softmax", "float64", 40, hooks=["dropout"])
    x = np.random.default_rng(0).standard_normal((6, 40))
    (plain,) = exact_results(problem.bare, [x])
    names = [operand.name for operand in problem.inputs]
    every, none = varied_inputs((x, *hook_examples(problem, 6)), problem)
    kept = list(none)
    kept[names.index("threshold")] = every[names.index("threshold")]
    for inputs, wanted in ((every, plain), (none, 0 * plain), (kept, plain)):
        (found,) = exact_results(problem, list(inputs))
        np.testing.assert_array_equal(found, wanted)


def test_the_reference_is_that_of_the_definition() -> None:
    problem = Problem.of(
        "softmax", "float64", 40, hooks=["scaleany", "biasf64", "causal", "sinkf64"]
    )
    x = np.random.default_rng(0).standard_normal((6, 40))
    given = [
        decode(v, o.dtype)
        for v, o in zip(hook_examples(problem, 6), problem.hook_operands, strict=True)
    ]
    (y,) = exact_results(problem, [x, *given])
    scale, bias, every, count, stride, *_, queries, offset, sink, sink_every, sink_count = given
    for row in range(6):
        line = bias.reshape(-1)[int(row // every % count * stride) :][:40]
        logits = x[row] * scale + line
        logits[int(row % queries + offset + 1) :] = -np.inf
        terms = np.exp(logits)
        wanted = terms / (terms.sum() + np.exp(sink[int(row // sink_every % sink_count)]))
        np.testing.assert_allclose(y[row], wanted, rtol=1e-13)


@pytest.mark.parametrize(
    "hook", [hook for hook in HOOKS if type(hook).slope is not Hook.slope], ids=str
)
def test_a_slope_is_the_derivative_and_a_gain_its_largest_size(hook: Hook) -> None:
    """Of what enters, by differences: each row of a number a row has its own."""
    values = [np.asarray(value) for value in hook.example(6, 40)]
    x = np.random.default_rng(0).standard_normal((6, 40)) * 4
    step = 1e-5
    wanted = (hook.enter(x + step, *values) - hook.enter(x - step, *values)) / (2 * step)
    slopes = np.broadcast_to(hook.slope(hook.enter(x, *values), *values), x.shape)
    np.testing.assert_allclose(slopes, wanted, rtol=1e-9, atol=1e-9)
    largest = abs(slopes).max(axis=1, keepdims=True)
    np.testing.assert_allclose(np.broadcast_to(hook.gain(x, *values), (6, 1)), largest, rtol=0.01)


class Picking(Target):
    """A target that does not say when its element is read."""

    reads = OfFunction.reads


class WithPicking(CrossEntropyGrad):
    """Cross entropy with its gradient, by that target."""

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        return (Picking(gradient=True),)


@pytest.mark.parametrize("strategy", ["warp", "online", "safe"])
def test_an_element_that_is_picked_is_read_with_what_belongs_to_its_row(strategy: str) -> None:
    """As the target's is, which a function that writes over its row has to have before."""
    texts = [
        render(best_guess(Problem.of(function, "float32", 1000), 64, H200, strategy)).text
        for function in (WithPicking(), CrossEntropyGrad())
    ]
    assert texts[0] == texts[1]
    assert "state.logit = " in texts[0]


def test_an_inexact_hook_has_its_bound_and_no_more() -> None:
    problem = Problem.of("softmax", "float32", 8, hooks=["softcap"])
    x = np.full((1, 8), 25.0, np.float32)
    x[0, 0] = 24.0
    cap = (np.array(30.0, np.float32),)
    (exact,) = exact_results(problem, [x.astype(np.float64), *cap])
    capped = 30 * np.tanh(25 / 30)
    off = 4.25 * 2**-23 * capped
    for error, ok in ((2e-6 + off * 0.9, True), (2e-6 + off * 1.3, False)):
        wrong = exact.copy()
        wrong[0, 0] *= 1 + error
        assert check((wrong.astype(np.float32),), (x, *cap), problem).ok is ok


def test_names_are_one_to_one_and_say_what_is_close() -> None:
    assert len({hook.name for hook in HOOKS}) == len(HOOKS) == 25
    with pytest.raises(InvalidValueError, match=r"unknown hook 'biasfp32'; did you mean 'bias'"):
        hook_named("biasfp32")
    kinds = {hook.kind for hook in HOOKS}
    assert {hook_named(name).kind for name in ARGUMENTS} == kinds
    assert hook_named("bias").name == "biasf32"
    with pytest.raises(InvalidValueError, match=r"'scale=2' gives a hook a value.*is 'scale'"):
        Problem.of("softmax", "float32", 8, hooks=["scale=2"])
    with pytest.raises(InvalidTypeError, match=r"a list of names, got 'scale'; give \['s"):
        Problem.of("softmax", "float32", 8, hooks="scale")
    with pytest.raises(InvalidValueError, match="one hook of a kind at most, got scale, scalerow"):
        Problem.of("softmax", "float32", 8, hooks=["scalerow", "scale"])
    with pytest.raises(InvalidValueError, match="bool does not hold"):
        encode([2], hook_named("mask").operands(Problem.of("softmax", "float32", 8).dtype)[0].dtype)


def test_no_two_operands_have_one_name() -> None:
    """They are parameters of one kernel, and arguments of one C++ function."""
    seen = 0
    for function, hook, layout in itertools.product(
        all_functions(), HOOKS, ("", "in8", "strided3")
    ):
        try:
            problem = Problem.of(function, "float32", 128, hooks=[hook], layout=layout)
        except SoftgenError:  # not together
            continue
        names = [operand.name for operand in problem.operands]
        assert len({*names, "rows", "cols", "workspace"}) == len(names) + 3, problem.label
        seen += 1
    assert seen > 500
