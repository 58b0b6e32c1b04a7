"""The picture of README: small multiples of the committed CSV files, on a light ground and a dark.

`python -m tests.readme_picture` draws it anew, choosing by what docs/benchmark has of routing.csv,
topk.csv and sample.csv. Each file says in itself of which points it was drawn, so that
tests/project/test_readme.py sees one that is behind the CSV files.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from softgen.bench.plot import COLOURS, OTHERS
from softgen.bench.record import LIMIT, SOFTGEN
from tests.figures import DOCS, Call, calls, rows

PICTURES = {scheme: DOCS / "benchmark" / f"readme-{scheme}.png" for scheme in ("light", "dark")}
DIGEST = "Description"  # the entry of the PNG with the digest of what is drawn
OF_COPY = "speed, a copy = 1"
PEERS = ("torch", "torch.compile", "quack", "liger")
GROUNDS = {"light": ("#ffffff", "#1f2328", "#d1d9e0"), "dark": ("#0d1117", "#e6edf3", "#3d444d")}
# What a library is called, where it has a peer a suite: a legend of one line serves all panels.
LIBRARY = {
    **dict.fromkeys(("torch.topk", "torch.multinomial", "torch.gumbel"), "torch"),
    "torch.compile-topk": "torch.compile",
    **dict.fromkeys(
        ("flashinfer.topk", "flashinfer.sampling", "flashinfer.top_k_top_p"), "flashinfer"
    ),
    "quack.topk": "quack",
    **{name: name for name in (*PEERS, SOFTGEN, "sglang", "vllm")},
}
ALSO = {"DTensor": OTHERS[4], "sglang": OTHERS[6], "vllm": OTHERS[7]}  # the colours of others
CHOOSING = {"routing": "experts", "topk": "20 best tokens", "sample": "a sample"}


@dataclass(frozen=True)
class Label:
    """A word, and by how many points of type it stands off the place that it is of."""

    word: str
    at: tuple[float, float]
    off: tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        points: of each competitor x and y; of a list of cases y is the number of the case.
        cases: labels of the list, from above; empty where x is a number.
        labels: what stands beside points; empty where a copy is drawn as a line.
    """

    title: str
    x: str
    y: str
    points: dict[str, list[tuple[float, float]]]
    cases: tuple[str, ...] = ()
    labels: tuple[Label, ...] = ()


def panels() -> list[Panel]:
    """Return the panels, in reading order."""
    wide = [each for each in calls("triton") if each.rows == 4096]
    few = [each for each in calls("llm") if each.cols == 128256]
    found = [
        Panel("Forward: float32, 4096 rows", "columns", OF_COPY, _speeds(wide, "cols")),
        Panel("Few rows: bfloat16, 128256 columns", "rows", OF_COPY, _speeds(few, "rows")),
        _cases("Axes, and hooks in one kernel", dict(_axes_and_hooks())),
        _steps(),
    ]
    if timed := [name for name in CHOOSING if (DOCS / "benchmark" / f"{name}.csv").is_file()]:
        found.append(_choosing(timed))
    return [*found, _several_gpus()]


def _speeds(found: Iterable[Call], along: str) -> dict[str, list[tuple[float, float]]]:
    """Return of each competitor its speed, where a copy's is 1."""
    points: dict[str, list[tuple[float, float]]] = {}
    for each in sorted(found, key=lambda call: getattr(call, along)):
        for peer in (*PEERS, SOFTGEN):
            if peer in each.us:
                at = float(getattr(each, along))
                points.setdefault(peer, []).append((at, each.us[LIMIT] / each.us[peer]))
    return points


def _cases(title: str, found: dict[str, Call]) -> Panel:
    """Return a list of calls, and the speed of each competitor there."""
    points: dict[str, list[tuple[float, float]]] = {}
    for number, each in enumerate(found.values()):
        for peer, time in each.us.items():
            if peer in LIBRARY:
                place = (each.us[LIMIT] / time, float(number))
                points.setdefault(LIBRARY[peer], []).append(place)
    return Panel(title, OF_COPY, "", points, tuple(found))


