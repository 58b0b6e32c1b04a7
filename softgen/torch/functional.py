"""The functions that people call, with the signatures of torch.nn.functional."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from softgen.call import eager, tokens
from softgen.call.axes import axes_of, with_axes_kept
from softgen.call.dispatch import calls_of
from softgen.call.ids import require_columns, scale_of
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.torch.choosing import RankedLogProbs
from softgen.torch.dtypes import FLOAT8S, HALVES, dtype_of_loss
from softgen.torch.hooked import asked, hooked
from softgen.torch.operators import (
    Entropy,
    LogSoftmax,
    LogSumExp,
    Softmax,
    TokenLogProbs,
    temperature_of,
)
from softgen.torch.registry import Tensor, is_plain, launched, plain, tuning

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from softgen.call.options import HookOptions

# Looked up once: each look at an attribute takes 0.03 us.
is_autocast_enabled = torch.is_autocast_enabled

_entropy = calls_of("entropy")


def softmax(
    input: Any,  # the name is torch's
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
    *,
    batch_invariant: bool | None = None,
    **hooks: Unpack[HookOptions],
) -> Any:
    """Return the softmax of a CUDA tensor along `dim`, as torch.nn.functional.softmax does.

    Args:
        input: float16, bfloat16, float32 or float64, any shape.
        dim: the dimension that sums to 1. Without one it is 0 for 0, 1 and 3 dimensions and else 1,
            with a warning, as in PyTorch.
        dtype: dtype of the result, which the same kernel converts to. Under torch.autocast float32
            for 16-bit inputs.
        batch_invariant: if True a row's result, and its gradient, has the same bits in any batch;
            by default SOFTGEN_BATCH_INVARIANT, else False (`softgen.softmax`).
        hooks: as in `softgen.softmax`: scale, softcap, bias, mask, lengths, causal, sink, dropout
            with its seed, and so on (docs/pytorch.md). scale, bias
            and sink get gradients where they are tensors. With hooks the gradient is not
            differentiable again.

    The gradient is softgen's own kernel. It is differentiable again. Raises what `softgen.softmax`
    raises.
    """
    if dim is None:
        dim = _dim(input, _stacklevel)
    dtype = _asked_type(input, dtype)
    if hooks and (given := asked(hooks, softmax)):
        return hooked("softmax", input, dim, dtype or input.dtype, given, batch_invariant)[0]
    return Softmax.call(input, dim, dtype, batch_invariant)


def log_softmax(
    input: Any,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
    *,
    batch_invariant: bool | None = None,
    **hooks: Unpack[HookOptions],
) -> Any:
    """Return the logarithm of the softmax.

    The arguments are those of `softmax`, without out_scale, dropout and its seed.
    """
    if dim is None:
        dim = _dim(input, _stacklevel)
    dtype = _asked_type(input, dtype)
    if hooks and (given := asked(hooks, log_softmax)):
        return hooked("log_softmax", input, dim, dtype or input.dtype, given, batch_invariant)[0]
    return LogSoftmax.call(input, dim, dtype, batch_invariant)


def logsumexp(
    input: Any,
    dim: int | Sequence[int],
    keepdim: bool = False,
    *,
    batch_invariant: bool | None = None,
    **hooks: Unpack[HookOptions],
) -> Any:
    """Return log(sum(exp(input))) along `dim`, as torch.logsumexp does.

    Args:
        input: as in `softmax`; 16 bits give float32 under torch.autocast.
        dim: one dimension, or several; () is all of them.
        keepdim: whether the result keeps it, with length 1.
        batch_invariant: as in `softmax`.
        hooks: as in `softmax`, without out_scale, dropout and its seed, along one dimension.

    The gradient exp(x - lse) comes from lse in float32 (float64 for float64).
    """
    dtype = _asked_type(input, None) or input.dtype
    axis = dim if isinstance(dim, int) else tuple(dim) or None
    if hooks and (given := asked(hooks, logsumexp)):
        lse = hooked("logsumexp", input, axis, None, given, batch_invariant)[0].to(dtype)
    elif is_plain(input):  # the kernel converts its result, which else is wide for the gradient
        lse = launched(LogSumExp.calls, input, (), axis, dtype, batch_invariant)
    else:
        dims = list(axes_of(axis, input.dim()))
        lse = LogSumExp.call(input, dims, batch_invariant).to(dtype)
    return with_axes_kept(lse, axis, input.dim()) if keepdim else lse


def entropy(
    input: Any,
    dim: int | Sequence[int] = -1,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    batch_invariant: bool | None = None,
) -> Any:
    """Return -sum(p log p) of p = softmax(input) along `dim`, in nats.

    As torch.distributions.Categorical(logits=input).entropy() along the last.

    Args:
        input: as in `softmax`.
        dim: one dimension, or several; () is all of them.
        keepdim: whether the result keeps it, with length 1.
        dtype: dtype of the result; input's by default. Under torch.autocast float32 for 16-bit
            inputs.
        batch_invariant: as in `softmax`.

    The gradient is one read and one write, from lse and the entropy in float32 (float64 for
    float64). It is not differentiable again. Where input is -inf p log p is 0.
    """
    dtype = _asked_type(input, dtype) or input.dtype
    axis = dim if isinstance(dim, int) else tuple(dim) or None
    if is_plain(input):  # without lse, which only the gradient needs
        found = launched(_entropy, input, (), axis, dtype, batch_invariant)
    else:
        if dtype is not input.dtype:
            dtype_of_loss(dtype, input)  # which no kernel writes, to refuse it
        dims = list(axes_of(axis, input.dim()))
        x = input.to(dtype) if dtype is torch.float64 else input  # which is exact, and tracked
        found = Entropy.call(x, dims, batch_invariant)[0].to(dtype)
    return with_axes_kept(found, axis, input.dim()) if keepdim else found


def token_log_probs(
    input: Any,
    ids: Any,
    *,
    temperature: Any = None,
    topk: int | None = None,
    return_lse: bool = False,
    return_entropy: bool = False,
    checked: bool = False,
    batch_invariant: bool | None = None,
    **hooks: Unpack[HookOptions],
) -> Any:
    """Return log_softmax(input / temperature) at the columns `ids` of each row.

    As torch.log_softmax(input / temperature, -1).gather(-1, ids[..., None])[..., 0], without a
    result as wide as input, in float32 (float64 for float64).

    Args:
        input: as in `softmax`; rows are those of its last dimension.
        ids: the columns, int32 or int64: one a row, or up to 64, in one more dimension.
        temperature: above 0: a number, or a tensor that broadcasts over the rows. It has no
            gradient.
        topk: 1 to 64: how many of the largest elements of each row to return too, and the rank of
            each id, as `softgen.token_log_probs` does. It takes no return_entropy and no hooks.
        return_lse: whether to return log(sum(exp(input / temperature))) too. It has no gradient.
        return_entropy: whether to return the entropy of each row too.
        checked: whether an id that is no column raises InvalidValueError, for which the host waits
            for the GPU. Otherwise it gives NaN.
        batch_invariant: as in `softmax`.
        hooks: softcap, bias, mask, lengths, causal and, in the place of temperature, scale, as in
            `softmax`.

    Returns:
        A tensor of ids' shape, or a tuple of it, lse and the entropy, of what is asked for. With
        `topk` a tuple of it, the largest log-probabilities (..., topk), their columns (int32), the
        rank of each id (int32), and lse if it is asked for. Of these the log-probabilities of ids
        alone have a gradient.

    The gradient is one read and one write for log-probabilities and entropies together. It is not
    differentiable again. Raises what `softgen.token_log_probs` raises.
    """
    number, of_rows = temperature_of(temperature, input)
    if checked:
        require_columns(ids, input.shape[-1])
    given = asked(hooks, token_log_probs) if hooks else {}
    if topk is not None:
        if given or return_entropy:
            name = next(iter(given), "return_entropy")
            raise InvalidValueError(
                f"topk does not go with {name} here; leave one of them out, or call "
                "softgen.token_log_probs, which takes hooks and has no gradient"
            )
        of_rows = of_rows if of_rows is None else of_rows.expand(input.shape[:-1])
        request = (input, ids, of_rows, number, topk, batch_invariant)
        found: tuple[Any, ...] = RankedLogProbs.call(*request)
        return found[: 4 + return_lse]
    if given:
        if temperature is not None:
            if "scale" in given:
                raise InvalidValueError("scale is 1 / temperature; give one of them")
            given["scale"] = scale_of(number if of_rows is None else of_rows)
        name = "token_log_probs_entropy" if return_entropy else "token_log_probs"
        log_probs, lse, entropy = hooked(name, input, -1, None, given, batch_invariant, ids)
    elif not (return_lse or return_entropy) and is_plain(input, ids, of_rows):
        return tokens.token_log_probs(
            *(plain(input), ids),
            temperature=number if of_rows is None else of_rows,
            tune=tuning(),
            batch_invariant=batch_invariant,
        )
    else:
        if of_rows is not None:
            of_rows = of_rows.expand(input.shape[:-1])
        request = (input, ids, of_rows, number, return_entropy, batch_invariant)
        log_probs, lse, entropy = TokenLogProbs.call(*request)
    if not (return_lse or return_entropy):
        return log_probs
    return log_probs, *([lse] * return_lse), *([entropy] * return_entropy)


def _dim(x: Any, stacklevel: int) -> int:
    """Return the dimension that PyTorch takes where none is given."""
    warnings.warn(
        "no dim was given, and the one that is taken depends on the number of dimensions; pass dim",
        stacklevel=stacklevel,
    )
    return 0 if x.dim() in (0, 1, 3) else 1


def _asked_type(x: Any, dtype: Any) -> Any:
    """Return the dtype of the result, None for x's; raise where it is none, or has no gradient."""
    if not isinstance(x, Tensor):
        raise InvalidTypeError(
            f"softgen.torch takes tensors, got {type(x).__qualname__}; softgen.softmax takes "
            "other arrays on a GPU"
        )
    if dtype is not None:
        if dtype in FLOAT8S and x.requires_grad and torch.is_grad_enabled():
            raise NotSupportedError(
                f"a result of {dtype} has no gradient; call it under torch.no_grad(), or leave "
                "dtype out and cast the result"
            )
        return dtype
    if x.dtype in HALVES and is_autocast_enabled(eager.DEVICE):
        return torch.float32
    return None
