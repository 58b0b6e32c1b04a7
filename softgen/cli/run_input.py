"""The input of `softgen run`: a .npy file or random numbers, in one of softgen's dtypes."""

from __future__ import annotations

import io
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.cli.npy import MAX_ELEMENTS, read_npy, too_many
from softgen.cli.options import require_new_file
from softgen.disk import outputs
from softgen.errors import InvalidValueError
from softgen.spec.dtypes import DType, Integer
from softgen.spec.functions.base import Function
from softgen.spec.operands import Extent, Operand
from softgen.spec.problem import Problem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEFAULT_SHAPE = (64, 1000)

# The spread of the random input: logits of a trained network span about this many units.
SPREAD = 3.0


@dataclass(frozen=True)
class Request:
    """An input before it is read.

    Attributes:
        path: the .npy file, or None for random numbers.
        rows: rows of the random input.
        cols: columns of the random input.
        dtype: element type asked for; None for the file's, or float32.
        seed: of the random input.
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
        from softgen.spec.numerics import encode, other_inputs

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
    """Return a number of --operand, or its default: of a broadcast array's place, an element a row.

    `arrays` are the inputs before it.
    """
    place = _place(operand, arrays)
    if given is None and place is not None:
        return arrays[operand.name.removesuffix("_count")].size if place == "count" else 1
    if given is None and operand.default is not None:
        return operand.default
    try:
        number = float(str(given))
    except ValueError:
        raise InvalidValueError(
            f"--operand {operand.name} is a number, as {operand.name}={operand.default or 1}, "
            f"got {given}"
        ) from None
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
            known = " and ".join(_spelled(option, operand) for operand in operands)
            raise InvalidValueError(
                f"{option} {text}: {function.name} takes {known or f'no {option}'}"
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
