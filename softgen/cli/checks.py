"""What softgen finds on this machine, what is missing, and the command that gets it."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from softgen.devices.gpu import cupy_cache
from softgen.errors import InvalidValueError

CLONE = "in the clone of softgen"
INSTALL_CUDA = f"pip install '.[cuda13]' {CLONE}  (CUDA 12 drivers: '.[cuda12]')"
INSTALL_COMPILER = "apt-get install g++  (or dnf install gcc-c++), or set CXX"


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked for.
        ok: whether it is there and works.
        detail: its version or place, or what is wrong.
        required: whether the CPU path (emit, list, show, run --device cpu) needs it.
        fix: the command that gets it; empty where it is there.
        wrong: whether it is there, and such that calls fail.
    """

    name: str
    ok: bool
    detail: str
    required: bool
    fix: str = ""
    wrong: bool = False

    @property
    def state(self) -> str:
        """One word for a table."""
        if self.ok:
            return "ok"
        return "WRONG" if self.wrong else "MISSING" if self.required else "absent"


def examine() -> list[Finding]:
    """Return every finding; a probe that breaks is a finding too, never an exception."""
    return [_probed(*probe) for probe in _probes()]


def healthy(findings: list[Finding]) -> bool:
    """Whether everything that the CPU path needs is there, and nothing is set wrong."""
    return all(finding.ok for finding in findings if finding.required or finding.wrong)


_Probe = tuple[str, bool, str, Callable[[], str]]


def _probes() -> Iterator[_Probe]:
    """Yield (name, required, fix, function that returns the detail or raises)."""
    yield "python", True, "install Python 3.10 or newer", _python
    for name in ("numpy", "jinja2", "typer", "rich"):
        yield name, True, f"pip install {name}", functools.partial(_version, name)
    yield "templates", True, f"pip install --force-reinstall . {CLONE}", _templates
    yield "C++ compiler", True, INSTALL_COMPILER, _compiler
    yield "CPU emulator", True, INSTALL_COMPILER, _emulator
    yield "cache folder", False, "set SOFTGEN_CACHE_DIR to a folder of your own", _cache_folder
    yield "settings", False, "set it so, or unset it", _settings
    yield "cupy", False, INSTALL_CUDA, _cupy
    yield "CuPy cache", False, cupy_cache.HOW_TO_MEND, _cupy_cache
    yield "NVRTC", False, INSTALL_CUDA, _nvrtc
    yield "GPU", False, "use a machine with an NVIDIA GPU and its driver", _gpu
    yield "tuned winners", False, f"pip install --force-reinstall . {CLONE}", _tuned_winners
    yield "ml_dtypes", False, "pip install ml-dtypes", functools.partial(_version, "ml_dtypes")
    yield "torch", False, f"pip install '.[torch]' {CLONE}", functools.partial(_version, "torch")
    yield "plugins", False, "mend the package, or uninstall it", _plugins
    yield "matching versions", False, f"pip install . {CLONE}", _matching_versions


