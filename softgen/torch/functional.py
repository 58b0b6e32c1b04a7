"""The functions that people call, with the signatures of torch.nn.functional."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from softgen.call import api, tokens
from softgen.call.axes import axes_of, with_axes_kept
from softgen.call.ids import require_columns
from softgen.call.warm_run import look_up
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.torch import hooked, operators, token_operators
from softgen.torch.dtypes import FLOAT8S, HALVES, wide
from softgen.torch.gradients import LogSoftmax, LogSumExp, Softmax, applied, wanted_again
from softgen.torch.plain import Seen
from softgen.torch.plain_rows import entropy_of, log_probs_of, serves_entropy, serves_ids
from softgen.torch.quick import Quick
from softgen.torch.rows import Entropy, TokenLogProbs

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from softgen.call.hooks import HookValues

# Each look at an attribute takes 0.03 us.
Tensor = torch.Tensor
is_compiling, is_autocast_enabled = torch.compiler.is_compiling, torch.is_autocast_enabled
# Without torch.export, whose tensors are like none that was seen; 0.1 us less than to ask for both.
is_dynamo_compiling = torch.compiler.is_dynamo_compiling

_softmax, _log_softmax = Quick(Softmax), Quick(LogSoftmax)
_entropies, _log_probs = Seen(1), Seen(0)


def softmax(
    input: Any,  # the name is torch's
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
    **hooks: Unpack[HookValues],
) -> Any:
    """Return the softmax of a CUDA tensor along `dim`, as torch.nn.functional.softmax does.

    Args:
        input: float16, bfloat16, float32 or float64, any shape.
        dim: the dimension that sums to 1. Without one it is 0 for 0, 1 and 3 dimensions and else 1,
            with a warning, as in PyTorch.
        dtype: dtype of the result, which the same kernel converts to. Under torch.autocast float32
            for 16-bit inputs.
        hooks: as in `softgen.softmax`: scale, softcap, bias, mask, lengths, causal, sink, dropout
            with its seed, and so on (docs/pytorch.md). scale, bias
            and sink get gradients where they are tensors. With hooks the gradient is not
            differentiable again.

    The gradient is softgen's own kernel. It is differentiable again. Raises what `softgen.softmax`
    raises.
    """
    if not is_dynamo_compiling():
        alike, was_dim, was_dtype, mode, invariant, run = _softmax.last
        if (
            dim is was_dim
            and dtype is was_dtype
            and not hooks
            and alike(input)
            and look_up(b"SOFTGEN_TUNE") is mode
            and look_up(b"SOFTGEN_BATCH_INVARIANT") is invariant
        ):
            return run(input)
    given = dtype
    if dim is None:
        dim = _dim(input, _stacklevel)
    dtype = _result_type(input, dtype)
    if hooks:
        return hooked.softmax(input, dim, dtype, hooks)
    if is_compiling():
        return operators.softmax(input, dim, dtype)
    return _softmax(input, dim, given, dtype)


def log_softmax(
    input: Any,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Any:
    """Return the logarithm of the softmax; the arguments are those of `softmax`."""
    if not is_dynamo_compiling():
        alike, was_dim, was_dtype, mode, invariant, run = _log_softmax.last
        if (
            dim is was_dim
            and dtype is was_dtype
            and alike(input)
            and look_up(b"SOFTGEN_TUNE") is mode
            and look_up(b"SOFTGEN_BATCH_INVARIANT") is invariant
        ):
            return run(input)
    given = dtype
    if dim is None:
        dim = _dim(input, _stacklevel)
    dtype = _result_type(input, dtype)
    if is_compiling():
        return operators.log_softmax(input, dim, dtype)
    return _log_softmax(input, dim, given, dtype)


def logsumexp(input: Any, dim: int | Sequence[int], keepdim: bool = False) -> Any:
    """Return log(sum(exp(input))) along `dim`, as torch.logsumexp does.

    Args:
        input: as in `softmax`.
        dim: one dimension, or several; () is all of them.
        keepdim: whether the result keeps it, with length 1.

    The gradient exp(x - lse) comes from lse in float32 (float64 for float64).
    """
    axis = dim if isinstance(dim, int) else tuple(dim) or None
    if is_compiling():
        lse = operators.logsumexp(input, list(axes_of(axis, input.dim())))
    elif wanted_again(input):
        lse = applied(LogSumExp, input)(input, axis).to(input.dtype)
    else:
        lse = api.logsumexp(input, axis)
    return with_axes_kept(lse, axis, input.dim()) if keepdim else lse


def entropy(
    input: Any, dim: int | Sequence[int] = -1, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Return -sum(p log p) of p = softmax(input) along `dim`, in nats.

    As torch.distributions.Categorical(logits=input).entropy() along the last.

    Args:
        input: as in `softmax`.
        dim: one dimension, or several; () is all of them.
        keepdim: whether the result keeps it, with length 1.
        dtype: dtype of the result; input's by default.

    The gradient is one read and one write, from lse and the entropy in float32 (float64 for
    float64). It is not differentiable again. Where input is -inf p log p is 0.
    """
    plain = not keepdim and dtype is None and not is_dynamo_compiling()
    if plain:
        alike, (was_dim,), run = _entropies.last
        if (dim is was_dim and alike(input)) or (run := _entropies.find((dim,), input)):
            return run(input)
        if serves_entropy(input, dim):
            run = entropy_of(input.dtype, dim)
            found = run(input)
            _entropies.keep(run, (dim,), input)
            return found
    axis = dim if isinstance(dim, int) else tuple(dim) or None
    if is_compiling():
        found = operators.entropy_lse(input, list(axes_of(axis, input.dim())))[0]
        found = found.to(dtype or input.dtype)
    elif wanted_again(input):
        found = applied(Entropy, input)(input, axis)[0].to(dtype or input.dtype)
    else:
        found = tokens.entropy(input, axis, dtype=dtype)
    return with_axes_kept(found, axis, input.dim()) if keepdim else found


