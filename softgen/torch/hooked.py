"""Functions with hooks: a kernel forward, and a gradient of a kernel and PyTorch's operations.

A kernel gives dz, the gradient with respect to z, what hooks made of x: of softmax and log_softmax
from their results, of the others from x and lse, with the same hooks. With S the factor of the
softmax p in dz, -sum(dy p) of softmax and -sum(dy) of log_softmax,

    dbias = dz, summed over what bias is broadcast over
    dsink = exp(sink - lse) S, summed likewise
    dx = dz (1 - tanh(scale x / c)^2) scale, and dscale = sum(dz (1 - tanh(scale x / c)^2) x)

The result of softmax is w p, where w is 0 for what is dropped and else `out_scale` times what makes
up for it; its dz is that of w dy and p. w is the same as in the forward pass: y is 0 where it is. p
is y without dropout and out_scale, and computed again with them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import torch

from softgen.call import api, losses, tokens
from softgen.call.hooks import NAMES, the_axis
from softgen.call.ids import ids_of
from softgen.call.options import HookedAxisOptions, call
from softgen.call.scalars import above_zero, finite
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.names import unknown
from softgen.problems.hooks.dropout import kept_scale_of, threshold_of
from softgen.torch.dtypes import wide
from softgen.torch.operators import LogSoftmaxBackward, SoftmaxBackward
from softgen.torch.registry import Operator, Tensor, is_compiling, like_x, registered, tuning

# The hooks in the order of an operator's arguments. A scale is a number, or a tensor of rows. The
# first three tensors have gradients.
TENSORS = ("scale", "bias", "sink", "mask", "lengths", "out_scale")
NUMBERS: dict[str, type] = {
    "scale": float,
    "softcap": float,
    "causal": bool,
    "causal_offset": int,
    "empty_rows": str,
    "out_scale": float,
    "dropout": float,
    "seed": int,
    "seed_offset": int,
}
EITHER = ("scale", "out_scale")
LEAVING = ("out_scale", "dropout", "seed", "seed_offset")
OPTIONAL = Optional[torch.Tensor]  # noqa: UP045, as schemas are read
OF_RESULTS = ("softmax", "log_softmax")  # whose gradient comes from the result
WITH_ENTROPY = "token_log_probs_entropy"


def asked(hooks: Mapping[str, Any], of: Callable[..., Any]) -> dict[str, Any]:
    """Return the hooks of a function that are asked for: not None, and not causal=False.

    Raises InvalidTypeError for what is no hook, or no tensor.
    """
    for name, given in hooks.items():
        if name not in NAMES:
            own = [each for each in inspect.signature(of).parameters if each[0] != "_"]
            raise InvalidTypeError(unknown("argument", name, [*own[:-1], *NAMES]))
        is_tensor = given is None or isinstance(given, Tensor)  # PyTorch 2.7 traces no union
        if name in TENSORS and name not in EITHER and not is_tensor:
            raise InvalidTypeError(f"{name} must be a tensor, got {type(given).__qualname__}")
    return {
        name: given
        for name, given in hooks.items()
        if given is not None and not (name == "causal" and given is False)
    }


def hooked(
    function: str,
    x: Any,
    dim: Any,
    dtype: Any,
    hooks: Mapping[str, Any],
    invariant: Any,
    ids: Any = None,
    *,
    ignored: int = 0,
    z_loss: float = 0.0,
) -> tuple[Any, Any, Any]:
    """Return a function with hooks along a dimension, lse, and the entropy if it is asked for.

    Args:
        function: softmax, log_softmax, logsumexp, entropy, cross_entropy (a loss a row),
            token_log_probs or token_log_probs_entropy.
        x: what it is of.
        dim: along which dimension; the last for functions of ids.
        dtype: of the result; None for functions of ids, whose results are in the arithmetic's.
        hooks: by name, as `asked` returns them.
        invariant: the batch_invariant of a call.
        ids: the targets, or the ids.
        ignored: the target of rows that count for nothing.
        z_loss: the weight of lse^2.
    """
    given = {name: isinstance(hooks.get(name), Tensor) for name in NAMES}
    tensors = [hooks[name] if given[name] else None for name in TENSORS]
    numbers = [None if given[name] else _signed(hooks.get(name)) for name in NUMBERS]
    sink = hooks.get("sink")
    wants_lse = sink is not None and sink.requires_grad and torch.is_grad_enabled()
    axis, dtype = the_axis(x.dim(), dim), wide(x) if dtype is None else dtype
    request = (*numbers, function, ignored, z_loss, axis, dtype, wants_lse, invariant)
    found: tuple[Any, Any, Any] = Hooked.call(x, ids, *tensors, *request)
    return found


def by_operations(x: Any, hooks: Mapping[str, Any], counts: Any) -> Any:
    """Return what hooks make of rows x, in the type of the arithmetic, by PyTorch's operations.

    Args:
        x: rows.
        hooks: scale, softcap and bias, as `asked` returns them.
        counts: the rows that count, or None for all: of the others nothing is read.
    """
    known = ("scale", "softcap", "bias")
    if others := sorted([each for each in hooks if each not in known]):
        raise InvalidValueError(
            "label_smoothing and probabilities take scale, softcap and bias of the hooks, got "
            f"{', '.join(others)}; leave it out"
        )
    scale, softcap, bias = (hooks.get(name) for name in known)
    z = x.to(wide(x))
    if counts is not None:
        z = z.masked_fill(~counts[..., None], 0)
    if isinstance(scale, Tensor):
        z = z * _along(scale, z, -1)
    elif scale is not None:
        z = z * (scale if is_compiling() else finite("scale", scale))
    if softcap is not None:
        softcap = softcap if is_compiling() else above_zero("softcap", softcap)
        z = softcap * torch.tanh(z / softcap)
    return z if bias is None else z + bias.to(z.dtype)


def _signed(number: Any) -> Any:
    """Return 64 bits as an operator takes them."""
    return number - 2**64 if isinstance(number, int) and number >= 2**63 else number


def _takes(results: int, **beside: Any) -> Callable[[Any], Any]:
    """Give a `launch` the signature of its schema: tensors, hooks by `TENSORS` and `NUMBERS`, more.

    `beside` has what comes beside hooks, tensors first.
    """
    tensors = {name: kind for name, kind in beside.items() if kind in (torch.Tensor, OPTIONAL)}
    fields = {
        **tensors,
        **{f"{name}_tensor": OPTIONAL for name in TENSORS},
        **{name: Optional[kind] for name, kind in NUMBERS.items()},  # noqa: UP045
        **{name: kind for name, kind in beside.items() if name not in tensors},
        "batch_invariant": Optional[bool],  # noqa: UP045
    }
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, either, annotation=fields[name]) for name in fields]
    of_all: Any = tuple.__class_getitem__((torch.Tensor,) * results)
    returned = torch.Tensor if results == 1 else of_all

    def become(launch: Any) -> Any:
        launch.__signature__ = inspect.Signature(parameters, return_annotation=returned)
        return launch

    return become


class _Hooked(Operator):
    """Base of rows with hooks, whose `launch` has its arguments by name."""

    of = "softmax (or its like) with hooks"

    @classmethod
    def named(cls, arguments: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments by name."""
        return dict(zip(cls._arguments, arguments, strict=True))

    @classmethod
    def vmap(cls, size: int, *arguments: Any) -> Any:
        """Return the results of a batch: as of one x with a dimension more.

        What is broadcast within a sample gets its dimensions behind that of the batch, and a sample
        is at least a matrix: causal counts its rows.
        """
        given = cls.named(arguments)
        x, of_result = given.get("x"), given["function"] in OF_RESULTS
        x = given["y"] if x is None else x
        rank, several = x.dim() - 1, _several(given.get("ids"), x)
        wanted = max(2, rank)
        elements = {"x", "bias_tensor", "mask_tensor"} | (OF_IDS if several else set())
        elements |= {"y", "dy"} if of_result else set()
        padded = {**given, "axis": given["axis"] + (given["axis"] >= 0)}
        for name, each in given.items():
            if isinstance(each, Tensor):
                ones = wanted - (name not in elements) - (each.dim() - 1)
                padded[name] = each.reshape(size, *[1] * ones, *each.shape[1:])
        found = cls.call(*padded.values())
        return cls.shaped(found, given, 1 + wanted - rank)

    @classmethod
    def shaped(cls, found: Any, given: Mapping[str, Any], first: int) -> Any:
        """Return the results of a batch as its samples have them, from dimension `first` on."""
        if isinstance(found, tuple):
            return tuple(each if each is None else cls.shaped(each, given, first) for each in found)
        return found.reshape(len(found), *found.shape[first:])