class _Mendable(Exception):
    """What a probe raises that knows better than `_probes` what to do."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


class _Wrong(Exception):
    """What a probe raises of what is there and cannot be used: a variable, a package."""


def _probed(name: str, required: bool, fix: str, probe: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, probe(), required)
    except Exception as error:  # whatever a broken installation throws belongs into the report
        reason = str(error).strip() or type(error).__name__
        fix = error.fix if isinstance(error, _Mendable) else fix
        wrong = isinstance(error, _Wrong)
        return Finding(name, False, reason.splitlines()[0], required, fix, wrong)


def _python() -> str:
    return f"{platform.python_version()} ({sys.platform}, {platform.machine()})"


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise LookupError("not installed") from None


def _templates() -> str:
    from softgen.source.render import template_directory

    return str(template_directory())


def _compiler() -> str:
    from softgen.devices.emulator.compiler import find_compiler

    found = find_compiler()
    return f"{' '.join(found.command)}: {found.version.splitlines()[0]}"


def _emulator() -> str:
    """Run one small kernel and compare it with the closed form."""
    import numpy as np

    from softgen.devices.emulator import run
    from softgen.source.generate import generate

    x = np.zeros((2, 8), np.float32)
    y = run(generate("softmax", "float32", 8), x)
    if not (y == 0.125).all():
        raise ArithmeticError(f"the softmax of zeros came out as {y}")
    return "computes"


def _cache_folder() -> str:
    from softgen.disk import folders

    folder = folders.directory()
    folders.require_usable()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = os.statvfs(existing).f_bavail * os.statvfs(existing).f_frsize
    return f"{folder} (writable, {free // 2**20} MiB free)"


def _settings() -> str:
    """Read what decides how a call chooses; a value that cannot be read fails every call."""
    from softgen.devices.gpu import dependent
    from softgen.tuning import policy

    try:
        mode, budget = policy.tune_mode(None), policy.tune_budget()
        invariant = ", batch-invariant" if policy.batch_invariant_default() else ""
        plain = "" if dependent.is_wanted() else ", plain launches"
        told = ", choices told on stderr" if policy.debugging() else ""
    except InvalidValueError as error:
        raise _Wrong(str(error)) from error
    return f"tuning {mode}, at most {budget:g} s{invariant}{plain}{told}"


def _cupy_cache() -> str:
    reason = cupy_cache.objection()
    if reason:
        raise OSError(f"{cupy_cache.folder()} is not used: {reason}")
    return f"{cupy_cache.folder()} (writable)"


def _cupy() -> str:
    from softgen.devices.gpu.device import require_cupy

    cupy = require_cupy()
    return f"{cupy.__version__} in {Path(cupy.__file__).parent}"


def _nvrtc() -> str:
    from softgen.devices.gpu.compile import compile_offline
    from softgen.problems.arch import DEFAULT_ARCH, arch_named
    from softgen.source.generate import generate

    made = compile_offline(generate("softmax", "float16", 8), arch_named(DEFAULT_ARCH))
    from cupy_backends.cuda.libs import nvrtc

    version = ".".join(map(str, nvrtc.getVersion()))
    return f"{version}, compiles for {DEFAULT_ARCH} ({len(made.cubin)} bytes)"


def _gpu() -> str:
    from softgen.devices.gpu.device import describe, unavailable_reason

    reason = unavailable_reason()
    if reason is not None:
        raise LookupError(reason)
    found = describe()
    return f"{found['device']} ({found['arch']}), driver {found['driver']}"


def _tuned_winners() -> str:
    """Return whose table of winners a call reads here; without a GPU, whose there are."""
    from softgen.devices.gpu.device import available, current_arch
    from softgen.strategies import winners

    here = current_arch() if available() else None
    nearest = winners.nearest(here) if here else None
    tables = [nearest] if nearest else winners.with_tables()
    if not tables:
        raise LookupError(f"no table in {winners.DIRECTORY}")
    found = f"the table of {'; of '.join(map(winners.named, tables))}"
    if here in (None, nearest):
        return found
    return f"first guesses from {found}: {here.device} has none"


def _plugins() -> str:
    """Import what packages bring; one that fails is left out, and the first of them is told."""
    from softgen.plugins import plugins

    found = plugins()
    for plugin in found:
        if plugin.error is not None:
            raise _Wrong(f"{plugin.package}: {plugin.error}") from plugin.error
    brought = [f"{e.kind} {e.name} of {plugin.package}" for plugin in found for e in plugin.added]
    return ", ".join(brought) or "none"


def _matching_versions() -> str:
    from softgen.cli.requirements import conflicts

    found = conflicts(importlib.metadata.distributions())
    if found:
        wanted = dict.fromkeys(conflict.fix for conflict in found)
        raise _Mendable("; ".join(map(str, found)), f"pip install {' '.join(wanted)}")
    return "no package wants another version of what softgen needs"
