"""The host C++ compiler: which one, with which flags, and how to call it."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softgen.devices.emulator import processes
from softgen.errors import CompileError, MissingDependencyError

PACKAGE = Path(__file__).resolve().parent

# The kernels' side. The sanitizers' checks are compiled in and their libraries are not linked:
# softgen's own functions answer the calls (host/access.h, host/undefined.h). -O1 builds fastest:
# -O0 emits, and then calls a hook for, four times the loads and stores. Contraction to FMA depends
# on the host's instruction set, so it is off and results are the same on every host. Reports name
# lines alone: where variables lie is a quarter of the compile and half of the file.
UNIT_FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",
    "-gdwarf-4",  # with 5, binutils 2.40 and GCC 12 count files from 0 and from 1
    "-w",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-sanitize-recover=all",
    "-fstack-clash-protection",  # a frame larger than the guard of a stack still hits it
)
# Passes of -O1 that cost a third of the compile, and take off nothing that the run would notice.
UNHURRIED = tuple(
    f"-fno-{name}"
    for name in (
        *("tree-loop-optimize", "move-loop-invariants", "if-conversion", "if-conversion2"),
        *("reorder-blocks", "shrink-wrap", "cprop-registers", "compare-elim"),
        *("combine-stack-adjustments", "dse", "forward-propagate", "tree-dominator-opts"),
        *("tree-pta", "guess-branch-probability"),
    )
)
# Not `shift`: to put an exponent in place a kernel shifts it into the sign, as CUDA allows.
UNDEFINED = "object-size,signed-integer-overflow,shift-exponent,integer-divide-by-zero"
GNU = (
    *UNHURRIED,
    "-fira-region=one",  # registers of a function at once, and not loop by loop
    "-fno-thread-jumps",  # a barrier is known by the address of its call: there is one of each
    "-fno-var-tracking",
    "-fno-var-tracking-assignments",
    f"-fsanitize=thread,alignment,bounds-strict,{UNDEFINED}",
    "--param=tsan-distinguish-volatile=1",  # a volatile read may wait for another thread
)
# Clang's `bounds` would add local-bounds, which traps without saying where.
CLANG = (
    f"-fsanitize=thread,alignment,array-bounds,{UNDEFINED}",
    "-mllvm",
    "-tsan-distinguish-volatile",
)

# What a kernel forgot to set holds a pattern: results are wrong then, and in every run.
FILL_LOCALS = "-ftrivial-auto-var-init=pattern"
FILL_SINCE_GCC = 12

# -O2 takes a second more than -O1 to compile, once, and a tenth off each run.
HOST_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-fno-exceptions", "-fno-rtti")

# Reports carry code addresses, which -no-pie keeps equal to the file's.
LINK_FLAGS = ("-no-pie", "-lm")

HOW_TO_GET = (
    "the CPU emulator needs a C++17 compiler and found none (tried $CXX, g++, clang++ and the "
    "ziglang package). Install one: `apt install g++`, `dnf install gcc-c++`, "
    "`conda install gxx`, or `pip install ziglang`"
)
HOW_TO_SET = "set CXX to a C++17 compiler, for example CXX=g++, or unset it"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that can be called.

    Attributes:
        command: what to run, before any flag.
        version: what it says about itself; part of the key of what it built.
    """

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        """Whether it takes Clang's spelling of flags."""
        return "clang" in self.version

    @property
    def unit_flags(self) -> tuple[str, ...]:
        """Flags for a unit of kernels."""
        fill = (FILL_LOCALS,) if self.is_clang or self._major >= FILL_SINCE_GCC else ()
        return (*UNIT_FLAGS, *fill, *(CLANG if self.is_clang else GNU))

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Flags to link a unit; gold, where it is installed, takes a third of the time."""
        quick = () if self.is_clang or shutil.which("ld.gold") is None else ("-fuse-ld=gold",)
        return (*LINK_FLAGS, *quick)

    @property
    def _major(self) -> int:
        found = re.search(r"\b(\d+)\.\d+\.\d+\b", self.version)
        return int(found[1]) if found else 0

    def __str__(self) -> str:
        return " ".join(self.command)

    def build(self, arguments: Sequence[str | Path], out: Path) -> None:
        """Run it to write the file `out`.

        Raises what `call` raises, and MissingDependencyError if it ends without having written.
        """
        self.call([*arguments, "-o", out])
        if not out.is_file() or not out.stat().st_size:
            raise MissingDependencyError(
                f"{self} ended without an error and wrote no program; {HOW_TO_SET}"
            )

    def call(self, arguments: Sequence[str | Path]) -> None:
        """Run it; CompileError carries the first part of what it printed."""
        command = [*self.command, *map(str, arguments)]
        done = _run(command)
        if done.returncode != 0:
            log = (done.stderr or done.stdout).strip()[:4000]
            raise CompileError(f"{self.command[0]} refused the source:\n{log}")


def find_compiler() -> Compiler:
    """Return $CXX, else g++, else clang++, else the one in the ziglang package.

    Raises MissingDependencyError saying how to get one.
    """
    return _find(os.environ.get("CXX", ""))


@functools.cache
def _find(named: str) -> Compiler:
    wanted = [_words(named)] if named.strip() else []
    for command in [*wanted, ("g++",), ("clang++",)]:
        found = _usable(command)
        if isinstance(found, Compiler):
            return found
        if named.strip():
            raise MissingDependencyError(
                f"CXX={named!r} cannot be run as a C++ compiler: {found}; set it to one, for "
                "example CXX=g++, or unset it"
            )
    if importlib.util.find_spec("ziglang") is not None:
        found = _usable((sys.executable, "-m", "ziglang", "c++"))
        if isinstance(found, Compiler):
            return found
    raise MissingDependencyError(HOW_TO_GET)


def _words(named: str) -> tuple[str, ...]:
    """Return $CXX as a shell would split it."""
    try:
        return tuple(shlex.split(named))
    except ValueError as error:
        raise MissingDependencyError(
            f"CXX={named!r} cannot be split into words as a shell would ({error}); close the "
            "quote or escape it, for example CXX='g++ -m64', or unset CXX"
        ) from error


def _usable(command: tuple[str, ...]) -> Compiler | str:
    """Return the compiler that a command runs, or why it runs none."""
    path = shutil.which(command[0])
    if path is None:
        there = os.sep in command[0] and os.path.exists(command[0])
        return "it is not executable" if there else "there is no such program"
    asked = [path, *command[1:], "--version"]
    try:
        done = _run(asked)
    except OSError as error:
        return error.strerror or str(error)
    version = done.stdout.strip()
    if done.returncode or not version:
        what = f"ended with {done.returncode}" if done.returncode else "printed nothing"
        return f"{' '.join(asked)} {what}"
    return Compiler((path, *command[1:]), version)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end; a compiler may print in any encoding."""
    done: subprocess.CompletedProcess[str] = processes.run(command, text=True, errors="replace")
    return done
