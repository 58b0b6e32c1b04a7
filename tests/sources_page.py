"""The tables of the sources' pages: what others published, beside what the CSV files hold.

`python -m tests.claims write` renders them anew, between the markers of the page;
tests/project/test_claims.py compares. What no file holds yet is a dash.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from softgen.bench.named import PACKS, ROWS_PER_ACCESS, pack_name
from softgen.bench.record import LIMIT, SOFTGEN, Record, read_csv
from softgen.bench.suites import GRID, shapes_of
from softgen.strategies.lessons.ladder import LADDER
from softgen.strategies.variants import parse_label

BENCHMARK = Path(__file__).resolve().parents[1] / "docs" / "benchmark"
DASH = "-"

SAFE, ONLINE = "article_safe_b512", "article_online_b512"
ONE_THREAD, ALL_THREADS = "numpy-one-thread", "numpy-all-threads"

# 000, in ms: a CPU, and a GPU whose time was taken without synchronising.
ARTICLE_CPU, ARTICLE_GPU = 714.7, 0.92

# 001, in ms on an RTX 4060, 128 rows of float32: three passes, online.
ARTICLE_001 = {
    2048: (0.0234944, 0.0202918),
    32728: (0.0781082, 0.0609904),
    65536: (0.422945, 0.439531),
    131072: (1.18813, 0.918898),
    262144: (2.38716, 1.84431),
    2097152: (18.8618, 14.5088),
    4194304: (37.992, 29.3278),
}

# 003, in GB/s on an RTX 3090, 4096 rows of float32: Triton, torch.softmax, unfused by TorchScript.
TUTORIAL = {
    256: (630, 683, 234),
    384: (683, 723, 230),
    512: (712, 712, 241),
    640: (759, 731, 238),
    768: (768, 745, 241),
    12160: (834, 436, 283),
    12672: (833, 436, 283),
}

# 004: operations an element, as its author counts, and the figures in its text.
OPERATIONS = 5
NAIVE_GFLOPS, LIMIT_GFLOPS_A_TB = 8.9, 625

Size = tuple[str, int, int]


class Table:
    """The figures of one committed file, by shape and competitor; empty if there is none.

    Attributes:
        device: where they are from; empty if there are none.
    """

    def __init__(self, path: Path) -> None:
        records = read_csv(path) if path.is_file() else []
        self.device = records[0].device if records else ""
        self.timed: dict[Size, dict[str, Record]] = {}
        for record in records:
            if record.microseconds:
                size = (record.dtype, record.rows, record.cols)
                self.timed.setdefault(size, {})[record.peer] = record

    def record(self, size: Size, peer: str) -> Record | None:
        """Return what was timed of a competitor at a shape."""
        return self.timed.get(size, {}).get(peer)

    def time(self, size: Size, peer: str) -> float | None:
        """Return its microseconds."""
        record = self.record(size, peer)
        return record.microseconds if record else None

    def ratio(self, size: Size, peer: str, other: str) -> float | None:
        """Return its time over that of another."""
        time, of_other = self.time(size, peer), self.time(size, other)
        return time / of_other if time and of_other else None

    def lacking(self, peers: Iterable[str]) -> list[str]:
        """Return a line that names the competitors that were timed nowhere, if any."""
        there = {peer for found in self.timed.values() for peer in found}
        missing = [f"`{peer}`" for peer in peers if peer not in there]
        return ["", f"Not measured yet: {', '.join(missing)}."] if missing else []


def microseconds(time: float | None) -> str:
    """Return a time with the digits that the clock can tell."""
    if time is None:
        return DASH
    return f"{time:.2f}" if time < 100 else f"{time:.1f}" if time < 1000 else f"{time:.0f}"


def milliseconds(time: float | None) -> str:
    """Return a time, of so many us, in ms with three digits."""
    return DASH if time is None else plain(time / 1000)


def plain(number: float | None) -> str:
    """Return three significant digits, never an exponent."""
    if number is None:
        return DASH
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


def whole(number: float | None) -> str:
    """Return a rate."""
    return DASH if number is None else f"{number:.0f}"


def hundredths(number: float | None) -> str:
    """Return a ratio."""
    return DASH if number is None else f"{number:.2f}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(line)} |" for line in (heads, *rows)]
    return [lines[0], "|" + "---|" * len(heads), *lines[1:]]


def spread(ratios: Iterable[float | None]) -> str | None:
    """Return the least and the largest ratio in words, None if there is none."""
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{min(known):.2f} to {max(known):.2f}" if known else None


def of_000(benchmark: Path) -> list[str]:
    """Return the line of the CPU and that of the GPU."""
    found = Table(benchmark / "online.csv")
    size = ("float32", 20000, 5000)
    rows = [
        ("CPU, one thread", plain(ARTICLE_CPU), ONE_THREAD),
        ("CPU, all threads", DASH, ALL_THREADS),
        ("GPU, online, 512 threads a row", plain(ARTICLE_GPU), ONLINE),
        ("GPU, three passes, 512 threads a row", DASH, SAFE),
        ("GPU, softgen", DASH, SOFTGEN),
        ("GPU, the fastest copy", DASH, LIMIT),
    ]
    heads = ("ms", "article", found.device or "here", "competitor")
    lines = table(
        heads,
        (
            (what, theirs, milliseconds(found.time(size, peer)), f"`{peer}`")
            for what, theirs, peer in rows
        ),
    )
    lines += found.lacking([peer for _, _, peer in rows])
    if times := found.ratio(size, ONE_THREAD, ONLINE):
        cpu = found.record(size, ONE_THREAD)
        lines += [
            "",
            f"CPU over GPU: {ARTICLE_CPU / ARTICLE_GPU:.0f} there, {times:.0f} here "
            f"({cpu.note if cpu else ''}).",
        ]
    return lines


def of_001(benchmark: Path) -> list[str]:
    """Return the three-pass kernel against the online one."""
    found = Table(benchmark / "online.csv")
    rows, theirs, ours = [], 0, []
    for cols, (safe, online) in ARTICLE_001.items():
        size = ("float32", 128, cols)
        ratio = found.ratio(size, ONLINE, SAFE)
        theirs += online < safe
        ours.append(ratio)
        rows.append(
            (
                str(cols),
                *(microseconds(1000 * safe), microseconds(1000 * online)),
                hundredths(online / safe),
                *(microseconds(found.time(size, peer)) for peer in (SAFE, ONLINE)),
                hundredths(ratio),
                *(microseconds(found.time(size, peer)) for peer in (SOFTGEN, LIMIT)),
            )
        )
    here = found.device or "here"
    heads = (
        *("us, columns", "RTX 4060: three passes", "online", "online / three passes"),
        *(f"{here}: three passes", "online", "online / three passes", "softgen", "copy"),
    )
    lines = table(heads, rows) + found.lacking((SAFE, ONLINE, SOFTGEN))
    known = [ratio for ratio in ours if ratio is not None]
    if known:
        faster = sum(ratio < 1 for ratio in known)
        lines += [
            "",
            f"The online kernel is the faster one at {theirs} of {len(rows)} widths there, and at "
            f"{faster} of {len(known)} here, where it takes {spread(known)} of the other's time.",
        ]
    return lines


def of_002(benchmark: Path) -> list[str]:
    """Return the times by pack size and rows per access."""
    found = Table(benchmark / "packs.csv")
    names = [pack_name(pack, rows) for rows in ROWS_PER_ACCESS for pack in PACKS]
    heads = (
        "us",
        *(
            f"pack {pack}, {rows} row{'s' * (rows > 1)}"
            for rows in ROWS_PER_ACCESS
            for pack in PACKS
        ),
        *("softgen", "copy"),
    )
    sizes = [(each.dtype.value, each.rows, each.cols) for each in shapes_of(["packs"])]
    lines = table(
        heads,
        (
            (
                f"{dtype} {rows} x {cols}",
                *(microseconds(found.time((dtype, rows, cols), name)) for name in names),
                *(microseconds(found.time((dtype, rows, cols), n)) for n in (SOFTGEN, LIMIT)),
            )
            for dtype, rows, cols in sizes
        ),
    )
    if not found.timed:
        return ["Not measured yet."]
    square = ("float32", 1024, 1024)
    lines += ["", f"{found.device}. At float32 1024 x 1024:", ""]
    lines += table(
        ("time over time", "article", "here"),
        (
            ("pack 2 over pack 1", "about 0.94", hundredths(found.ratio(square, "pack2", "pack1"))),
            ("pack 4 over pack 2", "about 1", hundredths(found.ratio(square, "pack4", "pack2"))),
        ),
    )
    said = [
        (
            f"{dtype}, {what}",
            spread(found.ratio(size, one, other) for size in sizes if size[0] == dtype),
        )
        for dtype in dict.fromkeys(size[0] for size in sizes)
        for what, one, other in (
            ("pack 2 over pack 1", "pack2", "pack1"),
            ("pack 4 over pack 2", "pack4", "pack2"),
            ("pack 8 over pack 4", "pack8", "pack4"),
            ("two rows over one, pack 2", "pack2-rows2", "pack2"),
            ("two rows over one, pack 4", "pack4-rows2", "pack4"),
        )
    ]
    lines += ["", "Over the shapes that were timed:", ""]
    lines += table(("time over time", "here"), ((what, range_ or DASH) for what, range_ in said))
    return lines


def of_003(benchmark: Path) -> list[str]:
    """Return the rates of Triton, PyTorch and the unfused softmax."""
    found = Table(benchmark / "triton.csv")
    names = (
        *("triton-one-row", "torch", "torch-unfused-script"),
        *("torch-unfused", "triton", SOFTGEN, LIMIT),
    )

    def rate(size: Size, peer: str) -> float | None:
        record = found.record(size, peer)
        return record.gigabytes_per_second if record else None

    rows = [
        (
            str(cols),
            *map(str, theirs),
            *(whole(rate(("float32", 4096, cols), name)) for name in names),
        )
        for cols, theirs in TUTORIAL.items()
    ]
    heads = (
        *("GB/s, columns", "RTX 3090: Triton", "torch", "unfused, TorchScript"),
        *(f"{found.device or 'here'}: Triton, a program a row", "torch", "unfused, TorchScript"),
        *("unfused, eager", "Triton, today's tutorial", "softgen", "copy"),
    )
    lines = table(heads, rows) + found.lacking(names)
    pairs = []
    for what, one, other, at in (
        ("Triton over torch", "triton-one-row", "torch", (0, 1)),
        ("Triton over unfused, TorchScript", "triton-one-row", "torch-unfused-script", (0, 2)),
    ):
        for cols in (256, 12672):
            theirs = TUTORIAL[cols][at[0]] / TUTORIAL[cols][at[1]]
            here = found.ratio(("float32", 4096, cols), other, one)  # of times, hence the other way
            pairs.append((f"{what}, {cols} columns", hundredths(theirs), hundredths(here)))
    lines += ["", *table(("rate over rate", "note", "here"), pairs)]
    return lines


def of_004(benchmark: Path) -> list[str]:
    """Return each step at its best setting, in four units, and what the settings are."""
    found = Table(benchmark / "fastsoftmax.csv")
    widths = [shape.cols for shape in shapes_of(["fastsoftmax"])]
    steps = [f"{name}-best" for name in LADDER]
    peers = [*steps, SOFTGEN, "torch", "triton", LIMIT]

    def gflops(record: Record) -> str:
        return plain(OPERATIONS * record.rows * record.cols / (record.microseconds or 1.0) / 1000)

    def share(record: Record) -> str:
        return hundredths(1 / record.ratio_to_limit if record.ratio_to_limit else None)

    units: dict[str, Callable[[Record], str]] = {
        "us": lambda record: microseconds(record.microseconds),
        "GB/s": lambda record: plain(record.gigabytes_per_second),
        "GFLOP/s": gflops,
        "share of the copy": share,
        "setting": _setting,
    }
    lines: list[str] = []
    timed = {peer for at_size in found.timed.values() for peer in at_size}
    for unit, cell in units.items():
        rows = []
        for peer in steps if unit == "setting" else peers:
            if peer not in timed:
                continue
            records = [found.record(("float32", 128, cols), peer) for cols in widths]
            rows.append((f"`{peer}`", *(cell(each) if each else DASH for each in records)))
        lines += [*table((unit, *map(str, widths)), rows), ""] if rows else []
    lines = lines[:-1] + found.lacking(steps)
    narrow, wide = ("float32", 128, widths[0]), ("float32", 128, widths[-1])
    naive, copy = found.record(narrow, steps[0]), found.record(wide, LIMIT)
    rows = [
        (
            f"the first kernel at {widths[0]} columns, GFLOP/s",
            f"{NAIVE_GFLOPS}",
            gflops(naive) if naive else DASH,
        ),
        (
            "the limit, GFLOP/s",
            f"{LIMIT_GFLOPS_A_TB} at 1 TB/s",
            f"{gflops(copy)} at {(copy.gigabytes_per_second or 0) / 1000:.2f} TB/s, that of the "
            f"copy at {widths[-1]} columns"
            if copy
            else DASH,
        ),
    ]
    lines += ["", *table(("", "FastSoftmax", found.device or "here"), rows)]
    return lines


def _setting(record: Record) -> str:
    knobs = parse_label(record.note.partition(",")[0]).knobs
    unroll = f"u{knobs['unroll']} " if "unroll" in knobs else ""
    return f"{unroll}b{knobs['block_size']}"


def of_grid(benchmark: Path) -> list[str]:
    """Return the search's picture, and its fastest and slowest setting."""
    path = benchmark / "grid.csv"
    timed = [r for r in (read_csv(path) if path.is_file() else []) if r.microseconds]
    lines: list[str] = []
    for contest in dict.fromkeys(record.contest for record in timed):
        mine = [r for r in timed if r.contest == contest and r.peer != LIMIT]
        mine.sort(key=lambda record: record.microseconds or 0.0)
        fastest, slowest = mine[0], mine[-1]
        lines += [
            f"{fastest.device}, {fastest.dtype} {fastest.rows} x {fastest.cols}: of {len(mine)} "
            f"settings of `{fastest.peer.partition('_')[0]}`, `{fastest.peer}` is the fastest, "
            f"{microseconds(fastest.microseconds)} us, and `{slowest.peer}` the slowest, "
            f"{microseconds(slowest.microseconds)} us.",
            "",
        ]
    if not lines:
        return ["Not measured yet."]
    picture = benchmark / "grid.png"
    return [*lines, f"![Heat map of a search]({BENCHMARK.name}/{picture.name})"]


SECTIONS: dict[str, Callable[[Path], list[str]]] = {
    "000": of_000,
    "001": of_001,
    "002": of_002,
    "003": of_003,
    "004": of_004,
    GRID: of_grid,
}


PAGES = {
    "docs/sources.md": ("000", "001"),
    "docs/sources_packs.md": ("002",),
    "docs/sources_triton.md": ("003",),
    "docs/sources_fastsoftmax.md": ("004", GRID),
}


def rendered(
    page: str,
    benchmark: Path = BENCHMARK,
    sections: Mapping[str, Callable[[Path], list[str]]] = SECTIONS,
) -> str:
    """Return the page with every section's lines between its markers, as the files have them.

    Raises ValueError where a marker is missing.
    """
    for name, section in sections.items():
        first, last = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        between = re.compile(f"{re.escape(first)}.*?{re.escape(last)}", re.DOTALL)
        if len(between.findall(page)) != 1:
            raise ValueError(f"the page must have {first.strip()} and {last} once, in this order")
        body = first + "\n".join(["", *section(benchmark), "", last])
        page = between.sub(lambda match, body=body: body, page)  # type: ignore[misc]
    return page
