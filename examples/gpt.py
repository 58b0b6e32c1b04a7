"""A small GPT, trained from scratch: PyTorch's softmax and cross entropy against softgen's.

    python examples/gpt.py [--steps 400] [--loss linear] [--small] [--out gpt]

The text is the source of Python's standard library, cut into words; the head has 50304 columns.
Five runs start from the same seed: with PyTorch's functions, with softgen's, and three times with
PyTorch's in which softmax, the loss or both add up rows from the other end. Prints time and peak
memory of a step, the share of softmax and loss in the time of its kernels, those kernels, how far
the curves are apart, and some text from the model. Writes the curves to OUT/losses.csv and, with
Matplotlib, to OUT/losses.png, and the time of every kernel of a step to OUT/kernels.csv.

With `--loss linear` the runs are others: attention is PyTorch's fused one, and softgen's loss is
that of hidden states, which keeps no logits. PyTorch's and softgen's are eager and compiled, and
Liger's loss is a run where it is installed.
"""

from __future__ import annotations

import argparse
import csv
import gc
import re
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import softgen
import softgen.torch

VOCABULARY = 50304  # GPT-2's 50257 words, to a multiple of 128
TEXT_BYTES = 6_000_000
WARM_UP, BEFORE, PROFILED = 40, 10, 5  # steps


@dataclass(frozen=True)
class Functions:
    """Whose functions a model calls.

    Attributes:
        softmax: that of attention, which is written by hand then; None for PyTorch's attention.
        loss: of hidden states (rows, width), the weight of the head and the words that follow.
        compiled: whether the loss of a batch is compiled, model and all.
    """

    softmax: Callable[..., torch.Tensor] | None
    loss: Callable[..., torch.Tensor]
    compiled: bool = False


def of_logits(cross_entropy: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a loss of hidden states that makes all logits."""

    def loss(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(F.linear(hidden, weight), target)

    return loss


def turned_softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return PyTorch's softmax, with sums from the other end of each row."""
    return F.softmax(x.flip(dim), dim).flip(dim)


def turned_cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's loss, with sums from the other end of each row."""
    return F.cross_entropy(x.flip(1), x.shape[1] - 1 - target)


def of_liger() -> dict[str, Functions]:
    """Return a run with Liger's loss of hidden states, where it is installed."""
    try:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
    except ImportError:
        return {}
    fused = LigerFusedLinearCrossEntropyLoss()

    def loss(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = fused(weight.bfloat16(), hidden.bfloat16(), target)
        return found

    return {"Liger": Functions(None, loss)}


def runs_of(loss: str) -> dict[str, Functions]:
    """Return the runs for `--loss`, by name."""
    theirs = of_logits(F.cross_entropy)
    if loss == "linear":
        mine = softgen.torch.linear_cross_entropy
        return {
            "torch": Functions(None, theirs),
            "softgen": Functions(None, mine),
            "torch compiled": Functions(None, theirs, compiled=True),
            "softgen compiled": Functions(None, mine, compiled=True),
            **of_liger(),
        }
    turned = of_logits(turned_cross_entropy)
    return {
        "torch": Functions(F.softmax, theirs),
        "softgen": Functions(softgen.torch.softmax, of_logits(softgen.torch.cross_entropy)),
        "softmax turned": Functions(turned_softmax, theirs),
        "loss turned": Functions(F.softmax, turned),
        "both turned": Functions(turned_softmax, turned),
    }


@dataclass(frozen=True)
class Size:
    """What a model and a batch are like; `context` is the tokens of a sequence."""

    layers: int = 6
    heads: int = 6
    width: int = 384
    batch: int = 32  # with 16 a step is as long as the host takes to launch it
    context: int = 512


SMALL = Size(layers=2, heads=2, width=64, batch=4, context=64)


def words_of(text_bytes: int) -> tuple[torch.Tensor, list[str]]:
    """Return the text as numbers of words, and the words, the most frequent first."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = (path.read_text("utf-8", "replace") for path in sorted(folder.glob("*.py")))
    found = re.findall(r" ?\w+|\s+|[^\w\s]", "".join(files)[:text_bytes])
    words = [word for word, _ in Counter(found).most_common(VOCABULARY)]
    numbers = {word: i for i, word in enumerate(words)}
    text = torch.tensor([numbers.get(word, 0) for word in found])
    return text, words + [""] * (VOCABULARY - len(words))


class Block(nn.Module):
    """Attention and a network of two layers, each added to what came in."""

    def __init__(self, size: Size, functions: Functions) -> None:
        super().__init__()
        width = size.width
        self.heads, self.softmax = size.heads, functions.softmax
        self.before_attention, self.before_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the block makes of x; `hidden` is where a position must not look."""
        batch, length, width = x.shape
        parts = self.inputs(self.before_attention(x)).chunk(3, dim=-1)
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2) for each in parts)
        if self.softmax is None:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
            weights = self.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)
            seen = weights.to(v.dtype) @ v
        x = x + self.output(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.before_network(x))


