"""Kernels and their inputs, drawn: case k of a seed is the same whatever else is run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from softgen.problems.arch import Arch
from softgen.problems.dtypes import DType, Float8, FloatType
from softgen.problems.functions import all_functions
from softgen.problems.hooks.known import HOOKS
from softgen.problems.layouts import Columns, Rows, Strided
from softgen.problems.operands import Operand
from softgen.problems.problem import Problem, natural_alignment
from softgen.problems.shards import Shards
from softgen.source.render import Source, render
from softgen.strategies.base import Strategy
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import candidates
from tests.differential import hooks
from tests.differential.functions import Results, is_known
from tests.differential.inputs import first_input, function_inputs
from tests.differential.reference import expected
from tests.differential.regimes import Random
from tests.differential.rows import Entered, Hooks, entered
from tests.differential.storage import Stored, exact, rounded

INPUTS = 8  # of a kernel
LAUNCHES = 8  # of a kernel of shards, one after another

# Functions that are drawn more than once in a round of all.
_OFTEN = {
    "softmax": 12,
    "softmax_lse": 5,
    "log_softmax": 4,
    "log_softmax_lse": 3,
    "logsumexp": 3,
    "cross_entropy": 3,
    "entropy": 2,
    "partial": 2,
}
_WITH_8_BITS = ("softmax", "softmax_lse", "log_softmax", "log_softmax_lse")
_OF_IDS = ("token_log_probs",)

# Columns that a strategy is there for, if not up to 3000.
_WIDTHS = {
    "shared": (2049, 20000),
    "cluster": (4097, 20000),
    "split": (5000, 30000),
    "cooperative": (12000, 40000),
    "spread": (3000, 20000),
    "tiles": (2, 400),
    "columns": (2, 1500),
    "strips": (2, 1500),
    "bands": (2, 1500),
}
_TAKE_ALL = ("safe", "online")  # last where another that has its turn takes no such problem
_MOST_ELEMENTS = 60_000  # of an input, which the emulator runs in 20 ms
_FEWEST_ROWS = 2
_LARGEST_INPUT = 400_000


@dataclass(frozen=True)
class Kernel:
    """A kernel that was drawn.

    Attributes:
        number: of the case.
        source: its text.
        shards: devices that hold rows together; 1 for no shards.
    """

    number: int
    source: Source
    shards: int = 1

    @property
    def problem(self) -> Problem:
        """What it computes."""
        return self.source.variant.problem

    @property
    def strategy(self) -> str:
        """The strategy's name."""
        return self.source.variant.strategy.name

    @property
    def runs(self) -> int:
        """How many results it gives."""
        return LAUNCHES if self.shards > 1 else INPUTS

    @property
    def layout(self) -> str:
        """The layout in a word."""
        return type(self.problem.layout).__name__


@dataclass
class Case:
    """An input of a kernel and what it should give.

    Attributes:
        number: of the input among the kernel's.
        inputs: in operands' order, in storage form; x is of all shards.
        results: what is right, by name.
        rows: x as hooks leave it.
        hooks: what hooks do.
        offsets: elements that x and results start behind a boundary of 16 bytes.
        in_place: whether the result is written over x.
        random: for what a way to run needs beside.
    """

    number: int
    inputs: tuple[Stored, ...]
    results: Results
    rows: Entered
    hooks: Hooks
    offsets: tuple[int, int]
    in_place: bool
    random: Random


# tests/cpu/verify/test_topk_softmax.py and test_sample.py draw these, and
# test_ranked_log_probs.py: of near columns either is right.
OWN_DRAWS = ("topk_softmax", "ranked_log_probs", "sample")


def functions() -> list[str]:
    """Return the names of softgen's functions, as often as they are drawn in a round.

    Raises AssertionError for one that the reference does not know.
    """
    names = [each.name for each in all_functions() if not each.name.startswith(OWN_DRAWS)]
    unknown = [name for name in names if not is_known(name)]
    assert not unknown, f"tests/differential/functions.py has no {', '.join(unknown)}"
    new = {hook.name for hook in HOOKS} - {each for of in hooks.NAMES.values() for each in of}
    assert not new, f"tests/differential/hooks.py has no {', '.join(sorted(new))}"
    return [name for name in names for _ in range(_OFTEN.get(name, 1))]


