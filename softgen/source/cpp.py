"""How C++ is spelled, in lines broken where clang-format breaks them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from softgen.errors import SoftgenError
from softgen.problems.dtypes import DType, Float8
from softgen.problems.layouts import AnyWidth
from softgen.problems.problem import Problem
from softgen.strategies.variants import Variant

LINE = 100  # columns of an emitted line at most, as in .clang-format


def spell(value: Any) -> Any:
    """Spell a value as C++ would; refuse what has no spelling (None, inf, nan)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise SoftgenError(f"a template tried to print {value!r}")
    if isinstance(value, float):
        return f"{value!r}f"
    return value


def nested(text: str, deeper: bool) -> str:
    """Return lines of C++ as they stand in a block, if they are `deeper`: two columns more."""
    if not deeper:
        return text
    lines = text.splitlines(keepends=True)
    return "".join(line if line.startswith(("#", "\n")) else f"  {line}" for line in lines)


def constant_lines(variant: Variant) -> list[str]:
    """Return one C++ constant a line for the width and each knob that has one, comments aligned."""
    problem = variant.problem
    any_width = isinstance(problem.layout, AnyWidth)
    rows = [] if any_width else [("Col kCols", problem.cols, "elements in a row")]
    if problem.layout.step > 1:
        rows.append(("long long kInner", problem.layout.step, "from one of them to the next"))
    for field in variant.strategy.fields():
        value = getattr(variant.strategy, field.name)
        named = field.metadata["constant"] and field.name not in variant.strategy.unnamed
        if not named or value == field.default:
            continue
        kind = "bool" if isinstance(value, bool) else "int"
        constant = "k" + "".join(word.capitalize() for word in field.name.split("_"))
        rows.append((f"{kind} {constant}", value, field.metadata["meaning"]))
    declared = [f"constexpr {name} = {spell(value)};" for name, value, _ in rows]
    said = [row[2] for row in rows]
    if any_width:
        declared.insert(0, "__shared__ Col kCols;")
        said.insert(0, "elements in a row: the kernel's first thread sets it")
    width = max(map(len, declared))
    return [f"{code:<{width}}  // {each}" for code, each in zip(declared, said, strict=True)]


def signature(variant: Variant, symbol: str) -> str:
    """Return the kernel's name and parameters, broken where clang-format breaks a long line."""
    opening, parameters = f"    {symbol}(", variant.parameters
    behind = _wrapped(opening, " " * len(opening), parameters, ") {")
    below = [opening, *_wrapped(" " * 8, " " * 8, parameters, ") {")]
    # clang-format breaks before the first parameter where that takes three lines less.
    fits = max(map(len, behind)) <= LINE and len(behind) < len(below) + 3
    return "\n".join(behind if fits else below)


def declaration(opening: str, parameters: list[str]) -> str:
    """Return a function's head, broken where clang-format breaks it; a parameter "" is left out.

    For functions that have other parameters in other files.
    """
    some = [parameter for parameter in parameters if parameter]
    return "\n".join(_wrapped(f"{opening}(", " " * (len(opening) + 1), some, ") {"))


def call(
    name: str, arguments: Sequence[str], indent: int, before: str = "const Row state = "
) -> str:
    """Return a statement's call without its `;`, broken where clang-format breaks it.

    The statement is indented by so many columns, which the first line does not have.
    """
    margin = " " * indent
    opening = f"{margin}{before}{name}("
    lines = _wrapped(opening, " " * len(opening), arguments, ");")
    return "\n".join(lines).removeprefix(margin).removesuffix(";")


def _wrapped(first: str, indent: str, words: Sequence[str], end: str) -> list[str]:
    """Return words with commas between them, and `end`, in lines as full as can be."""
    lines = [first + words[0]]
    for number, word in enumerate(words[1:], 2):
        behind = "," if number < len(words) else end
        if len(f"{lines[-1]}, {word}{behind}") <= LINE:
            lines[-1] += f", {word}"
        else:
            lines[-1] += ","
            lines.append(indent + word)
    lines[-1] += end
    return lines


def broken(indent: str, words: Sequence[str]) -> str:
    """Return words in lines as full as can be, the first of which has its indentation already."""
    lines = [indent]
    for word in words:
        if len(f"{lines[-1]}{word},") > LINE:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += f"{word}, "
    return "\n".join(lines)[len(indent) : -2]


def widened(problem: Problem, element: str) -> str:
    """Return the number that an element of x is, in the type of all arithmetic."""
    conversions = {DType.FLOAT16: "__half2float", DType.BFLOAT16: "__bfloat162float"}
    if problem.dtype in conversions:
        return f"{conversions[problem.dtype]}({element})"
    return element


def narrowed(problem: Problem, number: str) -> str:
    """Return a result as an element of its type, to which it is rounded once."""
    double = problem.compute_dtype is DType.FLOAT64
    conversions = {
        DType.FLOAT16: "__double2half" if double else "__float2half_rn",
        DType.BFLOAT16: "__double2bfloat16" if double else "__float2bfloat16_rn",
    }
    if isinstance(problem.out_dtype, DType) and problem.out_dtype in conversions:
        return f"{conversions[problem.out_dtype]}({number})"
    if isinstance(problem.out_dtype, Float8):
        return f"to_float8({number})"
    return number if problem.out_dtype is problem.compute_dtype else f"static_cast<Y>({number})"


def fill(problem: Problem) -> str:
    """Return what stands for an element that is not there."""
    if problem.function.part.fill == 0:
        return "X(0)"
    bits = {
        DType.FLOAT16: "__ushort_as_half(0xfc00)",
        DType.BFLOAT16: "__ushort_as_bfloat16(0xff80)",
    }
    return bits.get(problem.dtype, "negative_infinity()")


def fills(problem: Problem, count: int) -> str:
    """Return a pack of so many of `fill`, as the words of an access."""
    if problem.function.part.fill == 0:
        return "{}"
    half = {DType.FLOAT16: "fc00", DType.BFLOAT16: "ff80"}.get(problem.dtype)
    if half is not None:
        return (
            f"{{0x{half}}}" if count == 1 else f"{{{', '.join(['0x' + half * 2] * (count // 2))}}}"
        )
    words = ["0xff800000"] if problem.dtype is DType.FLOAT32 else ["0", "0xfff00000"]
    return f"{{{', '.join(words * count)}}}"
