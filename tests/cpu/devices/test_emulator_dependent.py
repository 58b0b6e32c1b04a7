"""Programmatic dependent launch: the text waits first, and the emulator sees where it does not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from softgen.devices.emulator import run
from softgen.errors import EmulationError, IllegalVariantError
from softgen.problems.arch import KNOWN, arch_named
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import NO_PDL, TRIGGERS, TRIGGERS_FIRST, WAITS
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, candidates, parse_name

pytestmark = pytest.mark.usefixtures("host_built")

H200 = arch_named("sm_90")
WAIT = "  await_launch_before(x, y);\n"
WARP = parse_name("softmax_f32_1000_warp_p4_c32_g32_r1_pad_b128_pdl1")
BLOCK = parse_name("softmax_f32_1024_block_p4_c8_g128_b128_m1_pdl2")


def edited(variant: Variant, *edits: tuple[str, str]) -> Source:
    source = render(variant)
    text = source.text
    for old, new in edits:
        assert text.count(old) == 1, (old, text.count(old))
        text = text.replace(old, new)
    return dataclasses.replace(source, text=text)


def numbers(variant: Variant, rows: int = 5) -> np.ndarray:
    shape = (rows, variant.problem.cols)
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_every_candidate_of_a_tuned_strategy_waits_where_the_gpu_can() -> None:
    problem = Problem.of("softmax", "float32", 1024)
    for arch in KNOWN.values():
        for kind in all_strategies():
            for variant in candidates(problem, 128, arch, kind.name):
                can = kind.tuned and arch.compute_capability >= (9, 0)
                assert (variant.strategy.pdl >= WAITS) if can else variant.strategy.pdl == NO_PDL
                assert variant.launch.dependent == can


@pytest.mark.parametrize("variant", [WARP, BLOCK])
def test_the_wait_changes_no_result(variant: Variant) -> None:
    plain = dataclasses.replace(variant, strategy=dataclasses.replace(variant.strategy, pdl=NO_PDL))
    x = numbers(variant)
    assert (run(render(variant), x) == run(render(plain), x)).all()


def test_a_text_without_the_wait_is_seen() -> None:
    with pytest.raises(EmulationError, match=r"touched an array before await_launch_before\(\)"):
        run(edited(BLOCK, (WAIT, "")), numbers(BLOCK))


def test_a_return_before_the_wait_is_seen() -> None:
    """The second block has one row of four: its other warps would end without having waited."""
    leave = "  if (row >= rows) return;"
    moved = "const long long row = static_cast<long long>(blockIdx.x) * kRowsPerBlock + threadIdx.x"
    early = f"  if ({moved.partition('= ')[2]} / 32 >= rows) return;\n{WAIT}"
    assert leave in render(WARP).text
    with pytest.raises(EmulationError, match=r"returned before await_launch_before\(\): the next"):
        run(edited(WARP, (WAIT, early)), numbers(WARP))


def test_a_wait_of_one_warp_is_not_enough() -> None:
    one = f"  if (threadIdx.x < 32) {WAIT.strip()}\n"
    with pytest.raises(EmulationError, match=r"thread 32 of block 0 touched an array"):
        run(edited(BLOCK, (WAIT, one)), numbers(BLOCK))


def test_the_next_launch_may_not_go_before_the_wait() -> None:
    go = "  allow_next_launch();\n"
    with pytest.raises(EmulationError, match=r"allow_next_launch\(\) before await_launch_before"):
        run(edited(BLOCK, (go, ""), (WAIT, go + WAIT)), numbers(BLOCK))


def test_copies_to_shared_memory_wait_too() -> None:
    variant = parse_name("softmax_bf16_32000_shared_p8_b1024_y2_s2_n132_pdl1")
    x = np.zeros((2, 32000), np.uint16)
    assert (run(render(variant), x) != 0).all()
    with pytest.raises(EmulationError, match=r"before await_launch_before\(\)"):
        run(edited(variant, (WAIT, "")), x)


@pytest.mark.parametrize(
    ("variant", "arch", "message"),
    [
        (BLOCK, "sm_86", "pdl needs sm_90 or later, this is sm_86"),
        (parse_name("softmax_f32_1024_safe_b256_pdl2"), "sm_90", "safe has no place from where"),
        (parse_name("softmax_f32_1024_safe_b256_pdl3"), "sm_90", "safe has no place from where"),
        (parse_name("softmax_f32_1024_safe_b256_pdl4"), "sm_90", "pdl must be 0, 1, 2 or 3"),
    ],
)
def test_what_no_launch_can_do_is_refused(variant: Variant, arch: str, message: str) -> None:
    with pytest.raises(IllegalVariantError, match=message):
        variant.check(arch_named(arch))


@pytest.mark.parametrize("pdl", [NO_PDL, WAITS, TRIGGERS, TRIGGERS_FIRST])
def test_a_file_says_what_it_needs_and_no_more(pdl: int) -> None:
    strategy = dataclasses.replace(BLOCK.strategy, pdl=pdl)
    text = render(dataclasses.replace(BLOCK, strategy=strategy)).text
    assert ("cudaLaunchAttributeProgrammaticStreamSerialization" in text) == (pdl > 0)
    assert ("griddepcontrol.wait" in text) == (pdl > 0)
    assert ("griddepcontrol.launch_dependents" in text) == (pdl >= TRIGGERS)
    assert ("__CUDA_ARCH__" in text) == (pdl == NO_PDL)
    assert f"any architecture from {'sm_90' if pdl else 'sm_75'} on" in text
