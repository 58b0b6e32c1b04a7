"""Whether launches may start before the one before has ended: the environment, and the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from softgen.devices.gpu import dependent
from softgen.errors import InvalidValueError, LaunchError


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, bool], bool]:
    asked: dict[tuple[int, bool], bool] = {}
    monkeypatch.setattr(dependent, "_known", asked)
    return asked


def answering(monkeypatch: pytest.MonkeyPatch, *answers: bool | Exception) -> None:
    """Have the driver give these answers, one a question."""
    left = iter(answers)

    def ask(launch: Any, arrays: int) -> bool:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(dependent, "_is_captured", ask)


class Refused(Exception):
    """As CuPy's errors of the driver and of the runtime."""


class Stream:
    """A stream of a device whose default stream another thread uses all the time.

    A capture of a stream that waits for the default one fails then.
    """

    ptr = 77
    captured: bool | None = None

    def __init__(self, non_blocking: bool = False) -> None:
        self.non_blocking = non_blocking

    def begin_capture(self, mode: int) -> None:
        self.captured = True

    def end_capture(self) -> None:
        self.captured = False
        if not self.non_blocking:
            raise Refused("the default stream was used")


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.usefixtures("known")
def test_the_question_is_a_capture_that_others_do_not_disturb(
    taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a launch behind a memset, and of one behind that launch."""
    streams: list[Stream] = []
    seen: list[tuple[Any, ...]] = []

    def stream_of(**options: bool) -> Stream:
        streams.append(Stream(**options))
        return streams[-1]

    def note(*what: Any) -> None:
        (stream,) = streams
        assert stream.captured
        seen.append(what)

    def launch(words: Sequence[int], stream: int) -> None:
        note("launch", words, stream)
        if not taken:
            raise Refused("no such attribute")

    runtime = SimpleNamespace(
        CUDARuntimeError=Refused,
        streamCaptureModeRelaxed=2,
        memsetAsync=lambda to, value, size, stream: note("memset", to, stream),
    )
    driver = SimpleNamespace(CUDADriverError=Refused)
    memory = SimpleNamespace(ptr=0x500)
    cuda = SimpleNamespace(
        driver=driver, runtime=runtime, Stream=stream_of, Memory=lambda size: memory
    )
    monkeypatch.setattr(dependent, "require_device", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(dependent, "capturing_freely", contextlib.nullcontext)
    kernel: Any = launch
    assert dependent.is_taken(0, False, kernel, 3) is taken
    launched = ("launch", [0x500] * 3, Stream.ptr)
    assert seen == [("memset", 0x500, Stream.ptr), *[launched] * (2 if taken else 1)]
    assert streams[0].captured is False


@pytest.mark.parametrize("answer", [True, False])
def test_the_driver_is_asked_once(
    answer: bool, known: dict[tuple[int, bool], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, answer)
    launch: Any = None
    assert [dependent.is_taken(0, False, launch, 2) for _ in range(3)] == [answer] * 3
    assert known == {(0, False): answer}


def test_a_stream_with_too_few_multiprocessors_answers_for_itself_alone(
    known: dict[tuple[int, bool], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, LaunchError("too large"), True)
    launch: Any = None
    assert dependent.is_taken(0, True, launch, 2) is False
    assert known == {}
    assert dependent.is_taken(0, True, launch, 2) is True


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTGEN_PDL", raising=False)
    assert dependent.is_wanted() is True
    for text, wanted in (("", True), ("1", True), ("0", False)):
        monkeypatch.setenv("SOFTGEN_PDL", text)
        assert dependent.is_wanted() is wanted
    monkeypatch.setenv("SOFTGEN_PDL", "off")
    with pytest.raises(InvalidValueError, match="SOFTGEN_PDL must be 0 or 1, got 'off'"):
        dependent.is_wanted()
