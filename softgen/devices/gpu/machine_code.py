"""Machine code, remembered on disk: a process whose kernel was compiled before compiles nothing.

CuPy keeps it too, but has NVRTC compile an empty text in each process, for the key of its own
folder: 17 ms, most of a first call. There is one file a name and architecture. What is damaged,
or of another text or another NVRTC, is compiled anew.
"""

from __future__ import annotations

import contextlib
from typing import Protocol

from softgen.disk import checked
from softgen.problems.arch import Arch

KIND = "code"


class Text(Protocol):
    """CUDA text to compile, as a Source is."""

    @property
    def name(self) -> str:
        """That its machine code is kept under, of the form that a variant's name has."""

    @property
    def symbol(self) -> str:
        """What it defines, in one name."""

    @property
    def text(self) -> str:
        """The CUDA C++ text."""

    @property
    def options(self) -> tuple[str, ...]:
        """What NVRTC is given."""


def kept(source: Text, arch: Arch, nvrtc: tuple[int, int]) -> bytes | None:
    """Return the machine code of `source` for `arch` by that version of NVRTC, if it was kept."""
    return checked.read(KIND, _file_name(source, arch), _made_by(source, arch, nvrtc))


def keep(source: Text, arch: Arch, nvrtc: tuple[int, int], code: bytes) -> None:
    """Keep what NVRTC made of `source`, in place of what was kept of that name."""
    # What cannot be kept is compiled again: nothing but the next process's time is lost.
    with contextlib.suppress(OSError):
        checked.write(KIND, _file_name(source, arch), _made_by(source, arch, nvrtc), code)


def _file_name(source: Text, arch: Arch) -> str:
    return f"{source.name}-{arch.name}.cubin"


def _made_by(source: Text, arch: Arch, nvrtc: tuple[int, int]) -> tuple[str, ...]:
    """Return all that decides the code. The toolkit's headers are not among it: NVRTC has them."""
    return (source.symbol, *source.options, arch.name, *map(str, nvrtc), source.text)
