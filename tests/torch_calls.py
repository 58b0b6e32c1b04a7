"""`python -m tests.torch_calls 1000`: so many random calls of each function of softgen.torch.

Each is made beside PyTorch's own, forward and backward: dtype, shape and strides have to be
PyTorch's, and values within the bounds of docs/numerics.md of what PyTorch computes in float64. On
a CPU a stand-in of the kernels serves them (tests/helpers/torch_calls.py), `--device cuda` takes a
GPU. What softgen refuses is counted by reason.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import softgen.torch as mine
from softgen.errors import NotSupportedError

SEED = 33
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)
F = torch.nn.functional
Function = Callable[[Any], Any]


@dataclass
class Call:
    """A call that was drawn.

    Attributes:
        text: what is called.
        x: its first argument.
        ours: softgen's function, of x.
        theirs: PyTorch's, of x: what its caller would write.
        exact: the same of x in float64, without options that round.
        size: size(x, results) of `exact`: how large what a bound counts is, for each result.
        terms: terms(x, results, upstreams): the same for the gradient.
        strided: whether PyTorch promises the strides of the result.
        of_result: returns the gradient from our result and the upstream, where it starts from a
            result that is rounded; else autograd of `exact` is right.
        tracked: whether the gradient is asked for.
        autocast: whether it runs under torch.autocast.
        times: how often it is made: later ones are warm.
    """

    text: str
    x: Any
    ours: Function
    theirs: Function
    exact: Function
    size: Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]
    terms: Callable[[Any, tuple[Any, ...], tuple[Any, ...]], Any]
    strided: bool = False
    of_result: Callable[[Any, Any], Any] | None = None
    tracked: bool = False
    autocast: bool = False
    times: int = 1


@dataclass
class Report:
    """What was called.

    Attributes:
        served: how many calls of each function were compared.
        gradients: how many gradients.
        refused: of each function, how many calls by what softgen said.
        both: how many calls neither takes.
        more: how many softgen takes where PyTorch has an error, by its text.
        wrong: a line for each that differs.
    """

    served: Counter[str] = field(default_factory=Counter)
    gradients: Counter[str] = field(default_factory=Counter)
    refused: dict[str, Counter[str]] = field(default_factory=dict)
    both: Counter[str] = field(default_factory=Counter)
    more: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = []
        for name in NAMES:
            refused = self.refused.get(name, Counter())
            lines.append(
                f"{name}: {self.served[name]} served, {self.gradients[name]} gradients, "
                f"{sum(refused.values())} refused, {self.both[name]} that PyTorch refuses too"
            )
            lines += [f"    {count} {reason}" for reason, count in refused.most_common()]
        lines += [f"served, and not by PyTorch: {n} {text}" for text, n in self.more.most_common()]
        lines.append(f"{len(self.wrong)} differ, in {self.seconds:.0f} s")
        return "\n".join(lines)


class Draw:
    """Random choices of one call."""

    def __init__(self, seed: int, name: str, number: int, device: str) -> None:
        self.random = torch.Generator().manual_seed(
            seed * 1_000_003 + NAMES.index(name) * 100_003 + number
        )
        self.device = device
        self.words: list[str] = []

    def chance(self, p: float) -> bool:
        return float(torch.rand((), generator=self.random)) < p

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from low to high - 1."""
        return int(torch.randint(low, high, (), generator=self.random))

    def of(self, choices: Sequence[Any]) -> Any:
        return choices[self.whole(0, len(choices))]

    def shape(self, least: int = 0) -> tuple[int, ...]:
        """Return 0 to 4 dimensions: some of length 0 or 1, one at times longer."""
        sizes = [self.of((1, 2, 3, 4, 5, 7)) for _ in range(self.whole(least, 5))]
        if sizes and self.chance(0.5):
            sizes[self.whole(0, len(sizes))] = self.of((1, 8, 17, 33, 64, 130, 300))
        if sizes and self.chance(0.08):
            sizes[self.whole(0, len(sizes))] = 0
        return tuple(sizes)

    def dim(self, ndim: int) -> int:
        """Return any of the dimensions, negative ones too, and at times one that is not there."""
        if self.chance(0.02):
            return ndim + 1 if self.chance(0.5) else -ndim - 2
        return self.whole(-max(ndim, 1), max(ndim, 1))

    def dims(self, ndim: int) -> Any:
        """Return one dimension, or a tuple of several, or of none, which is all."""
        if self.chance(0.6):
            return self.dim(ndim)
        order = torch.randperm(ndim, generator=self.random).tolist()
        found = order[: self.whole(0, ndim + 1)]
        return tuple(each - ndim if self.chance(0.3) else each for each in found)

    def numbers(self, shape: Sequence[int]) -> Any:
        return torch.randn(*[tuple(shape)], generator=self.random, dtype=torch.float64)

    def values(self, shape: tuple[int, ...]) -> Any:
        """Return elements of several sizes, with -inf among them, rows of it, and worse."""
        x = self.numbers(shape) * self.of((0.01, 1.0, 1.0, 5.0, 30.0))
        if self.chance(0.25):
            x[torch.rand(shape, generator=self.random) < self.of((0.1, 0.5, 0.9))] = -math.inf
        if x.dim() and self.chance(0.15):
            dim = self.whole(0, x.dim())
            hidden = (
                torch.rand(shape, generator=self.random).amax(dim, True) < 0.8 if x.numel() else 0
            )
            x = x.masked_fill(torch.as_tensor(hidden, dtype=torch.bool), -math.inf)
        if x.numel() and self.chance(0.04):
            x.view(-1)[self.whole(0, x.numel())] = self.of((math.nan, math.inf))
        return x

    def tensor(self, values: Any, dtype: Any) -> Any:
        """Return values in any memory: in order, transposed, part of more, one for many."""
        x = values.to(dtype).to(self.device)
        kind = self.of(("", "", "", "transposed", "every second", "not aligned", "expanded"))
        if not x.dim():
            kind = ""
        if kind == "transposed":
            order = torch.randperm(x.dim(), generator=self.random).tolist()
            back = [order.index(dim) for dim in range(x.dim())]
            x = x.permute(order).contiguous().permute(back)
        elif kind == "every second":
            dim = self.whole(0, x.dim())
            x = torch.stack([x, x], dim + 1).flatten(dim, dim + 1)
            index = [slice(None)] * x.dim()
            index[dim] = slice(self.of((0, 1)), None, 2)
            x = x[tuple(index)]
        elif kind == "not aligned":
            x = torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)
        elif kind == "expanded" and x.numel():
            dim = self.whole(0, x.dim())
            x = x.narrow(dim, 0, 1).expand(x.shape)
        if kind:
            self.words.append(kind)
        return x

    def like(self, y: Any) -> Any:
        """Return an upstream gradient for y, in any memory."""
        return self.tensor(self.numbers(y.shape), y.dtype)


