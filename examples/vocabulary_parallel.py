"""A language model whose vocabulary lies in shards over GPUs: loss_parallel against softgen.

    torchrun --nproc-per-node 2 examples/vocabulary_parallel.py [--steps 150] [--small] [--out OUT]

The matrix of 128256 words is the embedding and the head. Each process has an equal part of its
rows, and the same body, that of examples/gpt.py. A process looks up the words that it has, and
computes its own columns of the logits; logits of all words are nowhere. Runs from one seed differ
in the loss and its gradient: PyTorch's loss_parallel on a DTensor, and
softgen.distributed.cross_entropy. A third has loss_parallel, and each batch the other way round,
which adds up in another order.

Prints time, kernels and peak memory of a step, and what of it is the loss with its gradient. Writes
the curves to OUT/losses.csv and, with Matplotlib, to OUT/losses.png, the table to OUT/steps.csv and
the time of every kernel to OUT/kernels.csv.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from gpt import WARM_UP, Block, Functions, Size, apart, profiled, words_of
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

import softgen.distributed

VOCABULARY = 128256  # of Llama 3
TEXT_BYTES = 6_000_000
FULL = Size(layers=4, heads=12, width=768, batch=8, context=512)
SMALL = Size(layers=1, heads=2, width=16, batch=2, context=8)


def by_loss_parallel(logits: torch.Tensor, target: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return the mean loss, and leave its gradient, by PyTorch: in float32, as autocast has it."""
    with loss_parallel():
        sharded = DTensor.from_local(logits.float(), mesh, [Shard(-1)], run_check=False)
        loss = F.cross_entropy(sharded, target)
        loss.backward()
    return loss.detach().to_local()


