"""Calls of softgen.torch with their gradients, which tests/torch_calls.py draws.

On CPU tensors with a stand-in for kernels, or on a GPU.
"""

from __future__ import annotations

import functools
import gc
import warnings
from typing import Any

import pytest
import torch

import softgen.torch as mine
from softgen.call import dispatch
from tests.differential.regimes import Random
from tests.helpers.torch_calls import on_cpu
from tests.soak.run import Drawn
from tests.soak.stand_in import Loaded, computing
from tests.torch_calls import NAMES, Call, Draw, differing, drawn

FRESH_SHAPE = (120, 60, 4)  # parts of it are shapes of their own


class OfTorch:
    """A call and its gradient, as `Drawn` has it."""

    def __init__(self, draw: Draw, call: Call, device: str) -> None:
        self.draw, self.call, self.device = draw, call, device

    def run(self) -> Any:
        """Make the call, and its gradient where it is asked for."""
        call = self.call
        x = call.x.detach().requires_grad_(call.tracked)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autocast(self.device, torch.bfloat16, enabled=call.autocast):
                found = call.ours(x)
            results = found if isinstance(found, tuple) else (found,)
            asked = [each for each in results if each.requires_grad]
            return torch.autograd.grad(asked, x, [*map(torch.ones_like, asked)]) if asked else found

    def wrong(self) -> list[str] | None:
        """Make the call and compare it with PyTorch's; None where softgen or PyTorch refuses it."""
        said, refusal, both = differing(self.call, self.draw, self.device)
        if said:
            return [f"{self.call.text}: {said}"]
        return None if refusal or both is not False else []


class OnTorch:
    """Calls of softgen.torch."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.x = torch.zeros(FRESH_SHAPE, device=device)

    def drawn(self, seed: int, number: int) -> Drawn | None:
        """Return a call of a seed."""
        name = NAMES[number % len(NAMES)]
        return OfTorch(*drawn(seed, name, number // len(NAMES), self.device), self.device)

    def wrong(self, one: Drawn) -> list[str] | None:
        """Make a call and return what `Drawn.wrong` says of it."""
        return one.wrong()

    def fresh(self, random: Random) -> Any:
        """Make a call on some rows and take its gradient."""
        function: Any = (mine.softmax, mine.log_softmax, mine.logsumexp)[random.integers(3)]
        a, b = (int(random.integers(1, most + 1)) for most in FRESH_SHAPE[:2])
        x = self.x[:a, :b].detach().requires_grad_()
        y = function(x, -1)
        return torch.autograd.grad(y, x, torch.ones_like(y))


class TorchStandIn(OnTorch):
    """On CPU tensors; memory of the device is what tensors hold that Python knows."""

    most_device = 2**14

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.world = on_cpu(patch)
        loaded = functools.cache(lambda problem: Loaded(problem, self.world.driver))
        patch.setattr(dispatch, "kernel_for", lambda problem, *_: loaded(problem))
        super().__init__("cpu")

    def wrong(self, one: Drawn) -> list[str] | None:
        """Make a call and return what `Drawn.wrong` says of it."""
        with computing():
            return one.wrong()

    def device_bytes(self) -> int:
        """Return the bytes of all tensors that are alive, each piece of memory once."""
        alive = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        storages = [each.untyped_storage() for each in alive]
        return sum({each.data_ptr(): each.nbytes() for each in storages}.values())

    def forget(self) -> None:
        """Forget launches."""
        self.world.driver.forget()


class TorchOnGpu(OnTorch):
    """On the current GPU; memory is what the driver says is not free."""

    most_device = 16 * 2**20  # it takes 2 MiB at once, and other programs may take some

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setenv("SOFTGEN_TUNE", "off")
        super().__init__("cuda")

    def device_bytes(self) -> int:
        """Return what is not free, when PyTorch has given back what no tensor holds."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def forget(self) -> None:
        """Forget nothing."""
