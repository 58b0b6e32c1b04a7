"""The last layer of a model, a chunk of rows at a time, and the gradients of what it takes.

PyTorch makes the products. Of the logits one chunk is in memory, in a buffer that the next chunk
takes; a loss writes its gradient there, and three products read and write it.

A product is at its full speed where rows start at multiples of 16 bytes. With 50257 columns of 16
bits none of the three is: they take five times as long. So the rows of the buffer are padded, the
products are over the columns up to the last multiple of 64, and those of the few that are left
(17 of 50257) are made apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.torch.dtypes import wide

MODES = ("fast", "lean")

# Rows of a chunk of `fast`. With 2048 a step of bfloat16 4096 x 4096 x 128256 took 7% longer on an
# H200, as the gradient of the weight is added to.
MOST_ROWS = 4096
# Chunks of `lean`: 1/11 of the logits, and less than 1/110 of them is all the rest. Or 3/32, where
# that is a number of whole tiles of a product: a step of bfloat16 8192 x 4096 x 151936 took 50.9 ms
# by 768 rows on an H200, and 52.6 by 745.
LEAN_CHUNKS, LEAN_SHARE, TILE_ROWS = 11, 3 / 32, 256
# Columns of a tile, and the bytes at whose multiples rows start where products are fast.
TILE, ALIGNMENT = 64, 16

# A product of 16-bit numbers that is added up in float32 (PyTorch 2.8).
_ADDS_WIDE = hasattr(torch.ops.aten.addmm, "dtype_out")


def chunk_rows(rows: int, mode: str, chunk: int | None) -> int:
    """Return how many rows a chunk has: all chunks but the last have as many."""
    if chunk is not None:
        return max(1, min(chunk, rows))
    tiles = int(rows * LEAN_SHARE) // TILE_ROWS * TILE_ROWS
    if mode == "lean" and tiles * (LEAN_CHUNKS + 1) >= rows > 0:
        return tiles
    parts = LEAN_CHUNKS if mode == "lean" else -(-rows // MOST_ROWS)
    return max(1, -(-rows // max(1, parts)))


def require_mode(mode: Any, chunk: Any) -> None:
    """Raise InvalidValueError or InvalidTypeError for arguments that choose no chunks."""
    if mode not in MODES:
        raise InvalidValueError(unknown("mode", str(mode), list(MODES)))
    if chunk is None:
        return
    if isinstance(chunk, bool) or not isinstance(chunk, int):
        raise InvalidTypeError(f"chunk must be a number of rows, got {type(chunk).__qualname__}")
    if chunk < 1:
        raise InvalidValueError(f"chunk must be at least 1 row, got {chunk}")


class Head:
    """The last layer of some rows, and the gradients that are wanted.

    Chunks come in order, and those of `reversed` from the last to the first. With a softcap they
    are softcap tanh(logits / softcap), in the type of the arithmetic and in memory of their own.

    Attributes:
        chunk: how many rows are computed at a time.
        held: the memory of a chunk's logits. After all chunks in order it has those of the last,
            and another Head that is given it begins there, if `reversed`: without that product.
        dx: the gradient of x, or None.
        dweight: that of the weight, or None; of the type in which it is added up.
        dbias: that of the bias, or None; in the type of the arithmetic.
    """

    def __init__(
        self,
        x: Any,
        weight: Any,
        bias: Any,
        mode: str,
        chunk: int | None,
        wanted: Sequence[int] = (0, 0, 0),
        accumulate: Any = None,
        held: Any = None,
        softcap: float | None = None,
    ) -> None:
        self._x, self._weight, self._bias, self._softcap = x, weight, bias, softcap
        (rows, _), (cols, _) = x.shape, weight.shape
        self.chunk = chunk_rows(rows, mode, chunk)
        padded = bool(cols * x.element_size() % ALIGNMENT) and cols > TILE
        self._width = -(-cols // TILE) * TILE if padded else cols
        cut = cols // TILE * TILE if padded else cols
        self._cuts = [slice(0, cut)] + [slice(cut, cols)] * (cut < cols)
        make: Any = torch.empty if rows else torch.zeros
        on, of_weight = x.device, accumulate or weight.dtype
        self.dx = make(x.shape, dtype=x.dtype, device=on) if wanted[0] else None
        self.dweight = make(weight.shape, dtype=of_weight, device=on) if wanted[1] else None
        self.dbias = torch.zeros(bias.shape, dtype=wide(x), device=on) if wanted[2] else None
        self._is_added, self._is_made = False, held is not None
        if held is None:
            held = x.new_empty((min(self.chunk, rows), self._width))
            held[:, cols:] = 0  # a product may read behind its columns, and multiply by 0
        self.held = held
        self._capped = None if softcap is None else held.new_empty(held.shape, dtype=wide(x))

    def __iter__(self) -> Iterator[tuple[slice, Any]]:
        """Yield the rows of each chunk, and their logits, which may be overwritten."""
        return self._chunks(range(0, len(self._x), self.chunk))

    def __reversed__(self) -> Iterator[tuple[slice, Any]]:
        """Yield the same from the last to the first."""
        return self._chunks(range(0, len(self._x), self.chunk)[::-1])

    def _chunks(self, starts: range) -> Iterator[tuple[slice, Any]]:
        (rows, _), (cols, _) = self._x.shape, self._weight.shape
        for start in starts:
            part = slice(start, min(start + self.chunk, rows))
            logits = self.held[: part.stop - start, :cols]
            if not self._is_made:
                self._make(part, logits)
            self._is_made = False
            if self._capped is None:
                yield part, logits
            else:
                capped = self._capped[: len(logits), :cols].copy_(logits)
                yield part, capped.div_(self._softcap).tanh_().mul_(self._softcap)

    def _make(self, part: slice, logits: Any) -> None:
        for cut in self._cuts:
            weight = self._weight[cut].t()
            if self._bias is None:
                torch.mm(self._x[part], weight, out=logits[:, cut])
            else:
                torch.addmm(self._bias[cut], self._x[part], weight, out=logits[:, cut])

    def add(self, part: slice, dlogits: Any) -> None:
        """Make what is wanted of the gradient with respect to a chunk, before the next one."""
        if self._capped is not None:
            dlogits = self._sloped(dlogits)
        for cut in self._cuts:
            mine = dlogits[:, cut]
            if self.dx is not None:
                _add(self.dx[part], mine, self._weight[cut], cut.start > 0)
            if self.dweight is not None:
                _add(self.dweight[cut], mine.t(), self._x[part], self._is_added)
        if self.dbias is not None:
            self.dbias += dlogits.sum(0, dtype=self.dbias.dtype)
        self._is_added = True

    def _sloped(self, dcapped: Any) -> Any:
        """Return the gradient with respect to the chunk's logits, in their place."""
        logits = self.held[: len(dcapped), : dcapped.shape[1]]
        slope = dcapped.new_empty(dcapped.shape).copy_(logits).div_(self._softcap).tanh_()
        # A row that is ignored may have NaN, whose gradient is 0. That of other rows is NaN too.
        slope = slope.square_().neg_().add_(1).nan_to_num_(0)
        return logits.copy_(slope.mul_(dcapped))


def _add(total: Any, a: Any, b: Any, more: bool) -> None:
    """Add a product to what is there; unless there is more than nothing, write it."""
    if total.dtype is a.dtype:
        total.addmm_(a, b, beta=int(more))
    elif a.is_cuda and _ADDS_WIDE:
        torch.addmm(total, a, b, out_dtype=total.dtype, beta=int(more), out=total)
    elif more:
        total += torch.mm(a, b)
    else:
        total.copy_(torch.mm(a, b))
