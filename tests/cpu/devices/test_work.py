"""What kernels do on the emulator, counted: an access or an exchange more is time on a GPU.

Numerics do not show it: a kernel that stores element by element is right, and 4 times slower. Where
a change of the counts is meant, `python -m tests.cpu.devices.test_work` writes work.json anew.
"""

from __future__ import annotations

import dataclasses
import json

from softgen.verify.emulated import on_emulator
from tests.mutation import COUNTS, subjects


def counted() -> dict[str, list[dict[str, int]]]:
    """Return what each launch of each kernel does, by name."""
    sources = subjects()
    found = {}
    for source, verdicts in zip(sources, on_emulator(sources), strict=True):
        assert not [verdict.objection for verdict in verdicts if verdict.objection], source.name
        works = [verdict.work for verdict in verdicts if verdict.work is not None]
        found[source.name] = [dataclasses.asdict(work) for work in works]
    return found


def test_kernels_do_what_they_did() -> None:
    assert counted() == json.loads(COUNTS.read_text())


if __name__ == "__main__":
    COUNTS.write_text(json.dumps(counted(), indent=1) + "\n")
