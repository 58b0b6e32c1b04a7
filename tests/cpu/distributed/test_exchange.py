"""Which exchange a process group gets, without a GPU."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch
import torch.distributed as dist

from softgen.distributed import direct, exchange, mailboxes
from softgen.distributed.direct import Direct
from softgen.distributed.exchange import Collective


class Shard:
    """What is asked of a shard."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda, self.device = is_cuda, None


class Group:
    """A process group of two."""

    def __init__(self, name: str = "0") -> None:
        self.group_name = name


class Boxes:
    """Mailboxes of a system that lets processes share memory."""

    def __init__(self, *given: Any) -> None:
        """Take a group, a device, rows and seconds."""


def test_before_torch_distributed_is_initialised() -> None:
    with pytest.raises(NotSupportedError, match="start the program with torchrun"):
        exchange.name_of(None)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """Two groups that are not destroyed, each of two processes of which this is the first."""
    found = [Group("a"), Group("b")]

    def rank(group: Any) -> int:
        if group not in found:
            raise ValueError("is not registered")
        return 0

    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.ProcessGroup", Group)
    monkeypatch.setattr("torch.distributed.get_rank", rank)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    monkeypatch.setattr("torch.distributed.get_process_group_ranks", lambda group: [0, 1])
    by_name = {group.group_name: group for group in found}
    monkeypatch.setattr(dist.distributed_c10d, "_resolve_process_group", by_name.get)
    monkeypatch.setattr(exchange, "_exchanges", type(exchange._exchanges)())
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("torch.cuda.device", lambda device: contextlib.nullcontext())
    monkeypatch.delenv("SOFTGEN_DIRECT", raising=False)
    return found


