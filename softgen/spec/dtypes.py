"""The element types, and the types of indices, counts and choices."""

from __future__ import annotations

from enum import Enum

from softgen.errors import InvalidTypeError
from softgen.names import likely

# The widest load or store of one thread (LDG.128 / STG.128) moves this many bytes.
MAX_PACK_BYTES = 16


class DType(str, Enum):
    """An element type, by NumPy's name for it."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    def __str__(self) -> str:
        # Typer up to 0.28 looks an option's parsed value up by its text, and gives None without it.
        return self.value

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
                f"dtype {name!r} is not supported;{cls.likely(name)} softgen computes "
                f"{', '.join(known)}. Cast the input first, for example x.astype('float32')"
            ) from None

    @classmethod
    def likely(cls, name: str) -> str:
        """Return " did you mean 'float32'?" for fp32 and for slips, or nothing."""
        meant = _ALSO.get(name.lower())
        return f" did you mean {meant.value!r}?" if meant else likely(name, [m.value for m in cls])

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


def compute_type(*types: DType) -> DType:
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
ElementType = DType | Integer

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
