"""What each process of the GPU tests does; `run_ranks` calls these by rank and number."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import softgen.distributed as sd
from softgen.distributed import direct
from softgen.distributed import exchange as exchanges
from softgen.distributed.direct import Direct
from softgen.errors import ExchangeError
from softgen.tuning import cache
from tests.cpu.distributed.bodies import BOUND, entropy_of, exact_losses, regimes, targets_of
from tests.cpu.distributed.hidden import BOUNDS as OF_HIDDEN
from tests.cpu.distributed.hidden import Layer, exact_of, factors

BOUNDS = {**BOUND, torch.float16: 1e-3}
WIDTHS = [(129, 65), (64, 0), (0, 1000)]


def begin(rank: int, folder: str, exchange: str) -> Any:
    """Take a GPU and a cache folder, and return a group over NCCL that exchanges so."""
    torch.cuda.set_device(rank)
    wanted = "1" if exchange == "direct" else "0"
    os.environ |= {"SOFTGEN_DIRECT": wanted, "SOFTGEN_TUNE": "off", "SOFTGEN_CACHE_DIR": folder}
    group = dist.new_group(backend="nccl")
    sd.softmax(torch.zeros(1, 8, device="cuda"), group=group)
    found = exchanges._exchanges[group]
    assert isinstance(found, Direct) == (exchange == "direct")
    return group


def right(rank: int, size: int, folder: str, exchange: str) -> None:
    """Every function in every regime and type, with gradients; uneven and empty shards."""
    group = begin(rank, folder, exchange)
    for widths in WIDTHS:
        for dtype in BOUNDS:
            _right(rank, widths, dtype, group)


def _right(rank: int, widths: tuple[int, int], dtype: Any, group: Any) -> None:
    full = regimes(widths, dtype)
    bound, half = BOUNDS[dtype], dtype.itemsize == 2
    large = 251 if dtype is torch.float32 else 1  # where lse is rounded at 200
    start = sum(widths[:rank])

    def mine(x: Any) -> Any:
        return x[..., start : start + widths[rank]].cuda().contiguous()

    exact = full.double().clone().requires_grad_()
    log_p, lse = torch.log_softmax(exact, -1), torch.logsumexp(exact, -1)
    up = torch.randn(full.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for name, y in (("softmax", torch.softmax(exact, -1)), ("log_softmax", log_p)):
        x = mine(full).requires_grad_()
        got = getattr(sd, name)(x, group=group)
        _close(got, mine(y), bound)
        (dx,) = torch.autograd.grad(y, exact, up.double(), retain_graph=True)
        _close(torch.autograd.grad(got, x, mine(up))[0], mine(dx), bound * (4 if half else 1))
    x, of_rows = mine(full).requires_grad_(), torch.linspace(-1, 2, lse.numel()).to(dtype)
    of_rows = of_rows.reshape(lse.shape)
    got = sd.logsumexp(x, group=group)
    _close(got, lse.cuda(), bound)
    (dx,) = torch.autograd.grad(lse, exact, of_rows.double(), retain_graph=True)
    sure = lse.isfinite()
    (got_dx,) = torch.autograd.grad(got, x, of_rows.cuda())
    _close(got_dx[sure.cuda()], mine(dx[sure]), bound * large)
    target = targets_of(full, torch.int64)
    for z_loss, ignored, smoothing in ((0.0, -100, 0.0), (1e-3, 3, 0.0), (1e-3, 3, 0.25)):
        losses, dx, _ = exact_losses(full, target, ignored, z_loss, smoothing)
        x = mine(full).requires_grad_()
        options: dict[str, Any] = {"ignore_index": ignored, "z_loss": z_loss, "offset": start}
        options["label_smoothing"] = smoothing
        got = sd.cross_entropy(x, target.cuda(), reduction="none", group=group, **options)
        _close(got, losses.cuda(), bound)
        (got_dx,) = torch.autograd.grad(got, x, of_rows.cuda())
        _close(got_dx, mine(dx * of_rows.double()[..., None]), bound * large)
        logits = x * 1
        options |= {"reduction": "none", "group": group, "overwrite": True}
        got = sd.cross_entropy(logits, target.cuda(), **options)
        (again,) = torch.autograd.grad(got, x, of_rows.cuda())
        assert torch.equal(again.nan_to_num(7), got_dx.nan_to_num(7))
        assert torch.equal(logits.detach().nan_to_num(7), got_dx.nan_to_num(7))
    known = (target >= 0) & (target < full.shape[-1])
    wanted = log_p.gather(-1, target.clamp(0, full.shape[-1] - 1)[..., None])[..., 0]
    wanted = torch.where(known, wanted, torch.nan).detach()
    bound = 10 * BOUNDS[torch.float64 if dtype is torch.float64 else torch.float32]
    of_one = sd.token_log_probs(mine(full), target.cuda(), group=group, offset=start)
    _close(of_one, wanted.cuda(), bound)
    twice = torch.stack((target, target), -1).cuda()
    got = sd.token_log_probs(mine(full), twice, group=group, offset=start)
    _close(got, torch.stack((wanted, wanted), -1).cuda(), bound)
    x, entropy = mine(full).requires_grad_(), entropy_of(log_p)
    got = sd.entropy(x, dtype=of_one.dtype, group=group)
    _close(got, entropy.cuda(), bound)
    sound = entropy.isfinite()
    (got_dx,) = torch.autograd.grad(got[sound.cuda()].sum(), x)
    (dx,) = torch.autograd.grad(entropy[sound].sum(), exact)
    _close(got_dx[sound.cuda()], mine(dx[sound]), max(BOUNDS[dtype], bound) * large)


def _close(got: Any, exact: Any, bound: float) -> None:
    torch.testing.assert_close(
        got.detach().double(), exact.detach().double(), rtol=bound, atol=bound, equal_nan=True
    )


def hidden(rank: int, size: int, folder: str, exchange: str) -> None:
    """Losses of hidden states and their gradients, in chunks; rows of the weight in shards."""
    group = begin(rank, folder, exchange)
    for dtype, (reduction, chunk) in itertools.product(
        (torch.float64, torch.float32, torch.bfloat16), (("mean", None), ("sum", 7), ("none", 7))
    ):
        layer = Layer(1001, dtype)
        loss, dx, dweight = layer.right(reduction, 0.1, 1e-3)
        x = layer.x.cuda().requires_grad_()
        weight = layer.weight.cuda().tensor_split(size)[rank].clone().requires_grad_()
        options: dict[str, Any] = {"label_smoothing": 0.1, "z_loss": 1e-3, "chunk": chunk}
        options |= {"reduction": reduction, "group": group}
        got = sd.linear_cross_entropy(x, weight, layer.target.cuda(), **options)
        _close(got.cpu(), loss, OF_HIDDEN[dtype])
        for retain in (True, False):  # the second time gradients are made again
            found = torch.autograd.grad(got, (x, weight), factors(got), retain_graph=retain)
            for each, exact in zip(found, (dx, dweight.tensor_split(size)[rank]), strict=True):
                _close(each.cpu(), exact, OF_HIDDEN[dtype] * (1 + float(exact.abs().max())))
    layer = Layer(1001)
    bias, weights = layer.beside()
    counting = int((layer.target != -100).sum())
    for reduction, given in (
        ("mean", {"weight": weights, "valid_rows": counting}),
        ("mean", {"num_items": torch.tensor(9), "label_smoothing": 0.1}),
        ("none", {"weight": weights}),
        ("mean", {"softcap": 1.5}),
        ("mean", {"weight": weights, "label_smoothing": 0.1, "softcap": 1.5, "z_loss": 1e-3}),
    ):
        loss, *right = exact_of(layer, bias, reduction, given)
        shards = (each.tensor_split(size)[rank] for each in (layer.weight, bias))
        leaves = [each.cuda().requires_grad_() for each in (layer.x, *shards)]
        x, weight, shift = leaves
        options = {"linear_bias_local": shift, "chunk": 7, "group": group, "reduction": reduction}
        options |= given
        if "weight" in given:
            options["weight"] = weights.cuda()
        got = sd.linear_cross_entropy(x, weight, layer.target.cuda(), **options)
        _close(got.cpu(), loss, OF_HIDDEN[torch.float32])
        found = torch.autograd.grad(got, leaves, factors(got))
        mine = (right[0], *(each.tensor_split(size)[rank] for each in right[1:]))
        for each, exact in zip(found, mine, strict=True):
            _close(each.cpu(), exact, OF_HIDDEN[torch.float32] * (1 + float(exact.abs().max())))


def graphs(rank: int, size: int, folder: str, exchange: str) -> None:
    """A graph that is replayed on other data, either rank late, gives the bits of eager calls."""
    group = begin(rank, folder, exchange)
    inputs = [torch.randn(9, (77, 53)[rank], device="cuda") for _ in range(3)]
    inputs[1][2], inputs[2][3, 1] = -torch.inf, torch.nan
    target = torch.arange(9, device="cuda") * 14
    x = torch.empty_like(inputs[0])

    def run() -> list[Any]:
        y, log_y = sd.softmax(x, group=group), sd.log_softmax(x, group=group)
        leaf = x.detach().requires_grad_()
        loss = sd.cross_entropy(leaf, target, group=group)
        return [y, log_y, sd.logsumexp(x, group=group), *torch.autograd.grad(loss, leaf)]

    wanted = []
    for given in inputs:
        x.copy_(given)
        wanted.append([each.clone() for each in run()])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = run()
    for turn in range(12):
        x.copy_(inputs[turn % 3])
        if turn % 2 == rank:
            torch.cuda._sleep(2_000_000)  # about a millisecond
        graph.replay()
        for got, right in zip(found, wanted[turn % 3], strict=True):
            assert torch.equal(got.nan_to_num(7), right.nan_to_num(7)), turn


def dtensors(rank: int, size: int, folder: str, exchange: str) -> None:
    """A DTensor in is a DTensor out, placed as it is."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = DeviceMesh.from_group(begin(rank, folder, exchange), "cuda")
    full = torch.randn(4, 3, 101, generator=torch.Generator().manual_seed(3))
    exact = full.double().requires_grad_()
    x = distribute_tensor(full.cuda(), mesh, [Shard(-1)]).requires_grad_()
    for name in ("softmax", "log_softmax", "logsumexp"):
        got, wanted = getattr(sd, name)(x), getattr(torch, name)(exact, -1)
        assert isinstance(got, DTensor)
        assert got.placements[0].is_replicate() == (name == "logsumexp")
        _close(got.full_tensor().cpu(), wanted, 3e-6)
        (dx,) = torch.autograd.grad(got.pow(2).sum(), x)
        (wanted_dx,) = torch.autograd.grad(wanted.pow(2).sum(), exact)
        assert dx.placements == x.placements
        _close(dx.full_tensor().cpu(), wanted_dx, 1e-5)


