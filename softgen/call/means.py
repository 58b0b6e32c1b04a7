"""The mean of losses of rows, what its gradient is for each of them, and gradients that are scaled.

By a library's operations they are four launches and two, and a pass over all gradients where they
are times 1. Here each is a launch. The kernels are the same for all problems, in
templates/tools/losses.cu, which needs no Jinja.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from softgen.call.library import Library
from softgen.devices.gpu.compile import load
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.driver import on_device
from softgen.devices.gpu.launcher import Launcher
from softgen.problems.dtypes import DType, FloatType
from softgen.source.render import COMPILE_OPTIONS, template_directory
from softgen.strategies.launch import Launch

BLOCK_SIZE = 1024  # kBlockSize of the text
# One block sums them all, in one order. Beyond, a library's own sum has more blocks.
MOST_ROWS = 1 << 16
# Blocks that stride over the rows' shares: a row a thread, up to 2^14.
SHARE_BLOCKS = 16
# Blocks that stride over what is scaled. An SM has room for two, and an H200 has 132 of them.
SCALE_BLOCKS = 8 * 2 * 132
# The types of arithmetic and of the loss, as the text calls them.
CUDA: dict[FloatType, tuple[str, str]] = {
    DType.FLOAT16: ("float", "Half"),
    DType.BFLOAT16: ("float", "Bfloat16"),
    DType.FLOAT32: ("float", "float"),
    DType.FLOAT64: ("double", "double"),
}


def reducer(
    library: Library, dtype: FloatType, of: DType, device: int, *, mean: bool
) -> Callable[[Any, Any, int], tuple[Any, Any]]:
    """Return reduce(losses, lse, rows): the sum or the mean, and what it was divided by.

    Args:
        library: of all arrays.
        dtype: of the result.
        of: the type of arithmetic, which the losses, lse and the divisor have.
        device: of all arrays.
        mean: whether to divide by the number of rows that count: lse is -inf where one does not.

    The sums are in one order: the same bits in every run. The arrays are contiguous, and have up to
    MOST_ROWS rows. The divisor of a sum is 1.
    """
    launch = _launch("reduce_rows", dtype, 6, BLOCK_SIZE, device)
    make, make_divisor, address = library.maker((), dtype), library.maker((), of), library.pointer
    flag = int(mean)

    def run(stream: int, losses: Any, lse: Any, rows: int) -> tuple[Any, Any]:
        made, divisor = library.made(make), library.made(make_divisor)
        words = address(losses), address(lse), address(made), address(divisor), flag, rows
        launch(words, stream)
        return made, divisor

    return _there(library, device, run)


def sharer(library: Library, dtype: FloatType, of: DType, device: int) -> Callable[[Any, Any], Any]:
    """Return share(upstream, divisor): the gradient with respect to each loss, of no axes.

    Upstream, of `dtype`, is that with respect to what `reducer` returns, whose arguments these are.
    """
    launch = _launch("share", dtype, 3, 1, device)
    make, address = library.maker((), of), library.pointer

    def run(stream: int, upstream: Any, divisor: Any) -> Any:
        made = library.made(make)
        launch((address(upstream), address(divisor), address(made)), stream)
        return made

    return _there(library, device, run)


def weigher(
    library: Library, dtype: FloatType, of: DType, device: int, *, mean: bool
) -> Callable[..., tuple[Any, Any, Any]]:
    """Return weigh(losses, lse, weight, target, rows): as `reducer`, and the weights of the rows.

    A loss is times the weight of its class, of the type of arithmetic, and a mean divides by their
    sum. The targets are int32 or int64.
    """
    launch = _launch("weigh_rows", dtype, 11, BLOCK_SIZE, device)
    make, make_one, address = library.maker((), dtype), library.maker((), of), library.pointer

    def run(
        stream: int, losses: Any, lse: Any, weight: Any, target: Any, rows: int
    ) -> tuple[Any, Any, Any]:
        made, divisor = library.made(make), library.made(make_one)
        weights = library.empty((rows,), of, device)
        arrays = (losses, lse, weight, target, weights, made, divisor)
        numbers = (target.dtype.itemsize == 8, weight.shape[0], mean, rows)
        launch((*map(address, arrays), *map(int, numbers)), stream)
        return made, divisor, weights

    return _there(library, device, run)


def weighed_sharer(
    library: Library, dtype: FloatType, of: DType, device: int
) -> Callable[[Any, Any, Any], Any]:
    """Return share(upstream, divisor, weights): as `sharer`, for what `weigher` returns."""
    launch = _launch("share_weighed", dtype, 5, BLOCK_SIZE, device, SHARE_BLOCKS)
    address = library.pointer

    def run(stream: int, upstream: Any, divisor: Any, weights: Any) -> Any:
        made = library.empty(weights.shape, of, device)
        rows = math.prod(weights.shape)
        launch((*map(address, (upstream, divisor, weights, made)), rows), stream)
        return made

    return _there(library, device, run)


def scaler(library: Library, dtype: FloatType, device: int) -> Callable[[Any, Any, int], None]:
    """Return scale(values, factor, count), which multiplies contiguous values where they are.

    The factor is an array of one number, of the type of arithmetic. Of 1 nothing is read.
    """
    launch = _launch("scale", dtype, 3, BLOCK_SIZE, device, SCALE_BLOCKS)
    address = library.pointer

    def run(stream: int, values: Any, factor: Any, count: int) -> None:
        launch((address(values), address(factor), count), stream)

    return _there(library, device, run)


def _there(library: Library, device: int, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs on the stream of a device, which need not be the current one."""
    current_context, stream = require_device().cuda.driver.ctxGetCurrent, library.stream
    with on_device(device):
        context = current_context()

    def there(*request: Any) -> Any:
        if current_context() == context:
            return run(stream(device), *request)
        with on_device(device):
            return run(stream(device), *request)

    return there


def _launch(
    name: str, dtype: FloatType, operands: int, threads: int, device: int, blocks: int = 1
) -> Launcher:
    """Return the launch of a kernel of the text."""
    with on_device(device):
        return launch_of(name, dtype, operands, threads, device, blocks)


@functools.cache
def launch_of(
    name: str, dtype: FloatType, operands: int, threads: int, device: int, blocks: int
) -> Launcher:
    """Return the launch of a kernel of the text, for a loss of `dtype`, on the current device."""
    shape = Launch(threads, rows_per_block=1, static_shared_bytes=0)
    function = _module(dtype, device).get_function(f"{name}_{dtype.short}")
    return Launcher(function, operands, shape, blocks, device, 0)


@functools.cache
def _module(dtype: FloatType, device: int) -> Any:
    """Return the kernels for a loss of `dtype`, loaded on the current device."""
    return load(losses_of(dtype))


class Kernels(NamedTuple):
    """The text of some: see `machine_code.Text`."""

    name: str
    symbol: str
    text: str
    options: tuple[str, ...] = COMPILE_OPTIONS


def losses_of(dtype: FloatType) -> Kernels:
    """Return the kernels for a loss of `dtype`."""
    name, symbol = f"losses_{dtype.short}_{BLOCK_SIZE}", f"KERNELS({dtype.short})"
    text = (template_directory() / "tools" / "losses.cu").read_text()
    return Kernels(name, symbol, f"{text}KERNELS({dtype.short}, {', '.join(CUDA[dtype])})\n")
