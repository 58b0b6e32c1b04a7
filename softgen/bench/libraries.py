"""The competitors that are other people's libraries, each called in the cheapest way it offers.

Those that cannot write into a given output allocate one a call. Such results are kept until their
turn comes again, so that a launch does not write where the one before wrote, and hit L2.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from softgen.bench.arena import Arena
from softgen.bench.check import TOLERANCE
from softgen.bench.peers import AbsentError, Entrant, Library, Peer
from softgen.bench.usual import BY_NAME, OF_LOGITS, OF_TORCH, expression
from softgen.spec.dtypes import DType

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


def _writing(arena: Arena, call: Callable[[Any, Any], Any], note: str = "") -> Entrant:
    """Return the entrant of a function (x, out) of tensors."""
    x, y, pairs = arena.torch_x, arena.torch_y, arena.pairs

    def launch(i: int) -> None:
        call(x[i % pairs], y[i % pairs])

    return Entrant(launch, Library.TORCH, note)


def _allocating(arena: Arena, call: Callable[..., Any], wanted: Any = None) -> Entrant:
    """Return the entrant of a function of the inputs, as tensors, that returns a new one.

    Its dtype has to be `wanted`, by default that of x.
    """
    import torch

    inputs, pairs = arena.torch_inputs, arena.pairs
    kept: dict[int, Any] = {}
    wanted = wanted or inputs[0][0].dtype

    def launch(i: int) -> None:
        kept[i % pairs] = call(*inputs[i % pairs])

    def collect() -> None:
        if kept[0].dtype != wanted:
            raise AbsentError(f"returns {kept[0].dtype}, not {wanted}")
        with torch.cuda.stream(arena.torch_stream):
            arena.torch_y[0].copy_(kept[0])

    def result(i: int) -> int:
        return int(kept[i % pairs].data_ptr())

    return Entrant(launch, Library.TORCH, ALLOCATES, collect, result)


def _torch(arena: Arena) -> Entrant:
    import torch

    shape, pairs = arena.shape, arena.pairs
    name, axis = shape.function.name, shape.axis
    inputs, given = arena.torch_inputs, arena.torch_given
    if name in BY_NAME and not given:
        function, out = getattr(torch, name), arena.torch_y

        def launch(i: int) -> None:
            function(inputs[i % pairs][0], axis, out=out[i % pairs])

        return Entrant(launch, Library.TORCH)
    written, wanted = expression(shape), arena.torch_y[0].dtype
    # A gradient from float32 numbers of a row is float32, until it is rounded to the type of x.
    found = _allocating(arena, lambda *tensors: written(*tensors, **given).to(wanted), wanted)
    return replace(found, coarseness=_coarseness(arena), first_alone=name in OF_LOGITS)


def _torch_compile(arena: Arena, mode: str = "default") -> Entrant:
    import torch

    written, pairs = expression(arena.shape), arena.pairs
    inputs, given, out = arena.torch_inputs, arena.torch_given, arena.torch_y

    # Inductor fuses the copy away.
    def into(out: Any, *tensors: Any, **given: Any) -> None:
        out.copy_(written(*tensors, **given))

    compiled = torch.compile(into, dynamic=False, fullgraph=True, mode=mode)

    def launch(i: int) -> None:
        compiled(out[i % pairs], *inputs[i % pairs], **given)

    alone = arena.shape.function.name in OF_LOGITS
    return Entrant(launch, Library.TORCH, coarseness=_coarseness(arena), first_alone=alone)


def _torch_autotuned(arena: Arena) -> Entrant:
    return replace(_torch_compile(arena, AUTOTUNED_MODE), note=f"mode {AUTOTUNED_MODE}")


def _coarseness(arena: Arena) -> float:
    """Return how much more it may be off: it rounds each step of a hook to the type of x.

    Up to three steps of 2^-6 in the exponent, where |x| is up to 8 in bfloat16; so are those of
    rows of logits.
    """
    if arena.shape.dtype.itemsize > 2:
        return 1.0
    result = arena.problem.results[0].float_type
    of_type = TOLERANCE[arena.shape.dtype] / TOLERANCE[result]
    return of_type * (4.0 if arena.given or arena.shape.function.name in OF_LOGITS else 1.0)


def _unfused(arena: Arena) -> Entrant:
    from softgen.bench.unfused import unfused

    return _allocating(arena, unfused)


def _scripted(arena: Arena) -> Entrant:
    import torch

    from softgen.bench.unfused import scripted

    # On the stream that is captured: it must not compile there.
    with torch.cuda.stream(arena.torch_stream), torch.no_grad():
        return _allocating(arena, scripted(arena.torch_x[0]))


def _triton_one_row(arena: Arena) -> Entrant:
    from softgen.bench.triton_softmax import one_row

    if arena.shape.dtype is DType.FLOAT64:
        raise AbsentError("computes in float32")
    return _writing(arena, one_row, "a program a row")


def _triton(arena: Arena) -> Entrant:
    from softgen.bench.triton_softmax import WARPS, fit

    if arena.shape.dtype is DType.FLOAT64:
        raise AbsentError("computes in float32")
    fitted = fit(arena.torch_x[0], arena.torch_y[0], arena.arch)
    note = f"{fitted.programs} programs, {fitted.stages} stages, {WARPS} warps"
    return _writing(arena, fitted.launch, note)


def _cupyx(arena: Arena) -> Entrant:
    from cupyx.scipy.special import softmax

    x, pairs = arena.x, arena.pairs
    kept: dict[int, Any] = {}

    def launch(i: int) -> None:
        kept[i % pairs] = softmax(x[i % pairs], axis=-1)

    def collect() -> None:
        if kept[0].dtype != x[0].dtype:
            raise AbsentError(f"returns {kept[0].dtype}, not {x[0].dtype}")
        with arena.player.stream:
            arena.y[0][...] = kept[0]

    def result(i: int) -> int:
        return int(kept[i % pairs].data.ptr)

    return Entrant(launch, Library.CUPY, ALLOCATES, collect, result)


def _quack(arena: Arena) -> Entrant:
    name = arena.shape.function.name
    if name == "cross_entropy_backward":
        return _quack_gradient(arena)
    if name in OF_LOGITS:
        return _quack_loss(arena, with_gradient=name == "cross_entropy_grad")
    # Not `import quack.softmax`: the package puts a function of that name before its module.
    module = importlib.import_module("quack.softmax")
    if name == "softmax_backward":
        return _allocating(arena, module.softmax_bwd)

    # softmax() and softmax_fwd() allocate and then call this, which writes into `out`.
    forward = getattr(module, "_softmax_fwd", None)
    if forward is None:
        return _allocating(arena, module.softmax)
    return _writing(arena, forward)


def _quack_loss(arena: Arena, *, with_gradient: bool) -> Entrant:
    """Return QuACK's losses and lse, or its losses and their gradient without an upstream."""
    loss = importlib.import_module("quack.cross_entropy").cross_entropy_fwd
    if not with_gradient:
        losses = _allocating(
            arena, lambda x, target, *_: loss(x, target, return_lse=True)[0], arena.torch_y[0].dtype
        )
        return replace(losses, first_alone=True)
    gradients = _allocating(arena, lambda x, target, *_: loss(x, target, return_dx=True)[1])
    return replace(gradients, computes=False, note="gradients of the losses' plain sum")


