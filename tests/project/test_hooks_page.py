"""The pages of hooks: their Python, their tables, and the template that one shows."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest

import softgen
from softgen.errors import InvalidValueError
from softgen.problems.functions import all_functions
from softgen.problems.hooks.known import HOOKS
from softgen.problems.layouts import Columns, Rows
from softgen.problems.problem import Problem
from softgen.strategies.registry import all_strategies
from tests.helpers.plugin import EXAMPLE

ROOT = Path(__file__).resolve().parents[2]
HOOKS_PAGE, TABLES, ADDING = (
    (ROOT / "docs" / f"{name}.md").read_text() for name in ("hooks", "hooks_table", "adding_a_hook")
)
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", ADDING, re.MULTILINE | re.DOTALL)


@pytest.mark.usefixtures("host_built")
def test_the_example_prints_what_the_page_says() -> None:
    (code,) = (body for kind, body in BLOCKS if kind == "python" and "emulator" in body)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/adding_a_hook.md", "exec"), {})
    assert f"It prints `{printed.getvalue().strip()}`" in ADDING
    assert printed.getvalue().strip() == "True True True"


def test_the_template_is_the_one_that_is_there() -> None:
    (shown,) = (body for kind, body in BLOCKS if kind == "cuda")
    assert shown == (EXAMPLE / "softgen_example/templates/hooks/ceiling.cuh.j2").read_text()


def test_the_table_names_every_hook() -> None:
    table = HOOKS_PAGE[HOOKS_PAGE.index("| hook |") :].partition("\n\n")[0]
    for hook in HOOKS:
        name = hook.name.removesuffix("any") if hook.kind == "bias" else hook.name
        assert f"`{name}`" in table, hook.name


def by_name(function: str, hook: str) -> bool:
    try:
        Problem.of(function, "float32", 300, hooks=[hook])
    except InvalidValueError:
        return False
    return True


def test_the_table_of_functions_is_what_they_take() -> None:
    """By name as `Problem` says; a "yes" is of a call that has arguments for hooks."""
    title, _, *lines = TABLES[TABLES.index("| function |") :].partition("\n\n")[0].splitlines()
    columns = [re.findall(r"`(\w+)`", cell) for cell in title.strip("|").split("|")[1:]]
    written = {"empty_rows": "zeroempty", "out_scale": "outscale"}
    kinds = {written.get(name, name) for column in columns for name in column}
    assert kinds == {hook.kind for hook in HOOKS}
    seen: set[str] = set()
    for line in lines:
        names, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        functions = re.findall(r"`(\w+)`", names)
        seen.update(functions)
        for column, cell in zip(columns, cells, strict=True):
            said = re.sub(r" \(\d\)$", "", cell)
            kinds = {written.get(name, name) for name in column}
            hooks = [hook.name for hook in HOOKS if hook.kind in kinds]
            for function in functions:
                taken = {by_name(function, hook) for hook in hooks}
                assert taken == {said in ("yes", "by name")}, (function, column)
                call = getattr(softgen, function, None)
                if call is not None and said != "no":
                    options = inspect.signature(call).parameters.get("options")
                    has = options is not None and "Hooked" in str(options.annotation)
                    assert has is (said == "yes"), (function, column)
    assert seen == {function.name for function in all_functions() if not function.twin}


def test_the_table_of_strategies_is_what_they_say() -> None:
    lines = TABLES[TABLES.index("| | `warp`") :].splitlines()
    strategies = re.findall(r"`(\w+)`", lines[0])
    of_rows = {kind.name for kind in all_strategies() if kind.tuned and Rows in kind.layouts}
    assert {*strategies, "tiles"} == of_rows
    kept = {kind.name: kind for kind in all_strategies()}
    assert "`tiles` takes along the last axis what it takes along others." in TABLES
    for each in HOOKS:
        along = (Problem.of("softmax", "float32", 300, hooks=[each], layout=x) for x in ("", "in8"))
        assert len({kept["tiles"].computes(problem) for problem in along}) == 1, each
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
                assert kept[strategy].computes(problem) is (cell == "yes"), (said, strategy)
    assert seen == {*kinds}


def test_the_table_of_strategies_along_another_axis_is_what_they_say() -> None:
    title, _, *lines = (
        TABLES[TABLES.index("| along another axis") :].partition("\n\n")[0].splitlines()
    )
    strategies = re.findall(r"`(\w+)`", title)
    kept = {kind.name: kind for kind in all_strategies()}
    assert {*strategies} == {n for n, k in kept.items() if k.tuned and Columns in k.layouts}
    free = ("scale", "outscale", "zeroempty")  # of the first line; all others are of the second
    for hook in HOOKS:
        cells = lines[0 if hook.name in free else 1].strip("|").split("|")[1:]
        problem = Problem.of("softmax", "float32", 300, hooks=[hook], layout=Columns(8))
        for strategy, cell in zip(strategies, cells, strict=True):
            said = re.sub(r" \(\d\)$", "", cell.strip())
            assert kept[strategy].computes(problem) is (said == "yes"), (hook.name, strategy)
