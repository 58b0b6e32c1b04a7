"""Where a module went: an import of its old place fails with an error that names the new one."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing has it, whose import is most of that of softgen
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

# Those that have another name in their new room.
RENAMED = {
    "arrays": "call/library",
    "doctor": "cli/checks",
    "generator": "source/generate",
    "strategies/recurrence": "strategies/lessons/recurrence",
    "strategies/serial": "strategies/lessons/serial",
    "strategies/threepass": "strategies/lessons/threepass",
    "texts": "source/store",
    "verify_gpu": "verify/gpu",
    "verify_matrix": "verify/matrix",
}


class Finder:
    """A finder of modules that is asked last, for what no other knows."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None; raise ModuleNotFoundError if `name` is an old place of softgen's."""
        package, _, old = name.partition(".")
        if package != "softgen":
            return None
        folder = _package()
        place = RENAMED.get(old.replace(".", "/"), "")
        found = [folder / place] if place else _places(folder, old)
        if len(found) == 1:
            new = ".".join(found[0].relative_to(folder.parent).parts)
            raise ModuleNotFoundError(f"there is no {name}; it is {new} now", name=name)
        return None


def _package() -> Path:
    from pathlib import Path

    return Path(__file__).parent


def _places(folder: Path, old: str) -> list[Path]:
    """Return where modules and packages of that name are in `folder`, without their suffix."""
    modules = [path.with_suffix("") for path in folder.glob(f"*/**/{old}.py")]
    return modules + [path.parent for path in folder.glob(f"*/**/{old}/__init__.py")]


sys.meta_path.append(Finder())
