"""Which exchange a process group gets, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from softgen.errors import InvalidValueError

pytest.importorskip("torch", reason="PyTorch is not installed")

from softgen.distributed import exchange
from softgen.distributed.collective import Collective


class Shard:
    """What is asked of a shard."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda = is_cuda


class Group:
    """A process group of two."""


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    return Group()


@pytest.mark.parametrize("value", ["", "0"])
def test_the_all_gather_is_the_default(
    value: str, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", value)
    assert isinstance(exchange.exchange_of(group, Shard(True)), Collective)
    assert group not in exchange._exchanges


def test_tensors_on_the_cpu_ask_nobody(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "1")
    assert isinstance(exchange.exchange_of(group, Shard(False)), Collective)


def test_another_value_is_refused(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "yes")
    with pytest.raises(InvalidValueError, match="SOFTGEN_DIRECT must be 0 or 1, got 'yes'"):
        exchange.exchange_of(group, Shard(True))
