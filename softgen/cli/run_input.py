"""The input of `softgen run`: a .npy file or random numbers, in one of softgen's dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problem import DType

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
    """

    path: Path | None
    rows: int | None
    cols: int | None
    dtype: DType | None
    seed: int

    def load(self, limit: int | None) -> tuple[NDArray[Any], DType]:
        """Return the input as a float array of any shape, and the dtype to compute in.

        `limit` is the largest number of elements; beyond it InvalidValueError says what to do.
        """
        if self.path is not None:
            if self.rows is not None or self.cols is not None:
                raise InvalidValueError(
                    "--rows and --cols are for random input; with --input the file's shape counts"
                )
            values = load_npy(self.path)
            _refuse_huge(values.size, limit)
            return values, self.dtype or DType.of(values.dtype.name)
        rows = DEFAULT_SHAPE[0] if self.rows is None else self.rows
        cols = DEFAULT_SHAPE[1] if self.cols is None else self.cols
        _refuse_huge(rows * cols, limit)
        return self._random(rows, cols), self.dtype or DType.FLOAT32

    def _random(self, rows: int, cols: int) -> NDArray[Any]:
        import numpy as np

        wide = np.float64 if self.dtype is DType.FLOAT64 else np.float32
        return np.random.default_rng(self.seed).standard_normal((rows, cols), wide) * wide(SPREAD)


def load_npy(path: Path) -> NDArray[Any]:
    """Return the float array in a .npy file; errors say what was found and what is accepted."""
    import numpy as np

    try:
        values = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InvalidValueError(f"--input: {path} does not exist") from None
    except (OSError, ValueError, EOFError) as error:
        raise InvalidValueError(
            f"--input: {path} cannot be read as a .npy file ({error}); write one with numpy.save"
        ) from error
    if not isinstance(values, np.ndarray):
        raise InvalidValueError(
            f"--input: {path} is an archive of several arrays (.npz); give a .npy file with one"
        )
    accepted = {dtype.value for dtype in DType}
    if values.dtype.name not in accepted:
        raise InvalidTypeError(
            f"--input: {path} holds {values.dtype.name}; softgen computes floating point: "
            f"{', '.join(sorted(accepted))} (bfloat16 from a float32 file with --dtype bfloat16). "
            "Convert it first, for example numpy.save(path, x.astype('float32'))"
        )
    return np.ascontiguousarray(values, values.dtype.newbyteorder("=")).reshape(values.shape)


def save_npy(path: Path, values: NDArray[np.floating[Any]]) -> None:
    """Write an array to exactly `path`, which numpy.save would give another ending."""
    import numpy as np

    with path.open("wb") as file:
        np.save(file, values, allow_pickle=False)


def _refuse_huge(elements: int, limit: int | None) -> None:
    if limit is not None and elements > limit:
        raise InvalidValueError(
            f"{elements} elements are too many for the CPU emulator, which takes up to {limit} "
            "(about a minute); use fewer rows or columns, or a machine with a GPU"
        )
