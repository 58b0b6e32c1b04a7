"""The options that several commands share, each declared once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from softgen.cli.numbers import whole_option
from softgen.cli.shapes import parse_shape
from softgen.disk.outputs import objection
from softgen.errors import InvalidTypeError, InvalidValueError, NoDeviceError
from softgen.spec.arch import DEFAULT_ARCH, KNOWN, MOST_MULTIPROCESSORS
from softgen.spec.dtypes import DType, Float8, FloatType, likely_result, result_type
from softgen.spec.functions.base import Function
from softgen.spec.hooks.known import in_order
from softgen.spec.layouts import MOST_INNER, MOST_OUTER, ROWS, Layout, Strided, layout_from
from softgen.spec.problem import (
    DEFAULT_ROWS,
    MAX_COLS,
    MAX_ROWS,
    Problem,
    largest_power_of_two_divisor,
)
from softgen.strategies.select import require_known
from softgen.strategies.variants import Variant, is_full_name, parse_name


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what completes a word of the command line to one of `names`."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def parse_dtype(text: str | DType) -> DType:
    """Return the dtype of that name; what Typer says of an Enum has no likely name."""
    try:
        return DType.of(text)
    except InvalidTypeError:
        choices, hint = ", ".join(repr(member.value) for member in DType), DType.likely(text)
        if text in list(Float8):
            hint = " only results have it: give it as --out-dtype"
        raise typer.BadParameter(
            f"{text!r} is not one of {choices}{';' if hint else ''}{hint}"
        ) from None


def parse_out_dtype(text: str | FloatType) -> FloatType:
    """Return the dtype of results of that name."""
    try:
        return result_type(text)
    except InvalidTypeError:
        choices, hint = ", ".join(map(repr, map(str, [*DType, *Float8]))), likely_result(text)
        raise typer.BadParameter(
            f"{text!r} is not one of {choices}{';' if hint else ''}{hint}"
        ) from None


TYPES = ", ".join(member.short for member in DType)  # in the help


def dtype_option(help: str) -> Any:
    """Return --dtype."""
    return typer.Option(
        "--dtype",
        parser=parse_dtype,
        metavar="TYPE",
        help=help,
        autocompletion=completing(lambda: [member.value for member in DType]),
    )


def parse_function(text: str | Function) -> Function:
    """Return the function of that name."""
    try:
        return Function.of(text)
    except InvalidValueError as error:
        raise typer.BadParameter(str(error)) from None


def _functions() -> list[str]:
    from softgen.spec.functions import all_functions

    return [each.name for each in all_functions() if not each.twin]


def function_option(more: str = "") -> Any:
    """Return --function."""
    return typer.Option(
        "--function",
        parser=parse_function,
        metavar="NAME",
        help=f"Of each row; `softgen functions` lists them.{more}",
        autocompletion=completing(_functions),
    )


def _suites() -> Iterable[str]:
    from softgen.bench.suites import SUITES

    return SUITES


def suite_option(help: str) -> Any:
    """Return --suite."""
    return typer.Option("--suite", metavar="NAME", help=help, autocompletion=completing(_suites))


def shape_option(more: str) -> Any:
    """Return --shape."""
    return typer.Option("--shape", metavar="RxC", help=f"Rows x columns, as 4096x1024{more}")


ShapeOption = Annotated[str | None, shape_option("; or --rows and --cols.")]
FunctionOption = Annotated[Function, function_option()]
AnyFunction = Annotated[Function | None, function_option(" \\[default: softmax]")]
SuiteFunction = Annotated[
    Function | None, function_option(" \\[default: softmax; in suite logsumexp logsumexp]")
]
DTypeOption = Annotated[DType, dtype_option(f"Of the input: {TYPES}.")]
AnyDType = Annotated[DType | None, dtype_option(f"Of the input: {TYPES}. \\[default: float32]")]
OutDType = Annotated[
    FloatType | None,
    typer.Option(
        "--out-dtype",
        parser=parse_out_dtype,
        metavar="TYPE",
        help="Of the result: those of --dtype, e4m3 or e5m2. \\[default: --dtype]",
        hidden=True,
        autocompletion=completing(lambda: [*DType, *Float8]),
    ),
]
AnyCols = Annotated[
    int | None, whole_option("--cols", least=1, most=MAX_COLS, help="Elements in a row.")
]
SomeCols = Annotated[
    list[int] | None,
    whole_option(
        "--cols", least=1, most=MAX_COLS, help="Elements in a row; of a --project repeatable."
    ),
]
SomeDTypes = Annotated[
    list[DType] | None,
    dtype_option(f"Of the input: {TYPES}; of a --project repeatable. \\[default: float32]"),
]
SomeFunctions = Annotated[
    list[Function] | None, function_option(" Of a --project repeatable. \\[default: softmax]")
]


def _archs() -> Iterable[str]:
    return KNOWN


def _arch(default: str = "") -> Any:
    return typer.Option(
        "--arch",
        metavar="ARCH",
        help=f"To be legal on, as sm_90 or 90.{default}",
        autocompletion=completing(_archs),
    )


SomeArchs = Annotated[
    list[str] | None,
    _arch(
        f" Of a --project repeatable. \\[default: {DEFAULT_ARCH}; of a --project sm_80 and sm_90]"
    ),
]
ArchOption = Annotated[str, _arch()]
HereOrArch = Annotated[
    str | None, _arch(f" \\[default: that of the GPU here, else {DEFAULT_ARCH}]")
]
Rows = Annotated[
    int | None,
    whole_option(
        "--rows",
        least=0,
        most=MAX_ROWS,
        help=f"Number of rows to choose for. \\[default: {DEFAULT_ROWS}]",
        hidden=True,
    ),
]
Alignment = Annotated[
    int | None,
    whole_option(
        "--alignment",
        least=1,
        help="Rows start on a multiple of this many elements; 1 for arrays that start anywhere. "
        "\\[default: what --cols gives]",
        hidden=True,
    ),
]
BatchInvariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        help="Kernels as batch_invariant=True runs them: where rows are no whole packs of 16 bytes "
        "they are summed in one order wherever they lie (`fixed` in a name). The choice is one for "
        "any number of rows.",
        hidden=True,
    ),
]
StridedOption = Annotated[
    int,
    whole_option(
        "--strided",
        least=0,
        most=MOST_OUTER,
        help=f"For views with so many outer axes, up to {MOST_OUTER}, whose sizes and strides the "
        "kernel takes; 0 for contiguous arrays.",
        hidden=True,
    ),
]
InnerOption = Annotated[
    int,
    whole_option(
        "--inner",
        least=1,
        most=MOST_INNER,
        help="Elements behind the axis that is reduced; 1 where it is the last.",
        hidden=True,
    ),
]
ShardedOption = Annotated[
    bool,
    typer.Option(
        "--sharded",
        help="For rows that several devices hold together, --cols of each row on this one: the "
        "kernel exchanges parts of rows with the others.",
        hidden=True,
    ),
]
HooksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hook",
        metavar="NAME",
        help="What is done to elements on their way, as causal, bias or biasbf16 "
        "(docs/hooks.md); repeatable.",
    ),
]
Sms = Annotated[
    int | None,
    whole_option(
        "--sms",
        least=1,
        most=MOST_MULTIPROCESSORS,
        help="SMs to choose and to size a grid for, where the GPU is another device of --arch or a "
        "part of one (MIG, MPS): a cooperative kernel does not run on fewer. "
        "\\[default: those of a known device, 132 for sm_90]",
        hidden=True,
    ),
]
VARIANTS = (
    'a strategy, a setting such as "safe_b256", a named choice such as "oneflow", or a full name '
    "such as softmax_f32_1000_safe_b256, which says --cols, --dtype and so on too."
)


def variant_names() -> list[str]:
    """Return the names of strategies, and of choices such as oneflow."""
    from softgen.strategies.registry import all_strategies
    from softgen.strategies.select import NAMED

    return [*(kind.name for kind in all_strategies()), *NAMED]


def variant_option(only: str) -> Any:
    """Return --variant."""
    return typer.Option(
        "--variant",
        metavar="NAME",
        help=f"{only} {VARIANTS}",
        autocompletion=completing(variant_names),
    )


VariantOption = Annotated[str | None, variant_option("Only this:")]


def edited_source(hidden: bool) -> Any:
    """Return --source."""
    return typer.Option(
        "--source",
        metavar="FILE",
        help="An emitted .cu file that was edited. Its kernel's name, or --variant, says what it "
        "is to compute.",
        hidden=hidden,
    )


JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout, also on failure."),
]


def sized(shape: str | None, rows: int | None, cols: int | None) -> tuple[int | None, int | None]:
    """Return rows and columns of --shape, or of --rows and --cols."""
    if shape is None:
        return rows, cols
    if rows is not None or cols is not None:
        raise typer.BadParameter("give --shape, or --rows and --cols, not both")
    return parse_shape(shape, "--shape")


def problem_of(
    variant: str | None,
    cols: int | None,
    dtype: DType | None,
    function: Function | None,
    out_dtype: FloatType | None,
    alignment: int | None,
    batch_invariant: bool,
    strided: int,
    inner: int,
    hooks: list[str] | None = None,
    sharded: bool = False,
) -> Problem:
    """Return the problem that the options describe, or the full name of a variant among them.

    Raises InvalidValueError where an option says something else than the name.
    """
    if variant is not None and is_full_name(variant):
        named, asked = parse_name(variant), layout_from(inner, strided, sharded)
        require_agreement(
            *(named, cols, dtype, function, out_dtype, alignment),
            batch_invariant=batch_invariant,
            layout=asked if asked is not ROWS else None,
        )
        own = named.problem.hooks
        if hooks and in_order(hooks) != own:
            said = f"has {', '.join(map(str, own))}" if own else "has no hooks"
            raise InvalidValueError(
                f"{named.name} {said}, and --hook {' --hook '.join(hooks)} was given; leave "
                f"it out, or give the setting alone: --variant {named.strategy.label}"
            )
        return named.problem
    if cols is None:
        if variant is not None:
            require_known(variant)
        raise typer.BadParameter("give --cols, or the full name of a variant as --variant")
    layout = layout_from(inner, strided, sharded)
    require_possible(alignment, cols, layout)
    return Problem.of(
        function or "softmax",
        dtype or DType.FLOAT32,
        cols,
        out_dtype=out_dtype,
        alignment=alignment,
        fixed_order=batch_invariant,
        hooks=hooks or (),
        layout=layout,
    )


def require_possible(alignment: int | None, cols: int, layout: Layout = ROWS) -> None:
    """Raise InvalidValueError if no two rows in a row can start on multiples of `alignment`."""
    pitch = layout.pitch(cols)
    most = largest_power_of_two_divisor(pitch)
    if alignment is not None and alignment > most:
        what = "rows of" if layout.step == 1 else "columns of rows side by side, of"
        raise InvalidValueError(
            f"--alignment {alignment}: {what} {pitch} elements start on multiples of {most} at "
            f"most; give --alignment {most} or less, or leave it out"
        )


def require_agreement(
    named: Variant,
    cols: int | None,
    dtype: DType | None,
    function: Function | None,
    out_dtype: FloatType | None,
    alignment: int | None = None,
    batch_invariant: bool = False,
    layout: Layout | None = None,
) -> None:
    """Raise InvalidValueError if an option that was given differs from what a name says."""
    own = named.problem
    asked = Problem.of(
        *(own.function, own.dtype, own.cols),
        out_dtype=own.out_dtype,
        alignment=own.alignment if alignment is None else alignment,
        fixed_order=batch_invariant or own.fixed_order,
        layout=own.layout,
    )
    for option, value, said in (
        ("--cols", cols, own.cols),
        ("--dtype", dtype and dtype.value, own.dtype.value),
        ("--function", function and function.name, own.function.name),
        ("--out-dtype", out_dtype and out_dtype.value, own.out_dtype.value),
        ("--alignment", asked.alignment, own.alignment),
        ("--strided", layout and outer_of(layout), outer_of(own.layout)),
        ("--inner", layout and layout.step, own.layout.step),
    ):
        if value is not None and value != said:
            raise InvalidValueError(
                f"{named.name} is for {option} {said}, and {option} {value} was given; leave "
                f"{option} out, or give the setting alone: --variant {named.strategy.label}"
            )
    if layout is not None and layout.sharded and not own.sharded:
        raise InvalidValueError(
            f"{named.name} is for rows on one device, and --sharded was given; leave it out, or "
            f"choose a name with `sharded` in it: `softgen list --cols {own.cols} --dtype "
            f"{own.dtype.value} --sharded`"
        )
    if asked.fixed_order != own.fixed_order:
        raise InvalidValueError(
            f"{named.name} sums in an order that depends on where a row lies, and "
            "--batch-invariant was given; leave it out, or choose a name with `fixed` in it: "
            f"`softgen list --cols {own.cols} --dtype {own.dtype.value} --batch-invariant`"
        )


def outer_of(layout: Layout) -> int:
    """Return the value of --strided."""
    return layout.outer if isinstance(layout, Strided) else 0


class Device(str, Enum):
    """Where to compute."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


def device_option(help: str) -> Any:
    """Return --device."""
    return typer.Option("--device", metavar="NAME", help=help)


def require_new_file(option: str, path: Path, ending: str) -> None:
    """Raise InvalidValueError, before anything is computed, if `path` cannot be a new file."""
    if reason := objection(path):
        raise InvalidValueError(f"{option}: {path} {reason}; give the path of a {ending} file")


def require_gpu() -> None:
    """Raise NoDeviceError, with the reason, unless a GPU can be used."""
    from softgen.devices.gpu import device

    reason = device.unavailable_reason()
    if reason is not None:
        raise NoDeviceError(
            f"no GPU can be used: {reason}. `softgen doctor` shows what is missing; "
            "`softgen run` and `softgen verify` take --device cpu"
        )


def resolve_device(device: Device) -> Device:
    """Return CUDA or CPU for a choice of device; NoDeviceError if a GPU was asked for in vain."""
    if device is Device.CUDA:
        require_gpu()
        return device
    if device is Device.AUTO:
        from softgen.devices.gpu.device import available

        return Device.CUDA if available() else Device.CPU
    return device
