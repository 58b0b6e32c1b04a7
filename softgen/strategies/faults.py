"""What is said of a strategy that was added to softgen and fails: which line of which file."""

from __future__ import annotations

from pathlib import Path

from softgen.errors import StrategyError

PACKAGES = ("softgen.strategies", "softgen.strategies.lessons")
FOLDER = Path(__file__).parent

# The modules that come with softgen. Their errors are softgen's bugs, which nothing rewords.
# A list, because nothing else tells them from a module that somebody put beside them: a checkout
# has no list of installed files, a wheel's own is not read again when a file is added, and a mark
# inside a module is copied with the module that one begins from.
LESSONS = frozenset(("oneflowblock", "oneflowwarp", "recurrence", "serial", "threepass"))
# Those for other axes than the last, which a choice along the last does without.
COLUMNAR = frozenset(("bands", "columns", "spread", "strips"))
# What strategies consist of, and what chooses among them.
HELPERS = frozenset(
    (
        *("base", "columnar", "faults", "ladder", "launch", "lessons", "occupancy", "oneflow"),
        *("registry", "select", "sliced", "slips", "spreading", "variants", "walk", "winners"),
    )
)
SHIPPED = (
    LESSONS
    | HELPERS
    | COLUMNAR
    | {"block", "cluster", "cooperative", "online", "safe", "shared", "split", "tiles", "warp"}
)


def is_own(kind: type) -> bool:
    """Whether the class of a strategy is somebody's own, not one that comes with softgen."""
    package, _, module = kind.__module__.rpartition(".")
    return package not in PACKAGES or module not in SHIPPED


def fault(name: str, error: BaseException, advice: str = "") -> StrategyError:
    """Return what to raise from `error`, which the strategy called `name` caused.

    Its message names the innermost line of what was added: the module, or its template.
    """
    where = _place(error) or f"strategy {name}"
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return StrategyError(f"{where}: {reason}" + (f"; {advice}" if advice else ""))


def _place(error: BaseException) -> str | None:
    """Return the file and the line of the last call that is in a strategy that was added."""
    import traceback  # milliseconds, which a sound process need not spend

    if isinstance(error, SyntaxError) and error.filename:  # it has no frame in that file
        return f"{error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        path = Path(frame.filename)
        stem = path.name.partition(".")[0]
        is_module = path.parent in (FOLDER, FOLDER / "lessons") and path.suffix == ".py"
        is_template = "templates" in path.parts and path.name.endswith(".cu.j2")
        if (is_module or is_template) and stem not in SHIPPED | {"kernel"}:
            return f"{frame.filename}, line {frame.lineno}"
    return None
