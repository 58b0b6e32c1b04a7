"""From source text to machine code: for the current GPU, loaded, or by NVRTC alone for any GPU."""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from softgen.devices.gpu import cupy_cache, machine_code
from softgen.devices.gpu.device import INSTALL_CUPY, arch_of, require_cupy, require_device
from softgen.devices.gpu.driver import on_device, primary_context, resident_clusters
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.errors import CompileError, MissingDependencyError
from softgen.problems.arch import Arch
from softgen.source.compile_errors import origins
from softgen.source.render import Source
from softgen.strategies.launch import Launch

# Leaves out what no kernel here asks for, such as textures: 5 to 14 ms less a compile, and the same
# machine code. Known of this version and later ones.
MINIMAL = "--minimal"
HAS_MINIMAL = (13, 0)

# CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, NUM_REGS, MAX_DYNAMIC_SHARED_SIZE_BYTES and
# NON_PORTABLE_CLUSTER_SIZE_ALLOWED.
LOCAL_BYTES = 3
REGISTERS = 4
DYNAMIC_SHARED = 8
NON_PORTABLE_CLUSTER = 14

ELF_HEADER_BYTES = 64  # of a 64-bit file


class Compiled(NamedTuple):
    """What NVRTC made of a source for one architecture.

    Attributes:
        cubin: the machine code.
        registers: 32-bit registers of a thread.
        spill_bytes: local memory of a thread that holds spilled registers, stores and loads.
        local_bytes: local memory of a thread, of spills and of arrays that left the registers.
        shared_bytes: static shared memory of a block.
        log: the compiler's log.
    """

    cubin: bytes
    registers: int
    spill_bytes: int
    local_bytes: int
    shared_bytes: int
    log: str


def compile_source(source: Source) -> LoadedKernel:
    """Compile `source` for the current device and load it; its machine code is kept on disk.

    Raises NoDeviceError or MissingDependencyError without a GPU, and CompileError with NVRTC's log.
    """
    cuda = require_device().cuda
    device = cuda.runtime.getDevice()
    module = load(source)
    with primary_context():
        function = module.get_function(source.symbol)
        _opt_in(source.variant.launch, function.ptr)
    return LoadedKernel(
        source.variant,
        source,
        device,
        function,
        registers=cuda.driver.funcGetAttribute(REGISTERS, function.ptr),
        local_bytes=cuda.driver.funcGetAttribute(LOCAL_BYTES, function.ptr),
    )


def load(source: machine_code.Text) -> Any:
    """Return CuPy's module of a text, compiled for the current device and loaded on it.

    Raises what `compile_source` raises.
    """
    cuda = require_device().cuda
    code = _machine_code(source, arch_of(cuda.runtime.getDevice()))
    with primary_context():  # what is loaded under a green context is gone with it
        module = cuda.Module()
        module.load(code)
        return module


def _machine_code(source: machine_code.Text, arch: Arch) -> bytes:
    """Return what NVRTC makes of `source` for the current device, whose Arch is `arch`.

    By CuPy, which takes PTX for a device that is newer than NVRTC; the driver compiles that.
    """
    version = _nvrtc().getVersion()
    code = machine_code.kept(source, arch, version)
    if code is not None:
        return code
    compiler = require_device().cuda.compiler
    headers = (f"-I{toolkit_headers()}",) if "#include" in source.text else ()
    less = (MINIMAL,) if version >= HAS_MINIMAL else ()
    try:
        made, _ = compiler.compile_using_nvrtc(
            source.text, (*source.options, *headers, *less), cache_in_memory=True
        )
    except compiler.CompileException as error:
        told = f"\n{origins([source], str(error))}" if isinstance(source, Source) else ""
        raise CompileError(f"NVRTC refused {source.name}: {error}{told}") from error
    code = bytes(made)
    machine_code.keep(source, arch, version, code)
    return code


def _opt_in(launch: Launch, function: int) -> None:
    """Ask the driver for what a kernel does not get by default, and check that the grid fits."""
    driver = require_device().cuda.driver
    if launch.asks_for_cluster:
        driver.funcSetAttribute(function, NON_PORTABLE_CLUSTER, 1)
    if launch.asks_for_shared:
        driver.funcSetAttribute(function, DYNAMIC_SHARED, launch.dynamic_shared_bytes)
    if not (launch.cooperative or launch.cluster_size > 1):
        return
    resident = resident_clusters(function, launch, stream=0)
    if launch.cooperative and resident < launch.most_blocks:
        raise CompileError(
            f"all {launch.most_blocks} blocks have to be resident together, and this device holds "
            f"{resident}"
        )
    if resident == 0:  # a part whose GPCs have lost SMs, or a slice of one
        raise CompileError(f"this device holds no cluster of {launch.cluster_size} blocks")


