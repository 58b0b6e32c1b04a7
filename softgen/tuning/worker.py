"""A process that tunes on one GPU, for `process.py`: a line of JSON a shape in, and a few out.

A request is {"problem": ..., "rows": ..., "budget": ...}. Answers are {"ready": true} once,
{"step": ...} after each candidate, and {"entry": ...} or {"error": message, "kind": class}. An
error that is no SoftgenError ends the process: after some errors of CUDA nothing works in it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from softgen.errors import SoftgenError
from softgen.tuning import tune
from softgen.tuning.entry import problem_from_json


def main(device: int) -> None:
    """Tune what comes on stdin on GPU `device`, until stdin ends."""
    answer = _answers()
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    use(device)
    answer({"ready": True})
    while True:
        answer(answer_of(**requests.get(), progress=lambda step: answer({"step": asdict(step)})))


def use(device: int) -> None:
    """Make GPU `device` this thread's, and load CUDA there."""
    from softgen.devices.gpu.device import require_device

    cuda = require_device().cuda
    cuda.Device(device).use()
    cuda.runtime.free(0)


def _answers() -> Callable[[dict[str, Any]], None]:
    """Return what writes an answer on stdout, where nothing else is written from now on."""
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(fields: dict[str, Any]) -> None:
        stdout.write(json.dumps(fields) + "\n")
        stdout.flush()

    return answer


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass requests on, and end the process with stdin: nobody waits for it any more."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def answer_of(
    problem: dict[str, Any],
    rows: int,
    budget: float | None,
    progress: Callable[[tune.Progress], None] | None = None,
) -> dict[str, Any]:
    """Tune a shape, store the choice, and return what is to be answered: an entry or an error.

    Args:
        problem: `Problem.as_json`.
        rows: how many.
        budget: seconds; None for no limit.
        progress: called after each candidate.
    """
    try:
        entry = tune.tune(problem_from_json(problem), rows, budget=budget, progress=progress)
    except SoftgenError as error:
        return {"error": str(error), "kind": type(error).__name__}
    return {"entry": entry.to_json()}
