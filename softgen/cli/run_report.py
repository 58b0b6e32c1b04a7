"""What `softgen run` says of a result: its kernel, how exact it is, and where it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.cli import output
from softgen.cli.listing import spell
from softgen.cli.run_compute import Computed
from softgen.spec.arch import Arch
from softgen.spec.problem import Problem
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from softgen.source.render import Source


def describe(
    made: Computed, problem: Problem, rows: int, text: Source | None = None
) -> dict[str, Any]:
    """Return what is reported of the kernel; its source is kept, but for an edited one."""
    report: dict[str, Any] = {
        "variant": made.variant.name,
        "strategy": made.variant.strategy.name,
        "parameters": made.variant.strategy.knobs,
        "device": made.device,
        "source": None if text else keep_source(made.variant, made.arch),
    }
    if made.microseconds is not None:
        time = made.microseconds
        rate = rows * problem.bytes_per_row / time / 1e3 if time else 0.0
        report |= {"microseconds": time, "gigabytes_per_second": rate}
    return report


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
    if report["unit"] == "relative":
        return f"{measured} against float64, relative{of}; the bound is {bound:g}"
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
        if path == report.get("output"):
            output.result(f"output      {path}{saved}")
        else:
            output.result(f"result      {name}={path}{saved}")
