"""softgen: generates, tunes and launches specialized CUDA softmax kernels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softgen.api import log_softmax, plan, softmax
    from softgen.arch import Arch
    from softgen.errors import (
        CaptureError,
        CompileError,
        EmulationError,
        IllegalVariantError,
        InvalidTypeError,
        InvalidValueError,
        LaunchError,
        MissingDependencyError,
        NoDeviceError,
        NotSupportedError,
        SoftgenError,
        StrategyError,
        VerificationError,
    )
    from softgen.generator import generate
    from softgen.problem import Algorithm, DType, Problem

__version__ = "0.1.0"

__all__ = [
    "Algorithm",
    "Arch",
    "CaptureError",
    "CompileError",
    "DType",
    "EmulationError",
    "IllegalVariantError",
    "InvalidTypeError",
    "InvalidValueError",
    "LaunchError",
    "MissingDependencyError",
    "NoDeviceError",
    "NotSupportedError",
    "Problem",
    "SoftgenError",
    "StrategyError",
    "VerificationError",
    "__version__",
    "generate",
    "log_softmax",
    "plan",
    "softmax",
]

_HOME = {
    "Algorithm": "softgen.problem",
    "Arch": "softgen.arch",
    "DType": "softgen.problem",
    "Problem": "softgen.problem",
    "generate": "softgen.generator",
    "log_softmax": "softgen.api",
    "plan": "softgen.api",
    "softmax": "softgen.api",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import softgen` itself costs no CuPy, Jinja or NumPy."""
    if name not in __all__:
        raise AttributeError(f"module 'softgen' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "softgen.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
