"""The package of examples/plugin, installed into a folder: a copy that a test may break."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "plugin"
NAMES = ("ceiling", "logmeanexp", "thread")

# A program that runs kernels, by their names, on the emulator: a line each, with any objections.
VERIFY = """
import sys
from softgen.source.render import render
from softgen.problems.arch import arch_named
from softgen.strategies.variants import parse_name
from softgen.verify.emulated import on_emulator

variants = [parse_name(name) for name in sys.argv[1:]]
for variant in variants:
    variant.check(arch_named("sm_90"))
sources = [render(variant) for variant in variants]
for source, verdicts in zip(sources, on_emulator(sources), strict=True):
    print(source.name, len(verdicts), *[one.objection for one in verdicts if one.objection])
"""


def install(folder: Path, *, package: str = "softgen_example") -> Path:
    """Put the package into `folder` as an installer does; return its folder of modules."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(EXAMPLE / "softgen_example", folder / package, ignore=ignored)
    info = folder / f"{package}-0.1.0.dist-info"
    info.mkdir()
    name = package.replace("_", "-")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    points = "".join(f"{name} = {package}.{name}\n" for name in NAMES)
    (info / "entry_points.txt").write_text(f"[softgen]\n{points}")
    return folder / package


def python(package: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run Python where softgen and an installed package are found."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{package.parent}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
