"""The competitors of suites routing, topk and sample: what others choose of rows of logits.

Results are compared by name, as a competitor gives fewer of them than softgen does. A sample is
right where its filters leave it: each library has random numbers of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from softgen.bench.buffers import SharedBuffers
from softgen.bench.peers import AbsentError, Entrant, Library, Peer
from softgen.bench.shape import SAMPLED
from softgen.problems.dtypes import DType
from softgen.problems.functions.ranked_log_probs import RankedLogProbs
from softgen.problems.functions.topk_softmax import TopkSoftmax
from softgen.problems.problem import Problem
from softgen.tuning.measure import Buffers, launch_over

WEIGHTS, BEST = ("weights", "ids"), ("top_log_probs", "top_ids")
MOST_QUACK = 4096  # columns, a power of two, as is k

# By how much of itself a probability may pass a filter: others have theirs in float32.
EDGE = 1e-3


def choosing_peers() -> list[Peer]:
    """Return those of routers and of the best tokens."""
    return [
        Peer("torch.topk", _torch, ("torch",)),
        Peer("torch.compile-topk", _compiled, ("torch",), compiles=True),
        Peer("torch.topk-softgen", _with_softgen, ("torch",)),
        Peer("flashinfer.topk", _flashinfer, ("torch", "flashinfer")),
        Peer("sglang", _sglang, ("torch", "sgl_kernel")),
        Peer("vllm", _vllm, ("torch", "vllm")),
        Peer("quack.topk", _quack, ("torch", "quack"), compiles=True),
    ]


def sampling_peers() -> list[Peer]:
    """Return those that draw a sample of each row."""
    return [
        Peer(name, prepare, packages, cases=True, samples=True)
        for name, prepare, packages in (
            ("torch.multinomial", _multinomial, ("torch",)),
            ("torch.gumbel", _gumbel, ("torch",)),
            ("flashinfer.sampling", _flashinfer_sample, ("torch", "flashinfer")),
            ("flashinfer.top_k_top_p", _flashinfer_fused, ("torch", "flashinfer")),
        )
    ]


def yardsticks() -> list[Peer]:
    """Return softgen's softmax and logsumexp of the shape, whose bytes a choice reads."""
    return [
        Peer(f"softgen-{name}", _yardstick(name), cases=True, samples=True)
        for name in ("softmax", "logsumexp")
    ]


def _yardstick(name: str) -> Callable[[SharedBuffers], Entrant]:
    def prepare(buffers: SharedBuffers) -> Entrant:
        from softgen.call.plan import plan

        shape = buffers.shape
        own = Buffers.allocate(Problem.of(name, shape.dtype, shape.cols), shape.rows, whole=True)
        kernel = plan(name, shape.dtype, shape.cols, rows=shape.rows).loaded
        launch = launch_over(own, kernel, buffers.player)
        return Entrant(launch, note=f"{kernel.variant.strategy.label}; no choice", computes=False)

    return prepare


def expression(function: Any) -> Callable[..., tuple[Any, Any]]:
    """Return f(*inputs) of tensors: what people write in PyTorch for a choice.

    Raises AbsentError for a function that chooses nothing.
    """
    import torch

    if isinstance(function, RankedLogProbs):

        def best(x: Any, ids: Any) -> tuple[Any, Any]:
            found = torch.log_softmax(x, -1, dtype=torch.float32).topk(function.k)
            return found.values, found.indices

        return best
    if not isinstance(function, TopkSoftmax):
        raise AbsentError(f"chooses elements of rows; {function} chooses none")

    def routed(x: Any, *others: Any) -> tuple[Any, Any]:
        scores = x.float().sigmoid() if function.sigmoid else x.softmax(-1, dtype=torch.float32)
        compared = scores + others[0] if function.bias else scores
        if function.groups:
            groups = compared.unflatten(-1, (function.groups, -1))
            ranked = groups.topk(2 if function.bias else 1).values.sum(-1)
            kept = ranked.topk(function.kept_groups).indices
            is_kept = torch.zeros_like(ranked).scatter(-1, kept, 1)[..., None] > 0
            compared = groups.masked_fill(~is_kept, float("-inf")).flatten(-2)
        ids = compared.topk(function.k).indices
        weights = scores.gather(-1, ids)
        if function.renormalize:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights * others[-1], ids

    return routed


def _giving(
    buffers: SharedBuffers, call: Callable[..., Any], names: tuple[str, ...], note: str = ""
) -> Entrant:
    """Return the entrant of a function of the inputs that returns new tensors of those names."""
    import torch

    inputs, pairs = buffers.torch_inputs, buffers.pairs
    kept: dict[int, Any] = {}

    def launch(i: int) -> None:
        kept[i % pairs] = call(*inputs[i % pairs])

    def collect() -> None:
        with torch.cuda.stream(buffers.torch_stream):
            for name, found in zip(names, kept[0], strict=True):
                buffers.torch_results[0][name].copy_(found)

    def result(i: int) -> int:
        return int(kept[i % pairs][0].data_ptr())

    return Entrant(launch, Library.TORCH, note, collect, result, gives=names)


