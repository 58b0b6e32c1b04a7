"""softgen explain and tune --candidates: without a GPU, and with times that a tuning left."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from softgen.errors import MissingDependencyError
from softgen.problems.arch import KNOWN, Arch, arch_named
from softgen.problems.problem import Problem
from softgen.problems.roofline import Peaks
from softgen.strategies.variants import best_guess, candidates, parse_name
from softgen.strategies.winners import path_of, winner
from softgen.tuning import cache
from softgen.tuning.cost import worth_timing
from softgen.tuning.entry import Entry, Key, Timing
from softgen.tuning.tune import Progress
from tests.helpers.cli_helpers import document, ok

H200 = arch_named("sm_90")
ENVIRONMENT: dict[str, str | int] = {"device": "NVIDIA H200", "arch": "sm_90"}
WIDE = Problem.of("softmax", "float32", 12672)
WORTH = worth_timing(WIDE, 4000, H200)
GUESS, WINNER, SPILLING = WORTH[0], WORTH[5], WORTH[3]
(SHIPPED, BESIDE) = next(
    (each["variant"].removeprefix("softmax_f32_12672_"), each["beside"])
    for each in json.loads(path_of("NVIDIA H200").read_text())["entries"]
    if each["variant"].startswith("softmax_f32_12672_") and each["rows"] == 4096
)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be no GPU, and no compiler, which takes half a second."""

    def no_nvrtc(*_: object) -> None:
        raise MissingDependencyError("no NVRTC in this test")

    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: "there is none")
    monkeypatch.setattr("softgen.devices.gpu.compile.compile_offline", no_nvrtc)


class _Runtime:
    @staticmethod
    def getDevice() -> int:
        return 0


class _Cupy:
    class cuda:
        runtime = _Runtime


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch, _no_gpu: None) -> None:
    """Claim that there is an H200, whose memory makes 5000 GB/s."""

    def peaks(device: int, arch: Arch) -> Peaks:
        return Peaks(5000.0, 2000.0)

    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: None)
    monkeypatch.setattr("softgen.devices.gpu.device.current_arch", lambda: H200)
    for name, fake in (
        ("require_device", _Cupy),
        ("arch_of", lambda device: H200),
        ("environment", lambda device: ENVIRONMENT),
        ("peaks_of", peaks),
    ):
        monkeypatch.setattr(f"softgen.tuning.explain.{name}", fake)


def tuned(problem: Problem = WIDE, rows: int = 4000, **_: Any) -> Entry:
    """Return what a tuning might find: the sixth candidate takes 100 us, the first 102.3."""
    found = worth_timing(problem, rows, H200)
    times = {v: 103.0 + number for number, v in enumerate(found)} | {found[0]: 102.3}
    times[found[5]] = 100.0
    del times[found[3]]
    timings = [
        Timing(v.name, t, t - 0.5, t + 0.5) for v, t in sorted(times.items(), key=lambda e: e[1])
    ]
    failures = ((found[3].name, "spills 16 bytes of registers a thread"),)
    key = Key.of(problem, rows, ENVIRONMENT)
    return Entry(key, found[5], tuple(timings), failures, rows=rows)


def lines(*words: object) -> dict[str, str]:
    """Return the lines that begin with a word of their own, by that word."""
    printed = ok("explain", *words).stdout
    found = re.findall(r"^(\w+) {2,}(.*)$", printed, re.MULTILINE)
    return {name: text.strip() for name, text in found} | {"answer": printed.splitlines()[0]}


def test_a_shipped_winner_without_a_gpu() -> None:
    told = lines("4096x12672")
    assert told["chosen"] == f"{SHIPPED}: tuned on NVIDIA H200 for 4096 rows"
    assert told["why"] == (
        f"the fastest when NVIDIA H200 was tuned (the best guess is {GUESS.strategy.label})"
    )
    ahead, over = BESIDE["guess"] / BESIDE["microseconds"], BESIDE["microseconds"] / BESIDE["copy"]
    assert ahead > 1
    assert told["answer"] == (
        f"{BESIDE['microseconds']:.1f} us: {ahead - 1:.1%} ahead of the first guess, {over:.2f} of "
        "a copy; 4096 rows, NVIDIA H200"
    )
    assert told["memory"] == "at least 86.51 us: 415.2 MB at 4800 GB/s"
    assert told["arithmetic"] == (
        "at least 3.879 us: 259.5 MFLOP (5 an element) at 66.9 TFLOP/s; exponentials 12.41 us"
    )
    assert told["roofline"] == (
        "0.62 FLOP a byte, where the limits meet at 13.9: the memory decides"
    )
    variant = parse_name(f"softmax_f32_12672_{SHIPPED}")
    assert told["launch"].startswith(
        f"{variant.launch.grid(4096)} blocks of {variant.launch.block_size} threads"
    )
    assert told["occupancy"] == "not known: no NVRTC in this test"
    assert " us" not in ok("explain", "4096x12672").stdout.partition("setting")[2]


