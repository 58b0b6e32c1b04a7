"""Running the tuner for `softgen tune`, with bars: on the GPU of this process, or on several."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from softgen.cli import output
from softgen.errors import SoftgenError
from softgen.tuning.work_queue import Task

if TYPE_CHECKING:
    from collections.abc import Generator

    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from softgen.tuning.entry import Entry
    from softgen.tuning.fleet import Event
    from softgen.tuning.tune import Progress


BEST = "{task.fields[best]}"  # the column of the best setting so far


@dataclass
class Tuned:
    """What came of the shapes.

    Attributes:
        finished: the entry of each that is tuned and stored, by its number.
        errors: the errors of shapes that cannot be tuned, as they came.
        interrupted: whether Ctrl-C came before the last.
    """

    finished: dict[int, Entry] = field(default_factory=dict)
    errors: list[SoftgenError] = field(default_factory=list)
    interrupted: bool = False


def tune_here(tasks: Sequence[Task], budget: float | None) -> Tuned:
    """Tune the shapes in order on the current device; the first error ends it."""
    from softgen.tuning.tune import tune

    tuned = Tuned()
    try:
        for task in tasks:
            with output.bars(BEST) as bars:
                size = f"{task.rows}x{task.problem.cols}"
                bar = bars.add_task(f"{task.problem.function} {size}", total=None, best="")

                def show(step: Progress, bars: Bars = bars, bar: TaskID = bar) -> None:
                    _show(bars, bar, step)

                entry = tune(task.problem, task.rows, budget=budget, progress=show)
                tuned.finished[task.number] = entry
    except KeyboardInterrupt:
        tuned.interrupted = True
    return tuned


def tune_on(devices: Sequence[int], tasks: Sequence[Task], budget: float | None) -> Tuned:
    """Tune the shapes on several GPUs of this machine; a shape's error does not end the others."""
    from softgen.tuning.fleet import Fleet
    from softgen.tuning.process import Process

    return follow(Fleet(tasks, devices, budget, Process).events(), len(tasks))


def tune_on_ray(address: str, tasks: Sequence[Task], budget: float | None) -> Tuned:
    """Tune the shapes on the GPUs of a Ray cluster; a shape's error does not end the others."""
    from softgen.tuning import cluster

    with redirect_stdout(sys.stderr):  # Ray prints there what its processes say
        cluster.connect(address)
        try:
            return follow(cluster.tune_on_cluster(tasks, budget), len(tasks))
        finally:
            cluster.disconnect()


def follow(events: Generator[Event, None, None], count: int) -> Tuned:
    """Show what happens, a bar a worker and a line a shape; Ctrl-C closes `events`."""
    tuned = Tuned()
    with output.bars(BEST) as bars, closing(events):
        try:
            _follow(events, count, bars, tuned)
        except KeyboardInterrupt:
            tuned.interrupted = True
    return tuned


def _follow(events: Iterable[Event], count: int, bars: Bars, tuned: Tuned) -> None:
    from softgen.tuning.fleet import Began, Failed, Finished, Said, Stepped

    of_worker: dict[str, TaskID] = {}
    for event in events:
        if isinstance(event, Began):
            if event.worker not in of_worker:
                of_worker[event.worker] = bars.add_task("", total=None, best="")
            description = f"{event.worker} {event.task}"
            bars.reset(of_worker[event.worker], description=description, best="")
        elif isinstance(event, Stepped):
            _show(bars, of_worker[event.worker], event.step)
        elif isinstance(event, Finished):
            tuned.finished[event.task.number] = event.entry
            done = f"{len(tuned.finished)} of {count}"
            output.note(f"{event.worker}: {event.task}: {event.entry.winner.name} ({done})")
        elif isinstance(event, Failed):
            tuned.errors.append(event.error)
        elif isinstance(event, Said):
            output.note(f"{event.worker}: {event.text}")


def _show(bars: Bars, bar: TaskID, step: Progress) -> None:
    rate = step.gigabytes_per_second
    best = f"{rate:.0f} GB/s {step.best}" if rate else ""
    bars.update(bar, completed=step.done, total=step.total, best=best)
