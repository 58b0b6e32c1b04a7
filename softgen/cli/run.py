"""`softgen run`: a function of real input, on a GPU or the CPU emulator, and how exact it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softgen.cli import options, output
from softgen.cli.group import WRONG_RESULT, failure
from softgen.cli.numbers import whole_option
from softgen.cli.run_compute import compute
from softgen.cli.run_input import Files, Request, axis_before, elements_behind, save_npy
from softgen.cli.run_report import describe, print_report
from softgen.errors import InvalidValueError
from softgen.plugins import AUTHORS
from softgen.spec.dtypes import DType, ElementType, Float8, FloatType
from softgen.spec.functions.base import Function
from softgen.spec.layouts import MOST_INNER, AnyWidth, layout_behind
from softgen.spec.operands import Extent, Measure
from softgen.spec.problem import MAX_COLS, MAX_ROWS, Problem
from softgen.strategies.variants import Variant, is_full_name, parse_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softgen.source.render import Source


# What the emulator computes on one core, and what compiling a kernel takes on it, about.
EMULATED_PER_SECOND = 2**20
COMPILE_SECONDS = 1.0
# Beyond this it would seem to hang, whatever is shown.
MAX_EMULATED = 64 * 2**20
WORTH_SAYING = 3.0  # seconds of silence that a log, which shows no spinner, gets a line for


def run(
    shape: Annotated[
        str | None, options.shape_option(", of random input. \\[default: 64x1000]")
    ] = None,
    rows: Annotated[
        int | None,
        whole_option("--rows", least=0, most=MAX_ROWS, help="Rows of random input.", hidden=True),
    ] = None,
    cols: Annotated[
        int | None,
        whole_option(
            "--cols", least=0, most=MAX_COLS, help="Columns of random input.", hidden=True
        ),
    ] = None,
    dtype: Annotated[
        DType | None,
        options.dtype_option(f"{options.TYPES}. \\[default: the file's, else float32]"),
    ] = None,
    out_dtype: options.OutDType = None,
    function: options.AnyFunction = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE", help="A .npy file of floats, reduced along --axis."
        ),
    ] = None,
    axis: Annotated[
        int | None,
        typer.Option("--axis", metavar="N", help="Of --input. \\[default: -1, the last]"),
    ] = None,
    operands: Annotated[
        list[str] | None,
        typer.Option(
            "--operand",
            metavar="NAME=FILE",
            help="A .npy file for another input of the function, as in maxima=m.npy.",
            hidden=True,
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Where to write the result as .npy; bfloat16 and 8 bits as float32.",
        ),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            "--result",
            metavar="NAME=FILE",
            help="As --output, for another result, as in lse=lse.npy.",
            hidden=True,
        ),
    ] = None,
    device: Annotated[
        options.Device, options.device_option("auto, cuda or cpu; auto takes a GPU if it can.")
    ] = options.Device.AUTO,
    hooks: Annotated[
        list[str] | None,
        typer.Option(
            "--hook",
            metavar="NAME[=VALUE]",
            help="An argument of a call, as scale=0.5, mask=m.npy or causal (docs/hooks.md); "
            "repeatable.",
        ),
    ] = None,
    inner: Annotated[
        int | None,
        whole_option(
            "--inner",
            least=1,
            most=MOST_INNER,
            help="Elements behind the axis that is reduced; 1 where it is the last. \\[default: 1]",
            hidden=True,
        ),
    ] = None,
    variant: options.VariantOption = None,
    edited: Annotated[Path | None, options.edited_source(hidden=True)] = None,
    seed: Annotated[
        int, whole_option("--seed", least=0, help="Of the random input.", hidden=True)
    ] = 0,
    json: options.JsonOption = False,
) -> None:
    """Compute softmax, or another function, of a file or of random numbers; compare with float64.

    On a GPU it runs the autotuned call and times it. Without one it runs the text of the best
    guess's kernel on the CPU emulator.
    """
    rows, cols = options.sized(shape, rows, cols)
    if axis is not None and (source is None or inner is not None):
        raise typer.BadParameter("--axis is of --input, and goes without --inner")
    text = None
    if edited is not None:
        from softgen.source.edited import read_source

        text = read_source(edited, variant)
        variant = text.variant.name
    named = parse_name(variant) if variant is not None and is_full_name(variant) else None
    if named is not None:
        if named.problem.sharded:
            raise InvalidValueError(
                f"{named.name} is for rows that several devices hold together, and this is one; "
                f"`softgen verify --device cpu --variant {named.name}` runs it on three"
            )
        if isinstance(named.problem.layout, AnyWidth):
            raise InvalidValueError(
                f"{named.name} takes rows of any width, for which C++ launches it; `softgen "
                "verify` with --variant or --source runs it"
            )
        layout = None if inner is None else layout_behind(inner)
        options.require_agreement(named, cols, dtype, function, out_dtype, layout=layout)
        inner = named.problem.layout.step
        dtype, function = named.problem.dtype, named.problem.function
        out_dtype = named.problem.out_dtype
        cols = named.problem.cols if source is None else None
    function = function or Function.of("softmax")
    files = Files.of(function, operands or [], target, results or [])
    where = options.resolve_device(device)
    limit = MAX_EMULATED if where is options.Device.CPU else None
    try:
        values, x_type = Request(source, rows, cols, dtype, seed, inner or 1).load(limit)
        if axis is not None:
            inner = elements_behind(values.shape, axis)
            if named is not None and inner != named.problem.layout.step:
                raise InvalidValueError(
                    f"{named.name} is for --inner {named.problem.layout.step}, and axis {axis} of "
                    f"{values.shape} has {inner} elements behind it"
                )
        unasked = device is options.Device.AUTO
        report = _run(
            *(where, function, values, x_type, out_dtype),
            *(named or variant, files, source is None, hooks or [], inner or 1),
            *(_emulating(values.size, unasked, json), text),
            axis=axis,
        )
    except MemoryError as error:  # CuPy's is one too
        raise InvalidValueError(
            f"the memory of this machine or of its GPU is too small for that input ({error}); use "
            "fewer rows or columns"
        ) from error
    if edited is not None:
        report["source"] = str(edited)
    wrong, widened = report.pop("wrong"), report.pop("widened")
    if json:
        output.document(report | (failure(wrong, "VerificationError") if wrong else {}))
    else:
        print_report(report, widened)
        if wrong:
            output.fail(wrong)
    if wrong:
        raise typer.Exit(WRONG_RESULT)


@contextlib.contextmanager
def _emulating(elements: int, unasked: bool, json: bool) -> Iterator[None]:
    """Say on stderr that the emulator computes, and show it unless a program reads the output."""
    reason = "no GPU can be used: " if unasked else ""
    output.note(f"{reason}the emitted kernel runs on the CPU emulator")
    with _progress(elements, json):
        yield


def _progress(elements: int, json: bool) -> contextlib.AbstractContextManager[object]:
    if json or not elements:
        return contextlib.nullcontext()
    seconds = COMPILE_SECONDS + elements / EMULATED_PER_SECOND
    about = f"compiling and emulating {elements} elements, about {seconds:.0f} s"
    return output.working(about, quiet=seconds < WORTH_SAYING)


def _run(
    where: options.Device,
    function: Function,
    values: NDArray[Any],
    x_type: DType,
    out_dtype: FloatType | None,
    choice: Variant | str | None,
    files: Files,
    random: bool,
    hooks: list[str],
    inner: int,
    emulating: contextlib.AbstractContextManager[object],
    text: Source | None,
    axis: int | None,
) -> dict[str, Any]:
    """Compute, compare and save; return what is reported."""
    from softgen.cli.run_accuracy import Closeness, measure
    from softgen.cli.run_hooks import load as load_hooks
    from softgen.source.render import raise_added_fault
    from softgen.spec import numerics

    y_type = out_dtype or x_type
    axis = axis_before(values.shape, inner) if axis is None else axis % max(1, values.ndim)
    cols = values.shape[axis] if values.ndim else 1  # a 0-d array is one row of one element
    layout = layout_behind(inner)
    of_rows = values.shape[:axis] + values.shape[axis + 1 :]
    report: dict[str, Any] = {"shape": list(values.shape), "function": function.name}
    report |= {"dtype": x_type.value, "out_dtype": y_type.value}
    exponent_error = 0.0
    names, taken = load_hooks(function, values, axis, x_type, y_type, hooks)
    if cols == 0:
        arrays, accuracy = _of_nothing(function, values, of_rows), Closeness()
        report |= {"variant": None, "strategy": None, "parameters": {}}
        report |= {"device": where.value, "source": None}
    else:
        problem = Problem.of(function, x_type, cols, out_dtype=y_type, hooks=names, layout=layout)
        if isinstance(choice, Variant) and choice.problem.cols == cols:
            if choice.problem.hooks != problem.hooks:
                wanted = ", ".join(map(str, choice.problem.hooks)) or "none"
                raise InvalidValueError(
                    f"{choice.name} has the hooks {wanted}, and those of --hook are "
                    f"{', '.join(names) or 'none'}; give its hooks, or the setting alone: "
                    f"--variant {choice.strategy.label}"
                )
            problem = choice.problem  # with its alignment, and its order of summation
        count = values.size // cols
        x = numerics.encode(layout.from_memory(values, count, cols), x_type)
        inputs = (x, *files.load_inputs(problem.bare, x, random), *taken)
        made = compute(where, problem, inputs, choice, emulating, text)
        exponent_error = made.variant.strategy.exponent_error(problem)
        try:
            accuracy = measure(problem, inputs, made.results, exponent_error)
        except AUTHORS as error:
            raise_added_fault(made.variant, error)
            raise
        arrays = [
            _for_people(
                numerics.in_memory(numerics.decode(each, operand.dtype), operand, problem),
                operand.dtype,
            ).reshape(
                values.shape if operand.extent is Extent.ELEMENT else (*of_rows, *operand.behind)
            )
            for each, operand in zip(made.results, problem.results, strict=True)
        ]
        report |= describe(made, problem, x.shape[0], text)
    report |= accuracy.to_json()
    operands = Problem.of(
        function, x_type, max(function.least_cols, cols), out_dtype=y_type
    ).results
    first = operands[0]
    log_form = first.measure is Measure.LOGARITHM
    report["relative_to"] = f"1 + |{first.name}|" if log_form else ""
    if exponent_error and y_type is DType.FLOAT32 and not log_form:
        step = exponent_error / accuracy.bound
        report["relative_to"] = f"{first.name} (1 + {step:g} |x - max|)"
    report["files"] = {}
    for operand, path, array in zip(operands, files.results, arrays, strict=True):
        if path is not None:
            save_npy(path, array)
            report["files"][operand.name] = str(path)
    if files.results[0] is not None:
        report["output"] = str(files.results[0])
    report["widened"] = {o.name: o.dtype.value for o in operands if _widens(o.dtype)}
    report["wrong"] = ""
    if accuracy.wrong:
        report["wrong"] = f"{report['variant']} computes a wrong result: {accuracy.wrong}"
    return report


def _of_nothing(
    function: Function, values: NDArray[Any], of_rows: tuple[int, ...]
) -> list[NDArray[Any]]:
    """Return the results for rows without elements."""
    import numpy as np

    from softgen.spec.numerics import of_empty_row

    problem = Problem.of(function, "float32", function.least_cols)
    return [
        np.zeros(values.shape, np.float32)
        if operand.extent is Extent.ELEMENT
        else np.full((*of_rows, *operand.behind), value, np.float32)
        for operand, value in zip(problem.results, of_empty_row(problem), strict=True)
    ]


def _widens(dtype: ElementType) -> bool:
    """Whether .npy does not know a type: bfloat16, and those of 8 bits."""
    return dtype is DType.BFLOAT16 or isinstance(dtype, Float8)


def _for_people(values: NDArray[Any], dtype: ElementType) -> NDArray[Any]:
    """Return a result in a dtype that .npy knows: float32 for others, exactly."""
    return values.astype("float32" if _widens(dtype) else dtype.value)
