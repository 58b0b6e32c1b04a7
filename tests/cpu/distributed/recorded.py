"""What each process does in tests of PyTorch's ways around a call: compiled, autocast, wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import softgen.distributed as sd
from softgen.distributed import operators
from softgen.errors import NotSupportedError
from tests.cpu.distributed import hidden
from tests.cpu.distributed.bodies import WIDTHS, close, mine
from tests.cpu.distributed.world import process_on_cpu
from tests.helpers.torch_calls import World


def all_of_it(rank: int, size: int) -> None:
    """All checks of this file, in one pair of processes."""
    world = process_on_cpu()
    full = torch.randn(3, 4, sum(WIDTHS[size]), generator=torch.Generator().manual_seed(1))
    ids = torch.randint(0, full.shape[-1], (3, 4), generator=torch.Generator().manual_seed(2))
    compiled(full, ids, rank, size)
    hidden.compiled(rank, size)
    sound(mine(full, rank, size), ids, sum(WIDTHS[size][:rank]))
    autocast(mine(full, rank, size), ids)
    without_memory(mine(full, rank, size), ids, world)
    on_their_way(full, rank, size)
    twice(mine(full, rank, size))


def calls(ids: Any, group: Any = None) -> dict[str, Callable[[Any], Any]]:
    """Return each function of a shard, by its name."""
    several = torch.stack((ids, ids // 2), -1)
    return {
        "softmax": lambda x: sd.softmax(x, group=group),
        "log_softmax": lambda x: sd.log_softmax(x, group=group),
        "logsumexp": lambda x: sd.logsumexp(x, keepdim=True, group=group),
        "token_log_probs": lambda x: sd.token_log_probs(x, ids, group=group),
        "several": lambda x: sd.token_log_probs(x, several, temperature=0.5, group=group),
        "entropy": lambda x: sd.entropy(x, temperature=2.0, group=group),
        "with entropies": lambda x: sum(
            sd.token_log_probs(x, ids, return_entropy=True, group=group)
        ),
        "cross_entropy": lambda x: sd.cross_entropy(x, ids, z_loss=0.1, group=group),
        "smoothed": lambda x: sd.cross_entropy(x, ids, label_smoothing=0.1, group=group),
        "overwritten": lambda x: sd.cross_entropy(x * 1, ids, overwrite=True, group=group),
        "losses": lambda x: sd.cross_entropy(x, ids, reduction="none", group=group),
    }


def compiled(full: Any, ids: Any, rank: int, size: int) -> None:
    """No graph breaks; results and gradients are those of eager calls. Lengths may be dynamic."""
    every = list(calls(ids, dist.new_group(list(range(size)))).values())

    def run(x: Any) -> list[Any]:
        return [call(x * 2).float().cos() for call in every]

    torch._dynamo.reset()
    quick: Any = torch.compile(run, fullgraph=True, backend="aot_eager")
    shard = mine(full, rank, size)
    for x, bound in ((shard, 1e-6), (shard.to(torch.bfloat16), 8e-3)):
        eager_x, quick_x = (x.clone().requires_grad_() for _ in range(2))
        wanted, got = run(eager_x), quick(quick_x)
        for theirs, ours in zip(wanted, got, strict=True):
            close(ours.detach(), theirs.detach(), bound)
        for each, found in ((eager_x, wanted), (quick_x, got)):
            sum(part.sum() for part in found).backward()
            assert each.grad.abs().sum() > 0
        close(quick_x.grad, eager_x.grad, bound)
    compiled_dtensor(full, ids, size)
    dynamic: Any = torch.compile(sd.softmax, fullgraph=True, backend="aot_eager", dynamic=True)
    exact = torch.softmax(full.double(), -1)
    for rows in (slice(0, 3), slice(0, 2)):
        close(dynamic(shard[rows]), mine(exact[rows], rank, size), 3e-6)


def compiled_dtensor(full: Any, ids: Any, size: int) -> None:
    """A DTensor in, and one out."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    x = distribute_tensor(full, mesh, [Shard(2)]).requires_grad_()
    exact = full.double().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(exact.flatten(0, 1), ids.flatten())
    quick: Any = torch.compile(sd.cross_entropy, fullgraph=True, backend="aot_eager")
    loss = quick(x, ids)
    close(loss.full_tensor().detach(), wanted.detach(), 3e-6)
    loss.backward()
    wanted.backward()
    close(x.grad.full_tensor(), exact.grad, 3e-6)