def _axes_and_hooks() -> Iterable[tuple[str, Call]]:
    axes = {
        "classes of pixels": "axis 1 of 64 x 21 x 512 x 512",
        "channels, 7 x 7": "axis 1 of 32 x 512 x 7 x 7",
        "columns, 8192 x 8192": "axis 0 of 8192 x 8192",
    }
    hooks = {
        "scores, causal": "causal, scaled, 4 x 16 x 2048 x 2048",
        "... with a mask": "mask, 4 x 16 x 2048 x 2048",
        "... with a bias": "bias, 4 x 16 x 2048 x 2048",
        "... with dropout": "dropout, 4 x 16 x 2048 x 2048",
    }
    for name, wanted in (("axes", axes), ("hooks", hooks)):
        of_case = {
            each.case: each
            for each in calls(name)
            if (each.function, each.dtype) == ("softmax", "bfloat16")
        }
        yield from ((label, of_case[case]) for label, case in wanted.items())


def _steps() -> Panel:
    """Return the time and the peak memory of a training step of a Llama."""
    (llama, *_) = rows("published/huggingface.csv")
    shown = {
        "PyTorch, eager": ("torch", "PyTorch", (0, -14)),
        "PyTorch, compiled": ("torch.compile", "compiled", (4, 9)),
        "Liger": ("liger", "Liger", (0, 9)),
        "patch(model)": (SOFTGEN, "softgen", (26, 4)),
        "patch(model), compiled": (SOFTGEN, "softgen, compiled", (36, -17)),
    }
    points: dict[str, list[tuple[float, float]]] = {}
    labels = []
    for name, (peer, word, off) in shown.items():
        time, memory = (float(part.split()[0]) for part in llama[name].split(", "))
        points.setdefault(peer, []).append((time, memory))
        labels.append(Label(word, (time, memory), off))
    title = "Losses and memory: a Llama's step"
    return Panel(title, "ms a step", "GiB at most", points, labels=tuple(labels))


