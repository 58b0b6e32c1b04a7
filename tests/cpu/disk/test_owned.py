"""Files of every function are known as softgen's own, and go with `softgen cache clear`."""

from __future__ import annotations

from pathlib import Path

import pytest

from softgen.disk import folders, owned
from softgen.problems.arch import arch_named
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.problem import Problem
from softgen.source import store
from softgen.strategies.variants import Variant, best_guess
from softgen.tuning.entry import Key


def variants(function: Function) -> list[Variant]:
    problems = (
        Problem.of(function, "float32", 1000),
        Problem.of(function, "bfloat16", 1001, out_dtype="float32", alignment=1, fixed_order=True),
    )
    return [best_guess(problem, 64, arch_named("sm_90")) for problem in problems]


@pytest.mark.parametrize("function", all_functions(), ids=str)
def test_files_of_each_function(function: Function, own_cache: Path) -> None:
    for variant in variants(function):
        store.source_of(variant)
        for kind, name in (
            ("sources", f"{variant.name}.cu"),
            ("tuned", Key.of(variant.problem, 64, {"device": "any"}).file_name),
        ):
            (folders.made(kind) / name).write_bytes(owned.sealed(b""))
    for kind in ("texts", "sources", "tuned"):
        found = {path.name for path in owned.files(kind, own_cache / kind)}
        there = {path.name for path in (own_cache / kind).iterdir()} - {owned.MARKER}
        assert found == there
        assert len(found) == 2


@pytest.mark.parametrize(
    "name", ["notes.cu", "my_softmax.cu", "softmax_f32.cu", "f32_1000_safe.cu"]
)
def test_files_of_others(name: str, own_cache: Path) -> None:
    folder = folders.made("sources")
    (folder / name).write_text("")
    assert owned.files("sources", folder) == []
