"""Build the site: `python docs/build.py FOLDER` leaves it in FOLDER, to be opened from disk.

Sphinx makes the pages, with warnings as errors. The explorer is one page beside them: its data are
the CSV files of benchmark/, its plots are uPlot's, which npm installs as package-lock.json says,
and the sources of the kernels that it names are emitted here. It needs what `pip install '.[docs]'`
brings, PyTorch, and npm; no GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from softgen.bench.record import LIMIT, SOFTGEN, Record, read_csv, timed_calls  # noqa: E402
from softgen.bench.roster import others  # noqa: E402
from softgen.bench.shape import Shape  # noqa: E402
from softgen.bench.suites import GRID, SUITES, shapes_of  # noqa: E402
from softgen.errors import SoftgenError  # noqa: E402
from softgen.problems.functions.base import Function  # noqa: E402
from softgen.problems.problem import Problem  # noqa: E402
from softgen.source.render import render  # noqa: E402
from softgen.strategies.variants import Variant, parse_name  # noqa: E402

PAGE = ("index.html", "explorer.js", "explorer.css")
UPLOT = {  # and what it is called here
    "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "dist/uPlot.min.css": "uPlot.min.css",
    "LICENSE": "uPlot-LICENSE.txt",
}


def shape_of(record: Record) -> Shape | None:
    """Return the call that a record is of, or None where the suites have it no more."""
    for shape in shapes_of([record.suite]) if record.suite in SUITES else ():
        if (shape.dtype.value, shape.rows, shape.cols) == (record.dtype, record.rows, record.cols):
            if not record.case and not shape.case:
                return Shape(
                    shape.suite,
                    shape.dtype,
                    shape.rows,
                    shape.cols,
                    function=Function.of(record.function),
                )
            if str(shape.case or "") == record.case and shape.function.name == record.function:
                return shape
    return None


def winner(record: Record) -> Variant | None:
    """Return the kernel of softgen's record, or None where its note names none of today's."""
    shape = shape_of(record)
    try:
        problem = shape.problem if shape else Problem.of(record.function, record.dtype, record.cols)
        return parse_name(f"{problem.label}_{record.note}")
    except SoftgenError:  # a call through a view or with hooks, or a setting of an older version
        return None


def calls_of(path: Path) -> list[dict[str, Any]]:
    """Return the calls of a file, each with who was timed at it."""
    found = []
    for records in timed_calls(path):
        first, mine = next(iter(records.values())), records.get(SOFTGEN)
        variant = winner(mine) if mine else None
        found.append(
            {
                "function": first.function,
                "dtype": first.dtype,
                "rows": first.rows,
                "cols": first.cols,
                "case": first.case,
                "setting": mine.note if mine else "",
                "kernel": variant.name if variant else "",
                "knobs": variant.strategy.knobs if variant else {},
                "peers": [
                    [
                        *(each.peer, each.microseconds, each.gigabytes_per_second),
                        *(each.ratio_to_limit, each.microseconds_p20, each.microseconds_p80),
                    ]
                    for each in records.values()
                ],
            }
        )
    return found


def explorer(out: Path) -> None:
    """Write the explorer, its data and the sources of its kernels."""
    (out / "sources").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(DOCS / "explorer" / name, Path(folder) / name)
        subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=folder, check=True)
        for name, here in UPLOT.items():
            shutil.copyfile(Path(folder) / "node_modules" / "uplot" / name, out / here)
    for name in PAGE:
        shutil.copyfile(DOCS / "explorer" / name, out / name)
    suites: list[dict[str, Any]] = []
    for path in sorted((DOCS / "benchmark").glob("*.csv")):
        calls = calls_of(path) if path.stem != GRID else []
        first = read_csv(path)[0]
        if calls:
            suites.append(
                {
                    "name": path.stem,
                    "suite": first.suite,
                    "device": first.device,
                    "driver": first.driver,
                    "versions": first.versions,
                    "calls": calls,
                }
            )
    data = {"limit": LIMIT, "softgen": SOFTGEN, "others": sorted(others()), "suites": suites}
    (out / "data.js").write_text(f"const DATA = {json.dumps(data, separators=(',', ':'))};\n")
    names = {call["kernel"] for suite in suites for call in suite["calls"]} - {""}
    for name in names:
        text = json.dumps(render(parse_name(name)).text)
        # A script, because a page on disk may not read a file beside it.
        (out / "sources" / f"{name}.js").write_text(f"emitted({json.dumps(name)}, {text});\n")
    every = sum(len(suite["calls"]) for suite in suites)
    print(f"explorer: {len(suites)} files, {every} calls, sources of {len(names)} kernels")


def pages(out: Path) -> None:
    """Run Sphinx, with warnings as errors."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "2"]
    subprocess.run([*command, "-b", "html", str(DOCS), str(out)], check=True)
    print(f"site: {len(list(out.rglob('*.html')))} pages, 0 warnings, 0 broken internal links")


if __name__ == "__main__":
    (folder,) = sys.argv[1:]
    pages(Path(folder))
    explorer(Path(folder) / "explorer")
