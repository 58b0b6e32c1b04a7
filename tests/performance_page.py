"""The tables of docs/performance.md that the committed CSV files of whole suites hold.

`python -m tests.claims write` renders them anew, between the markers of the page;
tests/project/test_claims.py compares. What no file holds yet is a dash. A suite of calls that are
more than rows says so in its section until its file is there.
"""

from __future__ import annotations

import csv
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from softgen.bench.record import LIMIT, SOFTGEN, Record, read_csv
from softgen.bench.roster import AGAIN, CONTIGUOUS, DEPENDENT_COPY, INVARIANT, PLAIN, others
from softgen.bench.suites import shapes_of
from softgen.spec.functions.softmax import SOFTMAX
from tests.figures import NOISE, call, calls, five, median, spread
from tests.sources_page import (
    DASH,
    Size,
    Table,
    hundredths,
    microseconds,
    table,
)

UNTUNED = "softgen-untuned"
AUTOTUNED = "torch.compile-max-autotune"
RIVALS = ("torch", "torch.compile", AUTOTUNED, "quack", "liger")


def fastest_other(found: Table, size: Size) -> str | None:
    """Return the name of the fastest competitor that is no softgen's, if any was timed."""
    rivals = (others() - {LIMIT}) & found.timed.get(size, {}).keys()
    return min(rivals, key=lambda peer: found.time(size, peer) or 0.0, default=None)


def of_suite(benchmark: Path, suite: str, file: str = "") -> list[str]:
    """Return a line a shape, of a suite of many the landmarks."""
    sizes = [
        (shape.dtype.value, shape.rows, shape.cols)
        for shape in shapes_of([suite])
        if shape.landmark
    ]
    return of_sizes(Table(benchmark / f"{file or suite}.csv"), sizes)


def of_file(benchmark: Path, file: str) -> list[str]:
    """Return a line for each shape of a file, in its order."""
    found = Table(benchmark / f"{file}.csv")
    return of_sizes(found, found.timed)


def of_sizes(found: Table, sizes: Iterable[Size]) -> list[str]:
    """Return a line for each shape."""
    rows = []
    for size in sizes:
        winner, other = found.record(size, SOFTGEN), fastest_other(found, size)
        of_other = f"{other} {microseconds(found.time(size, other))}" if other else DASH
        rows.append(
            (
                *(size[0], f"{size[1]} x {size[2]}", microseconds(found.time(size, LIMIT))),
                f"`{winner.note}`" if winner else DASH,
                microseconds(found.time(size, SOFTGEN)),
                hundredths(found.ratio(size, SOFTGEN, LIMIT)),
                hundredths(found.ratio(size, UNTUNED, SOFTGEN)),
                of_other,
                hundredths(found.ratio(size, SOFTGEN, other or "")),
            )
        )
    heads = (
        *("dtype", "rows x cols", "limit", "winner", "time", "time / limit"),
        *("first guess / time", "fastest other", "time / other"),
    )
    return table(heads, rows)


def of_invariance(benchmark: Path) -> list[str]:
    """Return what batch invariance costs, beside the noise of the run."""
    found = Table(benchmark / "batch_invariant.csv")
    rows = [
        (
            *(size[0], f"{size[1]} x {size[2]}"),
            *(microseconds(found.time(size, peer)) for peer in (LIMIT, SOFTGEN, INVARIANT)),
            hundredths(found.ratio(size, INVARIANT, SOFTGEN)),
            hundredths(found.ratio(size, AGAIN, SOFTGEN)),
        )
        for size in found.timed
    ]
    heads = ("dtype", "rows x cols", "limit", "usual", "invariant", "invariant / usual", "A/A")
    return table(heads, rows)


def of_drawn(benchmark: Path) -> list[str]:
    """Return a line for each shape of `drawn`, with the figures of both GPUs."""
    files = [Table(benchmark / f"{file}.csv") for file in ("drawn", "drawn-h100")]
    rows = []
    for size in files[0].timed:
        rows.append([size[0], f"{size[1]} x {size[2]}"])
        for found in files:
            other = fastest_other(found, size) or ""
            rows[-1] += [
                microseconds(found.time(size, SOFTGEN)),
                hundredths(found.ratio(size, SOFTGEN, LIMIT)),
                hundredths(found.ratio(size, UNTUNED, SOFTGEN)),
                f"{other} {hundredths(found.ratio(size, other, SOFTGEN))}",
            ]
    figures = ("us", "/ limit", "first guess", "fastest other")
    first, *more = figures
    heads = (f"{gpu}: {first}" for gpu in ("H200", "H100"))
    columns = [name for head in heads for name in (head, *more)]
    return table(("dtype", "rows x cols", *columns), rows)


