"""Who holds which part of a row, in the five strategies that hold one."""

from __future__ import annotations

from canvas import OWNERS, Canvas

LEFT, WIDTH = 210, 730
CELL = 26


def draw() -> Canvas:
    """Draw a panel a strategy."""
    canvas = Canvas(
        "Who holds which part of a row",
        "In warp, lanes take packs in turn. In block, warps do. In cluster and cooperative each "
        "block holds a slice. In split each chunk is reduced by one block and written by another.",
        960,
        690,
    )
    _warp(canvas, 24)
    _block(canvas, 130)
    _cluster(canvas, 236)
    _cooperative(canvas, 372)
    _split(canvas, 548)
    return canvas


def _panel(canvas: Canvas, y: float, name: str, *said: str) -> None:
    if y > 30:
        canvas.line((20, y - 16), (940, y - 16))
    canvas.text(20, y + 18, name, size=16, bold=True)
    for number, line in enumerate(said):
        canvas.text(20, y + 38 + 17 * number, line, size=12, kind="dim", room=LEFT - 30)


def _below(canvas: Canvas, y: float, text: str) -> None:
    canvas.text(LEFT, y, text, size=12, kind="dim", room=WIDTH)


def _warp(canvas: Canvas, y: float) -> None:
    _panel(canvas, y, "warp", "1 to 32 lanes,", "in registers")
    turn = [("a", "0"), ("b", "1"), ("c", "2"), ("idle", "..."), ("d", "31")]
    canvas.strip(LEFT, y, WIDTH, CELL, [*turn, *turn, *turn, ("idle", "...")])
    _below(
        canvas, y + 46, "a cell is a pack, here of 16 bytes; its number is the lane that holds it"
    )
    _below(canvas, y + 64, "lane 0 holds packs 0, 32, ...: a load of the warp is 512 bytes on end")


def _block(canvas: Canvas, y: float) -> None:
    _panel(canvas, y, "block", "2 to 32 warps,", "in registers")
    turn = [(kind, f"warp {n}") for n, kind in enumerate(OWNERS)]
    canvas.strip(LEFT, y, WIDTH, CELL, [*turn, *turn, ("a", "warp 0"), ("idle", "...")])
    _below(canvas, y + 46, "a cell is 32 packs, one for each lane of the warp")
    _below(canvas, y + 64, "the pairs of the warps meet in shared memory, once a row")


def _cluster(canvas: Canvas, y: float) -> None:
    _panel(canvas, y, "cluster", "2 to 16 blocks,", "in registers")
    labels = [(kind, f"block {n}") for n, kind in enumerate(OWNERS)]
    starts = canvas.strip(LEFT, y, WIDTH, CELL, labels, gap=6)
    for start, kind in zip(starts, OWNERS, strict=True):
        turn = [(kind, f"w{n}") for n in range(4)]
        canvas.strip(start, y + CELL + 3, WIDTH / 4 - 4.5, 20, [*turn, *turn[:2]], size=10)
    _below(canvas, y + 68, "a block holds a slice, and its warps take the packs of it in turn")
    _below(canvas, y + 86, "each warp pushes its pair into the shared memory of every block")


def _cooperative(canvas: Canvas, y: float) -> None:
    lines = ("up to all SMs, one block", "each, in shared memory,", "the next row on its way")
    _panel(canvas, y, "cooperative", *lines)
    cells = [(kind, f"block {n}") for n, kind in enumerate(OWNERS[:3])]
    cells += [("idle", "..."), ("d", "block 131")]
    starts = canvas.strip(LEFT, y, WIDTH, CELL, cells, gap=6)
    ring = y + 64
    canvas.text(LEFT, ring - 8, "the ring of block 1, a cell a chunk:", size=12, kind="dim")
    slice_ = starts[1], starts[2] - 6
    canvas.line((slice_[0], y + CELL), (LEFT, ring - 22))
    canvas.line((slice_[1], y + CELL), (LEFT + WIDTH, ring - 22))
    each = WIDTH / 10
    states = [("b", "row t")] * 4 + [("b", "row t + 1")] * 4
    canvas.strip(LEFT, ring, 8 * each - 2, CELL, states)
    for number in (8, 9):
        x = LEFT + number * each
        right, low = x + each - 2, ring + CELL
        canvas.line((x, ring), (right, ring), (right, low), (x, low), (x, ring), dashed=True)
    for first, count, said in (
        (0, 4, "reduced, waits for the pairs"),
        (4, 4, "reduced meanwhile"),
        (8, 2, "being loaded"),
    ):
        x = LEFT + first * each
        canvas.line((x, ring + CELL + 5), (x + count * each - 4, ring + CELL + 5))
        canvas.text(x + count * each / 2 - 2, ring + CELL + 19, said, size=12, anchor="middle")
    said = "the blocks post their pairs in global memory; one combines them and posts the total"
    _below(canvas, ring + CELL + 44, said)


def _split(canvas: Canvas, y: float) -> None:
    _panel(
        canvas,
        y,
        "split",
        "a block a chunk, twice;",
        "read again from L2,",
        "where it still is there",
    )
    chunks = 6
    reduced = [("a", f"block {n}") for n in range(chunks)]
    written = [("b", f"block {chunks + 1 + 2 * n}") for n in range(chunks)]
    starts = canvas.strip(LEFT, y, WIDTH - 106, CELL, reduced)
    canvas.strip(LEFT, y + 62, WIDTH - 106, CELL, written)
    each = starts[1] - starts[0]
    middle = y + 44
    for start in starts:
        canvas.line((start + each / 2, y + CELL), (start + each / 2, middle))
        canvas.line((start + each / 2, middle), (start + each / 2, y + 60), arrow=True)
    canvas.line((starts[0] + each / 2, middle), (starts[-1] + each / 2, middle))
    right = LEFT + WIDTH - 98
    canvas.text(right, y + 17, "reduce row 0", size=12)
    canvas.text(right, middle + 4, "all pairs", size=12)
    canvas.text(right, y + 79, "write row 0", size=12)
    said = "the blocks between them (6, 8, 10, ...) reduce row 1 at the same time"
    _below(canvas, y + 108, said)