def _writing(buffers: SharedBuffers, call: Callable[..., None]) -> Entrant:
    """Return the entrant of a function (weights, ids, *inputs) that writes into the first two."""
    inputs, pairs = buffers.torch_inputs, buffers.pairs
    outputs = [tuple(found[name] for name in WEIGHTS) for found in buffers.torch_results]

    def launch(i: int) -> None:
        call(*outputs[i % pairs], *inputs[i % pairs])

    return Entrant(launch, Library.TORCH, gives=WEIGHTS)


def _names(buffers: SharedBuffers) -> tuple[str, ...]:
    return BEST if isinstance(buffers.shape.function, RankedLogProbs) else WEIGHTS


def _torch(buffers: SharedBuffers) -> Entrant:
    return _giving(buffers, expression(buffers.shape.function), _names(buffers))


def _compiled(buffers: SharedBuffers) -> Entrant:
    import torch

    written = expression(buffers.shape.function)
    return _giving(buffers, torch.compile(written, dynamic=False, fullgraph=True), _names(buffers))


def _with_softgen(buffers: SharedBuffers) -> Entrant:
    """Return torch.topk, whose log-probabilities softgen's logsumexp makes."""
    import torch

    import softgen

    function = buffers.shape.function
    if not isinstance(function, RankedLogProbs):
        raise AbsentError("is for log-probabilities of the best")

    def best(x: Any, ids: Any) -> tuple[Any, Any]:
        found = torch.topk(x, function.k)
        lse = softgen.logsumexp(x, dtype="float32")
        return found.values - lse[:, None], found.indices

    return _giving(buffers, best, BEST, "torch.topk with softgen.logsumexp")


def _router(buffers: SharedBuffers) -> TopkSoftmax:
    """Return the function of a router; AbsentError for another."""
    function = buffers.shape.function
    if not isinstance(function, TopkSoftmax):
        raise AbsentError("is for routers")
    return function


def _is_deepseek(function: TopkSoftmax) -> bool:
    """Whether it is DeepSeek-V3's router, and not softmax alone; AbsentError for another."""
    deepseek = bool(function.sigmoid and function.bias and function.groups)
    if not deepseek and (function.sigmoid or function.bias or function.groups):
        raise AbsentError("has softmax alone, and sigmoid with a bias and groups")
    return deepseek


def _flashinfer(buffers: SharedBuffers) -> Entrant:
    function = buffers.shape.function
    if isinstance(function, RankedLogProbs):
        flashinfer = importlib.import_module("flashinfer")

        def best(x: Any, ids: Any) -> tuple[Any]:
            return (flashinfer.top_k(x, function.k, sorted=True)[1],)

        return _giving(buffers, best, BEST[1:], "top_k alone, without log-probabilities")
    router = _router(buffers)
    if not _is_deepseek(router) or not router.renormalize:
        raise AbsentError("has the router of DeepSeek-V3 alone")
    routed = importlib.import_module("flashinfer.fused_moe").fused_topk_deepseek
    bias = buffers.torch_inputs[0][1].to(buffers.torch_x[0].dtype)

    def call(x: Any, _: Any, scale: float) -> tuple[Any]:
        weights = x.new_empty((len(x), router.k))
        ids = weights.new_empty(weights.shape, dtype=buffers.torch_results[0]["ids"].dtype)
        routed(x, bias, router.groups, router.kept_groups, router.k, scale, weights, ids)
        return (ids,)

    return _giving(buffers, call, WEIGHTS[1:], "weights and bias in x's type; ids are checked")


def _sglang(buffers: SharedBuffers) -> Entrant:
    router = _router(buffers)
    sgl_kernel = importlib.import_module("sgl_kernel")
    if not _is_deepseek(router):

        def call(weights: Any, ids: Any, x: Any, scale: float) -> None:
            sgl_kernel.topk_softmax(weights, ids, x, router.renormalize)

        return _writing(buffers, call)

    def gate(x: Any, bias: Any, scale: float) -> Any:
        groups = (router.groups, router.kept_groups, router.k)
        return sgl_kernel.moe_fused_gate(x, bias.to(x.dtype), *groups, 0, scale, True)

    return _giving(buffers, gate, WEIGHTS)


def _vllm(buffers: SharedBuffers) -> Entrant:
    import torch

    router = _router(buffers)
    ops = importlib.import_module("vllm._custom_ops")
    if not _is_deepseek(router):
        shape = (buffers.shape.rows, router.k)
        places = torch.empty(shape, dtype=torch.int32, device=buffers.torch_x[0].device)

        def call(weights: Any, ids: Any, x: Any, scale: float) -> None:
            ops.topk_softmax(weights, ids, places, x, router.renormalize)

        return _writing(buffers, call)

    def routed(x: Any, bias: Any, scale: float) -> Any:
        groups = (router.groups, router.kept_groups, router.k)
        return ops.grouped_topk(x, *groups, router.renormalize, scale, bias.to(x.dtype), 1)

    return _giving(buffers, routed, WEIGHTS)


