"""Sources to break, and inputs for them."""

from __future__ import annotations

import dataclasses
import fcntl
import shutil
from pathlib import Path

import numpy as np
import pytest

from softgen.devices.emulator import build, run
from softgen.devices.emulator.folder import KIND
from softgen.source.render import Source, render
from softgen.spec import numerics
from softgen.spec.arch import arch_named
from softgen.spec.numerics import Storage
from softgen.spec.problem import Problem
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.strategies.warp import Warp
from tests.helpers.run_folder import run_folder

ARCH = arch_named("sm_90")


def put_host(factory: pytest.TempPathFactory, cache: Path) -> None:
    """Put the emulator's own side, which takes 2 to 5 seconds to build, into a cache folder.

    It is built once for all processes of a run.
    """
    shutil.copytree(_host(factory), cache / KIND, ignore=shutil.ignore_patterns("unit-*"))


def _host(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs that has it."""
    run, kept = run_folder(factory), run_folder(factory) / "host" / KIND
    with (run / "host.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            patch.setenv("SOFTGEN_CACHE_DIR", str(run / "making"))
            build([source_of("safe", 8)])
            (run / "making").rename(run / "host")
    return kept


def share_programs(factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep built programs for all tests of a run."""
    folder, host = run_folder(factory) / "programs", _host(factory)
    with (run_folder(factory) / "host.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.copytree(host, folder, ignore=shutil.ignore_patterns("unit-*"))
    monkeypatch.setattr("softgen.devices.emulator.program.program_folder", lambda: folder)


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
