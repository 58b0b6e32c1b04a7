"""The input of `softgen run`: a .npy file or random numbers, in one of softgen's dtypes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.cli.npy import MAX_ELEMENTS, read_npy, too_many
from softgen.disk.files import write_whole
from softgen.errors import InvalidValueError
from softgen.spec.problem import DType

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
        rows = DEFAULT_SHAPE[0] if self.rows is None else self.rows
        cols = DEFAULT_SHAPE[1] if self.cols is None else self.cols
        if objection := too_many((rows, cols), limit):
            raise InvalidValueError(f"{rows} x {cols} are {objection}")
        return self._random(rows, cols), self.dtype or DType.FLOAT32

    def _random(self, rows: int, cols: int) -> NDArray[Any]:
        import numpy as np

        wide = np.float64 if self.dtype is DType.FLOAT64 else np.float32
        return np.random.default_rng(self.seed).standard_normal((rows, cols), wide) * wide(SPREAD)


def save_npy(path: Path, values: NDArray[np.floating[Any]]) -> None:
    """Write an array to exactly `path`, which numpy.save would give another ending.

    An earlier file stays whole until the new one is. What `path` links to is written, and a device
    or a pipe is written into.
    """
    import numpy as np

    data = io.BytesIO()
    np.save(data, values, allow_pickle=False)
    if path.exists() and not path.is_file():
        path.write_bytes(data.getvalue())
    else:
        write_whole(path.resolve(), data.getvalue())
