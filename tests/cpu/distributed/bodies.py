"""What each process of the tests does; `run_ranks` calls these by rank and number of processes."""

from __future__ import annotations

import contextlib
import copy
import datetime
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import softgen.distributed as sd
from softgen.distributed import exchange, local
from softgen.errors import InvalidValueError, NotSupportedError
from tests.cpu.distributed.world import process_on_cpu
from tests.helpers.emulated_kernel import emulate

INF, NAN = float("inf"), float("nan")
WIDTHS = {2: (6, 8), 4: (3, 0, 7, 2)}
BOUND = {torch.float64: 1e-13, torch.float32: 3e-6, torch.bfloat16: 8e-3}


def rows_of(size: int, dtype: Any) -> Any:
    """Return `regimes` of the widths that the tests of `size` processes have."""
    return regimes(WIDTHS[size], dtype)


def regimes(widths: tuple[int, ...], dtype: Any) -> Any:
    """Return whole rows of all regimes, (regime, row, column): the same in each process."""
    cols, size = sum(widths), len(widths)
    ends = [sum(widths[: i + 1]) for i in range(size)]
    x = torch.randn(9, 3, cols, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
    x[0] *= 3
    x[1, :, : ends[0]] = -INF  # all of the first process
    x[2, :, ends[-2] :] = -INF  # all of the last
    x[3] = -INF
    x[4, 1, 1], x[4, 2, -1] = NAN, NAN
    x[5, 1, 1], x[5, 2, -1] = INF, INF
    x[6] = x[6] * 8 + 192
    x[7] *= 30
    x[8, :, ::2] = -INF
    return x.to(dtype)


def mine(x: Any, rank: int, size: int) -> Any:
    """Return this process's columns, contiguous."""
    return x.split(WIDTHS[size], -1)[rank].contiguous()


def close(got: Any, exact: Any, bound: float) -> None:
    """Assert that results are within `bound` of exact ones, relative or of 1 at least."""
    assert got.shape == exact.shape, (got.shape, exact.shape)
    torch.testing.assert_close(got.double(), exact.double(), rtol=bound, atol=bound, equal_nan=True)


def same_bits(found: Any) -> None:
    """Assert that all processes have the same bits."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    bits = found.detach().contiguous().view(-1).view(kind).to(torch.int64)
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, bits.tolist())
    assert all(each == every[0] for each in every)


def columns(rank: int, size: int, name: str) -> None:
    """softmax and log_softmax in every regime, with gradients; rows in pieces, too."""
    process_on_cpu()
    whole = getattr(torch, name)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        full = rows_of(size, dtype)
        exact_x = full.double().requires_grad_()
        y = whole(exact_x, -1)
        up = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        up = up.to(dtype).double()
        (dx,) = torch.autograd.grad(y, exact_x, up)
        # What a result of 16 bits has lost, its gradient lacks.
        loose = BOUND[dtype] * (4 if dtype is torch.bfloat16 else 1)
        for pieces in (1, 3):  # of 3 only what has columns for it, and its elements where they were
            vars(local)["pieces_of"] = lambda _, cols, k=pieces: k if not cols % k else 1
            x = mine(full, rank, size).requires_grad_()
            got = getattr(sd, name)(x)
            assert got.dtype is dtype
            close(got, mine(y.detach(), rank, size), BOUND[dtype])
            (got_dx,) = torch.autograd.grad(got, x, mine(up, rank, size).to(dtype))
            assert got_dx.dtype is dtype
            close(got_dx, mine(dx, rank, size), loose)
            assert torch.equal(
                getattr(sd, name)(x.detach()).nan_to_num(7), got.detach().nan_to_num(7)
            )
    for narrow, dtype in ((torch.bfloat16, torch.float32), (torch.float32, torch.float64)):
        full = rows_of(size, narrow)
        by_name = str(dtype).removeprefix("torch.")
        got = getattr(sd, name)(mine(full, rank, size), dtype=by_name)
        assert got.dtype is dtype
        close(got, mine(whole(full.double(), -1), rank, size), BOUND[dtype])


def logsumexp(rank: int, size: int) -> None:
    """Logsumexp in every regime, +inf too, with the gradient."""
    process_on_cpu()
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        full = rows_of(size, dtype)
        exact_x = full.double().requires_grad_()
        lse = torch.logsumexp(exact_x, -1)
        up = torch.linspace(-1, 2, lse.numel(), dtype=torch.float64).reshape(lse.shape)
        up = up.to(dtype).double()
        (dx,) = torch.autograd.grad(lse, exact_x, up)
        x = mine(full, rank, size).requires_grad_()
        got = sd.logsumexp(x)
        assert got.dtype is dtype
        close(got, lse.detach(), BOUND[dtype])
        same_bits(got)
        (got_dx,) = torch.autograd.grad(got, x, up.to(dtype))
        # Where lse is infinite PyTorch's gradient is NaN or 0, by its version.
        sure = lse.detach().isfinite()
        large = 1 + 250 * (dtype is torch.float32)  # lse is rounded at 200
        close(got_dx[sure], mine(dx, rank, size)[sure], BOUND[dtype] * large)
        assert sd.logsumexp(x.detach(), keepdim=True).shape == (*lse.shape, 1)
        assert sd.logsumexp(x.detach(), dtype=torch.float64).dtype is torch.float64


def targets_of(full: Any, kind: Any) -> Any:
    """Return a class for each row, of every process, ignored, and of none."""
    count, cols = full[..., 0].numel(), full.shape[-1]
    target = torch.arange(count) * 5 % cols
    target[2], target[7], target[-1] = -100, cols, -3
    return target.reshape(full.shape[:-1]).to(kind)


def cross_entropy(rank: int, size: int) -> None:
    """Losses a row in every regime, and of all rows, with gradients."""
    process_on_cpu()
    for dtype, kind in (
        (torch.float64, torch.int64),
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int64),
    ):
        full = rows_of(size, dtype)
        target = targets_of(full, kind)
        for z_loss, ignored, smoothing in (
            *((0.0, -100, 0.0), (1e-3, 3, 0.0)),
            *((1e-3, 3, 0.25), (0.0, -100, 1.0)),
        ):
            exact, dx, lse = exact_losses(full, target, ignored, z_loss, smoothing)
            x = mine(full, rank, size).requires_grad_()
            loss, got_lse = sd.cross_entropy(
                *(x, target),
                ignore_index=ignored,
                reduction="none",
                label_smoothing=smoothing,
                z_loss=z_loss,
                return_lse=True,
            )
            assert loss.dtype is dtype
            bound = BOUND[dtype]
            close(loss, exact, bound)
            close(got_lse, lse, min(bound, 3e-6))
            same_bits(loss)
            same_bits(got_lse)
            up = torch.linspace(-1, 2, loss.numel()).reshape(loss.shape).to(dtype)
            (got,) = torch.autograd.grad(loss, x, up)
            large = 250 if dtype is torch.float32 else 1
            close(got, mine(dx * up.double()[..., None], rank, size), bound * large)
    full = rows_of(size, torch.float32)[[0, 7]]
    target = targets_of(rows_of(size, torch.float32), torch.int64)[[0, 7]]
    target[target < -100] = -100
    target[(target >= full.shape[-1]) | (target == -3)] = 0
    for reduction, smoothing in (("mean", 0.0), ("sum", 0.0), ("mean", 0.1), ("sum", 0.1)):
        exact_x = full.double().requires_grad_()
        exact = torch.nn.functional.cross_entropy(
            *(exact_x.flatten(0, 1), target.flatten()),
            ignore_index=-100,
            reduction=reduction,
            label_smoothing=smoothing,
        )
        exact.backward()
        x = mine(full, rank, size).requires_grad_()
        numbers: dict[str, Any] = {"ignore_index": np.int64(-100), "z_loss": np.float32(0)}
        numbers["label_smoothing"] = smoothing
        loss = sd.cross_entropy(x, target, reduction=reduction, dtype="float64", **numbers)
        assert loss.dtype is torch.float64
        loss.backward()
        close(loss.detach(), exact.detach(), 3e-6)
        same_bits(loss)
        close(x.grad, mine(exact_x.grad, rank, size), 3e-6)


def exact_losses(
    full: Any, target: Any, ignored: int, z_loss: float, smoothing: float = 0.0
) -> tuple[Any, Any, Any]:
    """Return the loss of each row, its gradient and lse, in float64."""
    x, cols = full.double(), full.shape[-1]
    lse = torch.logsumexp(x, -1)
    skip, none = target == ignored, (target < 0) | (target >= cols)
    at = target.long().clamp(0, cols - 1)[..., None]
    loss = lse - x.gather(-1, at)[..., 0]
    if smoothing:
        of_target = (1 - smoothing) * loss if smoothing < 1 else 0
        loss = of_target + smoothing * (lse - x.mean(-1))
    loss = loss + z_loss * lse * lse
    loss = torch.where(none | (lse == INF), NAN, loss).masked_fill(skip, 0)
    hot = torch.zeros_like(x).scatter_(-1, at, 1) * (1 - smoothing) + smoothing / cols
    dx = torch.exp(x - lse[..., None]) * (1 + 2 * z_loss * lse[..., None]) - hot
    dx = torch.where((none | ~lse.isfinite())[..., None], NAN, dx)
    return loss, dx.masked_fill(skip[..., None], 0), lse.masked_fill(skip, -INF)


def overwritten(rank: int, size: int) -> None:
    """Logits whose gradient takes their memory, where nobody else may read them."""
    process_on_cpu()
    made = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, 3, dtype=torch.float64, generator=made)
    weight = torch.randn(sum(WIDTHS[size]), 3, dtype=torch.float64, generator=made)
    target = torch.tensor([0, 2, -100, 8, 5])
    here = mine(weight.T, rank, size).T
    for reduction, smoothing in (("mean", 0.0), ("sum", 0.1), ("none", 0.1)):
        exact = (hidden @ weight.T).requires_grad_()
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
        loss = torch.nn.functional.cross_entropy(exact, target, **options)
        up = torch.linspace(-1, 2, loss.numel(), dtype=torch.float64).reshape(loss.shape)
        (dlogits,) = torch.autograd.grad(loss, exact, up)
        leaf = here.clone().requires_grad_()
        logits = hidden @ leaf.T
        kept = logits.detach().clone()
        got = sd.cross_entropy(logits, target, overwrite=True, **options)
        close(got.detach(), loss.detach(), 1e-12)
        same_bits(got)
        assert torch.equal(logits.detach(), kept)
        (dweight,) = torch.autograd.grad(got, leaf, up, retain_graph=True)
        close(dweight, mine(dlogits, rank, size).T @ hidden, 1e-12)
        close(logits.detach(), mine(dlogits, rank, size), 1e-12)
        if logits.numel():
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(got, leaf, up)
        # Logits with gaps are left alone.
        logits = torch.empty(5, 2 * len(here), dtype=torch.float64)[:, ::2].copy_(kept)
        got = sd.cross_entropy(logits.requires_grad_(), target, overwrite=True, **options)
        (dx,) = torch.autograd.grad(got, logits, up)
        close(dx, mine(dlogits, rank, size), 1e-12)
        assert torch.equal(logits.detach(), kept)


def tokens(rank: int, size: int) -> None:
    """Log-probabilities of ids, one and several, at temperatures, with gradients."""
    process_on_cpu()
    full = rows_of(size, torch.float32)
    rows, cols = full.shape[:-1], full.shape[-1]
    several = torch.arange(full[..., 0].numel() * 3).reshape(*rows, 3) * 4 % cols
    several[..., 2] = several[..., 0]  # twice the same
    several[0, 0, 0] = -100
    of_rows = torch.linspace(0.5, 2, 3).expand(rows)
    for dtype, ids, temperature in (
        (torch.float64, several, None),
        (torch.float32, several, 0.5),
        (torch.float32, targets_of(full, torch.int32), of_rows),
        (torch.bfloat16, targets_of(full, torch.int64), None),
    ):
        x = mine(rows_of(size, dtype), rank, size).requires_grad_()
        got, got_lse = sd.token_log_probs(x, ids, temperature=temperature, return_lse=True)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        assert got.dtype is wide
        by = temperature[..., None] if isinstance(temperature, torch.Tensor) else temperature or 1
        exact_x = rows_of(size, dtype).double().requires_grad_()
        log_p = torch.log_softmax(exact_x / by, -1)
        at = (ids if ids.dim() == x.dim() else ids[..., None]).long()
        known = (at >= 0) & (at < cols)
        exact = torch.where(known, log_p.gather(-1, at.clamp(0, cols - 1)), NAN).reshape(ids.shape)
        bound = BOUND[wide] * 10
        close(got, exact.detach(), bound)
        lse = torch.logsumexp(exact_x.detach() / by, -1)
        close(got_lse, torch.where(lse == INF, NAN, lse), bound)
        same_bits(got)
        # An id of nobody gives no gradient where nobody asks for one, and NaN else.
        up = torch.linspace(-1, 2, got.numel(), dtype=wide).reshape(got.shape)
        up = torch.where(known.reshape(ids.shape), up, 0)
        (dx,) = torch.autograd.grad(exact, exact_x, up.double())
        usable = lse.isfinite()
        (got_dx,) = torch.autograd.grad(got, x, up, retain_graph=True)
        loose = max(BOUND[dtype], 1e-3 if wide is torch.float32 else 0)
        close(got_dx[usable], mine(dx, rank, size)[usable], loose)
        assert got_dx[~usable].isnan().all()
        (spoiled,) = torch.autograd.grad(got, x, torch.ones_like(got))
        lost = ~known.all(-1)
        assert spoiled[lost].isnan().all()
        assert torch.equal(spoiled[~lost & usable].isnan().any(), torch.tensor(False))


def entropies(rank: int, size: int) -> None:
    """Entropies in every regime, at temperatures, alone and beside tokens, with gradients."""
    process_on_cpu()
    rows = rows_of(size, torch.float32).shape[:-1]
    of_rows = torch.linspace(0.5, 2, 3).expand(rows)
    for dtype, temperature in (
        (torch.float64, None),
        (torch.float32, 0.5),
        (torch.float32, of_rows),
        (torch.bfloat16, None),
    ):
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        full = rows_of(size, dtype)
        by = temperature[..., None] if isinstance(temperature, torch.Tensor) else temperature or 1
        exact_x = full.double().requires_grad_()
        log_p = torch.log_softmax(exact_x / by, -1)
        exact = entropy_of(log_p)
        up = torch.linspace(-1, 2, exact.numel()).reshape(exact.shape).to(wide)
        (dx,) = torch.autograd.grad(exact, exact_x, up.double(), retain_graph=True)
        usable = exact.isfinite()
        assert not usable[3:6].all()
        # lse is rounded at 200 and at 400, by the temperature.
        bound = BOUND[wide] * (1 if wide is torch.float64 else 30)
        loose = max(BOUND[dtype], bound * 10)
        x = mine(full, rank, size).requires_grad_()
        got = sd.entropy(x, temperature=temperature, dtype=wide)
        assert got.dtype is wide
        close(got, exact.detach(), bound)
        same_bits(got)
        (got_dx,) = torch.autograd.grad(got, x, up)
        assert got_dx.dtype is dtype
        close(got_dx[usable], mine(dx, rank, size)[usable], loose)
        assert got_dx[~usable].isnan().all()
        kept = sd.entropy(x.detach(), temperature=temperature, keepdim=True)
        assert kept.dtype is dtype
        assert kept.shape == (*rows, 1)
        _beside_tokens(x, log_p, exact, temperature, size)


def _beside_tokens(x: Any, log_p: Any, exact: Any, temperature: Any, size: int) -> None:
    """Tokens with entropies, and the gradient of either and of both."""
    rank, cols, usable = dist.get_rank(), log_p.shape[-1], exact.isfinite()
    dtype, wide = x.dtype, torch.float64 if x.dtype is torch.float64 else torch.float32
    bound = BOUND[wide] * (1 if wide is torch.float64 else 30)
    for count in (0, 3):
        ids = torch.arange(exact.numel() * max(1, count)) * 4 % cols
        ids = ids.reshape(*exact.shape, *([count] if count else []))
        if count:
            ids[..., 2] = ids[..., 0]  # twice the same
        options = {"temperature": temperature, "return_lse": True, "return_entropy": True}
        log_probs, lse, entropy = sd.token_log_probs(x, ids, **options)
        at = ids if count else ids[..., None]
        exact_probs = log_p.gather(-1, at).reshape(ids.shape)
        close(log_probs, exact_probs.detach(), bound)
        close(entropy, exact.detach(), bound)
        for each in (log_probs, lse, entropy):
            assert each.dtype is wide
            same_bits(each)
        (alone,) = sd.token_log_probs(x, ids, temperature=temperature, return_entropy=True)[1:]
        assert torch.equal(alone.nan_to_num(7), entropy.nan_to_num(7))
        exact_x = torch.cat(everyone(x.detach()), -1).double().requires_grad_()
        by = temperature[..., None] if isinstance(temperature, torch.Tensor) else temperature or 1
        again = torch.log_softmax(exact_x / by, -1)
        exact_entropy = entropy_of(again)
        exact_probs = again.gather(-1, at).reshape(ids.shape)
        for of_probs, of_entropy in ((1.0, 0.0), (0.0, -2.0), (0.5, 3.0)):
            sound = usable & exact_probs.reshape(*usable.shape, -1).isfinite().all(-1)
            total = of_probs * log_probs[sound].sum() + of_entropy * entropy[sound].sum()
            wanted = of_probs * exact_probs[sound].sum() + of_entropy * exact_entropy[sound].sum()
            (got,) = torch.autograd.grad(total, x, retain_graph=True)
            (dx,) = torch.autograd.grad(wanted, exact_x, retain_graph=True)
            close(got[sound], mine(dx, rank, size)[sound], max(BOUND[dtype] * 4, bound * 10))


def entropy_of(log_p: Any) -> Any:
    """Return -sum(p log p) of each row: 0 log 0 is 0, and has no gradient."""
    return -(log_p.exp() * log_p.masked_fill(log_p == -INF, 0)).sum(-1)


def everyone(x: Any) -> list[Any]:
    """Return the shards of all processes."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, x)
    return every


@contextlib.contextmanager
def sending() -> Iterator[list[tuple[str, int]]]:
    """Yield a list that gets what is sent from now on: by what, and how many bytes."""
    sent: list[tuple[str, int]] = []
    gather, reduce = exchange.all_gather, dist.all_reduce

    def counted_gather(every: Any, given: Any, **options: Any) -> Any:
        sent.append(("gather", given.numel() * given.element_size()))
        return gather(every, given, **options)

    def counted_reduce(given: Any, **options: Any) -> Any:
        sent.append(("reduce", given.numel() * given.element_size()))
        return reduce(given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "all_gather", counted_gather)
        patch.setattr(dist, "all_reduce", counted_reduce)
        yield sent


def counted(rank: int, size: int) -> None:
    """What each function sends: one all-gather forward, and an all-reduce back at most."""
    process_on_cpu()
    with sending() as sent:
        counts(rank, size, sent)


def counts(rank: int, size: int, sent: list[tuple[str, int]]) -> None:
    full = rows_of(size, torch.float32)[0]
    x = mine(full, rank, size).requires_grad_()
    ids = torch.tensor([0, 4, 1])
    cases: list[tuple[Callable[[], Any], list[tuple[str, int]], list[tuple[str, int]]]] = [
        (lambda: sd.softmax(x), [("gather", 24)], [("reduce", 12)]),
        (lambda: sd.log_softmax(x), [("gather", 24)], [("reduce", 12)]),
        (lambda: sd.logsumexp(x), [("gather", 12)], []),
        (lambda: sd.cross_entropy(x, ids, offset=first(rank, size)), [("gather", 36)], []),
        (
            lambda: sd.cross_entropy(x, ids, label_smoothing=0.1),
            [("gather", 36), ("reduce", 12)],
            [],
        ),
        (lambda: sd.token_log_probs(x, ids, offset=first(rank, size)), [("gather", 36)], []),
        (lambda: sd.entropy(x), [("gather", 24)], []),
        (
            lambda: sum(sd.token_log_probs(x, ids, return_entropy=True, offset=first(rank, size))),
            [("gather", 36)],
            [],
        ),
    ]
    sd.cross_entropy(x.detach(), ids)  # they have asked where columns start
    for run, forward, backward in cases:
        sent.clear()
        found = run()
        assert sent == forward
        sent.clear()
        found.sum().backward()
        assert sent == backward
    sent.clear()
    again = dist.new_group()
    sent.clear()
    for _ in range(2):  # how many columns there are is asked once
        sd.token_log_probs(x.detach(), ids, group=again)
    assert [size for _, size in sent] == [8, 36, 36]
    sd.softmax(x.detach()[:0])  # no rows, nothing to send
    assert len(sent) == 3
    alone = dist.new_group([0])
    if rank == 0:
        close(sd.softmax(full, group=alone), torch.softmax(full, -1), 3e-6)
        assert len(sent) == 3
    else:
        with pytest.raises(InvalidValueError, match="not in the group"):
            sd.softmax(x, group=alone)


def first(rank: int, size: int) -> int:
    """Return the number of a process's first column."""
    return sum(WIDTHS[size][:rank])


def killed(rank: int, size: int) -> None:
    """A process that is killed between two calls: the others are told, long before a timeout."""
    process_on_cpu()
    full = rows_of(size, torch.float32)[0]
    x = mine(full, rank, size)
    ids = torch.tensor([0, 4, 1])
    sd.cross_entropy(x, ids)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def often() -> None:
        for _ in range(3):  # who has only sent to it may learn at the next call
            sd.cross_entropy(x, ids)

    began = time.monotonic()
    with pytest.raises(RuntimeError):
        often()
    assert time.monotonic() - began < 20


def absent(rank: int, size: int) -> None:
    """A process that lives and does not come: the others wait as long as their group says."""
    process_on_cpu()
    x = mine(rows_of(size, torch.float32)[0], rank, size)
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    sd.softmax(x, group=group)
    if rank == 1:
        dist.barrier()
        return
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        sd.softmax(x, group=group)
    assert 1 < time.monotonic() - began < 20
    dist.barrier()


def dtensors(rank: int, size: int) -> None:
    """DTensors in and out: columns over one dimension of a mesh, rows over another."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    process_on_cpu()
    full = torch.randn(4, 2, 7, generator=torch.Generator().manual_seed(3))
    ids = torch.randint(0, 7, (4, 2), generator=torch.Generator().manual_seed(4))
    one = init_device_mesh("cpu", (size,))
    meshes = [(one, [Shard(2)])]
    if size == 4:
        two = init_device_mesh("cpu", (2, 2))
        meshes += [(two, [Shard(0), Shard(-1)]), (two, [Shard(2), Replicate()])]
    for mesh, placements in meshes:
        exact = full.double().requires_grad_()
        x = distribute_tensor(full, mesh, placements).requires_grad_()
        rows = [Replicate() if p.is_shard() and p.dim in (2, -1) else p for p in x.placements]
        placed_ids = distribute_tensor(ids, mesh, rows)
        log_p = torch.log_softmax(exact, -1)
        losses = -log_p.gather(-1, ids[..., None])[..., 0]
        for got, wanted in (
            (sd.softmax(x), log_p.exp()),
            (sd.log_softmax(x), log_p),
            (sd.logsumexp(x), torch.logsumexp(exact, -1)),
            (sd.token_log_probs(x, placed_ids), -losses),
            (sd.entropy(x), -(log_p.exp() * log_p).sum(-1)),
            (sd.cross_entropy(x, placed_ids, reduction="none"), losses),
            (
                sd.cross_entropy(x, placed_ids, reduction="none", label_smoothing=0.5),
                0.5 * losses - 0.5 * log_p.mean(-1),
            ),
        ):
            assert isinstance(got, DTensor)
            assert got.shape == wanted.shape
            assert list(got.placements) == (list(x.placements) if got.dim() == 3 else rows)
            close(got.full_tensor(), wanted, 3e-6)
            (dx,) = torch.autograd.grad(got.pow(2).sum(), x, retain_graph=True)
            (wanted_dx,) = torch.autograd.grad(wanted.pow(2).sum(), exact, retain_graph=True)
            assert dx.placements == x.placements
            close(dx.full_tensor(), wanted_dx, 1e-5)
    if size == 2:
        x = distribute_tensor(full, one, [Shard(2)])
        loss = sd.cross_entropy(x, ids)
        close(loss.full_tensor(), losses.mean().detach(), 3e-6)
        for wrong in ([Shard(0)], [Replicate()]):
            with pytest.raises(NotSupportedError, match="must be sharded over one dimension"):
                sd.softmax(distribute_tensor(full, one, wrong))
        with pytest.raises(InvalidValueError, match="has a group of its own"):
            sd.softmax(x, group=dist.group.WORLD)
    else:
        x = distribute_tensor(full, two, [Shard(0), Shard(2)])
        with pytest.raises(NotSupportedError, match='reduction="none"'):
            sd.cross_entropy(x, ids[: x.to_local().shape[0]])


def emulated(rank: int, size: int, programs: Path) -> None:
    """The texts of the kernels on the emulator, forward and back."""
    emulate(process_on_cpu(), programs)
    full = rows_of(size, torch.float32)[:6, :, :12]
    target = targets_of(full, torch.int64)
    exact = full.double().requires_grad_()
    y = torch.softmax(exact, -1)
    x = halves(full, rank).requires_grad_()
    got = sd.softmax(x)
    close(got, halves(y.detach(), rank), 3e-6)
    up = torch.linspace(-1, 1, y.numel()).reshape(y.shape)
    (dx,) = torch.autograd.grad(y, exact, up.double())
    (got_dx,) = torch.autograd.grad(got, x, halves(up, rank))
    close(got_dx, halves(dx, rank), 3e-6)
    losses, dx, _ = exact_losses(full, target, -100, 0.0)
    loss = sd.cross_entropy(x, target, reduction="none")
    close(loss, losses, 3e-6)
    same_bits(loss)
    loss.backward(torch.ones_like(loss))
    close(x.grad, halves(dx, rank), 3e-6)
    losses, dx, _ = exact_losses(full, target, -100, 1e-3, 0.25)
    options: dict[str, Any] = {"label_smoothing": 0.25, "z_loss": 1e-3, "reduction": "none"}
    loss = sd.cross_entropy(x, target, **options)
    close(loss, losses, 3e-6)
    (got_dx,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    close(got_dx, halves(dx, rank), 3e-6)
    entropy = entropy_of(torch.log_softmax(exact, -1))
    got = sd.entropy(x)
    close(got, entropy.detach(), 3e-6)
    same_bits(got)
    sound = entropy.isfinite()
    (dx,) = torch.autograd.grad(entropy[sound].sum(), exact)
    (got_dx,) = torch.autograd.grad(got[sound].sum(), x)
    close(got_dx[sound], halves(dx, rank)[sound], 3e-6)


def halves(x: Any, rank: int) -> Any:
    """Return half of the columns, of the width of the other half: one kernel for both."""
    return x.chunk(2, -1)[rank].contiguous()


def page(rank: int, size: int, train: str, of_dtensor: str, step: str, of_hidden: str) -> None:
    """The programs of docs/distributed.md and docs/tensor_parallel.md, on the CPU."""
    from torch.distributed.device_mesh import init_device_mesh

    process_on_cpu()
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    here = {
        'torch.device("cuda", int(os.environ["LOCAL_RANK"]))': 'torch.device("cpu")',
        "torch.cuda.set_device(device)\n": "",
        'dist.init_process_group("nccl")\n': "",
        "dist.destroy_process_group()\n": "",
    }
    for old, new in here.items():
        assert old in train
        train = train.replace(old, new)
    names: dict[str, Any] = {"mesh": init_device_mesh("cpu", (size,))}
    exec(train, names)
    torch.manual_seed(0)
    hidden, target = torch.randn(64, 32), torch.randint(0, 1001, (64,))
    head = torch.randn(1001, 32).double().requires_grad_()
    logits = hidden.double() @ head.T
    loss = torch.nn.functional.cross_entropy(logits, target)
    loss.backward()
    close(names["loss"].detach(), loss.detach(), 1e-5)
    close(names["head"].grad, head.grad.tensor_split(size)[rank], 1e-5)
    names["head"].grad = None
    exec(of_hidden, names)
    close(names["loss"].detach(), loss.detach(), 1e-5)
    close(names["head"].grad, head.grad.tensor_split(size)[rank], 1e-5)
    close(names["p"], torch.softmax(logits.detach(), -1).tensor_split(size, -1)[rank], 3e-6)
    # DTensor.from_local takes shards of one size, and 1001 columns have others.
    names["logits"] = names["logits"][:, :500].detach()
    exec(of_dtensor, names)
    whole = torch.cat([each[:, :500] for each in logits.detach().tensor_split(size, -1)], -1)
    close(names["y"].full_tensor(), torch.log_softmax(whole, -1), 1e-5)
    _step(step, {'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))': "", '"cuda"': '"cpu"'})


def megatron(rank: int, size: int, function: str, step: str, without_logits: str) -> None:
    """The functions of docs/megatron.md, beside Megatron's formulas in plain operations."""
    process_on_cpu()
    made = torch.Generator().manual_seed(1)
    hidden, every = torch.randn(7, 3, 5, generator=made), torch.randn(8 * size, 5, generator=made)
    here, group = every.chunk(size)[rank], dist.new_group()
    labels = torch.randint(0, len(every), (7, 3), generator=made)
    mask = (torch.rand(7, 3, generator=made) < 0.7).float()
    for dtype in (torch.float32, torch.bfloat16):
        leaf = (hidden @ here.T).to(dtype).requires_grad_()
        logits, formula = leaf * 1, leaf.detach().clone().requires_grad_()
        names: dict[str, Any] = {"labels": labels, "loss_mask": mask, "tp_group": group}
        names["logits"] = logits
        exec(function + step, names)
        wanted = _megatron(formula, labels, 0.0, group, rank)
        assert names["losses"].dtype is wanted.dtype is torch.float32
        close(names["losses"].detach(), wanted.detach(), 1e-5)
        ((wanted * mask).sum() / mask.sum()).backward()
        assert leaf.grad.dtype is dtype
        close(leaf.grad, formula.grad, 8e-3 if dtype is torch.bfloat16 else 1e-5)
        assert torch.equal(logits.detach(), leaf.grad)  # its memory
    names |= {"hidden": hidden, "weight": here, "softgen": sys.modules["softgen"]}
    exec(without_logits, names)
    logits = hidden @ here.T
    close(names["losses"], _megatron(logits, labels, 0.0, group, rank), 1e-5)
    # With smoothing ranks differ, and one rank alone has softgen's by another number.
    call = names["vocab_parallel_cross_entropy"]
    smoothed = _megatron(logits, labels, 0.1, group, rank)
    others = everyone(smoothed)
    assert not torch.allclose(others[0], others[1], atol=1e-2)
    assert not torch.allclose(call(logits, labels, 0.1, group), smoothed, atol=1e-2)
    same_bits(call(logits, labels, 0.1, group))
    alone = [dist.new_group([each]) for each in range(size)][rank]
    few = labels % 8
    got = call(logits, few, 0.1 * 8 / 7, alone)
    close(got, _megatron(logits, few, 0.1, alone, 0), 1e-5)


def _megatron(logits: Any, target: Any, smoothing: float, group: Any, rank: int) -> Any:
    """Return the loss of each token: sums over ranks are of tokens, means of the rank's columns."""
    x, columns = logits.float(), logits.shape[-1]
    top = x.detach().amax(-1)
    dist.all_reduce(top, dist.ReduceOp.MAX, group)
    x = x - top[..., None]
    local = target - rank * columns
    mine = (local >= 0) & (local < columns)
    chosen = x.gather(-1, local.clamp(0, columns - 1)[..., None])[..., 0] * mine
    chosen = _summed(chosen, group)
    log_d = _summed(x.exp().sum(-1), group).log()
    loss, share = log_d - chosen, smoothing * columns / (columns - 1)
    return (1 - share) * loss - share * (x - log_d[..., None]).mean(-1)


def _summed(x: Any, group: Any) -> Any:
    """Return a sum over ranks, whose gradient each rank has by itself."""
    total = x.detach().clone()
    dist.all_reduce(total, group=group)
    return total + (x - x.detach())


def _step(text: str, here: dict[str, str]) -> None:
    """A step of tensor parallelism, against that of one process in float64."""
    for old, new in (*here.items(), ("dist.destroy_process_group()\n", "")):
        assert old in text
        text = text.replace(old, new)
    before, after = text.split("parallelize_module(model, mesh, plan)\n")
    names: dict[str, Any] = {}
    exec(before, names)
    exact = copy.deepcopy(names["model"]).double()
    optimizer = torch.optim.AdamW(exact.parameters(), lr=1e-3)
    exec(f"parallelize_module(model, mesh, plan)\n{after}", names)
    words, target = names["text"][:, :-1], names["text"][:, 1:]
    loss = torch.nn.functional.cross_entropy(exact(words).flatten(0, 1), target.flatten())
    loss.backward()
    optimizer.step()
    close(names["loss"].full_tensor().detach(), loss.detach(), 1e-5)
    pairs = zip(names["model"].named_parameters(), exact.parameters(), strict=True)
    for (name, mine), theirs in pairs:
        _near(
            mine.grad.full_tensor() if hasattr(mine.grad, "full_tensor") else mine.grad, theirs.grad
        )
        assert mine.shape == theirs.shape, name


def vocabulary_parallel(rank: int, size: int, folder: Path) -> None:
    """The example, small: both losses, and the gradients of a step against float64 of all words."""
    from torch.distributed.device_mesh import init_device_mesh

    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples"))
    example: Any = importlib.import_module("vocabulary_parallel")
    process_on_cpu()
    mesh, text = init_device_mesh("cpu", (size,)), example.text_of(20_000)
    results = example.compare(mesh, example.SMALL, 3, text)
    if rank == 0:
        example.tell(results)
        example.write(folder / "curves", results)
    for name in ("loss_parallel", "softgen"):
        run = example.RUNS[name]
        training = example.Training(run, example.SMALL, text, mesh)
        words, target = training.batch()
        got = run.loss(training.logits(words), target, mesh)
        model = training.model
        parts = [torch.empty_like(model.words) for _ in range(size)]
        dist.all_gather(parts, model.words.detach())
        exact_model = example.Model(example.SMALL, mesh).double()
        exact_model.load_state_dict(model.state_dict())
        whole = torch.cat(parts).double().requires_grad_()
        hidden = exact_model.body(whole[words])
        exact = torch.nn.functional.cross_entropy((hidden @ whole.T).flatten(0, 1), target)
        exact.backward()
        assert {int(each) * size // len(whole) for each in target} == set(range(size))
        close(got, exact.detach(), 1e-6)
        _near(model.words.grad, whole.grad.chunk(size)[rank])
        pairs = zip(model.named_parameters(), exact_model.parameters(), strict=True)
        for (of, mine), theirs in pairs:
            if of != "words":
                _near(mine.grad, theirs.grad)


def _near(got: Any, exact: Any) -> None:
    """Assert that a gradient is within 1e-5 of its largest element."""
    off = (got.double() - exact).abs().max() / exact.abs().max()
    assert off < 1e-5, float(off)