def compile_many(sources: Iterable[Source]) -> Iterator[LoadedKernel | CompileError]:
    """Compile sources in parallel threads (NVRTC releases the GIL) and yield them in order.

    A failure is yielded as its error. Closing the iterator drops what has not begun.
    """
    from concurrent.futures import ThreadPoolExecutor  # 2 ms that a first call does not spend

    cupy = require_device()
    device = cupy.cuda.runtime.getDevice()

    def one(source: Source) -> LoadedKernel | CompileError:
        with on_device(device):
            try:
                return compile_source(source)
            except CompileError as error:
                return error

    pool = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
    try:
        yield from pool.map(one, sources)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@functools.cache
def _nvrtc() -> Any:
    try:
        with cupy_cache.replaced_if_unusable():
            from cupy_backends.cuda.libs import nvrtc

            nvrtc.getVersion()  # imports cupy
    except (ImportError, RuntimeError) as error:
        raise MissingDependencyError(f"NVRTC cannot be loaded ({error}); {INSTALL_CUPY}") from error
    return nvrtc


@functools.cache
def toolkit_headers() -> Path:
    """Return the folder of cuda_fp16.h: of the toolkit wheels, else of an installed toolkit.

    Wheels of NVRTC's own major version come first: those of another may be there for PyTorch.
    """
    major, _ = _nvrtc().getVersion()
    candidates = []
    try:
        import nvidia

        for wheel in (f"cu{major}", "cuda_runtime"):
            candidates += [Path(root) / wheel / "include" for root in nvidia.__path__]
    except ImportError:
        pass
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    where_nvrtc_is = require_cupy().cuda.get_cuda_path()
    candidates += [Path(root) / "include" for root in (where_nvrtc_is, home) if root]
    for folder in candidates:
        if (folder / "cuda_fp16.h").is_file():
            return folder
    raise MissingDependencyError(f"the CUDA headers (cuda_fp16.h) were not found; {INSTALL_CUPY}")


def compile_offline(source: Source, arch: Arch) -> Compiled:
    """Compile `source` to machine code for `arch`; needs CuPy's NVRTC binding and no GPU or driver.

    Raises MissingDependencyError without NVRTC, and CompileError with its log.
    """
    nvrtc = _nvrtc()
    options = (
        f"--gpu-architecture={arch.name}",
        "--ptxas-options=-v",
        f"-I{toolkit_headers()}",
        *source.options,
    )
    program = nvrtc.createProgram(source.text, f"{source.name}.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise CompileError(
                f"NVRTC refused {source.name} for {arch.name}:\n{log}\n{origins([source], log)}"
            ) from error
        cubin = _whole(nvrtc.getCUBIN(program))
        log = nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)
    return Compiled(
        cubin,
        registers=_first_number(r"Used (\d+) registers", log),
        spill_bytes=_first_number(r"(\d+) bytes spill stores", log)
        + _first_number(r"(\d+) bytes spill loads", log),
        local_bytes=_first_number(r"(\d+) bytes stack frame", log, default=0),
        shared_bytes=_first_number(r"(\d+) bytes smem", log, default=0),
        log=log,
    )


def _whole(cubin: bytes) -> bytes:
    """Return an ELF file with its last byte, which CuPy drops as if it were the NUL of a text.

    A cubin ends with its program headers: the byte is the highest of the last one's p_align, 64
    bits that hold a small power of two, and so 0. A file that is complete stays as it is.
    """
    if len(cubin) < ELF_HEADER_BYTES:
        return cubin
    segments, sections = struct.unpack_from("<QQ", cubin, 32)
    segment_bytes, segment_count, section_bytes, section_count = struct.unpack_from(
        "<HHHH", cubin, 54
    )
    end = max(segments + segment_bytes * segment_count, sections + section_bytes * section_count)
    return cubin + b"\0" if end == len(cubin) + 1 else cubin


def _first_number(pattern: str, log: str, default: int | None = None) -> int:
    match = re.search(pattern, log)
    if match:
        return int(match[1])
    if default is None:
        raise CompileError(f"NVRTC's log does not say {pattern!r}; it says:\n{log}")
    return default