def _shown(draw: Draw, function: str, x: Any, **options: Any) -> str:
    told = {
        key: f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }
    words = f" ({', '.join(draw.words)})" if draw.words else ""
    return f"{function}({x.dtype} {tuple(x.shape)} {x.stride()}{words}, {told})"


def _finite(x: Any) -> Any:
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def _x(draw: Draw, least: int = 0) -> Any:
    return draw.tensor(draw.values(draw.shape(least)), draw.of(FLOATS))


def _along(draw: Draw, name: str) -> Call:
    """softmax and log_softmax."""
    x = _x(draw)
    options: dict[str, Any] = {"dim": None if draw.chance(0.06) else draw.dim(x.dim())}
    if draw.chance(0.3):
        options["dtype"] = draw.of(FLOATS)
    dim = options["dim"]
    if dim is None:
        dim = 0 if x.dim() in (0, 1, 3) else 1
    ours, theirs, of = getattr(mine, name), getattr(F, name), getattr(torch, name)
    log, out = name == "log_softmax", options.get("dtype", x.dtype)

    def size(x: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
        (y,) = map(_finite, results)
        if log:
            return (1 + y.abs(),)
        if out is not torch.float64:
            return (y.clamp(min=1e-30),)
        floor = y.clamp(min=1e-290)
        return (floor * (1 + floor.log().abs() / 90),)

    def from_result(y: Any, dy: Any) -> Any:
        if log:
            return dy - y.exp() * dy.sum(dim, True)
        return y * (dy - (y * dy).sum(dim, True))

    def terms(x: Any, results: tuple[Any, ...], upstreams: tuple[Any, ...]) -> Any:
        (y,), (dy,) = map(_finite, results), (each.abs() for each in upstreams)
        if log:
            return dy + y.exp() * dy.sum(dim, True)
        return y * (dy + (y * dy).sum(dim, True))

    return Call(
        _shown(draw, name, x, **options),
        x,
        lambda x: ours(x, **options),
        lambda x: theirs(x, **options),
        lambda x: of(x, dim),
        size,
        terms,
        strided=True,
        of_result=from_result,
    )


def _of_rows(draw: Draw, name: str) -> Call:
    """logsumexp and entropy."""
    x = _x(draw)
    dim, keepdim = draw.dims(x.dim()), draw.chance(0.3)
    options: dict[str, Any] = {"dim": dim, "keepdim": keepdim}
    dtype = draw.of(FLOATS) if name == "entropy" and draw.chance(0.3) else None
    if dtype:
        options["dtype"] = dtype
    ours = getattr(mine, name)
    dims = dim if isinstance(dim, int) else dim or tuple(range(x.dim()))

    def entropy(x: Any) -> Any:
        log_p = x - torch.logsumexp(x, dims, True)
        found = -(log_p.exp() * log_p.masked_fill(log_p == -math.inf, 0.0)).sum(dims, keepdim)
        if x.shape and not math.prod(x.shape[dim] for dim in _tuple(dims)):
            found = found * math.nan  # of no column, as of nothing but -inf
        return found.to(dtype or found.dtype)

    def lse(x: Any) -> Any:
        return torch.logsumexp(x, dim, keepdim)

    def terms(x: Any, results: tuple[Any, ...], upstreams: tuple[Any, ...]) -> Any:
        lse = torch.logsumexp(x, dims, True)
        p, g = (x - lse).exp(), upstreams[0].abs().reshape(lse.shape)
        log_p, about = _finite(x - lse).abs(), 1 + _finite(lse).abs() + _finite(x).abs()
        if name == "entropy":  # of which log p is a factor
            about = about * (1 + log_p + _finite(results[0]).abs().reshape(lse.shape))
        return p * g * about

    theirs = entropy if name == "entropy" else lse
    return Call(
        _shown(draw, name, x, **options),
        x,
        lambda x: ours(x, **options),
        theirs,
        theirs if dtype is None else lambda x: entropy(x.double()).double(),
        lambda x, results: (1 + _finite(results[0]).abs(),),
        terms,
    )


def _of_ids(draw: Draw, name: str) -> Call:
    """token_log_probs."""
    x = _x(draw, 1)
    cols = x.shape[-1]
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    several = draw.chance(0.3)
    shape = (*x.shape[:-1], *([draw.of((1, 2, 5, 16))] if several else []))
    made = torch.randint(max(cols, 1), shape, generator=draw.random)
    ids = draw.tensor(made, draw.of((torch.int64, torch.int64, torch.int32)))
    temperature = None
    if draw.chance(0.4):
        temperature = draw.of((0.5, 1.0, 2, 7.5))
        if draw.chance(0.5):
            rows = draw.numbers(x.shape[:-1]).abs() + 0.5
            temperature = draw.tensor(rows, draw.of((wide, torch.float32)))
    options: dict[str, Any] = {"temperature": temperature}
    options |= {key: True for key in ("return_lse", "return_entropy") if draw.chance(0.2)}

    def theirs(x: Any) -> Any:
        z = x.to(torch.promote_types(x.dtype, wide))
        if isinstance(temperature, torch.Tensor):
            z = z / temperature.to(z.dtype)[..., None]
        elif temperature is not None:
            z = z / temperature
        log_p = torch.log_softmax(z, -1)
        index = ids.long() if several else ids.long()[..., None]
        found = log_p.gather(-1, index)
        results = [found if several else found[..., 0]]
        if "return_lse" in options:
            results.append(torch.logsumexp(z, -1).detach())
        if "return_entropy" in options:
            hidden = log_p == -math.inf
            results.append(-(log_p.exp() * log_p.masked_fill(hidden, 0.0)).sum(-1))
        return tuple(results) if len(results) > 1 else results[0]

    def terms(x: Any, results: tuple[Any, ...], upstreams: tuple[Any, ...]) -> Any:
        t: Any = 1.0 if temperature is None else temperature
        t = t.double()[..., None] if isinstance(t, torch.Tensor) else t
        z = x / t
        p, lse = torch.softmax(z, -1), torch.logsumexp(z, -1, True)
        g = upstreams[0].abs() if several else upstreams[0].abs()[..., None]
        more = upstreams[1].abs()[..., None] if len(upstreams) > 1 else 0.0
        about = 1 + _finite(lse).abs() + _finite(z).abs()
        size = p * (g.sum(-1, True) + more * about) * about  # of the entropy log p is a factor
        index = ids.long() if several else ids.long()[..., None]
        return torch.scatter_add(size, -1, index, g.to(size.dtype)) / t

    return Call(
        _shown(draw, name, x, ids=ids, **options),
        x,
        lambda x: mine.token_log_probs(x, ids, **options),
        theirs,
        theirs,
        lambda x, results: tuple(1 + _finite(each).abs() for each in results),
        terms,
    )


def _loss(draw: Draw, name: str) -> Call:
    """cross_entropy."""
    sizes = list(draw.shape(1)[:4])
    classes = max(1, sizes.pop(0))
    shape = (classes,) if not sizes else (sizes[0], classes, *sizes[1:])
    x = draw.tensor(draw.values(shape), draw.of(FLOATS))
    of_rows = shape[:1] * (len(shape) > 1) + shape[2:]
    options: dict[str, Any] = {"reduction": draw.of(("mean", "sum", "none"))}
    if draw.chance(0.3):
        options["ignore_index"] = draw.of((-100, -1, 0, classes - 1, classes + 3))
    if draw.chance(0.3):
        options["label_smoothing"] = draw.of((0.1, 0.5, 1.0, 0.0))
    if draw.chance(0.25):
        weight = draw.numbers((classes,)).abs() * draw.of((1, 1, 0))
        options["weight"] = draw.tensor(weight, x.dtype)
    ignored = options.get("ignore_index", -100)
    made = torch.randint(classes, of_rows, generator=draw.random)
    made[torch.rand(of_rows, generator=draw.random) < draw.of((0.0, 0.2, 1.0))] = ignored
    target = draw.tensor(made, draw.of((torch.int64, torch.int64, torch.int64, torch.int32)))
    if draw.chance(0.04):
        target = draw.tensor(torch.softmax(draw.numbers(shape), min(1, len(shape) - 1)), x.dtype)
    given = target.long() if target.dtype is torch.int32 else target

    def theirs(x: Any) -> Any:
        found = {k: v.to(x.dtype) if k == "weight" else v for k, v in options.items()}
        taken = given.to(x.dtype) if given.is_floating_point() else given
        return F.cross_entropy(x, taken, **found)

    smoothing = options.get("label_smoothing", 0.0)

    def exact(x: Any) -> Any:
        """What stands in an ignored row counts for nothing, NaN either."""
        if given.is_floating_point():
            return theirs(x)
        hidden = given == ignored
        return theirs(x.masked_fill(hidden.unsqueeze(min(1, x.dim() - 1)), 0.0))

    def weights(x: Any) -> tuple[Any, Any]:
        """Return what each row's loss is times, and by how much a sum of them is divided."""
        weight = options["weight"].double() if "weight" in options else x.new_ones(classes)
        if given.is_floating_point():
            mean = options["reduction"] == "mean"
            return x.new_ones(of_rows) * weight.max(), max(1, math.prod(of_rows)) if mean else 1.0
        counted = given != ignored
        w = torch.where(counted, weight[given.clamp(0, classes - 1)], 0.0)
        if smoothing:
            w = w + smoothing * weight.max() * counted
        return w, (w.sum() if options["reduction"] == "mean" else 1.0)

    def rows(x: Any) -> tuple[Any, Any]:
        """Return x with its classes last, and the size of each row's loss."""
        z = x.movedim(1, -1) if x.dim() > 1 else x
        finite = _finite(z)
        lse = _finite(torch.logsumexp(z, -1))
        return z, 1 + lse.abs() + finite.abs().amax(-1)

    def size(x: Any, results: tuple[Any, ...]) -> tuple[Any, ...]:
        w, divisor = weights(x)
        of_each = rows(x)[1] * w
        if options["reduction"] == "none":
            return (of_each,)
        return (of_each.sum() / divisor,)

    def terms(x: Any, results: tuple[Any, ...], upstreams: tuple[Any, ...]) -> Any:
        w, divisor = weights(x)
        z, of_each = rows(x)
        g = (upstreams[0].abs() * w / divisor)[..., None]
        size = g * (torch.softmax(z, -1) * of_each[..., None] + smoothing)
        if given.is_floating_point():
            size = size + g * (given.movedim(1, -1) if x.dim() > 1 else given).to(size.dtype)
        else:
            index = given.clamp(0, classes - 1)[..., None]
            size = size.scatter_add(-1, index, g.expand(*size.shape[:-1], 1).to(size.dtype))
        return size.movedim(-1, 1) if x.dim() > 1 else size

    return Call(
        _shown(draw, name, x, target=target, **options),
        x,
        lambda x: mine.cross_entropy(x, target, **options),
        theirs,
        exact,
        size,
        terms,
    )


KINDS: dict[str, Callable[[Draw, str], Call]] = {
    "softmax": _along,
    "log_softmax": _along,
    "logsumexp": _of_rows,
    "entropy": _of_rows,
    "token_log_probs": _of_ids,
    "cross_entropy": _loss,
}
NAMES = tuple(KINDS)


def drawn(seed: int, name: str, number: int, device: str) -> tuple[Draw, Call]:
    """Return a call of a seed, and what further choices are drawn by."""
    draw = Draw(seed, name, number, device)
    call = KINDS[name](draw, name)
    call.tracked, call.autocast = draw.chance(0.6), draw.chance(0.15)
    call.times = 4 if draw.chance(0.2) else 1
    call.text += " tracked" * call.tracked + " autocast" * call.autocast
    return draw, call


def differing(call: Call, draw: Draw, device: str) -> tuple[str, str, bool | None]:
    """Return what differs in a call, or an error's text, and whether PyTorch has one.

    None for an error of PyTorch alone.
    """
    x = call.x.detach().requires_grad_(call.tracked)
    leaf = call.x.detach().requires_grad_(call.tracked)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = _theirs(call, leaf, device)
        error = None
    except (RuntimeError, IndexError, ValueError, TypeError) as raised:
        wanted, error = None, raised
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(call.times):
                with torch.autocast(device, torch.bfloat16, enabled=call.autocast):
                    found = call.ours(x)
    except NotSupportedError as refusal:
        return "", str(refusal), error is not None
    except Exception as raised:
        if error is not None:
            return "", f"{type(raised).__name__}: {raised}", True
        return f"{type(raised).__name__}: {raised}", "", False
    if isinstance(error, IndexError):
        return f"served, PyTorch says {error}", "", False
    if error is not None:  # logsumexp of () in 2.13, ids of no columns
        return "", str(error), None
    mine, their = _tuple(found), _tuple(wanted)
    wide = call.x.detach().double().requires_grad_(call.tracked)
    exact = _tuple(call.exact(wide))
    if len(mine) != len(their):
        return f"{len(mine)} results, wanted {len(their)}", "", False
    for ours, right, e, size in zip(
        mine, their, exact, call.size(wide.detach(), tuple(e.detach() for e in exact)), strict=True
    ):
        said = _not_alike(ours, right, call.strided) or _off(ours.detach(), e.detach(), size)
        if said:
            return said, "", False
    return (
        (_gradient(call, draw, x, leaf, wide, mine, their, exact) if call.tracked else ""),
        "",
        False,
    )


def _theirs(call: Call, x: Any, device: str) -> Any:
    if not call.autocast:
        return call.theirs(x)
    if device == "cuda":
        with torch.autocast(device, torch.bfloat16):
            return call.theirs(x)
    # The lists of the CPU are others than CUDA's, which have all of these in float32.
    return call.theirs(x.float() if x.dtype in HALVES else x)


def _gradient(
    call: Call, draw: Draw, x: Any, leaf: Any, wide: Any, mine: Any, their: Any, exact: Any
) -> str:
    """Return what differs in the gradient."""
    asked = [index for index, each in enumerate(their) if each.requires_grad]
    if asked != [index for index, each in enumerate(mine) if each.requires_grad]:
        return f"tracked are {[each.requires_grad for each in mine]}"
    upstreams = [draw.like(mine[index]) for index in asked]
    try:
        (dx,) = torch.autograd.grad([mine[i] for i in asked], x, upstreams)
    except Exception as raised:
        return f"gradient: {type(raised).__name__}: {raised}"
    (right,) = torch.autograd.grad([their[i] for i in asked], leaf, upstreams)
    said = _not_alike(dx, right, False)
    if said:
        return f"gradient: {said}"
    given = tuple(each.double() for each in upstreams)
    if call.of_result is not None:
        of = call.of_result(mine[0].detach().double(), given[0])
    else:
        (of,) = torch.autograd.grad([exact[i] for i in asked], wide, given)
    size = call.terms(wide.detach(), tuple(each.detach() for each in exact), given)
    said = _off(dx, of, _finite(size))
    return f"gradient: {said}" if said else ""


def _tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _not_alike(found: Any, wanted: Any, strided: bool) -> str:
    """Return how a result is not like PyTorch's in all but its values."""
    for what in ("dtype", "shape", "device"):
        if getattr(found, what) != getattr(wanted, what):
            return f"{what} {getattr(found, what)}, PyTorch's {getattr(wanted, what)}"
    if strided and found.numel() and found.stride() != wanted.stride():
        return f"strides {found.stride()}, PyTorch's {wanted.stride()}"
    return ""


def _off(found: Any, exact: Any, size: Any) -> str:
    """Return where a result is not what float64 says, within the bound of its dtype."""
    dtype = found.dtype
    info = torch.finfo(dtype)
    bound = 1e-14 if dtype is torch.float64 else 2e-6
    least = info.smallest_normal * info.eps if dtype in HALVES else info.smallest_normal
    allowed = bound * size + least + (1.5 * info.eps * exact.abs() if dtype in HALVES else 0.0)
    rounded = exact.to(dtype)
    wide = found.double()
    right = (found == rounded) | (found.isnan() & exact.isnan())
    right |= ((wide - exact).abs() <= allowed) & rounded.isfinite() & found.isfinite()
    if right.all():
        return ""
    at = tuple((~right).nonzero()[0].tolist())
    return (
        f"{int((~right).sum())} of {right.numel()}: {list(at)} is {found[at]}, wanted {exact[at]}"
    )


def calls(
    report: Report, numbers: Sequence[int], seed: int, device: str, names: Sequence[str] = NAMES
) -> None:
    """Make these calls of each function, and add what came of them to a report."""
    started = time.monotonic()
    for name in names:
        refused = report.refused.setdefault(name, Counter())
        for number in numbers:
            draw, call = drawn(seed, name, number, device)
            said, refusal, both = differing(call, draw, device)
            if said:
                report.wrong.append(f"--seed {seed} --only {name}.{number}: {call.text}: {said}")
            elif both is None:
                report.more[f"{name}: {_numberless(refusal)}"] += 1
            elif both:
                report.both[name] += 1
            elif refusal:
                refused[_numberless(refusal)] += 1
            else:
                report.served[name] += 1
                report.gradients[name] += call.tracked
    report.seconds += time.monotonic() - started


def _numberless(text: str) -> str:
    return re.sub(r"\[?-?\b\d[\d., ]*\b\]?", "#", text)


def main() -> None:
    """Print what differs, and how many calls were served and refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calls", type=int, nargs="?", default=1000, help="of each function")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--only", help="one function, or one of its calls: softmax.17")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        import pytest

        from tests.helpers.torch_calls import on_cpu

        on_cpu(pytest.MonkeyPatch())
    else:
        os.environ.setdefault("SOFTGEN_TUNE", "off")  # shapes of their own each, 2 s to tune
    name, _, number = (arguments.only or "").partition(".")
    report, names = Report(), (name,) if name else NAMES
    numbers = [int(number)] if number else range(arguments.calls)
    calls(report, numbers, arguments.seed, arguments.device, names)
    for line in report.wrong:
        print(line)
    print(report)
    sys.exit(bool(report.wrong))


if __name__ == "__main__":
    main()
