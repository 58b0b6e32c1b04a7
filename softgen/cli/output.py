"""What the commands print: tables and messages for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from softgen.logs import printable

if TYPE_CHECKING:
    from rich.progress import Progress

# Rich folds tables to 80 columns where it writes into a pipe; a variant's name alone has 50.
PIPE_WIDTH = 240
GAP = 2  # columns between those of a table


def console(stderr: bool = True) -> Console:
    """Return a console for the stream as it is now; Rich itself heeds NO_COLOR and pipes.

    Made anew each time, because a test or an embedding program may have replaced the stream.
    """
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal:
        made = Console(stderr=stderr, highlight=False, soft_wrap=True, width=PIPE_WIDTH)
    return made


_held: dict[str, None] = {}  # warnings, which an error may say as well


def hold(message: str) -> None:
    """Print a warning before what is printed next, unless that is an error of the same words."""
    _held[message] = None


def release() -> None:
    """Print the warnings that are held."""
    while _held:
        message = next(iter(_held))
        del _held[message]
        warn(message)


def _print(message: str, stderr: bool = True, prefix: str = "", style: str = "") -> None:
    """Print a message without markup: as wide as a terminal, in whole words, else as it is."""
    release()
    made = console(stderr)
    lines = (prefix + printable(message, keep="\n\t")).split("\n")
    if made.is_terminal:
        fold = textwrap.TextWrapper(
            *(made.width, "", ""),
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=False,
            break_on_hyphens=False,
        )
        folded = []
        for line in lines:
            fold.subsequent_indent = " " * (len(line) - len(line.lstrip(" ")))
            folded += fold.wrap(line) or [""]
        lines = folded
    text = Text("\n".join(lines))
    text.stylize(style, 0, len(prefix))
    made.print(text)


def note(message: str) -> None:
    """Print a message for people on stderr."""
    _print(message)


def warn(message: str) -> None:
    """Print a warning on stderr."""
    _print(message, prefix="warning: ", style="yellow")


def fail(message: str) -> None:
    """Print an error on stderr."""
    _held.pop(message, None)
    _print(message, prefix="error: ", style="bold red")


def working(message: str, quiet: bool) -> AbstractContextManager[object]:
    """Return a context that shows `message` on stderr while it lasts.

    A terminal gets a spinner, and what is no terminal one line, or none if `quiet`.
    """
    release()
    made = console()
    if made.is_terminal:
        return made.status(Text(printable(message)))
    if not quiet:
        note(message)
    return nullcontext()


def bars(*columns: str) -> Progress:
    """Return bars of progress on stderr, with columns of text behind each, as Rich writes them."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    texts = map(TextColumn, columns)
    first = TextColumn("{task.description}")
    return Progress(first, BarColumn(), MofNCompleteColumn(), *texts, console=console())


def result(message: str) -> None:
    """Print a line of the command's main output on stdout."""
    _print(message, stderr=False)


def count(number: int, noun: str) -> str:
    """Return a number with its noun, for example 1 kernel or 2 kernels."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def width() -> int:
    """Return the columns of stdout: those of a terminal, and plenty where it is none."""
    return console(stderr=False).width


def column_width(heading: str, cells: Iterable[object]) -> int:
    """Return the columns that `table` needs for one of its own, without the gap before it."""
    head = printable(heading, keep="\n").split("\n")
    return max(map(len, (*head, *(printable(str(cell)) for cell in cells))))


def table_width(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """Return the columns that a table takes where nothing is folded."""
    each = [column_width(head, (row[n] for row in rows)) for n, head in enumerate(headings)]
    return sum(each) + GAP * (len(each) - 1)


def table(
    headings: Iterable[str], rows: Iterable[Iterable[object]], below: Sequence[str] = ()
) -> None:
    """Print a table on stdout; numbers go to the right.

    Where it is too wide, the columns of `below` are told in a second line of each row, the first of
    them first, as long as it takes.
    """
    heads, lines = list(headings), [list(row) for row in rows]
    kept = list(range(len(heads)))
    for head in below:
        if (
            table_width([heads[n] for n in kept], [[row[n] for n in kept] for row in lines])
            > width()
        ):
            kept.remove(heads.index(head))
    if len(kept) < len(heads):
        _two_lines_a_row(heads, lines, kept)
        return
    made = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(heads):
        # The first column is what people copy, a name: it is never folded.
        made.add_column(
            Text(printable(heading, keep="\n")),
            justify="right" if _is_number(lines, number) else "left",
            overflow="fold",
            no_wrap=number == 0,
        )
    for row in lines:
        made.add_row(*(Text(printable(str(cell))) for cell in row))
    console(stderr=False).print(made)


def _is_number(lines: Sequence[Sequence[object]], column: int) -> bool:
    return bool(lines) and all(isinstance(row[column], int | float) for row in lines)


def _two_lines_a_row(
    heads: Sequence[str], lines: Sequence[Sequence[object]], kept: Sequence[int]
) -> None:
    """Print a table of the columns `kept`, and of each row what the others have of it."""
    widths = {n: column_width(heads[n], (row[n] for row in lines)) for n in kept}

    def joined(cells: Sequence[object]) -> str:
        put = {n: str.rjust if _is_number(lines, n) else str.ljust for n in kept}
        each = (put[n](printable(str(cells[n])), widths[n]) for n in kept)
        return (" " * GAP).join(each).rstrip()

    result(joined(heads))
    for row in lines:
        result(joined(row))
        others = [n for n in range(len(heads)) if n not in kept and str(row[n])]
        if others:
            result("    " + "; ".join(f"{heads[n]} {row[n]}".strip() for n in others))


def document(value: Any) -> None:
    """Print the one JSON document of a command on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()
