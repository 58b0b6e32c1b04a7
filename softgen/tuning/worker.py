"""A process that tunes on one GPU, for `process.py`: a line of JSON a shape in, and a few out.

A request is {"problem": ..., "rows": ..., "budget": ...}. Answers are {"ready": true} once,
{"step": ...} after each candidate, and {"entry": ...} or {"error": message, "kind": class}. An
error that is no SoftgenError ends the process: after some errors of CUDA nothing works in it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
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
    answer(ready=True)
    while True:
        _serve(requests.get(), answer)


def use(device: int) -> None:
    """Make GPU `device` this thread's, and load CUDA there."""
    from softgen.devices.gpu.device import require_device

    cuda = require_device().cuda
    cuda.Device(device).use()
    cuda.runtime.free(0)


def _answers() -> Callable[..., None]:
    """Return what writes an answer on stdout, where nothing else is written from now on."""
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**fields: Any) -> None:
        stdout.write(json.dumps(fields) + "\n")
        stdout.flush()

    return answer


def _listen(requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass requests on, and end the process with stdin: nobody waits for it any more."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def _serve(request: dict[str, Any], answer: Callable[..., None]) -> None:
    try:
        entry = tune.tune(
            problem_from_json(request["problem"]),
            request["rows"],
            budget=request["budget"],
            progress=lambda step: answer(step=dataclasses.asdict(step)),
        )
    except SoftgenError as error:
        answer(error=str(error), kind=type(error).__name__)
    else:
        answer(entry=entry.to_json())
