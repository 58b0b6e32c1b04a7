"""One shape: competitors are prepared and checked against float64, then timed, taking turns."""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from dataclasses import dataclass
from functools import partial

from softgen.bench import check, limit
from softgen.bench.arena import Arena
from softgen.bench.peers import AbsentError, Entrant, Library, Peer
from softgen.bench.player import TorchPlayer, eager
from softgen.bench.record import LIMIT, Finding, Status
from softgen.replay import Replay

ROUNDS = 4
DEFAULT_SECONDS = 0.2
SETUP_SECONDS = 120.0
COPIES = 3  # the fastest copies of a screening are timed along with everybody else
SCREENING_SECONDS = 0.001


@dataclass(frozen=True)
class Settings:
    """How long to take.

    Attributes:
        seconds: host time that each competitor is timed for at each shape.
        setup_seconds: host time that a peer which compiles for every shape may spend on that in one
            suite; it is absent from the shapes that are left then.
    """

    seconds: float = DEFAULT_SECONDS
    setup_seconds: float = SETUP_SECONDS


class Race:
    """The competitors of one shape.

    Args:
        arena: the shape's buffers.
        settings: how long to take.
        spent: seconds of preparation by peer, over the shapes of a suite; counted on here.
    """

    def __init__(self, arena: Arena, settings: Settings, spent: dict[str, float]) -> None:
        self.arena = arena
        self.settings = settings
        self.spent = spent
        self.torch_player: TorchPlayer | None = None
        self.found: dict[str, Finding] = {}
        self.replays: dict[str, Replay] = {}
        self.entrants: dict[str, Entrant] = {}

    def admit(self, peer: Peer) -> None:
        """Prepare and check a peer; it is timed later, or has a finding now."""
        reason = self._refusal(peer)
        if reason is None:
            start = time.perf_counter()
            try:
                self._check(peer.name, peer.prepare(self.arena))
            except Exception as error:  # a library may raise anything; the others go on
                reason = first_line(error)
            spent = time.perf_counter() - start
            self.spent[peer.name] = self.spent.get(peer.name, 0.0) + spent
        if reason is not None:
            self.found[peer.name] = Finding(peer.name, Status.ABSENT, note=reason)

    def _refusal(self, peer: Peer) -> str | None:
        """Return why the peer is not even prepared, or None."""
        missing = peer.missing()
        if missing:
            return missing
        if not peer.compiles:
            return None
        if not self.arena.shape.landmark:
            return "compiles for seconds a shape: only some widths of this suite are timed"
        if self.spent.get(peer.name, 0.0) > self.settings.setup_seconds:
            return f"spent its {self.settings.setup_seconds:g} s of compiling on earlier shapes"
        return None

    def _check(self, name: str, entrant: Entrant) -> None:
        """Run the entrant once and compare with float64."""
        arena = self.arena
        arena.poison()
        with self._current(entrant.library):
            entrant.launch(0)
            entrant.collect()
        arena.player.stream.synchronize()
        dtype = arena.shape.dtype
        error = check.max_relative_error(arena.y[0], arena.x[0], dtype)
        bound = check.TOLERANCE[dtype]
        if error <= bound:
            self.entrants[name] = entrant
            self.found[name] = Finding(name, Status.TIMED, error=error, note=entrant.note)
        else:
            note = f"off by {error:.3g} relative to float64, where {bound:.3g} is allowed"
            self.found[name] = Finding(name, Status.WRONG, error=error, note=note)

    def _current(self, library: Library) -> contextlib.AbstractContextManager[object]:
        """Make the arena's stream the library's current one."""
        if library is Library.TORCH:
            return self._torch().current()
        return self.arena.player.stream  # type: ignore[no-any-return]

    def _torch(self) -> TorchPlayer:
        if self.torch_player is None:
            self.torch_player = TorchPlayer(self.arena.torch_stream)
        return self.torch_player

    def findings(self) -> list[Finding]:
        """Time whoever was admitted, and return what was found of every peer, the limit first."""
        copies = self._copies()
        with self._current(Library.TORCH) if self.torch_player else contextlib.nullcontext():
            for name, entrant in list(self.entrants.items()):
                try:
                    self.replays[name] = self._replay(name, entrant)
                except Exception as error:
                    self.found[name] = Finding(name, Status.ABSENT, note=first_line(error))
            timings = self._take_turns({**copies, **self.replays})
        best = min(copies, key=lambda name: timings[name])
        limit_finding = Finding(LIMIT, Status.TIMED, timings[best], 0.0, f"copy {best}")
        return [limit_finding, *(self._timed(found, timings) for found in self.found.values())]

    def _timed(self, found: Finding, timings: dict[str, float]) -> Finding:
        if found.peer not in timings:
            return found
        return Finding(found.peer, found.status, timings[found.peer], found.error, found.note)

    def _replay(self, name: str, entrant: Entrant) -> Replay:
        """Capture the entrant; what cannot be captured is looped over, and marked."""
        player, pairs = self.arena.player, self.arena.pairs
        capture = self._torch().capture if entrant.library is Library.TORCH else player.capture
        try:
            return player.sized(partial(capture, entrant.launch), pairs)
        except Exception as error:
            player.stream.synchronize()
            found = self.found[name]
            note = f"{found.note}; " if found.note else ""
            self.found[name] = Finding(
                name,
                Status.EAGER,
                error=found.error,
                note=f"{note}eager, since capture failed: {first_line(error)}",
            )
            loop = eager(entrant.launch, lambda: self._current(entrant.library))
            return player.sized(loop, pairs)

    def _copies(self) -> dict[str, Replay]:
        """Return the fastest copies of a short look at all of them, by their labels."""
        player, pairs = self.arena.player, self.arena.pairs
        looked: dict[str, tuple[float, Replay]] = {}
        for copy in limit.settings():
            launch = limit.launch_of(copy, self.arena)
            replay = player.sized(partial(player.capture, launch), pairs)
            if not looked:
                player.warm_up(replay)
            seen = player.samples(replay, SCREENING_SECONDS, least=3)
            looked[copy.label] = statistics.median(seen), replay
        order = sorted(looked, key=lambda label: looked[label][0])
        return {label: looked[label][1] for label in order[:COPIES]}

    def _take_turns(self, replays: dict[str, Replay]) -> dict[str, float]:
        """Return the median microseconds of each; drift of the clocks meets all alike."""
        samples: dict[str, list[float]] = {name: [] for name in replays}
        for _ in range(ROUNDS):
            for name, replay in replays.items():
                share = self.settings.seconds / ROUNDS
                samples[name] += self.arena.player.samples(replay, share, least=2)
        return {name: statistics.median(seen) for name, seen in samples.items()}


def first_line(error: BaseException) -> str:
    """Return an error as one short line: compilers' messages have hundreds."""
    if isinstance(error, AbsentError):
        return str(error)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # colours, which a table has no use for
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
