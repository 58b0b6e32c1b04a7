"""softgen.verify: what it runs, that right kernels pass, and that wrong ones are told in words."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, Results
from softgen.errors import EmulationError, InvalidValueError
from softgen.problems import numerics
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.functions.token_log_probs import OfIds
from softgen.problems.hooks.known import HOOKS
from softgen.problems.layouts import Columns, Rows, Strided
from softgen.problems.numerics import Storage, decode, encode
from softgen.problems.shards import Shards
from softgen.source import render as render_module
from softgen.source.render import Source, render
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, parse_name
from softgen.verify import emulated
from softgen.verify import verify as verify_module
from softgen.verify.inputs import rows_of
from softgen.verify.matrix import MOST_VARIANTS, matrix
from softgen.verify.pairwise import pairwise
from softgen.verify.problems import CHOICES, SEVERAL_IDS, WIDE_WIDTHS, drawn_sets, problems
from softgen.verify.regimes import REGIMES
from softgen.verify.verify import Step, verify
from softgen.verify.ways import covering, own_ways
from tests.helpers.chosen import best_guesses
from tests.helpers.cover import cover
from tests.helpers.emulator_helpers import broken

README = Path(__file__).parents[3] / "README.md"


Inputs = Sequence[Storage]


def exact(source: Source, inputs: Inputs, x_offset: int, y_offset: int) -> Results:
    """Compute like a kernel without error."""
    problem = source.variant.problem
    values = [decode(v, o.dtype) for v, o in zip(inputs, problem.inputs, strict=True)]
    wide = problem.compute_dtype is DType.FLOAT64
    results = numerics.exact_results(problem, values, wide)
    return tuple(encode(v, o.dtype) for v, o in zip(results, problem.results, strict=True))


@functools.cache
def verified() -> list[Variant]:
    """Return a cover of the matrix, which `softgen verify` and the tests on a GPU take whole.

    Of wide rows, which take four times as long, one by each strategy.
    """
    every = best_guesses()
    narrow = [variant for variant in every if variant.problem.cols < min(WIDE_WIDTHS)]
    wide = {
        (variant.strategy.name, type(variant.problem.layout), variant.problem.fixed_order): variant
        for variant in every
        if variant.problem.cols >= min(WIDE_WIDTHS) and variant.problem.dtype is DType.BFLOAT16
    }
    return [*cover(narrow), *wide.values()]


def test_the_cover_has_every_strategy() -> None:
    assert len(verified()) <= 640  # with the pairs of hooks
    assert {variant.strategy.name for variant in verified()} == {k.name for k in all_strategies()}


@pytest.mark.parametrize("part", range(4))
def test_every_strategy_passes_on_the_emulator(part: int) -> None:
    steps: list[Step] = []
    chosen = verified()[part::4]
    report = verify(variants=[variant.name for variant in chosen], progress=steps.append)
    assert report.failures == []
    assert report.checked == len(chosen)
    assert report.failed == 0
    assert report.checked == sum(report.by_strategy.values()) == len(steps) - 1 == steps[-1].total
    assert report.worst["bfloat16"] <= 1
    assert report.worst["float16"] <= 1
    assert report.worst["float32"] <= 2e-6
    assert report.worst["float64"] <= 1e-14
    assert [step.done for step in steps] == list(range(len(steps)))
    assert {step.total for step in steps} == {report.checked}
    guess, left = steps[0].seconds_left, steps[-1].seconds_left
    assert guess is not None
    assert guess > verify_module._COMPILE_SECONDS * report.checked / (os.cpu_count() or 1)
    assert left is not None
    assert abs(left) < 0.01


def test_the_time_is_that_of_the_core_that_is_done_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are taken one by one, by the core that is free first."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(verify_module, "_work", float)
    start = verify_module._START_SECONDS
    batches: Any = [[2, 2], [1], [1, 1], [4]]
    assert verify_module._expected(batches) == start + max(4, 1 + 2 + 4)
    assert verify_module._expected([]) == start


def test_a_wrong_kernel_is_reported_by_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running maximum that starts at a finite number, as in some of the sources of this work."""

    def finite_start(variant: Variant) -> Source:
        source = render(variant)
        if variant.problem.dtype is not DType.FLOAT32 or variant.problem.cols != 100:
            return source
        return broken(source, "__int_as_float(0xff800000)", "-1e20f")

    monkeypatch.setattr(verify_module, "render", finite_start)
    safe = matrix(False, ["safe"], ["float32"], ["softmax", "log_softmax"])
    report = verify(variants=[v.name for v in safe if v.problem.cols in (33, 100)])
    assert report.failed == len(report.failures) == 2
    assert report.failures[1].startswith("softmax_f32_100_safe_b256_pdl1: regime ")
    assert "elements are off by more than 2e-06 (relative)" in report.failures[1]
    assert report.worst["float32"] == np.inf


