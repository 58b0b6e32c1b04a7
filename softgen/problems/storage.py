"""The NumPy dtype of each element type: that of CuPy's arrays, and that of storage form."""

from __future__ import annotations

from typing import Any

import numpy as np

from softgen.problems.dtypes import DType, ElementType, Float8


def numpy_dtype(dtype: ElementType) -> Any:
    """Return the NumPy dtype; bfloat16 comes from ml_dtypes, which the cuda extras install.

    Of types of 8 bits it is uint8, which holds their bits: CuPy has none of them.
    """
    if dtype is DType.BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return storage_dtype(dtype)


def storage_dtype(dtype: ElementType) -> np.dtype[Any]:
    """Return the NumPy dtype that holds elements of `dtype` in storage form (numerics.py)."""
    if isinstance(dtype, Float8):
        return np.dtype("uint8")
    return np.dtype("uint16" if dtype is DType.BFLOAT16 else dtype.value)
