"""`python -m tests.compiles`: every text that is verified, compiled for one GPU each, in turn.

`python -m tests.compiles 20` takes one text in 20. NVRTC is what is installed: texts have to
compile with each from CUDA 12.8 on. How many spill is told, and no fault: compilers differ in that.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from softgen.devices.gpu import compile as compiling
from softgen.errors import CompileError
from softgen.problems.arch import KNOWN, Arch
from softgen.source.gallery import gallery
from softgen.source.render import Source, render
from softgen.strategies.variants import Variant
from softgen.verify.matrix import matrix


class Found(NamedTuple):
    """What NVRTC made of a text: bytes that it spills, or why it is refused."""

    spilled: int
    refused: str = ""


def turns(every: int) -> list[tuple[Source | Variant, Arch]]:
    """Return one in `every` of the texts, each with an architecture that has what it needs."""
    texts: list[Source | Variant] = [*matrix(True), *gallery()]
    archs, found = list(KNOWN.values()), []
    for number, text in enumerate(texts[::every]):
        variant = text.variant if isinstance(text, Source) else text
        in_turn = [archs[(number + i) % len(archs)] for i in range(len(archs))]
        legal = (a for a in in_turn if variant.strategy.is_legal(variant.problem, a))
        found.append((text, next(legal)))
    return found


def compiled(turn: tuple[Source | Variant, Arch]) -> Found:
    """Compile a text."""
    text, arch = turn
    try:
        made = compiling.compile_offline(text if isinstance(text, Source) else render(text), arch)
    except CompileError as error:
        return Found(0, str(error))
    return Found(made.spill_bytes)


def main() -> None:
    """Print what does not compile, and how many do; exit with 1 if one does not."""
    chosen = turns(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(compiled, chosen, chunksize=16))
    refused = [each.refused for each in found if each.refused]
    spilling = sum(each.spilled > 0 for each in found)
    for line in refused:
        print(line)
    version = ".".join(map(str, compiling._nvrtc().getVersion()))
    print(f"{len(found)} texts with NVRTC {version}, {spilling} spill: {len(refused)} refused")
    sys.exit(bool(refused))


if __name__ == "__main__":
    main()
