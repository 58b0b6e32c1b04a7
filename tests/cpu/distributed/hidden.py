"""What each process does in tests of losses from hidden states, whose weight lies in shards."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import softgen.distributed as sd
import softgen.torch
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from tests.cpu.distributed.bodies import close, same_bits, sending
from tests.cpu.distributed.world import process_on_cpu
from tests.helpers.emulated_kernel import emulate

# How many classes each process has: uneven, none, and more than a tile of products.
SHARDS: dict[int, list[tuple[int, ...]]] = {
    2: [(6, 8), (0, 9), (71, 66)],
    3: [(5, 0, 9)],
    4: [(3, 0, 7, 2)],
}
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


class Layer:
    """A last layer and its rows, whole.

    Attributes:
        x: hidden states.
        weight: of all processes.
        target: classes, of which some are ignored.
    """

    def __init__(self, classes: int, dtype: Any = torch.float32) -> None:
        made = torch.Generator().manual_seed(classes)
        self.x = torch.randn(4, 6, 5, generator=made).to(dtype)
        self.weight = torch.randn(classes, 5, generator=made).to(dtype)
        self.target = torch.randint(0, classes, (4, 6), generator=made)
        self.target[0, :3] = -100

    def beside(self) -> tuple[Any, Any]:
        """Return a bias, and weights of classes of which one is 0."""
        made = torch.Generator().manual_seed(1)
        bias = torch.randn(len(self.weight), generator=made).to(self.x.dtype)
        return bias, torch.arange(len(self.weight)) / 4

    def right(self, reduction: str, smoothing: float, z_loss: float) -> tuple[Any, Any, Any]:
        """Return the loss of one process in float64, and the gradients of it times `factors`."""
        x, weight = (each.double().requires_grad_() for each in (self.x, self.weight))
        logits = (x @ weight.T).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(
            *(logits, self.target.flatten()), reduction="none", label_smoothing=smoothing
        )
        counts = (self.target != -100).flatten()
        loss = loss + z_loss * torch.where(counts, torch.logsumexp(logits, -1), 0).square()
        if reduction == "none":
            loss = loss.reshape(self.target.shape)
        else:
            loss = loss.sum() / (counts.sum() if reduction == "mean" else 1)
        dx, dweight = torch.autograd.grad(loss, (x, weight), factors(loss))
        return loss.detach(), dx, dweight


def factors(loss: Any) -> Any:
    """Return what losses are times in what is differentiated."""
    of = {"dtype": loss.dtype, "device": loss.device}
    return torch.linspace(3, 1, loss.numel(), **of).reshape(loss.shape)


def all_of_it(rank: int, size: int) -> None:
    """All checks of this file but those of compiled calls and of the kernels' texts."""
    process_on_cpu()
    for widths in SHARDS[size]:
        as_one_process(rank, widths, dist.new_group())
    counted(rank, size)
    what_is_wanted(rank, size)
    nothing_counts(rank, size)
    if size == 2:
        dtensors(size)
        autocast(rank, size)
        refused()


def as_one_process(rank: int, widths: tuple[int, ...], group: Any) -> None:
    """Losses and gradients, in chunks of 1 row, of 7 and of all."""
    here = slice(sum(widths[:rank]), sum(widths[: rank + 1]))
    for dtype, reduction, (smoothing, z_loss) in itertools.product(
        BOUNDS, ("mean", "sum", "none"), ((0.0, 0.0), (0.2, 1e-2))
    ):
        layer, bound = Layer(sum(widths), dtype), BOUNDS[dtype]
        loss, dx, dweight = layer.right(reduction, smoothing, z_loss)
        # Of 16 bits a gradient is rounded in each process, and the logits are.
        loose = bound * (1 + float(dweight.abs().max()))
        for chunk in (1, 7, None) if dtype is torch.float32 else (7,):
            x = layer.x.clone().requires_grad_()
            weight = layer.weight[here].clone().requires_grad_()
            got = sd.linear_cross_entropy(
                *(x, weight, layer.target),
                reduction=reduction,
                label_smoothing=smoothing,
                z_loss=z_loss,
                chunk=chunk,
                group=group,
                accumulate=torch.float64 if dtype is torch.float64 else torch.float32,
            )
            assert got.dtype is dtype
            close(got.detach(), loss, bound)
            same_bits(got)
            for retain in (True, False):  # the second time gradients are made again
                found = torch.autograd.grad(got, (x, weight), factors(got), retain_graph=retain)
                for each, exact in zip(found, (dx, dweight[here]), strict=True):
                    assert each.dtype is dtype
                    close(each, exact, loose)
                same_bits(found[0])