# The arguments that have the shape of the ids.
OF_IDS = {"ids", "y", "dy", "upstream"}


def _several(ids: Any, x: Any) -> bool:
    """Whether ids have a dimension beside those of the rows of x."""
    return ids is not None and ids.dim() == x.dim()


def _hooks_of(given: Mapping[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the hooks that are given, by name, as calls take them."""
    tensors = {name: given[f"{name}_tensor"] for name in TENSORS}
    found = {name: given[name] for name in NUMBERS}
    found |= {name: each.detach() for name, each in tensors.items() if each is not None}
    return {name: each for name, each in found.items() if each is not None and name not in without}


def _options(given: Mapping[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a call takes by name: hooks, and how its kernel is chosen."""
    hooks = _hooks_of(given, without)
    return {**hooks, "tune": tuning(), "batch_invariant": given["batch_invariant"]}


@registered("hooked_terms")
class HookedTerms(_Hooked):
    """dz of functions whose gradient comes from x and lse."""

    @staticmethod
    @_takes(
        1,
        x=torch.Tensor,
        lse=torch.Tensor,
        upstream=torch.Tensor,
        ids=OPTIONAL,
        entropy=OPTIONAL,
        of_entropy=OPTIONAL,
        function=str,
        axis=int,
    )
    def launch(*arguments: Any) -> torch.Tensor:
        """Return dz of x's dtype; at a hidden id it is the upstream."""
        given = HookedTerms.named(arguments)
        x, lse, upstream, ids, entropy, of_entropy = arguments[:6]
        name = f"{given['function']}_backward"
        rows: tuple[Any, ...] = (lse, upstream.contiguous())
        if ids is not None:
            of = ids_of(x, ids)
            name += ("" if entropy is None else "_entropy") + of.suffix
            rows = (of.array, lse, of.flat(upstream).contiguous())
            rows += () if entropy is None else (entropy, of_entropy.contiguous())
        options = _options(given, ("sink",))  # which is in lse
        found: torch.Tensor = call(
            *(name, x.detach(), options, HookedAxisOptions), axis=given["axis"], others=rows
        )
        return found

    fake = staticmethod(like_x)


@registered("hooked_backward")
class HookedBackward(_Hooked):
    """dx, dscale, dbias and dsink, by kernels and by operations that torch.compile sees."""

    composite = True

    @staticmethod
    @_takes(
        4,
        dy=torch.Tensor,
        y=torch.Tensor,
        x=OPTIONAL,
        lse=OPTIONAL,
        entropy=OPTIONAL,
        of_entropy=OPTIONAL,
        ids=OPTIONAL,
        function=str,
        ignored=int,
        z_loss=float,
        axis=int,
        dtype=torch.dtype,
        needs=list[bool],
    )
    def launch(*arguments: Any) -> tuple[Any, Any, Any, Any]:
        """Return what is needed of them, of x's `dtype` and of that of each.

        A bias is here for its shape and type alone, unless softmax is computed again.
        """
        given = HookedBackward.named(arguments)
        y, x, axis, dtype, needs = (given[name] for name in ("y", "x", "axis", "dtype", "needs"))
        dz, factor_of_p = _OF_FUNCTION.get(given["function"], _of_ids)(given)
        bias, sink, lse = given["bias_tensor"], given["sink_tensor"], given["lse"]
        dx = dscale = dbias = dsink = None
        if needs[2] and bias is not None:
            dbias = dz.sum_to_size(bias.shape).to(bias.dtype)
        if needs[3] and sink is not None:
            lse = y if given["function"] == "logsumexp" else lse
            share = torch.where(lse == -torch.inf, 0, torch.exp(sink - lse))  # of no row at all
            dsink = (share * factor_of_p()).sum_to_size(sink.shape).to(sink.dtype)
        rows, softcap = given["scale_tensor"], given["softcap"]
        scale = given["scale"] if rows is None else _along(rows, dz, axis)
        if softcap is not None:
            scaled = x if scale is None else x * scale
            # What is hidden may be no number, and has no part in it.
            dz = torch.where(dz == 0, 0, dz * (1 - torch.tanh(scaled / softcap).square())).to(dtype)
        if needs[1] and rows is not None:
            parts = torch.where(dz == 0, 0, dz * x)
            dscale = parts.sum(axis, dtype=rows.dtype).sum_to_size(rows.shape)
        if needs[0]:
            dx = dz if scale is None else (dz * scale).to(dtype)
        return dx, dscale, dbias, dsink

    @staticmethod
    def fake(*arguments: Any) -> Any:
        """Return tensors like them."""
        given = HookedBackward.named(arguments)
        x = given["y"] if given["x"] is None else given["x"]
        like = [given[f"{name}_tensor"] for name in TENSORS[:3]]
        made = [like_x(x, dtype=given["dtype"]), *(None if t is None else like_x(t) for t in like)]
        return tuple(t if need else None for t, need in zip(made, given["needs"], strict=True))

    @classmethod
    def shaped(cls, found: Any, given: Mapping[str, Any], first: int) -> Any:
        """Return each gradient in the shape of what it is of."""
        x = given["y"] if given["x"] is None else given["x"]
        like = (x, *(given[f"{name}_tensor"] for name in TENSORS[:3]))
        pairs = zip(found, like, strict=True)
        return tuple(each if each is None else each.reshape(of.shape) for each, of in pairs)


# Each returns dz, and what computes the factor that the softmax has in it, one a row.
Terms = tuple[Any, Callable[[], Any]]


def _of_softmax(given: Mapping[str, Any]) -> Terms:
    dy, y, axis = given["dy"], given["y"], given["axis"]
    p, dropout = y, given["dropout"]
    if given["out_scale"] is not None or given["out_scale_tensor"] is not None or dropout:
        left = {name: None for name in (*LEAVING, "out_scale_tensor")}
        p, *_ = _forward({**given, **left}, y.dtype)
        rows, weight = given["out_scale_tensor"], kept_scale_of(threshold_of(dropout or 0.0))
        factor = given["out_scale"] if rows is None else _along(rows, y, axis)
        dy = (dy * (weight if factor is None else weight * factor) * (y != 0)).to(y.dtype)
    dz = SoftmaxBackward.call(dy, p, axis, given["dtype"], given["batch_invariant"])
    return dz, lambda: -(dy * p).sum(axis, dtype=wide(y))


def _of_log_softmax(given: Mapping[str, Any]) -> Terms:
    dy, y, axis = given["dy"], given["y"], given["axis"]
    dz = LogSoftmaxBackward.call(dy, y, axis, given["dtype"], given["batch_invariant"])
    # Of an element that is hidden, the kernel's is dy.
    return torch.where(y == -torch.inf, 0, dz), lambda: -dy.sum(axis, dtype=wide(y))


def _of_lse(given: Mapping[str, Any]) -> Terms:
    dy, lse = given["dy"], given["y"]
    lse = torch.where(lse == -torch.inf, 0, lse)  # of nothing but -inf: its terms are 0
    return _terms(given, "logsumexp", lse, dy), lambda: dy


def _of_ids(given: Mapping[str, Any]) -> Terms:
    dy, y, x, lse, ids = (given[name] for name in ("dy", "y", "x", "lse", "ids"))
    more = None
    if given["function"] == "cross_entropy":
        counts, z_loss = ids != given["ignored"], given["z_loss"]
        dz = _terms(given, "token_log_probs", lse, -dy, ids)
        if z_loss:
            more = 2 * z_loss * lse * dy
            dz += _terms(given, "logsumexp", lse, more)
        dz.masked_fill_(~counts[..., None], 0)
    else:
        of_entropy = (given["entropy"], given["of_entropy"])
        dz = _terms(given, "token_log_probs", lse, dy, ids, *of_entropy)
    if any(given[name] is not None for name in ("mask_tensor", "lengths_tensor", "causal")):
        several = _several(ids, x)
        hidden, columns = (each if several else each[..., None] for each in (y.isinf(), ids))
        columns = columns.clamp(0, x.shape[-1] - 1).long()
        # Ids that are not hidden stand for one that is, if there is any: one that is no column may
        # have been taken to the same column as it.
        some = columns.gather(-1, hidden.int().argmax(-1, keepdim=True))
        columns = torch.where(hidden, columns, some)
        dz.scatter_(-1, columns, dz.gather(-1, columns).masked_fill(hidden.any(-1, True), 0))
    factor = dy if more is None else dy + more  # a sink's, which log-probabilities take none of
    return dz, lambda: torch.where(ids != given["ignored"], factor, 0)


_OF_FUNCTION = {"softmax": _of_softmax, "log_softmax": _of_log_softmax, "logsumexp": _of_lse}


def _terms(
    given: Mapping[str, Any],
    function: str,
    lse: Any,
    upstream: Any,
    ids: Any = None,
    entropy: Any = None,
    of_entropy: Any = None,
) -> Any:
    """Return dz of a function from lse, by its kernel."""
    rows = {"lse": lse, "upstream": upstream.to(lse.dtype), "ids": ids}
    named = {**given, **rows, "entropy": entropy, "of_entropy": of_entropy, "function": function}
    return HookedTerms.call(*(named[name] for name in HookedTerms._arguments))


def _forward(given: Mapping[str, Any], dtype: Any) -> Any:
    """Return the results of the function again, of `dtype`."""
    named = {**given, "dtype": dtype, "wants_lse": False}
    return Hooked.call(*(named[name] for name in Hooked._arguments))


@registered("hooked")
class Hooked(_Hooked):
    """A function with hooks: its result, and what its gradient needs of lse and the entropy."""

    @staticmethod
    @_takes(
        3,
        x=torch.Tensor,
        ids=OPTIONAL,
        function=str,
        ignored=int,
        z_loss=float,
        axis=int,
        dtype=torch.dtype,
        wants_lse=bool,
    )
    def launch(*arguments: Any) -> tuple[Any, Any, Any]:
        """Return the result, of `dtype` or the type of the arithmetic, and lse and the entropy."""
        given = Hooked.named(arguments)
        x, ids, function, axis = given["x"].detach(), given["ids"], given["function"], given["axis"]
        options: Any = _options(given)
        if function in OF_RESULTS:
            wants_lse = given["wants_lse"]
            along: Any = getattr(api, function)
            found = along(x, axis, dtype=given["dtype"], return_lse=wants_lse, **options)
            return (*found, None) if wants_lse else (found, None, None)
        if function == "logsumexp":
            return api.logsumexp(x, axis, dtype=wide(x), **options), None, None
        options["return_lse"] = True
        if function == "cross_entropy":
            options |= {"ignore_index": given["ignored"], "z_loss": given["z_loss"]}
            return (*losses.cross_entropy(x, ids, reduction="none", **options), None)
        options["return_entropy"] = function == WITH_ENTROPY
        return (*tokens.token_log_probs(x, ids, dtype=wide(x), **options), None)[:3]

    @staticmethod
    def fake(*arguments: Any) -> Any:
        """Return tensors like them."""
        given = Hooked.named(arguments)
        x, function, axis = given["x"], given["function"], given["axis"]
        shape = [n for i, n in enumerate(x.shape) if i != axis % max(1, x.dim())]
        rows = [x.new_empty(shape, dtype=wide(x)) for _ in range(2)]
        if function in OF_RESULTS:
            lse = rows[0] if given["wants_lse"] else None
            return like_x(x, dtype=given["dtype"]), lse, None
        if function == "logsumexp":
            return rows[0], None, None
        y = x.new_empty(given["ids"].shape, dtype=wide(x))
        return y, rows[0], rows[1] if function == WITH_ENTROPY else None

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save what the gradient asks for."""
        given, (y, lse, entropy) = Hooked.named(inputs), output
        of_result, softcap = given["function"] in OF_RESULTS, given["softcap"] is not None
        hooks = {name: given[f"{name}_tensor"] for name in TENSORS}
        again = not of_result or given["out_scale"] is not None or given["dropout"]
        again = again or hooks["out_scale"] is not None
        if not again:
            bias = hooks["bias"]
            hooks["bias"] = bias if bias is None else bias.new_empty(()).expand(bias.shape)
            hooks["mask"] = hooks["lengths"] = None
        needs_x = again or softcap or ctx.needs_input_grad[2]
        if lse is not None:
            ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # or zeros for lse are written
        ctx.numbers = {name: given[name] for name in Hooked._arguments[Hooked._tensors :]}
        ctx.numbers["dtype"] = given["x"].dtype
        x = given["x"] if needs_x else None
        # By name, and not by their shape: of no rows it is that of what nobody asked for.
        has_lse = given["wants_lse"] if of_result else given["function"] != "logsumexp"
        saved = (lse if has_lse else None, entropy if given["function"] == WITH_ENTROPY else None)
        ctx.save_for_backward(y, x, *saved, given["ids"], *hooks.values())

    @staticmethod
    def backward(ctx: Any, dy: Any, _: Any, of_entropy: Any) -> tuple[Any, ...]:
        """Return dx, and what is asked for of dscale, dbias and dsink."""
        behind = [None] * (len(Hooked._arguments) - 5)
        if dy is None and of_entropy is None:
            return None, None, None, None, None, *behind
        y, x, lse, entropy, ids, *hooks = ctx.saved_tensors
        dy = torch.zeros_like(y) if dy is None else dy
        entropy = None if of_entropy is None else entropy
        of_x, _, *of_hooks = ctx.needs_input_grad[:5]
        tensors = (dy, y, x, lse, entropy, of_entropy, ids, *hooks)
        given = dict(zip(HookedBackward._arguments, tensors, strict=False))
        given |= {**ctx.numbers, "needs": [of_x, *of_hooks]}
        found = HookedBackward.call(*(given[name] for name in HookedBackward._arguments))
        dx, *more = (
            each if need else None for each, need in zip(found, given["needs"], strict=True)
        )
        return dx, None, *more, *behind


def _along(rows: Any, y: Any, axis: int) -> Any:
    """Return what broadcasts over the rows of y as what broadcasts to y."""
    behind = y.dim() - 1 - axis % y.dim() if y.dim() else 0
    at = rows.dim() - behind
    return rows.unsqueeze(at) if at >= 0 else rows
