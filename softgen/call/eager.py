"""Which tensors a kernel may be launched on: those whose memory is theirs, while nobody records.

PyTorch says by dispatch keys what a tensor is and what goes on around a call: a mode (FakeTensor,
make_fx), a transform of torch.func, a trace, a lazy negation. This is the one place that asks. It
imports PyTorch, so that only code that has a tensor imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd import forward_ad

from softgen.errors import InvalidTypeError, MissingDependencyError, NotSupportedError

OLDEST = "2.7"  # the first whose schemas take a list[int]
if torch.__version__ < OLDEST:
    raise MissingDependencyError(
        f"softgen takes tensors of PyTorch {OLDEST} or later, {torch.__version__} is installed"
    )

KINDS = (torch.Tensor, torch.nn.Parameter)

_included = torch._C._dispatch_tls_local_include_set
_excluded = torch._C._dispatch_tls_local_exclude_set
_keys_of = torch._C._dispatch_keys
_takes_tangents = torch._C._is_fwd_grad_enabled
_modes = torch._C._len_torch_dispatch_stack


def _set_of(*names: str) -> int:
    """Return the bits of dispatch keys."""
    bits = 0
    for name in names:
        bits |= DispatchKeySet(torch._C._parse_dispatch_key(name)).raw_repr()
    return bits


# What a thread includes in all calls while nothing goes on. VmapMode is of the older vmap, which
# marks the tensors that it batches, and hands the others on as they are.
_IDLE = _set_of("BackendSelect", "ADInplaceOrView", "VmapMode")
# Where kernels run.
DEVICE = "cuda"
# The keys that a dense tensor there does not have: one of them is enough to refuse it.
OTHERS = ~_set_of("CUDA", "ADInplaceOrView", "AutogradCUDA", "AutocastCUDA")


def is_eager(*tensors: Any) -> bool:
    """Whether kernels may be launched on these tensors right now.

    They are when each is exactly a torch.Tensor or a Parameter, dense and on a GPU, without a lazy
    negation, and no mode, transform, trace or level of forward-mode AD is under way. Otherwise a
    registered operator has to be called, of which PyTorch knows what it returns. It does not tell
    whether torch.compile traces the call, nor whether autograd follows a tensor (`is_tracked`).
    None is no tensor.
    """
    for each in tensors:
        if each is None:
            continue
        if type(each) not in KINDS or _keys_of(each).raw_repr() & OTHERS:
            return False
    # A guard does not see a FakeTensorMode.
    if _modes() or not (_idle_guard(_PROBE) or _includes_nothing()):
        return False
    return forward_ad._current_level < 0 or not _takes_tangents()


def _includes_nothing() -> bool:
    return not (_included() - _excluded()).raw_repr() & ~_IDLE


def guard_of(*tensors: Any) -> Callable[..., bool]:
    """Return the comparison by which PyTorch guards what torch.compile made, which takes 0.1 us.

    It is about the class, shape, strides, dtype and device of each tensor, whether it requires
    grad, and how the thread dispatches (transforms, traces, autocast), but not about the mode of
    grad, forward-mode AD, or FakeTensor's mode. What it returns is `never` where this version of
    PyTorch has none.
    """
    try:
        guard = torch._C._dynamo.guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(each.shape) for each in tensors],
            dynamic_dims_strides=[list(each.stride()) for each in tensors],
        )
        check: Callable[..., bool] = guard.check
        return check if check(*tensors) else never
    except (AttributeError, TypeError, RuntimeError):  # not there in this version, or other
        return never


def never(*tensors: Any) -> bool:
    """Tell of no tensors that they are like others."""
    return False


_PROBE = torch.empty(0)
# Whether the thread dispatches as it did at import. To compare the sets of keys takes 1.5 us.
_idle_guard = guard_of(_PROBE) if _includes_nothing() else never


def is_tracked(tensors: Sequence[Any]) -> bool:
    """Whether autograd follows what is computed of any of these tensors; None is no tensor."""
    if torch.is_grad_enabled():
        for each in tensors:
            if each is not None and each.requires_grad:
                return True
    return False


def is_launchable(out: Any, *inputs: Any) -> bool:
    """Whether a kernel may read these tensors, and write to `out` or None, without a gradient."""
    tensors = inputs if out is None else (out, *inputs)
    return not is_tracked(tensors) and is_eager(*tensors)


def require_launchable(x: Any, name: str = "") -> None:
    """Raise unless a kernel may be launched on a tensor, also one of a subclass, and on no copy.

    InvalidTypeError for one on another device, or that is not dense; NotSupportedError for one that
    has no memory of its own or asks for a gradient, which would be dropped, and while something is
    recorded or transformed. `name` is that of an argument beside the first.
    """
    of = f" as {name}" if name else ""
    if not is_eager(x):
        _require_memory(x, of, name or "x")
    if x.numel() and not x.data_ptr():
        raise NotSupportedError(
            f"got a tensor{of} whose memory was freed (its storage was resized to 0, as FSDP "
            "does); let it be allocated again before the call"
        )
    if is_tracked((x,)):
        raise NotSupportedError(
            f"got a tensor{of} that requires grad, and this call is not tracked. softgen.torch has "
            "functions with gradients; else call it under torch.no_grad(), or pass "
            f"{name or 'x'}.detach()"
        )


def _require_memory(x: Any, of: str, name: str) -> None:
    """Raise for a tensor that is not eager, unless it is only of a subclass.

    `of` and `name` say of which argument.
    """
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    keys = _keys_of(x)
    if keys.has(DispatchKey.Python) or keys.has(DispatchKey.Functionalize):
        raise NotSupportedError(
            f"got a {kind}{of}, whose memory no kernel can see; softgen.torch has functions for "
            f"it, or pass the tensor inside (of a DTensor {name}.to_local())"
        )
    if x.layout is not torch.strided:
        raise InvalidTypeError(f"got a tensor{of} of layout {x.layout}; pass {name}.to_dense()")
    if x.device.type != DEVICE:
        raise InvalidTypeError(
            f"got a tensor on {x.device}{of}; softgen takes tensors on a CUDA device. Move it with "
            f"{name}.cuda()"
        )
    if not is_eager():  # of no tensor: what goes on around the call
        raise NotSupportedError(
            "this call is recorded or transformed (a mode, a trace, torch.func, forward-mode AD), "
            "and a kernel that is launched here would go unseen; softgen.torch has functions that "
            "PyTorch can see"
        )
    if keys.raw_repr() & OTHERS:
        raise NotSupportedError(
            f"got a tensor{of} that PyTorch has not computed yet (a lazy negation, or zeros "
            f"without memory); pass {name}.resolve_neg(), or {name}.clone()"
        )