def sound(x: Any, ids: Any, first: int) -> None:
    """PyTorch's own checks of operators: schema, gradient, what comes out without data."""
    x = x[0, :2].clone().requires_grad_()
    ids = ids[0, :2]
    name = dist.group.WORLD.group_name
    cases = [
        (operators.softmax, (x, torch.float32, True, name)),
        *(
            (operators.losses, (x, ids, first, -1, -100, 0.2, 0.1, overwrite, name))
            for overwrite in (False, True)
        ),
        (operators.token_log_probs, (x, ids[:, None], 0.5, None, first, name)),
        (operators.token_log_probs_entropy, (x, ids[:, None], 0.5, None, first, name)),
        (operators.entropy, (x, None, None, name)),
    ]
    states = torch.ones(2, 3).requires_grad_()
    head = torch.linspace(-1, 1, x.shape[-1] * 3).reshape(-1, 3).requires_grad_()
    bias = torch.ones(x.shape[-1]).requires_grad_()
    factors, divisor = torch.tensor([0.5, 2.0]), torch.tensor(3.0)
    for tensors, wanted, softcap in (
        ((bias, None, divisor, None), [1, 1, 1], None),
        ((bias, factors, None, None), [0, 0, 0], 2.0),
        ((None, None, None, torch.arange(sum(WIDTHS[2])) / 4), [1, 0, 0], 2.0),
    ):
        options = (first, -1, -100, 0.2, 0.1, softcap, "fast", 1, torch.float32, name)
        cases += [(operators.linear_losses, (states, head, ids, *tensors, wanted, *options))]
    for operator, given in cases:
        torch.library.opcheck(operator, given)


def autocast(x: Any, ids: Any) -> None:
    """float32 for 16 bits, as PyTorch's lists have it; a dtype that is asked for, and float64."""
    half = x.to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        for name, call in calls(ids).items():
            assert call(half).dtype is torch.float32, name
            assert call(x.double()).dtype is torch.float64, name
        for run in (sd.softmax, sd.log_softmax, sd.logsumexp, sd.entropy):
            assert run(half, dtype=torch.bfloat16).dtype is torch.bfloat16


def without_memory(x: Any, ids: Any, world: World) -> None:
    """A FakeTensor, outside of a trace, gets one of the right kind, and nothing is launched."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    found = {name: call(x) for name, call in calls(ids).items()}
    world.launches.clear()
    with FakeTensorMode() as mode:
        fake, fake_ids = mode.from_tensor(x), mode.from_tensor(ids)
        for name, call in calls(fake_ids).items():
            got = call(fake)
            assert isinstance(got, FakeTensor), name
            alike = [(t.shape, t.dtype, t.stride()) for t in (got, found[name])]
            assert alike[0] == alike[1], name
    assert world.launches == []


def on_their_way(full: Any, rank: int, size: int) -> None:
    """What a functional collective returns is waited for."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce

    x: Any = all_reduce(
        mine(full, rank, size), "sum", dist.new_group([rank], use_local_synchronization=True)
    )
    assert type(x) is AsyncCollectiveTensor
    got = sd.softmax(x)
    assert type(got) is torch.Tensor
    close(got, mine(torch.softmax(full.double(), -1), rank, size), 3e-6)


def twice(x: Any) -> None:
    """The gradient is not differentiable again, and says so."""
    for run in (sd.softmax, sd.log_softmax, sd.logsumexp, sd.entropy):
        leaf = x.clone().requires_grad_()
        (dx,) = torch.autograd.grad(run(leaf).cos().sum(), leaf, create_graph=True)
        with pytest.raises(NotSupportedError, match="leave create_graph=True out"):
            dx.sum().backward()
