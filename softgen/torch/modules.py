"""The last layer of a model and its loss, as one module that owns the weight."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call.losses import require_reduction
from softgen.problems.functions.cross_entropy import IGNORE_INDEX
from softgen.torch.chunks import require_mode
from softgen.torch.linear import linear_cross_entropy


class LinearCrossEntropy(torch.nn.Module):  # type: ignore[misc]
    """A linear layer and the cross entropy of what it returns, without all its logits in memory.

    Its arguments, and the names in its state, are those of torch.nn.LinearCrossEntropyLoss.
    `linear` is the layer: call it for logits, and tie an embedding by giving both one weight.

    Under FSDP2 a weight is whole only in the forward of the module that owns it: give this module
    to fully_shard, alone or within another, and not its `linear`.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        reduction: str = "mean",
        weight: Any = None,
        ignore_index: int = IGNORE_INDEX,
        label_smoothing: float = 0.0,
        softcap: float | None = None,
        z_loss: float = 0.0,
        mode: str = "fast",
        chunk: int | None = None,
        accumulate: Any = None,
    ) -> None:
        """Make the layer; the other arguments are those of `linear_cross_entropy`.

        Args:
            in_features: the size of a hidden state.
            num_classes: the rows of the layer's weight.
            bias: whether the layer has one.
            device: of the layer.
            dtype: of the layer.
            reduction: as in `linear_cross_entropy`, and so are all below.
            weight: of classes.
            ignore_index: a target that counts for nothing.
            label_smoothing: as in PyTorch.
            softcap: of the logits.
            z_loss: the weight of lse^2.
            mode: "fast" or "lean".
            chunk: rows of a chunk.
            accumulate: the dtype in which the gradient of the layer's weight is added up.
        """
        super().__init__()
        require_mode(mode, chunk)
        require_reduction(reduction)
        self.linear = torch.nn.Linear(in_features, num_classes, bias, device=device, dtype=dtype)
        self.register_buffer("weight", weight)
        self.options: dict[str, Any] = {
            "reduction": reduction,
            "ignore_index": ignore_index,
            "label_smoothing": label_smoothing,
            "softcap": softcap,
            "z_loss": z_loss,
            "mode": mode,
            "chunk": chunk,
            "accumulate": accumulate,
        }

    def forward(
        self, input: Any, target: Any, *, num_items: Any = None, valid_rows: int | None = None
    ) -> Any:
        """Return the loss; the arguments are those of `linear_cross_entropy`.

        Args:
            input: hidden states (..., in_features).
            target: the class of each row.
            num_items: what a mean divides the sum by.
            valid_rows: how many targets are not ignore_index.
        """
        return linear_cross_entropy(
            *(input, self.linear.weight, target),
            linear_bias=self.linear.bias,
            weight=self.weight,
            num_items=num_items,
            valid_rows=valid_rows,
            **self.options,
        )

    def extra_repr(self) -> str:
        """Return the options."""
        return ", ".join(f"{name}={each}" for name, each in self.options.items())
