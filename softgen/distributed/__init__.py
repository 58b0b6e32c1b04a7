"""softgen over several GPUs: the last dimension lies in shards, a process each, and stays so.

`softmax`, `log_softmax`, `logsumexp`, `entropy`, `token_log_probs` and `cross_entropy` take this
process's shard of the columns, on `torch.distributed`'s process groups, or a DTensor that is
sharded so; `linear_cross_entropy` takes that of a last layer's weight. They are differentiable.
Between the processes a few numbers a row travel (docs/distributed.md).
`softgen.distributed.on_cupy` has them for CuPy arrays, and needs no PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from softgen.errors import MissingDependencyError

if TYPE_CHECKING:
    from softgen.distributed.functional import log_softmax, logsumexp, softmax
    from softgen.distributed.linear import linear_cross_entropy
    from softgen.distributed.losses import cross_entropy, entropy, token_log_probs

__all__ = [
    "cross_entropy",
    "entropy",
    "linear_cross_entropy",
    "log_softmax",
    "logsumexp",
    "softmax",
    "token_log_probs",
]

_FUNCTIONAL = ("log_softmax", "logsumexp", "softmax")
_LOSSES = ("cross_entropy", "entropy", "token_log_probs")
_HOME = dict.fromkeys(_FUNCTIONAL, "softgen.distributed.functional")
_HOME |= dict.fromkeys(_LOSSES, "softgen.distributed.losses")
_HOME["linear_cross_entropy"] = "softgen.distributed.linear"


def __getattr__(name: str) -> Any:
    """Import a function on first use: those of PyTorch need it."""
    if name not in __all__:
        raise AttributeError(f"module 'softgen.distributed' has no attribute {name!r}")
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "softgen.distributed needs PyTorch; install it with `pip install '.[torch]'` in the "
            "clone of softgen, or take softgen.distributed.on_cupy"
        ) from error
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