def _choosing(suites: list[str]) -> Panel:
    """Return three calls of suites of choosing: the widest, with the most rows."""
    found: dict[str, Call] = {}
    for name in suites:
        widest = sorted(calls(name), key=lambda each: (each.cols, each.rows))
        for each in widest[-(len(CHOOSING) // len(suites)) :]:
            found[f"{CHOOSING[name]}\n{each.rows} x {each.cols}"] = each
    return replace(_cases("Choosing: one read of the logits", found), x="speed, a read = 1")


def _several_gpus() -> Panel:
    """Return two GPUs' speed beside that of one with its shard alone."""
    times = {row["what"]: row for row in rows("published/sharded_calls.csv")}

    def slowest(begins: str, count: int = 4096) -> float:
        (found,) = [time for what, time in times.items() if what.startswith(begins)]
        return float(found[f"{count} rows"].split()[-1])

    softmax = slowest("`softgen.torch.softmax` of one shard alone")
    few = slowest("`softgen.torch.softmax` of one shard alone", 64)
    loss = slowest("`softgen.torch.cross_entropy` of one shard alone")
    points = {
        SOFTGEN: [
            (softmax / slowest("softmax, directly"), 0.0),
            (few / slowest("softmax, directly", 64), 1.0),
            (loss / slowest("`cross_entropy`, the same, directly"), 2.0),
        ],
        "torch.compile": [
            (softmax / slowest("the same by PyTorch"), 0.0),
            (few / slowest("the same by PyTorch", 64), 1.0),
        ],
        "DTensor": [
            (softmax / slowest("DTensor"), 0.0),
            (few / slowest("DTensor", 64), 1.0),
            (loss / slowest("PyTorch's `loss_parallel`"), 2.0),
        ],
    }
    cases = ("softmax, 4096 rows", "softmax, 64 rows", "loss, gradient")
    return Panel(
        "Two GPUs: columns in shards", "speed, one GPU with its shard = 1", "", points, cases
    )


def digest() -> str:
    """Return what stands for all that is drawn."""
    told = json.dumps([asdict(panel) for panel in panels()], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def drawn_of(picture: Path) -> str:
    """Return the digest that a picture was drawn with."""
    data = picture.read_bytes()
    start = data.index(DIGEST.encode() + b"\0") + len(DIGEST) + 1
    return data[start : start + 64].decode()


def figure(scheme: str) -> Any:
    """Return the picture as a matplotlib Figure."""
    from matplotlib.figure import Figure

    ground, ink, faint = GROUNDS[scheme]
    made = Figure(figsize=(10.6, 6.6), facecolor=ground, layout="constrained")
    found = panels()
    axes = list(made.subplots(2, 3).flat)
    handles: dict[str, Any] = {}
    for panel, axis in zip(found, axes, strict=False):
        _draw(panel, axis, scheme)
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        _dress(panel, axis, ink, faint, ground)
    for axis in axes[len(found) :]:
        axis.set_axis_off()
    order = sorted(handles, key=lambda name: (name != SOFTGEN, name))
    made.legend(
        [handles[name] for name in order],
        order,
        loc="outside lower center",
        ncols=len(order),
        frameon=False,
        fontsize=8.5,
        labelcolor=ink,
    )
    return made


def _colour(peer: str, scheme: str) -> str:
    """Return a competitor's colour, on a dark ground a lighter one."""
    colour = COLOURS.get(peer) or ALSO[peer]
    if scheme == "light":
        return colour
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * 0.35):02x}" for part in parts)


def _draw(panel: Panel, axis: Any, scheme: str) -> None:
    lines = not panel.cases and not panel.labels
    for peer, points in sorted(panel.points.items(), key=lambda item: item[0] == SOFTGEN):
        mine = peer == SOFTGEN
        style: dict[str, Any] = {"color": _colour(peer, scheme), "label": peer}
        style["zorder"] = 4 if mine else 3
        if lines:
            many = len(points) > 20
            style |= {"linewidth": 2.4 if mine else 1.2, "marker": "" if many else "o"}
            axis.plot(*zip(*points, strict=True), **style, markersize=4)
        else:
            axis.plot(*zip(*points, strict=True), **style, marker="o", linestyle="")
            axis.lines[-1].set_markersize(9 if mine else 6)
    if not panel.labels:
        along = axis.axvline if panel.cases else axis.axhline
        along(1.0, color=GROUNDS[scheme][1], linewidth=1, linestyle=(0, (4, 2)), zorder=2)


def _dress(panel: Panel, axis: Any, ink: str, faint: str, ground: str) -> None:
    axis.set_facecolor(ground)
    axis.set_title(panel.title, loc="left", fontsize=9.5, fontweight="bold", color=ink)
    axis.set_xlabel(panel.x, fontsize=8.5, color=ink)
    axis.set_ylabel(panel.y, fontsize=8.5, color=ink)
    axis.tick_params(labelsize=8.5, colors=ink, length=0)
    axis.grid(visible=True, color=faint, linewidth=0.5)
    axis.set_axisbelow(True)
    for side, spine in axis.spines.items():
        spine.set_visible(side == "bottom" or (side == "left" and not panel.cases))
        spine.set_color(faint)
    if panel.cases:
        axis.set_yticks(range(len(panel.cases)), panel.cases)
        axis.set_ylim(len(panel.cases) - 0.5, -0.5)
        axis.set_xlim(left=0)
    elif not panel.labels:
        from matplotlib.ticker import NullLocator

        places = sorted({x for line in panel.points.values() for x, _ in line})
        shown = [x for x in places if x.is_integer() and int(x) & (int(x) - 1) == 0]
        axis.set_xscale("log", base=2)
        axis.set_xticks(shown, [f"{int(x)}" for x in shown])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_ylim(bottom=0)
    else:
        axis.set_ylim(bottom=0)
        axis.margins(x=0.2)
        for label in panel.labels:
            axis.annotate(
                *(label.word, label.at, label.off),
                textcoords="offset points",
                ha="center",
                fontsize=8.5,
                color=ink,
            )


def main() -> None:
    """Draw both pictures."""
    for scheme, path in PICTURES.items():
        image = io.BytesIO()
        metadata = {"Software": None, DIGEST: digest()}
        figure(scheme).savefig(image, format="png", dpi=160, metadata=metadata)
        path.write_bytes(image.getvalue())


if __name__ == "__main__":
    main()
