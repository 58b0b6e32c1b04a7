"""Reading a .npy file that anybody may have made: its header is judged before memory is taken.

numpy.load allocates what a header claims, and hands headers of other versions to a parser whose
errors are not documented; softgen needs plain arrays of floats only.
"""

from __future__ import annotations

import ast
import io
import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType, Integer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# An array beyond this is a mistake, or an attack: 2 TiB of float16.
MAX_ELEMENTS = 2**40

_MAGIC = b"\x93NUMPY"
_ZIP = b"PK"
# How many bytes state the header's length, by the major version of the format.
_LENGTH_BYTES = {1: 2, 2: 4, 3: 4}
# A header of floats has 120 bytes; numpy.load refuses more than this as well.
_MAX_HEADER = 10_000
_MAX_AXES = 32  # NumPy's own limit before version 2
_PLAIN = re.compile(r"[<>=|]?[biufcOSUVmM]\d{0,4}")


@dataclass(frozen=True)
class _Header:
    """What the header says of the array."""

    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]


def read_npy(
    path: Path, limit: int = MAX_ELEMENTS, *, option: str = "--input", integers: bool = False
) -> NDArray[Any]:
    """Return the array in a .npy file, C-contiguous and in the host's byte order.

    Nothing is unpickled, and nothing is allocated that the file does not hold.

    Args:
        path: the file, or a pipe.
        limit: the largest number of elements.
        option: the option of the command line that names the file.
        integers: whether booleans and integers are taken beside floats.

    Raises InvalidValueError or InvalidTypeError, which say what was found and what is accepted.
    """
    try:
        return _read(path, limit, integers)
    except (InvalidTypeError, InvalidValueError) as error:
        raise type(error)(f"{option}: {error}") from error


def _read(path: Path, limit: int, integers: bool) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            header = _read_header(file, path, integers)
            if objection := too_many(header.shape, limit):
                raise InvalidValueError(f"{path} holds {objection}")
            values = _read_values(file, path, header)
    except FileNotFoundError:
        raise InvalidValueError(f"{path} does not exist") from None
    except OSError as error:
        raise _unreadable(path, str(error)) from error
    import numpy as np

    order = header.shape[::-1] if header.fortran_order else header.shape
    whole = values.reshape(order).T if header.fortran_order else values.reshape(order)
    # A 0-d array would come back with one axis.
    native = np.ascontiguousarray(whole, values.dtype.newbyteorder("="))
    return native.reshape(header.shape)


def too_many(shape: tuple[int, ...], limit: int) -> str | None:
    """Return what is wrong with an array of that shape and what to do, or None if nothing is.

    One without elements is no work, but NumPy counts its other axes: (2**40, 0, 2**40) is too big.
    """
    elements = math.prod(length for length in shape if length)
    if elements <= (MAX_ELEMENTS if 0 in shape else limit):
        return None
    if elements > MAX_ELEMENTS:
        return (
            f"{elements} elements, which are too many: the most are {MAX_ELEMENTS}; use fewer rows "
            "or columns"
        )
    return (
        f"{elements} elements, which are too many for the CPU emulator: it takes up to {limit} "
        "(about a minute); use fewer rows or columns, or a machine with a GPU"
    )


def _read_header(file: io.BufferedReader, path: Path, integers: bool) -> _Header:
    start = file.read(len(_MAGIC) + 2)
    if start.startswith(_ZIP):
        raise InvalidValueError(
            f"{path} is an archive of several arrays (.npz); give a .npy file with one"
        )
    if not start.startswith(_MAGIC) or len(start) < len(_MAGIC) + 2:
        raise _unreadable(path, f"it begins with {start!r}, not with {_MAGIC!r}")
    size = _LENGTH_BYTES.get(start[-2])
    if size is None:
        raise _unreadable(path, f"its format has version {start[-2]}.{start[-1]}, not 1.0 to 3.0")
    length = int.from_bytes(file.read(size), "little")
    if length > _MAX_HEADER:
        raise _unreadable(path, f"its header claims {length} bytes; {_MAX_HEADER} are the most")
    text = file.read(length)
    if len(text) < length:
        raise _unreadable(path, f"it ends after {len(text)} of the {length} bytes of its header")
    return _parse(text.decode("latin-1"), path, integers)


def _parse(text: str, path: Path, integers: bool) -> _Header:
    try:
        fields = ast.literal_eval(text.strip())
    # All that literal_eval is documented to raise; the last two for thousands of brackets.
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise _unreadable(path, f"{_start(text)} is no Python literal") from error
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise _unreadable(path, f"{_start(text)} is not a dict of descr, fortran_order and shape")
    shape, fortran_order = fields["shape"], fields["fortran_order"]
    # True is an int to isinstance, and no length.
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise _unreadable(path, f"{_start(text)} has a shape that is not a tuple of lengths")
    if len(shape) > _MAX_AXES:
        raise _unreadable(path, f"its array has {len(shape)} axes; {_MAX_AXES} are the most")
    if not isinstance(fortran_order, bool):
        raise _unreadable(path, f"{_start(text)} has a fortran_order that is not True or False")
    return _Header(_dtype(fields["descr"], text, path, integers), fortran_order, shape)


def _dtype(described: object, text: str, path: Path, integers: bool) -> np.dtype[Any]:
    """Return the dtype of a header if it is one of softgen's."""
    import numpy as np

    floats = {known.value for known in DType}
    known = floats | {kind.value for kind in Integer} if integers else floats
    name = f"no array of one plain type ({_start(text)})"
    if isinstance(described, str) and _PLAIN.fullmatch(described):
        try:
            dtype = np.dtype(described)
        except TypeError:  # such as <f3
            pass
        else:
            if dtype.name in known:
                return dtype
            name = "pickled Python objects" if dtype.hasobject else dtype.name
    accepted = ", ".join(sorted(known))
    if integers:
        raise InvalidTypeError(f"{path} holds {name}; accepted are {accepted}")
    raise InvalidTypeError(
        f"{path} holds {name}; softgen computes floating point: "
        f"{accepted} (bfloat16 from a float32 file with --dtype bfloat16). "
        "Convert it first, for example numpy.save(path, x.astype('float32'))"
    )


def _read_values(file: io.BufferedReader, path: Path, header: _Header) -> NDArray[Any]:
    import numpy as np

    count = math.prod(header.shape)
    wanted, state = count * header.dtype.itemsize, os.fstat(file.fileno())
    there = state.st_size - file.tell() if stat.S_ISREG(state.st_mode) else wanted
    if there >= wanted:
        values = np.empty(count, header.dtype)
        there = file.readinto(values.view(np.uint8).data) if wanted else 0
    if there < wanted:
        raise _unreadable(
            path, f"it ends after {there} of the {wanted} bytes of its {header.shape} array"
        )
    return values


def _start(header: str) -> str:
    """Name a header by its text: its values may be too long to print."""
    return f"its header {header[:100]!r}"


def _unreadable(path: Path, reason: str) -> InvalidValueError:
    return InvalidValueError(
        f"{path} cannot be read as a .npy file ({reason}); write one with numpy.save"
    )
