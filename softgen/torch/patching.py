"""softgen in the place of PyTorch's own softmax, log_softmax and cross entropy.

Eager calls come by the operators of aten, whose kernels are replaced: what PyTorch does around them
(autograd, transforms, traces, modes) stays. Functions of torch.nn.functional are wrapped too. Three
convert a tensor before aten is called, which softgen's kernels do along the way; the loss of hidden
states makes all logits.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import has_torch_function_variadic

from softgen.call.dispatch import calls_of
from softgen.call.eager import is_eager
from softgen.call.losses import REDUCTIONS
from softgen.call.scalars import is_number
from softgen.errors import CaptureError, NotSupportedError
from softgen.torch import functional, huggingface, linear, losses
from softgen.torch.dtypes import FLOATS
from softgen.torch.registry import tuning

# The key of PyTorch's dispatcher whose kernels are replaced.
KEY = "CUDA"

Tensor = torch.Tensor
is_dynamo_compiling = torch.compiler.is_dynamo_compiling
is_grad_enabled, set_grad_enabled = torch.is_grad_enabled, torch._C._set_grad_enabled
takes_tangents, set_takes_tangents = torch._C._is_fwd_grad_enabled, torch._C._set_fwd_grad_enabled
Kernel = Callable[..., Any]

_lock = threading.Lock()
# What holds the kernels in aten's place; None while nothing is patched.
_library: torch.library.Library | None = None
# What each function of torch.nn.functional became, and what it was.
_wrapped: dict[str, tuple[Kernel, Kernel]] = {}
# What each wrapper that was ever made stands for.
_stands_for: dict[Kernel, Kernel] = {}


def patch(model: Any = None) -> Any:
    """Let PyTorch's softmax, log_softmax and cross entropy run softgen's kernels, until `unpatch`.

    With a model: let that one, and nothing else, train without logits in memory.

    Args:
        model: a causal language model of Hugging Face's transformers whose forward calls a
            torch.nn.Linear for logits (batch, positions, classes), and self.loss_function, which
            is ForCausalLMLoss, for a loss of them. Where it is given labels in training its loss
            is `linear_cross_entropy` of its hidden states, and `logits` of what it returns is
            None. In evaluation, or with `skip_logits=False`, it returns logits as ever, and with
            `skip_logits=True` none.

    Returns:
        The model, or None where none is given.

    Raises InvalidTypeError for a model whose forward is not known, and its forward raises
    NotSupportedError where it does with logits what is not known. The rest is of a call without a
    model.

    Softmax and log_softmax of CUDA tensors, by whatever name they are called, and their gradients
    are served where the type is a float of 16 to 64 bits; F.cross_entropy where targets are class
    indices in rows, without weights; F.linear_cross_entropy of such targets, where PyTorch has it,
    and its gradient is then not differentiable again. Any other call is PyTorch's, and so is one in
    the capture of a CUDA graph whose kernel is not loaded yet. A target that is no class gives NaN,
    where PyTorch stops by an assertion on the GPU.

    What torch.compile gives inductor stays PyTorch's: inductor fuses softmax and loss with what is
    around them. Call the functions of softgen.torch in a model to have them compiled in. Code that
    was compiled before may be compiled again, to the same.

    Patching twice is patching once. No other thread may compute meanwhile: PyTorch's registry of
    kernels takes no change during a call. These functions of F are other objects while they are
    patched: an earlier reference to one cannot be pickled then.
    """
    global _library
    if model is not None:
        return huggingface.patch_model(model)
    with _lock:
        if _library is not None:
            return None
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # PyTorch says once a process that a kernel is replaced.
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            for name in ("softmax", "log_softmax"):
                library.impl(f"_{name}", _forward(name), KEY)
                library.impl(f"_{name}_backward_data", _backward(name), KEY)
        for name, (wrapper_of, mine) in WRAPPERS.items():
            theirs = getattr(F, name, None)
            if theirs is None:  # PyTorch has it from a later version on
                continue
            theirs = _stands_for.get(theirs, theirs)  # another library may have put it back
            _wrapped[name] = wrapper_of(mine, theirs), theirs
            setattr(F, name, _wrapped[name][0])
        _library = library
    return None


def unpatch(model: Any = None) -> Any:
    """Put back what `patch` replaced, in a model where one is given, which is returned.

    A function that another library has put around softgen's since stays where it is, and calls
    PyTorch's own through softgen's, which does nothing more.
    """
    global _library
    if model is not None:
        return huggingface.unpatch_model(model)
    with _lock:
        if _library is None:
            return None
        for name, (mine, theirs) in _wrapped.items():
            if getattr(F, name) is mine:
                setattr(F, name, theirs)
        _wrapped.clear()
        _library._destroy()
        _library = None
    return None


def _forward(name: str) -> Kernel:
    """Return the kernel of softmax or log_softmax in aten's place."""
    calls, theirs = calls_of(name), getattr(torch.ops.aten, f"_{name}").out

    def kernel(x: Any, dim: int, half_to_float: bool) -> Any:
        dtype = torch.float32 if half_to_float else x.dtype
        if not half_to_float or x.dtype is torch.float16:
            y = _launched(calls, x, dim, dtype)
            if y is not None:
                return y
        return theirs(x, dim, half_to_float, out=_empty(x, dtype))

    return kernel


