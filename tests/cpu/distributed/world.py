"""The world in which a process of these tests calls softgen: that of helpers/torch_calls.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from softgen.distributed import local
from tests.helpers.torch_calls import World, on_cpu

# Of functions of `local`, the arguments that have to lie in order: a call copies others first.
IN_ORDER = {
    "merge": (0, 1),
    "merge_lse": (0,),
    "merge_losses": (0, 1),
    "cross_entropy_backward": (4,),
}


def process_on_cpu(monkeypatch: pytest.MonkeyPatch | None = None) -> World:
    """Let softgen's calls take CPU tensors, and look at what goes between its functions.

    Without `monkeypatch` for a process of its own.
    """
    monkeypatch = monkeypatch or pytest.MonkeyPatch()
    world = on_cpu(monkeypatch)
    for name in IN_ORDER:
        monkeypatch.setattr(local, name, _looked_at(name, getattr(local, name)))
    return world


def _looked_at(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        for place in IN_ORDER[name]:
            assert given[place].is_contiguous(), f"argument {place} of {name}"
        if name == "cross_entropy_backward":
            x, smoothing, classes = given[0], given[5], given[9]
            assert classes >= x.shape[-1] or not smoothing
        return run(*given)

    return call
