"""Hooks on the emulator: every one by every strategy that takes it, against float64."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import EmulationError, IllegalVariantError, InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.hooks.arrays import Lines
from softgen.problems.hooks.known import HOOKS, hook_named
from softgen.problems.numerics import Storage, check, decode, encode, hook_examples
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, candidates, parse_name
from softgen.strategies.winners import fitting, winner
from tests.helpers.emulator_helpers import broken, outcomes, right_of, wrong_of
from tests.helpers.whole import part

ARCH = arch_named("sm_90")
ROWS = 14

# By every strategy a setting whose rows start on packs, or one whose rows do not.
SETTINGS = {
    "warp": ("f32_300", "warp_p4_c12_g32_r2_pad_b128"),
    "block": ("bf16_301", "block_p8_c8_g64_b64_m1"),
    "block8": ("bf16_1000", "block_p8_c16_g64_b128_m1"),
    "cluster": ("f32_1000", "cluster_p4_c4_b64_k8_m1"),
    "shared": ("bf16_301", "shared_p8_b64_y0_s1_n0"),
    "cooperative": ("f32_1024", "cooperative_p4_c4_b192_k2_n2_s4_f1_l1"),
    "split": ("bf16_1000", "split_p8_c8_b64_m1"),
    "online": ("f32_301", "online_p4_u2_b64"),
    "safe": ("f64_33", "safe_b64"),
}
WITHOUT_ENDS = ("cooperative", "shared")
KINDS = {hook.kind: hook for hook in HOOKS}


def variant_of(hooks: str, strategy: str, function: str = "softmax") -> Variant:
    stem, setting = SETTINGS[strategy]
    variant = parse_name(f"{function}_{stem}_{hooks}_{setting}")
    variant.check(ARCH)
    return variant


def rows_of(variant: Variant, rows: int = ROWS) -> Storage:
    """Return rows, one with NaN, one of -inf, and one whose middle alone is not -inf."""
    problem = variant.problem
    x = np.random.default_rng(problem.cols).standard_normal((rows, problem.cols)) * 4
    x[3, problem.cols // 2] = np.nan
    x[5] = -np.inf
    x[6], x[6, problem.cols // 2] = -np.inf, 2.0
    x[7, problem.cols // 2] = -np.inf
    return encode(x, problem.dtype)


def objections(sources: Sequence[Source], values: Sequence[Sequence[Any]] = ()) -> list[str]:
    """Return what is wrong with any source; `values` are for hooks, by default their examples."""
    jobs = []
    for i, source in enumerate(sources):
        problem = source.variant.problem
        rows = ROWS + -ROWS % problem.layout.step
        given = hook_examples(problem, rows)
        if values:
            pairs = zip(values[i], problem.hook_operands, strict=True)
            given = tuple(encode(value, operand.dtype) for value, operand in pairs)
        jobs.append(Job(source, rows_of(source.variant, rows), given))
    return wrong_of(jobs)


def test_every_hook_alone() -> None:
    """By every third pair of hook and strategy; `softgen verify` has them all."""
    pairs = [
        (hook, strategy)
        for i, hook in enumerate(KINDS.values())
        for strategy in part([*SETTINGS], 3, -i % 3)
        if not (hook.ends and strategy in WITHOUT_ENDS)
    ]
    assert {hook for hook, _ in pairs} == {*KINDS.values()}
    assert {strategy for _, strategy in pairs} == {*SETTINGS}
    assert objections([render(variant_of(hook.name, strategy)) for hook, strategy in pairs]) == []


@pytest.mark.parametrize("kind", ["biasf32", "mask"])
@pytest.mark.parametrize("strategy", ["warp", "block", "block8"])
def test_blocks_whose_rows_share_lines_run_at_one_time(kind: str, strategy: str) -> None:
    """Three batches share 16 lines, or 4 of which each is for 4 rows; 5 share none of 10 rows."""
    kept = "8 * 1024 * 1024;  // bytes"
    source = broken(render(variant_of(kind, strategy)), kept, "0;  // bytes")
    problem = source.variant.problem
    (hook,) = problem.hooks
    assert isinstance(hook, Lines)
    length = hook.line(problem.cols)
    lines = np.random.default_rng(0).standard_normal((16, length))
    array = lines if kind == "biasf32" else lines < 0.5
    turn = "blockIdx.x % turns * period + blockIdx.x / turns"
    still = broken(source, f"return {turn};", "return 0;")
    still = dataclasses.replace(
        still,
        symbol=f"{source.symbol}_s",
        text=still.text.replace(source.symbol, f"{source.symbol}_s"),
    )
    program = build([source, still])
    for rows, place, turned in (
        (48, (48, 1, 0, 16, length), True),
        (48, (4, 4, length, 1, 0), True),
        (16, (16, 1, 0, 16, length), False),
        (50, (10, 5, length, 1, 0), False),
    ):
        given = tuple(
            encode(value, operand.dtype)
            for value, operand in zip((array, *place), problem.hook_operands, strict=True)
        )
        jobs = [Job(each, rows_of(source.variant, rows), given) for each in (source, still)]
        right, wrong = program.run_counted(jobs)
        assert not isinstance(right, EmulationError), right
        assert check(right[0], jobs[0].inputs, problem).ok, place
        seen = isinstance(wrong, EmulationError) or not check(wrong[0], jobs[0].inputs, problem).ok
        assert seen == turned, place


def test_every_type_of_what_hooks_take() -> None:
    chosen = {
        "block": "scalerow_biasf16_sinkf64",
        "warp": "biasf64_mask_lengthsi64_sinkf16",
        "cluster": "biasbf16_maskany_lengthsi32",
        "online": "biasbf16any_mask_sinkbf16",
        "split": "biasf16any_maskany_lengthsi64",
        "safe": "biasf32any_maskany_sinkf32",
        "shared": "biasf64any_mask_sinkbf16",
    }
    said = "_".join(chosen.values()).split("_")
    assert {hook for hook in HOOKS if hook.name not in said} <= {
        *map(hook_named, ("scale", "scaleany", "softcap", "biasf32", "causal")),
        *map(hook_named, ("zeroempty", "outscale", "outscalerow", "dropout")),
    }
    assert objections([render(variant_of(each, name)) for name, each in chosen.items()]) == []


def test_elements_stay_packed_under_a_scale_above_0() -> None:
    names = [
        "softmax_bf16_1000_scale_block_p8_c16_g64_b64_m1_pk",
        "softmax_f16_301_scale_sinkf16_outscale_block_p8_c8_g64_b64_m1_pk",
        "softmax_bf16_301_fixed_scale_zeroempty_block_p8_c8_g64_b64_m1_pk",
        "log_softmax_lse_bf16_1000_scale_sinkf32_cluster_p8_c8_b64_k2_m1_pk",
        "logsumexp_f16_301_scale_block_p8_c8_g64_b64_m1_pk",
        "softmax_bf16_301_sinkf32_dropout_block_p8_c8_g64_b64_m1_pk",
    ]
    variants = [parse_name(name) for name in names]
    for variant in variants:
        variant.check(ARCH)
    sources = [render(variant) for variant in variants]
    assert objections(sources) == []
    broken_one = broken(sources[0], "state.enter<kPackSize>(results);", "")
    assert objections([broken_one])


def test_elements_that_hooks_make_larger_than_their_type_has() -> None:
    """As float16 under a scale of 1e30: what rounds an exponent is no longer small.

    Every two of hooks, a type and a layout are in one kernel of each strategy.
    """
    bias = (np.linspace(-1e10, 1e10, 320), *(1, 1, 0, 1, 0))
    hooks = {
        "scale": (1e30,),
        "scalerow": (np.array([1e30, -1e20, 1e6]), 1, 3),
        "scaleany_outscale": (-1e20, 5.0),
        "biasf32": bias,
        "sinkf32": (np.array([1e30, -1e30, 7e9]), 1, 3),
    }
    sources: list[Source] = []
    given: list[Any] = []
    for i, (names, values) in enumerate(hooks.items()):
        for j, layout in enumerate(("", "in16")):
            dtype = ("float16", "bfloat16")[(i + j) % 2]
            problem = Problem.of("softmax", dtype, 300, hooks=names.split("_"), layout=layout)
            for kind in all_strategies():
                first = [*itertools.islice(candidates(problem, ROWS, ARCH, kind.name), 1)]
                sources += map(render, first)
                given += [values] * len(first)
    assert len({source.variant.strategy.name for source in sources}) >= 7
    assert objections(sources, given) == []


def test_named_regimes() -> None:
    """What hooks are known to go wrong at, by two strategies each."""
    line = 320
    shown = np.zeros((2, line), bool)
    shown[1, [7, 150]] = True  # of row 5 and of row 7 nothing but -inf
    hidden = np.where(shown, 0.0, -np.inf)
    one = (1, 1, 0, 1, 0)
    cases: list[tuple[str, tuple[Any, ...]]] = [
        ("scaleany", (-1.5,)),
        ("scaleany", (0.0,)),
        ("scale", (1e-3,)),
        ("scale", (1e3,)),
        ("scalerow", (np.array([-2.0, 0.0, 1e3, 1.0]), 1, 4)),
        ("mask", (shown, *(1, 2, line, 1, 0))),
        ("mask_zeroempty", (shown, *(1, 2, line, 1, 0))),
        ("biasf32_zeroempty", (hidden, *(1, 2, line, 1, 0))),
        ("maskany", (np.arange(line) % 7 < 3, *one)),  # whose lines are the same one
        ("lengthsi32_zeroempty", (np.array([0, 1, 151, 150]), 1, 4)),
        ("causal_sinkf32", (5, -3, np.array([1.0, -2.0]), 5, 2)),
        ("sinkf32", (np.array([np.inf, -np.inf, np.nan, 90.0]), 1, 4)),
        ("sinkf32_zeroempty", (np.array([-np.inf, 1.0]), 2, 2)),
        ("zeroempty", ()),
        ("outscale", (448.0,)),
        ("softcap", (0.1,)),  # most elements are bent all the way
        ("softcap", (30.0,)),  # none is bent much
        ("softcap", (1e6,)),
        ("dropout", (0, 1, 2, 1.0)),
        ("dropout", (2**16, 1, 2, 0.0)),
    ]
    strategies = ("warp", "block", "online", "safe")
    sources = [render(variant_of(hooks, strategies[i % 4])) for i, (hooks, _) in enumerate(cases)]
    assert objections(sources, [given for _, given in cases]) == []


def test_a_sink_that_is_infinite_or_nan_counts_as_an_element_would() -> None:
    """Of +inf and NaN softmax and entropy are NaN, and lse is what the sink is."""
    sink = (np.array([0.5, np.inf, np.nan, -np.inf]), 1, 4)
    sources: list[Source] = []
    for function in ("softmax_lse", "logsumexp", "entropy", "partial"):
        for cols, layout in ((300, ""), (20000, ""), (100, "in16")):
            problem = Problem.of(function, "float32", cols, hooks=["sinkf32"], layout=layout)
            for kind in all_strategies():
                first = itertools.islice(candidates(problem, ROWS, ARCH, kind.name), 1)
                sources += map(render, first)
    assert len({source.variant.strategy.name for source in sources}) >= 10
    assert objections(sources, [sink] * len(sources)) == []


def test_drawn_combinations() -> None:
    draw = random.Random(16)
    sources: list[Source] = []
    while len(sources) < 10:
        strategy = draw.choice([*SETTINGS])
        by_kind = draw.sample([*KINDS], draw.randint(2, 6))
        chosen = [draw.choice([hook for hook in HOOKS if hook.kind == kind]) for kind in by_kind]
        function = draw.choice(["softmax", "softmax_lse", "log_softmax", "logsumexp", "partial"])
        names = sorted(chosen, key=HOOKS.index)
        try:
            variant = variant_of("_".join(hook.name for hook in names), strategy, function)
        except (IllegalVariantError, InvalidValueError):
            continue
        sources.append(render(variant))
    assert len({source.variant.strategy.name for source in sources}) >= 6
    assert objections(sources) == []


def test_what_is_hidden_is_not_loaded() -> None:
    """Every element that a length hides saves its load, in packs; all results are written."""
    strategies = [name for name in SETTINGS if name not in WITHOUT_ENDS]
    # An empty row of NaN would be stored twice.
    sources = [render(variant_of("lengthsi64_zeroempty", strategy)) for strategy in strategies]
    lengths = [(source, length) for source in sources for length in (10**6, 1, 0)]
    jobs = [
        Job(source, rows_of(source.variant), (np.array([length]), *map(np.asarray, (1, 1))))
        for source, length in lengths
    ]
    done = build(sources).run_counted(jobs)
    works = [one[1] for one in done if not isinstance(one, EmulationError)]
    assert len(works) == len(jobs), done
    for i, source in enumerate(sources):
        every, one, none = (work.accesses for work in works[3 * i : 3 * i + 3])
        problem, knobs = source.variant.problem, source.variant.strategy.knobs
        pack = int(knobs.get("pack_size", 1))
        reads = {"split": 2, "online": 2, "safe": 3}.get(source.variant.strategy.name, 1)
        loads = problem.cols // pack  # and those of single elements at the ends
        assert one > none
        assert loads - 2 <= (every - none) / ROWS / reads <= loads + 2 * pack, source.name


def test_mistakes_are_seen() -> None:
    mask, causal = variant_of("mask", "warp"), variant_of("causal", "warp")
    wrong = [
        broken(render(mask), "if (!shown[i])", "if (!shown[0])"),
        broken(render(mask), "% static_cast<unsigned int>(mask_inner) * mask_step", "* 0"),
        broken(render(causal), "queries) + causal_offset + 1", "queries) + causal_offset"),
        broken(render(causal), "if (col + i >= end)", "if (col + i > end)"),
        broken(render(variant_of("causal", "block8")), "(col + N > end)", "(col + N > end + 8)"),
        broken(render(variant_of("lengthsi64", "block8")), "(shown || !stored)", "shown"),
        broken(
            render(variant_of("causal", "block8")), "Compute nothing[", "continue; Compute nothing["
        ),
        broken(render(variant_of("sinkf32", "block")), "{sink, exponential(", "{sink, 0 * log("),
        broken(render(variant_of("dropout", "warp")), "0xbb67ae85u", "0xbb67ae86u"),
        broken(render(variant_of("dropout", "online")), "first & 2 ?", "first & 1 ?"),
        broken(render(variant_of("softcap", "warp")), "0.13322766f", "0.133221f"),
        broken(render(variant_of("softcap", "warp")), "kSmallSquare = 0.64f", "kSmallSquare = 1"),
        broken(render(variant_of("softcap", "block")), "softcap), x)", "softcap), -x)"),
        broken(render(variant_of("outscale", "cluster")), "state.weigh(", "("),
        broken(render(variant_of("scaleany", "block")), "values[i] = negative_infinity();", ";"),
    ]
    for i, source in enumerate(wrong):
        named = dataclasses.replace(source, symbol=f"{source.symbol}_{i}")
        wrong[i] = dataclasses.replace(named, text=source.text.replace(source.symbol, named.symbol))
    found = objections(wrong)
    assert len(found) == len(wrong), found


def test_strategies_without_ends_say_so() -> None:
    for strategy in WITHOUT_ENDS:
        with pytest.raises(IllegalVariantError, match="rows end where a number says"):
            variant_of("causal", strategy)
    fixed = parse_name("softmax_f32_1001_fixed_mask_block_p4_c4_g256_b256_m1")
    with pytest.raises(IllegalVariantError, match="none knows its column, which mask asks for"):
        fixed.check(ARCH)
    for hook in ("scaleany", "softcap", "biasbf16", "mask", "causal", "scale_dropout"):
        packed = parse_name(f"softmax_bf16_4096_{hook}_block_p8_c32_g128_b128_m8_pk")
        with pytest.raises(IllegalVariantError, match="no scale above 0, cannot stay packed"):
            packed.check(ARCH)


def test_functions_say_what_they_take() -> None:
    for function, hook, message in (
        ("merge", "scale", "merge takes no hooks, got scale"),
        ("finish", "mask", "finish takes no hooks"),
        ("logsumexp", "zeroempty", "logsumexp has no NaN"),
        ("log_softmax", "dropout", "dropout is for results that sum to one"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            Problem.of(function, "float32", 100, hooks=[hook])
    several = Problem.of("softmax", "float32", 100, hooks=["dropout", "causal", "scale", "mask"])
    assert [hook.name for hook in several.hooks] == ["scale", "mask", "causal", "dropout"]
    assert several.bare == Problem.of("softmax", "float32", 100)
    assert several.compute_dtype is DType.FLOAT32


def test_a_problem_with_hooks_takes_the_setting_that_was_tuned_without() -> None:
    bare = Problem.of("softmax", "bfloat16", 128256)
    hooked = Problem.of("softmax", "bfloat16", 128256, hooks=["scale", "causal"])
    tuned = winner(bare, 256, ARCH)
    assert tuned is not None
    light = Problem.of("softmax", "bfloat16", 128256, hooks=["scaleany"])
    taken = winner(light, 256, ARCH)
    assert taken is not None
    assert taken.problem == light
    assert taken.strategy.name == tuned.strategy.name
    assert "_pk" not in taken.name
    assert winner(hooked, 256, ARCH) is None
    packed = parse_name("softmax_bf16_128256_cluster_p8_c64_b128_k16_m9_pk")
    found = fitting(packed.strategy, hooked, ARCH)
    assert found is not None
    taken.check(ARCH)
    found.check(ARCH)
    knobs = packed.strategy.knobs | {"packed": False}
    assert {**found.strategy.knobs, "min_blocks": 9} == knobs
    assert fitting(packed.strategy, bare, ARCH) == packed
    scaled = Problem.of("softmax", "bfloat16", 128256, hooks=["scale"])
    fewer = dataclasses.replace(packed.strategy, **{"min_blocks": 8})
    assert fitting(packed.strategy, scaled, ARCH) == Variant(scaled, fewer)
    ring = parse_name("softmax_f32_131072_cooperative_p4_c4_b640_k4_n33_s28_f3_l3").strategy
    ends = Problem.of("softmax", "float32", 131072, hooks=["causal"])
    assert fitting(ring, ends, ARCH) is None


def test_hooks_that_take_arithmetic_or_hide_elements_take_no_setting_of_kernels_without() -> None:
    """As measured on an H200: 24 elements a thread are as fast as 64, but with such hooks."""

    def taken(hook: str) -> Variant | None:
        hooks = [hook] if hook else []
        return winner(Problem.of("softmax", "bfloat16", 2048, hooks=hooks), 65536, ARCH)

    bare = taken("")
    assert bare is not None
    for hook in ("scale", "sinkbf16", "outscale", "zeroempty"):
        found = taken(hook)
        assert found is not None
        assert found.strategy.knobs["cols_per_thread"] == bare.strategy.knobs["cols_per_thread"]
    for hook in ("softcap", "dropout", "causal", "lengthsi64", "mask"):
        assert taken(hook) is None
    assert Problem.of("softmax", "float32", 8, hooks=["scale", "causal"]).hook_instructions == 4


def test_dropout_of_a_pack_that_begins_before_the_first_row() -> None:
    """Its first elements are numbered below 0, those of the row from 0 on."""
    source = render(parse_name("softmax_f32_33_dropout_block_p4_c4_g64_b64_m10"))
    problem = source.variant.problem
    given = hook_examples(problem, ROWS)
    x = encode(np.random.default_rng(0).standard_normal((ROWS, 33)), problem.dtype)
    jobs = [
        Job(source, x, (given[0], np.asarray(seed), *given[2:]), x_offset=offset, y_offset=offset)
        for seed in range(4)
        for offset in (1, 2, 3)
    ]
    for job, _, told in outcomes(jobs):
        assert told == "", (job.others[1], job.x_offset)


def test_a_row_of_nan_stays_nan_where_elements_are_dropped() -> None:
    """As in PyTorch, which multiplies by 0; a row of nothing but -inf too, without zeroempty."""
    variants = [variant_of("dropout", each) for each in SETTINGS]
    variants.append(variant_of("sinkf32_dropout", "block8"))
    variants.append(variant_of("zeroempty_outscale_dropout", "warp"))
    jobs = [
        Job(render(variant), rows_of(variant), hook_examples(variant.problem, ROWS))
        for variant in variants
    ]
    for job, (stored,) in right_of(jobs):
        problem = job.problem
        y = decode(stored, problem.out_dtype)
        assert np.isnan(y[3]).all()
        assert np.isnan(y[5]).all() == (len(problem.hooks) == 1)
        assert np.isfinite(y[[0, 7]]).all()
        assert (y[0] == 0).sum() > problem.cols // 5  # of p = 0.3
