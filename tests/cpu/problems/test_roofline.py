"""The limits of a call: by hand, and against what the data sheets say of the devices."""

from __future__ import annotations

import pytest

from softgen.problems.arch import KNOWN, Arch, arch_named
from softgen.problems.functions import all_functions
from softgen.problems.problem import Problem
from softgen.problems.roofline import Peaks, data_sheet_peaks, flops_per_element, roofline

H200 = arch_named("sm_90")
SHEET = Peaks(4800, 1980)


# TFLOP/s in float32 and float64 of the data sheets; two FMA lanes of an SM in float64 where they
# give a rate of 1/64 or 1/32.
@pytest.mark.parametrize(
    ("arch", "single", "double"),
    [
        ("sm_75", 8.1, 0.254),
        ("sm_80", 19.5, 9.7),
        ("sm_86", 35.6, 0.556),
        ("sm_89", 82.6, 1.29),
        ("sm_90", 67, 34),
        ("sm_100", 75, 37),
        ("sm_120", 104.8, 1.64),
    ],
)
def test_rates_are_those_of_the_data_sheets(arch: str, single: float, double: float) -> None:
    known = arch_named(arch)
    peaks = data_sheet_peaks(known)
    assert peaks is not None
    for dtype, published in (("float32", single), ("bfloat16", single), ("float64", double)):
        found = roofline(Problem.of("softmax", dtype, 1000), 64, known, peaks)
        assert found.teraflops == pytest.approx(published, rel=0.02)


def test_every_known_device_has_a_data_sheet() -> None:
    assert all(data_sheet_peaks(arch) for arch in KNOWN.values())
    assert data_sheet_peaks(Arch((10, 3), 160, 2048, 227 * 1024, 1, "a GPU of tomorrow")) is None


def test_the_limits_of_a_softmax() -> None:
    """float32 4096 x 12672: 51.9 million elements, of 4 bytes in and 4 out."""
    found = roofline(Problem.of("softmax", "float32", 12672), 4096, H200, SHEET)
    assert found.moved_bytes == 4096 * 12672 * 8 == 415_236_096
    assert found.flops == 5 * 4096 * 12672
    assert found.memory == pytest.approx(415_236_096 / 4.8e12 * 1e6)
    assert found.arithmetic == pytest.approx(found.flops / (132 * 128 * 2 * 1.98e9) * 1e6)
    assert found.exponentials == pytest.approx(4096 * 12672 / (132 * 16 * 1.98e9) * 1e6)


def test_fewer_sms_have_less_arithmetic_and_the_same_memory() -> None:
    problem = Problem.of("softmax", "float32", 12672)
    whole = roofline(problem, 64, H200, SHEET)
    half = roofline(problem, 64, arch_named("sm_90", 66), SHEET)
    assert half.memory == whole.memory
    assert half.arithmetic == pytest.approx(2 * (whole.arithmetic or 0))


def test_a_type_decides_the_bytes_and_float64_has_no_unit_for_exponentials() -> None:
    half = roofline(Problem.of("softmax", "float16", 1000), 8, H200, SHEET)
    mixed = roofline(Problem.of("softmax", "float16", 1000, out_dtype="float32"), 8, H200, SHEET)
    double = roofline(Problem.of("softmax", "float64", 1000), 8, H200, SHEET)
    assert (half.moved_bytes, mixed.moved_bytes, double.moved_bytes) == (32000, 48000, 128000)
    assert half.exponentials == mixed.exponentials
    assert double.exponentials is None


def test_an_architecture_that_is_not_known_has_a_limit_of_memory_only() -> None:
    arch = Arch((10, 3), 160, 2048, 227 * 1024, 1, "a GPU of tomorrow")
    found = roofline(Problem.of("softmax", "float32", 1000), 8, arch, SHEET)
    assert found.memory == pytest.approx(64000 / 4.8e6)
    assert found.arithmetic is None
    assert found.teraflops is None


def test_operations_of_each_function() -> None:
    problems = [Problem.of(f, "float32", max(8, f.least_cols)) for f in all_functions()]
    found = {each.function.name: flops_per_element(each) for each in problems}
    wanted = {
        "softmax": 5,  # maximum, difference, exponential, sum, product
        "softmax_lse": 5,
        "log_softmax": 5,
        "log_softmax_lse": 5,
        "logsumexp": 4,  # no result for each element
        "partial": 4,
        "merge": 5,  # a factor, and no result for each element
        "finish": 3,  # difference, exponential, product
    }
    assert {name: found[name] for name in wanted} == wanted
