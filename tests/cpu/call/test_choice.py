"""Which kernel a call gets: what no timing moves, and what follows where a choice will not do."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.call import kernels as chosen
from softgen.errors import CompileError, InvalidValueError, LaunchError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.source.render import Source
from softgen.strategies.variants import Variant, best_guess, candidates
from softgen.strategies.winners import winner, winner_for_any_rows
from softgen.tuning import policy
from softgen.tuning.policy import NOMINAL_ROWS, choose_invariant, others

H200 = arch_named("sm_90")


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "arch_of", lambda device: H200)
    monkeypatch.setattr(chosen, "_for_fewer", {})


def problem_of(cols: int, dtype: str = "float32", **options: Any) -> Problem:
    return Problem.of("softmax", dtype, cols, **options)


# What is the same for any number of rows


def test_the_shipped_winner_of_many_rows_stands_for_any() -> None:
    problem = problem_of(2097152)
    shipped = winner(problem, 128, H200)
    assert shipped is not None
    assert winner_for_any_rows(problem, H200) == shipped
    assert (
        choose_invariant(problem, 0).variant == shipped != best_guess(problem, NOMINAL_ROWS, H200)
    )


def test_a_winner_of_few_rows_does_not() -> None:
    """At float32 128 x 1024 the launch decides, not the memory."""
    problem = problem_of(1024)
    assert winner(problem, 128, H200) is not None
    assert winner_for_any_rows(problem, H200) is None
    assert choose_invariant(problem, 0).variant == best_guess(problem, NOMINAL_ROWS, H200)


def test_log_softmax_takes_softmaxs() -> None:
    problem = Problem.of("log_softmax", "bfloat16", 128256)
    found = winner_for_any_rows(problem, H200)
    assert found is not None
    assert found.problem == problem


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("cols", [1, 7, 77, 1001, 1026, 4097, 12671, 50257, 151937, 1000001])
def test_odd_widths_have_a_choice_of_fixed_order(cols: int, dtype: str) -> None:
    problem = problem_of(cols, dtype, fixed_order=True)
    choice = choose_invariant(problem, 0).variant
    choice.check(H200)
    assert choice.problem.fixed_order == (problem.alignment < problem.dtype.max_pack)


def test_every_architecture_has_one() -> None:
    for name in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120"):
        arch = arch_named(name)
        for cols in (77, 4097, 50257, 1000001):
            problem = problem_of(cols, "bfloat16", fixed_order=True)
            best_guess(problem, NOMINAL_ROWS, arch).check(arch)


# What follows


class FakeKernels:
    """Compiles nothing; some settings are refused, spill, or do not fit a stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: set[str] = set()
        self.spilling: set[str] = set()
        self.fitting: set[str] = set()
        self.compiled: list[str] = []
        monkeypatch.setattr(chosen, "source_of", lambda variant: SimpleNamespace(variant=variant))
        monkeypatch.setattr(chosen, "compile_source", self.compile)

    def compile(self, source: Source) -> Any:
        variant = source.variant
        self.compiled.append(variant.strategy.label)
        if variant.strategy.label in self.refused:
            raise CompileError(f"this device holds no {variant.strategy.label}")
        return self.of(variant)

    def of(self, variant: Variant) -> Any:
        label = variant.strategy.label
        return SimpleNamespace(
            variant=variant,
            device=0,
            local_bytes=8 * (label in self.spilling),
            fitting_launcher=lambda rows, stream, library, pdl: label in self.fitting or None,
        )


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> FakeKernels:
    return FakeKernels(monkeypatch)


def guesses(problem: Problem, rows: int) -> list[Variant]:
    return list(candidates(problem, rows, H200))


def test_others_are_the_candidates_but_the_first() -> None:
    problem = problem_of(4096)
    first, second, *rest = guesses(problem, 4096)
    assert list(others(first, 4000, 0)) == [second, *rest]
    assert list(others(second, 4000, 0)) == [first, *rest]


def test_a_guess_that_spills_gives_way_to_the_next(kernels: FakeKernels) -> None:
    first, second, third, *_ = guesses(problem_of(4096), 4096)
    kernels.spilling = {first.strategy.label, second.strategy.label}
    assert chosen._compiled(first, 4096, 0).variant == third


def test_so_does_one_that_the_device_does_not_hold(kernels: FakeKernels) -> None:
    first, second, *_ = guesses(problem_of(131072), 128)
    assert first.launch.cluster_size == 16
    kernels.refused = {first.strategy.label}
    assert chosen._compiled(first, 128, 0).variant == second


def test_where_all_spill_it_is_the_first(kernels: FakeKernels) -> None:
    found = guesses(problem_of(4096), 4096)
    kernels.spilling = {variant.strategy.label for variant in found}
    assert chosen._compiled(found[0], 4096, 0).variant == found[0]
    assert len(kernels.compiled) == chosen.MOST_GUESSES


def test_where_all_are_refused_the_first_refusal_is_raised(kernels: FakeKernels) -> None:
    found = guesses(problem_of(4096), 4096)
    kernels.refused = {variant.strategy.label for variant in found}
    with pytest.raises(CompileError, match=f"holds no {found[0].strategy.label}$"):
        chosen._compiled(found[0], 4096, 0)


