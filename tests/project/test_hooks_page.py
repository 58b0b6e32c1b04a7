"""docs/hooks.md: its Python, its tables, and the template that it shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

from softgen.spec.hooks import HOOKS
from softgen.spec.layouts import Rows
from softgen.spec.problem import Problem
from softgen.strategies.registry import all_strategies

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "hooks.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_the_page_says() -> None:
    (code,) = (body for kind, body in BLOCKS if kind == "python" and "emulator" in body)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/hooks.md", "exec"), {})
    assert f"It prints `{printed.getvalue().strip()}`" in PAGE
    assert printed.getvalue().strip() == "True True True"


def test_the_template_is_the_one_that_is_there() -> None:
    (shown,) = (body for kind, body in BLOCKS if kind == "cuda")
    assert shown == (ROOT / "templates" / "hooks" / "scale.cuh.j2").read_text()


def test_the_table_names_every_hook() -> None:
    table = PAGE[PAGE.index("| hook |") : PAGE.index("\n\n- What a length")]
    for hook in HOOKS:
        name = hook.name.removesuffix("any") if hook.kind == "bias" else hook.name
        assert f"`{name}`" in table, hook.name


def test_the_table_of_strategies_is_what_they_say() -> None:
    lines = PAGE[PAGE.index("| | `warp`") :].splitlines()
    strategies = re.findall(r"`(\w+)`", lines[0])
    of_rows = {kind.name for kind in all_strategies() if kind.tuned and Rows in kind.layouts}
    assert {*strategies} == of_rows
    by_name = {kind.name: kind for kind in all_strategies()}
    kinds = {hook.kind: hook for hook in HOOKS}
    rows = {"empty_rows": "zeroempty", "out_scale": "outscale"}
    seen = set()
    for line in lines[2:6]:
        hooks, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for said in hooks.split(", "):
            hook = kinds[rows.get(said, said)]
            seen.add(hook.kind)
            problem = Problem.of("softmax", "float32", 1 << 20, hooks=[hook])
            for strategy, cell in zip(strategies, cells, strict=True):
                assert by_name[strategy].computes(problem) is (cell == "yes"), (said, strategy)
    assert seen == {*kinds}
