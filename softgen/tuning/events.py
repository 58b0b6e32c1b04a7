"""What several GPUs tell while they tune: each event names the one that it is from."""

from __future__ import annotations

from typing import NamedTuple

from softgen.errors import SoftgenError
from softgen.tuning.entry import Entry
from softgen.tuning.handout import Task
from softgen.tuning.tune import Progress


class Began(NamedTuple):
    """A worker has got a shape."""

    worker: str
    task: Task


class Stepped(NamedTuple):
    """A worker has looked at a candidate for the shape that it has."""

    worker: str
    step: Progress


class Finished(NamedTuple):
    """A shape is tuned, and its choice stored."""

    worker: str
    task: Task
    entry: Entry


class Failed(NamedTuple):
    """A shape will not be tuned; the error says why, and on which workers."""

    task: Task
    error: SoftgenError


class Said(NamedTuple):
    """A worker says something on stderr, or something is to be said of it."""

    worker: str
    text: str


Event = Began | Stepped | Finished | Failed | Said
