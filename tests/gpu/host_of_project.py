"""What a call of a C++ project takes the host: `python -m tests.gpu.host_of_project` prints CSV.

Microseconds a call, beside a bare cudaLaunchKernelExC, by host_of_project.cu. Needs nvcc and CMake.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = Path(__file__).with_suffix(".cu")


def built(folder: Path, arch: str) -> Path:
    """Return the program, linked against a project of two widths."""
    emitted, build, installed = (folder / name for name in ("timed", "build", "installed"))
    emit = ["softgen", "emit", "--project", str(emitted), "--name", "timed", "--arch", arch]
    widths = ["--cols", "64", "--cols", "4096", "--dtype", "bfloat16", "--dtype", "float32"]
    program = folder / "host_of_project"
    link = ["nvcc", "-std=c++17", "-O2", f"-arch={arch}", f"-I{installed / 'include'}"]
    commands: tuple[list[str | Path], ...] = (
        [sys.executable, "-m", *emit, *widths],
        ["cmake", "-S", emitted, "-B", build, "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", build, "-j"],
        ["cmake", "--install", build, "--prefix", installed],
    )
    for command in commands:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (library,) = installed.glob("lib*/libtimed.a")
    subprocess.run([*link, PROGRAM, library, "-o", program], check=True)
    return program


def main() -> None:
    """Build the program for the current GPU, and run it."""
    from softgen.devices.gpu.device import current_arch

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([built(Path(folder), current_arch().name)], check=True)


if __name__ == "__main__":
    main()
