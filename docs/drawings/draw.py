"""Draws the pictures of these pages: `python docs/drawings/draw.py [FOLDER]` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

import calls
import exchange
import groups
import ladder
import rows

HERE = Path(__file__).resolve().parent
DRAWINGS = {"calls": calls, "rows": rows, "exchange": exchange, "groups": groups, "ladder": ladder}


def main(folder: Path) -> None:
    """Write every drawing into `folder`."""
    for name, module in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(module.draw().svg())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
