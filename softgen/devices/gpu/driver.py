"""The few driver calls that CuPy does not bind, by ctypes: cuda-bindings takes 50 ms to import."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

from softgen.devices.gpu.device import require_device
from softgen.errors import NoDeviceError
from softgen.strategies.launch import Launch

# What cuLaunchKernel and cuLaunchCooperativeKernel return where a grid does not fit the SMs of its
# stream: fewer blocks can be resident than have to be, or no cluster of that size. Both were seen
# on streams of green contexts, and neither launch hangs.
TOO_LARGE = 720  # CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
INVALID_CLUSTER = 912  # CUDA_ERROR_INVALID_CLUSTER_SIZE
DOES_NOT_FIT = (TOO_LARGE, INVALID_CLUSTER)

_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_CAPTURE_MODE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_CAPTURE_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: a kind, and a union of 64 bytes that begins with a cluster's size."""

    _fields_ = (
        ("kind", ctypes.c_uint),
        ("padding", ctypes.c_uint),
        ("cluster", ctypes.c_uint * 3),
        ("rest", ctypes.c_ubyte * 52),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the driver, whose functions return 0 or the number of an error."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoDeviceError(f"the CUDA driver cannot be loaded: {error}") from error
    pointer, number = ctypes.c_void_p, ctypes.POINTER(ctypes.c_ulonglong)
    library.cuStreamGetId.argtypes = (pointer, number)
    library.cuStreamGetCaptureInfo_v2.argtypes = (
        *(pointer, ctypes.POINTER(ctypes.c_int), number),
        *(pointer, pointer, pointer),
    )
    library.cuOccupancyMaxActiveClusters.argtypes = (
        ctypes.POINTER(ctypes.c_int),
        pointer,
        ctypes.POINTER(_Config),
    )
    library.cuCtxSetCurrent.argtypes = (pointer,)
    library.cuThreadExchangeStreamCaptureMode.argtypes = (ctypes.POINTER(ctypes.c_int),)
    return library


def _check(status: int) -> None:
    if status:
        driver = require_device().cuda.driver
        raise driver.CUDADriverError(status)


def launch_of(configuration: int, function: int, addresses: int) -> Callable[[], int]:
    """Return cuLaunchKernelEx on memory that may change between launches; it returns its status.

    Args:
        configuration: address of a CUlaunchConfig.
        function: handle of the kernel.
        addresses: address of the addresses of its arguments.
    """
    # Made arguments once; `argtypes` makes them at each launch, 0.1 us.
    words = map(ctypes.c_void_p.from_param, (configuration, function, addresses))
    return functools.partial(_library().cuLaunchKernelEx, *words, None)


@contextlib.contextmanager
def capturing_freely() -> Iterator[None]:
    """Let this thread allocate and instantiate graphs, whatever stream of its is being captured."""
    mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
    _check(_library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))
    try:
        yield
    finally:
        _check(_library().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)))


def stream_id(stream: int) -> int:
    """Return the number that the stream of a handle has alone for the life of the process.

    Handles are no such number: every thread's default stream has handle 2, and a handle is used
    again when its stream is gone.
    """
    number = ctypes.c_ulonglong()
    _check(_library().cuStreamGetId(stream, ctypes.byref(number)))
    return number.value


def capture_id(stream: int) -> int:
    """Return the number of the capture that the stream is part of; 0 if it is not captured."""
    status, number = ctypes.c_int(), ctypes.c_ulonglong()
    _check(
        _library().cuStreamGetCaptureInfo_v2(
            stream, ctypes.byref(status), ctypes.byref(number), None, None, None
        )
    )
    return number.value if status.value == _CAPTURE_ACTIVE else 0


def resident_clusters(function: int, launch: Launch, stream: int) -> int:
    """Return how many clusters of a kernel (blocks, where it has none) the stream holds at once.

    Args:
        function: handle of the kernel, for a device of compute capability 9.0 or later.
        launch: its launch shape.
        stream: handle of the stream, whose context may have fewer SMs than the device.
    """
    size = launch.cluster_size
    attribute = _Attribute(kind=_CLUSTER_DIMENSION, cluster=(size, 1, 1))
    config = _Config(
        grid=(size, 1, 1),
        block=(launch.block_size, 1, 1),
        shared_bytes=launch.dynamic_shared_bytes,
        stream=stream,
        attributes=ctypes.pointer(attribute),
        attribute_count=1,
    )
    count = ctypes.c_int()
    _check(
        _library().cuOccupancyMaxActiveClusters(ctypes.byref(count), function, ctypes.byref(config))
    )
    return count.value


@contextlib.contextmanager
def primary_context() -> Iterator[None]:
    """Have the current device's primary context current, and the caller's again afterwards.

    A green context, which has some of the SMs, may be current. What is loaded or allocated under it
    would be gone with it.
    """
    cuda = require_device().cuda
    before = cuda.driver.ctxGetCurrent()
    cuda.runtime.setDevice(cuda.runtime.getDevice())
    try:
        yield
    finally:
        if before and cuda.driver.ctxGetCurrent() != before:
            _check(_library().cuCtxSetCurrent(before))


@contextlib.contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make a device current; where it is, its context stays as it is.

    CuPy's own context manager leaves a device with its primary context, and so takes a caller out
    of a green one.
    """
    cuda = require_device().cuda
    if cuda.runtime.getDevice() != device:
        with cuda.Device(device):
            yield
        return
    if not cuda.driver.ctxGetCurrent():
        cuda.runtime.free(0)  # a new thread; the runtime's first call makes the context current
    yield
