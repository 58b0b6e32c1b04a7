"""The competitors that are other people's libraries, each called in the cheapest way it offers.

Those that cannot write into a given output allocate one a call. Such results are kept until their
turn comes again, so that a launch does not write where the one before wrote, and hit L2.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from softgen.bench.buffers import SharedBuffers
from softgen.bench.check import TOLERANCE
from softgen.bench.peers import AbsentError, Entrant, Library, Peer
from softgen.bench.torch_expressions import BY_NAME, OF_LOGITS, OF_TORCH, expression
from softgen.problems.dtypes import DType

ALLOCATES = "allocates its result"
# Its kernels are those of max-autotune: that would capture graphs of its own, inside of ours.
AUTOTUNED_MODE = "max-autotune-no-cudagraphs"

OF_QUACK = (
    *("softmax", "softmax_backward"),
    *("cross_entropy", "cross_entropy_grad", "cross_entropy_backward"),
)
OF_LIGER = ("softmax", "softmax_backward", "cross_entropy_grad")
SOFTMAX_ONLY = ("softmax",)  # as it is called here, whatever else a library may have


def library_peers() -> list[Peer]:
    """Return the libraries that may be installed."""
    return [
        Peer("torch", _torch, ("torch",), functions=OF_TORCH, cases=True),
        Peer("torch.compile", _torch_compile, ("torch",), True, OF_TORCH, cases=True),
        Peer("triton", _triton, ("torch", "triton"), functions=SOFTMAX_ONLY),
        Peer("cupyx", _cupyx, ("cupyx",), functions=SOFTMAX_ONLY),
        Peer("quack", _quack, ("torch", "quack"), compiles=True, functions=OF_QUACK),
        Peer("liger", _liger, ("torch", "liger_kernel"), functions=OF_LIGER),
        Peer("flashinfer", _flashinfer, ("torch", "flashinfer"), functions=SOFTMAX_ONLY),
    ]


def autotuned_peers() -> list[Peer]:
    """Return `torch.compile` told to search: it times its kernels' settings, for many seconds."""
    made = Peer(
        "torch.compile-max-autotune", _torch_autotuned, ("torch",), True, OF_TORCH, cases=True
    )
    return [made]


def lesson_peers() -> list[Peer]:
    """Return what the Triton tutorial compares with, and the kernel that it had before today's."""
    return [
        Peer("torch-unfused", _unfused, ("torch",), functions=SOFTMAX_ONLY),
        Peer("torch-unfused-script", _scripted, ("torch",), functions=SOFTMAX_ONLY),
        Peer("triton-one-row", _triton_one_row, ("torch", "triton"), functions=SOFTMAX_ONLY),
    ]


def _writing(buffers: SharedBuffers, call: Callable[[Any, Any], Any], note: str = "") -> Entrant:
    """Return the entrant of a function (x, out) of tensors."""
    x, y, pairs = buffers.torch_x, buffers.torch_y, buffers.pairs

    def launch(i: int) -> None:
        call(x[i % pairs], y[i % pairs])

    return Entrant(launch, Library.TORCH, note)


def _allocating(buffers: SharedBuffers, call: Callable[..., Any], wanted: Any = None) -> Entrant:
    """Return the entrant of a function of the inputs, as tensors, that returns a new one.

    Its dtype has to be `wanted`, by default that of x.
    """
    import torch

    inputs, pairs = buffers.torch_inputs, buffers.pairs
    kept: dict[int, Any] = {}
    wanted = wanted or inputs[0][0].dtype

    def launch(i: int) -> None:
        kept[i % pairs] = call(*inputs[i % pairs])

    def collect() -> None:
        if kept[0].dtype != wanted:
            raise AbsentError(f"returns {kept[0].dtype}, not {wanted}")
        with torch.cuda.stream(buffers.torch_stream):
            buffers.torch_y[0].copy_(kept[0])

    def result(i: int) -> int:
        return int(kept[i % pairs].data_ptr())

    return Entrant(launch, Library.TORCH, ALLOCATES, collect, result)


