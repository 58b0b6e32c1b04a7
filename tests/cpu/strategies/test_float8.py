"""Results of 8 bits on the emulator: converted as NumPy rounds, stored in packs and one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from softgen.devices.emulator import Job, build
from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import Float8
from softgen.problems.numerics import check, decode, encode, hook_examples
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import best_guess, parse_name
from tests.helpers.emulator_helpers import broken, wrong_of

# Packs of 8 and of 4, results that lanes turn back, rows that start anywhere, one element a store.
NAMES = (
    "softmax_bf16_to_e4m3_301_fixed_block_p8_c8_g64_b64_m1",
    "softmax_f32_to_e4m3_300_outscalerow_warp_p4_c12_g32_r2_pad_b128",
    "log_softmax_lse_f16_to_e5m2_301_block_p8_c8_g64_b64_m1",
    "softmax_f16_to_e5m2_1024_cooperative_p8_c8_b192_k2_n2_s4_f1_l1",
    "log_softmax_f32_to_e4m3_21_in3_columns_p1_w2_b32_c2_m1",
    "softmax_bf16_to_e5m2_21_in8_strips_p8_w1_b32_u2",
    "softmax_f32_to_e5m2_33_safe_b64",
)


def jobs_of(names: tuple[str, ...]) -> list[Job]:
    jobs = []
    for name in names:
        variant = parse_name(name)
        variant.check(arch_named("sm_90"))
        problem = variant.problem
        rows = 6 * problem.layout.step
        x = np.random.default_rng(problem.cols).standard_normal((rows, problem.cols)) * 4
        x[1, 3], x[2], x[3, 5:] = np.nan, -np.inf, -np.inf
        jobs.append(Job(render(variant), encode(x, problem.dtype), hook_examples(problem, rows)))
    return jobs


def test_results_by_every_way_of_storing() -> None:
    jobs = jobs_of(NAMES)
    assert wrong_of(jobs) == []


@pytest.mark.parametrize("dtype", list(Float8))
def test_a_conversion_is_that_of_numpy(dtype: Float8) -> None:
    """The softmax of one column is 1, and times a number of the row it is that number."""
    numbers = decode(np.arange(dtype.largest_bits + 1, dtype=np.uint8), dtype)
    middle = ((numbers[:-1] + numbers[1:]) / 2).astype(np.float32)
    near = (np.nextafter(middle, np.float32(9e9)), np.nextafter(middle, np.float32(0)))
    special = np.array([1e30, np.inf, np.nan, 1e-30], np.float32)
    every = np.concatenate([numbers, middle, *near, special]).astype(np.float32)
    every = np.concatenate([every, -every])
    problem = Problem.of("softmax", "float32", 1, out_dtype=dtype, hooks=["outscalerow"])
    source = render(best_guess(problem, len(every), arch_named("sm_90")))
    x = np.zeros((len(every), 1), np.float32)
    place = (np.asarray(1), np.asarray(len(every)))
    y = build([source]).run(source, x, others=(every, *place))
    assert (y[:, 0] & 0x7F)[np.isnan(every)].tolist() == [0x7F, 0x7F]
    finite = ~np.isnan(every)
    assert np.array_equal(y[finite, 0], encode(every[finite], dtype))


def test_a_result_in_the_wrong_half_of_two_is_seen() -> None:
    job = jobs_of(NAMES[1:2])[0]
    text = job.source.text
    assert "two_to_e4m3(from[i], from[i + 1])" in text
    wrong = broken(
        job.source, "two_to_e4m3(from[i], from[i + 1])", "two_to_e4m3(from[i + 1], from[i])"
    )
    found = build([wrong]).run_each(wrong, job.x, others=job.others)
    assert not check(found, job.inputs, wrong.variant.problem).ok


def test_the_text_needs_no_header_and_sm_89() -> None:
    source = jobs_of(NAMES[1:2])[0].source
    assert "#include" not in source.text
    assert "using Y = unsigned char;  // the bits of a float8_e4m3fn" in source.text
    assert re.search(r"-arch=sm_89 [^#]*# any architecture from sm_89 on", source.text)
    with pytest.raises(
        IllegalVariantError, match="float8_e4m3fn need sm_89 or later, this is sm_80"
    ):
        source.variant.check(arch_named("sm_80"))
    problem = source.variant.problem
    with pytest.raises(InvalidValueError, match=r"need sm_89 or later"):
        best_guess(problem, 64, arch_named("sm_80"))


def test_who_does_not_write_them() -> None:
    with pytest.raises(
        IllegalVariantError, match=r"tiles does not compute softmax in the layout in4 .results have"
    ):
        parse_name("softmax_f32_to_e4m3_4_in4_tiles_p4_c4_t1_o32_b128").check(arch_named("sm_90"))
    with pytest.raises(InvalidValueError, match=r"'e4m4'.*did you mean 'e4m3'"):
        parse_name("softmax_f32_to_e4m4_300_safe_b64")
