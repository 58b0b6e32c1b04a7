"""From the end of a host program to an EmulationError that names a line of the kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from softgen.errors import EmulationError

RULE_BROKEN = 86  # kRuleBroken in host/report.h

_ADDRESS = re.compile(r"<@([0-9a-f]+)>")


def error_of(program: Path, name: str, status: int, stderr: str) -> EmulationError:
    """Return the error for a program that ended with `status` while it ran kernel `name`."""
    if status == RULE_BROKEN:
        return EmulationError(f"{name}: {_with_lines(program, stderr.strip())}")
    ended = f"signal {-status}" if status < 0 else f"exit status {status}"
    return EmulationError(f"{name}: the emulator ended with {ended}. {stderr.strip()}".rstrip())


def _with_lines(program: Path, report: str) -> str:
    """Replace code addresses by `kernel.cu:line`, where binutils can tell it."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    return _ADDRESS.sub(lambda match: _line_of(tool, program, match[1]), report)


def _line_of(tool: str | None, program: Path, address: str) -> str:
    fallback = f"code address 0x{address}"
    if tool is None:
        return fallback
    done = subprocess.run(
        [tool, "-i", "-e", str(program), address], capture_output=True, text=True, check=False
    )
    # Innermost first; frames of the emulator's headers are skipped.
    for frame in done.stdout.splitlines():
        name, _, line = frame.split(" ")[0].rpartition("/")[2].partition(":")
        if name.endswith(".cu") and line.isdigit():
            return f"{name}:{line}"
    return fallback
