"""Workers that are actors of a Ray cluster, a GPU each; their choices are stored here."""

from __future__ import annotations

import functools
import re
import socket
import threading
from collections.abc import Generator, Sequence
from typing import Any

from softgen.errors import (
    InvalidValueError,
    MissingDependencyError,
    NoDeviceError,
    NotSupportedError,
)
from softgen.tuning import cache, process
from softgen.tuning.fleet import Answer, Event, Finished, Fleet, Heard, Said, Worker
from softgen.tuning.work_queue import Task
from softgen.version import __version__

LOCAL = "local"  # the address of a cluster that is begun on this machine, and ends with us
CONNECT_SECONDS = 10.0
_KIND = "accelerator_type:"  # how Ray's resources name a model of GPU


class Tuner:
    """What runs on a node: Ray lets it see one GPU."""

    def begin(self) -> dict[str, str]:
        """Load CUDA; return the GPU's name in messages, and this softgen's version."""
        process.use(0)
        return {"name": gpu_name(), "version": __version__}

    def tune(self, problem: dict[str, Any], rows: int, budget: float | None) -> Answer:
        """Tune a shape, and store the choice on this node too."""
        return process.answer_of(problem, rows, budget)


def gpu_name() -> str:
    """Return in words the GPU that Ray gave to this process."""
    ray = require_ray()
    numbers = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return f"GPU {','.join(numbers)} of {ray.util.get_node_ip_address()}"


def require_ray() -> Any:
    """Return the ray module; MissingDependencyError says how to install it."""
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            f"ray cannot be imported ({error}); install it with `pip install '.[ray]'` in the "
            "clone of softgen"
        ) from error
    return ray


def connect(address: str) -> None:
    """Join the Ray cluster at `address`; "local" begins one on this machine.

    Raises MissingDependencyError without Ray, and NoDeviceError if no cluster is there.
    """
    ray = require_ray()
    try:
        if place := re.fullmatch(r"(?:ray://)?([^/:]+):(\d{1,5})", address):
            # Ray itself tries for minutes.
            socket.create_connection((place[1], int(place[2])), CONNECT_SECONDS).close()
        ray.init(address=address, logging_level="WARNING", log_to_driver=False)
    except (OSError, ValueError, RuntimeError, OverflowError) as error:
        raise NoDeviceError(
            f"--ray: no cluster of Ray can be joined at {address!r}: {error}; name its address, "
            f"or {LOCAL} for the GPUs of this machine"
        ) from error


def disconnect() -> None:
    """Leave the cluster."""
    require_ray().shutdown()


def tune_on_cluster(tasks: Sequence[Task], budget: float | None) -> Generator[Event, None, None]:
    """Tune shapes on all GPUs of the cluster that are free, and yield what happens.

    Args:
        tasks: the shapes.
        budget: seconds a shape; None for no limit.

    Raises NoDeviceError if no GPU is free, InvalidValueError where the nodes have several models.
    """
    ray = require_ray()
    free = ray.available_resources()
    models = sorted(name.removeprefix(_KIND) for name in free if name.startswith(_KIND))
    if len(models) > 1:
        raise InvalidValueError(
            f"--ray: a choice is for one model of GPU, and the cluster has {', '.join(models)}; "
            "name a cluster whose nodes are alike"
        )
    count = int(free.get("GPU", 0))
    if count == 0:
        raise NoDeviceError("--ray: no GPU of the cluster is free")
    # Where a GPU is taken meanwhile, its worker waits and the others do all.
    actor = ray.remote(num_gpus=1, max_restarts=0)(Tuner)
    hire = functools.partial(Actor, actor)
    yield Said("Ray", f"workers begin on the {count} GPUs that are free")
    for event in Fleet(tasks, range(count), budget, hire).events():
        if isinstance(event, Finished):
            cache.store(event.entry)
        yield event


class Actor(Worker):
    """An actor of Ray; a thread waits for each of its answers."""

    certain = False  # a GPU that somebody else has taken may never be free

    def __init__(self, actor: Any, slot: int, heard: Heard) -> None:
        super().__init__(slot, f"worker {slot} of Ray")
        self._ray = require_ray()
        self._heard = heard
        self._how_ended = ""
        self._actor = actor.remote()
        self._wait_for(self._actor.begin.remote(), self._begun)

    def _wait_for(self, reference: Any, then: Any) -> None:
        def wait() -> None:
            try:
                answer = then(self._ray.get(reference))
            except Exception as error:  # of Ray, where the actor died, or what it raised
                # After a traceback, where there is one; and Ray adds advice to what it says.
                last = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                self._how_ended = last.strip().partition(". ")[0]
                answer = None
            self._heard.put((self, answer))

        threading.Thread(target=wait, daemon=True).start()

    def _begun(self, told: dict[str, str]) -> Answer:
        if told["version"] != __version__:
            raise NotSupportedError(
                f"softgen {told['version']} is installed there, and {__version__} here"
            )
        self.name = told["name"]
        return {"ready": True}

    def give(self, task: Task, budget: float | None) -> None:
        """Call the actor."""
        reference = self._actor.tune.remote(task.problem.as_json, task.rows, budget)
        self._wait_for(reference, dict)

    def how_ended(self) -> str:
        """Return what the error says."""
        return self._how_ended

    def end(self) -> bool:
        """Kill the actor."""
        self._ray.kill(self._actor)
        return True
