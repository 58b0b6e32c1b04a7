"""Does verification see a broken kernel? Mutants of emitted texts, run like the kernels themselves.

`python -m tests.mutation 200` breaks 200 seeded places, runs every mutant on the emulator over the
inputs of `softgen verify`, and prints the score and the survivors. Seen is what fails there, or
does other work than the original, which tests/cpu/devices/test_work.py knows. Mutants are rules
over the emitted text, not patches of files: a template that is rewritten tomorrow is broken
tomorrow. `--kernels NAME ...` breaks kernels of those names instead. One that does not compile is
not counted, nor is one whose machine code is the original's, nor one of the few that are known to
change nothing that can be seen (EQUIVALENT, NEEDLESS).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from softgen.devices.emulator import Work
from softgen.devices.gpu.compile import compile_offline
from softgen.problems.arch import arch_named
from softgen.problems.layouts import Columns, Strided
from softgen.problems.problem import Problem
from softgen.source.render import Source, render
from softgen.strategies.base import Strategy
from softgen.strategies.block import Block
from softgen.strategies.cluster import Cluster
from softgen.strategies.columns import ColumnsInRegisters
from softgen.strategies.cooperative import Cooperative
from softgen.strategies.lessons.recurrence import Recurrence
from softgen.strategies.lessons.serial import Serial
from softgen.strategies.lessons.threepass import Threepass
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.shared import ASYNC, BULK, PLAIN, Shared
from softgen.strategies.split import Split
from softgen.strategies.spread import Spread
from softgen.strategies.strips import Strips
from softgen.strategies.tiles import Tiles
from softgen.strategies.variants import Variant, parse_name
from softgen.strategies.warp import Warp
from softgen.verify.emulated import on_emulator
from softgen.verify.verdict import Verdict

ARCH = arch_named("sm_90")
COUNTS = Path(__file__).parent / "cpu" / "devices" / "work.json"
SECONDS = 5  # of a launch that takes 0.1: the rest of them hang
BATCH = (
    12  # mutants of a program: one that does not compile costs the others a program of their own
)


def _subjects() -> Iterator[tuple[Problem, Strategy]]:
    """Every strategy, and every way that one has to lay out a row, at small sizes."""

    def of(
        cols: int, dtype: str = "float32", function: str = "softmax", fixed_order: bool = False
    ) -> Problem:
        return Problem.of(function, dtype, cols, fixed_order=fixed_order)

    yield of(100), Warp.covering(of(100), 4, 8, 2, 128)
    yield of(101, "bfloat16"), Warp.covering(of(101, "bfloat16"), 8, 16, 1, 128)
    fixed = of(77, "float16", fixed_order=True)
    yield fixed, Warp.covering(fixed, 8, 8, 1, 64)
    yield of(500), Block(4, 8, 64, 128, 1)
    yield of(461, function="log_softmax"), Block(4, 8, 64, 64, 1)
    yield of(461, "bfloat16", fixed_order=True), Block(8, 8, 64, 64, 1, packed=True)
    yield of(1000, "float16"), Cluster(8, 8, 64, 2, 1, False)
    yield of(1001), Cluster(4, 8, 64, 2, 1, False)
    yield of(1001, "bfloat16", fixed_order=True), Cluster(8, 8, 64, 2, 1, False, packed=True)
    columns = Problem.of("softmax", "float32", 100, layout=Columns(16))
    yield columns, ColumnsInRegisters(4, 4, 256, 2, 1)
    odd = Problem.of("log_softmax", "bfloat16", 99, layout=Columns(6))
    yield odd, ColumnsInRegisters(2, 2, 64, 2, 1, cluster_size=2)
    yield columns, Strips(4, 4, 64, 2, cluster_size=2)
    yield columns, Spread(4, 4, 64, 1, 2, 2, 1)
    yield odd, Tiles(8, 25, 4, 4, 96)
    view = Problem.of("softmax", "float32", 100, layout=Strided(2))
    yield view, Warp.covering(view, 4, 8, 2, 128)
    yield of(4300), Split(4, 4, 32, 1, True)
    yield of(4101, fixed_order=True), Split(4, 4, 32, 1, False)
    yield of(2000), Cooperative(4, 4, 192, 2, 1, 8, 2, 2)
    yield of(4000), Cooperative(4, 4, 128, 2, 1, 3, 1, 2, 2)
    yield of(8001), Shared(4, 64, PLAIN, 1, 0)
    yield of(20000, "bfloat16"), Shared(8, 64, ASYNC, 1, 0)
    yield of(8000), Shared(4, 64, BULK, 2, 2)
    yield of(1001), Online(4, 2, 64)
    yield of(100000, "float64"), Online(2, 1, 64)
    yield of(50001, "float64"), Safe(64)
    yield of(2003), Serial(32)
    yield of(1500), Threepass(4, 2, True, True, 64)
    yield of(333), Recurrence(64)


def subjects() -> list[Source]:
    """Return the kernels that are broken."""
    return [render(Variant(problem, strategy)) for problem, strategy in _subjects()]


@dataclass(frozen=True)
class Rule:
    """One way to break a line: `replace` gives what stands for a match, or None for no mutant."""

    name: str
    pattern: re.Pattern[str]
    replace: Callable[[re.Match[str]], str | None]


def _swaps(name: str, pairs: dict[str, str]) -> Rule:
    pattern = re.compile("|".join(re.escape(old) for old in sorted(pairs, key=len, reverse=True)))
    return Rule(name, pattern, lambda match: pairs[match[0]])


# A statement that declares or returns something is needed by others: without it nothing compiles.
_NEEDED = re.compile(r"^\s*(?:[\w:<>]+[ &*]+)+\w+(?:\[.*\])*(?: = .*|\{.*|\(.*)?;$|^\s*return\b")


def _without(match: re.Match[str]) -> str | None:
    return None if _NEEDED.match(match[0]) else ";"


def _other_number(match: re.Match[str]) -> str:
    number = int(match[0])
    return str(number + 1 if number < 1000 else 2 * number)  # 1 more of a million is nothing


RULES = (
    _swaps("compare", {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > "}),
    _swaps("equal", {" == ": " != ", " != ": " == "}),
    _swaps("arithmetic", {" + ": " - ", " - ": " + ", " * ": " + ", " / ": " * ", " % ": " / "}),
    _swaps("logic", {" && ": " || ", " || ": " && "}),
    _swaps("assign", {" += ": " = ", " *= ": " = ", " -= ": " += ", " ^= ": " = "}),
    _swaps("shift", {" << ": " >> ", " >> ": " << "}),
    _swaps("truth", {"true": "false", "false": "true"}),
    _swaps("extreme", {"fmaxf(": "fminf(", " max(": " min(", "__hmax2(": "__hmin2("}),
    Rule("literal", re.compile(r"(?<![\w.])\d+(?![\w.])"), _other_number),
    Rule("negate", re.compile(r"\bif \((?!constexpr)"), lambda match: "if (!"),
    Rule("without", re.compile(r"^\s+[^/#].*;$"), _without),
)


@dataclass(frozen=True)
class Mutant:
    """A broken kernel: `old` of a line became `new`."""

    source: Source
    rule: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}: {self.rule}: {self.text.strip()}"


# What a mutant must leave alone: the parameters themselves, what the emulator replaces by twins of
# its own (PTX), and what only helps the compiler.
_LEFT_ALONE = re.compile(
    r"^\s*(#|//|static_assert|using |constexpr (int|bool) k\w+ = (-?\d+|true|false);)"
    r"|forget_widened\(|__launch_bounds__|extern \"C\"|__shared__|^}|unroll"
)


# What a broken line does not change, and why nothing can see it.
EQUIVALENT = {
    r"negative_infinity\(\), [1-9]\d*\}": "what nothing sums to is weighed by exp(-inf), 0",
    r"\? 1 : m;|\? m : 1;": "-inf, infinity and NaN are the same less 1",
    r"if \(thread == 1\) written\[row\] = 0;": "any thread of the warp may clear the count",
    r"first <= kRowPacks; first \+= kInFlight": "the pack behind a row's last has no column of it",
    r"i <= kLoads; \+\+i": "what is moved is asked first whether it is in the tile",
    r"kLoads = \(kTile \* kPackSize": "likewise",
    r"_77_fixed_warp_.* lane == kLanes \+ 1": "no pack of 77 columns is behind the last lane's",
    r"kPacks = kColsPerThread \* kPackSize": "packs behind a row's last have no column of it",
    r"spread_p4_w4_b64_c1_.* sum = exponential\(": "a thread has one element, so there is one term",
    r"_f64_50001_safe_.* sum = value = ": "likewise",
    r"fabsf\(m\) <= kLargest": "2^21 is in the range of both ways",
    r"base\.offset != 1": "it spares a subtraction of 0",
    r"if \(!?bits [!=]= 0xffffffff\)": "it spares a mask that hides nothing",
    r"slot\.m != 0 \|\| slot\.d != 0": "both are one word, which is there or is not",
}

# The same of lines that are taken out or changed in any way.
NEEDLESS = {
    r"const bool needed_again": "which lines stay in the L2",
    r"Compute& value : values\) value = negative_infinity\(\)": "of a row that is not stored",
    # At 8001 columns 64 threads lose 6e-7 without it, of the 2e-6 that are allowed. Where a sum
    # forgets its term, what is lost is the term.
    r"\blost\b|sum \+= term;": "shows in rows of 50000 columns: test_long_sums.py breaks it there",
}


def lines_of(source: Source) -> Iterator[tuple[int, str]]:
    """Yield the number and the code of each line that may be broken."""
    emulated = True
    for number, line in enumerate(source.text.splitlines()):
        if line.startswith("#ifndef SOFTGEN_EMULATOR"):
            emulated = False
        elif line.startswith(("#endif", "#else")):
            emulated = True
        code = line.split("//")[0].rstrip()
        needless = any(re.search(pattern, code) for pattern in NEEDLESS)
        if emulated and code and not needless and not _LEFT_ALONE.search(line):
            yield number, code


def mutants_of(source: Source) -> list[Mutant]:
    """Return every mutant of a kernel that a rule makes in one place."""
    lines = source.text.splitlines()
    found = []
    for number, code in lines_of(source):
        for rule in RULES:
            for match in rule.pattern.finditer(code):
                new = rule.replace(match)
                if new is None:
                    continue
                broken = code[: match.start()] + new + code[match.end() :]
                if any(re.search(pattern, f"{source.name}:{broken}") for pattern in EQUIVALENT):
                    continue
                text = "\n".join([*lines[:number], broken, *lines[number + 1 :], ""])
                mutant = dataclasses.replace(source, text=text)
                found.append(Mutant(mutant, rule.name, number + 1, broken))
    return found


def sample(count: int, seed: int, sources: Sequence[Source] = ()) -> list[Mutant]:
    """Return seeded mutants, as many of every kernel; of each rule alike, as far as there are."""
    generator = random.Random(seed)
    queues = []
    for source in sources or subjects():
        by_rule: dict[str, list[Mutant]] = {}
        for mutant in mutants_of(source):
            by_rule.setdefault(mutant.rule, []).append(mutant)
        for group in by_rule.values():
            generator.shuffle(group)
        queues.append(by_rule)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(queues):
        for by_rule in queues:
            if by_rule and len(chosen) < count:
                rule = generator.choice(sorted(by_rule))
                chosen.append(by_rule[rule].pop())
                if not by_rule[rule]:
                    del by_rule[rule]
    return chosen


def _machine_code(source: Source) -> bytes:
    return compile_offline(source, ARCH).cubin


def work_of(verdicts: Sequence[Verdict]) -> list[Work | None]:
    """Return what the launches did."""
    return [verdict.work for verdict in verdicts]


def _verdicts(batch: Sequence[Mutant]) -> list[list[Verdict]]:
    return on_emulator([mutant.source for mutant in batch], SECONDS)


@dataclass
class Score:
    """What became of the mutants: `killed` and `survivors` count, the others are none."""

    killed: int = 0
    invalid: int = 0
    equivalent: int = 0
    survivors: list[str] = dataclasses.field(default_factory=list)

    @property
    def counted(self) -> int:
        """The mutants that are broken kernels."""
        return self.killed + len(self.survivors)

    def __str__(self) -> str:
        share = 100 * self.killed / max(1, self.counted)
        return (
            f"{self.killed} of {self.counted} mutants were seen: {share:.1f}%; {self.equivalent} "
            f"more have the machine code of the original, {self.invalid} do not compile"
        )


def recorded() -> dict[str, list[Work | None]]:
    """Return what the launches of each subject do, as test_work.py holds them to it."""
    return {
        name: [Work(**launch) for launch in launches]
        for name, launches in json.loads(COUNTS.read_text()).items()
    }


def measured(sources: Sequence[Source]) -> dict[str, list[Work | None]]:
    """Return what the launches of kernels do now; raise ValueError where one is wrong."""
    found = {}
    for source, verdicts in zip(sources, on_emulator(sources, SECONDS), strict=True):
        if wrong := [verdict.objection for verdict in verdicts if verdict.objection]:
            raise ValueError(f"{source.name} is wrong as it is: {wrong[0]}")
        found[source.name] = work_of(verdicts)
    return found


def judge(mutants: Sequence[Mutant], sources: Sequence[Source] = ()) -> Score:
    """Run mutants, of the subjects or of `sources`, and count those that verification sees."""
    score = Score()
    originals = {source.name: source for source in sources or subjects()}
    works = measured(sources) if sources else recorded()
    batches = [mutants[first : first + BATCH] for first in range(0, len(mutants), BATCH)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compilers and programs are processes
        outcomes = pool.map(_verdicts, batches)
    for batch, outcome in zip(batches, outcomes, strict=True):
        for mutant, some in zip(batch, outcome, strict=True):
            wrong = any(verdict.objection for verdict in some)
            if not wrong and work_of(some) == works[mutant.source.name]:
                original = originals[mutant.source.name]
                if _machine_code(mutant.source) == _machine_code(original):
                    score.equivalent += 1
                else:
                    score.survivors.append(str(mutant))
            elif not all(verdict.compiled for verdict in some):
                score.invalid += 1
            else:
                score.killed += 1
    return score


def main() -> None:
    """Print the score of so many mutants, and those that nobody saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kernels", nargs="+", default=[], help="break these, by their names")
    arguments = parser.parse_args()
    sources = [render(parse_name(name)) for name in arguments.kernels]
    score = judge(sample(arguments.count, arguments.seed, sources), sources)
    print("\n".join(score.survivors))
    print(score)
    sys.exit(score.killed < 0.95 * score.counted)


if __name__ == "__main__":
    main()
