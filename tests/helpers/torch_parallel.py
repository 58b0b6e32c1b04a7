"""One process of a group that trains a model.

Its head is each function of softgen.torch, or PyTorch's; kernels are those of the stand-in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

import softgen.torch as mine
from tests.helpers.torch_calls import World, on_cpu
from tests.helpers.torch_functions import COLS, FUNCTIONS, columns, drawn, same

ROWS = 4


class Model(torch.nn.Module):  # type: ignore[misc]
    """Two layers, then each function of their result, softgen's or PyTorch's."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = torch.nn.ModuleList(torch.nn.Linear(COLS, COLS, bias=False) for _ in range(2))
        for seed, layer in enumerate(self.layers):
            with torch.no_grad():
                layer.weight.copy_(drawn(COLS, COLS, seed=seed) / 4)

    def forward(self, x: Any, ids: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        heads = [getattr(pair, self.kind)(x, ids) for pair in FUNCTIONS.values()]
        return sum(head.square().mean() for head in heads)


def ddp(model: Any, size: int) -> Any:
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp2(model: Any, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2_of_the_head(model: Any, size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.head, mesh=init_device_mesh("cpu", (size,)))
    return fsdp2(model, size)


def step(model: Any, rank: int) -> Any:
    """Return the loss, and the whole gradients."""
    x, ids = drawn(ROWS, COLS, seed=10 + rank), columns(ROWS, seed=20 + rank)
    loss = model(x, ids)
    loss.backward()
    grads = [parameter.grad for parameter in model.parameters()]
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in grads]
    return loss.detach(), *whole


class Headed(torch.nn.Module):  # type: ignore[misc]
    """A layer, then softgen's head and its loss, or PyTorch's."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = torch.nn.ModuleList([torch.nn.Linear(COLS, COLS)])
        self.head = mine.LinearCrossEntropy(COLS, 67, bias=True, chunk=3)
        with torch.no_grad():
            for seed, each in enumerate(self.parameters()):
                each.copy_(drawn(*each.shape, seed=seed) / 2)

    def forward(self, x: Any, ids: Any) -> Any:
        x = self.layers[0](x)
        if self.kind == "ours":
            return self.head(x, ids)
        return torch.nn.functional.cross_entropy(self.head.linear(x), ids)


def trained(make: Any, ways: Sequence[Any], rank: int, size: int) -> Iterator[Any]:
    """Yield the way after each step, which has to be that of one process with all sequences."""
    alone = [step(make("theirs"), each) for each in range(size)]
    gradients = [sum(each) / size for each in zip(*(grads for _, *grads in alone), strict=True)]
    for wrap in ways:
        model = wrap(make("ours"), size)
        for _ in range(2):
            model.zero_grad()
            same(step(model, rank), (alone[rank][0], *gradients))
            yield wrap


def train(rank: int, size: int) -> None:
    """Compare each way to train with PyTorch's functions, whose kernels are launched."""
    world: World = on_cpu(pytest.MonkeyPatch())
    for wrap in trained(Model, (ddp, fsdp2), rank, size):
        for name in FUNCTIONS:
            assert [each for each in world.launches if each.startswith(name)], (wrap, name)
        world.launches.clear()


def train_head(rank: int, size: int) -> None:
    """Compare a head that is trained in each way with PyTorch's."""
    on_cpu(pytest.MonkeyPatch())
    assert len([*trained(Headed, (ddp, fsdp2, fsdp2_of_the_head), rank, size)]) == 6
