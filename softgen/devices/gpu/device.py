"""The GPU as softgen sees it: whether there is one, its Arch, and what a tuned choice depends on.

CuPy is imported inside functions, so that everything which needs no GPU works without it.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from softgen.devices.gpu import cupy_cache
from softgen.errors import MissingDependencyError, NoDeviceError
from softgen.problems.arch import Arch
from softgen.strategies.registry import added_strategies

INSTALL_CUPY = (
    "install it with `pip install '.[cuda13]'` in the clone of softgen (CUDA 12: '.[cuda12]')"
)


def require_cupy() -> Any:
    """Return the cupy module; MissingDependencyError says how to install it."""
    try:
        with cupy_cache.replaced_if_unusable():
            import cupy
    except ImportError as error:
        raise MissingDependencyError(
            f"cupy cannot be imported ({error}); {INSTALL_CUPY}"
        ) from error
    return cupy


@functools.cache
def available() -> bool:
    """Whether CuPy can be imported and sees a GPU."""
    return unavailable_reason() is None


@functools.cache
def unavailable_reason() -> str | None:
    """Return why no GPU can be used, or None if one can."""
    try:
        if importlib.util.find_spec("cupy") is None:
            return f"cupy is not installed; {INSTALL_CUPY}"
        cupy = require_cupy()
        # Without one CUDA's error says that the driver is too old.
        if cupy.cuda.runtime.driverGetVersion() == 0:
            return "no NVIDIA driver is installed here (CUDA finds no libcuda)"
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "CUDA sees no GPU"
    except MissingDependencyError as error:
        return str(error)
    except Exception as error:  # the driver's error types live in the module that failed
        return f"the CUDA driver does not answer: {error}"
    return None


def require_device() -> Any:
    """Return cupy if a GPU can be used; raise NoDeviceError or MissingDependencyError if not."""
    cupy = require_cupy()
    reason = unavailable_reason()
    if reason is not None:
        raise NoDeviceError(
            f"no GPU can be used: {reason}. `softgen run --device cpu` runs the same kernel on the "
            "CPU emulator, and `softgen doctor` shows what is missing"
        )
    return cupy


def count() -> int:
    """Return how many GPUs CUDA sees."""
    return int(require_device().cuda.runtime.getDeviceCount())


def current_arch() -> Arch:
    """Return the Arch of CuPy's current device."""
    cupy = require_device()
    return arch_of(cupy.cuda.runtime.getDevice())


@functools.cache
def arch_of(device: int) -> Arch:
    """Return the Arch of device number `device`, read from the driver."""
    cupy = require_device()
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    return Arch(
        compute_capability=(properties["major"], properties["minor"]),
        multiprocessors=properties["multiProcessorCount"],
        threads_per_multiprocessor=properties["maxThreadsPerMultiProcessor"],
        shared_per_block=properties["sharedMemPerBlockOptin"],
        l2_bytes=properties["l2CacheSize"],
        device=properties["name"].decode(),
        registers_per_multiprocessor=properties["regsPerMultiprocessor"],
    )


def environment(device: int) -> dict[str, str | int]:
    """Return what a tuned choice depends on beside its problem and its code.

    That is the device, the compiler, the driver, and the strategies that somebody added.
    """
    added = added_strategies()
    return {**_machine(device), "added": added} if added else _machine(device)


@functools.cache
def _machine(device: int) -> dict[str, str | int]:
    """Return the device, the compiler and the driver."""
    cupy = require_device()
    from cupy_backends.cuda.libs import nvrtc

    arch = arch_of(device)
    return {
        "device": arch.device,
        "arch": arch.name,
        "multiprocessors": arch.multiprocessors,
        "nvrtc": ".".join(map(str, nvrtc.getVersion())),
        "driver": cupy.cuda.runtime.driverGetVersion() // 1000,
    }


def describe() -> dict[str, str | int]:
    """Return the current device and versions, for people and for published figures."""
    cupy = require_device()
    device = cupy.cuda.runtime.getDevice()
    return {
        **environment(device),
        "cupy": cupy.__version__,
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "memory_bytes": cupy.cuda.runtime.getDeviceProperties(device)["totalGlobalMem"],
    }
