"""The pages of docs/results/, and two tables of docs/performance.md, from the committed CSV files.

A file of docs/benchmark/ is a page: what was timed, a sentence a finding, a table. A file that
nothing here names has a page too, of the suite of its name. `python -m tests.claims write` writes
them anew; tests/project/test_claims.py compares. What a file does not hold is a dash.
"""

from __future__ import annotations

import csv
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from softgen.bench.host import numpy_peers
from softgen.bench.record import LIMIT, SOFTGEN, Record, read_csv
from softgen.bench.roster import AGAIN, CONTIGUOUS, DEPENDENT_COPY, INVARIANT, PLAIN, others
from softgen.bench.suites import GRID, SUITES, shapes_of
from softgen.problems.functions.softmax import SOFTMAX
from tests.figures import NOISE, Call, call, calls, five, median, spread
from tests.sources_page import (
    BENCHMARK,
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


def _shared(cases: Iterable[str]) -> str:
    """Return the words that all cases begin with, as those of a suite of samples."""
    heads = zip(*(case.split(", ")[:-1] for case in cases), strict=False)
    shared = itertools.takewhile(lambda words: len({*words}) == 1, heads)
    return "".join(f"{words[0]}, " for words in shared)


def of_calls(benchmark: Path, file: str) -> list[str]:
    """Return a line for each call of a file: softgen beside the limit and all others."""
    contests: dict[object, dict[str, Record]] = {}
    for record in read_csv(benchmark / f"{file}.csv"):
        if record.microseconds:
            contests.setdefault(record.contest, {})[record.peer] = record
    peers = {peer for found in contests.values() for peer in found}
    timed = sorted(peers & (others() - {LIMIT}))
    rivals = sorted(timed, key=lambda peer: RIVALS.index(peer) if peer in RIVALS else len(RIVALS))
    beside = CONTIGUOUS if CONTIGUOUS in peers else ""
    guessed = UNTUNED in peers
    functions = len({record.function for found in contests.values() for record in found.values()})
    shared = _shared(next(iter(found.values())).case for found in contests.values())
    rows = []
    for found in contests.values():
        first = next(iter(found.values()))
        case = first.case.removeprefix(shared)
        times = {peer: record.microseconds or 0.0 for peer, record in found.items()}
        fastest = min(times.keys() & set(rivals), key=times.__getitem__, default="")
        rows.append(
            (
                *([first.function] if functions > 1 else []),
                *(first.dtype, f"`{case}`" if case else f"{first.rows} x {first.cols}"),
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


def _over(times: Mapping[str, float], peer: str, mine: str = SOFTGEN) -> float | None:
    """Return softgen's time over that of another."""
    return times[mine] / times[peer] if {mine, peer} <= times.keys() else None


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


# What a page says before its findings, and how its table is made.


def _compiled() -> list[str]:
    """Return what the search of torch.compile gains, and how softgen stands beside it."""
    found = calls("compiled")
    searched = [each for each in found if AUTOTUNED in each.us]
    ahead = sum(each.over(SOFTGEN, AUTOTUNED) > 1 + NOISE for each in searched)
    behind = sum(each.over(AUTOTUNED) > 1 + NOISE for each in searched)
    return [
        f"{len(searched)} of the suite's {len(shapes_of(['compiled']))} shapes were timed.",
        f"With the search `torch.compile` takes "
        f"{spread([each.over('torch.compile', AUTOTUNED) for each in searched])} of its time "
        "without.",
        f"softgen is ahead of the search by more than {NOISE * 100:.0f}% at {ahead}, and behind by "
        f"more at {behind}.",
    ]


def _axes() -> list[str]:
    """Return how many of the suite's calls the file has, and how long PyTorch takes at most."""
    timed = calls("axes")
    there = {(each.function, each.dtype, each.case) for each in timed}
    missing = Counter(
        shape.dtype.value if shape.function.name == SOFTMAX.name else f"{shape.function}"
        for shape in shapes_of(["axes"])
        if (shape.function.name, shape.dtype.value, str(shape.case)) not in there
    )
    slowest = max(timed, key=lambda each: each.over(SOFTGEN, "torch"))
    words = [
        f"`torch.softmax` takes up to {slowest.over(SOFTGEN, 'torch'):.0f} times as long as "
        f"softgen ({slowest.size}).",
    ]
    if missing:
        each = ", ".join(f"{count} of {what}" for what, count in missing.items())
        words += [
            f"{len(there)} of its {len(there) + missing.total()} calls were timed. Not timed yet: "
            f"{each}."
        ]
    return words


def _views() -> list[str]:
    """Return what of the file is of the suite as it was, and what of the suite is not in it."""
    now = {str(shape.case) for shape in shapes_of(["views"])}
    there = {each.case for each in calls("views")}
    if not now - there:
        return []
    return [
        f"The suite has changed since: {len(there - now)} of these calls are no longer in it, and "
        f"{len(now - there)} of its {len(now)} were not timed yet.",
    ]


def _logsumexp() -> list[str]:
    took = [each.us["torch"] / each.us[SOFTGEN] for each in calls("logsumexp")]
    return [f"`torch.logsumexp` takes {min(took):.1f} to {max(took):.0f} times as long."]


def _drawn() -> list[str]:
    """Return how far the noise, the leads and the first guesses of random shapes reach."""
    h200, h100 = calls("drawn"), calls("drawn-h100")
    lines = []
    for where, found in (("H200", h200), ("H100", h100)):
        noise = {each.size: abs(each.over(AGAIN) - 1) * 100 for each in found}
        most = max(noise, key=noise.__getitem__)
        behind = [each for each in found if each.lead < 1]
        leads = [each.lead for each in found]
        at = ", ".join(
            f"{each.size} by {(1 - each.lead) * 100:.1f}% ({each.other})" for each in behind
        )
        lines += [
            f"On an {where} the fastest other takes {spread(leads)} of softgen's time, "
            f"{median(leads):.2f} in the median; softgen is behind at {len(behind)} of "
            f"{len(found)}{': ' + at if at else ''}.",
            f"On an {where} the very same kernel, timed twice, differs by "
            f"{median([*noise.values()]):.1f}% in the median and {noise[most]:.1f}% at most "
            f"({most}).",
        ]
    guesses = [each.over(SOFTGEN, UNTUNED) for each in h200]
    lines.append(
        f"On an H200 the first guess takes {median(guesses):.2f} of the choice's time in the "
        "median. It waited for the launch before it; now it does not, where up to 32 MB are moved."
    )
    return lines


def _launches(file: str) -> list[str]:
    plain = [each.over(SOFTGEN, PLAIN) for each in calls(file)]
    return [f"By a plain launch softgen's kernel takes {spread(plain)} of its time."]


def _invariant() -> list[str]:
    cost = {each.size: each.over(SOFTGEN, INVARIANT) for each in calls("batch_invariant")}
    most = max(cost, key=cost.__getitem__)
    return [
        f"It costs {NOISE * 100:.0f}% or less at "
        f"{sum(each <= 1 + NOISE for each in cost.values())} of {len(cost)} shapes, and "
        f"{(cost[most] - 1) * 100:.0f}% at most ({most})."
    ]


@dataclass(frozen=True)
class Page:
    """A page of docs/results/.

    Attributes:
        about: what was timed, in Markdown and without figures.
        command: `softgen bench` with these options, or a whole command of another program.
        table: returns the table's lines, of the folder and the file's name.
        more: returns findings beside those that any file has.
        common: whether it has those.
    """

    title: str
    about: str
    command: str
    table: Callable[[Path, str], list[str]] = of_calls
    more: Callable[[], list[str]] = list
    common: bool = True


def _rows(benchmark: Path, file: str) -> list[str]:
    return of_suite(benchmark, file)


def _command(suite: str, seconds: float = 0.05, more: str = "") -> str:
    return (
        f"--suite {suite} --seconds {seconds} --setup-seconds 30{more} --csv {suite}.csv "
        f"--plot {suite}.png"
    )


_LOGITS = "Logits, vocabularies and attention scores of language models, in bfloat16."
PAGES = {
    "llm": Page("Language models", _LOGITS, _command("llm"), _rows),
    "online": Page(
        "Few rows, many columns",
        "Rows of up to millions of columns. QuACK refuses 2M columns and more, and widths that are "
        "no multiple of its pack. Liger stops at 65536 columns, and the Triton tutorial's kernel "
        "where its copies of a padded row leave shared memory.",
        _command("online"),
        _rows,
    ),
    "triton": Page(
        "The Triton tutorial's widths",
        "98 widths of 4096 float32 rows, as the tutorial plots them. `torch.compile` and QuACK "
        "compile for seconds a shape: they take part at those of the table. There the copies and "
        "softgen are quicker than beside it, probably because the GPU rests while they compile.\n\n"
        "![GB/s over columns, float32, 4096 rows](../benchmark/triton.png)",
        _command("triton", 0.04),
        _rows,
    ),
    "fastsoftmax": Page(
        "FastSoftmax's widths",
        "128 rows of float32. softgen's steps of FastSoftmax's ladder are in the file too: "
        "[the ladder](../ladder.md) explains them.",
        _command("fastsoftmax"),
        _rows,
    ),
    "oneflow": Page(
        "OneFlow's widths",
        "49152 rows of float16. CuPy computes 16-bit types in 16 bits, which is outside of the "
        "tolerance: it counts as wrong. OneFlow's kernel for narrow rows is a grid of thread "
        "groups; for rows of 32 columns it takes groups of 16 lanes with two rows each:\n\n"
        "![A block of 8 thread groups, its 16 rows, and the grid of blocks that stride over the "
        "rows](../drawings/groups.svg)",
        _command("oneflow"),
        _rows,
    ),
    "packs": Page(
        "Pack sizes and rows per access",
        "The shapes of an article on OneFlow's softmax. `pack2-rows2` is the fastest setting of "
        "`warp` with packs of two elements and two rows at once, and so on: "
        "[the sources](../sources_packs.md) compare them.",
        _command("packs"),
        lambda benchmark, file: of_file(benchmark, file),
    ),
    "short": Page(
        "Short calls",
        "Where a call takes a few microseconds, up to half of that is the launch. Each launch is "
        "on other buffers than the last. softgen's launches are "
        "[dependent ones](../dependent_launch.md).",
        _command("short"),
        of_launches,
        functools.partial(_launches, "short"),
    ),
    "chained": Page(
        "Short calls in a chain",
        "The calls of [short](short.md), each launch on what the one before it wrote.",
        "--suite short --chained --seconds 0.05 --setup-seconds 30 --csv chained.csv",
        of_launches,
        functools.partial(_launches, "chained"),
    ),
    "drawn": Page(
        "Shapes that nobody chose",
        "40 shapes of a seeded generator, ten of each type, none left out: 1 to 100000 rows of 3 "
        "to 3 million columns, both log-uniform. They were fixed before the first timing. One run "
        "on an H200, and one on an H100 ([drawn-h100.csv](../benchmark/drawn-h100.csv)), which is "
        "of an earlier day, with plain launches. Launches rotate over at least 300 MB of inputs "
        "and as many of outputs, for the tuner as for the benchmark. `softgen-again` is the very "
        "same kernel timed once more. [Every legal setting](../lab/exhaustive.md) was timed at "
        "eight of them.",
        "--suite drawn --peers "
        "softgen,softgen-again,softgen-untuned,torch,torch.compile,quack --seconds 0.06 "
        "--csv drawn.csv",
        lambda benchmark, _: of_drawn(benchmark),
        _drawn,
        common=False,
    ),
    "logsumexp": Page(
        "Log-sum-exp",
        "Only x is read, so the limit is the fastest of 48 read kernels in the same run.",
        _command("logsumexp"),
        _rows,
        _logsumexp,
    ),
    "log_softmax": Page(
        "log_softmax, at the shapes of llm",
        "It takes softmax's winners where it has none of its own. QuACK, Liger and FlashInfer have "
        "no log_softmax.",
        "--suite llm --function log_softmax --seconds 0.04 --setup-seconds 30 "
        "--csv log_softmax.csv",
        lambda benchmark, file: of_suite(benchmark, "llm", file),
    ),
    "compiled": Page(
        "torch.compile with its search",
        "`torch.compile` in its default mode, as on all other pages, and with the search of its "
        "mode `max-autotune`.",
        "--suite compiled --setup-seconds 3600 --csv compiled.csv",
        more=_compiled,
    ),
    "axes": Page(
        "Axes that are not the last",
        "Softmax along every axis of 16 arrays; `limit` is a copy. "
        "[What bounds the slow calls](../lab/axes.md) was looked into.",
        "--suite axes --csv axes.csv",
        of_axes,
        _axes,
    ),
    "hooks": Page(
        "Hooks",
        "Attention scores without a hook, with each, and with two. `limit` copies all of x, also "
        "what `causal` and `lengths` hide, and as many bytes as an array of the hook has. A call "
        "with softcap, dropout, a mask, lengths, causal or two hooks takes its first guess, unless "
        "its hooks were tuned by name or the GPU's table has them, as causal and mask. Other calls "
        "take the setting that is tuned without hooks.",
        "--suite hooks --csv hooks.csv",
    ),
    "views": Page(
        "Views",
        "Each beside the call on a contiguous array of the same shape.",
        "--suite views --csv views.csv",
        more=_views,
    ),
    "backward": Page(
        "Gradients from results",
        "`limit` reads two arrays and writes one.",
        "--suite backward --csv backward.csv",
    ),
    "losses": Page(
        "Losses",
        "`limit` is a read where a row gives numbers, else a copy. PyTorch's own gradient of cross "
        "entropy keeps a log-softmax in memory.",
        "--suite losses --csv losses.csv",
    ),
    "float64": Page(
        "float64",
        "The arithmetic is in float64 throughout. An exponential took about 30 arithmetic "
        "instructions in this run, each at half the rate of float32's; it takes 17 now. Wide rows "
        "feel it most.",
        "--dtype float64 --shape 4096x1000 --shape 4096x4096 --shape 128x131072 "
        "--shape 4096x50257 --seconds 0.04 --setup-seconds 30 --csv float64.csv",
        lambda benchmark, file: of_file(benchmark, file),
    ),
    "batch_invariant": Page(
        "Batch invariance",
        "`batch_invariant=True` takes one kernel for all rows, which no timing chooses, and at "
        "widths that are no whole packs a fixed order of summation. "
        "[Why it costs what it costs](../lab/batch_invariance.md).",
        "--suite llm --peers softgen,softgen-invariant,softgen-again --seconds 0.04 "
        "--csv batch_invariant.csv",
        lambda benchmark, _: of_invariance(benchmark),
        _invariant,
        common=False,
    ),
    "routing": Page(
        "Routers of experts",
        "The best 8 of each row, and DeepSeek-V3's choice: [choosing](../choosing.md).",
        "--suite routing --csv routing.csv",
    ),
    "topk": Page(
        "The best log-probabilities",
        "The 20 best of rows of logits, with the rank of a token: [serving](../serving.md).",
        "--suite topk --csv topk.csv",
    ),
    "sample": Page(
        "Samples",
        "A sample of each row of logits, by all filters: [sampling](../sampling.md).",
        "--suite sample --csv sample.csv",
    ),
}
BESIDE = {"drawn-h100", GRID}  # files that are on a page of another name


def files(benchmark: Path = BENCHMARK) -> list[str]:
    """Return the names of the files that have a page, in the order of `PAGES`, others behind."""
    there = {path.stem for path in benchmark.glob("*.csv")} - BESIDE
    return [*(name for name in PAGES if name in there), *sorted(there - PAGES.keys())]


def page_of(file: str) -> Page:
    """Return the page of a file, of one that nobody described too."""
    if file in PAGES:
        return PAGES[file]
    origin = SUITES[file].origin if file in SUITES else f"calls of {file}.csv"
    return Page(file, f"{origin[0].upper()}{origin[1:]}.", f"--suite {file} --csv {file}.csv")


def standing(found: Sequence[Call]) -> list[str]:
    """Return how softgen stands beside the others and the limit, a sentence each."""
    several = len({each.function for each in found}) > 1
    shared = _shared(each.case for each in found)

    def where(each: Call) -> str:
        size = each.size.replace(shared, "", 1) if shared else each.size
        return f"{each.function}, {size}" if several else size

    lines = []
    beside = [each for each in found if each.us.keys() & (others() - {LIMIT})]
    if beside:
        count = len(beside)
        ahead = sum(each.lead > 1 + NOISE for each in beside)
        behind = sum(each.lead < 1 - NOISE for each in beside)
        first, last = (pick(beside, key=lambda each: each.lead) for pick in (max, min))
        rest = {"level": count - ahead - behind, "behind by more": behind}
        more = "".join(f", {word} at {number}" for word, number in rest.items() if number)
        of = f"all {count}" if ahead == count else f"{ahead} of {count}"
        lines.append(
            f"softgen is ahead of every other by more than {NOISE * 100:.0f}% at {of} calls{more}; "
            f"the fastest other takes {median([each.lead for each in beside]):.2f} of its time in "
            "the median."
        )
        if count > 1:
            lines.append(
                f"The fastest other takes {last.lead:.2f} ({where(last)}, {last.other}) to "
                f"{first.lead:.2f} ({where(first)}, {first.other}) of softgen's time."
            )
    limited = [each for each in found if LIMIT in each.us]
    if limited:
        ratios = [each.over_limit for each in limited]
        most = max(limited, key=lambda each: each.over_limit)
        lines.append(
            f"softgen takes {spread(ratios)} of the limit's time, {median(ratios):.2f} in the "
            f"median; the most at {where(most)}."
        )
    if guessed := [each.over(SOFTGEN, UNTUNED) for each in found if UNTUNED in each.us]:
        lines.append(
            f"Its first guess, untuned, takes {spread(guessed)} of its time, "
            f"{median(guessed):.2f} in the median."
        )
    return lines


def findings(file: str) -> list[str]:
    """Return what a file says, a sentence each, the first the one to remember."""
    page = page_of(file)
    return [*(standing(calls(file)) if page.common else []), *page.more()]


def results(file: str, benchmark: Path = BENCHMARK) -> str:
    """Return the page of a file."""
    page = page_of(file)
    first = read_csv(benchmark / f"{file}.csv")[0]
    link = f"[{file}.csv](../benchmark/{file}.csv)"
    lines = [
        *(f"# {page.title}", "", page.about, ""),
        *(f"- {sentence}" for sentence in findings(file)),
        *("", "<!-- not run: it times kernels, which takes a GPU and minutes -->"),
        *("```sh", f"softgen bench {page.command}", "```", ""),
        *(*page.table(benchmark, file), ""),
        f"Microseconds, medians of device time, on one {first.device}, driver {first.driver}. "
        f"[How it is measured](../performance.md#how-it-is-measured). {link} has every competitor, "
        f"and the versions: {first.versions}.",
        *("", "<!-- written by `python -m tests.claims write` from the CSV file -->"),
    ]
    return "\n".join(lines) + "\n"


def of_findings(benchmark: Path) -> list[str]:
    """Return a line a page of results: its name, and its first finding."""
    lines = [
        f"- [{page_of(file).title}](results/{file}.md): {_lower(findings(file)[0])}"
        for file in files(benchmark)
    ]
    timed = {peer for file in files(benchmark) for each in calls(file) for peer in each.us}
    on_host = {peer.name for peer in numpy_peers()}
    never = [f"`{peer}`" for peer in sorted(others() - timed - on_host)]
    return [*lines, *(["", f"Never timed: {', '.join(never)}."] if never else [])]


def _lower(sentence: str) -> str:
    return (
        sentence
        if sentence[:2].isupper() or sentence[1:2].isdigit()
        else (sentence[0].lower() + sentence[1:])
    )


SECTIONS: dict[str, Callable[[Path], list[str]]] = {
    "findings": of_findings,
    "targets": of_targets,
}
