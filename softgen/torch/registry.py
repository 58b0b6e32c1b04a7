"""What a row of the table becomes: operators of PyTorch, their autograd, and what calls them.

torch.library.custom_op does the same and more. Its frames of Python around each call, which look
for results that share memory with arguments, take 5 us beside the dispatcher's 5. A gradient that
is registered in Python takes 11 us of each call, wanted or not. So every row is two operators:
`<name>`, which has the gradient, and `<name>_kernel`, which computes the same and has none. The
first calls the second, so that a record of what happens below autograd, as torch.compile makes it,
has the second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad

from softgen.call.axes import axes_of
from softgen.call.dispatch import FunctionCalls
from softgen.call.eager import is_eager, is_tracked
from softgen.errors import NotSupportedError
from softgen.torch.dtensor import RULES, prepare, there

Tensor = torch.Tensor
is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
is_deterministic = torch._C._get_deterministic_algorithms
is_transforming = torch._C._are_functorch_transforms_active

# PyTorch keeps compiled code on disk by the names in a graph, from one version of softgen to the
# next. `default` and `v2` were operators with other arguments.
OVERLOAD = "v3"

# PyTorch's library of the operators, which are there as long as it is kept.
_LIBRARY = torch.library.Library("softgen", "FRAGMENT")

# Inductor lays inputs out as in eager mode. It does that by itself where it has no lowering.
_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)


class Function(torch.autograd.function._SingleLevelFunction):
    """Base of functions of autograd whose `apply` is C++'s.

    torch.autograd.Function binds the arguments to a signature for transforms, 12 us a call.
    """

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)


class Operator(Function):
    """A function of tensors, which PyTorch can see: a row of the table.

    A row is a subclass that `registered` was given a name for, and has

    - `launch`: computes it by kernels. Its annotations are the schema: tensors come first, and
      nothing has a default. An argument named `dim` is the dimension, or the dimensions, of rows:
      `vmap` and DTensors go by that name. No result shares memory with an argument or another
      result. A result that nobody asked for may be None; the operator then returns a tensor of
      shape (0,).
    - `fake`: returns empty tensors like the results, which are contiguous.
    - `setup_context` and `backward`, as those of torch.autograd.Function.
    - `tangent`: the jvp, with what `keep` saved.
    - `vmap`: computes a batch, where that is not like more rows.

    A row without a gradient or a tangent raises NotSupportedError where one is asked for. One that
    takes DTensors has a rule in `dtensor.RULES`.

    Attributes:
        of: the public function, for errors.
        call: calls it, and decides between the three: `tracked`, `launch` and `operator`.
        tracked: launches on eager tensors of which autograd follows some, past the dispatcher.
        composite: whether `launch` calls operators, and launches nothing itself.
        operator: PyTorch's `<name>`, with the gradient.
        kernel: PyTorch's `<name>_kernel`, without.
    """

    of: str
    call: Callable[..., Any]
    tracked: Callable[..., Any]
    composite = False
    operator: Any
    kernel: Any
    launch: Callable[..., Any]
    fake: Callable[..., Any]
    _arguments: tuple[str, ...]
    _tensors: int

    @classmethod
    def forward(cls, *arguments: Any) -> Any:
        """Return the results below autograd: the forward of `operator`, not of `tracked`."""
        if is_transforming():  # one transform is done with; the next sees the operator again
            with (
                torch.enable_grad(),
                forward_ad._set_fwd_grad_enabled(True),
                torch._C._AutoDispatchBelowAutograd(),
            ):
                return cls.operator(*arguments)
        return (cls.launch if cls.composite else cls.kernel)(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing."""

    @classmethod
    def backward(cls, ctx: Any, *upstream: Any) -> Any:
        """Raise NotSupportedError."""
        raise NotSupportedError(
            f"the gradient of softgen.torch.{cls.of} is not differentiable again; leave "
            "create_graph=True out, or use PyTorch's own functions"
        )

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:
        """Return the tangents of the results."""
        with forward_ad._set_fwd_grad_enabled(True):  # or an outer transform would see none
            return cls.tangent(ctx, *tangents)

    @classmethod
    def refuse_tangents(cls, *_: Any) -> Any:
        """Raise NotSupportedError."""
        raise NotSupportedError(
            f"softgen.torch.{cls.of} has no forward-mode derivative here; use PyTorch's own "
            "functions, or reverse mode (torch.func.vjp)"
        )

    tangent = refuse_tangents

    @classmethod
    def vmap(cls, size: int, *arguments: Any) -> Any:
        """Return the results of a batch of that size, which is the first dimension of all tensors.

        A batch is more rows, by default: only an argument `dim` moves by the batch's dimension.
        """
        if "dim" not in cls._arguments:
            return cls.call(*arguments)
        at = cls._arguments.index("dim")
        ndim, dim = arguments[0].dim() - 1, arguments[at]
        if not ndim:  # of numbers, which have no dimension to count behind
            each = [a.unbind() if isinstance(a, Tensor) else (a,) * size for a in arguments]
            found = [cls.call(*one) for one in zip(*each, strict=True)]
            if not isinstance(found[0], tuple):
                return torch.stack(found)
            return tuple(map(torch.stack, zip(*found, strict=True)))
        moved = [each + 1 for each in axes_of(dim if isinstance(dim, int) else tuple(dim), ndim)]
        dim = moved[0] if isinstance(dim, int) else moved
        return cls.call(*arguments[:at], dim, *arguments[at + 1 :])


