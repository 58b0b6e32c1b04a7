"""What a kept text or choice stands by: the files that decide its text, all of them, no others."""

from __future__ import annotations

import functools
import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from softgen.source import digest as digests
from softgen.source import render as rendering
from softgen.source.digest import added_strategies, digest
from softgen.source.render import environment, render
from softgen.spec.arch import arch_named
from softgen.spec.functions import all_functions
from softgen.spec.hooks.known import HOOKS
from softgen.spec.layouts import Columns
from softgen.spec.problem import Problem
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant, candidates, parse_name

ROOT = Path(__file__).resolve().parents[3]
H200 = arch_named("sm_90")
BLOCK = parse_name("softmax_f32_1024_block_p4_c8_g128_b128_m12")
ONLINE = parse_name("finish_f32_1000_online_p4_u2_b128")


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a copy of the package and of the templates what a digest is of."""
    for folder in ("softgen", "templates"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    monkeypatch.setattr(rendering, "PACKAGE", tmp_path / "softgen")
    monkeypatch.setattr(rendering, "template_directory", lambda: tmp_path / "templates")
    caches = (environment.cache_clear, render.cache_clear, digests._digest.cache_clear)
    for clear in caches:
        clear()
    yield tmp_path
    monkeypatch.undo()
    for clear in caches:
        clear()


def now(variant: Variant) -> str:
    """Return the digest as another process would find it."""
    digests._digest.cache_clear()
    return digest(variant)


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line)


def templates_of(variant: Variant) -> set[str]:
    """Return the templates that the digest of a variant is made of."""
    function = variant.problem.function
    first = rendering.strategy_template(variant.strategy.name)
    hooks = tuple(f"hooks/{hook.kind}.cuh.j2" for hook in variant.problem.modifiers)
    return set(digests._templates(first, function.template, function.part.name, hooks))


@functools.cache
def variants() -> list[Variant]:
    """Return variants of every function and strategy that go together."""
    found: list[Variant] = []
    for function in all_functions():
        for dtype, cols in (("bfloat16", 4096), ("float32", 250), ("float32", 1 << 22)):
            problem = Problem.of(function, dtype, cols)
            for kind in all_strategies():
                found += itertools.islice(candidates(problem, 64, H200, kind.name), 1)
    along = [
        ("softmax", 4096, 64),
        ("logsumexp", 4096, 64),
        ("softmax", 3, 4),
        ("softmax", 300, 77),
    ]
    for name, cols, inner in (*along, ("softmax_backward", 3, 4), ("softmax_backward", 4096, 64)):
        columns = Problem.of(name, "float32", cols, layout=Columns(inner))
        for kind in all_strategies():
            found += itertools.islice(candidates(columns, 64, H200, kind.name), 1)
    for hook in {hook.kind: hook for hook in HOOKS}.values():
        hooked = Problem.of("softmax", "bfloat16", 4096, hooks=[hook])
        found += itertools.islice(candidates(hooked, 64, H200, "block"), 1)
    narrow = Problem.of("softmax", "bfloat16", 4096, out_dtype="float8_e5m2")
    found += itertools.islice(candidates(narrow, 64, H200, "block"), 1)
    return found


def test_a_digest_is_one_for_all_settings_of_a_strategy() -> None:
    other = parse_name("softmax_bf16_512_block_p8_c16_g64_b128_m10")
    assert digest(BLOCK) == digest(other)
    assert re.fullmatch("[0-9a-f]{16}", digest(BLOCK))
    kinds = {
        (v.problem.function.template, v.problem.function.part, v.problem.hooks, v.strategy.name)
        for v in variants()
    }
    assert len({digest(variant) for variant in variants()}) == len(kinds) >= 40


def test_a_digest_stands_by_itself_in_a_copy(copy: Path) -> None:
    before = now(BLOCK)
    shutil.move(copy / "templates", copy / "elsewhere")
    shutil.copytree(copy / "elsewhere", copy / "templates")
    assert now(BLOCK) == before


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("softgen/spec/numerics.py", "_ULPS = 2.0\n"),
        ("softgen/spec/functions/logsumexp.py", "# another function\n"),
        ("softgen/spec/functions/another.py", "FUNCTIONS = ()\n"),
        ("softgen/strategies/cluster.py", "# another heuristic\n"),
        ("softgen/strategies/another.py", "# another strategy\n"),
        ("softgen/strategies/select.py", "# another choice\n"),
        ("softgen/tuning/cost.py", "# another estimate\n"),
        ("templates/strategies/cluster.cu.j2", "\n"),
        ("templates/functions/logsumexp.cuh.j2", "\n"),
        ("templates/functions/another.cuh.j2", "\n"),
        ("templates/tools/compare.cu.j2", "\n"),
    ],
)
def test_what_decides_no_text_of_a_variant_leaves_its_digest(
    part: str, line: str, copy: Path
) -> None:
    before = now(BLOCK), now(ONLINE)
    append(copy / part, line)
    assert (now(BLOCK), now(ONLINE)) == before


@pytest.mark.parametrize(
    "part",
    [
        "softgen/strategies/block.py",
        "softgen/strategies/sliced.py",
        "softgen/strategies/base.py",
        "softgen/strategies/variants.py",
        "softgen/spec/problem.py",
        "softgen/spec/arch.py",
        "softgen/spec/functions/base.py",
        "softgen/spec/functions/softmax.py",
        "softgen/source/render.py",
        "softgen/source/context.py",
        "softgen/source/cpp.py",
        "softgen/source/header.py",
        "templates/kernel.cu.j2",
        "templates/strategies/block.cu.j2",
        "templates/functions/softmax.cuh.j2",
        "templates/functions/row_lse.cuh.j2",
        "templates/lib/ptx/word.cuh.j2",
    ],
)
def test_what_decides_its_text_changes_a_digest(part: str, copy: Path) -> None:
    before = now(BLOCK)
    append(copy / part, "# a comment\n")
    assert now(BLOCK) != before


def test_a_function_brings_the_modules_that_it_imports(copy: Path) -> None:
    before = now(BLOCK), now(ONLINE)
    append(copy / "softgen/spec/functions/partial.py", "# finish takes its pair from here\n")
    assert now(BLOCK) == before[0]
    assert now(ONLINE) != before[1]


def test_every_template_that_is_loaded_changes_the_digest(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Jinja takes for a text is asked of Jinja: the digest finds no less by reading."""
    taken: set[str] = set()
    get_template = environment().get_template

    def note(name: str, *arguments: Any) -> Any:
        taken.add(name)
        return get_template(name, *arguments)

    monkeypatch.setattr(environment(), "get_template", note)
    ever: set[str] = set()
    kinds = {(v.problem.function, v.problem.hooks, v.strategy): v for v in variants()}
    for variant in kinds.values():
        taken.clear()
        render.cache_clear()
        render(variant)
        ever |= taken
        assert taken <= templates_of(variant), variant.name
    assert len(ever) >= 40