def test_a_kernel_that_breaks_a_rule_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def racy(variant: Variant) -> Source:
        source = render(variant)
        hit = variant.problem.cols == 1000 and variant.problem.function.reduces
        return broken(source, "__syncthreads();", "") if hit else source

    monkeypatch.setattr(verify_module, "render", racy)
    some = [v for v in matrix(False, ["safe"], ["float64"]) if v.problem.cols in (33, 1000)]
    some = some[::3]
    report = verify(variants=[variant.name for variant in some])
    hit = sum(v.problem.cols == 1000 and v.problem.function.reduces for v in some)
    assert report.checked > report.failed == hit > 3
    assert all("race on shared memory" in failure for failure in report.failures)


def test_a_kernel_that_does_not_compile_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def ill(variant: Variant) -> Source:
        source = render(variant)
        if variant.problem.cols != 7 or variant.problem.function == SOFTMAX:
            return source
        return broken(source, 'extern "C"', '@ extern "C"')

    monkeypatch.setattr(verify_module, "render", ill)
    report = verify(variants=["safe"], dtypes=["float16"], functions=["log_softmax"])
    assert report.failed == 1
    assert "log_softmax_f16_7_safe" in report.failures[0]
    assert "refused the source" in report.failures[0]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_template_that_is_broken_fails_alone(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of softgen's own would be: its line is told, and the others are verified."""
    template = render_module.environment().from_string(
        "/*% if true %*/\n${ 1 // 0 }\n/*% endif %*/"
    )

    def torn(variant: Variant) -> Source:
        if variant.problem.cols == 33:
            template.render()
        return render(variant)

    monkeypatch.setattr(verify_module, "render", torn)
    names = ["softmax_f32_33_safe_b256", "softmax_f32_7_safe_b256"]
    report = verify(device=device, variants=names, runner=exact)
    assert (report.checked, report.failed) == (2, 1)
    (told,) = report.failures
    assert told.startswith(f"{names[0]}: ")
    assert "ZeroDivisionError: " in told


def test_an_interrupt_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(variant: Variant) -> Source:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify_module, "render", stop)
    with pytest.raises(KeyboardInterrupt):
        verify(device="cuda", variants=["softmax_f32_7_safe_b256"], runner=exact)


def test_a_runner_stands_for_the_gpu() -> None:
    offsets = set()

    def runner(source: Source, inputs: Inputs, x_offset: int, y_offset: int) -> Results:
        offsets.add((source.variant.problem.alignment == 1, x_offset, y_offset))
        if source.variant.problem.cols == 33:
            raise EmulationError("no such kernel")
        return exact(source, inputs, x_offset, y_offset)

    report = verify(device="cuda", variants=["safe"], runner=runner)
    assert offsets == {(True, 1, 3), (True, 1, 1), (False, 4, 4), (False, 2, 2), (False, 0, 0)}
    assert report.failed == sum("no such kernel" in failure for failure in report.failures) > 0
    assert report.checked > report.failed
    assert report.worst["float32"] < 1e-7


def test_a_failure_names_its_kernel_once() -> None:
    variant = parse_name("softmax_f32_8_safe_b256")
    jobs = [Job(render(variant), np.zeros((1, 8), np.float32), in_place=True)]
    failed = EmulationError(f"{variant.name}: thread 1 races")
    (verdict,) = emulated.verdicts_on(variant, jobs, [failed])
    assert verdict.objection == "in place: thread 1 races"


