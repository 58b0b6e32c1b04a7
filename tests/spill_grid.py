"""Best guesses over pairs of types, widths and architectures, compiled: which of them spill?

`python -m tests.spill_grid docs/lab/spills.md` compiles all of them without a GPU, in ten
minutes or so on two cores, and writes what spills; tests/cpu/devices/test_compile.py compiles a
seeded part.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from softgen.problems.arch import KNOWN
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.functions.log_softmax import LOG_SOFTMAX
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import Variant, best_guess
from tests.helpers.kept_builds import machine_code_of

ROWS = 4096
FEW_ROWS = (1, 8, 128)
PART = 560  # cases of log_softmax, and as many of few rows

# Powers of two, whole packs, odd widths, vocabularies.
WIDTHS = (
    *(1, 7, 32, 64, 100, 128, 255, 256, 512, 777, 1000, 1023, 1024, 1536, 2048, 3000, 4096, 4097),
    *(5000, 6144, 8191, 8192, 10000, 12671, 12672, 16384, 20001, 32000, 32728, 32768, 50257, 50304),
    *(65536, 100003, 128256, 131072, 151937, 262144, 1000001, 2097152),
)

PAGE = f"""# Spills

*Noted 2026-11-23.* **Decided:** settings that spill registers are not legal.

A best guess that spills registers may be slower than one with fewer blocks on an SM: at bfloat16 to
float32, 4096 x 151937, by 5% on an H200. So settings that spill are not legal. NVRTC
compiles without a GPU, and says which settings spill. This page has its answers:

<!-- not run: it compiles for ten minutes -->
```sh
python -m tests.spill_grid docs/lab/spills.md
```

{{cases}} requests: softmax of {ROWS} rows for each pair of types, {{widths}} widths from 1 to
2097152 and {len(KNOWN)} architectures; {PART} of them again as log-softmax, and {PART} with 1, 8 or
128 rows. Their best guesses are {{texts}} texts, of which {{spilling}} spill. The tests compile
those of 84 requests. Texts compiled:
"""


class Case(NamedTuple):
    """A request on an architecture."""

    algorithm: Function
    dtype: DType
    out_dtype: DType
    cols: int
    arch: str
    rows: int = ROWS

    @property
    def guess(self) -> Variant:
        """The best guess."""
        problem = Problem.of(self.algorithm, self.dtype, self.cols, out_dtype=self.out_dtype)
        return best_guess(problem, self.rows, KNOWN[self.arch])


def cases() -> list[Case]:
    """Return softmax of every pair of types, width and architecture, and a part of what else is.

    That is log_softmax, and few rows; the same cases each time.
    """
    axes = (tuple(DType), tuple(DType), WIDTHS, tuple(KNOWN))
    usual = [Case(SOFTMAX, *point) for point in itertools.product(*axes)]
    draw = random.Random(1)
    logs = [case._replace(algorithm=LOG_SOFTMAX) for case in draw.sample(usual, PART)]
    few = [case._replace(rows=draw.choice(FEW_ROWS)) for case in draw.sample(usual, PART)]
    return usual + logs + few


def spilled(case: Case) -> int:
    """Return the bytes that the best guess spills, stores and loads."""
    return machine_code_of(render(case.guess), KNOWN[case.arch]).spill_bytes


def table(texts: Mapping[tuple[str, str], tuple[Case, int]]) -> str:
    """Return a page of Markdown: texts by pair of types and architecture, and those that spill.

    `texts` maps an architecture and a variant's name to a case that it is the best guess for, and
    the bytes that it spills.
    """
    counts: dict[str, dict[str, int]] = {}
    pairs = (
        (arch, f"{c.dtype.value} to {c.out_dtype.value}") for (arch, _), (c, _) in texts.items()
    )
    for arch, pair in sorted(pairs, key=lambda found: found[1].split(" to ")):
        row = counts.setdefault(pair, dict.fromkeys(KNOWN, 0))
        row[arch] += 1
    spilling = sorted(
        (-spill, arch, name) for (arch, name), (_, spill) in texts.items() if spill > 0
    )
    page = PAGE.format(
        cases=len(cases()), texts=len(texts), spilling=len(spilling), widths=len(WIDTHS)
    )
    lines = [
        page,
        f"| types | {' | '.join(KNOWN)} |",
        f"|---|{'---|' * len(KNOWN)}",
        *(f"| {pair} | {' | '.join(map(str, row.values()))} |" for pair, row in counts.items()),
    ]
    if spilling:
        lines += ["", "| spilled bytes | architecture | text |", "|---|---|---|"]
        lines += [f"| {-spill} | {arch} | `{name}` |" for spill, arch, name in spilling]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compile the best guesses of all cases and write the page; exit with 1 if one spills."""
    texts = {(case.arch, case.guess.name): case for case in reversed(cases())}
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        spills = pool.map(spilled, texts.values(), chunksize=16)
        found = {
            key: (case, spill) for (key, case), spill in zip(texts.items(), spills, strict=True)
        }
    Path(sys.argv[1]).write_text(table(found))
    spilling = sum(spill > 0 for _, spill in found.values())
    print(f"{len(found)} texts of {len(cases())} requests, {spilling} spill")
    sys.exit(spilling > 0)


if __name__ == "__main__":
    main()
