"""OneFlow's grid of thread groups: lanes share a row, a block has many groups, the grid strides."""

from __future__ import annotations

from canvas import OWNERS, Canvas

LANES, GROUPS, ROWS_PER_ACCESS = 16, 8, 2
LANE = 16.0
TOP = 74


def draw() -> Canvas:
    """Draw a block of 8 groups of 16 lanes, its rows, and the grid."""
    canvas = Canvas(
        "A grid of thread groups",
        "A block of 128 threads is 8 thread groups of 16 lanes. Each group holds 2 rows of 32 "
        "columns, a pack of 2 columns a lane. Blocks take 16 rows each and then stride.",
        960,
        400,
    )
    _block(canvas, 20)
    _rows(canvas, 400)
    _grid(canvas, 740)
    return canvas


def _head(canvas: Canvas, x: float, name: str, said: str, room: float) -> None:
    canvas.text(x, 32, name, size=15, bold=True, room=room)
    canvas.text(x, 54, said, size=12, kind="dim", room=room)


def _block(canvas: Canvas, x: float) -> None:
    _head(canvas, x, "a block: 8 groups of 16 lanes", "blockDim = (thread_group_width, 8)", 330)
    for group in range(GROUPS):
        y = TOP + 36 * group
        kind = OWNERS[group % 4]
        canvas.text(x, y + 17, f"group {group}", size=12, kind="dim")
        canvas.strip(x + 62, y, LANES * LANE, 24, [(kind, "")] * LANES, gap=1)
    y = TOP + 36 * GROUPS + 14
    canvas.text(x + 62, y, "lane 0", size=11, kind="dim")
    canvas.text(x + 62 + LANES * LANE, y, "lane 15", size=11, kind="dim", anchor="end")


def _rows(canvas: Canvas, x: float) -> None:
    _head(canvas, x, "its rows of x", "2 rows a group: rows_per_access", 310)
    width = 250
    for row in range(GROUPS * ROWS_PER_ACCESS):
        group = row // ROWS_PER_ACCESS
        y = TOP + 18 * row
        canvas.box(x + 32, y, width, 15, OWNERS[group % 4])
        canvas.text(x + 24, y + 12, str(row), size=11, kind="dim", anchor="end")
        if row % 2 == 0:
            middle = TOP + 36 * group + 12
            canvas.line((x - 56, middle), (x + 2, middle), arrow=True)
    cell = width / LANES
    for lane in range(1, LANES):  # the packs of the first row
        canvas.line((x + 32 + lane * cell, TOP), (x + 32 + lane * cell, TOP + 15))
    y = TOP + 36 * GROUPS + 14
    canvas.text(x + 32, y, "16 lanes, a pack of 2 columns each", size=11, kind="dim", room=width)


def _grid(canvas: Canvas, x: float) -> None:
    _head(canvas, x, "the grid", "16 rows a block", 200)
    names = ["block 0", "block 1", "block 2", "...", "block G - 1", "block 0", "block 1", "..."]
    for number, name in enumerate(names):
        kind = "idle" if name == "..." else "a" if name == "block 0" else "b"
        canvas.box(x, TOP + 36 * number, 130, 30, kind, name)
    first, again = TOP + 15, TOP + 36 * 5 + 15
    canvas.line((x + 132, first), (x + 152, first), (x + 152, again), (x + 134, again), arrow=True)
    y = TOP + 36 * GROUPS + 14
    canvas.text(x, y, "G: 32 waves at most", size=11, kind="dim", room=200)
