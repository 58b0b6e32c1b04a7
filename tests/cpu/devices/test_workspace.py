"""Who gets which workspace: by stream and capture, cleared where it was allocated, never dirty."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from softgen.devices.gpu import workspace
from softgen.errors import CaptureError


class FakeError(Exception):
    """As CuPy's CUDARuntimeError."""


class Runtime:
    """The calls of the CUDA runtime, in order."""

    CUDARuntimeError = FakeError

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = False

    def memsetAsync(self, address: int, value: int, size: int, stream: int) -> None:
        self.calls.append(("memset", address, value, size, stream))

    def mallocAsync(self, size: int, stream: int) -> int:
        if self.fails:
            raise FakeError("no memory pools")
        self.calls.append(("malloc", size, stream))
        return 0xA000

    def freeAsync(self, address: int, stream: int) -> None:
        self.calls.append(("free", address, stream))


class Pool:
    """An array library's memory."""

    def __init__(self, mallocs_in_capture: bool) -> None:
        self.mallocs_in_capture = mallocs_in_capture
        self.asked: list[tuple[int, int, int]] = []

    def scratch(self, size: int, device: int, stream: int) -> tuple[Any, int]:
        self.asked.append((size, device, stream))
        return object(), 0x1000 * len(self.asked)


class Streams:
    """What the driver knows of streams, by handle."""

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self.captures: dict[int, int] = {}

    def id(self, stream: int) -> int:
        assert stream not in self.captures, "the driver refuses that, and ends the capture"
        return self.ids.get(stream, 1000 + stream)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    found = Runtime()
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=found))
    monkeypatch.setattr(workspace, "require_device", lambda: cupy)
    monkeypatch.setattr(workspace, "_idle", {})
    return found


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    found = Streams()
    monkeypatch.setattr(workspace, "stream_id", found.id)
    monkeypatch.setattr(workspace, "capture_id", lambda stream: found.captures.get(stream, 0))
    return found


def once(pool: Pool, stream: int, size: int = 100, device: int = 0) -> int:
    """Lend for a launch that ends well, and return the address."""
    key, found = workspace.lend(pool, device, stream, size)
    workspace.give_back(key, found, stream)
    return found.address


def test_launches_on_one_stream_share_one(runtime: Runtime, streams: Streams) -> None:
    pool = Pool(True)
    assert once(pool, 7) == once(pool, 7) == 0x1000
    assert pool.asked == [(128, 0, 7)]
    assert runtime.calls == [("memset", 0x1000, 0, 128, 7)]


def test_a_handle_is_not_a_stream(runtime: Runtime, streams: Streams) -> None:
    """Handle 2 is every thread's default stream, and a handle is used again."""
    pool = Pool(True)
    streams.ids[2] = 31
    first = once(pool, 2)
    streams.ids[2] = 32  # asked by another thread
    assert once(pool, 2) != first
    streams.ids[2] = 31
    assert once(pool, 2) == first


def test_devices_and_streams_have_their_own(runtime: Runtime, streams: Streams) -> None:
    pool = Pool(True)
    assert len({once(pool, 7), once(pool, 8), once(pool, 7, device=1)}) == 3


def test_two_launches_at_once_never_share(runtime: Runtime, streams: Streams) -> None:
    """Two threads may launch on one stream; the second finds nothing and takes another."""
    pool = Pool(True)
    _, one = workspace.lend(pool, 0, 7, 100)
    _, other = workspace.lend(pool, 0, 7, 100)
    assert one.address != other.address


def test_what_is_not_given_back_is_never_lent_again(runtime: Runtime, streams: Streams) -> None:
    pool = Pool(True)
    _, dirty = workspace.lend(pool, 0, 7, 100)  # and then the launch failed
    _, found = workspace.lend(pool, 0, 7, 100)
    assert found.address != dirty.address
    assert runtime.calls[-1] == ("memset", found.address, 0, 128, 7)


def test_more_rows_than_there_is_room_for(runtime: Runtime, streams: Streams) -> None:
    pool = Pool(True)
    small = once(pool, 7, size=100)
    assert once(pool, 7, size=128) == small
    large = once(pool, 7, size=129)
    assert large != small
    assert pool.asked[-1] == (256, 0, 7)
    assert once(pool, 7, size=100) == large


def test_a_graph_of_cupys_allocates_clears_and_frees(runtime: Runtime, streams: Streams) -> None:
    """By nodes of the graph, around every launch: its memory is nobody else's."""
    pool = Pool(mallocs_in_capture=True)
    streams.captures[7] = 5
    assert once(pool, 7) == 0xA000
    assert runtime.calls == [
        ("malloc", 100, 7),
        ("memset", 0xA000, 0, 100, 7),
        ("free", 0xA000, 7),
    ]
    assert pool.asked == []
    assert workspace._idle == {}


def test_a_graph_that_cannot_allocate(runtime: Runtime, streams: Streams) -> None:
    runtime.fails = True
    streams.captures[7] = 5
    with pytest.raises(CaptureError, match=r"100 bytes of workspace.*no memory pools"):
        workspace.lend(Pool(True), 0, 7, 100)


def test_a_graph_of_pytorchs_clears_once(runtime: Runtime, streams: Streams) -> None:
    """At the head of the branch, by memory that the capture's own pool gives."""
    pool = Pool(mallocs_in_capture=False)
    eager = once(pool, 7)
    streams.captures[7] = 5
    first = once(pool, 7)
    assert once(pool, 7) == first != eager
    assert [call[0] for call in runtime.calls] == ["memset", "memset"]
    streams.captures[7] = 6  # the next graph, on the same stream
    assert once(pool, 7) not in (first, eager)
    del streams.captures[7]
    assert once(pool, 7) == eager
    assert len(workspace._idle) == 2  # the first graph's is dropped: it is the graph's memory


def test_branches_of_a_capture_have_their_own(runtime: Runtime, streams: Streams) -> None:
    pool = Pool(mallocs_in_capture=False)
    streams.captures.update({7: 5, 8: 5})
    assert once(pool, 7) != once(pool, 8)
    assert len(workspace._idle) == 2


def test_streams_without_end_do_not_fill_the_memory(
    runtime: Runtime, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "MOST_IDLE", 3)
    pool = Pool(True)
    for stream in range(10, 20):
        once(pool, stream)
    assert [key[1] for key in workspace._idle] == [1017, 1018, 1019]
