"""Which exchange a process group gets, without a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from softgen.errors import InvalidValueError, NotSupportedError

pytest.importorskip("torch", reason="PyTorch is not installed")

from softgen.distributed import direct, exchange
from softgen.distributed.collective import Collective
from softgen.distributed.direct import Direct


class Shard:
    """What is asked of a shard."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda, self.device = is_cuda, None


class Group:
    """A process group of two."""


def test_before_torch_distributed_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTGEN_DIRECT", raising=False)
    with pytest.raises(NotSupportedError, match="start the program with torchrun"):
        exchange.exchange_of(None, Shard(True))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    return Group()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the groups whose GPUs were asked whether they reach each other: the first one's do."""
    found: list[Any] = []
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("torch.cuda.device", lambda device: contextlib.nullcontext())

    def usable(group: Any) -> bool:
        found.append(group)
        return len(found) == 1

    monkeypatch.setattr(direct, "usable", usable)
    return found


def test_mailboxes_where_they_are_asked_for(
    group: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where GPUs reach each other; a group is asked once, and remembered either way."""
    monkeypatch.setenv("SOFTGEN_DIRECT", "1")
    other = Group()
    for _ in range(2):
        assert isinstance(exchange.exchange_of(group, Shard(True)), Direct)
        assert isinstance(exchange.exchange_of(other, Shard(True)), Collective)
    assert asked == [group, other]


@pytest.mark.parametrize("value", ["", "0"])
def test_the_all_gather_is_the_default(
    value: str, group: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", value)
    assert isinstance(exchange.exchange_of(group, Shard(True)), Collective)
    assert asked == []


@pytest.mark.parametrize("size", [1, 9])
def test_groups_too_small_or_too_large_ask_nobody(
    size: int, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: size)
    assert not direct.usable(group)


def test_tensors_on_the_cpu_ask_nobody(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "1")
    assert isinstance(exchange.exchange_of(group, Shard(False)), Collective)


def test_another_value_is_refused(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "yes")
    with pytest.raises(InvalidValueError, match="SOFTGEN_DIRECT must be 0 or 1, got 'yes'"):
        exchange.exchange_of(group, Shard(True))
