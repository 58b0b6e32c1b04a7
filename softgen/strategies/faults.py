"""What is said of a strategy that was added to softgen and fails: which line of which file."""

from __future__ import annotations

from pathlib import Path

from softgen.errors import StrategyError
from softgen.faults import told

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
        *(
            "base",
            "choice",
            "columnar",
            "costs",
            "faults",
            "ladder",
            "launch",
            "lessons",
            "oneflow",
        ),
        *("registers", "registry", "select", "sliced", "slips", "spreading", "variants", "winners"),
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
    where, reason = told(error, is_added)
    return StrategyError(
        f"{where or f'strategy {name}'}: {reason}" + (f"; {advice}" if advice else "")
    )


def is_added(path: Path) -> bool:
    """Whether a file is the module, or the template, of a strategy that was added."""
    stem = path.name.partition(".")[0]
    is_module = path.parent in (FOLDER, FOLDER / "lessons") and path.suffix == ".py"
    is_template = path.parent.name in ("strategies", "lessons") and path.name.endswith(".cu.j2")
    return (is_module or is_template) and stem not in SHIPPED
