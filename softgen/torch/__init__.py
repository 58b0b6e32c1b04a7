"""softgen in PyTorch: the functions of torch.nn.functional, with gradients.

`softmax`, `log_softmax`, `logsumexp`, `entropy`, `token_log_probs`, `topk_softmax` and
`cross_entropy` are differentiable and may be compiled (`torch.compile(fullgraph=True)`), and so are
losses of hidden states: `linear_cross_entropy`, `linear_token_log_probs`, and the module
`LinearCrossEntropy`. `patch()` puts those that torch.nn.functional has in the place of its own.
`sample` draws a column of each row, and has no gradient.
"""

from __future__ import annotations

from softgen.errors import MissingDependencyError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingDependencyError(
        "softgen.torch needs PyTorch; install it with `pip install '.[torch]'` in the clone of "
        "softgen"
    ) from error

from softgen.torch.choosing import topk_softmax
from softgen.torch.functional import (
    entropy,
    log_softmax,
    logsumexp,
    softmax,
    token_log_probs,
)
from softgen.torch.linear import linear_cross_entropy, linear_token_log_probs
from softgen.torch.losses import cross_entropy
from softgen.torch.modules import LinearCrossEntropy
from softgen.torch.patching import patch, unpatch
from softgen.torch.sampling import sample

__all__ = [
    "LinearCrossEntropy",
    "cross_entropy",
    "entropy",
    "linear_cross_entropy",
    "linear_token_log_probs",
    "log_softmax",
    "logsumexp",
    "patch",
    "sample",
    "softmax",
    "token_log_probs",
    "topk_softmax",
    "unpatch",
]
