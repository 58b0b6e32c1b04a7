"""The NumPy dtype of each element type, which CuPy's arrays have too."""

from __future__ import annotations

from typing import Any

import numpy as np

from softgen.spec.dtypes import DType, ElementType


def numpy_dtype(dtype: ElementType) -> Any:
    """Return the NumPy dtype; bfloat16 comes from ml_dtypes, which the cuda extras install."""
    if dtype is DType.BFLOAT16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype.value)
