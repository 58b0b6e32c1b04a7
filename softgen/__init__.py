"""softgen: generates, tunes and launches specialized CUDA softmax kernels."""

from __future__ import annotations

import importlib

from softgen.version import __version__ as __version__

TYPE_CHECKING = False  # as typing has it, whose import is most of that of softgen
if TYPE_CHECKING:
    from typing import Any

    from softgen.call.api import finish, log_softmax, logsumexp, partial, softmax
    from softgen.call.merge import merge
    from softgen.call.plan import plan
    from softgen.errors import (
        CaptureError,
        CompileError,
        EmulationError,
        ExchangeError,
        FunctionError,
        IllegalVariantError,
        InvalidTypeError,
        InvalidValueError,
        LaunchError,
        MissingDependencyError,
        NoDeviceError,
        NoRoomError,
        NotSupportedError,
        PluginError,
        PluginWarning,
        SoftgenError,
        StrategyError,
        VerificationError,
    )
    from softgen.problems.arch import Arch
    from softgen.problems.dtypes import DType
    from softgen.problems.functions.base import Function
    from softgen.problems.problem import Problem
    from softgen.source.generate import generate
    from softgen.source.project_folder import project
    from softgen.strategies.own import register

__all__ = [
    "Arch",
    "CaptureError",
    "CompileError",
    "DType",
    "EmulationError",
    "ExchangeError",
    "Function",
    "FunctionError",
    "IllegalVariantError",
    "InvalidTypeError",
    "InvalidValueError",
    "LaunchError",
    "MissingDependencyError",
    "NoDeviceError",
    "NoRoomError",
    "NotSupportedError",
    "PluginError",
    "PluginWarning",
    "Problem",
    "SoftgenError",
    "StrategyError",
    "VerificationError",
    "__version__",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_grad",
    "entropy",
    "entropy_backward",
    "finish",
    "generate",
    "log_softmax",
    "log_softmax_backward",
    "logsumexp",
    "logsumexp_backward",
    "merge",
    "partial",
    "plan",
    "project",
    "register",
    "sample",
    "softmax",
    "softmax_backward",
    "token_log_probs",
    "token_log_probs_backward",
    "topk_softmax",
    "topk_softmax_backward",
]

_HOME = {
    "Arch": "softgen.problems.arch",
    "DType": "softgen.problems.dtypes",
    "Function": "softgen.problems.functions.base",
    "Problem": "softgen.problems.problem",
    "entropy": "softgen.call.tokens",
    "entropy_backward": "softgen.call.gradients",
    "cross_entropy": "softgen.call.losses",
    "cross_entropy_backward": "softgen.call.losses",
    "cross_entropy_grad": "softgen.call.losses",
    "finish": "softgen.call.api",
    "generate": "softgen.source.generate",
    "log_softmax": "softgen.call.api",
    "log_softmax_backward": "softgen.call.gradients",
    "logsumexp": "softgen.call.api",
    "logsumexp_backward": "softgen.call.gradients",
    "merge": "softgen.call.merge",
    "partial": "softgen.call.api",
    "plan": "softgen.call.plan",
    "project": "softgen.source.project_folder",
    "register": "softgen.strategies.own",
    "sample": "softgen.call.sampling",
    "softmax": "softgen.call.api",
    "softmax_backward": "softgen.call.gradients",
    "token_log_probs": "softgen.call.tokens",
    "token_log_probs_backward": "softgen.call.gradients",
    "topk_softmax": "softgen.call.choosing",
    "topk_softmax_backward": "softgen.call.choosing",
}

# Imported as names are: `softgen.torch.softmax` after `import softgen` alone.
_PACKAGES = ("distributed", "scipy", "torch")

# Public names of before, and what has taken their place.
_REPLACED = {"Algorithm": "Function"}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import softgen` itself costs no CuPy, Jinja or NumPy."""
    if name in _PACKAGES:
        return importlib.import_module(f"softgen.{name}")
    if name not in __all__:
        hint = f"; it is softgen.{_REPLACED[name]} now" if name in _REPLACED else ""
        raise AttributeError(f"module 'softgen' has no attribute {name!r}{hint}")
    value = getattr(importlib.import_module(_HOME.get(name, "softgen.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
