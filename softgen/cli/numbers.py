"""Options that are numbers, whose errors say what was given and what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def whole_option(name: str, *, least: int, most: int | None = None, help: str, **more: Any) -> Any:
    """Return an option that is a whole number from `least` to `most`; None for no end."""
    return _option(name, int, "whole number", least, most, help=help, **more)


def number_option(name: str, *, least: float, help: str, **more: Any) -> Any:
    """Return an option that is a number, `least` or more."""
    return _option(name, float, "number", least, None, help=help, **more)


def _option(
    name: str,
    kind: Callable[[Any], Any],
    noun: str,
    least: float,
    most: float | None,
    **more: Any,
) -> Any:
    accepted = f"{least:g} or more" if most is None else f"{least} to {most}"
    such = f"{noun}, {accepted}" if most is None else f"{noun} from {accepted}"

    def parse(text: Any) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= (value if most is None else most):
            raise typer.BadParameter(f"{str(text)!r} is not accepted; give a {such}")
        return value

    return typer.Option(name, parser=parse, metavar="N", **more)