def tuned(rank: int, size: int, folder: str) -> None:
    """Both time the same candidates, and another exchange finds what they stored."""
    group = begin(rank, folder, "direct")
    os.environ |= {"SOFTGEN_TUNE": "on", "SOFTGEN_TUNE_BUDGET": "10"}
    x = torch.randn(64, (4000, 3001)[rank], device="cuda", dtype=torch.bfloat16)
    whole = torch.nn.functional.pad(x.float().exp(), (0, 4000 - x.shape[1])).sum(-1)
    dist.all_reduce(whole, group=group)
    kernels = []
    for _ in range(2):
        exchange = Direct(group)
        y = exchange.softmax(x, x.dtype)
        _close(y, x.float().exp() / whole[:, None], BOUNDS[x.dtype])
        kernels.append([kernel.variant.name for kernel in exchange._kernels.values()])
    assert kernels[0] == kernels[1]
    (entry,) = [each for each in cache.entries() if each.key.problem.cols == x.shape[1]]
    assert len(entry.timings) > 1
    assert dict(entry.key.environment)["shards"] == 2


def absent(rank: int, size: int, folder: str) -> None:
    """A process that does not come ends the wait of the other, whose next call names it."""
    group = begin(rank, folder, "direct")
    vars(direct)["patience_of"] = lambda group: 0.5  # in which NCCL itself could not begin
    exchange = Direct(group)
    x = torch.randn(32, 4096, device="cuda")
    exchange.softmax(x, x.dtype)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 0:
        began = time.monotonic()
        y = exchange.softmax(x, x.dtype)
        torch.cuda.synchronize()
        assert 0.4 < time.monotonic() - began < 2
        assert y.isnan().all()
        with pytest.raises(ExchangeError, match="process 1 of the group sent no part"):
            exchange.softmax(x, x.dtype)
    dist.barrier()