class Model(nn.Module):
    """A GPT whose head is its embedding."""

    def __init__(self, size: Size, functions: Functions) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size, functions) for _ in range(size.layers))
        self.last = nn.LayerNorm(size.width)
        nn.init.normal_(self.words.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        hidden = torch.ones(size.context, size.context, dtype=torch.bool).triu(1)
        self.register_buffer("hidden", hidden, persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the hidden states that the head takes, (batch, length, width)."""
        length = words.shape[1]
        x = self.words(words) + self.positions.weight[:length]
        for block in self.blocks:
            x = block(x, self.hidden[:length, :length])
        hidden: torch.Tensor = self.last(x)
        return hidden


@dataclass
class Result:
    """What a run gave: a loss a step, and figures of a step.

    Attributes:
        model: as it is after the last step.
        step: takes one more.
        kernels: microseconds of each kernel in a step, by its name, the longest first.
    """

    losses: list[float]
    milliseconds: float
    gigabytes: float
    model: Model
    step: Callable[[], torch.Tensor]
    kernels: dict[str, float] = field(default_factory=dict)

    @property
    def kernel_milliseconds(self) -> float:
        """Return the time of all kernels in a step."""
        return sum(self.kernels.values()) / 1e3

    @property
    def share(self) -> float:
        """Return the share of softmax and loss in the time of all kernels."""
        counted = (time for name, time in self.kernels.items() if of_softmax_or_loss(name))
        return sum(counted) / 1e3 / self.kernel_milliseconds


def train(functions: Functions, size: Size, text: torch.Tensor) -> tuple[Any, Any]:
    """Return a model and the call that trains it by a step and returns the loss, a tensor."""
    torch.manual_seed(0)
    model = Model(size, functions).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1, (i + 1) / WARM_UP))
    chooser = torch.Generator().manual_seed(1)
    offsets = torch.arange(size.context + 1)

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        hidden = model(tokens[:, :-1]).flatten(0, 1)
        return functions.loss(hidden, model.words.weight, tokens[:, 1:].flatten())

    loss_of_batch = torch.compile(loss_of) if functions.compiled else loss_of
    text = text.cuda()  # a batch from the host, above 64 KB, would wait for the step before

    def step() -> torch.Tensor:
        starts = torch.randint(len(text) - size.context - 1, (size.batch, 1), generator=chooser)
        tokens = text[(starts + offsets).cuda()]
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of_batch(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return model, step


def profiled(step: Callable[[], Any]) -> dict[str, float]:
    """Return the microseconds of each kernel in a step, the longest first.

    Some steps go before: processes that wait for each other do not begin to record at one time.
    """
    profiler = torch.profiler
    plan = profiler.schedule(wait=0, warmup=BEFORE, active=PROFILED)
    with profiler.profile(activities=[profiler.ProfilerActivity.CUDA], schedule=plan) as seen:
        for i in range(BEFORE + PROFILED):
            if i:
                seen.step()
            step()
            if i >= BEFORE - 1:
                torch.cuda.synchronize()
    events = (event for event in seen.key_averages() if not event.is_user_annotation)
    times = {event.key: event.self_device_time_total / PROFILED for event in events}
    return dict(sorted(((k, t) for k, t in times.items() if t), key=lambda each: -each[1]))


def of_softmax_or_loss(kernel: str) -> bool:
    """Whether a kernel computes softmax, the loss or a gradient of them, by its name."""
    return bool(re.search("softmax|cross_entropy|nll_loss|logsumexp", kernel, re.IGNORECASE))


@torch.no_grad()
def sampled(model: Any, size: Size, words: list[str], temperature: float = 0.8) -> str:
    """Return text that the model writes, word by word, always in a whole context: one shape."""
    chooser = torch.Generator("cuda").manual_seed(2)
    tokens = torch.zeros(1, size.context, dtype=torch.long, device="cuda")
    written = size.context // 4
    for i in range(written):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = F.linear(model(tokens)[:, i], model.words.weight)
        p = softgen.softmax(logits, dtype=torch.float32, scale=1 / temperature)
        tokens[:, i + 1] = torch.multinomial(p, 1, generator=chooser)[:, 0]
    return "".join(words[number] for number in tokens[0, : written + 1].tolist())


def run(functions: Functions, size: Size, steps: int, text: torch.Tensor) -> Result:
    """Train a model, and measure its steps.

    `kernels` are counted behind all runs: where a profiler has been, each launch takes longer.
    """
    gc.collect()  # of the run before
    before = torch.cuda.memory_allocated()
    model, step = train(functions, size, text)
    losses = []
    for i in range(steps):
        if i == steps // 4:  # by now kernels are tuned and compiled
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
        losses.append(step())
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - start) / (steps - steps // 4) * 1e3
    gigabytes = (torch.cuda.max_memory_allocated() - before) / 1e9
    curve = torch.stack(losses).tolist()
    return Result(curve, milliseconds, gigabytes, model, step)


def apart(one: list[float], other: list[float]) -> tuple[float, float]:
    """Return the mean and the largest distance of two curves."""
    distances = [abs(a - b) for a, b in zip(one, other, strict=True)]
    return sum(distances) / len(distances), max(distances)


def write(folder: Path, results: dict[str, Result]) -> None:
    """Write the curves and the kernels as tables and, with Matplotlib, the curves as a plot."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "losses.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *results])
        curves = zip(*(result.losses for result in results.values()), strict=True)
        writer.writerows([i, *(f"{loss:.6f}" for loss in row)] for i, row in enumerate(curves))
    with (folder / "kernels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "kernel", "us_a_step", "softmax_or_loss"])
        for run_name, result in results.items():
            for kernel, time_of in result.kernels.items():
                writer.writerow([run_name, kernel, f"{time_of:.2f}", of_softmax_or_loss(kernel)])
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: Matplotlib is not installed (pip install '.[bench]')")
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    for name, result in results.items():
        axes.plot(result.losses, {"torch": "-", "softgen": "--"}.get(name, ":"), label=name)
    axes.legend()
    figure.savefig(folder / "losses.png", dpi=120)


def main() -> None:
    """Train the models and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400, help="of training, 400 by default")
    parser.add_argument("--loss", choices=("logits", "linear"), default="logits", help="of what")
    parser.add_argument("--small", action="store_true", help="two narrow layers, for a first look")
    parser.add_argument("--out", type=Path, default=Path("gpt"), help="folder for the curves")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs an NVIDIA GPU, and PyTorch finds none")
    size = SMALL if options.small else Size()
    text, words = words_of(TEXT_BYTES)
    print(
        f"{len(text)} words, {text.unique().numel()} different, on {torch.cuda.get_device_name()}, "
        f"PyTorch {torch.__version__}"
    )
    runs = runs_of(options.loss)
    results = {name: run(each, size, options.steps, text) for name, each in runs.items()}
    for each in results.values():
        each.kernels = profiled(each.step)
    print(
        f"{'':16} {'last loss':>10} {'ms a step':>10} {'kernels, ms':>12} {'peak GB':>8} "
        f"{'softmax and loss':>17}"
    )
    for name, each in results.items():
        print(
            f"{name:16} {each.losses[-1]:10.4f} {each.milliseconds:10.2f} "
            f"{each.kernel_milliseconds:12.2f} {each.gigabytes:8.2f} {each.share:17.1%}"
        )
    curves = {name: each.losses for name, each in results.items()}
    own = curves.pop("softgen")
    for what, pairs in (
        ("PyTorch's curves", list(combinations(curves.values(), 2))),
        ("softgen's and PyTorch's", [(own, curve) for curve in curves.values()]),
    ):
        means, largest = zip(*(apart(*pair) for pair in pairs), strict=True)
        print(
            f"{what} are {min(means):.4f} to {max(means):.4f} apart in the mean, "
            f"{max(largest):.4f} at most"
        )
    for name in ("torch", "softgen"):
        print(f"kernels of softmax and loss, us a step, {name}:")
        for kernel, time_of in results[name].kernels.items():
            if of_softmax_or_loss(kernel):
                print(f"{time_of:10.1f}  {kernel[:100]}")
    written = sampled(results["softgen"].model, size, words)
    print(f"the model of softgen writes:\n{written}")
    write(options.out, results)


if __name__ == "__main__":
    main()