@pytest.fixture
def two_gpus(groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process of a group sees two GPUs, and has the first of them."""
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(direct, "_uuid", lambda gpu: f"GPU-{gpu}")
    monkeypatch.setattr("torch.cuda.can_device_access_peer", lambda one, other: True)
    monkeypatch.setattr(direct, "Mailboxes", Boxes)


@pytest.fixture
def asked(groups: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the groups whose processes were asked, and what this one said; none is hindered."""
    found: list[tuple[str, str]] = []

    def obstacle(group: Any, unwilling: str) -> str:
        found.append((group.group_name, unwilling))
        return unwilling

    monkeypatch.setattr(direct, "obstacle", obstacle)
    return found


def test_mailboxes_are_the_default(asked: Any) -> None:
    """A group is asked once, and remembered."""
    for _ in range(2):
        assert isinstance(exchange.exchange_named("a", Shard(True)), Direct)
    assert asked == [("a", "")]


def test_a_second_group_of_this_gpu_gathers_and_it_is_said_once(
    groups: Any, asked: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels of both at once would wait for each other. Who destroys the first may go on."""
    exchange.exchange_named("a", Shard(True))
    for _ in range(2):
        assert isinstance(exchange.exchange_named("b", Shard(True)), Collective)
    (said,) = caplog.messages
    assert said.startswith("processes [0, 1] share rows by an all-gather, as another group goes")
    assert asked[1][1] in said
    del exchange._exchanges[groups[1]]
    kept = groups.pop(0)  # by somebody
    assert kept in exchange._exchanges
    assert isinstance(exchange.exchange_named("b", Shard(True)), Direct)


@pytest.mark.parametrize(("name", "value"), [("DIRECT", "0"), ("BATCH_INVARIANT", "1")])
def test_a_process_that_wants_none_says_so(
    name: str, value: str, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks all the same: the others wait for its answer."""
    monkeypatch.setenv(f"SOFTGEN_{name}", value)
    for _ in range(2):
        assert isinstance(exchange.exchange_named("a", Shard(True)), Collective)
    assert asked == [("a", f"SOFTGEN_{name}={value} is set")]


def test_while_a_stream_is_captured_nobody_is_asked(
    asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next call asks."""
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)
    assert isinstance(exchange.exchange_named("a", Shard(True)), Collective)
    assert asked == []
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    assert isinstance(exchange.exchange_named("a", Shard(True)), Direct)


# Of each process: host, number of its GPU, which GPU that is, and what it says against it.
@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([("a", 0, "GPU-0", ""), ("a", 1, "GPU-1", "")], ""),
        ([("a", 0, "GPU-0", ""), ("a", 1, "GPU-1", "SOFTGEN_DIRECT=0 is set")], "DIRECT=0"),
        ([("a", 0, "GPU-0", ""), ("b", 1, "GPU-9", "")], "several hosts"),
        ([("a", 0, "GPU-0", ""), ("a", 0, "GPU-0", "")], "two of them have one GPU"),
        ([("a", 0, "GPU-0", ""), ("a", 1, "GPU-0", "")], "two of them have one GPU"),
        ([("a", 0, "GPU-0", ""), ("a", 0, "GPU-1", "")], "CUDA_VISIBLE_DEVICES"),
        ([("a", 0, "GPU-0", ""), ("a", 1, "GPU-7", "")], "CUDA_VISIBLE_DEVICES"),
        ([("a", 0, "GPU-0", ""), ("a", 2, "GPU-2", "")], "CUDA_VISIBLE_DEVICES"),
    ],
    ids=["all can", "unwilling", "hosts", "one GPU", "by two numbers", "each its own", "7", "more"],
)
@pytest.mark.usefixtures("two_gpus")
def test_what_processes_answer_decides_for_all(
    answers: list[Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(every: list[Any], mine: Any, group: Any) -> None:
        every[:] = answers if isinstance(mine, tuple) else [mine, ""]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    told = direct.obstacle(None, "")
    assert said in told
    assert bool(said) == bool(told)


@pytest.mark.usefixtures("two_gpus")
def test_memory_that_one_process_cannot_share_is_told_by_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the other process fails, which this one hears in the last round."""
    rounds: list[Any] = []

    def gather(every: list[Any], mine: Any, group: Any) -> None:
        rounds.append(mine)
        answers = [("a", 0, "GPU-0", ""), ("a", 1, "GPU-1", "")], ["", ""], ["", "no memory"]
        every[:] = answers[len(rounds) - 1]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    assert direct.obstacle(None, "") == "no memory"
    assert rounds[1:] == ["", ""]


@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.usefixtures("groups")
def test_groups_too_small_or_too_large_ask_nobody(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: size)
    assert direct.obstacle(None, "").endswith(f"rows of 2 to 8 GPUs, and these are {size}")


@pytest.mark.usefixtures("groups")
def test_tensors_on_the_cpu_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "1")
    assert isinstance(exchange.exchange_named("a", Shard(False)), Collective)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("given", ["foo", 0, [0]], ids=str)
def test_what_is_no_group_is_refused(given: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"group must be a process group.* got ") as caught:
        exchange.name_of(given)
    assert str(caught.value).endswith(f"got {given!r}")


@pytest.mark.usefixtures("asked")
def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DIRECT", "yes")
    with pytest.raises(InvalidValueError, match="SOFTGEN_DIRECT must be 0 or 1, got 'yes'"):
        exchange.exchange_named("a", Shard(True))


@pytest.mark.parametrize("given", [None, "0"])
def test_multicast_is_off_for_a_rendezvous_of_ours_alone(
    given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left in the environment, also where it fails; and what the user set, holds."""
    name = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
    monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv(name, given)
    seen: list[str | None] = []

    def rendezvous(memory: Any, group: Any) -> Any:
        seen.append(os.environ.get(name))
        raise RuntimeError("no memory is shared here")

    symmetric = types.SimpleNamespace(
        empty=lambda size, dtype, device: torch.empty(size, dtype=dtype), rendezvous=rendezvous
    )
    monkeypatch.setattr(dist, "_symmetric_memory", symmetric, raising=False)
    monkeypatch.setitem(sys.modules, "torch.distributed._symmetric_memory", symmetric)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda group: 2)
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: 0)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    with pytest.raises(RuntimeError, match="no memory is shared"):
        mailboxes.Mailboxes(None, None, 8, 1.0)
    assert seen == [given or "1"]
    assert os.environ.get(name) == given


def test_kernels_wait_as_long_as_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was made, and as it was set since."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    hour = datetime.timedelta(hours=1)
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, timeout=hour
    )
    try:
        assert mailboxes.patience_of(dist.group.WORLD) == 3600
        group = dist.new_group([0], timeout=datetime.timedelta(seconds=2.5))
        assert mailboxes.patience_of(group) == 2.5
    finally:
        dist.destroy_process_group()
    backend = types.SimpleNamespace(_get_backend=lambda device: object())  # that does not tell
    assert mailboxes.patience_of(backend) == 1800