def _backward(name: str) -> Kernel:
    """Return the kernel of the gradient of softmax or log_softmax in aten's place."""
    calls = calls_of(f"{name}_backward")
    theirs = getattr(torch.ops.aten, f"_{name}_backward_data").out
    result = "grad_input" if name == "softmax" else "out"

    def kernel(dy: Any, y: Any, dim: int, input_dtype: Any) -> Any:
        # Only half_to_float has an x of another type than dy.
        halves = dy.dtype is torch.float32 and input_dtype is torch.float16
        dtype = input_dtype if halves else dy.dtype
        if dtype is input_dtype and dy.dtype is y.dtype and dy.shape == y.shape:
            dx = _launched(calls, dy, dim, dtype, y)
            if dx is not None:
                return dx
        return theirs(dy, y, dim, input_dtype, **{result: _empty(dy, dtype)})

    return kernel


def _launched(calls: Any, x: Any, dim: int, dtype: Any, *rest: Any) -> Any:
    """Return the result of softgen's kernel, contiguous; None where PyTorch has to compute it.

    PyTorch calls kernels below autograd with the caller's modes, under which nothing is launched on
    a tensor that requires a gradient or while tangents are recorded. Nobody records here.
    """
    if x.dtype not in FLOATS or not x.numel() or not -x.dim() <= dim < x.dim():
        return None
    tracked, tangents = is_grad_enabled(), takes_tangents()
    set_grad_enabled(False)
    set_takes_tangents(False)
    try:
        if not is_eager(x, *rest):
            return None
        # An entry for tensors is not like a Parameter.
        x, *others = (each if type(each) is Tensor else each.detach() for each in (x, *rest))
        return calls[Tensor](x, None, dim, dtype, tuning(), None, None, tuple(others))
    except (CaptureError, NotSupportedError):
        return None
    finally:
        set_grad_enabled(tracked)
        set_takes_tangents(tangents)


def _empty(x: Any, dtype: Any) -> Any:
    """Return what an operator with `out=` gives its shape."""
    return torch.empty(0, dtype=dtype, device=x.device)


def _wraps(theirs: Kernel) -> Callable[[Kernel], Kernel]:
    """Make a function stand for PyTorch's own; torch.jit.script compiles PyTorch's in its place."""

    def become(call: Kernel) -> Kernel:
        wrapper: Any = functools.wraps(theirs)(call)
        wrapper.__prepare_scriptable__ = lambda: theirs
        _stands_for[wrapper] = theirs
        found: Kernel = wrapper
        return found

    return become


