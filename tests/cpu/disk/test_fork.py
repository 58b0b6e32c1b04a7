"""A process that has called softgen and forks: both go on, and neither takes from the other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cli_helpers import ROOT

# Each runs in a process of its own: pytest's is not to be forked. A child ends as programs do, by
# sys.exit(), so that what is registered for an end is done.
PRELUDE = """
import os, sys

def forked(body):
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
"""

CALLS = """
import numpy as np, pytest, softgen
from tests.helpers.cupy_calls import drawn, on_cupy

with pytest.MonkeyPatch.context() as patch:
    world = on_cupy(patch)

    def right(*shape):
        x = drawn(*shape)
        wide = np.exp(np.asarray(x, "f8"))
        y = softgen.softmax(x)
        np.testing.assert_allclose(y, wide / wide.sum(-1, keepdims=True), rtol=2e-6)

    def both():
        right(6, 8)  # by the entry that was found before
        right(4, 16)

    right(6, 8)
    forked(both)
    both()
"""

CHOICES = """
from softgen.tuning import cache
from tests.cpu.tuning.test_cache import ENTRY
from tests.helpers.entries import H200, make_entry

cache.store(ENTRY)

def child():
    assert cache.load(ENTRY.key, H200) == ENTRY
    assert cache.store(make_entry(7)) is not None

forked(child)
assert {entry.key.problem.cols for entry in cache.entries()} == {7, 1000}
assert cache.load(make_entry(7).key, H200) == make_entry(7)
"""

# Without a cache folder that may be used, the emulator's programs are in a temporary one.
PROGRAMS = """
import pathlib
from softgen.devices.emulator.folder import program_folder

mine = program_folder()
assert mine.is_dir()
assert not mine.is_relative_to(os.environ["SOFTGEN_CACHE_DIR"])

def child():
    theirs = program_folder()
    assert theirs != mine and theirs.is_dir()
    assert mine.is_dir()
    pathlib.Path(sys.argv[1]).write_text(str(theirs))

forked(child)
assert not pathlib.Path(pathlib.Path(sys.argv[1]).read_text()).exists()
assert mine.is_dir() and program_folder() == mine
print(mine)
"""


def run(program: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + program, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("program", [CALLS, CHOICES], ids=["calls", "choices"])
def test_what_was_forked_and_what_forked_it_are_both_right(program: str) -> None:
    run(program)


def test_what_was_forked_deletes_no_programs_of_what_forked_it(
    tmp_path: Path, own_cache: Path
) -> None:
    own_cache.chmod(0o777)  # so that it is not used
    left = run(PROGRAMS, tmp_path / "theirs").strip()
    assert left
    assert not os.path.exists(left)