def _torch(buffers: SharedBuffers) -> Entrant:
    import torch

    shape, pairs = buffers.shape, buffers.pairs
    name, axis = shape.function.name, shape.axis
    inputs, given = buffers.torch_inputs, buffers.torch_given
    if name in BY_NAME and not given:
        function, out = getattr(torch, name), buffers.torch_y

        def launch(i: int) -> None:
            function(inputs[i % pairs][0], axis, out=out[i % pairs])

        return Entrant(launch, Library.TORCH)
    written, wanted = expression(shape), buffers.torch_y[0].dtype
    # A gradient from float32 numbers of a row is float32, until it is rounded to the type of x.
    found = _allocating(buffers, lambda *tensors: written(*tensors, **given).to(wanted), wanted)
    return replace(found, coarseness=_coarseness(buffers), first_alone=name in OF_LOGITS)


def _torch_compile(buffers: SharedBuffers, mode: str = "default") -> Entrant:
    import torch

    written, pairs = expression(buffers.shape), buffers.pairs
    inputs, given, out = buffers.torch_inputs, buffers.torch_given, buffers.torch_y

    # Inductor fuses the copy away.
    def into(out: Any, *tensors: Any, **given: Any) -> None:
        out.copy_(written(*tensors, **given))

    compiled = torch.compile(into, dynamic=False, fullgraph=True, mode=mode)

    def launch(i: int) -> None:
        compiled(out[i % pairs], *inputs[i % pairs], **given)

    alone = buffers.shape.function.name in OF_LOGITS
    return Entrant(launch, Library.TORCH, coarseness=_coarseness(buffers), first_alone=alone)


def _torch_autotuned(buffers: SharedBuffers) -> Entrant:
    return replace(_torch_compile(buffers, AUTOTUNED_MODE), note=f"mode {AUTOTUNED_MODE}")


def _coarseness(buffers: SharedBuffers) -> float:
    """Return how much larger its error may be, as it rounds each step of a hook to the type of x.

    Up to three steps of 2^-6 in the exponent, where |x| is up to 8 in bfloat16; so are those of
    rows of logits.
    """
    if buffers.shape.dtype.itemsize > 2:
        return 1.0
    result = buffers.problem.results[0].float_type
    of_type = TOLERANCE[buffers.shape.dtype] / TOLERANCE[result]
    return of_type * (4.0 if buffers.given or buffers.shape.function.name in OF_LOGITS else 1.0)


def _unfused(buffers: SharedBuffers) -> Entrant:
    from softgen.bench.unfused import unfused

    return _allocating(buffers, unfused)


def _scripted(buffers: SharedBuffers) -> Entrant:
    import torch

    from softgen.bench.unfused import scripted

    # On the stream that is captured: it must not compile there.
    with torch.cuda.stream(buffers.torch_stream), torch.no_grad():
        return _allocating(buffers, scripted(buffers.torch_x[0]))


def _triton_one_row(buffers: SharedBuffers) -> Entrant:
    from softgen.bench.triton_softmax import one_row

    if buffers.shape.dtype is DType.FLOAT64:
        raise AbsentError("computes in float32")
    return _writing(buffers, one_row, "a program a row")


def _triton(buffers: SharedBuffers) -> Entrant:
    from softgen.bench.triton_softmax import WARPS, fit

    if buffers.shape.dtype is DType.FLOAT64:
        raise AbsentError("computes in float32")
    fitted = fit(buffers.torch_x[0], buffers.torch_y[0], buffers.arch)
    note = f"{fitted.programs} programs, {fitted.stages} stages, {WARPS} warps"
    return _writing(buffers, fitted.launch, note)


def _cupyx(buffers: SharedBuffers) -> Entrant:
    from cupyx.scipy.special import softmax

    x, pairs = buffers.x, buffers.pairs
    kept: dict[int, Any] = {}

    def launch(i: int) -> None:
        kept[i % pairs] = softmax(x[i % pairs], axis=-1)

    def collect() -> None:
        if kept[0].dtype != x[0].dtype:
            raise AbsentError(f"returns {kept[0].dtype}, not {x[0].dtype}")
        with buffers.player.stream:
            buffers.y[0][...] = kept[0]

    def result(i: int) -> int:
        return int(kept[i % pairs].data.ptr)

    return Entrant(launch, Library.CUPY, ALLOCATES, collect, result)


def _quack(buffers: SharedBuffers) -> Entrant:
    name = buffers.shape.function.name
    if name == "cross_entropy_backward":
        return _quack_gradient(buffers)
    if name in OF_LOGITS:
        return _quack_loss(buffers, with_gradient=name == "cross_entropy_grad")
    # Not `import quack.softmax`: the package puts a function of that name before its module.
    module = importlib.import_module("quack.softmax")
    if name == "softmax_backward":
        return _allocating(buffers, module.softmax_bwd)

    # softmax() and softmax_fwd() allocate and then call this, which writes into `out`.
    forward = getattr(module, "_softmax_fwd", None)
    if forward is None:
        return _allocating(buffers, module.softmax)
    return _writing(buffers, forward)


