"""What each process does in tests of DTensors in softgen.torch, and of models in parallel."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import softgen.torch
from softgen.errors import NotSupportedError
from softgen.torch import dtensor
from tests.cpu.distributed.bodies import close
from tests.helpers.torch_calls import World, on_cpu

mine: Any = softgen.torch


def all_of_it(rank: int, size: int) -> None:
    """All checks of this file, in one pair of processes."""
    world = on_cpu(pytest.MonkeyPatch())
    dtensors(size)
    models(rank, size, world)


PLACES = (Replicate(), Shard(0), Shard(1), Shard(2))


def dtensors(size: int) -> None:
    """Operators on DTensors, forward and back, however they are placed."""
    mesh = init_device_mesh("cpu", (size,))
    full = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(3))
    x = distribute_tensor(full, mesh, [Replicate()])
    assert dtensor.prepare(None, x)
    assert not dtensor.prepare(full)
    for place, dim in itertools.product(PLACES, (0, 2, -1)):
        along_dim(distribute_tensor(full, mesh, [place]), full, dim)
    for place in PLACES[:3]:
        of_columns(distribute_tensor(full, mesh, [place]), full)
    # Each has a part of the sum.
    parts = DTensor.from_local(full / size, mesh, [Partial()])
    got = mine.softmax(parts, -1)
    close(got.full_tensor(), torch.softmax(full.double(), -1), 3e-6)
    assert got.placements == (Replicate(),)
    with pytest.raises(NotSupportedError, match="target is a tensor beside DTensors"):
        mine.cross_entropy(x.movedim(-1, 1), torch.zeros(3, 4, dtype=torch.int64))
    with pytest.raises(NotSupportedError, match=r"with hooks takes no DTensor; .*to_local"):
        mine.softmax(x, -1, softcap=2.0)
    for place in PLACES[:2]:
        losses(mesh, place)
    fewer_rows_than_processes(mesh, full[0, :1])


def along_dim(x: Any, full: Any, dim: int) -> None:
    """What is computed along a dimension."""
    exact = full.double().requires_grad_()
    x.requires_grad_()
    dims = [dim % full.dim()]
    (place,) = x.placements
    p, log_p = torch.softmax(exact, dim), torch.log_softmax(exact, dim)
    lse = torch.logsumexp(exact, dim)
    entropy = -(p * log_p).sum(dim)
    if place.is_shard() and place.dim in dims:
        for function in (mine.softmax, mine.log_softmax, mine.logsumexp, mine.entropy):
            with pytest.raises(NotSupportedError, match=f"dimension {place.dim}.* softgen.distrib"):
                function(x, dim)
        return
    of_rows = place
    if place.is_shard():
        of_rows = Shard(place.dim - (place.dim > dims[0]))
    for got, wanted, wanted_place in (
        (mine.softmax(x, dim), p, place),
        (mine.log_softmax(x, dim, dtype=torch.float64), log_p, place),
        (mine.logsumexp(x, dim), lse, of_rows),
        (mine.entropy(x, dim), entropy, of_rows),
    ):
        assert got.placements == (wanted_place,)
        assert got.shape == wanted.shape
        assert got.to_local().stride() == got.to_local().contiguous().stride()
        close(got.full_tensor().detach(), wanted.detach(), 3e-6)
        # A gradient that is placed in another way is put in place.
        for upstream in (
            got.detach().cos(),
            got.detach().cos().redistribute(placements=[Replicate()]),
        ):
            (dx,) = torch.autograd.grad(got, x, upstream, retain_graph=True)
            (right,) = torch.autograd.grad(wanted, exact, wanted.detach().cos(), retain_graph=True)
            assert dx.placements == x.placements
            close(dx.full_tensor(), right, 1e-5)


def of_columns(x: Any, full: Any) -> None:
    """What is computed of chosen columns."""
    ops: Any = torch.ops.softgen
    exact = full.double().requires_grad_()
    x.requires_grad_()
    mesh, places = x.device_mesh, x.placements
    ids = torch.arange(24).reshape(3, 4, 2) % full.shape[-1]
    log_p = torch.log_softmax(exact, -1)
    temperature = torch.tensor([[0.5], [1.0], [2.0]])
    log_p_t = torch.log_softmax(exact / temperature[..., None], -1)
    placed = distribute_tensor(ids, mesh, places)
    of_rows = distribute_tensor(temperature.expand(3, 4).contiguous(), mesh, [Replicate()])
    one = distribute_tensor(ids[..., 0].contiguous(), mesh, [Replicate()])
    upstream = distribute_tensor(torch.linspace(-1, 2, 12).reshape(3, 4), mesh, places)
    by_id = distribute_tensor(torch.linspace(-1, 2, 24).reshape(3, 4, 2), mesh, places)
    found = (
        (mine.token_log_probs(x, placed), log_p.gather(-1, ids), by_id),
        (
            mine.token_log_probs(x, placed, temperature=of_rows),
            log_p_t.gather(-1, ids),
            by_id,
        ),
        (
            mine.cross_entropy(x.movedim(-1, 1), one, reduction="none"),
            -log_p.gather(-1, ids[..., :1])[..., 0],
            upstream,
        ),
    )
    for got, wanted, up in found:
        assert got.placements == places
        close(got.full_tensor().detach(), wanted.detach(), 3e-6)
        (dx,) = torch.autograd.grad(got, x, up, retain_graph=True)
        (right,) = torch.autograd.grad(wanted, exact, up.full_tensor().double(), retain_graph=True)
        assert dx.placements == places
        close(dx.full_tensor(), right, 1e-5)
    # Of the entropies alone, without one for the log-probabilities.
    _, entropy = mine.token_log_probs(x, placed, return_entropy=True)
    (dx,) = torch.autograd.grad(entropy, x, upstream)
    wanted, up = -(log_p.exp() * log_p).sum(-1), upstream.full_tensor().double()
    (right,) = torch.autograd.grad(wanted, exact, up, retain_graph=True)
    close(dx.full_tensor(), right, 1e-5)
    # One upstream gradient for all rows.
    options = (-100, "none", 0.0, 0.0, torch.float32, False, None)
    _, lse, *_ = ops.cross_entropy.v3(x.detach(), one, None, *options)
    number = distribute_tensor(torch.tensor(0.5), mesh, [Replicate()])
    request = (x.detach(), one, lse, number, None, None, -100, 0.0, 0.0, None)
    dx = ops.cross_entropy_backward.v3(*request)
    (right,) = torch.autograd.grad(found[2][1].sum() / 2, exact)
    close(dx.full_tensor(), right, 1e-5)


def losses(mesh: Any, place: Any) -> None:
    """Losses of rows in uneven shards, reduced over all of them."""
    full = torch.randn(7, 5, generator=torch.Generator().manual_seed(4))
    classes = torch.tensor([0, 1, -100, 4, 3, -100, 2])
    weights = torch.linspace(0.5, 2, 5)
    x, target = (distribute_tensor(each, mesh, [place]) for each in (full, classes))
    x.requires_grad_()
    exact = full.double().requires_grad_()
    weight = distribute_tensor(weights, mesh, [Replicate()])
    for reduction in ("mean", "sum", "none"):
        for options, theirs in (
            ({}, {}),
            ({"label_smoothing": 0.1}, {"label_smoothing": 0.1}),
            ({"weight": weight}, {"weight": weights.double()}),
        ):
            got = mine.cross_entropy(x, target, reduction=reduction, **options)
            wanted = torch.nn.functional.cross_entropy(
                exact, classes, reduction=reduction, **theirs
            )
            close(got.full_tensor().detach(), wanted.detach(), 3e-6)
            (dx,) = torch.autograd.grad(got.sum(), x)
            (right,) = torch.autograd.grad(wanted.sum(), exact)
            assert dx.placements == x.placements
            close(dx.full_tensor(), right, 1e-5)


def fewer_rows_than_processes(mesh: Any, full: Any) -> None:
    """A process without a row has a DTensor as the others have, which may wait for it."""
    ids = torch.tensor([2])
    x, placed = (distribute_tensor(each, mesh, [Shard(0)]) for each in (full, ids))
    for given in (x, x.detach().requires_grad_()):
        for run in (
            lambda x, ids: mine.logsumexp(x, -1),
            lambda x, ids: mine.entropy(x),
            mine.token_log_probs,
            lambda x, ids: mine.token_log_probs(x, ids, return_entropy=True)[1],
            lambda x, ids: mine.cross_entropy(x, ids, reduction="none"),
        ):
            got = run(given, placed)
            assert isinstance(got, DTensor)
            close(got.full_tensor().detach(), run(full, ids), 3e-6)


class Model(torch.nn.Module):  # type: ignore[misc]
    """A language model of one layer, whose softmax and loss are softgen's, or PyTorch's own."""

    def __init__(self, functions: Any) -> None:
        super().__init__()
        self.functions = functions
        self.words = torch.nn.Embedding(11, 8)
        self.queries, self.keys = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 11)

    def forward(self, words: Any, target: Any) -> Any:
        x = self.words(words)
        scores = self.queries(x) @ self.keys(x).mT
        x = x + self.functions.softmax(scores, dim=-1) @ x
        return self.functions.cross_entropy(self.head(x).flatten(0, 1), target.flatten())


def models(rank: int, size: int, world: World) -> None:
    """DDP and FSDP2, each process with its sequences, take the steps of one process with all."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    theirs: Any = torch.nn.functional
    mesh = init_device_mesh("cpu", (size,))
    words, target = torch.randint(0, 11, (2, 4, 3), generator=torch.Generator().manual_seed(5))
    here = slice(rank * 2, rank * 2 + 2)
    torch.manual_seed(6)
    exact = Model(theirs)
    start = {name: each.clone() for name, each in exact.state_dict().items()}
    steps_of(exact, lambda: exact(words, target))

    def sharded(model: Any) -> Any:
        for layer in (model.queries, model.keys, model.head):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    for parallel, patched in itertools.product((DistributedDataParallel, sharded), (False, True)):
        model = Model(theirs if patched else softgen.torch)
        model.load_state_dict(start)
        if patched:
            softgen.torch.patch()
        try:
            run = parallel(model)
            world.launches.clear()
            steps_of(run, lambda run=run: run(words[here], target[here]))
        finally:
            softgen.torch.unpatch()
        assert patched or {"softmax", "softmax_backward"} < set(world.launches)
        for got, wanted in zip(model.parameters(), exact.parameters(), strict=True):
            whole = got.full_tensor() if dtensor.is_dtensor(got) else got
            close(whole.detach(), wanted.detach(), 1e-5)


def steps_of(model: Any, loss: Any) -> None:
    """Take two steps."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for _ in range(2):
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
