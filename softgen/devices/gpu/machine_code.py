"""Machine code, remembered on disk: a process whose kernel was compiled before compiles nothing.

CuPy keeps it too, but has NVRTC compile an empty text in each process, for the key of its own
folder: 17 ms, most of a first call. One file a variant and architecture holds a digest in its first
line, then the code; what is damaged, or of another text or another NVRTC, is compiled anew. The
digest has no key, so it does not keep out who can write to the folder: that is for `folders.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from softgen.disk import folders
from softgen.disk.files import read_regular, write_whole
from softgen.source.render import Source
from softgen.spec.arch import Arch

KIND = "code"


def kept(source: Source, arch: Arch, nvrtc: tuple[int, int]) -> bytes | None:
    """Return the machine code of `source` for `arch` by that version of NVRTC, if it was kept."""
    try:
        folder = folders.found(KIND)
        data = read_regular(folder / _file_name(source, arch)) if folder else b""
    except OSError:
        return None
    digest, _, code = data.partition(b"\n")
    return code if code and digest == _digest(source, arch, nvrtc, code) else None


def keep(source: Source, arch: Arch, nvrtc: tuple[int, int], code: bytes) -> None:
    """Keep what NVRTC made of `source`, in place of what was kept of its variant."""
    # What cannot be kept is compiled again: nothing but the next process's time is lost.
    with contextlib.suppress(OSError):
        path = folders.made(KIND) / _file_name(source, arch)
        write_whole(path, _digest(source, arch, nvrtc, code) + b"\n" + code)


def _file_name(source: Source, arch: Arch) -> Path:
    return Path(f"{source.variant.name}-{arch.name}.cubin")


def _digest(source: Source, arch: Arch, nvrtc: tuple[int, int], code: bytes) -> bytes:
    """Return the first line of a file: a digest of the code and of all that decides it.

    The toolkit's headers are not among it: they come with NVRTC.
    """
    made_by = (source.symbol, *source.options, arch.name, *map(str, nvrtc), source.text)
    state = hashlib.sha256("\0".join(made_by).encode())
    state.update(b"\0" + code)
    return state.hexdigest().encode()
