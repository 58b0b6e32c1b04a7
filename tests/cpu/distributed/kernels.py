"""The kernels of softgen.distributed.local for tensors on the CPU: emulated, or by references."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softgen.devices import emulator
from softgen.devices.emulator import program as of_emulator
from softgen.distributed import local
from softgen.problems import numerics
from softgen.problems.arch import arch_named
from softgen.problems.operands import Extent
from softgen.problems.problem import Problem
from softgen.problems.storage import storage_dtype
from softgen.source.render import render
from softgen.strategies.select import select
from softgen.torch.dtypes import wide

NAMES = (
    *("partial", "merge", "finish", "logsumexp", "merge_lse", "logsumexp_backward"),
    *("partial_target", "merge_losses", "cross_entropy_backward", "token_log_probs_backward"),
    *("entropy", "entropy_backward"),
)


class Kernels:
    """What takes the places of the functions of `softgen.distributed.local`.

    Attributes:
        programs: where the emulator keeps what it compiles of the text of the best guess. Without
            one the reference computes in float64, and results are rounded.
    """

    def __init__(self, programs: Path | None = None) -> None:
        self.programs = programs
        if programs is not None:
            vars(of_emulator)["program_folder"] = lambda: programs

    def install(self) -> None:
        """Put them there. For a process of its own."""
        for name in NAMES:
            assert hasattr(local, name)
            setattr(local, name, getattr(self, name))

    def launch(self, name: str, *inputs: Any, out: Any = None) -> list[Any]:
        """Return the results of a function of x, which comes first, and of what it takes beside."""
        x = inputs[0]
        assert x.numel(), f"{name} of no elements, for which there is no kernel"
        rows, cols = x.shape[:-1], x.shape[-1]
        problem = Problem.of(name, _name(x.dtype), cols, out_dtype=_name(out or x.dtype))
        stored = []
        for operand, given in zip(problem.inputs, inputs, strict=True):
            kind = storage_dtype(operand.dtype)
            if operand.extent is Extent.NUMBER:
                stored.append(np.array(given, kind))
                continue
            array = _stored(given)
            assert array.dtype == kind, f"{operand.name} of {name} is {array.dtype}"
            flat = operand.extent is Extent.BROADCAST
            stored.append(array.reshape(-1, *(() if flat else operand.shape(1, cols)[1:])))
        if self.programs is not None:
            variant = select(problem, len(stored[0]), arch_named("sm_90"))
            with (self.programs / "lock").open("w") as lock:  # one process builds for all
                fcntl.flock(lock, fcntl.LOCK_EX)
                program = emulator.build([render(variant)])
            results = program.run_each(render(variant), stored[0], others=tuple(stored[1:]))
        else:
            pairs = zip(stored, problem.inputs, strict=True)
            with np.errstate(all="ignore"):
                exact = problem.function.reference(*(numerics.decode(a, o.dtype) for a, o in pairs))
            made = zip(exact, problem.results, strict=True)
            results = tuple(numerics.encode(a, o.dtype) for a, o in made)
        return [
            _tensor(array, operand.dtype.value).reshape(*rows, *operand.shape(1, cols)[1:])
            for array, operand in zip(results, problem.results, strict=True)
        ]

    def partial(self, x: Any, scale: Any) -> tuple[Any, ...]:
        return tuple(self.launch("partial", _scaled(x, scale)))

    def merge(self, ms: Any, ds: Any) -> tuple[Any, ...]:
        assert ms.is_contiguous()
        assert ds.is_contiguous()
        return tuple(self.launch("merge", ms, ds))

    def finish(self, x: Any, m: Any, d: Any, log: bool, dtype: Any) -> Any:
        return self.launch("log_finish" if log else "finish", x, m, d, out=dtype)[0]

    def logsumexp(self, x: Any) -> Any:
        return self.launch("logsumexp", x, out=wide(x))[0]

    def merge_lse(self, lses: Any) -> Any:
        assert lses.is_contiguous()
        return self.launch("logsumexp", lses)[0]

    def logsumexp_backward(self, x: Any, lse: Any, upstream: Any) -> Any:
        return self.launch("logsumexp_backward", x, lse, upstream)[0]

    def partial_target(self, x: Any, target: Any, first: int, ignored: int) -> tuple[Any, ...]:
        return tuple(self.launch("partial_target" + _i32(target), x, target, ignored, first))

    def merge_losses(
        self, ms: Any, ds: Any, logits: Any, target: Any, ignored: int, z_loss: float
    ) -> tuple[Any, ...]:
        assert ms.is_contiguous()
        assert ds.is_contiguous()
        name = "merge_losses" + _i32(target)
        return tuple(self.launch(name, ms, ds, logits, target, ignored, z_loss))

    def cross_entropy_backward(
        self,
        x: Any,
        target: Any,
        ignored: int,
        lse: Any,
        upstream: Any,
        smoothing: float,
        z_loss: float,
        loss: Any,
        first: int,
        classes: int,
        out: Any = None,
    ) -> Any:
        assert upstream.is_contiguous()
        assert classes >= x.shape[-1] or not smoothing
        name = "cross_entropy_backward_shard" + _i32(target)
        rows = (lse, upstream, 1, upstream.numel())
        rest = (smoothing, z_loss, loss, first, classes)
        (dx,) = self.launch(name, x, target, ignored, *rows, *rest)
        return dx if out is None else out.copy_(dx)

    def token_log_probs_backward(
        self, x: Any, ids: Any, lse: Any, upstream: Any, entropy: Any, up: Any, temperature: Any
    ) -> Any:
        k, more = ids.shape[-1], () if entropy is None else (entropy, up)
        name = f"token_log_probs_backward{'_entropy' if more else ''}{_i32(ids)}"
        name += f"_k{k}" if k > 1 else ""
        scale = None if temperature is None else 1 / temperature
        by_row = scale[..., None] if isinstance(scale, torch.Tensor) else scale
        if scale is not None:
            upstream, more = upstream * by_row, (entropy, up * scale) if more else ()
        return self.launch(name, _scaled(x, scale), ids, lse, upstream, *more, out=x.dtype)[0]

    def entropy(self, x: Any, scale: Any) -> tuple[Any, ...]:
        return tuple(self.launch("entropy_lse", _scaled(x, scale), out=wide(x)))

    def entropy_backward(self, x: Any, lse: Any, entropy: Any, upstream: Any, scale: Any) -> Any:
        up = upstream if scale is None else upstream * scale
        return self.launch("entropy_backward", _scaled(x, scale), lse, entropy, up, out=x.dtype)[0]


def _scaled(x: Any, scale: Any) -> Any:
    if scale is None:
        return x
    return x.to(wide(x)) * (scale[..., None] if isinstance(scale, torch.Tensor) else scale)


def _i32(ids: Any) -> str:
    return "_i32" if ids.dtype is torch.int32 else ""


def _name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _stored(x: Any) -> Any:
    """Return a tensor's elements in storage form."""
    x = x.detach().contiguous()
    return x.view(torch.uint16).numpy() if x.dtype is torch.bfloat16 else x.numpy()


def _tensor(array: Any, kind: str) -> Any:
    found = torch.from_numpy(np.ascontiguousarray(array))
    return found.view(torch.bfloat16) if kind == "bfloat16" else found