def counted(rank: int, size: int) -> None:
    """What is sent: what cross_entropy sends of each chunk, and the gradient of hidden states."""
    layer = Layer(4 * size)
    x, weight = layer.x.requires_grad_(), layer.weight.chunk(size)[rank].requires_grad_()
    chunks = [("gather", 12 * rows) for rows in (10, 10, 4)]
    of_x = ("reduce", layer.x.numel() * 4)
    with sending() as sent:
        for reduction, given, forward, backward in (
            ("mean", x, [*chunks, of_x], []),
            ("none", x, chunks, [of_x]),
            ("sum", x.detach(), chunks, []),
        ):
            sent.clear()
            options: dict[str, Any] = {"chunk": 10, "offset": 4 * rank, "reduction": reduction}
            loss = sd.linear_cross_entropy(given, weight, layer.target, **options)
            assert sent == forward
            sent.clear()
            loss.sum().backward()
            assert sent == backward


def taken(rank: int, size: int) -> None:
    """What softgen.torch takes beside: against float64, and against one process."""
    process_on_cpu()
    for widths, dtype in itertools.product(SHARDS[size], BOUNDS):
        here, layer = slice(sum(widths[:rank]), sum(widths[: rank + 1])), Layer(sum(widths), dtype)
        bias, weights = layer.beside()
        counting = int((layer.target != -100).sum())
        smoothed = {"weight": weights, "label_smoothing": 0.2}
        group = dist.new_group()
        for given, reduction in (
            ({}, "mean"),
            ({"num_items": 7}, "mean"),
            ({"num_items": torch.tensor([2.5])}, "mean"),
            *(({"weight": weights}, each) for each in ("mean", "sum", "none")),
            *(({"valid_rows": counting}, each) for each in ("mean", "none")),
            ({"valid_rows": 4}, "sum"),
            ({"valid_rows": counting, "weight": weights, "z_loss": 1e-2}, "mean"),
            ({"num_items": 3, "weight": weights, "valid_rows": counting}, "mean"),
            ({"num_items": 9, "valid_rows": counting, "label_smoothing": 0.2}, "mean"),
            *(({"softcap": 1.5}, each) for each in ("mean", "sum", "none")),
            ({"softcap": 1.5, "label_smoothing": 0.2, "z_loss": 1e-2}, "mean"),
            ({"softcap": 0.5, "weight": weights}, "none"),
            *(({**smoothed, "z_loss": 1e-2}, each) for each in ("mean", "sum", "none")),
            ({**smoothed, "softcap": 1.5, "num_items": 5, "valid_rows": counting}, "mean"),
            ({**smoothed, "label_smoothing": 1.0, "softcap": 1.5}, "none"),
        ):
            options: dict[str, Any] = {"reduction": reduction, "chunk": 7, **given}
            options["accumulate"] = torch.float64 if dtype is torch.float64 else torch.float32
            wanted, *of_wanted = exact_of(layer, bias, reduction, given)
            leaves = [each.clone().requires_grad_() for each in (layer.x, layer.weight, bias)]
            x, weight, shift = leaves
            one = softgen.torch.linear_cross_entropy(
                x, weight, layer.target, linear_bias=shift, **options
            )
            of_one = torch.autograd.grad(one, leaves, factors(one))
            shards = (layer.x, layer.weight[here], bias[here])
            leaves = [each.clone().requires_grad_() for each in shards]
            x, weight, shift = leaves
            got = sd.linear_cross_entropy(
                x, weight, layer.target, linear_bias_local=shift, group=group, **options
            )
            same_bits(got)
            assert got.dtype is dtype
            close(got.detach(), wanted, BOUNDS[dtype])
            close(got.detach(), one.detach(), BOUNDS[dtype])
            for retain in (True, False):  # the second time gradients are made again
                found = torch.autograd.grad(got, leaves, factors(got), retain_graph=retain)
                for i, each in enumerate(found):
                    assert each.dtype is dtype
                    loose = BOUNDS[dtype] * (1 + float(of_wanted[i].abs().max()))
                    for right in (of_wanted[i], of_one[i]):
                        close(each, right[here] if i else right, loose)


