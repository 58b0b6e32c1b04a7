"""Where the figures are from: the GPU, its driver, and the versions of all that took part."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess

from softgen.bench.record import Machine
from softgen.devices.gpu.device import describe
from softgen.version import __version__

# Distributions by the name that people know them under.
_PACKAGES = {
    "torch": "torch",
    "triton": "triton",
    "quack": "quack-kernels",
    "liger": "liger-kernel",
    "flashinfer": "flashinfer-python",
}


def machine() -> Machine:
    """Return the current device and the installed versions."""
    found = describe()
    versions = [f"softgen {__version__}", f"NVRTC {found['nvrtc']}", f"CuPy {found['cupy']}"]
    for name, distribution in _PACKAGES.items():
        try:
            versions.append(f"{name} {importlib.metadata.version(distribution)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Machine(str(found["device"]), _driver(), "; ".join(versions))


def _driver() -> str:
    """Return the driver's version, or the CUDA that it brings where it cannot be asked."""
    cuda = int(describe()["driver"])
    brought = f"CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    command = shutil.which("nvidia-smi")
    if command is None:
        return brought
    query = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ran = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return brought
    return f"{ran.stdout.split()[0]}, {brought}" if ran.stdout.strip() else brought
