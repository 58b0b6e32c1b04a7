"""One digest of all emitted texts: equal before and after a change that is to change none.

`python -m tests.text_digest` renders what `softgen verify --list --all` names, and the gallery, and
prints how many texts there are and one SHA-256 of them. With a file it also writes a line for each
text there, its SHA-256 and its name, so that `diff` of two such files names the texts that changed.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from softgen.source.gallery import gallery
from softgen.source.render import Source, render
from softgen.strategies.variants import Variant
from softgen.verify.matrix import matrix

BATCH = 50  # texts that a process renders at once


def line_of(source: Source) -> str:
    """Return the SHA-256 of a text and the name of its kernel."""
    return f"{source.sha256} {source.name}"


def digest(lines: Iterable[str]) -> str:
    """Return the SHA-256 of lines, whatever their order."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def lines() -> Iterator[str]:
    """Yield a line for each text of the matrix and of the gallery."""
    variants = matrix(True)
    batches = [variants[at : at + BATCH] for at in range(0, len(variants), BATCH)]
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        yield from chain.from_iterable(processes.map(_rendered, batches))
    yield from (f"{line_of(source)} of the gallery" for source in gallery())


def _rendered(variants: list[Variant]) -> list[str]:
    return [line_of(render(variant)) for variant in variants]


def main() -> None:
    """Print the count and the digest, and write the lines to the file that is given."""
    found = sorted(lines())
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text("".join(f"{each}\n" for each in found))
    print(f"{len(found)} texts: {digest(found)}")


if __name__ == "__main__":
    main()
