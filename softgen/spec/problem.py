"""What is asked for: the compile-time part of a softmax request."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import likely, unknown

# The widest load or store of one thread (LDG.128 / STG.128) moves this many bytes.
MAX_PACK_BYTES = 16

# Column indices are 32-bit up to here. The margin to 2**31 leaves room for an index that runs past
# the row by one pack of every thread of a block before it is compared with the width.
MAX_INT32_COLS = 2**31 - 2**17

MAX_COLS = 2**40

# More rows than any memory holds: estimates are made in floats, which end at 10**308.
MAX_ROWS = 2**40

# Of any number that is given; a range of its own comes after that.
MOST_BITS = 128


class Algorithm(str, Enum):
    """The function applied to each row."""

    SOFTMAX = "softmax"
    LOG_SOFTMAX = "log_softmax"

    @classmethod
    def of(cls, value: Algorithm | str) -> Algorithm:
        """Return the member named by `value`; InvalidValueError names the choices."""
        try:
            return cls(value)
        except ValueError:
            known = [member.value for member in cls]
            raise InvalidValueError(unknown("algorithm", str(value), known)) from None


class DType(str, Enum):
    """An element type, by NumPy's name for it."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @classmethod
    def of(cls, value: object) -> DType:
        """Return the member for a name or a dtype object that ends in one (np.float32, torch.half).

        Raises InvalidTypeError naming the accepted dtypes.
        """
        if isinstance(value, cls):
            return value
        name = value if isinstance(value, str) else getattr(value, "__name__", str(value))
        name = name.rpartition(".")[2]
        try:
            return cls(name)
        except ValueError:
            known = [member.value for member in cls]
            raise InvalidTypeError(
                f"dtype {name!r} is not supported;{likely(name, known)} softgen computes "
                f"{', '.join(known)}. Cast the input first, for example x.astype('float32')"
            ) from None

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return _FACTS[self][0]

    @property
    def short(self) -> str:
        """Abbreviation used in kernel names."""
        return _FACTS[self][1]

    @property
    def cuda(self) -> str:
        """The CUDA C++ type."""
        return _FACTS[self][2]

    @property
    def max_pack(self) -> int:
        """Elements in the widest access of one thread."""
        return MAX_PACK_BYTES // self.itemsize


_FACTS = {
    DType.FLOAT16: (2, "f16", "__half"),
    DType.BFLOAT16: (2, "bf16", "__nv_bfloat16"),
    DType.FLOAT32: (4, "f32", "float"),
    DType.FLOAT64: (8, "f64", "double"),
}


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int, NumPy's integers too.

    Raises InvalidTypeError if it is none, InvalidValueError if it is far beyond any use:
    Python neither prints an int of 5000 digits nor makes a float of one of 400.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise InvalidTypeError(f"{name} must be an int, got {value!r}")
    if number.bit_length() > MOST_BITS:
        raise InvalidValueError(f"{name} must fit {MOST_BITS} bits, got {number.bit_length()}")
    return number


def largest_power_of_two_divisor(n: int) -> int:
    """Return the largest power of two that divides `n` > 0."""
    return n & -n


@dataclass(frozen=True)
class Problem:
    """The compile-time part of a request: one Problem and one Strategy make one source text.

    Attributes:
        algorithm: softmax or log_softmax of each row.
        dtype: element type of the input x.
        out_dtype: element type of the output y.
        cols: elements in a row; rows are contiguous and `cols` elements apart.
        alignment: every row of x and of y starts on a multiple of this many elements of its own
            type (of 16 bytes, where that is less). A power of two.
        fixed_order: whether the order in which a row is summed must not depend on where the row
            lies. False where rows are whole packs of 16 bytes, since every kernel has one order for
            those.

    `Problem.of` takes names and fills in the defaults.
    """

    algorithm: Algorithm
    dtype: DType
    out_dtype: DType
    cols: int
    alignment: int
    fixed_order: bool = False

    @classmethod
    def of(
        cls,
        algorithm: Algorithm | str,
        dtype: object,
        cols: int,
        *,
        out_dtype: object = None,
        alignment: int | None = None,
        fixed_order: bool = False,
    ) -> Problem:
        """Return the problem for the given names.

        Args:
            algorithm: "softmax" or "log_softmax".
            dtype: float16, bfloat16, float32 or float64, as a name or a NumPy / PyTorch dtype.
            cols: elements in a row, from 1 to 2**40.
            out_dtype: element type of the result; `dtype` by default.
            alignment: in elements, a power of two. By default what `cols` gives when both arrays
                start on a 16-byte boundary, as allocators' arrays do; 1 for arrays that start
                anywhere.
            fixed_order: whether a row must be summed in the same order wherever it lies.

        Raises InvalidValueError or InvalidTypeError, saying what is accepted.
        """
        x_type = DType.of(dtype)
        y_type = x_type if out_dtype is None else DType.of(out_dtype)
        cols = whole_number("cols", cols)
        if not 1 <= cols <= MAX_COLS:
            raise InvalidValueError(f"cols must be from 1 to 2**40, got {cols}")
        natural = natural_alignment(x_type, cols)
        if alignment is None:
            alignment = natural
        alignment = whole_number("alignment", alignment)
        if alignment < 1 or alignment & (alignment - 1):
            raise InvalidValueError(
                f"alignment must be a power of two (in elements), got {alignment}"
            )
        alignment = min(alignment, natural)
        fixed_order = fixed_order and alignment < x_type.max_pack
        return cls(Algorithm.of(algorithm), x_type, y_type, cols, alignment, fixed_order)

    @property
    def compute_dtype(self) -> DType:
        """The type of all arithmetic: float64 if either array is, else float32."""
        doubled = DType.FLOAT64 in (self.dtype, self.out_dtype)
        return DType.FLOAT64 if doubled else DType.FLOAT32

    @property
    def wide_index(self) -> bool:
        """Whether column indices need 64 bits."""
        return self.cols > MAX_INT32_COLS

    @property
    def bytes_per_row(self) -> int:
        """The fewest bytes a row must move: one read and one write of each element."""
        return self.cols * (self.dtype.itemsize + self.out_dtype.itemsize)

    @property
    def function(self) -> str:
        """The algorithm with its types, for example softmax_f32 or log_softmax_bf16_to_f32."""
        types = self.dtype.short
        if self.out_dtype is not self.dtype:
            types += f"_to_{self.out_dtype.short}"
        return f"{self.algorithm.value}_{types}"

    @property
    def label(self) -> str:
        """Readable and unique: the first part of a variant's name."""
        label = f"{self.function}_{self.cols}"
        if self.alignment != natural_alignment(self.dtype, self.cols):
            label += f"_align{self.alignment}"
        if self.fixed_order:
            label += "_fixed"
        return label


def rows_bucket(rows: int) -> int:
    """Return the least power of two that is at least `rows` >= 1: a choice is kept per bucket."""
    return 1 << (rows - 1).bit_length()


def natural_alignment(dtype: DType, cols: int) -> int:
    """Return the alignment in elements of rows of `cols` when the first starts on 16 bytes."""
    return min(largest_power_of_two_divisor(cols), dtype.max_pack)
