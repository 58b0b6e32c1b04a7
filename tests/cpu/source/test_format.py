"""Emitted files are clang-format clean under the repository's own .clang-format."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.layouts import Columns
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, candidates
from tests.helpers.single import BOTH

STYLE = Path(__file__).parents[3] / ".clang-format"


def check_format(files: list[Path]) -> str:
    """Return clang-format's complaints about `files`."""
    executable = shutil.which("clang-format", path=sysconfig.get_path("scripts"))
    assert executable, "clang-format comes with the [test] extra"
    ran = subprocess.run(
        [executable, "--dry-run", "-Werror", f"--style=file:{STYLE}", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode != 0) == bool(ran.stderr)
    return ran.stderr


def sample() -> list[Variant]:
    """Return variants spread over types, widths and knobs; functions and orders take turns."""
    found: dict[str, Variant] = {}
    wide = [(8, 1), (1000, None), (1024, 2), (50257, None), (1_000_000_000_000, None)]
    for turn, dtype in enumerate(DType):
        for number, (cols, alignment) in enumerate(wide):
            out = dtype if number % 2 == 0 else DType.FLOAT32
            problem = Problem.of(
                *([*BOTH][(turn + number) // 2 % 2], dtype, cols),
                out_dtype=out,
                alignment=alignment,
                fixed_order=(turn + number) % 2 == 1,
            )
            found |= spread(problem)
        columns = ((2, 9), (77, 1001), (1024, 21), (2**20, 300), (4, 200_000))
        for number, (inner, cols) in enumerate(columns, turn):
            algorithm = [*BOTH][number % 2]
            found |= spread(Problem.of(algorithm, dtype, cols, layout=Columns(inner)))
    return list(found.values())


def spread(problem: Problem) -> dict[str, Variant]:
    """Return the first and the last candidate of each strategy, by name."""
    found: dict[str, Variant] = {}
    for kind in all_strategies():
        some = list(candidates(problem, 64, arch_named("sm_90"), kind.name))
        for variant in some[:: max(1, len(some) - 1)]:
            found[variant.name] = variant
    return found


def test_emitted_files_are_formatted(tmp_path: Path) -> None:
    variants = sample()
    assert len(variants) >= 120
    assert {v.strategy.name for v in variants} == {kind.name for kind in all_strategies()}
    files = []
    for variant in variants:
        files.append(tmp_path / f"{variant.name}.cu")
        files[-1].write_text(render(variant).text)
    assert check_format(files) == ""


def test_emitted_files_for_views_are_formatted(tmp_path: Path) -> None:
    files = []
    for outer in (1, 2, 3):
        for cols, alignment, fixed_order in (
            (1000, None, False),
            (50257, 1, True),
            (65536, None, False),
        ):
            problem = Problem.of(
                *("softmax_lse", "bfloat16", cols),
                alignment=alignment,
                fixed_order=fixed_order,
                layout=f"strided{outer}",
            )
            for kind in all_strategies():
                for variant in list(candidates(problem, 64, arch_named("sm_90"), kind.name))[:1]:
                    files.append(tmp_path / f"{variant.name}.cu")
                    files[-1].write_text(render(variant).text)
    assert len(files) > 30
    assert check_format(files) == ""


def test_emitted_files_of_sharded_rows_are_formatted(tmp_path: Path) -> None:
    files = []
    for function in ("softmax", "entropy"):
        for dtype, cols in (("float64", 1001), ("float32", 20000), ("float16", 100)):
            problem = Problem.of(function, dtype, cols, layout="sharded")
            for variant in spread(problem).values():
                files.append(tmp_path / f"{variant.name}.cu")
                files[-1].write_text(render(variant).text)
    assert len(files) > 12
    assert check_format(files) == ""


def test_emitted_files_that_choose_or_draw_are_formatted(tmp_path: Path) -> None:
    files = []
    for number, function in enumerate(
        (
            *(
                "topk_softmax_k8",
                "topk_softmax_k40_sigmoid_bias_norm",
                "topk_softmax_k5_bias_g4of2",
            ),
            *("topk_softmax_k5_sigmoid_g4of2", "topk_softmax_k50_norm", "ranked_log_probs_top20"),
            *("ranked_log_probs_top50_k40", "sample_seeds", "sample_filtered_rows", "sample_k32"),
        )
    ):
        for turn, dtype in enumerate(DType):
            cols = (100, 1000, 4096, 128256)[(number + turn) % 4]
            for variant in spread(Problem.of(function, dtype, cols)).values():
                files.append(tmp_path / f"{variant.name}.cu")
                files[-1].write_text(render(variant).text)
    assert len(files) > 100
    assert check_format(files) == ""


def test_the_check_sees_a_badly_formatted_line(tmp_path: Path) -> None:
    problem = Problem.of("softmax", "float32", 1000)
    text = render(next(candidates(problem, 64, arch_named("sm_90")))).text
    bad = tmp_path / "bad.cu"
    bad.write_text(text.replace("constexpr int kPackSize", "constexpr  int kPackSize"))
    assert "code should be clang-formatted" in check_format([bad])
