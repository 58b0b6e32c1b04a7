"""Kernels of strided rows: names, what is legal, texts, and the commands that take --strided."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import softgen
from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.layouts import ROWS, Strided
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies import winners
from softgen.strategies.base import Lesson
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import untimed
from softgen.strategies.variants import Variant, candidates, parse_name
from softgen.verify.problems import STRIDED, problems
from tests.helpers.cli_helpers import ok, refused

ARCH = arch_named(DEFAULT_ARCH)
KINDS = [
    kind.name
    for kind in all_strategies()
    if not issubclass(kind, Lesson) and issubclass(Strided, kind.layouts)
]
NAMES = (
    "softmax_f32_1000_strided1_online_p4_u2_b128",
    "log_softmax_bf16_to_f32_1000_strided3_align1_fixed_warp_p8_c32_g32_r1_pad_b128",
    "softmax_f32_100_strided2_scale_safe_b256",
)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_read_back(name: str) -> None:
    variant = parse_name(name)
    assert variant.name == name
    assert isinstance(variant.problem.layout, Strided)


@pytest.mark.parametrize("name", ["softmax_f32_9_strided4_safe_b256", "softmax_f32_9_strided_safe"])
def test_names_of_no_layout(name: str) -> None:
    with pytest.raises(InvalidValueError, match="is not the name of a variant"):
        parse_name(name)


def _runs(problem: Problem, strategy: str) -> bool:
    return any(True for _ in candidates(problem, 64, ARCH, strategy))


def test_every_strategy_but_the_lessons_takes_views_and_is_verified_on_them() -> None:
    views = [problem for problem in problems() if problem.layout != ROWS]
    verified = [kind for kind in KINDS if any(_runs(problem, kind) for problem in views)]
    assert verified == KINDS
    assert {outer for *_, outer in STRIDED} == {1, 2, 3}
    for kind in all_strategies():
        problem = Problem.of("softmax", "float32", 1000, layout="strided1")
        assert kind.computes(problem) == (kind.name in KINDS), kind.name
    with pytest.raises(
        IllegalVariantError, match="does not compute softmax in the layout strided1"
    ):
        parse_name("softmax_f32_1000_strided1_serial_b32").check(ARCH)


@pytest.mark.parametrize("strategy", KINDS)
def test_a_text_finds_rows_in_one_place(strategy: str) -> None:
    """No row is where a contiguous one would be, and no pack holds what a neighbour has."""
    wide = {"cooperative": 65536, "split": 65536, "shared": 20000, "cluster": 16384}
    for alignment in (None, 1):
        problem = Problem.of(
            "softmax", "float32", wide.get(strategy, 1000), alignment=alignment, layout="strided2"
        )
        for variant in candidates(problem, 64, ARCH, strategy):
            text = render(variant).text
            assert "* kCols" not in text.replace("loop", ""), variant.name
            assert "row > 0" not in text
            assert re.findall(r"(\w)_rows\{(.*)\}", text) == [
                ("x", "x, size1, x_stride0, x_stride1"),
                ("y", "y, size1, y_stride0, y_stride1"),
            ]
            break


def test_settings_are_those_of_contiguous_rows() -> None:
    tuned = 0
    for name, rows, _ in winners._winners(ARCH.device):
        bare = parse_name(name)
        if bare.problem.layout != ROWS or bare.problem.hooks:
            continue
        for outer in (1, 3):
            problem = Problem.of(
                *(bare.problem.function, bare.problem.dtype, bare.problem.cols),
                out_dtype=bare.problem.out_dtype,
                alignment=bare.problem.alignment,
                fixed_order=bare.problem.fixed_order,
                layout=Strided(outer),
            )
            found = winners.winner(problem, rows, ARCH)
            wanted = Variant(problem, bare.strategy)
            assert found == (wanted if bare.strategy.is_legal(problem, ARCH) else None)
            tuned += found is not None
            assert untimed(problem, rows, ARCH).variant.problem == problem
    assert tuned > 150


def test_a_generated_text_says_what_it_takes() -> None:
    source = softgen.generate("softmax_lse", "bfloat16", 4096, strided=3, variant="block")
    assert source.name.startswith("softmax_lse_bf16_4096_strided3_block_")
    signature = source.text[source.text.index("__global__") :].partition("{")[0]
    assert re.sub(r"\s+", " ", signature.partition("const")[2]) == (
        " X* x, Y* y, Compute* lse, long long size1, long long size2, long long x_stride0, "
        "long long x_stride1, long long x_stride2, long long y_stride0, long long y_stride1, "
        "long long y_stride2, long long rows) "
    )
    for line in (
        "//   x: bfloat16 [rows / size1 / size2][size1][size2][4096], strided\n",
        "//     x itself with its strides, or no element of it\n",
        "//   lse: float32 [rows], contiguous",
        "//   size1: int64 number, at least 1",
        "//   y_stride2: int64 number, elements along axis 2",
    ):
        assert line in source.text
    with pytest.raises(InvalidValueError, match="strided must be from 0 to 3, got 4"):
        softgen.generate("softmax", "float32", 100, strided=4)
    assert softgen.generate("softmax", "float32", 100, strided=0).variant.problem.layout == ROWS


def test_commands(tmp_path: Path) -> None:
    ok("emit", "--cols", 1000, "--strided", 2, "--variant", "warp", "--out", tmp_path)
    (entry,) = json.loads((tmp_path / "manifest.json").read_text())["files"].values()
    assert entry["problem"]["layout"] == "strided2"
    x, y, size, *strides = entry["operands"]
    assert (x["shape"], x["strides"]) == (
        ["rows / size1", "size1", 1000],
        ["x_stride0", "x_stride1", 1],
    )
    assert y["strides"] == ["y_stride0", "y_stride1", 1]
    assert (size["name"], size["dtype"], size["shape"]) == ("size1", "int64", [])
    assert [each["name"] for each in strides] == [*x["strides"][:2], *y["strides"][:2]]
    assert entry["arguments"][-1] == "long long rows"
    (name,) = (path.stem for path in tmp_path.glob("*.cu"))
    assert name in ok("emit", "--variant", name, "--stdout").output
    listed = json.loads(ok("list", "--cols", 1000, "--strided", 1, "--json").stdout)
    assert all("_1000_strided1_" in each["name"] for each in listed)
    assert "strided1" in ok("list", "--cols", 1000, "--strided", 1, "--variant", "safe").output
    message = refused(2, "show", name, "--strided", 1)
    assert f"{name} is for --strided 2, and --strided 1 was given" in message
    assert "'--strided'" in refused(2, "list", "--cols", 10, "--strided", 4)
    several = tmp_path / "all"
    ok(
        *("emit", "--all", "--cols", 64, "--dtype", "float32", "--function", "softmax"),
        *("--strided", 1, "--variant", "warp", "--out", several),
    )
    entries = json.loads((several / "manifest.json").read_text())["files"].values()
    assert all("--strided 1" in of for each in entries for of in each["sets"])


def test_the_page_shows_a_command_and_a_header_that_are_there() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "views.md").read_text()
    (command,) = re.findall(r"^```sh\nsoftgen (.*)\n```$", page, re.MULTILINE)
    assert "x_stride" in ok(*command.split()).stdout
    (line,) = re.findall(r"^```text\n(.*)\n```$", page, re.MULTILINE)
    assert line in softgen.generate("softmax", "float32", 1000, strided=2).text