def test_a_shipped_winner_that_is_no_candidate_is_in_the_table() -> None:
    """Its pdl is one that only the tuner tries."""
    words = ("8192x4096", "--dtype", "bfloat16")
    chosen = lines(*words)["chosen"].partition(":")[0]
    problem = Problem.of("softmax", "bfloat16", 4096)
    assert chosen not in {v.strategy.label for v in candidates(problem, 8192, H200)}
    assert re.search(rf"^{chosen} +\d\.\d\d +chosen *$", ok("explain", *words).stdout, re.MULTILINE)
    printed = document(ok("explain", *words, "--json"))
    (marked,) = (each for each in printed["candidates"] if each["winner"])
    assert marked["variant"] == printed["variant"] == f"softmax_bf16_4096_{chosen}"


def test_a_guess_from_a_table_says_whose_and_for_what() -> None:
    told = lines("8192x4096", "--dtype", "bfloat16", "--arch", "sm_100")
    problem = Problem.of("softmax", "bfloat16", 4096)
    shipped = winner(problem, 8192, H200)
    assert shipped is not None
    assert told["chosen"] == (
        f"{shipped.strategy.label}: from the table of NVIDIA H200, 132 SMs, tuned for 8192 x 4096"
    )
    guess = best_guess(problem, 8192, KNOWN["sm_100"])
    assert told["why"] == (
        "nothing was timed here, and it was the fastest when NVIDIA H200 was tuned for 8192 x 4096 "
        f"(the best guess is {guess.strategy.label})"
    )
    assert told["answer"].startswith("not measured: times are of the GPU here; ")
    assert lines("2000x12672")["why"].startswith("nothing was timed here, and it was the fastest")


def test_a_best_guess_says_why_nothing_was_measured() -> None:
    told = lines("64", "x", "1000", "--dtype", "float16", "--function", "log_softmax")
    assert told["chosen"].endswith(": best guess for 64 rows")
    assert told["why"] == (
        "it is the first guess of the strategy that is expected to be the fastest: nothing was "
        "timed here, and no winner is shipped; `expected` does not decide among settings of one "
        "strategy, whose order was fitted to measured times"
    )
    assert re.fullmatch(
        r"not measured: no GPU can be used: there is none; \d\.\d\d of a copy is expected",
        told["answer"],
    )
    assert told["roofline"].endswith(": less than a launch takes, about 1.8 us")


def test_another_architecture() -> None:
    told = lines("4096x12672", "--arch", "89")
    assert told["answer"].startswith(
        "not measured: times are of the GPU here; leave out --arch and --sms to see them; "
    )
    assert told["memory"] == "at least 411.9 us: 415.2 MB at 1008 GB/s"
    double = lines("4096x12672", "--arch", "sm_89", "--dtype", "float64")
    assert double["roofline"].endswith(": the memory decides")
    assert "exponentials" not in double["arithmetic"]


def test_candidates_are_some_of_those_that_list_prints() -> None:
    printed = document(ok("explain", "4096x12672", "--json"))
    assert printed["variant"] == f"softmax_f32_12672_{SHIPPED}"
    names = {each["variant"] for each in printed["candidates"]}
    listed = {each["name"] for each in document(ok("list", "--cols", 12672, "--json"))}
    assert names < listed
    assert len(listed) == printed["legal"]


def test_what_a_tuning_found(h200: None) -> None:
    cache.store(tuned())
    told = lines("4096x12672")
    count = len(WORTH) - 1
    assert told["chosen"] == f"{WINNER.strategy.label}: tuned here, {count} candidates timed"
    assert told["why"].startswith(f"2.3% faster than the best guess, {GUESS.strategy.label}")
    # 4000 rows of 101376 bytes in 100 us, where the memory makes 5000 GB/s.
    assert told["answer"] == (
        "100.0 us: 2.3% ahead of the first guess, 4055 GB/s (81.1% of the peak); 4000 rows, here"
    )
    assert told["memory"] == "at least 83.05 us: 415.2 MB at 5000 GB/s"
    printed = ok("explain", "4096x12672").stdout
    assert re.search(
        rf"^{WINNER.strategy.label} +\d\.\d\d +100\.0 +1\.000 +chosen$",
        printed.replace(" \n", "\n"),
        re.MULTILINE,
    ), printed
    assert re.search(rf"^{GUESS.strategy.label} +\d\.\d\d +102\.3 +1\.023 +guess", printed, re.M)
    assert f"{SPILLING.strategy.label}: spills 16 bytes of registers a thread\n" in printed
    assert re.search(r"^block_size +\d+ +.*\d+: 100\.0", printed, re.MULTILINE)


