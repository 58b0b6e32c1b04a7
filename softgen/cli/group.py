"""The frame of every command: errors become messages, exit codes and, with --json, a document."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from softgen.cli.output import document, fail, hold, release
from softgen.errors import (
    FunctionWarning,
    IllegalVariantError,
    InvalidTypeError,
    InvalidValueError,
    NoDeviceError,
    SoftgenError,
    StrategyWarning,
    VerificationError,
)
from softgen.logs import printable

FAILED, USAGE, NO_DEVICE, WRONG_RESULT, INTERRUPTED = 1, 2, 3, 4, 130

# The first class that an error is an instance of decides.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (NoDeviceError, NO_DEVICE),
    (VerificationError, WRONG_RESULT),
    (InvalidValueError, USAGE),
    (InvalidTypeError, USAGE),
    (IllegalVariantError, USAGE),
    (Exception, FAILED),
)


def joined(text: str | None) -> str | None:
    """Return help whose paragraphs are one line each: Typer keeps their line ends and wraps too."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


class Command(TyperCommand):
    """One command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = joined(self.help)


class Commands(TyperGroup):
    """The group of all commands.

    Errors that softgen raises on purpose, and those of the operating system, end as one line on
    stderr; anything else is a bug and keeps its traceback.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = joined(self.help)

    def main(
        self,
        args: Any = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line in `args` (by default the program's own) and exit."""
        words = list(sys.argv[1:] if args is None else args)
        if not standalone_mode:
            return super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        with _warnings_in_lines():
            if asks_for_json(words):
                sys.exit(self._main_with_json(words, prog_name, complete_var, extra))
            try:
                return super().main(words, prog_name, complete_var, **extra)
            except (SoftgenError, OSError) as error:
                fail(message_of(error))
                sys.exit(code_of(error))

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the words before the command."""
        with _printable_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the words of the command, and run it."""
        with _printable_errors():
            return super().invoke(ctx)

    def _main_with_json(
        self,
        words: list[str],
        prog_name: str | None,
        complete_var: str | None,
        extra: dict[str, Any],
    ) -> int:
        """Run without Typer's own error output, which is for people, and return the exit code."""
        try:
            # Typer returns the code of a `typer.Exit`; a command that runs to its end gives None.
            return super().main(words, prog_name, complete_var, standalone_mode=False, **extra) or 0
        except typer.Abort:
            document(failure("interrupted", "Abort"))
            return INTERRUPTED
        except Exception as error:
            # Usage errors, whose class is click's or a copy inside Typer, by Typer's version.
            if hasattr(error, "format_message") and hasattr(error, "exit_code"):
                document(failure(error.format_message(), "UsageError"))
                return int(error.exit_code)
            if not isinstance(error, SoftgenError | OSError):
                traceback.print_exc()
            document(failure(message_of(error), type(error).__name__))
            return code_of(error)


@contextlib.contextmanager
def _warnings_in_lines() -> Iterator[None]:
    """Show what is wrong with what the user added in a line, without softgen's code."""
    otherwise = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, StrategyWarning | FunctionWarning):
            hold(str(message))
        else:
            otherwise(printable(str(message), keep="\n"), category, *where, **more)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = otherwise
        release()


@contextlib.contextmanager
def _printable_errors() -> Iterator[None]:
    """Take control characters out of usage errors, which Typer prints as they are."""
    try:
        yield
    except Exception as error:
        usage: Any = error  # click's class, or that of a copy inside Typer
        if hasattr(usage, "format_message") and isinstance(usage.message, str):
            usage.message = printable(usage.message, keep="\n")
        raise


def asks_for_json(words: list[str]) -> bool:
    """Whether a command line holds --json; needed before it is parsed, for its usage errors."""
    options = words[: words.index("--")] if "--" in words else words
    return "--json" in options


def code_of(error: BaseException) -> int:
    """Return the exit code for `error`."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


def message_of(error: BaseException) -> str:
    """Return what to tell about `error`: for the operating system's, also which file it was."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return (
            f"cannot use {error.filename}: {error.strerror}; "
            "name a file or folder that you may read and write"
        )
    return str(error)


def failure(message: str, kind: str) -> dict[str, str]:
    """Return the document of a failure."""
    return {"error": message, "kind": kind}
