"""A .cu file that somebody edited, as the Source of the variant that it was emitted as."""

from __future__ import annotations

import re
from pathlib import Path

from softgen.disk.files import read_regular
from softgen.errors import InvalidValueError
from softgen.source.cpp import constant_lines
from softgen.source.render import Source
from softgen.strategies.variants import Variant, is_full_name, parse_name

MOST_BYTES = 2**20  # an emitted file has 5 to 60 KB

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NESTED = r"\((?:[^()]|\([^()]*\))*\)\s*"
_KERNEL = re.compile(
    rf'extern\s+"C"\s+__global__\s+void\s+(?:__\w+__\s*{_NESTED})*(\w+)\s*\(([^()]*)\)\s*\{{'
)
_CONSTANT = re.compile(r"\bconstexpr\s+[\w ]+?\s+(k\w+)\s*=\s*([^;]+);")


def read_source(path: Path, variant: str | None = None) -> Source:
    """Return the source that the file at `path` holds.

    What it computes, and how it is launched, is that of a variant: the one that its kernel is
    called, else `variant`, a full name. The body may be anything.

    Raises InvalidValueError for a file that has no kernel or several, one whose name is no
    variant's where `variant` says none, other parameters than the variant's, or other values of
    the constants that decide its launch.
    """
    try:
        data = read_regular(path)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidValueError(f"{path} cannot be read as a .cu file ({reason})") from error
    if len(data) > MOST_BYTES:
        raise InvalidValueError(f"{path} has {len(data)} bytes; an emitted file has at most 2^20")
    code = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    kernels = list(_KERNEL.finditer(code))
    if len(kernels) != 1:
        names = ", ".join(found[1] for found in kernels) or "none"
        raise InvalidValueError(
            f'{path} must have one kernel, declared extern "C" __global__ void, as an emitted file '
            f"has; found: {names}"
        )
    symbol = kernels[0][1]
    found = _variant(path, symbol, variant)
    place = f"{path}:{code.count(chr(10), 0, kernels[0].start(1)) + 1}"
    _require_parameters(place, kernels[0][2], found)
    _require_constants(path, code, found)
    return Source(found, path.stem, symbol, text, edited=str(path))


def _variant(path: Path, symbol: str, name: str | None) -> Variant:
    """Return the variant called `name`, else the one that the kernel is called."""
    if name is not None:
        if not is_full_name(name):
            raise InvalidValueError(
                f"with --source, --variant is the full name that {path} was emitted as, "
                f"got {name!r}"
            )
        return parse_name(name)
    try:
        return parse_name(symbol)
    except InvalidValueError as error:
        raise InvalidValueError(
            f"the kernel of {path} is called {symbol!r}, which is the name of no variant: give the "
            "one that it was emitted as by --variant; the first line of an emitted file says it"
        ) from error


def _require_parameters(place: str, written: str, variant: Variant) -> None:
    """Raise InvalidValueError unless the kernel has the parameters that a launch gives."""
    given = [_spaced(each) for each in written.split(",")]
    wanted = [_spaced(each) for each in variant.parameters]
    if given != wanted:
        raise InvalidValueError(
            f"{place}: the kernel's parameters are ({', '.join(given)}), and a launch of "
            f"{variant.name} gives ({', '.join(wanted)}); keep them as they were emitted"
        )


def _spaced(parameter: str) -> str:
    return re.sub(r"\s*\*\s*", "* ", " ".join(parameter.split())).strip()


def _require_constants(path: Path, code: str, variant: Variant) -> None:
    """Raise InvalidValueError if constants that the launch follows from have other values."""
    there = {found[1]: found for found in _CONSTANT.finditer(code)}
    for line in constant_lines(variant):
        wanted = _CONSTANT.search(line)
        found = there.get(wanted[1]) if wanted else None
        if wanted and found and " ".join(found[2].split()) != wanted[2]:
            number = code.count("\n", 0, found.start(1)) + 1
            raise InvalidValueError(
                f"{path}:{number}: {wanted[1]} is {found[2].strip()}, and a launch of "
                f"{variant.name} is for {wanted[2]}; emit the setting that you want (`softgen "
                "list` has their names) and edit that"
            )
