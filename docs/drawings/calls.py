"""What happens in a call: from an array or a tensor to a launch, and where it goes otherwise."""

from __future__ import annotations

from canvas import Canvas

WIDTH, HEIGHT = 200, 44
COLUMNS = (20, 260, 500, 740)
ROWS = (60, 150, 252, 356)


def draw() -> Canvas:
    """Draw the ways of a call."""
    canvas = Canvas(
        "What happens in a call",
        "An array goes to a request and, where that was seen before, to its entry and a launch. A "
        "tensor of softgen.torch goes there straight, by a function of autograd, or by an operator "
        "of PyTorch. What has no entry is dispatched once: checked, laid out, chosen, compiled.",
        960,
        430,
    )
    entrances = (
        ("softgen.softmax(x)", "api.py", "a"),
        ("kernel(x) of plan()", "kernel.py", "a"),
        ("softgen.torch.softmax(x)", "torch/functional.py", "b"),
        ("F.softmax(x), patched", "torch/patching.py", "b"),
    )
    for x, (name, file, kind) in zip(COLUMNS, entrances, strict=True):
        _step(canvas, x, ROWS[0], name, file, kind)
    _step(canvas, COLUMNS[2], ROWS[1], "a function of autograd", "where x is tracked", "b")
    _step(canvas, COLUMNS[3], ROWS[1], "torch.ops.softgen", "where x is not eager", "b")
    for x in COLUMNS[2:]:
        _down(canvas, x + WIDTH / 2, ROWS[0], ROWS[1])
        _down(canvas, x + WIDTH / 2, ROWS[1], ROWS[2])
    for x in COLUMNS[:2]:
        _down(canvas, x + WIDTH / 2, ROWS[0], ROWS[2])
    middle = ROWS[0] + HEIGHT / 2
    canvas.line((COLUMNS[3], middle), (COLUMNS[2] + WIDTH + 2, middle), arrow=True)
    canvas.box(COLUMNS[0], ROWS[2], COLUMNS[3] + WIDTH - COLUMNS[0], 34, "c")
    canvas.text(34, ROWS[2] + 22, "request", size=14, bold=True)
    canvas.text(
        118, ROWS[2] + 22, "class, shape, strides, dtype, device, alignment, options", size=12
    )
    canvas.text(940 - 14, ROWS[2] + 22, "runner.py, generated", size=12, anchor="end")
    _step(canvas, COLUMNS[0], ROWS[3], "entry", "what dispatch found", "c")
    _step(canvas, COLUMNS[1], ROWS[3], "launch", "cuLaunchKernelEx", "c")
    _step(canvas, COLUMNS[3], ROWS[3], "dispatch", "check, choose, compile", "d")
    canvas.text(130, ROWS[3] - 18, "seen before", size=12, kind="dim")
    canvas.line((120, ROWS[2] + 36), (120, ROWS[3] - 2), arrow=True)
    middle = ROWS[3] + HEIGHT / 2
    canvas.line((COLUMNS[0] + WIDTH + 2, middle), (COLUMNS[1] - 2, middle), arrow=True)
    canvas.text(850, ROWS[3] - 18, "new", size=12, kind="dim")
    canvas.line((840, ROWS[2] + 36), (840, ROWS[3] - 2), arrow=True)
    canvas.line((COLUMNS[3] - 2, middle), (COLUMNS[1] + WIDTH + 2, middle), arrow=True)
    canvas.text(
        600, middle - 8, "launches, and keeps an entry", size=12, kind="dim", anchor="middle"
    )
    return canvas


def _step(canvas: Canvas, x: float, y: float, name: str, note: str, kind: str) -> None:
    canvas.box(x, y, WIDTH, HEIGHT, kind)
    canvas.text(x + WIDTH / 2, y + 19, name, size=12, anchor="middle", bold=True, room=WIDTH)
    canvas.text(x + WIDTH / 2, y + 36, note, size=11, kind="dim", anchor="middle", room=WIDTH)


def _down(canvas: Canvas, x: float, start: float, end: float) -> None:
    canvas.line((x, start + HEIGHT + 2), (x, end - 2), arrow=True)
