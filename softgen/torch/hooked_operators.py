"""softmax with hooks as a registered operator, for torch.compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from softgen.torch import operators
from softgen.torch.dtypes import wide
from softgen.torch.hooked import computed, gradients_of, keep
from softgen.torch.registered import differentiate, operator

# Behind the tensors and dtype; None where one is not given.
NUMBERS = (
    *("scale", "softcap", "causal", "causal_offset", "empty_rows", "out_scale"),
    *("dropout", "seed", "seed_offset", "axis"),
)


def _fake(x: Any, *request: Any) -> tuple[Any, Any]:
    y = torch.empty(x.shape, dtype=request[len(request) - len(NUMBERS) - 2], device=x.device)
    axis = -1 if request[-2] is None else request[-2]
    rows = [n for i, n in enumerate(x.shape) if i != axis % x.dim()] if request[-1] else (0,)
    return y, torch.empty(rows, dtype=wide(x), device=x.device)


@operator(_fake)
def hooked_softmax(
    x: torch.Tensor,
    scale_rows: torch.Tensor | None,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    mask: torch.Tensor | None,
    lengths: torch.Tensor | None,
    dtype: torch.dtype,
    scale: float | None,
    softcap: float | None,
    causal: bool | None,
    causal_offset: int | None,
    empty_rows: str | None,
    out_scale: float | None,
    dropout: float | None,
    seed: int | None,
    seed_offset: int | None,
    axis: int | None,
    wants_lse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y, and lse (of no element where it is not wanted)."""
    numbers = (scale, softcap, causal, causal_offset, empty_rows, out_scale)
    rest = _rest((*numbers, dropout, seed, seed_offset, axis))
    y, lse = computed(x, (scale_rows, bias, sink, mask, lengths), dtype, rest, wants_lse)
    return y, x.new_empty(0, dtype=wide(x)) if lse is None else lse


def softmax(x: Any, tensors: Any, dtype: Any, rest: Mapping[str, Any], wants_lse: bool) -> Any:
    """Return y by the operator; the arguments are those of `computed`."""
    return _both(x, tensors, dtype, rest, wants_lse)[0]


def _both(x: Any, tensors: Any, dtype: Any, rest: Mapping[str, Any], wants_lse: bool) -> Any:
    numbers = [_signed(rest.get(name)) for name in NUMBERS]
    return hooked_softmax(x, *tensors, dtype, *numbers, wants_lse)


def _signed(number: Any) -> Any:
    """Return 64 bits as an operator takes them."""
    return number - 2**64 if isinstance(number, int) and number >= 2**63 else number


def _rest(numbers: tuple[Any, ...]) -> dict[str, Any]:
    pairs = zip(NUMBERS, numbers, strict=True)
    return {name: number for name, number in pairs if number is not None}


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, *tensors = inputs[:6]
    ctx.mark_non_differentiable(output[1])
    keep(ctx, x, tensors, _rest(inputs[7:-1]), output)


def _gradient(ctx: Any, dy: Any, _: Any) -> tuple[Any, ...]:
    saved, needs = ctx.saved_tensors, ctx.needs_input_grad
    found = gradients_of(dy, saved, ctx.kept, needs, _both, operators.softmax_backward)
    return (*found, *[None] * (2 + 1 + len(NUMBERS) + 1))


differentiate(hooked_softmax, _gradient, _keep)