Row = TypeVar("Row", bound=Operator)

# The rows by name, as `registered` was given it.
TABLE: dict[str, type[Operator]] = {}


def plain(x: Any) -> Any:
    """Return x, or of a Parameter a torch.Tensor, so that both have the same entries."""
    return x if type(x) is Tensor else x.detach()


def like_x(x: Any, *_: Any, dtype: Any = None) -> Any:
    """Return a contiguous empty tensor like the first argument."""
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)


def keep(ctx: Any, *tensors: Any) -> None:
    """Save tensors for a backward, and for a `tangent` where one may be asked for."""
    ctx.save_for_backward(*tensors)
    # A traced transform enters the level, 0 always, past forward_ad's own count.
    if forward_ad._current_level >= 0 or is_transforming():
        ctx.save_for_forward(*tensors)


def without_tangent(x: Any) -> Any:
    """Return what `keep` kept of an input without the tangent of this level, which is given."""
    return forward_ad.unpack_dual(x, level=0).primal


def _complete(found: Any) -> Any:
    """Return results as an operator does: contiguous, and none is None."""
    if not isinstance(found, tuple):
        return found.contiguous()
    some = next(each for each in found if each is not None)
    return tuple(some.new_empty(0) if each is None else each.contiguous() for each in found)


def tuning() -> str | None:
    """Return the `tune` of a launch: where PyTorch has to be deterministic no timing decides."""
    return "off" if is_deterministic() else None


def launched(
    calls: FunctionCalls,
    x: Any,
    rest: tuple[Any, ...],
    axis: Any,
    dtype: Any,
    invariant: Any,
    out: Any = None,
) -> Any:
    """Return what a kernel makes of x and the inputs beside it, past the calls for people."""
    x = plain(x)
    return calls[type(x)](x, out, axis, dtype, tuning(), None, invariant, rest)


def registered(name: str) -> Callable[[type[Row]], type[Row]]:
    """Return the decorator that makes the operators of a row, its `tracked` and its `call`."""
    return functools.partial(_register, name)


def _register(name: str, row: Any) -> Any:
    schema = torch.library.infer_schema(row.launch, mutates_args=())
    row.operator, row.kernel = (_defined(each, row, schema) for each in (name, f"{name}_kernel"))
    described = row.operator._schema.arguments
    row._arguments = tuple(each.name for each in described)
    row._tensors = sum("Tensor" in str(each.type) for each in described)
    _LIBRARY.impl(f"{name}.{OVERLOAD}", _autograd_of(row), "Autograd")
    torch.library.register_vmap(f"softgen::{name}.{OVERLOAD}", _vmap_of(row), lib=_LIBRARY)
    row.tracked = staticmethod(_tracked_of(row))
    row.call, TABLE[name] = staticmethod(_call_of(name, row)), row
    return row


