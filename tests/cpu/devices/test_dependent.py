"""Whether launches may start before the one before has ended: the environment, and the driver."""

from __future__ import annotations

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
