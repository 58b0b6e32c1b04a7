"""A policy-gradient step: log-probabilities of the tokens that were taken, and entropies.

    python examples/policy_gradient.py [--loss linear] [--small]

The loss is -(advantage * log p).mean() - 0.01 * entropy.mean(), of logits of 8 x 1024 x 151936 in
bfloat16. PyTorch makes log-probabilities of all tokens first; softgen reads the logits once, and
its gradient reads them once more and is the only other array of their size. Prints the time of
forward and backward, the peak of memory beside logits and gradient, and how far the gradients are
from those of float64 on a few rows.

With `--loss linear` the logits are those of hidden states of 4096 numbers, which are what has
gradients, with the weight. softgen makes a chunk of the logits at a time, and the others all.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import softgen.torch

# Of logits, or of hidden states and a weight, and behind them the tokens that were taken.
Step = Callable[..., tuple[torch.Tensor, torch.Tensor]]
Inputs = tuple[torch.Tensor, ...]

ENTROPY_WEIGHT = 0.01
WIDTH = 4096  # of hidden states


def by_torch(logits: torch.Tensor, taken: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p of the tokens and the entropies, by log-probabilities of all, in float32."""
    log_p = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, taken[..., None])[..., 0], entropy


def by_softgen(logits: torch.Tensor, taken: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p of the tokens and the entropies, from one read of the logits."""
    log_p, entropy = softgen.torch.token_log_probs(logits, taken, return_entropy=True)
    return log_p, entropy


def by_softgen_in_two(
    logits: torch.Tensor, taken: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same by two calls, each of which reads the logits and writes a gradient."""
    entropy = softgen.torch.entropy(logits, dim=-1, dtype=torch.float32)
    return softgen.torch.token_log_probs(logits, taken), entropy


def by_softgen_linear(
    hidden: torch.Tensor, weight: torch.Tensor, taken: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same, of hidden states, without all the logits."""
    log_p, entropy = softgen.torch.linear_token_log_probs(
        hidden, weight, taken, return_entropy=True
    )
    return log_p, entropy


def of_hidden(step: Step) -> Step:
    """Return a step of hidden states that makes all logits first."""
    return lambda hidden, weight, taken: step(F.linear(hidden, weight), taken)


def loss_of(
    step: Step, inputs: Inputs, taken: torch.Tensor, advantage: torch.Tensor
) -> torch.Tensor:
    """Return the loss of a step, a number."""
    log_p, entropy = step(*inputs, taken)
    return -(advantage * log_p).mean() - ENTROPY_WEIGHT * entropy.mean()


def measured(
    step: Step, inputs: Inputs, taken: torch.Tensor, advantage: torch.Tensor, times: int
) -> tuple[float, float]:
    """Return milliseconds of a step, and GB at its peak beside the inputs and their gradients."""

    def run() -> None:
        for each in inputs:
            each.grad = None
        loss_of(step, inputs, taken, advantage).backward()

    for _ in range(2):  # the first tunes, or compiles
        run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        run()
    torch.cuda.synchronize()
    milliseconds = (time.perf_counter() - start) / times * 1e3
    for each in inputs:
        each.grad = None
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    gradients = sum(each.nbytes for each in inputs)
    peak = torch.cuda.max_memory_allocated() - before - gradients
    return milliseconds, peak / 1e9


def error_of(inputs: Inputs, taken: torch.Tensor, advantage: torch.Tensor) -> float:
    """Return how far the first input's gradient is from float64's on 4 rows.

    It is relative to the largest of a row.
    """
    rows = torch.linspace(0, taken.numel() - 1, 4, device=taken.device).long()
    first, *weight = inputs
    width = first.shape[-1]
    x = first.detach().view(-1, width)[rows].double().requires_grad_()
    logits = F.linear(x, weight[0].detach().double()) if weight else x
    log_p = torch.log_softmax(logits, -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    chosen = log_p.gather(-1, taken.view(-1)[rows][:, None])[:, 0]
    weights = advantage.view(-1)[rows].double()
    loss = -(weights * chosen).sum() - ENTROPY_WEIGHT * entropy.sum()
    (exact,) = torch.autograd.grad(loss / taken.numel(), x)
    assert first.grad is not None
    off = (first.grad.view(-1, width)[rows].double() - exact).abs().amax(-1)
    return float((off / exact.abs().amax(-1)).max())


def logits_of(shape: tuple[int, int, int]) -> tuple[Inputs, dict[str, Step]]:
    """Return logits, and the steps that take them."""
    logits = torch.randn(shape, device="cuda", dtype=torch.bfloat16).mul_(2).requires_grad_()
    return (logits,), {
        "softgen": by_softgen,
        "softgen in two": by_softgen_in_two,
        "torch": by_torch,
        "torch.compile": torch.compile(by_torch),
    }


def linear_of(shape: tuple[int, int, int]) -> tuple[Inputs, dict[str, Step]]:
    """Return hidden states and the weight of a head, and the steps that take them."""
    hidden = torch.randn((*shape[:2], WIDTH), device="cuda", dtype=torch.bfloat16)
    weight = torch.randn((shape[2], WIDTH), device="cuda", dtype=torch.bfloat16)
    weight.mul_(2 * WIDTH**-0.5)
    return (hidden.requires_grad_(), weight.requires_grad_()), {
        "softgen": by_softgen_linear,
        "softgen, logits": of_hidden(by_softgen),
        "torch": of_hidden(by_torch),
        "torch.compile": torch.compile(of_hidden(by_torch)),
    }


def main() -> None:
    """Measure a step by softgen, by PyTorch and by what torch.compile makes of PyTorch's."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="2 x 64 x 50304, for a first look")
    parser.add_argument("--loss", choices=("logits", "linear"), default="logits", help="of what")
    parser.add_argument("--csv", type=Path, help="file for the table")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("it needs an NVIDIA GPU, and PyTorch finds none")
    shape = (2, 64, 50304) if options.small else (8, 1024, 151936)
    torch.manual_seed(0)
    inputs, steps = (linear_of if options.loss == "linear" else logits_of)(shape)
    taken = torch.randint(shape[-1], shape[:-1], device="cuda")
    advantage = torch.randn(shape[:-1], device="cuda")
    size = shape[0] * shape[1] * shape[2] * 2 / 1e9
    print(
        f"logits of {' x '.join(map(str, shape))}, {size:.2f} GB, on "
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    )
    print(f"{'':15} {'ms a step':>10} {'GB beside':>10} {'error':>9}   loss")
    table = []
    for name, step in steps.items():
        milliseconds, peak = measured(step, inputs, taken, advantage, 3 if options.small else 10)
        error = error_of(inputs, taken, advantage)
        detached = tuple(each.detach() for each in inputs)
        loss = float(loss_of(step, detached, taken, advantage))
        print(f"{name:15} {milliseconds:10.2f} {peak:10.3f} {error:9.1e}   {loss:.6f}")
        table.append((name, f"{milliseconds:.3f}", f"{peak:.4f}", f"{error:.2e}", f"{loss:.6f}"))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            csv.writer(file).writerows(
                [("peer", "milliseconds", "gigabytes_beside", "error", "loss"), *table]
            )


if __name__ == "__main__":
    main()
