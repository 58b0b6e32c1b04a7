"""The input of `softgen run`, as .npy files or random numbers, and the arguments of its hooks."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from softgen.call.hooks import NAMES, chosen
from softgen.call.library import Library
from softgen.call.scalars import bits
from softgen.cli.npy import MAX_ELEMENTS, read_npy, too_many
from softgen.cli.options import require_new_file
from softgen.disk import outputs
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.problems.dtypes import DType, ElementType, FloatType, Integer, compute_type
from softgen.problems.functions.base import Function
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_SHAPE = (64, 1000)

# The spread of the random input: logits of a trained network span about this many units.
SPREAD = 3.0

# Arguments of --hook that are files, and those of them that may be a number.
NUMBERS_TOO = ("scale", "out_scale")
ARRAYS = (*NUMBERS_TOO, "bias", "mask", "lengths", "sink")


@dataclass(frozen=True)
class Request:
    """An input before it is read.

    Attributes:
        path: the .npy file, or None for random numbers.
        rows: rows of the random input.
        cols: columns of the random input.
        dtype: element type asked for; None for the file's, or float32.
        seed: the seed of the random input.
        inner: elements behind the columns, of the random input; rows come in multiples of it.
    """

    path: Path | None
    rows: int | None
    cols: int | None
    dtype: DType | None
    seed: int
    inner: int = 1

    def load(self, limit: int | None) -> tuple[NDArray[Any], DType]:
        """Return the input as a float array of any shape, and the dtype to compute in.

        `limit` is the largest number of elements; beyond it InvalidValueError says what to do,
        before any memory is taken.
        """
        limit = MAX_ELEMENTS if limit is None else limit
        if self.path is not None:
            if self.rows is not None or self.cols is not None:
                raise InvalidValueError(
                    "--rows and --cols are for random input; with --input the file's shape counts"
                )
            values = read_npy(self.path, limit)
            return values, self.dtype or DType.of(values.dtype.name)
        rows = -(-DEFAULT_SHAPE[0] // self.inner) * self.inner if self.rows is None else self.rows
        if rows % self.inner:
            raise InvalidValueError(
                f"--rows {rows} with --inner {self.inner}: rows come in multiples of inner; give "
                f"--rows {-(-rows // self.inner) * self.inner}"
            )
        cols = DEFAULT_SHAPE[1] if self.cols is None else self.cols
        if objection := too_many((rows, cols), limit):
            raise InvalidValueError(f"{rows} x {cols} are {objection}")
        return self._random(rows, cols), self.dtype or DType.FLOAT32

    def _random(self, rows: int, cols: int) -> NDArray[Any]:
        import numpy as np

        wide = np.float64 if self.dtype is DType.FLOAT64 else np.float32
        shape = (rows, cols) if self.inner == 1 else (rows // self.inner, cols, self.inner)
        return np.random.default_rng(self.seed).standard_normal(shape, wide) * wide(SPREAD)


def axis_before(shape: tuple[int, ...], inner: int) -> int:
    """Return the axis that has `inner` elements behind it, longer than 1 if one is: the last.

    Raises InvalidValueError that says what the axes have behind them.
    """
    behind = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    found = [i for i, elements in enumerate(behind) if elements == inner]
    if not found and inner > 1:
        known = ", ".join(map(str, behind)) or "none"
        raise InvalidValueError(
            f"no axis of an array of shape {shape} has {inner} elements behind it, as --inner "
            f"says; its axes have {known}"
        )
    if inner == 1 or not found:
        return len(shape) - 1
    return next((i for i in reversed(found) if shape[i] > 1), found[-1])


def elements_behind(shape: tuple[int, ...], axis: int) -> int:
    """Return the elements behind an axis; 1 for an array of nothing.

    Raises InvalidValueError where there is no such axis.
    """
    if not -max(1, len(shape)) <= axis < max(1, len(shape)):
        raise InvalidValueError(
            f"--axis {axis}: an array of shape {shape} has axes {-len(shape)} to {len(shape) - 1}"
        )
    return math.prod(shape[axis % max(1, len(shape)) + 1 :]) or 1


@dataclass(frozen=True)
class Files:
    """Where the other inputs are, and where results go.

    Attributes:
        inputs: a file for each input but the first, or None.
        results: a file for each result, or None.
    """

    inputs: tuple[Path | None, ...]
    results: tuple[Path | None, ...]

    @classmethod
    def of(
        cls, function: Function, operands: list[str], target: Path | None, results: list[str]
    ) -> Files:
        """Return the files of the command line; raise InvalidValueError before anything is read."""
        problem = Problem.of(function, "float32", function.least_cols)
        inputs = _by_name("--operand", operands, problem.inputs[1:], function)
        first, *rest = [operand.name for operand in problem.results]
        written = _by_name("--result", results, problem.results, function)
        if target is not None and first in written:
            raise InvalidValueError(f"--output and --result {first}= name the same result")
        if target is not None:
            written[first] = target
        named = {
            "--output" if written[name] is target else f"--result {name}=": written[name]
            for name in (first, *rest)
            if name in written
        }
        for option, path in named.items():
            require_new_file(option, path, ".npy")
        outputs.require_apart(named)
        return cls(
            tuple(inputs.get(operand.name) for operand in problem.inputs[1:]),
            tuple(written.get(name) for name in (first, *rest)),
        )

    def load_inputs(
        self, problem: Problem, x: NDArray[Any], random: bool
    ) -> tuple[NDArray[Any], ...]:
        """Return the other inputs in storage form: from files, or those that belong to `x`."""
        from softgen.problems.numerics import encode, other_inputs

        if not any(self.inputs) and random:
            return other_inputs(x, problem)
        self._require_all(problem)
        found: dict[str, NDArray[Any]] = {}
        for operand, path in zip(problem.inputs[1:], self.inputs, strict=True):
            if operand.extent is Extent.NUMBER:
                found[operand.name] = encode(_number(operand, path, found), operand.dtype)
                continue
            assert path is not None
            option, integers = f"--operand {operand.name}", isinstance(operand.dtype, Integer)
            values = read_npy(path, MAX_ELEMENTS, option=option, integers=integers)
            free = operand.extent is Extent.BROADCAST
            shape = (values.size,) if free else operand.shape(x.shape[0], problem.cols)
            if values.size != math.prod(shape):
                raise InvalidValueError(
                    f"{path} has {values.size} elements, and {operand.name} of {x.shape[0]} rows "
                    f"has {math.prod(shape)}"
                )
            found[operand.name] = encode(values.reshape(shape), operand.dtype)
        return tuple(found.values())

    def _require_all(self, problem: Problem) -> None:
        """Raise InvalidValueError that names all inputs that are missing."""
        others = problem.inputs[1:]
        names = {operand.name for operand in others}
        missing = [
            operand
            for operand, path in zip(others, self.inputs, strict=True)
            if path is None and operand.default is None and _place(operand, names) is None
        ]
        if missing:
            options = " ".join(_spelled("--operand", operand) for operand in missing)
            words = " and ".join(operand.name for operand in missing)
            raise InvalidValueError(f"{problem.function.name} takes {words} too; give {options}")


def _place(operand: Operand, arrays: Container[str]) -> str | None:
    """Return what a number says of the place of one of `arrays`: count, every or nothing."""
    name, _, place = operand.name.rpartition("_")
    if operand.extent is Extent.NUMBER and place in ("count", "every") and name in arrays:
        return place
    return None


def _spelled(option: str, operand: Operand) -> str:
    """Return an option for an operand, for example --operand maxima=FILE.npy."""
    if operand.extent is Extent.NUMBER:
        return f"{option} {operand.name}={operand.default or 1}"
    return f"{option} {operand.name}=FILE.npy"


def _number(operand: Operand, given: Path | None, arrays: Mapping[str, NDArray[Any]]) -> float:
    """Return a number of --operand, or its default.

    By default a broadcast array has an element a row. `arrays` are the inputs before the number.
    """
    place = _place(operand, arrays)
    if given is None and place is not None:
        return arrays[operand.name.removesuffix("_count")].size if place == "count" else 1
    if given is None and operand.default is not None:
        return operand.default
    if isinstance(operand.dtype, Integer):
        whole = None
        with contextlib.suppress(ValueError):  # 1e3 is whole too
            whole = int(str(given))  # of which a float has 53 bits
        if whole is not None:
            return bits(f"--operand {operand.name}", whole)
    try:
        number = float(str(given))
    except ValueError:
        raise InvalidValueError(
            f"--operand {operand.name} is a number, as {operand.name}={operand.default or 1}, "
            f"got {given}"
        ) from None
    if isinstance(operand.dtype, Integer) and not number.is_integer():
        raise InvalidValueError(f"--operand {operand.name} must be a whole number, got {given}")
    if operand.accepts.startswith("finite") and not math.isfinite(number):
        raise InvalidValueError(f"--operand {operand.name} must be finite, got {given}")
    return number


def _by_name(
    option: str, given: list[str], operands: Sequence[Operand], function: Function
) -> dict[str, Path]:
    """Return the files of NAME=FILE options, and the numbers of those that are one."""
    names = [operand.name for operand in operands]
    found: dict[str, Path] = {}
    for text in given:
        name, _, path = text.partition("=")
        if not path or name not in names:
            known = ", ".join(_spelled(option, operand) for operand in operands)
            missing = f"has no {option} {name}" if path else f"takes a value in {option} {text}"
            raise InvalidValueError(
                f"{function.name} {missing}; it takes {known or f'no {option}'}"
            )
        if name in found:
            raise InvalidValueError(f"{option} {name}= is given twice")
        found[name] = Path(path)
    return found


def save_npy(path: Path, values: NDArray[np.floating[Any]]) -> None:
    """Write an array to exactly `path`, which numpy.save would give another ending."""
    import numpy as np

    data = io.BytesIO()
    np.save(data, values, allow_pickle=False)
    outputs.write(path, data.getvalue())


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


def load_hooks(
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
        axis: the axis of x along which rows lie, from 0 on.
        x_type: what it is computed in.
        y_type: the type of the result.
        given: NAME=NUMBER, NAME=FILE.npy, or causal: the arguments of a call.

    Raises InvalidValueError or InvalidTypeError, saying what is accepted.
    """
    from softgen.problems.numerics import encode

    computed_in = compute_type(x_type, y_type).value
    arguments = dict(_argument(text, computed_in) for text in given)
    if len(arguments) < len(given):
        raise InvalidValueError(f"give each --hook at most once, got {', '.join(given)}")
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


def _argument(text: str, computed_in: str) -> tuple[str, Any]:
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
            from softgen.problems.numerics import encode

            return name, encode(array, Integer.INT64)
        return name, array.astype(computed_in) if name in NUMBERS_TOO else array
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
