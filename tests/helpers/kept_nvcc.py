"""What nvcc makes of a file, kept: CMake calls `python -S kept_nvcc.py STORE ROOT nvcc ...`.

An object is found by the words of the command and the file's text. That is all that it is made of:
emitted kernels include no file but the toolkit's. ROOT, which differs from run to run, is left out.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main(store: str, root: str, *command: str) -> int:
    """Put the object where the command says, from the store or by running it."""
    if "-c" not in command or "-o" not in command:
        return subprocess.call(command)
    source, built = (Path(command[command.index(flag) + 1]) for flag in ("-c", "-o"))
    compiler = os.path.realpath(shutil.which(command[0]) or command[0])
    key = hashlib.sha256(f"{compiler} {os.stat(compiler).st_mtime_ns}".encode())
    for text in (os.getcwd(), *command, source.read_text()):
        key.update(text.replace(root, "").encode() + b"\0")
    kept = Path(store) / key.hexdigest()[:32]
    if kept.exists():
        os.utime(kept)
        shutil.copyfile(kept, built)
        if "-MF" in command:  # which files it was made of: no build runs twice
            Path(command[command.index("-MF") + 1]).write_text(f"{built}: {source}\n")
        return 0
    status = subprocess.call(command)
    if status == 0:
        work = kept.with_suffix(f".{os.getpid()}")
        shutil.copyfile(built, work)
        os.replace(work, kept)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
