"""Times of what CuPy cannot capture: PyTorch's launches, those that nobody can, and the CPU's."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from softgen.devices.gpu.replay import Launch, Work

LEAST_HOST_SAMPLES = 3


class TorchGraphs:
    """Captures work of PyTorch on `stream`, a player's stream as PyTorch sees it.

    A graph of PyTorch's own brings a pool of memory: what is allocated in the capture stays with
    the graph. `torch.cuda.graph` would collect garbage at every capture, about 0.1 s; hence the
    calls beneath it.
    """

    def __init__(self, stream: Any) -> None:
        import torch

        self.torch = torch
        self.stream = stream

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the stream PyTorch's current one, and record nothing for gradients."""
        with self.torch.cuda.stream(self.stream), self.torch.no_grad():
            yield

    def capture(self, launch: Launch, launches: int) -> Work:
        """Return a graph of launch(0), launch(1), ... as a callable.

        It replays on PyTorch's current stream: call it within `current`, entered well before the
        clock starts, because switching streams takes PyTorch 10 us.
        """
        graph = self.torch.cuda.CUDAGraph()
        with self.current():
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                for i in range(launches):
                    launch(i)
            finally:
                # A stream that is left in capture is lost to every later use.
                graph.capture_end()
        replay: Work = graph.replay
        return replay


def eager(
    launch: Launch, current: Callable[[], contextlib.AbstractContextManager[object]]
) -> Callable[[int], Work]:
    """Return a maker of loops over `launch`, for what cannot be captured.

    Args:
        launch: enqueues one launch.
        current: returns a context in which the stream is current.
    """

    def make(launches: int) -> Work:
        def run() -> None:
            with current():
                for i in range(launches):
                    launch(i)

        return run

    return make


def host_samples(launch: Launch, seconds: float) -> list[float]:
    """Return microseconds of calls that are done when they return, for about `seconds`."""
    end = time.perf_counter() + seconds
    found: list[float] = []
    while len(found) < LEAST_HOST_SAMPLES or time.perf_counter() < end:
        start = time.perf_counter()
        launch(0)
        found.append((time.perf_counter() - start) * 1e6)
    return found
