"""Functions of one's own: that of the page, one of sums, and one with a part of its own."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from softgen.strategies.base import Feature
from softgen.strategies.registry import all_strategies
from tests.helpers import plugin
from tests.helpers.cli_helpers import copy_package, python
from tests.helpers.plugin import VERIFY, install

pytestmark = pytest.mark.usefixtures("host_built")

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(BLOCK.findall((ROOT / "docs" / "adding_a_function.md").read_text()))
OWN = Path(__file__).parent / "own" / "half_centered"
OWN_PART = Path(__file__).parent / "own" / "log_unit"


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
    command = "softgen verify --device cpu --function logmeanexp --dtype float64 --json"
    report = json.loads(python("-m", *command.split(), cwd=checkout))
    assert report["checked"] > 30
    assert report["failed"] == 0


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


# Every strategy that takes parts of one's own; odd widths, the narrow types, float64, a hook, a
# fixed order, few warps and many.
KERNELS_OF_PART = """
log_unit_f32_7_warp_p1_c1_g8_r4_pad_b128
log_unit_f32_301_fixed_warp_p2_c10_g32_r1_pad_b128
log_unit_f16_100_warp_p4_c4_g32_r1_pad_b128_pdl2
log_unit_bf16_1000_block_p8_c8_g128_b128_m12
log_unit_f32_2000_block_p4_c4_g512_b512_m1
log_unit_f32_1000_cluster_p4_c4_b64_k4_m1_pdl2
log_unit_f64_300_cluster_p2_c2_b512_k4_m1
log_unit_f32_301_fixed_cluster_p4_c4_b128_k8_m1
log_unit_f16_1024_online_p8_u2_b64
log_unit_f32_301_online_p4_u2_b64
log_unit_f32_7_shared_p1_b32_y0_s1_n0
log_unit_bf16_512_shared_p8_b64_y1_s1_n0
log_unit_f32_1000_split_p4_c8_b64_m1_rev
log_unit_f64_101_safe_b256
log_unit_f32_301_in16_strips_p4_w4_b128_u2_k2
log_unit_bf16_100_in6_strips_p1_w1_b32_u2
log_unit_f32_300_scalerow_block_p4_c4_g96_b96_m16
"""


def test_a_function_with_a_part_of_its_own(tmp_path: Path) -> None:
    """A `Part` and the files of its folder, from outside of the package, and nothing else."""
    folder = tmp_path / "log_unit"
    shutil.copytree(OWN_PART, folder, ignore=shutil.ignore_patterns("__pycache__"))
    names = KERNELS_OF_PART.split()

    def verified(kernels: list[str]) -> list[str]:
        found = plugin.python(folder / "log_unit", "-c", f"import log_unit\n{VERIFY}", *kernels)
        assert found.returncode == 0, found.stderr
        return found.stdout.splitlines()

    takes = {kind.name for kind in all_strategies() if Feature.PARTS in kind.takes}
    assert {strategy for strategy in takes if f"_{strategy}_" in KERNELS_OF_PART} == takes
    for name, line in zip(names, verified(names), strict=True):
        assert re.fullmatch(rf"{name} [23]", line), line

    parts = folder / "templates" / "parts" / "max_squares"
    broken = {  # by file: what is read otherwise, and a strategy that includes it
        "part": ("2 * (part.m", "(part.m", "cluster"),
        "of_row": ("factor_of(whole.q)", "whole.q", "warp"),
        "of_elements": ("max_lanes(m)", "m", "block"),
        "absorb": ("part.m = m;", "", "online"),
        "factor": (".q", ".m", "shared"),
        "rebased_factor": ("part.m", "whole.m", "cluster"),
    }
    assert {file.name.partition(".")[0] for file in parts.iterdir()} == {*broken}
    for file, (old, new, strategy) in broken.items():
        path = parts / f"{file}.cuh.j2"
        right = path.read_text()
        assert old in right, file
        path.write_text(right.replace(old, new))
        (line,) = verified([next(name for name in names if f"_{strategy}_" in name)])
        assert "regime" in line or "race" in line, line
        path.write_text(right)
