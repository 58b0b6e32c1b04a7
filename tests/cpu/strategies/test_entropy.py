"""entropy on the emulator: hooks by every strategy, and what only its own part can get wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softgen.devices.emulator import run_each
from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.layouts import Columns, Rows
from softgen.problems.numerics import check, encode
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Feature
from softgen.strategies.registry import all_strategies
from softgen.strategies.select import select
from tests.helpers.cli_helpers import ok
from tests.helpers.emulator_helpers import best_of_each, broken, objections

ARCH = arch_named("sm_90")
OF_PARTS = [kind for kind in all_strategies() if Feature.PARTS in kind.takes]
STRATEGIES = {kind.name for kind in OF_PARTS if Rows in kind.layouts}
SINK = ("scalerow", "mask", "sinkf32")
ENDS = ("scale", "lengthsi32", "causal", "sinkf16")


def sources(name: str, cols: int, dtype: str, hooks: tuple[str, ...]) -> dict[str, Source]:
    """Return the best guess of every strategy that computes it."""
    return best_of_each(Problem.of(name, dtype, cols, hooks=hooks))


def test_rows_are_of_every_strategy_but_those_of_columns_and_lessons() -> None:
    assert {"warp", "block", "cluster", "shared", "split", "online", "safe"} == STRATEGIES
    problem = Problem.of("entropy", "float32", 96, layout=Columns(8))
    found = {kind.name for kind in all_strategies() if kind.computes(problem)}
    assert found == {"safe", "strips"}


def test_hooks_by_every_strategy() -> None:
    """A sink is an element more of the part; what is hidden adds nothing."""
    found = sources("entropy_lse", 1000, "float32", SINK)
    wide = sources("entropy", 9000, "bfloat16", SINK)
    found |= {name: wide[name] for name in ("cluster", "split", "shared")}
    assert set(found) == STRATEGIES
    ends = sources("entropy", 257, "float16", ENDS)
    assert set(ends) >= {"warp", "block", "online", "safe"}
    assert objections([*found.values(), ends["block"]]) == []


@pytest.mark.parametrize(
    ("choice", "cols", "old", "new"),
    [
        ("online", 1000, "max(z, Compute(-1024))", "z"),  # 0 times -inf
        ("online", 1000, "factor == 0 ? 0 : part.d.value() * z", "part.d.value() * z"),
        ("online_p4_u1_b128", 4096, "part.s += factor == 0 ? 0 : part.d.value() * z;", ""),
        ("block", 1000, "(part.s + part.d * z) * factor", "part.s * factor"),
        ("block", 1000, "factor == 0 ? 0 : ", ""),
        ("warp", 100, "dot / sum", "dot"),
    ],
)
def test_what_only_its_part_gets_wrong_is_seen(choice: str, cols: int, old: str, new: str) -> None:
    source = render(select(Problem.of("entropy", "float32", cols), 64, ARCH, choice))
    assert objections([broken(source, old, new)])


def test_it_is_as_right_where_the_maximum_is_large_and_rises_late() -> None:
    """H is what does not depend on the maximum: log d + |s| / d, of which nothing cancels."""
    x = np.sort(np.random.default_rng(2).standard_normal((4, 4099)), axis=1) + 3e4
    given = encode(x, DType.FLOAT32)
    by = sources("entropy", 4099, "float32", ())
    for source in (by["online"], by["split"]):
        (found,) = run_each(source, given)
        assert check((found,), (given,), source.variant.problem).message == ""


def test_a_command_line_gives_the_gradient(tmp_path: Path) -> None:
    x = np.random.default_rng(3).standard_normal((5, 40)).astype(np.float32)
    files = {name: tmp_path / f"{name}.npy" for name in ("x", "lse", "entropy", "upstream", "dx")}
    np.save(files["x"], x)
    run = ("run", "--device", "cpu", "--input", str(files["x"]))
    ok(
        *run,
        "--function",
        "entropy_lse",
        "--output",
        str(files["entropy"]),
        "--result",
        f"lse={files['lse']}",
    )
    np.save(files["upstream"], np.full(5, 2.0, np.float32))
    given = [f"{name}={files[name]}" for name in ("lse", "entropy", "upstream")]
    operands = [word for each in given for word in ("--operand", each)]
    ok(*run, "--function", "entropy_backward", *operands, "--output", str(files["dx"]))
    wanted = Function.of("entropy_backward").reference(
        *(np.load(files[name]).astype(np.float64) for name in ("x", "lse", "entropy", "upstream"))
    )
    np.testing.assert_allclose(np.load(files["dx"]), wanted[0], rtol=2e-5, atol=1e-6)