def of_launches(benchmark: Path, file: str) -> list[str]:
    """Return dependent launches against plain ones, of softgen's kernel and of the copy."""
    found = Table(benchmark / f"{file}.csv")
    rows = []
    for shape in shapes_of(["short"]):
        size = (shape.dtype.value, shape.rows, shape.cols)
        other = fastest_other(found, size)
        times = (found.time(size, peer) for peer in (LIMIT, DEPENDENT_COPY, PLAIN, SOFTGEN))
        rows.append(
            (
                *(size[0], f"{size[1]} x {size[2]}", *map(microseconds, times)),
                hundredths(found.ratio(size, PLAIN, SOFTGEN)),
                f"{other} {microseconds(found.time(size, other))}" if other else DASH,
                hundredths(found.ratio(size, other or "", SOFTGEN)),
            )
        )
    heads = (
        *("dtype", "rows x cols", "copy", "dependent copy", "softgen, plain", "softgen"),
        *("plain / softgen", "fastest other", "other / softgen"),
    )
    return table(heads, rows)


def of_matmuls(benchmark: Path) -> list[str]:
    """Return a step between two matrix products, and what is left of it without them."""
    path = benchmark.parent / "matmuls" / "between_matmuls.csv"
    with path.open(newline="") as file:
        steps = list(csv.DictReader(file))
    rows = []
    for step in steps:
        times = [float(step[name]) for name in ("gap", "torch", "softgen_plain", "softgen")]
        gap, torch, plain, softgen = times
        rows.append(
            (
                *(step["where"], step["dtype"], f"{step['rows']} x {step['cols']}"),
                *map(microseconds, times),
                hundredths((torch - gap) / (softgen - gap)),
                hundredths((plain - gap) / (softgen - gap)),
            )
        )
    heads = (
        *("", "dtype", "rows x cols", "without softmax", "torch.softmax", "softgen, plain"),
        *("softgen", "torch / softgen", "plain / softgen"),
    )
    return table(heads, rows)


def of_calls(benchmark: Path, file: str) -> list[str]:
    """Return a line for each call of a file: softgen beside the limit and PyTorch."""
    contests: dict[object, dict[str, Record]] = {}
    for record in read_csv(benchmark / f"{file}.csv"):
        if record.microseconds:
            contests.setdefault(record.contest, {})[record.peer] = record
    peers = {peer for found in contests.values() for peer in found}
    rivals = [peer for peer in RIVALS if peer in peers]
    beside = CONTIGUOUS if CONTIGUOUS in peers else ""
    guessed = UNTUNED in peers
    functions = len({record.function for found in contests.values() for record in found.values()})
    rows = []
    for found in contests.values():
        first = next(iter(found.values()))
        times = {peer: record.microseconds or 0.0 for peer, record in found.items()}
        fastest = min(times.keys() & set(rivals), key=times.__getitem__, default="")
        rows.append(
            (
                *([first.function] if functions > 1 else []),
                *(first.dtype, f"`{first.case}`" if first.case else f"{first.rows} x {first.cols}"),
                *(microseconds(times.get(peer)) for peer in (LIMIT, SOFTGEN)),
                hundredths(_over(times, LIMIT)),
                *([hundredths(_over(times, LIMIT, UNTUNED))] if guessed else []),
                *([hundredths(_over(times, beside))] if beside else []),
                *(microseconds(times.get(peer)) for peer in rivals),
                hundredths(_over(times, fastest)),
            )
        )
    heads = (
        *(["function"] if functions > 1 else []),
        *("dtype", "call", "limit", "time", "time / limit"),
        *(["first guess / limit"] if guessed else []),
        *(["time / contiguous"] if beside else []),
        *(*rivals, "time / fastest other"),
    )
    return table(heads, rows)


