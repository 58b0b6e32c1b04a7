"""Which exchange a process group gets, without a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError

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


class Boxes:
    """Mailboxes of a system that lets processes share memory."""

    def __init__(self, *given: Any) -> None:
        """Take a group, a device, rows and seconds."""

    @staticmethod
    def are_possible() -> bool:
        return True


def test_before_torch_distributed_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTGEN_DIRECT", raising=False)
    with pytest.raises(NotSupportedError, match="start the program with torchrun"):
        exchange.exchange_of(None, Shard(True))


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.ProcessGroup", Group)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    return Group()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the groups whose GPUs were asked whether they reach each other: the first one's do."""
    found: list[Any] = []
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("torch.cuda.device", lambda device: contextlib.nullcontext())

    def usable(group: Any, wanted: bool) -> bool:
        found.append((group, wanted))
        return wanted and len(found) == 1

    monkeypatch.setattr(direct, "usable", usable)
    return found


def test_mailboxes_are_the_default(
    group: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where GPUs reach each other; a group is asked once, and remembered either way."""
    monkeypatch.delenv("SOFTGEN_DIRECT", raising=False)
    other = Group()
    for _ in range(2):
        assert isinstance(exchange.exchange_of(group, Shard(True)), Direct)
        assert isinstance(exchange.exchange_of(other, Shard(True)), Collective)
    assert asked == [(group, True), (other, True)]


@pytest.mark.parametrize(("name", "value"), [("DIRECT", "0"), ("BATCH_INVARIANT", "1")])
def test_a_process_that_wants_none_says_so(
    name: str, value: str, group: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks all the same: the others wait for its answer."""
    monkeypatch.setenv(f"SOFTGEN_{name}", value)
    for _ in range(2):
        assert isinstance(exchange.exchange_of(group, Shard(True)), Collective)
    assert asked == [(group, False)]


def test_while_a_stream_is_captured_nobody_is_asked(
    group: Any, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next call asks."""
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    assert isinstance(exchange.exchange_of(group, Shard(True)), Collective)
    assert asked == []
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    assert isinstance(exchange.exchange_of(group, Shard(True)), Direct)


@pytest.mark.parametrize(
    ("answers", "direct_is"),
    [
        ([("a", 0, True), ("a", 1, True)], True),
        ([("a", 0, True), ("a", 1, False)], False),
        ([("a", 0, True), ("b", 1, True)], False),
        ([("a", 0, True), ("a", 0, True)], False),
    ],
    ids=["all can", "one does not want to", "two hosts", "one GPU"],
)
def test_what_processes_answer_decides_for_all(
    answers: list[Any], direct_is: bool, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(every: list[Any], mine: Any, group: Any) -> None:
        assert mine[1:] == (0, True)
        every[:] = answers

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.can_device_access_peer", lambda one, other: True)
    monkeypatch.setattr(direct, "Mailboxes", Boxes)
    monkeypatch.setattr(direct, "_agree", lambda mine, group: mine)
    assert direct.usable(group, True) == direct_is


@pytest.mark.parametrize("size", [1, 9])
def test_groups_too_small_or_too_large_ask_nobody(
    size: int, group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: size)
    assert not direct.usable(group, True)


def test_tensors_on_the_cpu_ask_nobody(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "1")
    assert isinstance(exchange.exchange_of(group, Shard(False)), Collective)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("given", ["foo", 0, [0]], ids=str)
@pytest.mark.parametrize("is_cuda", [False, True])
def test_what_is_no_group_is_refused(is_cuda: bool, given: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"group must be a process group.* got ") as caught:
        exchange.exchange_of(given, Shard(is_cuda))
    assert str(caught.value).endswith(f"got {given!r}")


@pytest.mark.usefixtures("asked")
def test_another_value_is_refused(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "yes")
    with pytest.raises(InvalidValueError, match="SOFTGEN_DIRECT must be 0 or 1, got 'yes'"):
        exchange.exchange_of(group, Shard(True))