def _quack_gradient(arena: Arena) -> Entrant:
    """Return QuACK's gradient from lse, with an upstream gradient of each row."""
    import torch

    gradient = importlib.import_module("quack.cross_entropy").cross_entropy_bwd_out
    inputs, out, pairs = arena.torch_inputs, arena.torch_y, arena.pairs
    upstream = torch.full((arena.shape.rows,), inputs[0][4], device=out[0].device)

    def launch(i: int) -> None:
        x, target, _, lse, *_ = inputs[i % pairs]
        gradient(x, target, upstream, lse, out[i % pairs])

    return Entrant(launch, Library.TORCH)


def _liger(arena: Arena) -> Entrant:
    from liger_kernel.ops import softmax

    name, cols = arena.shape.function.name, arena.shape.cols
    if name == "cross_entropy_grad":
        return _liger_loss(arena)
    if name == "softmax_backward":
        size, warps = softmax.calculate_settings(cols)
        return _allocating(
            arena, lambda dy, y: softmax._softmax_backward(dy, y, size, warps, cols > size)
        )
    return _allocating(arena, softmax.LigerSoftmaxFunction.apply)


def _liger_loss(arena: Arena) -> Entrant:
    """Return Liger's losses, whose gradients it writes over its input: over copies of x here.

    Its kernel alone: what launches it counts targets on the host.
    """
    import torch
    from liger_kernel.ops import cross_entropy

    inputs, over, pairs = arena.torch_inputs, arena.torch_y, arena.pairs
    rows, cols = arena.shape.rows, arena.shape.cols
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


def _flashinfer(arena: Arena) -> Entrant:
    from flashinfer.sampling import softmax

    if arena.shape.dtype is not DType.FLOAT32:
        raise AbsentError("computes float32; other types are converted by a kernel before it")
    return _allocating(arena, softmax)
