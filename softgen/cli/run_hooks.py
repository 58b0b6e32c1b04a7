"""--hook of `softgen run`: the arguments of a call, as numbers and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from softgen.call.hooks import NAMES, chosen
from softgen.call.library import Library
from softgen.cli.npy import read_npy
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.spec.dtypes import DType, ElementType, FloatType, Integer, compute_type
from softgen.spec.functions.base import Function
from softgen.spec.operands import Extent
from softgen.spec.problem import Problem

if TYPE_CHECKING:
    from numpy.typing import NDArray

NUMBERS_TOO = ("scale", "out_scale")
ARRAYS = (*NUMBERS_TOO, "bias", "mask", "lengths", "sink")


class _Host:
    """What hooks ask of an array library, of NumPy's arrays: they are copied before a launch."""

    def __init__(self, x: NDArray[Any], x_type: DType) -> None:
        self.x, self.x_type = x, x_type

    def dtype(self, x: NDArray[Any]) -> DType:
        return self.x_type

    def element_type(self, x: NDArray[Any]) -> ElementType:
        if x.dtype.kind in "bi":
            return Integer(x.dtype.name)
        return DType(x.dtype.name)

    def device(self, x: NDArray[Any]) -> int:
        return 0

    def pointer(self, x: NDArray[Any]) -> int:
        return 0  # the copies start on 16 bytes

    def byte_strides(self, x: NDArray[Any]) -> tuple[int, ...]:
        return x.strides

    def contiguous(self, x: NDArray[Any]) -> NDArray[Any]:
        return x

    def copy(self, x: NDArray[Any]) -> NDArray[Any]:
        return x.copy(order="C")

    def permuted(self, x: NDArray[Any], order: Sequence[int]) -> NDArray[Any]:
        return x.transpose(order)

    def broadcast(self, x: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        import numpy as np

        return np.broadcast_to(x, shape)


def load(
    function: Function,
    x: NDArray[Any],
    axis: int,
    x_type: DType,
    y_type: FloatType,
    given: list[str],
) -> tuple[tuple[str, ...], tuple[NDArray[Any], ...]]:
    """Return the names of a kernel's hooks, and what they take in storage form.

    Args:
        function: what is computed.
        x: the input, of its own shape.
        axis: of x, along which rows lie, from 0 on.
        x_type: what it is computed in.
        y_type: of the result.
        given: NAME=NUMBER, NAME=FILE.npy, or causal: the arguments of a call.

    Raises InvalidValueError or InvalidTypeError, saying what is accepted.
    """
    from softgen.spec.numerics import encode

    compute = compute_type(x_type, y_type).value
    arguments = dict(_argument(text, compute) for text in given)
    if len(arguments) < len(given):
        raise InvalidValueError(f"each --hook at most once, got {', '.join(given)}")
    for name in ("seed", "seed_offset"):
        if name in arguments and "dropout" not in arguments:
            raise InvalidValueError(f"--hook {name}= needs --hook dropout=0.1")
    host = cast(Library, _Host(x, x_type))
    names, values = chosen(
        *(function, x, y_type, arguments),
        library_of=lambda array, _name="": (host, array),
        axis=-1 if axis == x.ndim - 1 else axis,
    )
    operands = Problem.of(
        function, x_type, function.least_cols, out_dtype=y_type, hooks=names
    ).hook_operands
    pairs = [*zip(values, operands, strict=True)]
    for value, operand in pairs:
        if operand.extent is Extent.NUMBER:
            operand.word(value)  # refuses what does not fit, as a call does
    return names, tuple(encode(value, operand.dtype) for value, operand in pairs)


def _argument(text: str, compute: str) -> tuple[str, Any]:
    """Return the name and the value of an argument."""
    name, equals, value = text.partition("=")
    if name not in NAMES:
        raise InvalidValueError(f"--hook {text}: {unknown('argument', name, NAMES)}")
    if name == "causal":
        if equals:
            raise InvalidValueError(f"--hook {text}: causal takes no value: give --hook causal")
        return name, True
    if name == "empty_rows":
        return name, value
    if value.endswith(".npy") and name in ARRAYS:
        integers = name in ("mask", "lengths")
        array = read_npy(Path(value), option=f"--hook {name}", integers=integers)
        if name == "mask":
            if array.dtype.kind not in "bi":
                raise InvalidTypeError(
                    f"--hook {text}: {array.dtype} cannot be a mask, which is True where x counts: "
                    "give booleans or integers, or an additive mask, 0 and -inf, as "
                    f"--hook bias={value}"
                )
            return name, array != 0
        if name == "lengths":
            from softgen.spec.numerics import encode

            return name, encode(array, Integer.INT64)
        return name, array.astype(compute) if name in NUMBERS_TOO else array
    for kind in (int, float) if name in NUMBERS_TOO or name not in ARRAYS else ():
        try:
            return name, kind(value)
        except ValueError:
            continue
    if name in ARRAYS:
        also = f", or a number, as {name}=0.5" if name in NUMBERS_TOO else ""
        raise InvalidValueError(f"--hook {text}: {name} is a .npy file, as {name}=values.npy{also}")
    example = "0.1" if name == "dropout" else "2"
    raise InvalidValueError(f"--hook {text}: {name} is a number, as {name}={example}")
