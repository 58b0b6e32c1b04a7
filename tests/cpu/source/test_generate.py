"""generate(): names in, text out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import softgen
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.strategies.launch import Launch
from softgen.strategies.online import Online
from softgen.strategies.variants import candidates


def test_the_text_is_the_variant_that_was_asked_for() -> None:
    source = softgen.generate(
        "log_softmax", "bfloat16", 4096, variant=Online(8, 2, 128), out_dtype="float32"
    )
    assert source.name == "log_softmax_bf16_to_f32_4096_online_p8_u2_b128"
    assert source.symbol == source.name
    for line in (
        "using X = __nv_bfloat16;",
        "using Y = float;",
        "constexpr Col kCols = 4096;",
        "constexpr int kPackSize = 8;",
        'extern "C" __global__ void',
        f"{source.name}(const X* x, Y* y, long long rows) {{",
    ):
        assert line in source.text


def test_names_types_and_objects_mean_the_same() -> None:
    by_name = softgen.generate("softmax", "float32", 1000)
    by_type = softgen.generate(softgen.Function.of("softmax"), np.float32, 1000, arch="sm_90")
    assert by_name == by_type


def test_strategies_are_taken_by_name_and_by_value() -> None:
    assert softgen.generate("softmax", "float32", 1000, variant="oneflow").name == (
        "softmax_f32_1000_oneflowwarp_p2_c32_g32_r1_pad_b128_n67584"
    )
    setting = Online(pack_size=1, unroll=1, block_size=64)
    assert softgen.generate("softmax", "float32", 1000, variant=setting).variant.strategy is setting


def test_rows_move_oneflows_choice() -> None:
    names = [
        softgen.generate("softmax", "float32", 8, variant="oneflow", rows=rows).name
        for rows in (3, 4)
    ]
    kernel = "softmax_f32_8_oneflowwarp_p2_c2_g4"
    assert names == [f"{kernel}_r1_b128_n67584", f"{kernel}_r2_b128_n67584"]


def test_alignment_is_part_of_the_name() -> None:
    source = softgen.generate("softmax", "float32", 1000, alignment=1)
    assert source.name.startswith("softmax_f32_1000_align1_")


def test_sms_size_the_grid_for_another_device() -> None:
    def launch(**options: Any) -> Launch:
        return softgen.generate("softmax", "float32", 2**21, **options).variant.launch

    assert launch().most_blocks == 132
    for arch in ("sm_90", arch_named("sm_90")):
        part = launch(arch=arch, sms=np.int64(78))
        assert part.cooperative
        assert part.most_blocks == part.multiprocessors == 78
    resized = arch_named("sm_90").with_multiprocessors(78)
    assert launch(arch=resized) == part
    assert launch(sms=132) == launch()


@pytest.mark.parametrize("sms", [1, 2, 7, 1024])
@pytest.mark.parametrize("cols", [8192, 2**21, 2**25])
def test_there_is_a_kernel_for_any_number_of_sms(sms: int, cols: int) -> None:
    resized = arch_named("sm_90", sms)
    found = list(candidates(Problem.of("softmax", "float32", cols), 4096, resized))
    assert softgen.generate("softmax", "float32", cols, sms=sms).variant == found[0]
    for variant in found:
        variant.check(resized)
        assert variant.launch.multiprocessors <= sms


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_the_header_compiles_for_the_architecture_that_is_asked_for(arch: str) -> None:
    """The oldest that this one fits is sm_75, whose PTX is slow on all of these."""
    any_from = "sm_75" if arch == "sm_80" else "sm_90"  # which waits for the launch before
    source = softgen.generate("softmax", "bfloat16", 1000, variant="warp", arch=arch)
    assert f" -arch={arch} -c" in source.text
    assert f"# any architecture from {any_from} on\n" in source.text


def test_a_device_with_more_sms_keeps_its_architecture() -> None:
    """And with more than any known device has."""
    for sms in (140, 1000):
        source = softgen.generate("softmax", "float32", 2**24, variant="cooperative", sms=sms)
        assert source.variant.launch.multiprocessors == sms
        assert "-arch=sm_90 -c" in source.text
        assert "# any architecture from sm_90 on, except sm_120\n" in source.text


def test_rows_that_several_devices_hold() -> None:
    source = softgen.generate("softmax", "bfloat16", 64128, sharded=True)
    assert source.name.startswith("softmax_bf16_64128_sharded_cluster_")
    assert "const long long* mailboxes, long long mailbox, long long alarm" in source.text
    block = softgen.generate("softmax", "float32", 1000, variant="block", sharded=True)
    assert block.name.startswith("softmax_f32_1000_sharded_block_")
    assert softgen.generate("softmax", "float32", 1000).variant.problem.layout.label == ""


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("softmin", "float32", 8), {}, InvalidValueError, "softmin.*softmax, log_softmax"),
        (("softmax", "int32", 8), {}, InvalidTypeError, "int32.*float16, bfloat16"),
        (("softmax", "float32", 0), {}, InvalidValueError, "cols must be from 1"),
        (("softmax", "float32", 8.0), {}, InvalidTypeError, "cols must be an int"),
        (("softmax", "float32", 8), {"rows": -1}, InvalidValueError, "rows must be from 0"),
        (("softmax", "float32", 8), {"rows": 10**400}, InvalidValueError, "rows must fit 128 bits"),
        (("softmax", "float32", 8), {"rows": 2**41}, InvalidValueError, "rows must be from 0"),
        (("softmax", "float32", 10**5000), {}, InvalidValueError, "cols must fit 128 bits"),
        (("softmax", "float32", 8), {"rows": 2.0}, InvalidTypeError, "rows must be an int"),
        (("softmax", "float32", 8), {"rows": True}, InvalidTypeError, "rows must be an int"),
        (("softmax", "float32", 8), {"arch": {}}, InvalidTypeError, "'sm_90', or as an Arch, not"),
        (("softmax", "float32", 8), {"arch": None}, InvalidTypeError, "not by None"),
        (("softmax", "float32", 8), {"arch": 90}, InvalidTypeError, "not by 90"),
        (("softmax", "float32", 8), {"arch": "sm_91"}, InvalidValueError, "did you mean 'sm_90'"),
        (("softmax", "float23", 8), {}, InvalidTypeError, "did you mean 'float32'"),
        (("sofmax", "float32", 8), {}, InvalidValueError, "did you mean 'softmax'"),
        (("softmax", "float32", 8), {"variant": "wrap"}, InvalidValueError, "mean 'warp'"),
        (("softmax", "float32", 8), {"arch": "sm_1"}, InvalidValueError, "sm_1.*sm_75.*sm_120"),
        (("softmax", "float32", 8), {"sms": 0}, InvalidValueError, "SMs must be from 1 to 1024"),
        (("softmax", "float32", 8), {"sms": 1025}, InvalidValueError, "from 1 to 1024, got 1025"),
        (("softmax", "float32", 8), {"sms": 78.0}, InvalidTypeError, "sms must be an int"),
        (("softmax", "float32", 8), {"variant": "best"}, InvalidValueError, "best.*oneflow"),
        (("softmax", "float32", 8), {"alignment": 3}, InvalidValueError, "power of two"),
        (
            ("softmax", "float32", 8),
            {"sharded": True, "strided": 1},
            InvalidValueError,
            "give sharded alone",
        ),
        (
            ("softmax_backward", "float32", 8),
            {"sharded": True},
            InvalidValueError,
            "softmax_backward has no kernel for sharded rows; softmax, ",
        ),
    ],
)
def test_bad_arguments(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        softgen.generate(*arguments, **options)


@pytest.mark.parametrize("name", ["90", "9.0", "sm90", "SM_90", "sm_90"])
def test_an_architecture_as_people_write_it(name: str) -> None:
    assert arch_named(name) is arch_named("sm_90")
    assert arch_named(name.replace("9", "12")).name == "sm_120"


@pytest.mark.parametrize("name", ["", "sm_", "9", "9.", "sm_9_0", "sm_090", "\u0669\u0660"])
def test_an_architecture_that_nobody_writes(name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"unknown architecture.* sm_75, sm_80"):
        arch_named(name)
