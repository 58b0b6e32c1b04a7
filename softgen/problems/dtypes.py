"""The element types, and the types of indices, counts and choices."""

from __future__ import annotations

from enum import Enum

from softgen.errors import InvalidTypeError
from softgen.names import likely

# The widest load or store of one thread (LDG.128 / STG.128) moves this many bytes.
MAX_PACK_BYTES = 16

# float32's smallest normal number: -ftz=true has float32 arithmetic make 0 of smaller ones.
FLOAT32_TINY = 2.0**-126


class FloatType(str, Enum):
    """What an element may be: a DType, or of a result a Float8."""

    def __str__(self) -> str:
        # Typer up to 0.28 looks an option's parsed value up by its text, and gives None without it.
        return str(self.value)

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        raise NotImplementedError

    @property
    def short(self) -> str:
        """Abbreviation used in kernel names."""
        raise NotImplementedError

    @property
    def cuda(self) -> str:
        """The CUDA C++ type."""
        raise NotImplementedError

    @property
    def max_pack(self) -> int:
        """Elements in the widest access of one thread."""
        return MAX_PACK_BYTES // self.itemsize


class DType(FloatType):
    """An element type, by NumPy's name for it."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @classmethod
    def of(cls, value: object, cast: str = "x.astype('float32')") -> DType:
        """Return the member for a name, bf16 too, or a dtype object (np.float32, torch.half).

        Raises InvalidTypeError naming the accepted dtypes, and a `cast` to one.
        """
        if isinstance(value, cls):
            return value
        name = _name_of(value)
        try:
            return _ALSO.get(name.lower()) or cls(name)
        except ValueError:
            known = [member.value for member in cls]
            hint = " only results have it;" if name in list(Float8) else cls.likely(name)
            raise InvalidTypeError(
                f"dtype {name!r} is not supported;{hint} softgen computes "
                f"{', '.join(known)}. Cast the input first, for example {cast}"
            ) from None

    @classmethod
    def likely(cls, name: str) -> str:
        """Return " did you mean 'float32'?" for a slip, or nothing."""
        return likely(name, [m.value for m in cls])

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


class Float8(FloatType):
    """A type of 8 bits, by ml_dtypes' and PyTorch's name: of results alone.

    A conversion to it rounds to the nearest, ties to even, and saturates: what is beyond the
    largest finite number becomes that, infinities too.
    """

    E4M3 = "float8_e4m3fn"
    E5M2 = "float8_e5m2"

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return 1

    @property
    def short(self) -> str:
        """Abbreviation used in kernel names."""
        return self.value[7:11]

    @property
    def cuda(self) -> str:
        """The C++ type: that of the bits, so that a file needs no header of the toolkit's."""
        return "unsigned char"

    @property
    def largest_bits(self) -> int:
        """The bits of the largest finite number, 448 or 57344."""
        return 0x7E if self is Float8.E4M3 else 0x7B


def result_type(value: object) -> FloatType:
    """Return the type of results for a name or a dtype object: DType's, and those of 8 bits.

    Raises InvalidTypeError naming the accepted dtypes.
    """
    if isinstance(value, FloatType):
        return value
    name = _name_of(value)
    if meant := _ALSO.get(name.lower()) or _ALSO_FLOAT8.get(name.lower()):
        return meant
    if name in list(Float8):
        return Float8(name)
    if name in list(DType):
        return DType(name)
    known = ", ".join([*DType, *Float8])
    likely_one = likely_result(name)
    raise InvalidTypeError(f"dtype {name!r} is not supported;{likely_one} softgen writes {known}")


def likely_result(name: str) -> str:
    """Return " did you mean 'float8_e4m3fn'?" for a slip, or nothing."""
    return likely(name, [m.value for m in [*DType, *Float8]])


def _name_of(value: object) -> str:
    """Return the last part of a name, or of that of a dtype object."""
    name = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    return name.rpartition(".")[2]


def compute_type(*types: FloatType) -> DType:
    """Return the type of all arithmetic on arrays of these types: float64 if any is, else float32.

    What a call computes in, what it takes a scale in and what it saves have this type.
    """
    return DType.FLOAT64 if DType.FLOAT64 in types else DType.FLOAT32


class Integer(str, Enum):
    """The type of an index, a count or a choice, by NumPy's name for it."""

    BOOL = "bool"
    INT32 = "int32"
    INT64 = "int64"

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return _INTEGER_FACTS[self][0]

    @property
    def short(self) -> str:
        """Abbreviation."""
        return _INTEGER_FACTS[self][1]

    @property
    def cuda(self) -> str:
        """The CUDA C++ type."""
        return _INTEGER_FACTS[self][2]


# What an operand may be of.
ElementType = FloatType | Integer

_INTEGER_FACTS = {
    Integer.BOOL: (1, "bool", "bool"),
    Integer.INT32: (4, "i32", "int"),
    Integer.INT64: (8, "i64", "long long"),
}

_FACTS = {
    DType.FLOAT16: (2, "f16", "__half"),
    DType.BFLOAT16: (2, "bf16", "__nv_bfloat16"),
    DType.FLOAT32: (4, "f32", "float"),
    DType.FLOAT64: (8, "f64", "double"),
}

# What the types are called elsewhere; "float" has 32 bits in PyTorch and 64 in NumPy.
_ALSO = {
    **dict.fromkeys(("f16", "fp16", "half"), DType.FLOAT16),
    **dict.fromkeys(("bf16", "bfloat"), DType.BFLOAT16),
    **dict.fromkeys(("f32", "fp32", "single"), DType.FLOAT32),
    **dict.fromkeys(("f64", "fp64", "double"), DType.FLOAT64),
}
_ALSO_FLOAT8 = {
    **dict.fromkeys(("e4m3", "e4m3fn", "fp8", "fp8_e4m3", "float8_e4m3"), Float8.E4M3),
    **dict.fromkeys(("e5m2", "fp8_e5m2"), Float8.E5M2),
}
