"""What happens in a call: from an array or a tensor to a launch, and where it goes otherwise."""

from __future__ import annotations

from canvas import Canvas

HEIGHT = 44
ROWS = (60, 150, 252, 356)
LEFT, RIGHT = 20, 940
# Where boxes begin, and their widths. Below softgen.torch are two, with a gap between.
ARRAY, PLAN, PATCHED = (20, 150), (194, 150), (775, 165)
TRACKED, REGISTERED = (368, 175), (601, 150)
TORCH = (TRACKED[0], sum(REGISTERED) - TRACKED[0])
ENTRY, LAUNCH, DISPATCH = (20, 200), (260, 200), (740, 200)


def draw() -> Canvas:
    """Draw the ways of a call."""
    canvas = Canvas(
        "What happens in a call",
        "An array goes to a request and, where that was seen before, to its entry and a launch. A "
        "call of softgen.torch goes there straight, by a function of autograd where x is tracked, "
        "or by an operator of PyTorch where x is not eager. A patched function of PyTorch goes "
        "there by PyTorch's own autograd and operator. What has no entry is dispatched: checked, "
        "laid out, chosen, compiled.",
        960,
        430,
    )
    _step(canvas, ARRAY, ROWS[0], "softgen.softmax(x)", "call/api.py", "a")
    _step(canvas, PLAN, ROWS[0], "kernel(x) of plan()", "call/kernel.py", "a")
    _step(canvas, TORCH, ROWS[0], "softgen.torch.softmax(x)", "torch/functional.py", "b")
    _step(canvas, PATCHED, ROWS[0], "F.softmax(x), patched", "torch/patching.py", "b")
    _step(canvas, TRACKED, ROWS[1], "a function of autograd", "where x is tracked", "b")
    _step(canvas, REGISTERED, ROWS[1], "torch.ops.softgen", "where x is not eager", "b")
    _step(canvas, PATCHED, ROWS[1], "aten::_softmax", "autograd is PyTorch's", "b")
    for column in (TRACKED, REGISTERED, PATCHED):
        _down(canvas, _middle(column), ROWS[0], ROWS[1])
        _down(canvas, _middle(column), ROWS[1], ROWS[2])
    straight = (sum(TRACKED) + REGISTERED[0]) / 2
    for x in (_middle(ARRAY), _middle(PLAN), straight):
        _down(canvas, x, ROWS[0], ROWS[2])
    canvas.text(straight - 6, ROWS[2] - 22, "nobody tracks x", size=12, kind="dim", anchor="end")
    canvas.box(LEFT, ROWS[2], RIGHT - LEFT, 34, "c")
    canvas.text(34, ROWS[2] + 22, "request", size=14, bold=True)
    canvas.text(
        118, ROWS[2] + 22, "class, shape, strides, dtype, device, alignment, options", size=12
    )
    canvas.text(RIGHT - 14, ROWS[2] + 22, "call/runner.py, generated", size=12, anchor="end")
    _step(canvas, ENTRY, ROWS[3], "entry", "what dispatch found", "c")
    _step(canvas, LAUNCH, ROWS[3], "launch", "cuLaunchKernelEx", "c")
    _step(canvas, DISPATCH, ROWS[3], "dispatch", "check, choose, compile", "d")
    for column, said in ((ENTRY, "seen before"), (DISPATCH, "new")):
        x = _middle(column)
        canvas.text(x + 10, ROWS[3] - 18, said, size=12, kind="dim")
        canvas.line((x, ROWS[2] + 36), (x, ROWS[3] - 2), arrow=True)
    y = ROWS[3] + HEIGHT / 2
    canvas.line((sum(ENTRY) + 2, y), (LAUNCH[0] - 2, y), arrow=True)
    canvas.line((DISPATCH[0] - 2, y), (sum(LAUNCH) + 2, y), arrow=True)
    canvas.text(600, y - 8, "launches, and keeps an entry", size=12, kind="dim", anchor="middle")
    return canvas


def _step(
    canvas: Canvas, column: tuple[int, int], y: float, name: str, note: str, kind: str
) -> None:
    x, width = column
    canvas.box(x, y, width, HEIGHT, kind)
    middle = _middle(column)
    canvas.text(middle, y + 19, name, size=12, anchor="middle", bold=True, room=width)
    canvas.text(middle, y + 36, note, size=11, anchor="middle", room=width)


def _middle(column: tuple[int, int]) -> float:
    x, width = column
    return x + width / 2


def _down(canvas: Canvas, x: float, start: float, end: float) -> None:
    canvas.line((x, start + HEIGHT + 2), (x, end - 2), arrow=True)
