"""What a planned kernel says of arrays that do not fit it, and which calls its advice names."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

import softgen
import softgen.call.plan as planning
from softgen.call.kernel import Kernel
from softgen.call.kernels import INVARIANT
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.errors import InvalidTypeError
from softgen.problems.arch import arch_named
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import best_guess


def kernel_of(function: Function | str) -> Kernel:
    """Return a kernel that no GPU has loaded."""
    variant = best_guess(Problem.of(function, "float32", 1000), 64, arch_named("sm_90"))
    return Kernel(LoadedKernel(variant, render(variant), 0, None, 32, 0))


TOO_MANY = {"softmax": 3, "softmax_lse": 3, "logsumexp": 3, "partial": 4, "finish": 5, "merge": 5}
TAKES = {
    "softmax": "takes x and returns y",
    "softmax_lse": "takes x and returns y and lse",
    "logsumexp": "takes x and returns lse",
    "partial": "takes x and returns maxima and sums",
    "finish": "takes x, maxima, sums and returns y",
    "merge": "takes ms, ds and returns maxima and sums",
}


@pytest.mark.parametrize("name", list(TAKES))
def test_a_wrong_number_of_arrays_is_told(name: str) -> None:
    kernel, given = kernel_of(name), TOO_MANY[name]
    inputs = TAKES[name].partition("takes ")[2].partition(" and")[0]
    with pytest.raises(InvalidTypeError) as error:
        kernel(*["array"] * given)
    assert str(error.value) == (
        f"a kernel of {name} {TAKES[name]}; it was called with {given} arrays. Call "
        f"kernel({inputs}), or kernel({inputs}, out)"
    )


@pytest.mark.parametrize(
    ("arrays", "out", "told"),
    [
        (("x",), None, "called with 1 array. Call"),
        (("x", "m"), None, "called with 2 arrays. Call"),
        (("x", "m"), "y", "called with 2 arrays and out=. Call"),
        (("x", "m", "d", "y"), "y", "called with 4 arrays and out=. Call"),
    ],
)
def test_finish_takes_the_pair_of_its_rows(
    arrays: tuple[str, ...], out: str | None, told: str
) -> None:
    with pytest.raises(InvalidTypeError, match=told):
        kernel_of("finish")(*arrays, out=out)


def test_arrays_arrive_as_the_function_names_them() -> None:
    for name, inputs in (("softmax", 1), ("partial", 1), ("finish", 3)):
        kernel = kernel_of(name)
        given = tuple("xmd"[:inputs])
        seen: list[Any] = []
        kernel._calls[str] = lambda *request, seen=seen: seen.append(request)
        kernel(*given)
        kernel(*given, "out")
        kernel(*given, out="out")
        kernel(*given, None)
        assert [(x, out, rest) for x, out, *_, rest in seen] == [
            ("x", None, given[1:]),
            ("x", "out", given[1:]),
            ("x", "out", given[1:]),
            ("x", None, given[1:]),
        ]


@pytest.mark.parametrize("function", [each for each in all_functions() if each.call], ids=str)
def test_advice_names_calls_that_there_are(function: Function) -> None:
    name, _, arguments = function.call.removeprefix("softgen.").partition("(")
    assert callable(getattr(softgen, name))
    parameters = inspect.signature(getattr(softgen, name)).parameters
    for argument in arguments.removesuffix(")").split(", "):
        assert argument.partition("=")[0] in parameters
    advice = kernel_of(function)._or_call(", or call {}")
    assert advice == f", or call {function.call}"


def test_what_has_no_call_of_kernels() -> None:
    """softgen.merge takes pieces as arrays of their own; others are softgen.distributed's."""
    silent = [str(each) for each in all_functions() if not each.call and not each.twin]
    ours = ["cross_entropy_backward_shard", "merge", "merge_losses", "partial_target"]
    assert sorted(silent) == ours


def test_a_function_without_a_call_of_its_own_is_not_advised() -> None:
    class Mine(type(Function.of("logsumexp"))):  # type: ignore[misc]
        call = ""

    kernel = kernel_of("logsumexp")
    object.__setattr__(kernel.variant.problem, "function", Mine())
    assert kernel._or_call(", or call {}") == ""


@pytest.mark.parametrize(
    ("environment", "given", "invariant"),
    [("", None, False), ("1", None, True), ("1", False, False), ("", True, True)],
)
def test_batch_invariant_is_what_was_given_else_what_the_environment_says(
    environment: str, given: bool | None, invariant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, asked = kernel_of("softmax").loaded, []

    def kernel_for(problem: Problem, rows: int, device: int, mode: str, variant: Any) -> Any:
        asked.append((problem.fixed_order, mode))
        return loaded

    runtime = SimpleNamespace(getDevice=lambda: 0)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(planning, "require_device", lambda: cupy)
    monkeypatch.setattr(planning, "kernel_for", kernel_for)
    monkeypatch.setenv("SOFTGEN_BATCH_INVARIANT", environment)
    kernel = planning.plan("softmax", "float32", 1001, tune="off", batch_invariant=given)
    assert kernel.loaded is loaded
    assert asked == [(invariant, INVARIANT if invariant else "off")]