def _quack_loss(buffers: SharedBuffers, *, with_gradient: bool) -> Entrant:
    """Return QuACK's losses and lse, or its losses and their gradient without an upstream."""
    loss = importlib.import_module("quack.cross_entropy").cross_entropy_fwd
    if not with_gradient:
        losses = _allocating(
            buffers,
            lambda x, target, *_: loss(x, target, return_lse=True)[0],
            buffers.torch_y[0].dtype,
        )
        return replace(losses, first_alone=True)
    gradients = _allocating(buffers, lambda x, target, *_: loss(x, target, return_dx=True)[1])
    return replace(gradients, computes=False, note="gradients of the losses' plain sum")


def _quack_gradient(buffers: SharedBuffers) -> Entrant:
    """Return QuACK's gradient from lse, with an upstream gradient of each row."""
    import torch

    gradient = importlib.import_module("quack.cross_entropy").cross_entropy_bwd_out
    inputs, out, pairs = buffers.torch_inputs, buffers.torch_y, buffers.pairs
    upstream = torch.full((buffers.shape.rows,), inputs[0][4], device=out[0].device)

    def launch(i: int) -> None:
        x, target, _, lse, *_ = inputs[i % pairs]
        gradient(x, target, upstream, lse, out[i % pairs])

    return Entrant(launch, Library.TORCH)


def _liger(buffers: SharedBuffers) -> Entrant:
    from liger_kernel.ops import softmax

    name, cols = buffers.shape.function.name, buffers.shape.cols
    if name == "cross_entropy_grad":
        return _liger_loss(buffers)
    if name == "softmax_backward":
        size, warps = softmax.calculate_settings(cols)
        return _allocating(
            buffers, lambda dy, y: softmax._softmax_backward(dy, y, size, warps, cols > size)
        )
    return _allocating(buffers, softmax.LigerSoftmaxFunction.apply)


def _liger_loss(buffers: SharedBuffers) -> Entrant:
    """Return Liger's losses, whose gradients it writes over its input: over copies of x here.

    Its kernel alone: what launches it counts targets on the host.
    """
    import torch
    from liger_kernel.ops import cross_entropy

    inputs, over, pairs = buffers.torch_inputs, buffers.torch_y, buffers.pairs
    rows, cols = buffers.shape.rows, buffers.shape.cols
    size = min(cross_entropy.MAX_FUSED_SIZE, 1 << (cols - 1).bit_length())
    losses = torch.zeros(rows, dtype=over[0].dtype, device=over[0].device)
    for (x, *_), copy in zip(inputs, over, strict=True):
        copy.copy_(x)

    def launch(i: int) -> None:
        x, target = over[i % pairs], inputs[i % pairs][1]
        cross_entropy.liger_cross_entropy_kernel[(rows,)](
            X_ptr=x,
            X_stride=cols,
            Y_ptr=target,
            Y_stride=1,
            weight_ptr=None,
            loss_ptr=losses,
            z_loss_ptr=None,
            loss_stride=1,
            token_accuracy_ptr=None,
            token_accuracy_stride=0,
            predicted_tokens_ptr=None,
            predicted_tokens_stride=0,
            n_cols=cols,
            n_non_ignore=rows,
            sum_non_ignore_weight=rows,
            ignore_index=-100,
            weight_sum=0.0,
            lse_square_scale=0.0,
            label_smoothing=0.0,
            reduction="sum",
            softcap=None,
            RETURN_Z_LOSS=False,
            RETURN_TOKEN_ACCURACY=False,
            RETURN_PREDICTED_TOKENS=False,
            BLOCK_SIZE=size,
            HAS_WEIGHT=False,
            HAS_SOFTCAPPING=False,
            HAS_GRADIENTS=True,
            num_warps=32,
        )

    note = "gradients of the losses' plain sum, written over x"
    return Entrant(launch, Library.TORCH, note, computes=False)


def _flashinfer(buffers: SharedBuffers) -> Entrant:
    from flashinfer.sampling import softmax

    if buffers.shape.dtype is not DType.FLOAT32:
        raise AbsentError("computes float32; other types are converted by a kernel before it")
    return _allocating(buffers, softmax)