def of_axes(benchmark: Path, file: str) -> list[str]:
    """Return a line for each call of a file, with softgen's time in each type that was timed."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for record in read_csv(benchmark / f"{file}.csv"):
        if record.microseconds:
            call = f"{record.function}, {record.case}" if record.of_function else record.case
            times = found.setdefault(call, {}).setdefault(record.dtype, {})
            times[record.peer] = record.microseconds
    dtypes = list(dict.fromkeys(itertools.chain(*found.values())))
    rows = []
    for call, by_type in found.items():
        cells = []
        for dtype in dtypes:
            times = by_type.get(dtype, {})
            over = (_over(times, peer) if times else None for peer in (LIMIT, "torch.compile"))
            cells += [microseconds(times.get(SOFTGEN)), *map(hundredths, over)]
        rows.append((f"`{call}`", *cells))
    heads = [(f"{dtype}, us", "/ limit", "/ torch.compile") for dtype in dtypes]
    return table(("call", *itertools.chain(*heads)), rows)


def about_compiled() -> list[str]:
    """Return what the search of torch.compile gains, and how softgen stands beside it."""
    found = calls("compiled")
    searched = [each for each in found if AUTOTUNED in each.us]
    of_default = [each.over("torch.compile", AUTOTUNED) for each in searched]
    ahead = sum(each.over(SOFTGEN, AUTOTUNED) > 1 + NOISE for each in searched)
    behind = sum(each.over(AUTOTUNED) > 1 + NOISE for each in searched)
    return [
        "`softgen bench --suite compiled --setup-seconds 3600`: `torch.compile` in its default "
        "mode, as everywhere else on this page,",
        f"and with the search of `max-autotune`, at {len(searched)} of the suite's "
        f"{len(shapes_of(['compiled']))} shapes; others were not timed.",
        f"With it `torch.compile` takes {spread(of_default)} of its time without.",
        f"softgen is ahead of it by more than {NOISE * 100:.0f}% at {ahead}, behind by more at "
        f"{behind}, and level at the others.",
    ]


def about_axes() -> list[str]:
    """Return how many of the suite's calls the file has, and how long PyTorch takes at most."""
    timed = calls("axes")
    there = {(each.function, each.dtype, each.case) for each in timed}
    missing = Counter(
        shape.dtype.value if shape.function.name == SOFTMAX.name else f"{shape.function}"
        for shape in shapes_of(["axes"])
        if (shape.function.name, shape.dtype.value, str(shape.case)) not in there
    )
    words = [
        "`softgen bench --suite axes`: softmax along every axis of 16 arrays; `limit` is a copy."
    ]
    if missing:
        each = ", ".join(f"{count} of {what}" for what, count in missing.items())
        words += [
            f"{len(there)} of its {len(there) + missing.total()} calls were timed. Not timed yet: "
            f"{each}."
        ]
    worst = max(timed, key=lambda each: each.over_limit)
    slowest = max(timed, key=lambda each: each.over(SOFTGEN, "torch"))
    return [
        *words,
        f"softgen takes up to {worst.over_limit:.2f} of a copy's time ({worst.size}).",
        f"PyTorch is in the file: it takes up to {slowest.over(SOFTGEN, 'torch'):.0f} times as "
        f"long ({slowest.size}).",
        "What bounds the slow calls follows.",
    ]


def about_views() -> list[str]:
    """Return what of the file is of the suite as it was, and what of the suite is not in it."""
    now = {str(shape.case) for shape in shapes_of(["views"])}
    there = {each.case for each in calls("views")}
    words = [
        "`softgen bench --suite views`, beside the call on a contiguous array of the same shape."
    ]
    if now - there:
        words += [
            f"The suite has changed since: {len(there - now)} of these calls are no longer in it, "
            f"and {len(now - there)} of its {len(now)} were not timed yet.",
            "Inputs of the small ones may have been in L2.",
        ]
    return words


def _over(times: Mapping[str, float], peer: str, mine: str = SOFTGEN) -> float | None:
    """Return softgen's time over that of another."""
    return times[mine] / times[peer] if {mine, peer} <= times.keys() else None


