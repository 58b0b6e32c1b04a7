"""Device time of launches: many are captured in one CUDA graph, and its replays timed by events.

Host launches take longer than small kernels, so a loop of them measures the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from softgen.devices.gpu.device import require_device

GRAPH_MICROSECONDS = 400.0  # long enough that the two events' overhead (about 2 us) is lost in it
WARM_UP_SECONDS = 0.01
MOST_SAMPLES = 1000

Launch = Callable[[int], None]
Work = Callable[[], None]


@dataclass(frozen=True)
class Replay:
    """Work that can be run again and again on a player's stream.

    Attributes:
        run: enqueues all of it.
        launches: how many launches it holds.
    """

    run: Work
    launches: int


class Player:
    """Captures launches and times their replays, on a stream of its own.

    A launch is a callable of a number i that enqueues one launch on the stream: on the i-th pair of
    buffers, where there are several.

    Attributes:
        between: what is enqueued before each run and not timed, such as work that empties caches.
    """

    def __init__(self) -> None:
        self.cupy = require_device()
        self.stream = self.cupy.cuda.Stream(non_blocking=True)
        self.between: Work | None = None

    def time(self, run: Work) -> float:
        """Run once and return the device time in microseconds."""
        return self._timed(run, 1)[0]

    def capture(self, launch: Launch, launches: int) -> Work:
        """Return a graph of launch(0), launch(1), ... as a callable."""
        with self.stream:
            self.stream.begin_capture()
            try:
                for i in range(launches):
                    launch(i)
            finally:
                # A stream that is left in capture is lost to every later use.
                graph = self.stream.end_capture()

        def run(_needed: Launch = launch) -> None:
            # The graph holds addresses of what may be the launch's own, such as its workspace.
            graph.launch(self.stream)

        return run

    def sized(self, make: Callable[[int], Work], period: int) -> Replay:
        """Return a replay that is long enough to be timed.

        Args:
            make: returns work of a given number of launches.
            period: launches until the buffers repeat; the replay is whole periods long.
        """
        run = make(period)
        self.time(run)
        each = self.time(run) / period
        launches = period * max(1, round(GRAPH_MICROSECONDS / (each * period)))
        return Replay(run if launches == period else make(launches), launches)

    def warm_up(self, replay: Replay) -> None:
        """Run until the clocks have risen."""
        end = time.perf_counter() + WARM_UP_SECONDS
        while time.perf_counter() < end:
            self.time(replay.run)

    def samples(self, replay: Replay, seconds: float, least: int = 5) -> list[float]:
        """Return microseconds per launch, one number a replay, for about `seconds` of host time."""
        end = time.perf_counter() + seconds
        found: list[float] = []
        while len(found) < least or (time.perf_counter() < end and len(found) < MOST_SAMPLES):
            found += [each / replay.launches for each in self._in_a_row(replay.run, least)]
        return found

    def _in_a_row(self, run: Work, count: int) -> list[float]:
        """Return the device time of `count` runs in microseconds, one enqueued behind the other.

        The run before the first keeps the GPU busy meanwhile. Between events on an idle GPU there
        would also be the time that the host takes to launch a graph, which differs by library.
        """
        run()
        return self._timed(run, count)

    def _timed(self, run: Work, count: int) -> list[float]:
        make = self.cupy.cuda.Event
        events = [(make(), make()) for _ in range(count)]
        for start, stop in events:
            if self.between is not None:
                self.between()
            start.record(self.stream)
            run()
            stop.record(self.stream)
        events[-1][1].synchronize()
        elapsed = self.cupy.cuda.get_elapsed_time
        return [float(elapsed(start, stop)) * 1000 for start, stop in events]