def test_every_template_of_a_kernel_changes_a_digest(copy: Path) -> None:
    # The digest of a kind is one, whatever its widths and settings. Few kinds have all templates.
    kinds = {(v.problem.function, v.problem.hooks, v.strategy.name): v for v in variants()}
    every: dict[Variant, set[str]] = {}
    had: set[str] = set()
    for variant in sorted(kinds.values(), key=lambda variant: -len(templates_of(variant))):
        if templates_of(variant) - had:
            every[variant] = templates_of(variant)
            had |= templates_of(variant)
    files = [path for path in (copy / "templates").rglob("*") if path.is_file()]
    assert len(files) >= 40
    before = {variant: now(variant) for variant in every}
    for path in files:
        name, text = path.relative_to(copy / "templates").as_posix(), path.read_bytes()
        path.write_bytes(text + b"\n")
        likely = sorted(every, key=lambda variant: name not in every[variant])
        changed = any(now(variant) != before[variant] for variant in likely)
        assert changed == (not {"tools", "project"} & set(path.parts)), path
        path.write_bytes(text)
    assert before == {variant: now(variant) for variant in every}
    kernel = copy / "templates" / "kernel.cu.j2"
    kernel.rename(kernel.with_name("renamed.cu.j2"))
    assert not set(before.values()) & {now(variant) for variant in every}


@pytest.mark.parametrize(
    ("tag", "known"),
    [
        ('/*% include "lib/reduce/exchange.cuh.j2" %*/', True),
        ('/*%- include "lib/reduce/exchange.cuh.j2" ignore missing -%*/', True),
        ('/*% from "lib/reduce/exchange.cuh.j2" import kick with context %*/', True),
        ('/*% include "lib/" ~ "reduce/exchange.cuh.j2" %*/', False),
        ('/*% include ["lib/reduce/exchange.cuh.j2", "kernel.cu.j2"] %*/', False),
        ('/*% include "a" if launch.cooperative else "lib/reduce/exchange.cuh.j2" %*/', False),
    ],
)
def test_a_name_that_is_computed_stands_for_every_template(
    tag: str, known: bool, copy: Path
) -> None:
    append(copy / "templates/strategies/block.cu.j2", tag + "\n")
    before = now(BLOCK)
    append(copy / "templates/lib/reduce/exchange.cuh.j2", "\n")
    after = now(BLOCK)
    assert after != before
    append(copy / "templates/tools/compare.cu.j2", "\n")
    assert (now(BLOCK) == after) == known


def test_a_module_of_ones_own_counts_with_its_bases(tmp_path: Path, copy: Path) -> None:
    import importlib.util
    import sys

    path = tmp_path / "my_function.py"
    path.write_text(
        "from softgen.spec.functions.logsumexp import LogSumExp\n"
        "class Mine(LogSumExp):\n    template = 'logsumexp'\n"
    )
    spec = importlib.util.spec_from_file_location("my_function", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_function"] = module
    try:
        spec.loader.exec_module(module)
        problem = Problem.of(module.Mine(), "float32", 1024)
        mine = Variant(problem, BLOCK.strategy)
        seen = {now(mine)}
        append(path, "# changed\n")
        seen.add(now(mine))
        append(copy / "softgen/spec/functions/logsumexp.py", "# changed\n")
        seen.add(now(mine))
        assert len(seen) == 3
    finally:
        del sys.modules["my_function"]


def change_module(copy: Path) -> None:
    append(copy / "softgen/strategies/thread.py", "# changed\n")


def change_template(copy: Path) -> None:
    append(copy / "templates/strategies/thread.cu.j2", "\n")


@pytest.mark.parametrize("change", [change_module, change_template])
def test_a_strategy_that_is_added_lets_all_choices_be_made_again(
    change: Callable[[Path], None], copy: Path
) -> None:
    assert added_strategies() == ""
    append(copy / "softgen/strategies/thread.py", "# a strategy\n")
    append(copy / "templates/strategies/thread.cu.j2", "a template\n")
    before = added_strategies()
    assert re.fullmatch("[0-9a-f]{16}", before)
    assert added_strategies() == before
    change(copy)
    assert added_strategies() not in ("", before)
