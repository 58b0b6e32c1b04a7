"""The exchange of (m, d) pairs, with the numbers of one row, and where each strategy has it."""

from __future__ import annotations

import math

from canvas import OWNERS, Canvas

ROW = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 0, 7, 6, 3)
LEFT, WIDTH = 230, 710
EACH = WIDTH / 4
PLACES = (
    ("warp", "nowhere: lanes of one warp shuffle registers"),
    ("block", "the block's shared memory: a slot a warp, read by every warp"),
    ("cluster", "the shared memory of every block, into which every warp pushes"),
    (
        "cooperative",
        "global memory: a slot a block; one merges them, the others read its total",
    ),
    ("split", "global memory: a slot a chunk, and each block that writes reads them all"),
)


def draw() -> Canvas:
    """Draw a row of four warps from its elements to its results."""
    canvas = Canvas(
        "The exchange of (m, d) pairs",
        "Each of four warps finds the maximum m of its elements and the sum d of exp(x - m). The "
        "pairs meet in slots and are merged to the pair of the row, from which each warp finishes.",
        960,
        570,
    )
    parts = [ROW[4 * n : 4 * n + 4] for n in range(4)]
    pairs = [(max(part), sum(math.exp(x - max(part)) for x in part)) for part in parts]
    m = max(most for most, _ in pairs)
    d = sum(each * math.exp(most - m) for most, each in pairs)
    middles = [LEFT + EACH * (n + 0.5) - 4 for n in range(4)]

    _said(canvas, 40, "x", "a row of 16, in the", "registers of 4 warps")
    _said(canvas, 112, "a pair a warp", "m by shuffles, then", "d = sum of exp(x - m)")
    _said(canvas, 184, "slots", "one barrier a row, or", "one message a warp")
    _said(canvas, 256, "the row's pair", "M = max(m)", "D = sum of d exp(m - M)")
    _said(canvas, 328, "y", "exp(x - m) is kept:", "one product each")
    for n, (kind, part, pair) in enumerate(zip(OWNERS, parts, pairs, strict=True)):
        left = LEFT + EACH * n
        canvas.strip(left, 40, EACH - 8, 28, [(kind, str(x)) for x in part])
        canvas.line((middles[n], 70), (middles[n], 108), arrow=True)
        canvas.box(left, 112, EACH - 8, 28, kind, f"m = {pair[0]}, d = {pair[1]:.3f}")
        canvas.line((middles[n], 142), (middles[n], 180), arrow=True)
        canvas.box(left, 184, EACH - 8, 28, kind, f"({pair[0]}, {pair[1]:.3f})")
        canvas.line((middles[n], 214), (middles[n], 252), arrow=True)
        canvas.line((middles[n], 286), (middles[n], 324), arrow=True)
        factor = math.exp(pair[0] - m) / d
        canvas.box(left, 328, EACH - 8, 28, kind, f"exp(x - {pair[0]}) * {factor:.3g}")
    terms = [f"{each:.3f}" + (f" e^{most - m}" if most < m else "") for most, each in pairs]
    canvas.box(LEFT, 256, WIDTH - 8, 28, "idle", f"M = {m}, D = {' + '.join(terms)} = {d:.3f}")

    canvas.line((20, 390), (940, 390))
    canvas.text(20, 420, "where the slots are", size=15, bold=True)
    for number, (name, place) in enumerate(PLACES):
        y = 446 + 24 * number
        canvas.text(20, y, name, size=13)
        canvas.text(LEFT, y, place, size=13, kind="dim", room=WIDTH)
    return canvas


def _said(canvas: Canvas, y: float, name: str, *lines: str) -> None:
    canvas.text(20, y + 6, name, size=15, bold=True)
    for number, line in enumerate(lines):
        canvas.text(20, y + 25 + 16 * number, line, size=12, kind="dim", room=LEFT - 30)
