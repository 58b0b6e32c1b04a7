"""Sources to break, inputs for them, and what launches on the emulator make of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import pytest

from softgen.devices.emulator import Job, Results, build, run
from softgen.errors import EmulationError
from softgen.problems import numerics
from softgen.problems.arch import arch_named
from softgen.problems.numerics import Storage
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, candidates
from softgen.strategies.warp import Warp
from softgen.verify.emulated import on_emulator

ARCH = arch_named("sm_90")


def source_of(strategy: str, cols: int, dtype: str = "float32") -> Source:
    """Return a kernel whose knobs do not depend on anybody's idea of the best ones."""
    problem = Problem.of("softmax", dtype, cols)
    settings = {
        "safe": Safe(128),
        "online": Online(4, 1, 128),
        "warp": Warp.covering(problem, min(4, problem.alignment), 8, 1, 128),
    }
    return render(Variant(problem, settings[strategy]))


def broken(source: Source, old: str, new: str) -> Source:
    """Return a copy of `source` with the first `old` of its text replaced by `new`."""
    assert old in source.text, f"{source.name} no longer says {old!r}"
    return dataclasses.replace(source, text=source.text.replace(old, new, 1))


def written(body: str, *, cols: int = 64, block: int = 64, dtype: str = "float32") -> Source:
    """Return a kernel with the text `body`; x, y, rows and kCols are what emitted files call so."""
    variant = Variant(Problem.of("softmax", dtype, cols), Safe(block))
    text = (
        f"constexpr int kCols = {cols};\n"
        'extern "C" __global__ void kernel(const float* x, float* y, long long rows) {\n'
        f"{body}\n}}\n"
    )
    return dataclasses.replace(render(variant), symbol="kernel", text=text)


def input_of(source: Source, rows: int) -> Storage:
    """Return random rows in storage form."""
    problem = source.variant.problem
    values = np.random.default_rng(rows).standard_normal((rows, problem.cols))
    return numerics.encode(values, problem.dtype)


def run_rows(source: Source, rows: int, **options: int | bool) -> Storage:
    """Run `source` on random rows."""
    return run(source, input_of(source, rows), **options)


def report_of(source: Source, rows: int = 3, **options: int | bool) -> str:
    """Return the report that stops `source` on random rows."""
    with pytest.raises(EmulationError) as stopped:
        run_rows(source, rows, **options)
    return str(stopped.value)


def best_of_each(problem: Problem) -> dict[str, Source]:
    """Return the best guess of every strategy that computes a problem."""
    found = {}
    for kind in all_strategies():
        for variant in candidates(problem, 64, ARCH, kind.name):
            found[kind.name] = render(variant)
            break
    return found


def objections(sources: Sequence[Source]) -> list[str]:
    """Return what is wrong with sources in the regimes of the verification, a line each."""
    return [
        f"{source.name}: {verdict.objection}"
        for source, verdicts in zip(sources, on_emulator(sources), strict=True)
        for verdict in verdicts
        if verdict.objection
    ]


def require_seen(mistakes: Sequence[tuple[Source, str, str, str]]) -> None:
    """Require an objection to each of (source, old, new, pattern), which it matches."""
    sources = [broken(source, old, new) for source, old, new, _ in mistakes]
    for (_, old, _, seen), verdicts in zip(mistakes, on_emulator(sources, seconds=5), strict=True):
        objection = next((v.objection for v in verdicts if v.objection), "")
        assert re.search(seen, objection), (old, objection)


def outcomes(jobs: Sequence[Job]) -> list[tuple[Job, Results | None, str]]:
    """Run launches, built together; return each with its results and what is wrong with them."""
    found: list[tuple[Job, Results | None, str]] = []
    ran = build([job.source for job in jobs]).run_counted(jobs)
    for job, result in zip(jobs, ran, strict=True):
        if isinstance(result, EmulationError):
            found.append((job, None, f"{job.source.name}: {result}"))
            continue
        variant = job.source.variant
        exponent_error = variant.strategy.exponent_error(job.problem)
        accuracy = numerics.check(result[0], job.inputs, job.problem, exponent_error)
        told = "" if accuracy.ok else f"{job.source.name}: {accuracy.message}"
        found.append((job, result[0], told))
    return found


def wrong_of(jobs: Sequence[Job]) -> list[str]:
    """Return what is wrong with the results of launches, a line each."""
    return [told for _, _, told in outcomes(jobs) if told]


def right_of(jobs: Sequence[Job]) -> list[tuple[Job, Results]]:
    """Return launches with their results, which have to be right."""
    found = []
    for job, results, told in outcomes(jobs):
        assert results is not None, told
        assert told == ""
        found.append((job, results))
    return found


def results_of(jobs: Sequence[Job]) -> list[Results]:
    """Return the results of launches, built together, none of which may be stopped."""
    found = []
    ran = build([job.source for job in jobs]).run_counted(jobs)
    for job, result in zip(jobs, ran, strict=True):
        assert not isinstance(result, EmulationError), f"{job.source.name}: {result}"
        found.append(result[0])
    return found
