"""Hooks: which functions take which, by the table of docs/hooks.md, and drawn values of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.functions import stem_of
from tests.differential.regimes import Random
from tests.differential.rows import Hooks
from tests.differential.storage import exact, rounded, stored_as

FLOATS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}

# Names in kernels by the hook's kind, in the order in which hooks are applied.
NAMES: dict[str, tuple[str, ...]] = {
    "scale": ("scale", "scaleany", "scalerow"),
    "softcap": ("softcap",),
    "bias": tuple(f"bias{short}{packs}" for short in FLOATS for packs in ("", "any")),
    "mask": ("mask", "maskany"),
    "lengths": ("lengthsi32", "lengthsi64"),
    "causal": ("causal",),
    "sink": tuple(f"sink{short}" for short in FLOATS),
    "empty_rows": ("zeroempty",),
    "out_scale": ("outscale", "outscalerow"),
    "dropout": ("dropout",),
}
ENTERING = ("scale", "softcap", "bias", "mask", "lengths", "causal")
_TAKES = {
    **dict.fromkeys(("softmax", "softmax_lse"), (*NAMES,)),
    **dict.fromkeys(("log_softmax", "log_softmax_lse"), (*ENTERING, "sink", "empty_rows")),
    **dict.fromkeys(("logsumexp", "entropy", "entropy_lse"), (*ENTERING, "sink")),
    **dict.fromkeys(("cross_entropy", "partial"), (*ENTERING, "sink")),
    **dict.fromkeys(
        ("token_log_probs", "token_log_probs_lse", "token_log_probs_entropy"), ENTERING
    ),
    **dict.fromkeys(("logsumexp_backward", "entropy_backward"), ENTERING),
    **dict.fromkeys(("token_log_probs_backward", "token_log_probs_backward_entropy"), ENTERING),
}


def taken(function: str) -> tuple[str, ...]:
    """Return the kinds of hooks that a function takes."""
    return _TAKES.get(stem_of(function), ())


def some(random: Random, function: str) -> tuple[str, ...]:
    """Return names of hooks that a function takes, of one to five kinds."""
    kinds = taken(function)
    count = min(len(kinds), 1 + int(random.geometric(0.5)), 5)
    chosen = random.choice(len(kinds), size=count, replace=False)
    return tuple(str(random.choice(NAMES[kinds[i]])) for i in sorted(chosen))


class Drawn:
    """Values of hooks: as operands of a kernel, by name, and as what they do to rows."""

    def __init__(self, random: Random, names: tuple[str, ...], rows: int, cols: int, compute: str):
        self.random, self.rows, self.cols, self.compute = random, rows, cols, compute
        self.operands: dict[str, Any] = {}
        self.hooks = Hooks()
        for name in names:
            kind = next(kind for kind, known in NAMES.items() if name in known)
            getattr(self, f"_{kind}")(name)

    def _stored(self, name: str, values: Any, dtype: str) -> Any:
        """Keep an operand, and return its exact values."""
        if dtype in ("bool", "int32", "int64"):
            self.operands[name] = np.asarray(values).astype(dtype)
            return self.operands[name]
        self.operands[name] = rounded(values, dtype)
        assert self.operands[name].dtype == stored_as(dtype)
        return exact(self.operands[name], dtype)

    def _count(self) -> int:
        return int(self.random.integers(1, 5))

    def _every(self) -> int:
        return int(self.random.choice([1, 1, 2, 3, self.rows]))

    def _of_rows(self, name: str, values: Any, dtype: str) -> Any:
        """Keep an array of an element a place and where rows find theirs; return a column of it."""
        array = self._stored(name, values, dtype)
        every, count = self._every(), len(array)
        self.operands |= {f"{name}_every": np.int64(every), f"{name}_count": np.int64(count)}
        return array[np.arange(self.rows) // every % count][:, None]

    def _lines(self, name: str, dtype: str, packs: bool, make: Any) -> Any:
        """Keep an array of lines; return an element of it for each of the rows'."""
        # Lines of packs start on 16 bytes or 16 elements, whichever is more.
        unit = 16 if packs else 1
        line = -(-self.cols // unit) * unit + unit * int(self.random.integers(0, 3))
        every, count, inner = self._every(), self._count(), self._every()
        if self.random.random() < 0.4:
            inner = 1
        stride, step = (line * int(self.random.choice([0, 1, 2])) for _ in range(2))
        if self.random.random() < 0.2:  # lines that overlap, as of a band
            step = unit
        size = (count - 1) * stride + (inner - 1) * step + line
        array = self._stored(name, make(size), dtype)
        numbers = {"every": every, "count": count, "stride": stride, "inner": inner, "step": step}
        self.operands |= {f"{name}_{key}": np.int64(value) for key, value in numbers.items()}
        row = np.arange(self.rows)
        start = row // every % count * stride + row % inner * step
        return array[start[:, None] + np.arange(self.cols)]

    def _scale(self, name: str) -> None:
        least = 1e-310 if self.compute == "float64" else 1e-40
        above = [1.0, 0.125, 0.7, 1.4427, 8.0, 100.0, 1e-6, 1e-30, 1e30]
        other = [0.0, -1.0, -0.7, -30.0, -1e-30, least, -least, *above]
        if name == "scalerow":
            values = self.random.choice(other, size=self._count())
            self.hooks.scale = self._of_rows("scale", values, self.compute)
        else:
            value = self.random.choice(above if name == "scale" else other)
            self.hooks.scale = self._stored("scale", value, self.compute)

    def _softcap(self, name: str) -> None:
        value = self.random.choice([1e-3, 0.5, 1.0, 10.0, 30.0, 50.0, 300.0, 1e4, 1e6, 1e30])
        self.hooks.softcap = self._stored("softcap", value, self.compute)

    def _bias(self, name: str) -> None:
        dtype = FLOATS[name.removeprefix("bias").removesuffix("any")]

        def values(size: int) -> Any:
            found = self.random.standard_normal(size) * self.random.choice([0.1, 1.0, 20.0, 2e4])
            hidden = self.random.random(size) < self.random.choice([0, 0.2, 0.9])
            found[hidden] = self.random.choice([-np.inf, -1e4, 0.0])
            return found

        self.hooks.bias = self._lines("bias", dtype, not name.endswith("any"), values)

    def _mask(self, name: str) -> None:
        share = self.random.choice([0.0, 0.05, 0.6, 1.0])
        packs = name == "mask"
        self.hooks.mask = self._lines(
            "mask", "bool", packs, lambda size: self.random.random(size) < share
        )

    def _lengths(self, name: str) -> None:
        dtype = "int32" if name == "lengthsi32" else "int64"
        cols, info = self.cols, np.iinfo(dtype)
        known = [0, 1, cols, cols - 1, cols + 5, -2, cols // 2, cols // 3, info.min, info.max]
        values = [int(self.random.choice(known)) for _ in range(self._count() + 2)]
        ends = self._of_rows("lengths", np.array(values, dtype), dtype)
        self.hooks.ends = (*self.hooks.ends, np.clip(ends.astype(np.int64), 0, cols))

    def _causal(self, name: str) -> None:
        queries = int(self.random.choice([1, 2, 5, self.rows, self.rows + 3]))
        cols = self.cols
        offset = int(self.random.choice([-3, -1, 0, cols // 2, cols - 1, cols, 2**31, -(2**40)]))
        self.operands |= {"queries": np.int64(queries), "causal_offset": np.int64(offset)}
        ends = np.arange(self.rows)[:, None] % queries + offset + 1
        self.hooks.ends = (*self.hooks.ends, np.clip(ends, 0, cols))

    def _sink(self, name: str) -> None:
        values = self.random.standard_normal(self._count()) * 4
        for index in range(len(values)):
            if self.random.random() < 0.4:
                known = [-np.inf, -np.inf, 20.0, 1e4, 0.0, np.inf, np.nan]
                values[index] = self.random.choice(known)
        dtype = FLOATS[name.removeprefix("sink")]
        self.hooks.sink = self._of_rows("sink", values, dtype)[:, 0]

    def _empty_rows(self, name: str) -> None:
        self.hooks.zero = True

    def _out_scale(self, name: str) -> None:
        known = [1.0, 0.3, -1.7, 0.0, 448.0, 57344.0, 1e-6, 1e10]
        if name == "outscale":
            value = self.random.choice(known)
            self.hooks.out_scale = self._stored("out_scale", value, self.compute)
        else:
            values = self.random.choice(known, size=self._count())
            self.hooks.out_scale = self._of_rows("out_scale", values, self.compute)

    def _dropout(self, name: str) -> None:
        threshold = int(self.random.choice([0, 1, 6554, 19661, 32768, 65535, 65536]))
        seed, offset = (int(self.random.integers(-(2**63), 2**63)) for _ in range(2))
        if self.random.random() < 0.3:
            seed, offset = int(self.random.integers(100)), 0
        times = 65536 / (65536 - threshold) if threshold < 65536 else 0.0
        self.operands |= {
            "threshold": np.int64(threshold),
            "seed": np.int64(seed),
            "seed_offset": np.int64(offset),
        }
        kept_scale = self._stored("kept_scale", times, self.compute)
        self.hooks.dropout = (threshold, seed, offset, kept_scale)