def exact_of(layer: Layer, bias: Any, reduction: str, given: dict[str, Any]) -> tuple[Any, ...]:
    """Return the loss of one process in float64, and the gradients of it times `factors`."""
    leaves = [each.double().requires_grad_() for each in (layer.x, layer.weight, bias)]
    x, weight, shift = leaves
    logits, target = (x @ weight.T + shift).flatten(0, 1), layer.target.flatten()
    if "softcap" in given:
        logits = given["softcap"] * torch.tanh(logits / given["softcap"])
    of_classes, z_loss = given.get("weight"), given.get("z_loss", 0.0)
    counts = target != -100
    if "valid_rows" in given:  # any that count beyond so many are left out too
        counts = counts & (counts.cumsum(0) <= given["valid_rows"])
    loss = torch.nn.functional.cross_entropy(
        *(logits, target.where(counts, torch.tensor(-100))),
        reduction="none",
        weight=None if of_classes is None else of_classes.double(),
        label_smoothing=given.get("label_smoothing", 0.0),
    )
    shares = counts.double()
    if of_classes is not None:
        shares = shares * of_classes.double()[target.clamp(0)]
    loss = loss + z_loss * shares * torch.logsumexp(logits, -1).square()
    if reduction == "none":
        loss = loss.reshape(layer.target.shape)
    else:
        loss = loss.sum()
        if reduction == "mean":
            loss = loss / float(given.get("num_items", shares.sum()))
    return loss.detach(), *torch.autograd.grad(loss, leaves, factors(loss))