def fewer(kernels: FakeKernels, first: Variant, choice: str | None = None) -> Any:
    library: Any = None
    return chosen.launch_on_fewer(
        kernels.of(first), 128, 7, library, choice, LaunchError("too large"), pdl=True
    )


def test_a_grid_that_can_be_cut_is(kernels: FakeKernels) -> None:
    first = next(candidates(problem_of(2097152), 128, H200, "cooperative"))
    kernels.fitting = {first.strategy.label}
    assert fewer(kernels, first) is True
    assert kernels.compiled == []


def test_else_the_next_variant_runs_that_fits(kernels: FakeKernels) -> None:
    """One of each size of group is tried: where a cluster of 16 does not fit, no other does."""
    first, *rest = guesses(problem_of(131072), 128)
    kernels.fitting = {v.strategy.label for v in rest if v.launch.cluster_size <= 4}
    kernels.fitting -= {v.strategy.label for v in rest if v.launch.cooperative}
    assert fewer(kernels, first) is True
    sizes = [chosen._group(v) for v in rest if v.strategy.label in kernels.compiled]
    assert len(sizes) == len(set(sizes)) == len(kernels.compiled)
    kernels.compiled.clear()
    assert fewer(kernels, first) is True
    assert kernels.compiled == []  # it is known now


def test_a_kernel_asked_for_by_name_is_not_replaced(kernels: FakeKernels) -> None:
    first = next(candidates(problem_of(131072), 128, H200, "cluster"))
    with pytest.raises(LaunchError, match="needs more SMs at once than its stream has"):
        fewer(kernels, first, "cluster")
    assert kernels.compiled == []


# SOFTGEN_DEBUG


class FakeRequests:
    """kernel_for on an H200 where nothing is compiled, and each look at the environment counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks = 0
        monkeypatch.setattr(chosen, "_kernels", {})
        monkeypatch.setattr(chosen, "arch_of", lambda device: H200)
        monkeypatch.setattr(policy, "environment", lambda device: {"device": "NVIDIA H200"})
        debugging = policy.debugging

        def counted() -> bool:
            self.looks += 1
            return debugging()

        monkeypatch.setattr(chosen, "debugging", counted)


@pytest.fixture
def requests(kernels: FakeKernels, monkeypatch: pytest.MonkeyPatch) -> FakeRequests:
    return FakeRequests(monkeypatch)


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines on stderr without the seconds at their ends."""
    lines = capsys.readouterr().err.splitlines()
    return [re.sub(r", \d+\.\d{3} s$", "", line) for line in lines]


def test_a_choice_is_one_line(
    requests: FakeRequests, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOFTGEN_DEBUG", "1")
    problem = problem_of(1000)
    guess = best_guess(problem, 64, H200).strategy.label
    chosen.kernel_for(problem, 60, 0, "off", None)
    assert told(capsys) == [
        f"softgen: softmax_f32_1000 for 60 rows on NVIDIA H200: {guess}, best guess"
    ]
    chosen.kernel_for(problem, 64, 0, "off", None)
    assert told(capsys) == []  # the same bucket of rows: nothing is chosen
    chosen.kernel_for(problem, 64, 0, "off", "safe_b256")
    assert told(capsys) == [
        "softgen: softmax_f32_1000 for 64 rows on NVIDIA H200: safe_b256, asked for"
    ]
    wide = problem_of(2097152)
    shipped = winner(wide, 128, H200)
    assert shipped is not None
    chosen.kernel_for(wide, 3, 0, chosen.INVARIANT, None)
    chosen.kernel_for(wide, 128, 0, "on", None)
    assert told(capsys) == [
        f"softgen: softmax_f32_2097152 for {rows} rows on NVIDIA H200: {shipped.strategy.label}, "
        f"shipped{tail}"
        for rows, tail in ((4096, " for any number of rows"), (128, ""))
    ]


def test_a_choice_that_gives_way_is_named(
    requests: FakeRequests,
    kernels: FakeKernels,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SOFTGEN_DEBUG", "1")
    first, second, *rest = guesses(problem_of(131072), 128)
    kernels.spilling = {first.strategy.label}
    chosen.kernel_for(first.problem, 128, 0, "off", None)
    assert told(capsys) == [
        f"softgen: softmax_f32_131072 for 128 rows on NVIDIA H200: {second.strategy.label}, best "
        f"guess, in place of {first.strategy.label}, which spills or does not fit"
    ]
    kernels.fitting = {v.strategy.label for v in rest if v.launch.cluster_size == 1}
    assert fewer(kernels, first) is True
    (line,) = told(capsys)
    assert line.endswith(f", the stream has too few SMs for {first.strategy.label}")


def test_nothing_is_told_or_looked_up_unasked(
    requests: FakeRequests, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(5):
        chosen.kernel_for(problem_of(1000), 64, 0, "off", None)
    assert requests.looks == 1
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("SOFTGEN_DEBUG", "loud")
    with pytest.raises(InvalidValueError, match="SOFTGEN_DEBUG must be 0 or 1, got 'loud'"):
        chosen.kernel_for(problem_of(1001), 64, 0, "off", None)