# A wrapper is made once: dynamo knows it by its identity, from its first look at torch on.
@functools.cache
def _along_dim(mine: Kernel, theirs: Kernel) -> Kernel:
    """Return what wraps softmax or log_softmax of torch.nn.functional."""

    @_wraps(theirs)
    def call(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        if is_dynamo_compiling():
            return theirs(input, dim, _stacklevel, dtype)
        if _library is not None and _widens(input, dim, dtype):
            try:
                return mine(input, dim, dtype=torch.float32)
            except CaptureError:
                pass
        return theirs(input, dim, _stacklevel + 1, dtype)

    return call


def _widens(x: Any, dim: Any, dtype: Any) -> bool:
    """Whether softgen computes a float32 result of bfloat16, which PyTorch converts first.

    It converts no float16 first: its own kernel has half_to_float.
    """
    return (
        is_eager(x)
        and x.dtype is torch.bfloat16
        and x.numel() > 0
        and isinstance(dim, int)
        and -x.dim() <= dim < x.dim()
        and (dtype is torch.float32 or (dtype is None and torch.is_autocast_enabled(x.device.type)))
        and not has_torch_function_variadic(x)
    )


@functools.cache
def _of_classes(mine: Kernel, theirs: Kernel) -> Kernel:
    """Return what wraps torch.nn.functional.cross_entropy."""

    @_wraps(theirs)
    def call(
        input: Any,
        target: Any,
        weight: Any = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        given = (
            *(input, target, weight, size_average, ignore_index, reduce),
            *(reduction, label_smoothing),
        )
        if is_dynamo_compiling():
            return theirs(*given)
        plain = weight is size_average is reduce is None
        if _library is not None and plain and _is_loss(input, target, *given[-2:]):
            try:
                return mine(*given)
            except CaptureError:
                pass
        return theirs(*given)

    return call


def _is_loss(x: Any, target: Any, reduction: Any, smoothing: Any) -> bool:
    """Whether softgen computes the loss of class indices."""
    return (
        is_eager(x, target)
        and x.dtype in FLOATS
        and x.numel() > 0
        and target.dtype is torch.int64
        and target.device == x.device
        and x.dim() in (1, 2)
        and target.shape == x.shape[:-1]
        and reduction in REDUCTIONS
        and _is_share(smoothing)
        and not has_torch_function_variadic(x, target)
    )


def _is_share(smoothing: Any) -> bool:
    """Whether softgen takes it as label_smoothing; PyTorch takes a bool and a tensor too."""
    return is_number(smoothing) and not isinstance(smoothing, bool) and 0 <= smoothing <= 1


@functools.cache
def _of_hidden(mine: Kernel, theirs: Kernel) -> Kernel:
    """Return what wraps torch.nn.functional.linear_cross_entropy."""

    @_wraps(theirs)
    def call(
        input: Any,
        linear_weight: Any,
        target: Any,
        *,
        linear_bias: Any = None,
        weight: Any = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
    ) -> Any:
        given = {
            "linear_bias": linear_bias,
            "weight": weight,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
        }
        tensors = (input, linear_weight, target, linear_bias)
        plain = not is_dynamo_compiling() and _library is not None and weight is None
        if plain and _is_head(*tensors, reduction, label_smoothing):
            try:
                ignored = -100 if ignore_index is None else ignore_index
                return mine(*tensors[:3], ignore_index=ignored, **given)
            except CaptureError:
                pass
        return theirs(*tensors[:3], ignore_index=ignore_index, options=options, **given)

    return call


def _is_head(x: Any, weight: Any, target: Any, bias: Any, reduction: Any, smoothing: Any) -> bool:
    """Whether softgen computes the loss of class indices under a linear layer."""
    others = [each for each in (weight, bias) if each is not None]
    return (
        is_eager(x, target, *others)
        and x.dtype in FLOATS
        and x.numel() > 0
        and target.dtype is torch.int64
        and all(each.device == x.device for each in (target, *others))
        and all(each.dtype is x.dtype for each in others)
        and x.dim() in (1, 2)
        and weight.dim() == 2
        and weight.shape[1] == x.shape[-1]
        and target.shape == x.shape[:-1]
        and (bias is None or bias.shape == weight.shape[:1])
        and reduction in REDUCTIONS
        and _is_share(smoothing)
        and not has_torch_function_variadic(x, target, *others)
    )


# What makes a wrapper of softgen's function and PyTorch's own, and softgen's.
WRAPPERS: dict[str, tuple[Callable[[Kernel, Kernel], Kernel], Kernel]] = {
    "softmax": (_along_dim, functional.softmax),
    "log_softmax": (_along_dim, functional.log_softmax),
    "cross_entropy": (_of_classes, losses.cross_entropy),
    "linear_cross_entropy": (_of_hidden, linear.linear_cross_entropy),
}