def token_log_probs(
    input: Any,
    ids: Any,
    *,
    temperature: Any = None,
    return_lse: bool = False,
    return_entropy: bool = False,
    checked: bool = False,
) -> Any:
    """Return log_softmax(input / temperature) at the columns `ids` of each row.

    As torch.log_softmax(input / temperature, -1).gather(-1, ids[..., None])[..., 0], without a
    result as wide as input, in float32 (float64 for float64).

    Args:
        input: as in `softmax`; rows are those of its last dimension.
        ids: the columns, int32 or int64: one a row, or up to 16, in one more dimension.
        temperature: above 0: a number, or a tensor that broadcasts over the rows. It has no
            gradient.
        return_lse: whether to return log(sum(exp(input / temperature))) too. It has no gradient.
        return_entropy: whether to return the entropy of each row too.
        checked: whether an id that is no column raises InvalidValueError, for which the host waits
            for the GPU. Otherwise it gives NaN.

    Returns:
        A tensor of ids' shape, or a tuple of it, lse and the entropy, of what is asked for.

    The gradient is one read and one write for log-probabilities and entropies together. It is not
    differentiable again. Raises what `softgen.token_log_probs` raises.
    """
    if temperature is None and not (
        return_lse or return_entropy or checked or is_dynamo_compiling()
    ):
        alike, _, run = _log_probs.last
        if alike(input, ids) or (run := _log_probs.find((), input, ids)):
            return run(input, ids)
        if serves_ids(input, ids):
            run = log_probs_of(input.dtype, ids.dtype)
            found = run(input, ids)
            _log_probs.keep(run, (), input, ids)
            return found
    number, of_rows = None, None
    if isinstance(temperature, Tensor):
        if temperature.requires_grad:
            raise InvalidValueError("temperature has no gradient here; pass temperature.detach()")
        of_rows = temperature.to(wide(input))
    elif temperature is not None:
        number = float(temperature)
    if checked:
        require_columns(ids, input.shape[-1])
    given = number if of_rows is None else of_rows
    if is_compiling():
        plain, more = token_operators.token_log_probs, token_operators.token_log_probs_entropy
        found = (more if return_entropy else plain)(input, ids, number, of_rows)
    elif return_entropy or return_lse or wanted_again(input):
        found = applied(TokenLogProbs, input)(input, ids, given, return_entropy)
    else:
        return tokens.token_log_probs(input, ids, temperature=given)
    log_probs, lse, *entropy = found
    if not (return_lse or return_entropy):
        return log_probs
    return log_probs, *([lse] * return_lse), *entropy


def _dim(x: Any, stacklevel: int) -> int:
    """Return the dimension that PyTorch takes where none is given."""
    warnings.warn(
        "no dim was given, and the one that is taken depends on the number of dimensions; pass dim",
        stacklevel=stacklevel,
    )
    return 0 if x.dim() in (0, 1, 3) else 1


def _result_type(x: Any, dtype: Any) -> Any:
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
    dtype = x.dtype
    if dtype in HALVES and is_autocast_enabled(x.device.type):
        return torch.float32
    return dtype
