"""Cross entropy of probabilities of classes: its rows of the table."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import losses
from softgen.torch.dtypes import wide
from softgen.torch.registry import Operator, is_grad_enabled, like_x, plain, registered, tuning


def rows_of_probabilities(
    x: Any, probs: Any, weight: Any, smoothing: float, z_loss: float, invariant: bool | None
) -> tuple[Any, Any]:
    """Return the loss of each row in the type of the arithmetic, and lse.

    Args:
        x: logits, the classes last.
        probs: of each class, of x's shape and any float dtype; it may have a gradient.
        weight: of the classes, or None.
        smoothing: the label_smoothing.
        z_loss: the weight of lse^2.
        invariant: the batch_invariant of a call.
    """
    if weight is not None:  # of which the smoothed probabilities are times, unrounded
        x, probs = x.to(wide(x)), probs.to(wide(x))
        probs = ((1 - smoothing) * probs + smoothing / max(1, x.shape[-1])) * weight
        smoothing = 0.0
    request = (x, probs.to(x.dtype), smoothing, z_loss, invariant)
    rows, lse, _ = ProbabilityLosses.call(*request)
    return rows, lse


@registered("probability_losses_backward")
class ProbabilityLossesBackward(Operator):
    """dx from lse, the sums of the probabilities, and the gradient with respect to each loss."""

    of = "cross_entropy"

    @staticmethod
    def launch(
        x: torch.Tensor,
        probs: torch.Tensor,
        lse: torch.Tensor,
        mass: torch.Tensor,
        g: torch.Tensor,
        smoothing: float,
        z_loss: float,
        batch_invariant: bool | None,
    ) -> torch.Tensor:
        """Return dx of x's dtype."""
        found: torch.Tensor = losses.backward_of_probabilities(
            *(plain(x), plain(probs), lse, mass, g.to(lse.dtype), smoothing, z_loss),
            dtype=None,
            out=None,
            options={"tune": tuning(), "batch_invariant": batch_invariant},
        )
        return found

    fake = staticmethod(like_x)


@registered("probability_losses")
class ProbabilityLosses(Operator):
    """The loss of each row, lse, and the sum of its probabilities."""

    of = "cross_entropy"

    @staticmethod
    def launch(
        x: torch.Tensor,
        probs: torch.Tensor,
        smoothing: float,
        z_loss: float,
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return them in the type of the arithmetic; the probabilities are of x's dtype."""
        options = {"tune": tuning(), "batch_invariant": batch_invariant}
        request = (plain(x), plain(probs), smoothing, z_loss)
        return losses.losses_of_probabilities(*request, options=options)

    @staticmethod
    def fake(x: Any, *_: Any) -> Any:
        """Return tensors like them."""
        make = {"dtype": wide(x), "device": x.device}
        return tuple(torch.empty(x.shape[:-1], **make) for _ in range(3))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, the probabilities, lse and their sums."""
        x, probs, *ctx.options = inputs
        _, lse, mass = output
        ctx.mark_non_differentiable(lse, mass)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, probs, lse, mass)

    @staticmethod
    def backward(ctx: Any, g: Any, *_: Any) -> tuple[Any, ...]:
        """Return dx, and that of the probabilities by PyTorch's operations."""
        dx = dprobs = None
        x, probs, lse, mass = ctx.saved_tensors
        smoothing, *_ = ctx.options
        if g is not None and ctx.needs_input_grad[0]:
            dx = ProbabilityLossesBackward.call(x, probs, lse, mass, g, *ctx.options)
        if g is not None and ctx.needs_input_grad[1]:
            log_p = torch.log_softmax(x, -1) if is_grad_enabled() else x - lse[..., None]
            dprobs = (g[..., None] * (smoothing - 1) * log_p).to(probs.dtype)
        return dx, dprobs, None, None, None
