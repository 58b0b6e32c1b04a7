"""The steps of the ladder: what each changes, what its first loads bring, and its time."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from canvas import OWNERS, Canvas

TIMES_OF = Path(__file__).resolve().parents[1] / "published" / "ladder.csv"
COLS = 32768
STEPS = (
    ("naive", "one thread a row", 3),
    ("tree", "a block a row, a stretch a thread", 3),
    ("coalesced", "neighbours load neighbours", 3),
    ("shuffle", "lanes exchange registers", 3),
    ("float4", "16 bytes a load", 3),
    ("unrolled", "four loads before the first is used", 3),
    ("online_rescale", "maximum and sum in one pass", 2),
)
CELLS = 32
TOP, EACH = 92, 58
LOADS, TIMES, WIDEST = 300, 690, 190


def times() -> dict[str, float]:
    """Return the microseconds of the steps."""
    with TIMES_OF.open(newline="") as file:
        return {row["step"].strip("`"): float(row[str(COLS)]) for row in csv.DictReader(file)}


def owner(step: str, cell: int) -> tuple[str, bool]:
    """Return the thread of a cell, as a class, and whether its first loads bring it."""
    if step == "naive":
        return "a", cell == 0
    if step == "tree":
        return OWNERS[cell // 8], cell % 8 == 0
    if step in ("coalesced", "shuffle"):
        return OWNERS[cell % 4], cell < 4
    first = cell < 16 or step in ("unrolled", "online_rescale")
    return OWNERS[cell // 4 % 4], first


def draw() -> Canvas:
    """Draw a line a step."""
    known = times()
    canvas = Canvas(
        "The steps of the ladder",
        "Each step with what it changes, the elements that the first loads of four threads bring, "
        f"the passes over the row and its time at float32 128 x {COLS}.",
        960,
        TOP + EACH * len(STEPS) + 4,
    )
    canvas.text(20, 34, "step", size=15, bold=True)
    canvas.text(LOADS, 34, "32 columns, a colour a thread", size=15, bold=True)
    canvas.text(LOADS, 56, "bright: what the first loads bring", size=12, kind="dim")
    canvas.text(605, 34, "passes", size=15, bold=True)
    canvas.text(TIMES, 34, f"us at 128 x {COLS}", size=15, bold=True)
    canvas.text(TIMES, 56, "NVIDIA H200, log scale from 5", size=12, kind="dim")
    least, most = 5.0, max(known[name] for name, _, _ in STEPS)
    for number, (name, said, passes) in enumerate(STEPS):
        y = TOP + EACH * number
        canvas.text(20, y + 10, name, size=14, bold=True, room=270)
        canvas.text(20, y + 29, said, size=12, kind="dim", room=270)
        width = 270 / CELLS
        for cell in range(CELLS):
            kind, first = owner(name, cell)
            canvas.box(LOADS + cell * width, y, width - 1.2, 26, kind, faint=not first)
        canvas.text(632, y + 18, str(passes), size=14, anchor="middle")
        length = WIDEST * math.log(known[name] / least) / math.log(most / least)
        canvas.box(TIMES, y, length, 26, "d" if name == "online_rescale" else "idle")
        canvas.text(TIMES + length + 6, y + 18, f"{known[name]:.4g}", size=12)
    return canvas