def test_no_launch_goes_without_a_verdict() -> None:
    variant = parse_name("softmax_f32_8_safe_b256")
    jobs = [Job(render(variant), np.zeros((1, 8), np.float32))] * 2
    with pytest.raises(ValueError, match="shorter"):
        emulated.verdicts_on(variant, jobs, [EmulationError("thread 1 races")])


def test_a_runner_that_loses_a_row_is_caught() -> None:
    def runner(source: Source, inputs: Inputs, x_offset: int, y_offset: int) -> Results:
        results = exact(source, inputs, x_offset, y_offset)
        for result in results:
            result[-1] = result[-2]
        return results

    names = [variant.name for variant in _safe_float32()]
    report = verify(device="cuda", variants=names, runner=runner)
    assert report.failed == report.checked - sum(v.problem.cols == 1 for v in _safe_float32())


def _safe_float32() -> list[Variant]:
    """One column: all rows of softmax are 1, so no row can be told from another.

    A hook may hide a row, as the one before it.
    """
    return [v for v in matrix(False, ["safe"], ["float32"]) if not v.problem.hooks]


def test_unknown_devices_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="'cpu' or 'cuda', got 'tpu'"):
        verify(device="tpu")


def test_the_input_has_every_regime_and_an_odd_number_of_rows() -> None:
    seen = set()
    # Inputs alike one after another: they are kept for a while.
    for variant in sorted(best_guesses(), key=lambda v: (v.problem.cols, v.problem.dtype)):
        x, names = rows_of(variant)
        assert len(x) == len(names)
        step = variant.problem.layout.step
        assert len(x) % 2 == 1 if step == 1 else len(x) % step == 0 and len(x) > step
        seen |= set(names)
    assert seen == set(REGIMES)


def test_the_matrix_covers_what_it_should() -> None:
    chosen = matrix(True, dtypes=["bfloat16"])  # of all types it takes four times as long
    assert len(chosen) <= MOST_VARIANTS
    assert len(set(chosen)) == len(chosen)
    every = [problem for problem in problems(every=True) if problem.dtype is DType.BFLOAT16]
    arch = arch_named("sm_90")
    others = {variant.problem for variant in (*pairwise(), *own_ways(arch))}
    assert set(every) <= {variant.problem for variant in chosen} <= {*every, *others}
    by_strategy = {(h.name, v.strategy.name) for v in chosen for h in v.problem.hooks}
    assert {hook for hook, _ in by_strategy} == {hook.name for hook in HOOKS}
    of_rows = {"warp", "block", "cluster", "shared", "split", "cooperative", "online", "safe"}
    assert {strategy for _, strategy in by_strategy} >= of_rows
    viewed = {v.problem.function for v in chosen if isinstance(v.problem.layout, Strided)}
    # Views of these are of other types.
    listed = {Function.of(name) for name, *_ in (*CHOICES, *SEVERAL_IDS)}
    assert viewed - listed == {p.function for p in every} - listed
    assert all(set(hooks) <= {hook.name for hook in HOOKS} for hooks in drawn_sets())
    assert drawn_sets() == drawn_sets()
    assert {1, 7, 32, 33, 100, 256, 1000, 1001} < {p.cols for p in problems()}
    assert max(p.cols for p in problems()) > 1024
    assert any(p.alignment == 1 and p.cols == 1000 for p in problems())
    pairs = {(p.dtype.short, p.out_dtype.short) for p in problems()}
    assert {("bf16", "f32"), ("f16", "f32"), ("f32", "f16"), ("f32", "bf16")} < pairs
    assert {v for v in best_guesses() if v.problem.dtype is DType.BFLOAT16} <= set(chosen)


def test_rows_of_several_ids_are_verified() -> None:
    """Of each function of them few, more than the threads of a warp hold of one, and the most."""
    counts: dict[str, set[int]] = {}
    several = []
    for variant in best_guesses():
        function = variant.problem.function
        if isinstance(function, OfIds):
            counts.setdefault(function.stem, set()).add(function.count)
            several += [variant] if function.count > 1 else []
    assert counts.pop("ranked_log_probs") >= {1, 3, 64}
    assert counts.keys() == {"token_log_probs", "token_log_probs_backward"}
    assert all(found == {1, 2, 17, 64} for found in counts.values())
    assert {variant.problem.dtype for variant in several} == set(DType)
    assert {variant.strategy.name for variant in several} >= {"warp", "block", "online", "safe"}


