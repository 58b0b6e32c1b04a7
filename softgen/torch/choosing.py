"""The best of each row: experts with the gradient of their weights, and tokens with ranks."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import choosing, tokens
from softgen.call.scalars import finite
from softgen.errors import InvalidTypeError
from softgen.torch.dtypes import wide
from softgen.torch.operators import TokenLogProbsBackward
from softgen.torch.registry import Operator, like_x, plain, registered, tuning


@registered("topk_softmax_backward")
class TopkSoftmaxBackward(Operator):
    """The gradient of the weights of what was chosen."""

    of = "topk_softmax"

    @staticmethod
    def launch(
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
        upstream: torch.Tensor,
        scores: str,
        renormalize: bool,
        scale: float,
        batch_invariant: bool | None,
    ) -> torch.Tensor:
        """Return dx of x's dtype."""
        given: dict[str, Any] = {"scores": scores, "renormalize": renormalize, "scale": scale}
        rows = (weights, ids, upstream)
        return choosing.topk_softmax_backward(
            *(plain(x), *rows), **given, tune=tuning(), batch_invariant=batch_invariant
        )

    fake = staticmethod(like_x)


@registered("topk_softmax")
class TopkSoftmax(Operator):
    """The weights and columns of the largest scores of each row."""

    of = "topk_softmax"

    @staticmethod
    def launch(
        x: torch.Tensor,
        choice_bias: torch.Tensor | None,
        k: int,
        scores: str,
        groups: int | None,
        topk_groups: int | None,
        renormalize: bool,
        scale: float,
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights, float32 (float64 for float64), and columns, int32."""
        return choosing.topk_softmax(
            *(plain(x), k),
            scores=scores,
            choice_bias=None if choice_bias is None else plain(choice_bias),
            groups=groups,
            topk_groups=topk_groups,
            renormalize=renormalize,
            scale=scale,
            tune=tuning(),
            batch_invariant=batch_invariant,
        )

    @staticmethod
    def fake(x: Any, choice_bias: Any, k: Any, *_: Any) -> Any:
        """Return tensors like both."""
        shape = (*x.shape[:-1], k)
        return tuple(torch.empty(shape, dtype=d, device=x.device) for d in (wide(x), torch.int32))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x and both."""
        x, _, _, scores, _, _, renormalize, scale, invariant = inputs
        ctx.given = (scores, renormalize, scale, invariant)
        weights, ids = output
        ctx.mark_non_differentiable(ids)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weights, ids)

    @staticmethod
    def backward(ctx: Any, upstream: Any, _: Any) -> tuple[Any, ...]:
        """Return dx."""
        nones = (None,) * 8
        if upstream is None:
            return None, *nones
        x, weights, ids = ctx.saved_tensors
        return TopkSoftmaxBackward.call(x, weights, ids, upstream, *ctx.given), *nones

    @classmethod
    def vmap(cls, size: int, *arguments: Any) -> Any:
        """Return those of a batch: more rows, unless each has a bias of its own."""
        x, bias, *rest = arguments
        if bias is None:
            return cls.call(*arguments)
        if size and bias.stride(0) == 0:  # one for all, which was expanded
            return cls.call(x, bias[0], *rest)
        found = [cls.call(*each, *rest) for each in zip(x, bias, strict=True)]
        return tuple(map(torch.stack, zip(*found, strict=True)))


@registered("ranked_log_probs")
class RankedLogProbs(Operator):
    """Log-probabilities of ids, those of the largest elements, their columns, ranks of ids, lse."""

    of = "token_log_probs"

    @staticmethod
    def launch(
        x: torch.Tensor,
        ids: torch.Tensor,
        temperatures: torch.Tensor | None,
        temperature: float | None,
        topk: int,
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return them, float32 (float64 for float64) and int32."""
        found: tuple[Any, ...] = tokens.token_log_probs(
            *(plain(x), ids),
            temperature=temperature if temperatures is None else temperatures,
            topk=topk,
            return_lse=True,
            tune=tuning(),
            batch_invariant=batch_invariant,
        )
        log_probs, best, columns, ranks, lse = found
        return log_probs, best, columns, ranks, lse

    @staticmethod
    def fake(x: Any, ids: Any, temperatures: Any, temperature: Any, topk: Any, _: Any) -> Any:
        """Return tensors like them."""
        rows, kind = x.shape[:-1], wide(x)
        shapes = (ids.shape, (*rows, topk), (*rows, topk), ids.shape, rows)
        kinds = (kind, kind, torch.int32, torch.int32, kind)
        pairs = zip(shapes, kinds, strict=True)
        return tuple(torch.empty(shape, dtype=d, device=x.device) for shape, d in pairs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save x, ids and lse: log-probabilities of the largest have no gradient."""
        x, ids, temperatures, ctx.temperature, _, ctx.invariant = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, ids, output[-1], temperatures)

    @staticmethod
    def backward(ctx: Any, upstream: Any, *_: Any) -> tuple[Any, ...]:
        """Return dx, as that of `token_log_probs`."""
        nones = (None,) * 5
        if upstream is None:
            return None, *nones
        x, ids, lse, temperatures = ctx.saved_tensors
        request = (x, ids, lse, upstream, None, None, temperatures, ctx.temperature, ctx.invariant)
        return TokenLogProbsBackward.call(*request), *nones


def topk_softmax(
    input: Any,
    k: int,
    *,
    scores: str = "softmax",
    choice_bias: Any = None,
    groups: int | None = None,
    topk_groups: int | None = None,
    renormalize: bool = False,
    scale: float = 1.0,
    batch_invariant: bool | None = None,
) -> tuple[Any, Any]:
    """Return the `k` largest scores of each row of a CUDA tensor, and their columns.

    As torch.topk(torch.softmax(input, -1, dtype=torch.float32), k), in one read of input; of equal
    scores the lower column is chosen.

    Args:
        input: float16, bfloat16, float32 or float64; rows are those of its last dimension.
        k: 1 to 64.
        scores: as in `softgen.topk_softmax`.
        choice_bias: likewise, a tensor of a number a column. It has no gradient.
        groups: as in `softgen.topk_softmax`.
        topk_groups: likewise.
        renormalize: likewise.
        scale: likewise.
        batch_invariant: as in `softmax`.

    Returns:
        Weights, float32 (float64 for float64), and columns, int32, of input's shape but for the
        last dimension, which is k.

    Weights have a gradient, one read and one write, which is not differentiable again. Raises what
    `softgen.topk_softmax` raises.
    """
    if choice_bias is not None:
        if not isinstance(choice_bias, torch.Tensor):
            raise InvalidTypeError(f"choice_bias must be a tensor, got {choice_bias!r}")
        choice_bias = choice_bias.detach()
    number = scale if isinstance(scale, float) else finite("scale", scale)
    options = (scores, groups, topk_groups, renormalize, number, batch_invariant)
    found: tuple[Any, Any] = TopkSoftmax.call(input, choice_bias, k, *options)
    return found