def _defined(name: str, row: Any, schema: str) -> Any:
    """Define an operator that calls `launch` and `fake` of a row, and return it."""
    overload, launch = f"{name}.{OVERLOAD}", row.launch

    def run(*arguments: Any) -> Any:
        if is_grad_enabled():  # autograd is done with
            with torch.no_grad():
                found = launch(*arguments)
        else:
            found = launch(*arguments)
        return _complete(found)

    def fake(*arguments: Any) -> Any:
        return _complete(row.fake(*arguments))

    _LIBRARY.define(f"{overload}{schema}", tags=(torch.Tag.pt2_compliant_tag, _STRIDES))
    for key in ("CompositeExplicitAutograd", "CompositeImplicitAutogradNestedTensor"):
        _LIBRARY.impl(overload, run, key)  # which refuses nested ones as it does others
    torch.library.register_fake(f"softgen::{overload}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops.softgen, name), OVERLOAD)


def _autograd_of(row: Any) -> Callable[..., Any]:
    """Return what the operator runs at PyTorch's dispatch key Autograd."""
    apply, allow = row.apply, torch._functorch.utils.enable_single_level_autograd_function
    without_tangents = row.tangent == row.refuse_tangents

    def run(*arguments: Any) -> Any:
        if without_tangents and forward_ad._current_level >= 0:
            for each in arguments[: row._tensors]:
                if each is not None and forward_ad.unpack_dual(each).tangent is not None:
                    row.refuse_tangents()
        if not is_transforming():
            return apply(*arguments)
        with allow():
            return apply(*arguments)

    return run


def is_plain(*tensors: Any) -> bool:
    """Whether a call is nothing but kernels: nobody records, transforms or differentiates it."""
    return not (is_compiling() or is_tracked(tensors)) and is_eager(*tensors)


def _vmap_of(row: Any) -> Callable[..., Any]:
    """Return the vmap rule of a row, with the signature that PyTorch calls."""

    def first(info: Any, dim: int | None, each: Any) -> Any:
        if not isinstance(each, Tensor):
            return each
        if dim is None:
            return each.expand(info.batch_size, *each.shape)
        return torch.movedim(each, dim, 0)

    def run(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        given = [first(info, dim, each) for dim, each in zip(in_dims, arguments, strict=True)]
        found = row.vmap(info.batch_size, *given)
        if not isinstance(found, tuple):
            return found, 0
        return _complete(found), tuple(None if there(each) is None else 0 for each in found)

    return run


def _call_of(name: str, row: Any) -> Callable[..., Any]:
    """Return a row's `call`: it launches where that may be done now, else it calls the operator."""
    operator, launch, tracked, count = row.operator, row.launch, row.tracked, row._tensors

    def call(*arguments: Any) -> Any:
        tensors = arguments[:count]
        if not is_compiling() and is_eager(*tensors):
            return (tracked if is_tracked(tensors) else launch)(*arguments)
        if prepare(*tensors) and name not in RULES:
            raise NotSupportedError(
                f"softgen.torch.{row.of} takes no DTensor; call it on what lies here, x.to_local()"
            )
        return operator(*arguments)

    return call


def _tracked_of(row: Any) -> Callable[..., Any]:
    """Return a row's `tracked`: `apply` of a function of autograd that is made for the row.

    Its `forward` has the context, which takes 2 us less than a `setup_context` that PyTorch calls.
    """
    launch, setup_context = row.launch, row.setup_context

    def forward(ctx: Any, *arguments: Any) -> Any:
        output = launch(*arguments)
        setup_context(ctx, arguments, output)
        return output

    methods = {"forward": forward, "backward": row.backward, "jvp": row.jvp}
    as_methods = {name: staticmethod(method) for name, method in methods.items()}
    function: Any = type(row.__name__, (Function,), as_methods)
    apply: Callable[..., Any] = function.apply
    return apply