def test_the_same_as_json(h200: None) -> None:
    cache.store(tuned())
    printed = document(ok("explain", "4096x12672", "--json"))
    assert (printed["rows"], printed["timed_rows"]) == (4096, 4000)
    assert printed["microseconds"] == 100.0
    first, second = printed["candidates"][:2]
    assert (first["variant"], first["winner"], first["best_guess"]) == (WINNER.name, True, False)
    assert (second["variant"], second["winner"], second["best_guess"]) == (GUESS.name, False, True)
    assert [first[key] for key in ("microseconds", "p10", "p90")] == [100.0, 99.5, 100.5]
    (failed,) = (each for each in printed["candidates"] if each["failure"])
    assert (failed["variant"], failed["microseconds"]) == (SPILLING.name, None)
    assert printed["roofline"]["memory"] == pytest.approx(4096 * 101376 / 5e6)
    (knob,) = (each for each in printed["knobs"] if each["knob"] == "block_size")
    winners_own = {"value": knob["value"], "microseconds": 100.0}
    assert winners_own in knob["values"]


@pytest.mark.parametrize("options", [("--arch", "sm_90"), ("--sms", 132), ("--batch-invariant",)])
def test_what_was_timed_here_is_not_told_of_another_choice(
    options: tuple[object, ...], h200: None
) -> None:
    cache.store(tuned())
    told = lines("4096x12672", *options)
    assert "tuned here" not in told["chosen"]
    assert SHIPPED in told["chosen"]


def test_a_gpu_without_a_tuning_says_how_to_make_one(h200: None) -> None:
    told = lines("77x1000", "--dtype", "bfloat16", "--function", "logsumexp")
    assert told["answer"].startswith(
        "not measured yet: `softgen tune --shape 77x1000 --dtype bfloat16 --function logsumexp` "
        "times the candidates; "
    )
    assert told["answer"].endswith(" of a read is expected")


@pytest.mark.parametrize(
    ("options", "label"),
    [
        (("--hook", "causal"), "softmax_f32_1000_causal"),
        (("--strided", "1"), "softmax_f32_1000_strided1"),
        (("--inner", "4"), "softmax_f32_1000_in4"),
        (("--inner", "4", "--hook", "scale"), "softmax_f32_1000_in4_scale"),
        (("--variant", "online"), "softmax_f32_1000_online"),
        (("--variant", "softmax_f32_1000_safe_b256"), "softmax_f32_1000_safe_b256"),
    ],
)
def test_all_that_decides_a_kernel_decides_what_is_explained(
    options: tuple[str, ...], label: str
) -> None:
    printed = document(ok("explain", "64x1000", *options, "--json"))
    assert printed["variant"].startswith(label)
    assert printed["answer"] == lines("64x1000", *options)["answer"]
    assert printed["origin"] == lines("64x1000", *options)["chosen"].partition(": ")[2]
    assert any(each["winner"] for each in printed["candidates"])


def test_what_is_asked_for_is_explained_in_its_place(h200: None) -> None:
    cache.store(tuned())
    told = lines("4096x12672", "--variant", GUESS.strategy.label)
    assert told["chosen"] == f"{GUESS.strategy.label}: asked for by --variant"
    assert told["answer"].startswith("102.3 us: the first guess itself, ")
    told = lines("4096x12672", "--variant", SHIPPED, "--sms", 132)
    assert told["answer"].startswith(f"{BESIDE['microseconds']:.1f} us: ")


def test_tune_prints_the_same_table(h200: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(
        problem: Problem, rows: int, *, budget: float | None, progress: Callable[[Progress], None]
    ) -> Entry:
        made = tuned(problem, rows)
        cache.store(made)
        return made

    monkeypatch.setattr("softgen.tuning.tune.tune", tune)
    words = ("tune", "--shape", "4000x12672", "--shape", "64x1000")
    plain, asked = document(ok(*words, "--json")), document(ok(*words, "--candidates", "--json"))
    assert [{k: v for k, v in line.items() if k != "table"} for line in asked] == plain
    explained = document(ok("explain", "4000x12672", "--json"))
    assert asked[0]["table"] == explained["candidates"]
    assert {each["variant"] for each in asked[1]["table"]} == {
        v.name for v in worth_timing(Problem.of("softmax", "float32", 1000), 64, H200)
    }

    def table(text: str) -> list[str]:
        found = text.splitlines()
        first = next(i for i, line in enumerate(found) if line.startswith("setting"))
        return found[first : first + len(WORTH)]

    assert table(ok(*words, "--candidates").stdout) == table(ok("explain", "4000x12672").stdout)
    assert "setting" not in ok(*words).stdout


@pytest.mark.parametrize("shape", ["4000x12672", "4x16777216"])
def test_a_terminal_of_80_columns(shape: str, h200: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """cooperative has the longest names: 48 letters."""
    rows, cols = map(int, shape.split("x"))
    problem = Problem.of("softmax", "float32", cols)
    cache.store(tuned(problem, rows))
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    plain = re.sub(r"\x1b\[[\d;]*m", "", ok("explain", shape).stdout)
    found = [line.rstrip() for line in plain.splitlines()]
    assert max(map(len, found)) <= 80
    # A candidate is a line: no cell is folded.
    labels = {
        v.strategy.label for v in worth_timing(Problem.of("softmax", "float32", cols), rows, H200)
    }
    for label in labels:
        assert any(re.match(rf"{label} +\d\.\d\d +[\d.-]+", line) for line in found), label
