"""A column of each row of a tensor, drawn by its probability."""

from __future__ import annotations

from typing import Any

import torch

from softgen.call import sampling
from softgen.call.scalars import bits
from softgen.torch.dtypes import wide
from softgen.torch.registry import Operator, plain, registered, tuning


@registered("sample")
class Sample(Operator):
    """The columns that are drawn, and the logarithms of their probabilities."""

    of = "sample"

    @staticmethod
    def launch(
        x: torch.Tensor,
        temperatures: torch.Tensor | None,
        top_ks: torch.Tensor | None,
        top_ps: torch.Tensor | None,
        min_ps: torch.Tensor | None,
        seeds: torch.Tensor | None,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        offset: int,
        batch_invariant: bool | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return columns, int64, and their logarithms, float32 (float64 for float64)."""
        return sampling.sample(
            plain(x),
            temperature=temperature if temperatures is None else plain(temperatures),
            top_k=top_k if top_ks is None else plain(top_ks),
            top_p=top_p if top_ps is None else plain(top_ps),
            min_p=min_p if min_ps is None else plain(min_ps),
            seed=seed if seeds is None else plain(seeds),
            offset=offset,
            tune=tuning(),
            batch_invariant=batch_invariant,
        )

    @staticmethod
    def fake(x: Any, *_: Any) -> Any:
        """Return tensors like both."""
        shape = x.shape[:-1]
        return tuple(torch.empty(shape, dtype=d, device=x.device) for d in (torch.int64, wide(x)))


def sample(
    input: Any,
    *,
    temperature: Any = 1.0,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    seed: Any,
    offset: int = 0,
    batch_invariant: bool | None = None,
) -> tuple[Any, Any]:
    """Return a column of each row of a CUDA tensor, drawn by softmax, and log of its probability.

    As torch.multinomial(torch.softmax(input / temperature, -1), 1), without a wait of the host, and
    without filters in one read of input. The noise is that of a counter: the same arguments draw
    the same.

    Args:
        input: float16, bfloat16, float32 or float64; rows are those of its last dimension.
        temperature: 0 or more: a number, or a tensor of floats, one a row. 0 takes the largest.
        top_k: as in `softgen.sample`: a number, or a tensor of one a row.
        top_p: likewise.
        min_p: likewise.
        seed: 64 bits: an int, or a tensor of int64, one a row: a row then draws the same in any
            batch.
        offset: 64 bits: the number of the call, where calls have one seed.
        batch_invariant: as in `softmax`.

    Returns:
        Columns, int64, and log of their softmax(input / temperature), float32 (float64 for
        float64), of input's shape without the last dimension.

    It has no gradient. Under torch.vmap the rows of a batch have numbers of their own, and so other
    noise. Raises what `softgen.sample` raises.
    """
    given = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    kept = {name: v for name, v in given.items() if v is not None}
    numbers = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}
    tensors: dict[str, Any] = dict.fromkeys(numbers)
    for name, v in {"temperature": temperature, **kept, "seed": seed}.items():
        if isinstance(v, torch.Tensor):
            tensors[name] = v.detach()
        else:
            numbers[name] = sampling.number_of(name, v)
    found: tuple[Any, Any] = Sample.call(
        *(input.detach(), *tensors.values(), *numbers.values()),
        *(bits("offset", offset), batch_invariant),
    )
    return found