def by_softgen(logits: torch.Tensor, target: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return the mean loss, and leave its gradient, by softgen."""
    with torch.autocast(logits.device.type, torch.bfloat16):  # a loss of float32
        loss = softgen.distributed.cross_entropy(logits, target, group=mesh.get_group())
    loss.backward()
    return loss.detach()


Loss = Callable[[torch.Tensor, torch.Tensor, DeviceMesh], torch.Tensor]


@dataclass(frozen=True)
class Run:
    """Whose loss a run has, and whether the sequences of a batch come in the other order."""

    loss: Loss
    turned: bool = False


RUNS = {
    "loss_parallel": Run(by_loss_parallel),
    "softgen": Run(by_softgen),
    "loss_parallel turned": Run(by_loss_parallel, turned=True),
}


class AddedUp(torch.autograd.Function):
    """The sum over the processes of what each has; its gradient is the same in all of them."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """Return the sum."""
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient as it is."""
        return g, None


class Shared(torch.autograd.Function):
    """What is the same in all processes; of its gradient each has what its own columns give."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        """Return x."""
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the sum of the gradients."""
        g = g.clone()
        dist.all_reduce(g, group=ctx.group)
        return g, None


class Model(nn.Module):
    """A GPT. `words` is this process's part of the matrix, and `first` the number of its first row.

    All processes make the whole matrix from the same seed, and keep their own rows.
    """

    def __init__(self, size: Size, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group()
        whole = torch.empty(VOCABULARY, size.width).normal_(std=0.02)
        mine = whole.chunk(mesh.size())[mesh.get_local_rank()]
        self.words = nn.Parameter(mine.clone())
        self.first = mesh.get_local_rank() * len(mine)
        self.positions = nn.Parameter(torch.empty(size.context, size.width).normal_(std=0.02))
        functions = Functions(F.softmax, F.cross_entropy)
        self.blocks = nn.ModuleList(Block(size, functions) for _ in range(size.layers))
        self.last = nn.LayerNorm(size.width)
        hidden = torch.ones(size.context, size.context, dtype=torch.bool).triu(1)
        self.register_buffer("hidden", hidden, persistent=False)

    def body(self, embedded: torch.Tensor) -> torch.Tensor:
        """Return what the head multiplies, (batch, length, width): the same in all processes."""
        length = embedded.shape[1]
        x = embedded + self.positions[:length]
        for block in self.blocks:
            x = block(x, self.hidden[:length, :length])
        return self.last(x)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return this process's columns of the logits, (batch * length, columns)."""
        here = words - self.first
        mine = (here >= 0) & (here < len(self.words))
        found = F.embedding(here.where(mine, 0), self.words) * mine[..., None]
        x = self.body(AddedUp.apply(found, self.group))
        return F.linear(Shared.apply(x, self.group), self.words).flatten(0, 1)


class Training:
    """A model, and what it learns from: the same text, in the same order, in all processes."""

    def __init__(self, run: Run, size: Size, text: torch.Tensor, mesh: DeviceMesh) -> None:
        self.loss, self.turned, self.size, self.mesh = run.loss, run.turned, size, mesh
        self.device = torch.device(mesh.device_type)
        torch.manual_seed(0)
        with self.device:
            self.model = Model(size, mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, fused=True)
        self.rates = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda i: min(1, (i + 1) / WARM_UP)
        )
        self.text, self.offsets = text.to(self.device), torch.arange(size.context + 1)
        self.chooser = torch.Generator().manual_seed(1)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return words, (batch, context), and the word behind each, (batch * context)."""
        last = len(self.text) - self.size.context - 1
        starts = torch.randint(last, (self.size.batch, 1), generator=self.chooser)
        starts = starts.flip(0) if self.turned else starts
        tokens = self.text[(starts + self.offsets).to(self.device)]
        return tokens[:, :-1], tokens[:, 1:].flatten()

    def logits(self, words: torch.Tensor) -> torch.Tensor:
        """Return this process's columns: bfloat16 on a GPU."""
        kind = self.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            logits: torch.Tensor = self.model(words)
        return logits

    def step(self) -> torch.Tensor:
        """Take a step, and return its loss."""
        words, target = self.batch()
        loss = self.loss(self.logits(words), target, self.mesh)
        self.optimizer.step()
        self.rates.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def loss_alone(self) -> Callable[[], torch.Tensor]:
        """Return a call that computes the loss of a batch and the gradient of its logits."""
        words, target = self.batch()
        with torch.no_grad():
            logits = self.logits(words)
        return lambda: self.loss(logits.detach().requires_grad_(), target, self.mesh)


@dataclass
class Result:
    """What a run gave: a loss a step, and figures of a step.

    Attributes:
        milliseconds: on the clock.
        gigabytes: the peak, in the process that has most; without a GPU None.
        of_step, of_loss: microseconds of each kernel in a step, and in the loss with its gradient,
            by its name; none without a GPU.
    """

    losses: list[float]
    milliseconds: float
    gigabytes: float | None = None
    of_step: dict[str, float] = field(default_factory=dict)
    of_loss: dict[str, float] = field(default_factory=dict)

    def figures(self) -> list[str]:
        """Return the row of the table."""
        step, loss = sum(self.of_step.values()) / 1e3, sum(self.of_loss.values()) / 1e3
        kernels = [f"{step:.2f}", f"{loss:.2f}", f"{loss / step:.1%}"] if step else ["-"] * 3
        memory = "-" if self.gigabytes is None else f"{self.gigabytes:.2f}"
        return [f"{self.losses[-1]:.4f}", f"{self.milliseconds:.2f}", *kernels, memory]


HEADER = ["last loss", "ms a step", "kernels, ms", "of the loss", "share", "peak GB"]


def trained(
    run: Run, mesh: DeviceMesh, size: Size, steps: int, text: torch.Tensor
) -> tuple[Training, Result]:
    """Train a model, and measure its steps."""
    gc.collect()  # of the run before
    on_gpu = mesh.device_type == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    training = Training(run, size, text, mesh)
    losses = []
    for i in range(steps):
        if i == steps // 4:  # by now kernels are compiled
            _wait(on_gpu)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
        losses.append(training.step())
    _wait(on_gpu)
    milliseconds = (time.perf_counter() - start) / (steps - steps // 4) * 1e3
    result = Result(torch.stack(losses).tolist(), milliseconds)
    if on_gpu:
        peak = torch.tensor(torch.cuda.max_memory_allocated() - before, device="cuda")
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        result.gigabytes = float(peak) / 1e9
    return training, result


def _wait(on_gpu: bool) -> None:
    """Wait for all processes and their GPUs."""
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()


def compare(mesh: DeviceMesh, size: Size, steps: int, text: torch.Tensor) -> dict[str, Result]:
    """Train a model by each run; return what they gave.

    Kernels are counted behind all runs: launches take longer once a profiler has been there.
    """
    runs = {name: trained(run, mesh, size, steps, text) for name, run in RUNS.items()}
    if mesh.device_type == "cuda":
        for training, result in runs.values():
            result.of_step = profiled(training.step)
            result.of_loss = profiled(training.loss_alone())
    return {name: result for name, (_, result) in runs.items()}


def tell(results: dict[str, Result]) -> None:
    """Print the table, and the kernels of the losses."""
    print(f"{'':20}" + "".join(f"{each:>13}" for each in HEADER))
    for name, each in results.items():
        print(f"{name:20}" + "".join(f"{figure:>13}" for figure in each.figures()))
    for name in ("softgen", "loss_parallel turned"):
        mean, largest = apart(results["loss_parallel"].losses, results[name].losses)
        print(f"{name} is {mean:.4f} from loss_parallel's curve in the mean, {largest:.4f} at most")
    for name in ("loss_parallel", "softgen"):
        found = results[name].of_loss
        if found:
            print(f"kernels of the loss and its gradient, us, {name}:")
        for kernel, time_of in found.items():
            print(f"{time_of:10.1f}  {kernel[:100]}")


def write(folder: Path, results: dict[str, Result]) -> None:
    """Write the tables and, with Matplotlib, the curves as a plot."""
    folder.mkdir(parents=True, exist_ok=True)
    curves = zip(*(each.losses for each in results.values()), strict=True)
    tables: dict[str, list[list[Any]]] = {
        "losses": [["step", *results]],
        "steps": [["run", *HEADER]],
        "kernels": [["run", "of", "kernel", "us"]],
    }
    tables["losses"] += [[i, *(f"{loss:.6f}" for loss in row)] for i, row in enumerate(curves)]
    for name, each in results.items():
        tables["steps"].append([name, *each.figures()])
        for what, kernels in (("step", each.of_step), ("loss", each.of_loss)):
            tables["kernels"] += [[name, what, k, f"{us:.2f}"] for k, us in kernels.items()]
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: Matplotlib is not installed (pip install '.[bench]')")
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="loss")
    for (name, each), style in zip(results.items(), ("-", "--", ":"), strict=True):
        axes.plot(each.losses, style, label=name)
    axes.legend()
    figure.savefig(folder / "losses.png", dpi=120)


def text_of(text_bytes: int) -> torch.Tensor:
    """Return a text as numbers of words, spread over the vocabulary: each process has its share."""
    text, _ = words_of(text_bytes)
    return torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))[text]


