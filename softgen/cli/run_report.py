"""What `softgen run` says of a result: its kernel, how far it is from float64, where it is."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.cli import output
from softgen.cli.listing import spell
from softgen.problems.arch import Arch
from softgen.problems.dtypes import DType, ElementType, Float8
from softgen.problems.operands import Extent, Measure
from softgen.problems.problem import Problem
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Elements compared at a time: the float64 temporaries of a large result would not fit in memory.
CHUNK = 4 * 2**20

# Smallest normal numbers of the types of 16 and 8 bits; a smaller result has no relative precision.
_TINY: dict[ElementType, float] = {
    **{DType.FLOAT16: 2.0**-14, DType.BFLOAT16: 2.0**-126},
    **{Float8.E4M3: 2.0**-6, Float8.E5M2: 2.0**-14},
}


@dataclass(frozen=True)
class Closeness:
    """What is reported of a result.

    Attributes:
        relative: largest relative error (log_softmax: relative to 1 + |y|); inf where a result is
            NaN or infinite and should not be.
        error: largest error in `unit`, which is what the bound is for.
        bound: largest error allowed.
        unit: "relative", or "ulp" for results of 16 or 8 bits.
        wrong: what is wrong, in words; empty if every element is within the bound.
    """

    relative: float = 0.0
    error: float = 0.0
    bound: float = 0.0
    unit: str = "relative"
    wrong: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the numbers that are reported; JSON has no infinity."""
        return {
            "max_relative_error": self.relative if math.isfinite(self.relative) else None,
            "error_in_unit": self.error if math.isfinite(self.error) else None,
            "bound": self.bound,
            "unit": self.unit,
        }


def measure(
    problem: Problem,
    inputs: Sequence[NDArray[Any]],
    results: Sequence[NDArray[Any]],
    exponent_error: float,
) -> Closeness:
    """Compare results with float64's, all in storage form and in operands' order.

    `exponent_error` is that of the strategy that computed them.
    """
    from softgen.problems.numerics import check

    step = max(1, CHUNK // problem.cols)
    # Hooks may ask for the number of a row, and arrays that are broadcast do.
    if problem.hooks or any(o.extent is Extent.BROADCAST for o in problem.inputs):
        step = max(1, len(inputs[0]))
    nothing = slice(0, 0)
    worst = check(_rows(results, nothing), _inputs(problem, inputs, nothing), problem)
    first_wrong, relative = "", 0.0
    for first in range(0, len(inputs[0]), step):
        rows = slice(first, first + step)
        given = _inputs(problem, inputs, rows)
        found = check(_rows(results, rows), given, problem, exponent_error)
        worst = max(worst, found, key=lambda accuracy: accuracy.worst)
        if not found.ok and not first_wrong:
            start = f"from row {first}: " if first else ""
            first_wrong = start + found.message
        in_rows = found.worst
        if found.unit != "relative":
            in_rows = math.inf
            if found.ok:
                in_rows = _relative_error(problem, given, _rows(results, rows))
        relative = max(relative, in_rows)
    return Closeness(relative, worst.worst, worst.bound, worst.unit, first_wrong)


def _rows(arrays: Sequence[NDArray[Any]], rows: slice) -> list[NDArray[Any]]:
    return [array[rows] for array in arrays]


def _inputs(problem: Problem, inputs: Sequence[NDArray[Any]], rows: slice) -> list[NDArray[Any]]:
    """Return the inputs of some rows; numbers, and arrays that are broadcast, are for all."""
    of_rows = (Extent.ELEMENT, Extent.ROW)
    pairs = zip(problem.inputs, inputs, strict=True)
    return [array[rows] if operand.extent in of_rows else array for operand, array in pairs]


def _relative_error(
    problem: Problem, inputs: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]]
) -> float:
    """Return the largest relative error of 16 or 8-bit results whose special values are right."""
    import numpy as np

    from softgen.problems.numerics import decode, exact_results

    values = [decode(v, o.dtype) for v, o in zip(inputs, problem.inputs, strict=True)]
    largest = 0.0
    for operand, result, exact in zip(
        problem.results, results, exact_results(problem, values), strict=True
    ):
        size = np.abs(exact)
        if operand.measure is Measure.LOGARITHM:
            scale = 1 + size
        else:
            scale = np.maximum(size, _TINY.get(operand.dtype, 0.0))
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.abs(decode(result, operand.dtype) - exact) / scale
        largest = max(largest, float(np.max(error[np.isfinite(error)], initial=0.0)))
    return largest


def keep_source(variant: Variant, arch: Arch) -> str | None:
    """Write the kernel's text into the cache folder and return its path; None if it cannot be."""
    from softgen.disk import folders, owned
    from softgen.disk.files import write_whole
    from softgen.source.render import render

    source = render(variant, arch)
    path = folders.directory() / "sources" / f"{source.name}.cu"
    try:
        folders.made("sources")  # nobody else may have put a link there
        text = source.text.encode()
        if os.path.lexists(path) and not owned.is_source(path) and not _holds(path, text):
            output.warn(
                f"{path} was edited, or is not softgen's; the source is not kept. Move or delete it"
            )
            return None
        write_whole(path, owned.sealed(text), private=True)
    except OSError as error:
        output.warn(
            f"the cache folder {path.parent} cannot be written ({error.strerror or error}); the "
            "source is not kept. Set SOFTGEN_CACHE_DIR to a folder of your own"
        )
        return None
    return str(path)


def _holds(path: Path, text: bytes) -> bool:
    """Whether a file is that text, as an earlier version kept it."""
    from softgen.disk.files import read_regular

    try:
        return read_regular(path) == text
    except OSError:
        return False


def spell_error(report: dict[str, Any]) -> str:
    """Return the error and its bound in one line."""
    relative, error, bound = (
        report[key] for key in ("max_relative_error", "error_in_unit", "bound")
    )
    measured = f"{relative:.3g}" if relative is not None else "not finite"
    # As 2e-6 absolute plus 2e-6 relative: a result of log-softmax may be 0.
    of = f" to {report['relative_to']}" if report["relative_to"] else ""
    names = " and ".join(report["equal"])
    right = f"; {names} are those of float64" if names else ""
    if report["unit"] == "relative":
        return f"{measured} against float64, relative{of}; the bound is {bound:g}{right}"
    steps = f"{error:.3g}" if error is not None else "not finite"
    unit = report["unit"]
    return (
        f"{steps} {unit} against float64; the bound is {bound:g} {unit} (relative{of} {measured})"
    )


def print_report(report: dict[str, Any], widened: dict[str, str]) -> None:
    """Print a report, and each file that was written; `widened`: types that .npy does not know."""
    types = report["dtype"]
    if report["out_dtype"] != types:
        types += f" to {report['out_dtype']}"
    shape = " x ".join(map(str, report["shape"])) or "one number"
    output.result(f"{report['function']} of {types}, {shape}, on {report['device']}")
    if 0 in report["shape"]:
        output.result("no elements: nothing was launched")
        if report["source"]:
            output.result(f"source      {report['source']}")
    else:
        output.result(f"variant     {report['variant']}")
        output.result(f"parameters  {spell(report['parameters'])}")
        source = report["source"] or f"not kept; softgen show {report['variant']}"
        output.result(f"source      {source}")
        output.result(f"error       {spell_error(report)}")
    if "microseconds" in report:
        rate = report["gigabytes_per_second"]
        output.result(f"time        {report['microseconds']:.2f} us, {rate:.0f} GB/s")
    for name, path in report["files"].items():
        saved = f" ({widened[name]} saved as float32)" if name in widened else ""
        output.result(f"result      {name}={path}{saved}")