def kernel(seed: int, number: int, arch: Arch) -> Kernel:
    """Return a kernel of a seed."""
    random = np.random.default_rng([seed, number])
    names = functions()
    name = names[number % len(names)]
    if name.startswith(_OF_IDS) and random.random() < 0.4:
        name = f"{name}_k{int(random.choice([2, 3, 4, 16]))}"
    kinds = all_strategies()
    # Each takes its turn to be the first choice of a function, however many functions there are.
    turn = number // len(names) + number % len(names)
    others = [kinds[i] for i in random.permutation(len(kinds))]
    others.sort(key=lambda kind: kind.name in _TAKE_ALL)
    order = [kinds[turn % len(kinds)], *others]
    for kind in order:
        for _ in range(12):
            problem = _problem(random, name, kind)
            if problem is None or not kind.computes(problem):
                continue
            found = list(itertools.islice(candidates(problem, 64, arch, kind.name), 60))
            if found:
                variant = found[int(random.integers(len(found)))]
                most = 3 if variant.launch.cluster_size > 1 else 4
                shards = int(random.integers(2, most + 1)) if problem.sharded else 1
                return Kernel(number, render(variant, arch), shards)
    raise AssertionError(f"case {number}: no strategy takes {name}")


def kernels(seed: int, results: int, arch: Arch) -> Iterator[Kernel]:
    """Yield kernels until they give so many results."""
    number = 0
    while results > 0:
        found = kernel(seed, number, arch)
        results -= found.runs
        number += 1
        yield found


