"""Device time of calls of several processes: graphs of copies of a shard, replayed in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Calls take copies of the shard in turn, as one whose input is in no cache.
COLD_BYTES = 300_000_000
MOST_COPIES = 64


class Clock:
    """Captures calls on copies of a shard, in graphs whose results share memory.

    Args:
        x: the shard, which is read only. The copies are made with the first replay.
    """

    def __init__(self, x: Any) -> None:
        self._copies: list[Any] = [x]
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: Any = torch.cuda.Stream()

    def replay(self, run: Callable[[Any], Any]) -> Replay:
        """Return a graph of calls of `run`, one a copy. RuntimeError where memory is short."""
        x = self._copies[0]
        if len(self._copies) == 1:
            each = max(1, x.numel() * x.element_size())
            count = min(MOST_COPIES, -(-COLD_BYTES // each))
            self._copies += [x.clone() for _ in range(count - 1)]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        with capture:
            results = [run(part) for part in self._copies]  # each has memory of its own
        return Replay(graph, len(results), tensors(results[-1]))


class Replay:
    """A graph of calls.

    Attributes:
        results: of the last call, once it has run.
    """

    def __init__(self, graph: Any, calls: int, results: tuple[Any, ...]) -> None:
        self._graph, self._calls, self.results = graph, calls, results

    def microseconds(self) -> float:
        """Return the time of a call; the first run brings the processes into step."""
        make: Any = torch.cuda.Event
        start, end = make(enable_timing=True), make(enable_timing=True)
        self._graph.replay()
        start.record()
        self._graph.replay()
        self._graph.replay()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) * 1000 / (2 * self._calls)


def tensors(found: Any) -> tuple[Any, ...]:
    """Return what a call gave as a tuple."""
    return found if isinstance(found, tuple) else (found,)
