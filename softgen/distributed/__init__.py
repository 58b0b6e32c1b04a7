"""softgen over several GPUs: the last dimension lies in shards, a process each, and stays so.

`softmax`, `log_softmax`, `logsumexp`, `token_log_probs` and `cross_entropy` take this process's
shard of the columns, on `torch.distributed`'s process groups, or a DTensor that is sharded so. They
are differentiable. Between the processes a few numbers a row travel (docs/distributed.md).
"""

from __future__ import annotations

from softgen.errors import MissingDependencyError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "softgen.distributed needs PyTorch; install it with pip install 'softgen[torch]'"
    ) from error

from softgen.distributed.functional import log_softmax, logsumexp, softmax
from softgen.distributed.losses import cross_entropy, token_log_probs

__all__ = ["cross_entropy", "log_softmax", "logsumexp", "softmax", "token_log_probs"]