def _problem(random: Random, name: str, kind: type[Strategy]) -> Problem | None:
    """Draw a problem for a strategy; None for what no kernel computes, by the pages."""
    of_layouts = kind.layouts
    layout = of_layouts[int(random.integers(len(of_layouts)))]
    dtype = list(DType)[int(random.integers(4))]
    out_dtype: FloatType = dtype
    kind_of_out = random.random()
    if kind_of_out < 0.3:
        out_dtype = list(DType)[int(random.integers(4))]
    elif kind_of_out < 0.5 and name in _WITH_8_BITS and dtype is not DType.FLOAT64:
        out_dtype = list(Float8)[int(random.integers(2))]
    low, high = _WIDTHS.get(kind.name, (2, 3000))
    if layout is Columns and kind.name in ("safe", "tiles"):
        high = 400
    cols = int(math.exp(random.uniform(math.log(low), math.log(high + 1))))
    cols = 1 if low < 3 and random.random() < 0.04 else min(max(cols, low), high)
    if cols >= 16 and random.random() < 0.35:
        cols = cols // 16 * 16
    names: tuple[str, ...] = ()
    if layout is not Shards and hooks.taken(name) and random.random() < 0.65:
        names = hooks.some(random, name)
    where: Any = Rows()
    if layout is Strided:
        where = Strided(int(random.integers(1, 4)))
    elif layout is Columns:
        most = max(2, _LARGEST_INPUT // cols)
        sizes = [inner for inner in (2, 3, 4, 5, 8, 16, 24, 77, 128, 130) if inner <= most]
        where = Columns(int(random.choice(sizes)))
    elif layout is Shards:
        where = "sharded"
        if not Problem.of(name, dtype, 1).function.shardable:
            return None
    alignment = None
    if random.random() < 0.25:
        alignment = 1 << int(random.integers(4))
    fixed = bool(random.random() < 0.15)
    return Problem.of(
        *(name, dtype, cols),
        out_dtype=out_dtype,
        alignment=alignment,
        fixed_order=fixed,
        hooks=names,
        layout=where,
    )


def rows_of(random: Random, drawn: Kernel) -> int:
    """Draw how many rows an input has."""
    problem = drawn.problem
    step = problem.layout.step
    if isinstance(problem.layout, Strided):
        step = 3 ** (problem.layout.outer - 1)
    room = _MOST_ELEMENTS // (problem.cols * drawn.shards)
    most = max(_FEWEST_ROWS, min(24, room))
    # Where streams of one GPU stand for devices, the blocks of all of them fit there at once.
    if drawn.shards > 1 and drawn.source.variant.launch.cluster_size > 1:
        most = _FEWEST_ROWS
    rows = int(random.integers(1, most + 1))
    return -(-rows // step) * step


def case(seed: int, drawn: Kernel, number: int) -> Case:
    """Return an input of a kernel; one of `Kernel.runs`."""
    random = np.random.default_rng([seed, drawn.number, number])
    problem = drawn.problem
    compute, name = str(problem.compute_dtype), problem.function.name
    rows, cols = rows_of(random, drawn), problem.cols * drawn.shards
    hooked = hooks.Drawn(random, tuple(map(str, problem.hooks)), rows, cols, compute)
    first, dtype = problem.inputs[0], str(problem.dtype)
    values = first_input(random, name, rows, cols, dtype)
    x = rounded(values, dtype)
    wide = exact(x, dtype)
    with np.errstate(all="ignore"):
        shown = entered(wide, hooked.hooks, compute)
    given = function_inputs(random, name, shown, dtype, compute)
    stored: dict[str, Stored] = {first.name: x, **hooked.operands}
    told: dict[str, Any] = {first.name: wide}
    for operand in problem.inputs[1:]:
        if operand.name in given:
            stored[operand.name] = _stored(given[operand.name], operand)
            told[operand.name] = _told(stored[operand.name], operand)
    if "upstream_every" in {operand.name for operand in problem.inputs}:
        told["upstream"] = _place_upstream(random, stored, problem, rows)
    if drawn.shards > 1:
        told["first"] = np.zeros(1, np.int64)
    results, of_rows = expected(name, wide, told, hooked.hooks, compute)
    return Case(
        number,
        tuple(stored[operand.name] for operand in problem.inputs),
        {operand.name: results[operand.name] for operand in problem.results},
        of_rows,
        hooked.hooks,
        _offsets(random, problem),
        bool(problem.replacing) and random.random() < 0.4,
        random,
    )


def _place_upstream(random: Random, stored: dict[str, Stored], problem: Problem, rows: int) -> Any:
    """Give upstream an element a place, as one for all rows; return what each row has."""
    compute = str(problem.compute_dtype)
    every = int(random.choice([1, 1, 2, rows]))
    count = int(random.choice([1, 2, rows]))
    array = stored["upstream"].reshape(-1)[:count]
    stored["upstream"] = array
    stored["upstream_every"] = np.asarray(every, np.int64)
    stored["upstream_count"] = np.asarray(len(array), np.int64)
    return exact(array, compute)[np.arange(rows) // every % len(array)]


def _stored(value: Any, operand: Operand) -> Stored:
    """Return an input as it is stored."""
    if not isinstance(operand.dtype, FloatType):
        return np.asarray(value).astype(str(operand.dtype.value))
    return np.asarray(rounded(value, str(operand.dtype)))


def _told(stored: Stored, operand: Operand) -> Any:
    if not isinstance(operand.dtype, FloatType):
        return stored.reshape(-1) if stored.ndim == 0 else stored
    return exact(stored, str(operand.dtype))


def _offsets(random: Random, problem: Problem) -> tuple[int, int]:
    """Return how many elements x and results start behind a boundary: as the problem allows."""
    natural = natural_alignment(problem.dtype, problem.cols, problem.layout)
    if random.random() < 0.5 and problem.alignment >= natural:
        return 0, 0
    unit = problem.alignment
    x, results = (
        unit * int(random.integers(max(1, kind.max_pack // unit)))
        for kind in (problem.dtype, problem.out_dtype)
    )
    return x, results


def labels(drawn: Kernel) -> Mapping[str, list[str]]:
    """Return what a kernel covers, by the kind of thing."""
    problem = drawn.problem
    return {
        "function": [problem.function.name.partition("_k")[0]],
        "strategy": [drawn.strategy],
        "hook": [str(hook) for hook in problem.hooks],
        "layout": [drawn.layout],
        "types": [f"{problem.dtype} to {problem.out_dtype}"],
    }


def to_cover() -> Mapping[str, list[str]]:
    """Return what a run should cover: all functions, strategies, hooks, layouts and types."""
    return {
        "function": list(dict.fromkeys(functions())),
        "strategy": [kind.name for kind in all_strategies()],
        "hook": [hook.name for hook in HOOKS],
        "layout": [layout.__name__ for layout in (Rows, Strided, Columns, Shards)],
        "types": [
            f"{dtype} to {out_dtype}"
            for dtype in DType
            for out_dtype in (*DType, *Float8)
            if not (dtype is DType.FLOAT64 and isinstance(out_dtype, Float8))
        ],
    }
