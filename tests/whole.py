"""`python -m tests.whole`: all of what the usual run of the tests takes a part of, for time.

Each piece is a command of its own, and one runs after another. A line for each says its result and
its minutes, and what a piece that failed printed last. With names of pieces only those run;
`--list` names them. It exits with 1 if one failed. On two cores all of it takes hours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES = 40  # that are shown of a piece that failed

PYTEST = ("pytest", "-q", "-n", "0", "-p", "no:cacheprovider")

# By name, what runs: a module and its arguments.
PIECES: dict[str, Sequence[str]] = {
    # Every candidate of 1000 columns for every architecture, and every best choice of other widths.
    "machine-code": (
        *PYTEST,
        *("tests/cpu/devices/test_compile.py", "tests/cpu/strategies/test_fixed_order.py"),
    ),
    # Best guesses of every pair of types, width and architecture.
    "spills": ("tests.spill_grid", os.devnull),
    # Every text that is verified, for one architecture each.
    "compiles": ("tests.compiles",),
    # Kernels by every strategy where the strategies take turns: packed elements, hooks, row limits.
    "strategies": (
        *PYTEST,
        *(f"tests/cpu/strategies/test_{name}.py" for name in ("packed", "hooks", "features")),
        "tests/cpu/strategies/test_row_limits.py",
    ),
    # Drawn kernels against a reference of its own, and drawn calls beside PyTorch's.
    "differential": ("tests.differential", "4000"),
    "torch-calls": ("tests.torch_calls", "1000"),
    # Drawn choices and samples.
    "topk": ("tests.cpu.verify.test_topk_softmax", "240"),
    "ranked": ("tests.cpu.verify.test_ranked_log_probs", "240"),
    "sample": ("tests.cpu.verify.test_sample", "100000"),
    # Calls without end: memory and values.
    "soak": ("tests.soak", "1000000"),
    "soak-torch": ("tests.soak", "1000000", "--calls", "torch"),
    # Broken kernels, and every kernel that is verified.
    "mutation": ("tests.mutation", "180"),
    "verify": ("softgen", "verify", "--all"),
}


def run(name: str, command: Sequence[str]) -> bool:
    """Run a piece, print a line on it, and return whether it succeeded."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, "SOFTGEN_TEST_WHOLE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        lines = output.read().splitlines()
    minutes = (time.monotonic() - started) / 60
    result = "ok" if done.returncode == 0 else f"failed ({done.returncode})"
    last = next(filter(str.strip, reversed(lines)), "")
    print(f"{name}: {result}, {minutes:.1f} min: {last.strip('= ')}", flush=True)
    if done.returncode:
        print(*lines[-LINES:], sep="\n", flush=True)
    return done.returncode == 0


def main() -> None:
    """Run the pieces that are named, or all; exit with 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pieces", nargs="*", help="only these")
    parser.add_argument("--list", action="store_true", help="say what runs, and run nothing")
    arguments = parser.parse_args()
    if unknown := set(arguments.pieces) - set(PIECES):
        parser.error(f"no such piece: {', '.join(sorted(unknown))}; there are {', '.join(PIECES)}")
    chosen = {name: PIECES[name] for name in arguments.pieces or PIECES}
    if arguments.list:
        for name, command in chosen.items():
            print(f"{name}: python -m {' '.join(command)}")
        return
    with tempfile.TemporaryDirectory(prefix="softgen-whole-") as cache:
        os.environ["SOFTGEN_CACHE_DIR"] = cache
        sys.exit(not all([run(name, command) for name, command in chosen.items()]))


if __name__ == "__main__":
    main()