def _quack(buffers: SharedBuffers) -> Entrant:
    router, cols = _router(buffers), buffers.shape.cols
    of_two = all(number & (number - 1) == 0 for number in (router.k, cols))
    if not of_two or cols > MOST_QUACK or router.chooses_scores or router.groups:
        raise AbsentError(f"chooses elements alone, k and columns powers of two, to {MOST_QUACK}")
    topk = importlib.import_module("quack.topk").topk_fwd
    return _giving(
        *(buffers, lambda x, *_: topk(x, router.k)[1:], WEIGHTS[1:]),
        "elements alone, without weights",
    )


def sampled(
    buffers: SharedBuffers, draw: Callable[[Any], Any], filtered: bool, note: str = ""
) -> Entrant:
    """Return the entrant of a function of x that returns the ids of a sample of each row.

    `filtered` says whether it applies the filters of `shape.SAMPLED`, or the temperature alone.
    """
    x, pairs = buffers.torch_x, buffers.pairs
    kept: dict[int, Any] = {}

    def launch(i: int) -> None:
        kept[i % pairs] = draw(x[i % pairs])

    def objection() -> str:
        rows = slice(None, None, max(1, x[0].numel() >> 24))  # of 2^24 elements
        return not_drawn(x[0][rows], kept[0].reshape(-1)[rows], filtered)

    def result(i: int) -> int:
        return int(kept[i % pairs].data_ptr())

    note = "; ".join(filter(None, (note, "" if filtered else "temperature alone")))
    return Entrant(launch, Library.TORCH, note, result=result, objection=objection)


def not_drawn(x: Any, ids: Any, filtered: bool) -> str:
    """Return what is wrong with samples of rows of logits, or "".

    Args:
        x: the logits.
        ids: a column a row.
        filtered: whether they are of what the filters leave, or of all.
    """
    import torch

    ids = ids.long()[:, None]
    if bool(((ids < 0) | (ids >= x.shape[1])).any()):
        return "a sample is no column"
    if not filtered:
        return ""
    p = torch.softmax(x.double() / SAMPLED["temperature"], -1)
    order = p.sort(-1, descending=True).values[:, : SAMPLED["top_k"]]
    mine = p.gather(-1, ids)
    kept = order * (order >= SAMPLED["min_p"] * order[:, :1])
    larger = torch.where(order > mine, kept, 0).sum(-1, keepdim=True)
    is_left = {
        "top_k": mine >= order[:, -1:] * (1 - EDGE),
        "min_p": mine >= SAMPLED["min_p"] * order[:, :1] * (1 - EDGE),
        "top_p": larger <= (SAMPLED["top_p"] + EDGE) * kept.sum(-1, keepdim=True),
    }
    for name, left in is_left.items():
        if not bool(left.all()):
            return f"{int((~left).sum())} of {len(x)} samples are outside of {name}"
    return ""


def softgen_sample(buffers: SharedBuffers) -> Entrant:
    """Return softgen's call on tensors."""
    import softgen

    def draw(x: Any) -> Any:
        return softgen.sample(x, seed=0, **SAMPLED)[0]

    return sampled(buffers, draw, filtered=True, note="a call")


def _multinomial(buffers: SharedBuffers) -> Entrant:
    import torch

    def draw(x: Any) -> Any:
        p = torch.softmax(x / SAMPLED["temperature"], -1, dtype=torch.float32)
        return torch.multinomial(p, 1)

    return sampled(buffers, draw, filtered=False)


def _gumbel(buffers: SharedBuffers) -> Entrant:
    import torch

    def draw(x: Any) -> Any:
        noise = torch.empty(x.shape, dtype=torch.float32, device=x.device).exponential_()
        return (x / SAMPLED["temperature"] - noise.log()).argmax(-1)

    return sampled(buffers, draw, filtered=False)


def _flashinfer_sample(buffers: SharedBuffers) -> Entrant:
    """Return all filters, by a kernel each, as SGLang calls them."""
    of = importlib.import_module("flashinfer.sampling")

    def draw(x: Any) -> Any:
        p = of.softmax(_float32(buffers, x), temperature=SAMPLED["temperature"])
        p = of.top_p_renorm_probs(of.top_k_renorm_probs(p, SAMPLED["top_k"]), SAMPLED["top_p"])
        return of.min_p_sampling_from_probs(p, SAMPLED["min_p"])

    return sampled(buffers, draw, filtered=True)


def _flashinfer_fused(buffers: SharedBuffers) -> Entrant:
    of = importlib.import_module("flashinfer.sampling")

    def draw(x: Any) -> Any:
        p = of.softmax(_float32(buffers, x), temperature=SAMPLED["temperature"])
        return of.top_k_top_p_sampling_from_probs(p, SAMPLED["top_k"], SAMPLED["top_p"])

    return sampled(buffers, draw, filtered=False, note="top_k and top_p, no min_p")


def _float32(buffers: SharedBuffers, x: Any) -> Any:
    return x if buffers.shape.dtype is DType.FLOAT32 else x.float()