def what_is_wanted(rank: int, size: int) -> None:
    """Gradients of either alone, and of none."""
    layer = Layer(4 * size)
    mine = layer.weight.chunk(size)[rank]
    _, dx, dweight = layer.right("sum", 0.0, 0.0)
    x, weight = layer.x.clone().requires_grad_(), mine.clone().requires_grad_()
    for reduction in ("sum", "none"):
        options: dict[str, Any] = {"reduction": reduction, "chunk": 5}
        loss = sd.linear_cross_entropy(x, mine, layer.target, **options).sum() * 3
        (got,) = torch.autograd.grad(loss, x)
        loss = sd.linear_cross_entropy(layer.x, weight, layer.target, **options).sum() * 3
        (got_weight,) = torch.autograd.grad(loss, weight)
        bias = torch.zeros(4).requires_grad_()
        options["linear_bias_local"] = bias
        loss = sd.linear_cross_entropy(layer.x, mine, layer.target, **options).sum() * 3
        (of_bias,) = torch.autograd.grad(loss, bias)
        logits = (layer.x @ layer.weight.T).flatten(0, 1).double().requires_grad_()
        loss = torch.nn.functional.cross_entropy(logits, layer.target.flatten(), reduction="sum")
        (dlogits,) = torch.autograd.grad(loss * 3, logits)
        close(of_bias, dlogits.sum(0).chunk(size)[rank], 1e-5)
        del options["linear_bias_local"]
        close(got, dx, 1e-5)
        close(got_weight, dweight.chunk(size)[rank], 1e-5)
        found = sd.linear_cross_entropy(layer.x, mine, layer.target, **options)
        assert not found.requires_grad
        with torch.no_grad():
            assert not sd.linear_cross_entropy(x, weight, layer.target, **options).requires_grad
    loss = sd.linear_cross_entropy(x, weight, layer.target)
    (again,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(NotSupportedError, match="leave create_graph=True out"):
        again.sum().backward()


def nothing_counts(rank: int, size: int) -> None:
    """No rows, rows that are all ignored, and a class of nobody."""
    layer = Layer(4 * size)
    weight = layer.weight.chunk(size)[rank].clone().requires_grad_()
    options: dict[str, Any]
    smoothed = {"weight": torch.arange(4.0 * size), "label_smoothing": 0.2}
    for more in ({}, {"softcap": 2.0}, smoothed, {**smoothed, "softcap": 2.0}):
        layer.target[1, 1] = 0
        none = sd.linear_cross_entropy(
            *(layer.x[:0], weight, layer.target[:0]), reduction="sum", **more
        )
        assert none.item() == 0
        (dweight,) = torch.autograd.grad(none, weight)
        assert not dweight.any()
        loss = sd.linear_cross_entropy(
            *(layer.x, weight, torch.full_like(layer.target, -100)), **more
        )
        assert loss.isnan()
        (dweight,) = torch.autograd.grad(loss, weight)
        assert not dweight.any()
        layer.target[1, 1] = 4 * size
        options = {"reduction": "none", **more}
        rows = sd.linear_cross_entropy(layer.x, weight, layer.target, **options)
        assert rows.isnan().nonzero().tolist() == [[1, 1]]
        broken = layer.x.clone()
        broken[0, 0] = torch.nan  # of a row that is ignored
        broken.requires_grad_()
        rows = sd.linear_cross_entropy(broken, weight, layer.target, **options)
        assert rows.isnan().nonzero().tolist() == [[1, 1]]
        (dx,) = torch.autograd.grad(rows[0].sum(), broken)
        assert not dx[0, 0].any()


def dtensors(size: int) -> None:
    """A weight that is sharded along its first dimension, evenly and not."""
    mesh = init_device_mesh("cpu", (size,))
    for classes in (8, 7, 1):
        layer = Layer(classes)
        loss, dx, dweight = layer.right("mean", 0.1, 0.0)
        x = layer.x.clone().requires_grad_()
        weight = distribute_tensor(layer.weight, mesh, [Shard(0)]).requires_grad_()
        got = sd.linear_cross_entropy(x, weight, layer.target, label_smoothing=0.1)
        close(got.detach(), loss, 1e-5)
        found = torch.autograd.grad(got, (x, weight), factors(got))
        close(found[0], dx, 1e-5)
        assert found[1].placements == weight.placements
        close(found[1].full_tensor(), dweight, 1e-5)
        shift, weights = layer.beside()
        bias = distribute_tensor(shift, mesh, [Shard(0)]).requires_grad_()
        given = {"linear_bias_local": bias, "weight": weights + 1}
        got = sd.linear_cross_entropy(x, weight, layer.target, **given)
        wanted, dx, dweight, dbias = exact_of(layer, shift, "mean", {"weight": weights + 1})
        close(got.detach(), wanted, 1e-5)
        found = torch.autograd.grad(got, (x, weight, bias), factors(got))
        close(found[0], dx, 1e-5)
        close(found[1].full_tensor(), dweight, 1e-5)
        close(found[2].full_tensor(), dbias, 1e-5)
    whole = distribute_tensor(layer.weight, mesh, [Replicate()])
    with pytest.raises(NotSupportedError, match="first dimension of a DTensor must be sharded"):
        sd.linear_cross_entropy(x, whole, layer.target)
    with pytest.raises(NotSupportedError, match=r"pass full_tensor\(\) of a DTensor"):
        sd.linear_cross_entropy(whole, weight, layer.target)


def compiled(rank: int, size: int) -> None:
    """No graph breaks, and the results of an eager call."""
    layer = Layer(9)
    group = dist.new_group()  # which asks anew: not all processes have other columns than before
    torch._dynamo.reset()
    bias, weights = layer.beside()
    for reduction, more in (
        ("mean", {"label_smoothing": 0.1}),
        ("none", {"label_smoothing": 0.1}),
        ("mean", {"weight": weights}),
        ("mean", {"num_items": torch.tensor(5), "valid_rows": 21}),
        ("mean", {"softcap": 1.5, "weight": weights, "label_smoothing": 0.2}),
    ):
        call: Any = torch.compile(sd.linear_cross_entropy, fullgraph=True, backend="aot_eager")
        options: dict[str, Any] = {"z_loss": 1e-3, "reduction": reduction, **more}
        loss, *exact = exact_of(layer, bias, reduction, options)
        shards = (each.tensor_split(size)[rank] for each in (layer.weight, bias))
        leaves = [each.clone().requires_grad_() for each in (layer.x, *shards)]
        x, weight, shift = leaves
        options |= {"linear_bias_local": shift, "chunk": 7, "group": group}
        got = call(x, weight, layer.target, **options)
        close(got.detach(), loss, 1e-5)
        found = torch.autograd.grad(got, leaves, factors(got))
        close(found[0], exact[0], 1e-5)
        for each, right in zip(found[1:], exact[1:], strict=True):
            close(each, right.tensor_split(size)[rank], 1e-5)


def autocast(rank: int, size: int) -> None:
    """Products of 16 bits, and a loss of 32."""
    layer = Layer(8)
    x, weight = layer.x.requires_grad_(), layer.weight.chunk(size)[rank].requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = sd.linear_cross_entropy(x, weight, layer.target)
    assert loss.dtype is torch.float32
    found = torch.autograd.grad(loss, (x, weight))
    assert {each.dtype for each in found} == {torch.float32}
    close(loss.detach(), layer.right("mean", 0.0, 0.0)[0], 3e-2)


def refused() -> None:
    """What is told of arguments that do not fit."""
    layer, weights = Layer(4), torch.ones(8)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"reduction": "means"}, InvalidValueError, "did you mean"),
        ({"mode": "slow"}, InvalidValueError, "mode"),
        ({"chunk": 0}, InvalidValueError, "at least 1 row, got 0"),
        ({"accumulate": torch.float16}, InvalidTypeError, r"must be torch\.float32"),
        ({"label_smoothing": 2}, InvalidValueError, "must be from 0 to 1, got 2"),
        ({"target": layer.target[0]}, InvalidValueError, r"the shape \(4, 6\), got \(6,\)"),
        ({"target": layer.x}, InvalidTypeError, r"int32 or int64, got torch\.float32"),
        ({"input": layer.x.double()}, InvalidTypeError, "must be of input's dtype"),
        ({"linear_weight_local": layer.x[0, 0]}, InvalidValueError, r"\(classes, hidden\)"),
        ({"linear_bias_local": torch.zeros(5)}, InvalidValueError, r"shape \(4,\), got \(5,\)"),
        ({"weight": torch.ones(4)}, InvalidValueError, r"an element a class, \(8,\), got \(4,\)"),
        ({"weight": weights.requires_grad_()}, NotSupportedError, r"pass weight\.detach\(\)"),
        ({"num_items": 3, "reduction": "sum"}, InvalidValueError, "num_items is of a mean"),
        ({"softcap": 0}, InvalidValueError, "softcap must be"),
    ]
    right = {"input": layer.x, "linear_weight_local": layer.weight, "target": layer.target}
    for given, error, told in wrong:
        with pytest.raises(error, match=told):
            sd.linear_cross_entropy(**{**right, **given})


def emulated(rank: int, size: int, programs: Path) -> None:
    """The texts of the kernels on the emulator."""
    emulate(process_on_cpu(), programs)
    layer = Layer(12)
    loss, dx, dweight = layer.right("mean", 0.25, 1e-3)
    x, weight = layer.x.requires_grad_(), layer.weight.chunk(size)[rank].requires_grad_()
    options: dict[str, Any] = {"label_smoothing": 0.25, "z_loss": 1e-3, "chunk": 12}
    got = sd.linear_cross_entropy(x, weight, layer.target, **options)
    close(got.detach(), loss, 1e-5)
    found = torch.autograd.grad(got, (x, weight), factors(got))
    close(found[0], dx, 1e-5)
    close(found[1], dweight.chunk(size)[rank], 1e-5)