# The heading of each section, and what is said before its table.
CALLS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "compiled": (
        "## torch.compile with its search: `compiled`",
        about_compiled,
    ),
    "axes": ("## Axes that are not the last: `axes`", about_axes),
    "hooks": (
        "## Hooks: `hooks`",
        lambda: [
            "`softgen bench --suite hooks`: attention scores without a hook, with each, and with "
            "two.",
            "`limit` copies all of x, also what `causal` and `lengths` hide, and as many bytes as "
            "an array of the hook has.",
            "A call with softcap, dropout, a mask, lengths, causal or two hooks takes its first "
            "guess, unless its hooks",
            "were tuned by name or the GPU's table has them, as causal and mask. Other calls take "
            "the setting that is",
            "tuned without hooks.",
        ],
    ),
    "views": ("## Views: `views`", about_views),
    "backward": (
        "## Gradients from results: `backward`",
        lambda: ["`softgen bench --suite backward`; `limit` reads two arrays and writes one."],
    ),
    "losses": (
        "## Losses: `losses`",
        lambda: [
            "`softgen bench --suite losses`; `limit` is a read where a row gives numbers, else a "
            "copy.",
            "PyTorch's own gradient of cross entropy keeps a log-softmax in memory.",
        ],
    ),
}


def of_targets(benchmark: Path) -> list[str]:
    """Return what was wanted of the five suites, and what their files hold."""
    every = five()
    large = [
        each
        for each in every
        if 256 <= each.cols <= 16384 and each.moved >= 32e6 and each.size != "float32 20000 x 5000"
    ]
    within = sum(round(each.over_limit, 2) <= 1.03 for each in large)

    def over(file: str, *sizes: str) -> str:
        return ", ".join(hundredths(call(file, size).over_limit) for size in sizes)

    few = [call("llm", f"bfloat16 {rows} x 128256") for rows in (1, 8, 64, 256)]
    ahead = ", ".join(f"{(each.lead - 1) * 100:.0f}%" for each in few)
    behind = sum(each.lead < 1 for each in every)
    level = sum(each.lead <= 1 + NOISE for each in every)
    rows = [
        (
            "at least 32 MB moved, 256 to 16K columns",
            "1.03",
            f"{spread([each.over_limit for each in large])}, median "
            f"{median([each.over_limit for each in large]):.3f}; at most 1.03 at {within} of "
            f"{len(large)} (without 20000 x 5000, the next line)",
        ),
        ("float32 20000 x 5000", "1.02", over("online", "float32 20000 x 5000")),
        (
            "bfloat16 8192 x 32000, 4096 x 128256",
            "1.01",
            over("llm", "bfloat16 8192 x 32000", "bfloat16 4096 x 128256"),
        ),
    ]
    for target, *widths in (
        ("1.04", 32728, 65536, 131072),
        ("1.06", 262144),
        ("1.15", 2097152, 4194304),
    ):
        sizes = [f"float32 128 x {cols}" for cols in widths]
        what = ", ".join([sizes[0], *map(str, widths[1:])])
        rows.append((what, str(target), over("online", *sizes)))
    slow = ("float32 16 x 4194304", "float32 4 x 16777216")
    rows += [
        (f"{slow[0]}, 4 x 16777216", "1.25", over("online", *slow)),
        (
            "bfloat16 1, 8, 64, 256 x 128256",
            "5% ahead of the fastest other; 64 rows 1.15",
            f"{ahead} ahead; 64 rows {few[2].over_limit:.2f}",
        ),
        (
            "every point",
            "no slower than any other, beyond the noise",
            f"slower at {behind} of {len(every)}; level with the next, within {NOISE * 100:.0f}%, "
            f"at {level}; ahead by more at {len(every) - behind - level}",
        ),
    ]
    return table(("where", "target, time / limit", "reached"), rows)


def section_of(benchmark: Path, suite: str) -> list[str]:
    """Return the heading, what was timed and the table of a suite of calls; that it was not."""
    heading, words = CALLS[suite]
    if not (benchmark / f"{suite}.csv").is_file():
        return [heading, "", f"Not measured yet: `softgen bench --suite {suite}`."]
    lines = of_axes if suite == "axes" else of_calls
    return [heading, "", *words(), "", *lines(benchmark, suite)]


SUITES = ("llm", "online", "triton", "fastsoftmax", "oneflow", "logsumexp")
SECTIONS: dict[str, Callable[[Path], list[str]]] = {
    **{suite: functools.partial(of_suite, suite=suite) for suite in SUITES},
    "log_softmax": functools.partial(of_suite, suite="llm", file="log_softmax"),
    "float64": functools.partial(of_file, file="float64"),
    "batch_invariant": of_invariance,
    "drawn": of_drawn,
    "short": functools.partial(of_launches, file="short"),
    "matmuls": of_matmuls,
    "targets": of_targets,
    "chained": functools.partial(of_launches, file="chained"),
    **{suite: functools.partial(section_of, suite=suite) for suite in CALLS},
}
