"""Functions of one's own, 1 + 1 files each: that of the page, and one of sums."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.cli_helpers import copy_package, python
from tests.helpers.plugin import install

pytestmark = pytest.mark.usefixtures("host_built")

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(BLOCK.findall((ROOT / "docs" / "adding_a_function.md").read_text()))
OWN = Path(__file__).parent / "own" / "half_centered"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_package(tmp_path)


def test_the_example_works(checkout: Path) -> None:
    install(checkout)
    commands = BLOCKS["sh"].splitlines()
    assert len(commands) == 3
    for command in commands:
        program, *words = command.split()
        assert program == "softgen"
        assert "the bound is" in python("-m", "softgen", *words, cwd=checkout)
    listed = python(
        "-m", "softgen", "list", "--function", "logmeanexp", "--cols", "5000", cwd=checkout
    )
    for strategy in ("block", "cluster", "split", "online", "safe"):
        assert re.search(rf"^logmeanexp_f32_5000_{strategy}_", listed, re.MULTILINE), strategy
    matrix = (
        "from softgen.verify.problems import problems; "
        "print(sum(p.function.name == 'logmeanexp' for p in problems()))"
    )
    assert int(python("-c", matrix, cwd=checkout)) > 0


# Every way of every strategy to move a part, for sums of one input and of two; odd widths, the
# narrow types, float64, results of other types, a fixed order.
KERNELS = """
softmax_backward_f32_7_warp_p1_c1_g8_r4_pad_b128
softmax_backward_f16_100_warp_p4_c4_g32_r1_pad_b128_pdl2
half_centered_f64_101_warp_p2_c8_g16_r2_pad_b128
half_centered_f32_301_fixed_warp_p4_c12_g32_r1_pad_b128
softmax_backward_bf16_to_f32_1000_block_p8_c8_g128_b128_m1
half_centered_f32_301_block_p4_c4_g128_b128_m1
softmax_backward_f32_1000_cluster_p4_c4_b64_k4_m1_pdl2
softmax_backward_f64_300_cluster_p2_c2_b512_k4_m1
half_centered_f32_301_fixed_cluster_p4_c4_b128_k8_m1
softmax_backward_f32_7_online_p1_u2_b64
softmax_backward_f16_1024_online_p8_u2_b64
half_centered_f32_301_online_p4_u2_b64
softmax_backward_f32_7_shared_p1_b32_y0_s1_n0
softmax_backward_bf16_512_shared_p8_b64_y1_s1_n0
softmax_backward_f64_128_shared_p2_b64_y2_s1_n0
softmax_backward_f32_256_shared_p4_b64_y2_s3_n2
softmax_backward_f32_1000_split_p4_c8_b64_m1_rev
half_centered_f16_1025_fixed_split_p8_c16_b32_m1
softmax_backward_f32_1024_cooperative_p4_c4_b192_k2_n4_s4_f1_l1
softmax_backward_f16_2048_cooperative_p8_c8_b192_k2_n2_s2_f1_l2
half_centered_f64_2048_cooperative_p2_c4_b128_k4_n2_s2_f1_l2_h1
softmax_backward_f32_300_safe_b64
"""

VERIFY = """
import sys
from softgen.source.render import render
from softgen.problems.arch import arch_named
from softgen.strategies.variants import parse_name
from softgen.verify.emulated import on_emulator

variants = [parse_name(name) for name in sys.argv[1:]]
for variant in variants:
    variant.check(arch_named("sm_90"))
sources = [render(variant) for variant in variants]
for source, verdicts in zip(sources, on_emulator(sources), strict=True):
    print(source.name, len(verdicts), *[one.objection for one in verdicts if one.objection])
"""


def test_functions_whose_parts_are_sums(checkout: Path) -> None:
    """Every regime, out of place and with the result in place of the first input, to the bit."""
    shutil.copy(OWN.with_suffix(".py"), checkout / "softgen/problems/functions")
    shutil.copy(OWN.with_suffix(".cuh.j2"), checkout / "templates/functions")
    names = KERNELS.split()
    lines = python("-c", VERIFY, *names, cwd=checkout).splitlines()
    assert [line.split()[0] for line in lines] == names
    for line in lines:  # two launches, one where types allow none in place, and no objection
        assert line.endswith(" 1" if "_to_" in line else (" 2", " 3")), line

    def breaks(template: str, old: str, new: str, *strategies: str) -> None:
        file = checkout / "templates" / template
        right = file.read_text()
        assert old in right, template
        file.write_text(right.replace(old, new))
        kernels = [next(name for name in names if f"_{each}_" in name) for each in strategies]
        for line in python("-c", VERIFY, *kernels, cwd=checkout).splitlines():
            assert re.search(r"dx\[|race", line), line
        file.write_text(right)

    function = "functions/softmax_backward.cuh.j2"
    breaks(function, "y * dy - y * sum", "y * dy - sum", "safe")
    breaks("parts/sum/part.cuh.j2", "return a + b", "return a", "split")
    breaks("parts/sum/combine_lanes.cuh.j2", "add_lanes(part)", "part", "cluster", "cooperative")
    breaks("parts/sum/of_row.cuh.j2", '"add_lanes(" ~ sum ~ ")"', "sum", "warp")
    breaks("lib/reduce/block_reduce.cuh.j2", "  __syncthreads();\n", "", "online")
