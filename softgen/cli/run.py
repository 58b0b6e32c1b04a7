"""`softgen run`: a function of real input, on a GPU or the CPU emulator, and how exact it is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softgen.cli import options, output
from softgen.cli.group import WRONG_RESULT, failure
from softgen.cli.numbers import whole_option
from softgen.cli.problem_options import ProblemOptions
from softgen.cli.run_report import Closeness, keep_source, measure, print_report
from softgen.errors import InvalidValueError
from softgen.plugins import AUTHORS
from softgen.problems.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.problems.dtypes import DType, ElementType, Float8, FloatType, Integer
from softgen.problems.functions.base import Function
from softgen.problems.layouts import AnyWidth, layout_behind
from softgen.problems.operands import Extent, Measure
from softgen.problems.problem import Problem
from softgen.strategies.select import select
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from softgen.cli.run_input import Files
    from softgen.source.render import Source


# What the emulator computes on one core, and what compiling a kernel takes on it, about.
EMULATED_PER_SECOND = 2**20
COMPILE_SECONDS = 1.0
# Beyond this it would seem to hang, whatever is shown.
MAX_EMULATED = 64 * 2**20
TIMING_SECONDS = 0.1
WORTH_SAYING = 3.0  # seconds of silence that a log, which shows no spinner, gets a line for


@dataclass(frozen=True)
class RunOptions(
    ProblemOptions, without=("alignment", "arch", "sms", "batch_invariant", "strided", "sharded")
):
    """Those of `softgen run`: sizes are of random input, and hooks have values."""

    shape: Annotated[
        str | None, options.shape_option(", of the random input. \\[default: 64x1000]")
    ] = None
    rows: Annotated[int | None, options.rows_option("Rows of the random input.")] = None
    cols: Annotated[
        int | None, options.cols_option("Columns of the random input.", least=0, hidden=True)
    ] = None
    dtype: Annotated[
        DType | None,
        options.dtype_option(
            f"Type of the input: {options.TYPES}. \\[default: the file's, else float32]"
        ),
    ] = None
    hooks: Annotated[
        list[str] | None,
        typer.Option(
            "--hook",
            metavar="NAME[=VALUE]",
            help="Argument of a call, for example scale=0.5, mask=m.npy or causal "
            "(docs/hooks.md); repeatable.",
        ),
    ] = None


def run(
    given: RunOptions,
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="FILE", help="A .npy file of floats."),
    ] = None,
    axis: Annotated[
        int | None,
        typer.Option(
            "--axis", metavar="N", help="Axis of --input that is reduced. \\[default: -1, the last]"
        ),
    ] = None,
    operands: Annotated[
        list[str] | None,
        typer.Option(
            "--operand",
            metavar="NAME=FILE",
            help="Another input of the function: a .npy file or a number, as in maxima=m.npy.",
            hidden=True,
        ),
    ] = None,
    target: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write the result to this .npy file; bfloat16 and 8-bit results as float32.",
        ),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            "--result",
            metavar="NAME=FILE",
            help="Write another result to a .npy file, for example lse=lse.npy.",
            hidden=True,
        ),
    ] = None,
    device: Annotated[
        options.Device, options.device_option("auto, cuda or cpu; auto uses a GPU if there is one.")
    ] = options.Device.AUTO,
    edited: Annotated[Path | None, options.edited_source(hidden=True)] = None,
    seed: Annotated[
        int, whole_option("--seed", least=0, help="Seed of the random input.", hidden=True)
    ] = 0,
    json: options.JsonOption = False,
) -> None:
    """Compute softmax, or another function, of a file or of random numbers; compare with float64.

    On a GPU it runs the autotuned call and times it. Without one it runs the text of the best
    guess's kernel on the CPU emulator.
    """
    from softgen.cli.run_input import Files, Request, elements_behind

    given = given.sized()
    if axis is not None and (source is None or given.inner is not None):
        raise typer.BadParameter("--axis needs --input, and cannot be given with --inner")
    text = None
    if edited is not None:
        from softgen.source.edited import read_source

        text = read_source(edited, given.variant)
        given = replace(given, variant=text.variant.name)
    named = given.named
    if named is not None:
        given = _as_named(given, named, source is None)
    function = given.function or Function.of("softmax")
    files = Files.of(function, operands or [], target, results or [])
    where = options.resolve_device(device)
    limit = MAX_EMULATED if where is options.Device.CPU else None
    inner = given.inner or 1
    try:
        request = Request(source, given.rows, given.cols, given.dtype, seed, inner)
        values, x_type = request.load(limit)
        if axis is not None:
            inner = elements_behind(values.shape, axis)
            if named is not None and inner != named.problem.layout.step:
                raise InvalidValueError(
                    f"{named.name} is for --inner {named.problem.layout.step}, and axis {axis} of "
                    f"{values.shape} has {inner} elements behind it"
                )
        unasked = device is options.Device.AUTO
        report = _run(
            *(where, function, values, x_type, given.out_dtype),
            *(named or given.variant, files, source is None, given.hooks or [], inner),
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


def _as_named(given: RunOptions, named: Variant, random: bool) -> RunOptions:
    """Return the options as if each had been given that a full name says.

    The columns are those of the name where the input is random, else the file's.
    """
    problem = named.problem
    if problem.sharded:
        raise InvalidValueError(
            f"{named.name} is for rows that several devices hold together, and this is one; "
            f"`softgen verify --device cpu --variant {named.name}` runs it on three"
        )
    if isinstance(problem.layout, AnyWidth):
        raise InvalidValueError(
            f"{named.name} takes rows of any width, for which C++ launches it; `softgen "
            "verify` with --variant or --source runs it"
        )
    given.require_agreement(named)
    return replace(
        given,
        inner=problem.layout.step,
        dtype=problem.dtype,
        function=problem.function,
        out_dtype=problem.out_dtype,
        cols=problem.cols if random else None,
    )


@contextlib.contextmanager
def _emulating(elements: int, unasked: bool, json: bool) -> Iterator[None]:
    """Say on stderr that the emulator computes, and show it unless a program reads the output."""
    reason = "no GPU can be used: " if unasked else ""
    output.note(f"{reason}the emitted kernel runs on the CPU emulator")
    with _progress(elements, json):
        yield


def _progress(elements: int, json: bool) -> AbstractContextManager[object]:
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
    emulating: AbstractContextManager[object],
    text: Source | None,
    axis: int | None,
) -> dict[str, Any]:
    """Compute, compare and save; return what is reported."""
    from softgen.cli.run_input import axis_before, load_hooks, save_npy
    from softgen.problems import numerics
    from softgen.source.render import raise_added_fault

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
    integers = [o.name for o in operands if isinstance(o.dtype, Integer)]
    report["equal"] = [] if accuracy.wrong else integers
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


@dataclass(frozen=True)
class Computed:
    """Results and where they came from.

    Attributes:
        results: in storage form and operands' order.
        variant: what the tuner, or the caller, chose.
        arch: what it was chosen for: the GPU, or the default one on the CPU.
        device: the name of what computed.
        microseconds: median device time of a launch, input not in L2; nothing is timed on the CPU.
    """

    results: tuple[NDArray[Any], ...]
    variant: Variant
    arch: Arch
    device: str
    microseconds: float | None = None


def compute(
    where: options.Device,
    problem: Problem,
    inputs: Sequence[NDArray[Any]],
    choice: Variant | str | None,
    emulating: AbstractContextManager[object],
    text: Source | None = None,
) -> Computed:
    """Compute inputs in storage form on the GPU, or with the same text on the emulator.

    `emulating` is entered while the emulator is at work, and not before all is known to be legal.
    `text` is one that was edited, of the variant `choice`.
    """
    if where is options.Device.CUDA:
        return _on_gpu(problem, inputs, choice, text)

    from softgen.devices import emulator
    from softgen.source.render import render
    from softgen.tuning.policy import debugging, tell

    debug, start = debugging(), time.perf_counter()
    arch = arch_named(DEFAULT_ARCH)
    x, *others = inputs
    variant = select(problem, x.shape[0], arch, choice)
    source = text or render(variant)
    if debug:
        origin = "best guess" if choice is None else "asked for"
        tell(variant, x.shape[0], "the CPU emulator", origin, start)
    with emulating:
        results = emulator.run_each(source, x, others=tuple(others))
    return Computed(results, variant, arch, "cpu emulator")


def _on_gpu(
    problem: Problem,
    inputs: Sequence[NDArray[Any]],
    choice: Variant | str | None,
    text: Source | None,
) -> Computed:
    """Compute with the autotuned call on the current GPU, and time it."""
    from softgen.call.plan import plan
    from softgen.devices.gpu.compile import compile_source
    from softgen.devices.gpu.device import current_arch
    from softgen.tuning.entry import Timing
    from softgen.tuning.measure import Buffers, Stopwatch
    from softgen.verify.gpu import run_on_storage

    arch = current_arch()
    rows = inputs[0].shape[0]
    kernel = plan(
        problem.function,
        problem.dtype,
        problem.cols,
        rows=max(1, rows),
        out_dtype=problem.out_dtype,
        alignment=problem.alignment,
        inner=problem.layout.step,
        variant=choice,
        hooks=problem.hooks,
        # Otherwise SOFTGEN_BATCH_INVARIANT says.
        batch_invariant=True if problem.fixed_order else None,
    ).loaded
    if text is not None:
        kernel = compile_source(text)
    results = run_on_storage(kernel, inputs)
    if not rows:
        return Computed(results, kernel.variant, arch, arch.device, 0.0)
    buffers = Buffers.allocate(problem, rows)
    stopwatch = Stopwatch(buffers)
    stopwatch.warm_up(kernel)
    timing = Timing.of(kernel.variant.name, stopwatch.samples(kernel, TIMING_SECONDS))
    # Where memory is short fewer rows were timed; time is proportional to rows when there are many.
    taken = timing.microseconds * rows / buffers.rows
    return Computed(results, kernel.variant, arch, arch.device, taken)


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


def _of_nothing(
    function: Function, values: NDArray[Any], of_rows: tuple[int, ...]
) -> list[NDArray[Any]]:
    """Return the results for rows without elements."""
    import numpy as np

    from softgen.problems.numerics import of_empty_row

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