def test_rows_of_one_column_are_verified_alone_along_an_axis_and_on_several_devices() -> None:
    """All threads but one have no column; on several devices others have the rest of the sum."""
    narrow = [p for p in problems() if p.cols == 1 and p.function == SOFTMAX]
    assert {type(problem.layout) for problem in narrow} == {Rows, Columns, Shards}


def test_the_readme_says_how_many_kernels_there_are() -> None:
    (said,) = re.findall(r"`softgen verify` runs about (\d+) kernels", README.read_text())
    assert len(best_guesses()) == pytest.approx(int(said), rel=0.03)


def test_the_cover_has_every_pair_of_properties() -> None:
    every = best_guesses()
    chosen = cover(every)
    assert len(chosen) < len(every) / 2
    for pair in (
        lambda v: (v.problem.function, v.strategy.name),
        lambda v: (v.strategy.name, v.problem.dtype),
        lambda v: (v.problem.cols, v.problem.dtype),
        lambda v: (v.problem.alignment, v.strategy.name),
        lambda v: (bool(v.problem.hooks), v.problem.function),
    ):
        assert set(map(pair, chosen)) == set(map(pair, every))
    assert of_hooks(chosen) == of_hooks(every)


def of_hooks(variants: Sequence[Variant]) -> set[object]:
    """Return the hooks, and their kinds with the strategies, types and layouts that they have."""
    return {
        combination
        for variant in variants
        for hook in variant.problem.hooks
        for combination in (
            hook.name,
            (hook.kind, variant.strategy.name),
            (hook.kind, variant.problem.dtype),
            (hook.kind, variant.problem.layout),
        )
    }


def test_covering_keeps_the_best_guess_and_shows_new_values_first() -> None:
    chosen = [v for v in matrix(True, ["online"], ["float32"]) if v.problem.cols == 1500]
    group = [v for v in chosen if v.problem.function == SOFTMAX]
    again = covering(group)
    assert again[0] == group[0]
    assert set(again) == set(group)
    new_in_second = set(again[1].strategy.knobs.items()) - set(again[0].strategy.knobs.items())
    assert len(new_in_second) == max(
        len(set(v.strategy.knobs.items()) - set(again[0].strategy.knobs.items())) for v in group[1:]
    )


def test_numbers_of_the_input_do_not_change() -> None:
    x = REGIMES["random"].array(3, 5, DType.FLOAT32)
    assert np.array_equal(x, REGIMES["random"].array(3, 5, DType.FLOAT32))


def test_a_setting_is_verified_wherever_it_is_legal_and_a_full_name_once() -> None:
    found = matrix(False, ["warp_p4_c32_g32_r1_pad_b128"], ["float32"])
    assert {variant.strategy.label for variant in found} == {"warp_p4_c32_g32_r1_pad_b128"}
    assert {variant.problem.cols for variant in found} >= {256, 1000}
    name = "softmax_f16_77_safe_b128"
    assert next(variant.name for variant in matrix(True, [name, "naive"])) == name
    with pytest.raises(InvalidValueError, match=f"{name} computes nothing .* of float32"):
        matrix(False, [name], ["float32"])
    of_function = matrix(False, [name, "warp"], functions=["softmax"])
    assert {variant.problem.function for variant in of_function} == {SOFTMAX}
    wanted = f"{name} computes nothing that is verified of partial float16"
    with pytest.raises(InvalidValueError, match=wanted):
        matrix(False, [name], functions=["partial"])
    with pytest.raises(InvalidValueError, match=r"oneflowwarp computes nothing .* partial float64"):
        matrix(False, ["oneflowwarp"], ["float64"], ["partial"])
    with pytest.raises(InvalidValueError, match="unknown variant 'best'"):
        matrix(False, ["best"])
