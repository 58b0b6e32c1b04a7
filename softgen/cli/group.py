"""The frame of every command: errors become messages, exit codes and, with --json, a document."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from softgen.cli.output import document, fail, hold, note, release, warn
from softgen.errors import (
    IllegalVariantError,
    InvalidTypeError,
    InvalidValueError,
    NoDeviceError,
    PluginWarning,
    SoftgenError,
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


# The panels of a help, and the options of each: one option is in the same panel of every command.
PANELS = {
    "What": (
        *("--shape", "--shapes", "--suite", "--rows", "--cols", "--dtype", "--out-dtype"),
        *("--function", "--hook", "--input", "--operand", "--axis", "--inner", "--strided"),
        *("--alignment", "--sharded", "--seed", "--from"),
    ),
    "Which kernel": (
        *("--variant", "--batch-invariant", "--source", "--all", "--strategy", "--peers"),
        *("--budget", "--candidates"),
    ),
    "Device": ("--device", "--arch", "--sms", "--gpus", "--shard", "--ray"),
    "How": ("--seconds", "--setup-seconds", "--quick", "--warm", "--chained"),
    "Output": (
        *("--out", "--output", "--result", "--csv", "--plot", "--grid", "--list", "--table"),
        *("--check", "--stdout", "--project", "--name", "--bindings", "--json", "--help"),
    ),
}
_PANEL_OF = {option: panel for panel, options in PANELS.items() for option in options}


def _without_types(params: Any) -> list[Any]:
    """Return parameters whose flags and arguments have no word for their type beside them."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    return list(params)


class Command(TyperCommand):
    """One command.

    Its help has the options that most need; those that are hidden come with --help-all.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = joined(self.help)

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters by their panels; --help says how many are not in sight."""
        found: list[Any] = _without_types(super().get_params(ctx))
        for param in found:
            param.rich_help_panel = _PANEL_OF.get(max(param.opts, key=len))  # --help is -h too
        panels = [None, *PANELS]
        found.sort(key=lambda param: panels.index(param.rich_help_panel))
        hidden = sum(getattr(param, "hidden", False) for param in found)
        more = f" --help-all has {hidden} more options." if hidden else ""
        found[-1].help = f"Show this.{more}"
        return found

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, among them --help-all, and --algorithm, an older name of --function."""
        if "--help-all" in args:
            with self._all_in_sight():
                return super().parse_args(ctx, ["--help"])
        return super().parse_args(
            ctx, [re.sub(r"^--algorithm(?==|$)", "--function", word) for word in args]
        )

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete options that are not in sight too."""
        with self._all_in_sight():
            return super().shell_complete(ctx, incomplete)

    @contextlib.contextmanager
    def _all_in_sight(self) -> Iterator[None]:
        hidden: list[Any] = [each for each in self.params if getattr(each, "hidden", False)]
        for param in hidden:
            param.hidden = False
        try:
            yield
        finally:
            for param in hidden:
                param.hidden = True


class Commands(TyperGroup):
    """The group of all commands.

    Errors that softgen raises on purpose, those of the operating system and wrong usage end as one
    line on stderr; anything else is a bug and keeps its traceback.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help = joined(self.help)

    def get_params(self, ctx: Any) -> Any:
        """Return the options before the command."""
        return _without_types(super().get_params(ctx))

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

        def run() -> Any:
            """Run without Typer's own error output, which has another look."""
            return super(Commands, self).main(
                words, prog_name, complete_var, standalone_mode=False, **extra
            )

        if not standalone_mode:
            return run()
        with _warnings_in_lines():
            sys.exit(_exit_code(run, asks_for_json(words)))

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the words before the command."""
        with _printable_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the words of the command, and run it."""
        with _printable_errors():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt:  # of which Typer, by its version, makes an Abort or an Exit
                raise typer.Abort from None


def _exit_code(run: Callable[[], Any], json: bool) -> int:
    """Run a command line, tell what went wrong, and return its exit code."""
    try:
        # Typer returns the code of a `typer.Exit`; a command that runs to its end gives None.
        return run() or 0
    except typer.Abort:
        if json:
            document(failure("interrupted", "Abort"))
        else:
            warn("interrupted; what is not named above was not finished")
        return INTERRUPTED
    except Exception as error:
        # Usage errors, whose class is click's or a copy inside Typer, by Typer's version.
        usage: Any = error if hasattr(error, "format_message") else None
        known = isinstance(error, SoftgenError | OSError)
        if not known and not usage and not json:
            raise
        if not known and not usage:
            traceback.print_exc()
        message = usage.format_message() if usage else message_of(error)
        if json:
            document(failure(message, "UsageError" if usage else type(error).__name__))
        elif message:  # nothing was said beside the help
            fail(message)
            if usage and usage.ctx is not None:
                note(f"`{usage.ctx.command_path} --help` has what it takes")
        return int(usage.exit_code) if usage else code_of(error)


@contextlib.contextmanager
def _warnings_in_lines() -> Iterator[None]:
    """Show what is wrong with what the user added in a line, without softgen's code."""
    otherwise = warnings.showwarning

    def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, PluginWarning):
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
