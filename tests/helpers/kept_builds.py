"""What tests build is kept from run to run: the emulator's programs, and NVRTC's machine code.

Each is found by a digest of all that it is made of, so a run that changes no text builds nothing.
SOFTGEN_BUILD_CACHE names the folder, by default ~/.cache/softgen-build. A run does without it.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from softgen.devices.emulator import folder as programs
from softgen.devices.emulator import program, unit
from softgen.devices.emulator.compiler import PACKAGE, Compiler, find_compiler
from softgen.devices.gpu.compile import Compiled, compile_offline
from softgen.disk import owned
from softgen.disk.files import read_regular, write_whole
from softgen.problems.arch import Arch
from softgen.source.render import Source

CODE, BY_TEST, HEADERS = "code", "by_test", "headers"
OBJECTS = "objects"  # of nvcc, and libraries
MAX_BYTES = 2**30  # of programs, of which a run takes 0.3 GB
# Of machine code a run takes 2,000, and 50 objects.
MOST_FILES = {CODE: 20_000, BY_TEST: 2_000, OBJECTS: 400, HEADERS: 4}

_placed_here: set[Path] = set()  # programs that this process placed in tests' cache folders


def store(kind: str) -> Path:
    """Return a folder of what is kept."""
    named = os.environ.get("SOFTGEN_BUILD_CACHE") or "~/.cache/softgen-build"
    folder = Path(os.path.expanduser(named)).absolute() / kind
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def keep_programs(patch: pytest.MonkeyPatch) -> None:
    """Have the emulator take what is kept, in place of compiling it, into its own folder."""
    patch.setattr(program, "_compile", functools.partial(_compile, program._compile))
    patch.setattr(program, "_host_object", functools.partial(_host_object, program._host_object))


def put_host(cache: Path) -> None:
    """Put the emulator's own side, which takes 2 to 5 seconds to build, into a cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTGEN_CACHE_DIR", str(cache))
        keep_programs(patch)
        program._host_object(find_compiler(), programs.program_folder())


def put_programs(cache: Path, test: str) -> None:
    """Put what processes of a test built in an earlier run into its cache folder."""
    folder = _folder_of(cache)
    for name in _noted(test):
        with contextlib.suppress(FileNotFoundError):
            _placed(store(programs.KIND) / name, folder)


def keep_programs_of(cache: Path, test: str, since: float) -> None:
    """Keep what processes of a test built, or took of what they had, since a time."""
    folder = _folder_of(cache)
    used = [path for path in folder.glob("unit-*") if path.stat().st_mtime >= since]
    names = [path.name for path in used if path not in _placed_here]
    for name in names:
        os.utime(_placed(folder / name, store(programs.KIND)))
    if names != _noted(test):
        write_whole(_note_of(test), json.dumps(names).encode())


def _folder_of(cache: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTGEN_CACHE_DIR", str(cache))
        return programs.program_folder()


def _note_of(test: str) -> Path:
    return store(BY_TEST) / hashlib.sha256(test.encode()).hexdigest()[:32]


def _noted(test: str) -> list[str]:
    with contextlib.suppress(OSError, ValueError):
        return [str(name) for name in json.loads(read_regular(_note_of(test)))]
    return []


def _compile(
    real: Callable[..., Path], compiler: Compiler, text: str, folder: Path, stem: str
) -> Path:
    kept = store(programs.KIND)
    path = programs.kept(kept, stem)
    if path is None:
        path = real(_with_headers(compiler), text, kept, stem)
    path = _placed(path, folder)
    _placed_here.add(path)
    return path


class _WithHeaders(Compiler):
    """A compiler that starts with the emulator's headers, precompiled."""

    @property
    def unit_flags(self) -> tuple[str, ...]:
        """The flags of a unit, which includes what is included already."""
        header = _headers(store(HEADERS), self.command, self.version)
        return (*super().unit_flags, "-include", str(header))


def _with_headers(compiler: Compiler) -> Compiler:
    """Return one that takes two thirds of the time for a unit of one kernel."""
    return compiler if compiler.is_clang else _WithHeaders(compiler.command, compiler.version)


@functools.cache
def _headers(folder: Path, command: tuple[str, ...], version: str) -> Path:
    """Return the name of a header that is in a folder precompiled alone."""
    plain = Compiler(command, version)
    header = folder / f"{program._digest(plain, *plain.unit_flags, unit.HEADERS)}.h"
    made = Path(f"{header}.gch")
    if not made.exists():
        with programs.work_folder(folder) as work:
            text, built = (Path(work) / name for name in ("headers.h", made.name))
            text.write_text(unit.HEADERS)
            include = f"-I{PACKAGE / 'include'}"
            plain.build([*plain.unit_flags, include, "-x", "c++-header", text], built)
            os.replace(built, made)
    return header


def _host_object(real: Callable[..., Path], compiler: Compiler, folder: Path) -> Path:
    return _placed(real(compiler, store(programs.KIND)), folder)


def _placed(built: Path, folder: Path) -> Path:
    """Return a file of the store in another folder, in the place of a damaged one."""
    if built.parent == folder:
        return built
    path = folder / built.name
    with programs.work_folder(folder) as work:
        placed = Path(work) / built.name
        try:
            os.link(built, placed)
        except OSError:  # another file system
            shutil.copy2(built, placed)
        os.replace(placed, path)
    return path


def build_library(arguments: Sequence[str | Path], folder: Path, built: Path) -> None:
    """Build a shared library of files of a folder, or copy what the same text gave before."""
    compiler = find_compiler()
    words = [str(word) for word in arguments]
    text = subprocess.run(
        [*compiler.command, *words, "-E", "-P"], capture_output=True, text=True, check=False
    )
    if text.returncode:
        compiler.build(words, built)  # which says what is wrong
    made_of = (*compiler.command, compiler.version, *words, text.stdout)
    key = hashlib.sha256("\0".join(made_of).replace(str(folder), "").encode()).hexdigest()[:32]
    kept = store(OBJECTS) / key
    if kept.exists():
        os.utime(kept)
    else:
        with programs.work_folder(kept.parent) as work:
            compiler.build(words, Path(work) / "library.so")
            os.replace(Path(work) / "library.so", kept)
    shutil.copyfile(kept, built)  # no link: a process loads a file once


def machine_code_of(source: Source, arch: Arch) -> Compiled:
    """Return what `compile_offline` returns, kept; errors are not."""
    made_by = (source.name, source.text, *source.options, arch.name, *_wheels())
    path = store(CODE) / hashlib.sha256("\0".join(made_by).encode()).hexdigest()[:32]
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads(read_regular(path))
        os.utime(path)
        return Compiled(**{**kept, "cubin": base64.b64decode(kept["cubin"], validate=True)})
    made = compile_offline(source, arch)
    fields = {**made._asdict(), "cubin": base64.b64encode(made.cubin).decode()}
    write_whole(path, json.dumps(fields).encode())
    return made


@functools.cache
def _wheels() -> tuple[str, ...]:
    """Return the versions of what NVRTC and its headers come from."""
    found = ((each.metadata["Name"], each.version) for each in importlib.metadata.distributions())
    return tuple(sorted(f"{n}=={v}" for n, v in found if n and n.startswith(("nvidia", "cuda"))))


def keep_small() -> None:
    """Delete what was not used for longest."""
    folder = store(programs.KIND)
    owned.mark(programs.KIND, folder)
    programs.keep_small(folder, MAX_BYTES)
    for kind, most in MOST_FILES.items():
        found = sorted(store(kind).iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in found[most:]:
            path.unlink(missing_ok=True)
