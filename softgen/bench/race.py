"""At each shape competitors are prepared and checked against float64, then timed, taking turns."""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from softgen.bench import check, limit
from softgen.bench.buffers import SharedBuffers
from softgen.bench.chain import Chain
from softgen.bench.machine import machine
from softgen.bench.peers import AbsentError, Entrant, Field, Library, Peer
from softgen.bench.record import LIMIT, Finding, Record, Regime, Status, records_of
from softgen.bench.shape import Shape
from softgen.bench.torch_graphs import TorchGraphs, eager, host_samples
from softgen.devices.gpu.device import require_device
from softgen.devices.gpu.replay import Launch, Replay, Work
from softgen.errors import InvalidValueError

ROUNDS = 4
DEFAULT_SECONDS = 0.2
SETUP_SECONDS = 120.0
SWEEPS = 3  # so many copies or reads, the fastest of a first look, are timed with all others
SCREENING_SECONDS = 0.001
SETTINGS = 6  # so many settings of a peer that enters with all of its settings
SETTING_SECONDS = 0.005  # for the look at each setting: many are within 1% of each other
MOST_REASONS = 3  # reasons that a note gives for settings that were left out

Report = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to time.

    Attributes:
        seconds: host time that each competitor is timed for at each shape.
        setup_seconds: host time that a peer which compiles for every shape may spend on that in one
            suite; it is absent from the shapes that are left then.
        regime: whether inputs are in memory, where a kernel has just put them, or where the
            competitor itself has.
    """

    seconds: float = DEFAULT_SECONDS
    setup_seconds: float = SETUP_SECONDS
    regime: Regime = Regime.COLD


@dataclass(frozen=True)
class Starter:
    """What is timed for a competitor; of several the fastest counts.

    Attributes:
        finding: what is known before; the time is still to come.
        replay: its launches.
    """

    finding: Finding
    replay: Replay


def run(
    shapes: Sequence[Shape],
    peers_for: Callable[[Shape], Sequence[Peer]],
    settings: Settings,
    report: Report = lambda message: None,
) -> Iterator[list[Record]]:
    """Time the peers at every shape, and yield the records of each as soon as it is done.

    Args:
        shapes: what to time.
        peers_for: returns the peers for a shape.
        settings: how to time.
        report: told what is being done, in a few words.

    Raises NoDeviceError without a GPU.
    """
    where = machine()
    spent: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for shape in shapes:
        findings = _at(shape, peers_for(shape), settings, spent[shape.suite], report)
        give_memory_back()
        yield records_of(shape, findings, where, settings.regime)


def _at(
    shape: Shape,
    peers: Sequence[Peer],
    settings: Settings,
    spent: dict[str, float],
    report: Report,
) -> list[Finding]:
    try:
        buffers = SharedBuffers(shape, chained=settings.regime is Regime.CHAINED)
    except InvalidValueError as error:  # too large for this GPU, or no chain
        reason = str(error)
        return [Finding(peer.name, Status.ABSENT, note=reason) for peer in peers]
    race = Race(buffers, settings, spent)
    for peer in peers:
        report(f"{shape.label}: {peer.name}")
        race.admit(peer)
    report(f"{shape.label}: timing")
    return race.findings()


def give_memory_back() -> None:
    """Return what both libraries cached to the driver: neither sees what the other holds."""
    require_device().get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()
    # A code object is compiled anew for eight shapes, then never again: forget the earlier ones.
    # Not between two peers of a shape, whose first would be compiled again in the capture.
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


class Race:
    """The competitors of one shape.

    Args:
        buffers: the shape's buffers.
        settings: how to time.
        spent: seconds of preparation by peer, over the shapes of a suite; counted on here.
    """

    def __init__(self, buffers: SharedBuffers, settings: Settings, spent: dict[str, float]) -> None:
        self.buffers = buffers
        self.settings = settings
        self.spent = spent
        self.chain = Chain(buffers) if settings.regime is Regime.WARM else None
        self.torch_graphs: TorchGraphs | None = None
        self.found: dict[str, Finding] = {}
        self.entrants: dict[str, list[tuple[Entrant, Finding]]] = {}
        self.on_host: list[tuple[str, Entrant, Finding]] = []

    def admit(self, peer: Peer) -> None:
        """Prepare and check a peer; it is timed later, or has a finding now."""
        reason = self._refusal(peer)
        if reason is None:
            start = time.perf_counter()
            try:
                made = peer.prepare(self.buffers)
                entrants = self._shortlist(made) if isinstance(made, Field) else [made]
                self._check(peer.name, entrants)
            except Exception as error:  # a library may raise anything; the others go on
                reason = first_line(error)
            spent = time.perf_counter() - start
            self.spent[peer.name] = self.spent.get(peer.name, 0.0) + spent
        if reason is not None:
            self.found[peer.name] = Finding(peer.name, Status.ABSENT, note=reason)

    def _refusal(self, peer: Peer) -> str | None:
        """Return why the peer is not even prepared, or None."""
        missing = peer.lacking(self.buffers.shape) or peer.missing()
        if missing:
            return missing
        if not peer.compiles:
            return None
        if not self.buffers.shape.landmark:
            return "compiles for seconds a shape: only some widths of this suite are timed"
        if self.spent.get(peer.name, 0.0) > self.settings.setup_seconds:
            return f"spent its {self.settings.setup_seconds:g} s of compiling on earlier shapes"
        return None

    def _check(self, name: str, entrants: Sequence[Entrant]) -> None:
        """Run the entrants of a peer once each and compare with float64; all have to be right."""
        on_host = entrants[0].library is Library.HOST
        if on_host and self.chain:
            raise AbsentError("runs on the CPU, between no two kernels")
        if entrants[0].result is not None and self.settings.regime is Regime.CHAINED:
            raise AbsentError("chooses its own memory, so its launches cannot be chained")
        checked = [(entrant, self._checked(name, entrant)) for entrant in entrants]
        for entrant, found in checked:
            if found.status is Status.WRONG:
                which = f"{entrant.note}: " if len(entrants) > 1 else ""
                self.found[name] = replace(found, note=which + found.note)
                return
        self.found[name] = checked[0][1]
        if on_host:
            self.on_host.append((name, *checked[0]))
        else:
            self.entrants[name] = checked

    def _checked(self, name: str, entrant: Entrant) -> Finding:
        buffers = self.buffers
        buffers.poison()
        with self._current(entrant.library):
            entrant.launch(0)
            entrant.collect()
        buffers.player.stream.synchronize()
        if entrant.objection is not None and (wrong := entrant.objection()):
            return Finding(name, Status.WRONG, note=wrong)
        if entrant.objection is not None or not entrant.computes:
            return Finding(name, Status.TIMED, error=0.0, note=entrant.note)
        if check.chosen_columns(buffers.problem) is not None:
            found = check.furthest_choice(buffers.problem, buffers.sets[0], entrant.gives)
        else:
            found = check.furthest(
                *(buffers.problem, buffers.sets[0], buffers.shape.axis, buffers.exact),
                most=1 if entrant.first_alone else None,
            )
        if found.error <= found.bound * entrant.coarseness:
            return Finding(name, Status.TIMED, error=found.error, note=entrant.note)
        which = f"{found.result} is " if len(buffers.problem.results) > 1 else ""
        note = (
            f"{which}off by {found.error:.3g} relative to float64, where "
            f"{found.bound * entrant.coarseness:.3g} is "
            "allowed"
        )
        return Finding(name, Status.WRONG, error=found.error, note=note)

    def _shortlist(self, field: Field) -> list[Entrant]:
        """Return the fastest settings of a short look at all of them.

        Their notes say among how many, and what was left out.
        """
        left_out = [first_line(error) for error in field.left_out]
        looked: list[tuple[float, Entrant]] = []
        for entrant in field.settings:
            try:
                with self._current(entrant.library):
                    entrant.launch(0)  # what the driver refuses should not fail in a capture
                looked.append((self._glance(entrant, warm_up=not looked), entrant))
            except Exception as error:  # the others go on
                left_out.append(first_line(error))
        if not looked:
            raise AbsentError(f"no setting can be timed{_reasons(left_out)}")
        looked.sort(key=lambda seen: seen[0])
        among = f", the fastest of {len(looked)}{_reasons(left_out)}"
        return [replace(entrant, note=entrant.note + among) for _, entrant in looked[:SETTINGS]]

    def _glance(self, entrant: Entrant, warm_up: bool) -> float:
        """Return the microseconds of a launch, after a short look."""
        player = self.buffers.player
        replay = player.sized(self._capture(entrant), self.buffers.pairs)
        if warm_up:
            player.warm_up(replay)
        return statistics.median(player.samples(replay, SETTING_SECONDS, least=3))

    def _current(self, library: Library) -> contextlib.AbstractContextManager[object]:
        """Make the buffers' stream the library's current one."""
        if library is Library.TORCH:
            return self._torch().current()
        return self.buffers.player.stream  # type: ignore[no-any-return]

    def _torch(self) -> TorchGraphs:
        if self.torch_graphs is None:
            self.torch_graphs = TorchGraphs(self.buffers.torch_stream)
        return self.torch_graphs

    def look_at(self, name: str, entrant: Entrant) -> Finding:
        """Check an entrant and time it by itself, now; nothing of it is kept."""
        found = self._checked(name, entrant)
        if found.status is not Status.TIMED:
            return found
        player = self.buffers.player
        replay = player.sized(self._capture(entrant), self.buffers.pairs)
        return found.timed(player.samples(replay, self.settings.seconds))

    def findings(self) -> list[Finding]:
        """Time whoever was admitted, and return what was found of every peer, the limit first."""
        starters = self._sweeps()
        with self._current(Library.TORCH) if self.torch_graphs else contextlib.nullcontext():
            for name, entrants in self.entrants.items():
                try:
                    starters += [self._starter(*checked) for checked in entrants]
                except Exception as error:
                    self.found[name] = Finding(name, Status.ABSENT, note=first_line(error))
            samples = self._take_turns([starter.replay for starter in starters])
        fastest: dict[str, Finding] = {}
        for starter, seen in zip(starters, samples, strict=True):
            found = starter.finding.timed(seen)
            best = fastest.setdefault(found.peer, found)
            if (found.microseconds or 0.0) < (best.microseconds or 0.0):
                fastest[found.peer] = found
        # The GPU rests while the CPU is timed: all that needs its clocks comes before.
        for name, entrant, found in self.on_host:
            calls = host_samples(entrant.launch, self.settings.seconds)
            fastest[name] = replace(found, status=Status.HOST).timed(calls)
        return [fastest[LIMIT], *(fastest.get(name, found) for name, found in self.found.items())]

    def _starter(self, entrant: Entrant, found: Finding) -> Starter:
        """Capture the entrant; what cannot be captured is looped over, and marked."""
        player, pairs = self.buffers.player, self.buffers.pairs
        try:
            return Starter(found, player.sized(self._capture(entrant), pairs))
        except Exception as error:
            player.stream.synchronize()
            note = f"{found.note}; " if found.note else ""
            note += f"eager, since capture failed: {first_line(error)}"
            launch = self._launch_of(entrant)
            replay = player.sized(eager(launch, lambda: self._current(entrant.library)), pairs)
            return Starter(replace(found, status=Status.EAGER, note=note), replay)

    def _capture(self, entrant: Entrant) -> Callable[[int], Work]:
        """Return what captures so many launches of the entrant."""
        torch = entrant.library is Library.TORCH
        capture = self._torch().capture if torch else self.buffers.player.capture
        return partial(capture, self._launch_of(entrant))

    def _launch_of(self, entrant: Entrant) -> Launch:
        """Return what is timed as a launch of the entrant."""
        return self.chain.around(entrant.launch, entrant.result) if self.chain else entrant.launch

    def _sweeps(self) -> list[Starter]:
        """Return the fastest copies, or reads if no element is written, of a short look at all."""
        player, pairs = self.buffers.player, self.buffers.pairs
        looked: list[tuple[float, Starter]] = []
        for sweep in limit.settings_for(self.buffers.problem):
            entrant = Entrant(limit.launch_of(sweep, self.buffers))
            replay = player.sized(self._capture(entrant), pairs)
            if not looked:
                player.warm_up(replay)
            seen = statistics.median(player.samples(replay, SCREENING_SECONDS, least=3))
            found = Finding(LIMIT, Status.TIMED, error=0.0, note=sweep.label)
            looked.append((seen, Starter(found, replay)))
        looked.sort(key=lambda seen: seen[0])
        return [starter for _, starter in looked[:SWEEPS]]

    def _take_turns(self, replays: Sequence[Replay]) -> list[list[float]]:
        """Return the microseconds of each; drift of the clocks meets all alike."""
        samples: list[list[float]] = [[] for _ in replays]
        share = self.settings.seconds / ROUNDS
        for _ in range(ROUNDS):
            for replay, seen in zip(replays, samples, strict=True):
                seen += self.buffers.player.samples(replay, share, least=2)
        return samples


def _reasons(left_out: Sequence[str]) -> str:
    """Return why settings were left out, the commonest reasons first, for the end of a note."""
    if not left_out:
        return ""
    told = [f"{reason} ({count})" for reason, count in Counter(left_out).most_common(MOST_REASONS)]
    return f"; {len(left_out)} left out: {', '.join(told)}"


def first_line(error: BaseException) -> str:
    """Return an error as one short line: compilers' messages have hundreds."""
    if isinstance(error, AbsentError):
        return str(error)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # colours, which a table has no use for
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."
