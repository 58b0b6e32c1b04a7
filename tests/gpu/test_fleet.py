"""Workers on the GPUs that are here: each tunes on its own, and stores what one GPU would."""

from __future__ import annotations

import pytest

from softgen.devices.gpu.device import count, environment
from softgen.problems.problem import Problem
from softgen.tuning import cache
from softgen.tuning.fleet import Began, Failed, Finished, Fleet, Stepped
from softgen.tuning.process import Process
from softgen.tuning.work_queue import Task

pytestmark = pytest.mark.gpu


def test_shapes_are_tuned_and_stored_by_a_process_a_gpu() -> None:
    problem = Problem.of("softmax", "float16", 1000)
    tasks = [Task(number, problem, 64 << number) for number in range(2 * count())]
    happened = list(Fleet(tasks, range(count()), 0.3, Process).events())
    assert [event for event in happened if isinstance(event, Failed)] == []
    finished = {event.task.number: event for event in happened if isinstance(event, Finished)}
    assert finished.keys() == {task.number for task in tasks}
    assert any(isinstance(event, Stepped) for event in happened)
    workers = {event.worker for event in happened if isinstance(event, Began)}
    assert workers <= {f"GPU {number}" for number in range(count())}
    stored = {entry.key: entry for entry in cache.entries()}
    assert all(stored[each.entry.key] == each.entry for each in finished.values())
    assert {dict(key.environment)["device"] for key in stored} == {environment(0)["device"]}