def main() -> None:
    """Train the three models and compare them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=150, help="of training, 150 by default")
    parser.add_argument("--small", action="store_true", help="a layer, narrow, for a first look")
    parser.add_argument("--out", type=Path, default=Path("vocabulary_parallel"), help="a folder")
    options = parser.parse_args()
    if "LOCAL_RANK" not in os.environ:
        parser.error("start it with torchrun --nproc-per-node 2")
    processes = int(os.environ["WORLD_SIZE"])
    if VOCABULARY % processes:
        parser.error(f"{VOCABULARY} words are not {processes} equal parts; start 2, 3, 4, 6 or 8")
    if options.steps < 1:
        parser.error(f"--steps must be 1 or more, got {options.steps}")
    if torch.cuda.device_count() <= int(os.environ["LOCAL_RANK"]):
        parser.error(f"each process needs a GPU; PyTorch finds {torch.cuda.device_count()} here")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    mesh = init_device_mesh("cuda", (processes,))
    text = text_of(TEXT_BYTES)
    results = compare(mesh, SMALL if options.small else FULL, options.steps, text)
    if dist.get_rank() == 0:
        print(
            f"{mesh.size()} of {torch.cuda.get_device_name()}, PyTorch {torch.__version__}: "
            f"{VOCABULARY // mesh.size()} words each"
        )
        tell(results)
        write(options.out, results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
