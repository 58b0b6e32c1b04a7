"""Built programs: compiled once per text, run in a process of their own."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from softgen.devices.emulator import processes
from softgen.devices.emulator.compiler import (
    HOST_FLAGS,
    HOW_TO_SET,
    PACKAGE,
    Compiler,
    find_compiler,
)
from softgen.devices.emulator.folder import keep, keep_small, kept, program_folder, work_folder
from softgen.devices.emulator.job import Job, Results, Storage, Work
from softgen.devices.emulator.report import error_of
from softgen.devices.emulator.unit import unit_text
from softgen.errors import CompileError, EmulationError, InvalidValueError, MissingDependencyError
from softgen.source.compile_errors import origins
from softgen.source.render import Source


class Program:
    """An executable that holds some kernels and runs them on request."""

    def __init__(self, path: Path, sources: Sequence[Source]) -> None:
        self.path = path
        self.sources = tuple(sources)
        self._index = {source.sha256: i for i, source in enumerate(self.sources)}

    def run(self, source: Source, x: Storage, **options: Any) -> Storage:
        """Return the first result of one launch; the options are those of `Job`."""
        return self.run_each(source, x, **options)[0]

    def run_each(self, source: Source, x: Storage, **options: Any) -> Results:
        """Return all results of one launch; the options are those of `Job`."""
        result = self.run_counted([Job(source, x, **options)])[0]
        if isinstance(result, EmulationError):
            raise result
        return result[0]

    def run_all(self, jobs: Sequence[Job]) -> list[Storage | EmulationError]:
        """Run `jobs` in order; return the first result of each, or the error that stopped it."""
        results = self.run_counted(jobs)
        return [one if isinstance(one, EmulationError) else one[0][0] for one in results]

    def run_counted(self, jobs: Sequence[Job]) -> list[tuple[Results, Work] | EmulationError]:
        """Run `jobs` in order; return all results of each and what the launch did, or an error."""
        if any(job.shard for job in jobs):
            raise InvalidValueError("launches of sharded rows are for run_sharded")
        results: list[tuple[Results, Work] | EmulationError] = []
        while len(results) < len(jobs):
            results += self._run_until_error(jobs[len(results) :])
        return results

    def _run_until_error(self, jobs: Sequence[Job]) -> list[tuple[Results, Work] | EmulationError]:
        messages = b"".join(job.message(self._index[job.source.sha256]) for job in jobs)
        done = _ran(self.path, messages)
        results: list[tuple[Results, Work] | EmulationError] = []
        at = 0
        for job in jobs:
            if at + job.result_bytes > len(done.stdout):
                stderr = done.stderr.decode(errors="replace")
                results.append(error_of(self.path, job.source.name, done.returncode, stderr))
                return results
            results.append(job.results_in(done.stdout, at))
            at += job.result_bytes
        return results

    def run_sharded(self, jobs: Sequence[Job]) -> tuple[list[Results], tuple[int, ...]]:
        """Run the launches of devices that hold rows together, each device's in this order.

        Returns the results of each, and for each device the shard that did not come in time, or -1.
        Mailboxes are clear at first. Raises EmulationError.
        """
        sizes = {(job.shard.shards, job.shard.room) if job.shard else (0, 0) for job in jobs}
        if len(sizes) != 1 or (0, 0) in sizes:
            raise InvalidValueError("all launches must be of as many shards, with as much room")
        messages = b"".join(
            job.message(self._index[job.source.sha256], len(jobs) - 1 - i)
            for i, job in enumerate(jobs)
        )
        done = _ran(self.path, messages)
        if done.returncode:
            stderr = done.stderr.decode(errors="replace")
            raise error_of(self.path, jobs[0].source.name, done.returncode, stderr)
        results, at = [], 0
        for job in jobs:
            results.append(job.results_in(done.stdout, at)[0])
            at += job.result_bytes
        late = np.frombuffer(done.stdout, np.uint32, sizes.pop()[0], at).astype(int) - 1
        return results, tuple(late.tolist())


def build(sources: Sequence[Source]) -> Program:
    """Return a program with all `sources`, compiled unless the same was compiled before.

    Fifty kernels in one program compile in half the time of fifty programs. Raises CompileError
    with the compiler's log, or MissingDependencyError where there is no compiler.
    """
    compiler = find_compiler()
    distinct = list({source.sha256: source for source in sources}.values())
    text = unit_text(distinct)
    folder = program_folder()
    stem = f"unit-{_digest(compiler, *compiler.unit_flags, *compiler.link_flags, text)}"
    path = kept(folder, stem)
    if path is None:
        try:
            path = _compile(compiler, text, folder, stem)
        except CompileError as error:
            raise CompileError(f"{error}\n{origins(distinct, str(error))}") from error
        keep_small(folder)
    return Program(path, distinct)


def _ran(path: Path, messages: bytes) -> Any:
    """Run a program to its end; raise MissingDependencyError if it is none of this machine's."""
    try:
        return processes.run([path], input=messages)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        raise MissingDependencyError(
            f"the program that {find_compiler()} built cannot be run here ({error.strerror}); "
            f"{HOW_TO_SET}"
        ) from error


def run(source: Source, x: Storage, **options: Any) -> Storage:
    """Return the first result of kernel `source` on `x`; the options are those of `Job`."""
    return build([source]).run(source, x, **options)


def run_each(source: Source, x: Storage, **options: Any) -> Results:
    """Return all results of kernel `source`; the options are those of `Job`."""
    return build([source]).run_each(source, x, **options)


def _digest(compiler: Compiler, *texts: str) -> str:
    state = hashlib.sha256()
    for text in (*compiler.command, compiler.version, *texts):
        state.update(text.encode() + b"\0")
    for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in (".h", ".cpp")):
        state.update(path.read_bytes() + b"\0")
    return state.hexdigest()[:32]


def _host_object(compiler: Compiler, folder: Path) -> Path:
    """Return the object of the emulator's own side, the same for every unit."""
    stem = f"host-{_digest(compiler, *HOST_FLAGS)}"
    path = kept(folder, stem, ".o")
    if path is None:
        with work_folder(folder) as work:
            built = Path(work) / "host.o"
            try:
                compiler.build([*HOST_FLAGS, "-c", PACKAGE / "host" / "main.cpp"], built)
            except CompileError as error:
                raise MissingDependencyError(
                    f"{compiler} cannot build the CPU emulator; {HOW_TO_SET}\n{error}"
                ) from error
            path = keep(built, folder, stem, ".o")
    return path


def _compile(compiler: Compiler, text: str, folder: Path, stem: str) -> Path:
    """Compile and link in a folder of its own, then move the whole program into place."""
    host = _host_object(compiler, folder)
    with work_folder(folder) as work:
        unit, compiled, built = (Path(work) / name for name in ("unit.cpp", "unit.o", "unit"))
        unit.write_text(text)
        include = f"-I{PACKAGE / 'include'}"
        compiler.build([*compiler.unit_flags, include, "-c", unit], compiled)
        compiler.build([compiled, host, *compiler.link_flags], built)
        return keep(built, folder, stem)
