"""The options that several commands share, each declared once.

But for --hook: `softgen run` takes values with it, and declares its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from softgen.cli.numbers import whole_option
from softgen.disk.outputs import objection
from softgen.errors import InvalidTypeError, InvalidValueError, NoDeviceError
from softgen.problems.arch import DEFAULT_ARCH, KNOWN, MOST_MULTIPROCESSORS
from softgen.problems.dtypes import DType, Float8, FloatType, likely_result, result_type
from softgen.problems.functions.base import Function
from softgen.problems.layouts import MOST_INNER, MOST_OUTER
from softgen.problems.problem import (
    DEFAULT_ROWS,
    MAX_COLS,
    MAX_ROWS,
)


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
    from softgen.problems.functions import all_functions

    return [each.name for each in all_functions() if not each.twin]


def function_option(more: str = "") -> Any:
    """Return --function."""
    return typer.Option(
        "--function",
        parser=parse_function,
        metavar="NAME",
        help=f"Function of a row; `softgen functions` lists them.{more}",
        autocompletion=completing(_functions),
    )


def _suites() -> Iterable[str]:
    from softgen.bench.suites import SUITES

    return SUITES


def rows_option(help: str) -> Any:
    """Return --rows."""
    return whole_option("--rows", least=0, most=MAX_ROWS, help=help, hidden=True)


def cols_option(help: str, *, least: int = 1, hidden: bool = False) -> Any:
    """Return --cols."""
    return whole_option("--cols", least=least, most=MAX_COLS, help=help, hidden=hidden)


def suite_option(help: str) -> Any:
    """Return --suite."""
    return typer.Option("--suite", metavar="NAME", help=help, autocompletion=completing(_suites))


def shape_option(more: str) -> Any:
    """Return --shape."""
    return typer.Option(
        "--shape", metavar="RxC", help=f"Rows x columns, for example 4096x1024{more}"
    )


ShapeOption = Annotated[str | None, shape_option("; or give --rows and --cols.")]
FunctionOption = Annotated[Function, function_option()]
AnyFunction = Annotated[Function | None, function_option(" \\[default: softmax]")]
SuiteFunction = Annotated[
    Function | None, function_option(" \\[default: softmax; in suite logsumexp logsumexp]")
]
DTypeOption = Annotated[DType, dtype_option(f"Type of the input: {TYPES}.")]
AnyDType = Annotated[
    DType | None, dtype_option(f"Type of the input: {TYPES}. \\[default: float32]")
]
OutDType = Annotated[
    FloatType | None,
    typer.Option(
        "--out-dtype",
        parser=parse_out_dtype,
        metavar="TYPE",
        help="Type of the result: as for --dtype, or e4m3 or e5m2. \\[default: --dtype]",
        hidden=True,
        autocompletion=completing(lambda: [*DType, *Float8]),
    ),
]
AnyCols = Annotated[int | None, cols_option("Elements in a row.")]
SomeCols = Annotated[list[int] | None, cols_option("Elements in a row; repeatable with --project.")]
SomeDTypes = Annotated[
    list[DType] | None,
    dtype_option(f"Type of the input: {TYPES}; repeatable with --project. \\[default: float32]"),
]
SomeFunctions = Annotated[
    list[Function] | None, function_option(" Repeatable with --project. \\[default: softmax]")
]


def _archs() -> Iterable[str]:
    return KNOWN


def _arch(default: str = "") -> Any:
    return typer.Option(
        "--arch",
        metavar="ARCH",
        help=f"GPU architecture to choose for, for example sm_90 or 90.{default}",
        autocompletion=completing(_archs),
    )


SomeArchs = Annotated[
    list[str] | None,
    _arch(
        f" Repeatable with --project. \\[default: {DEFAULT_ARCH}; with --project sm_80 and sm_90]"
    ),
]
ArchOption = Annotated[str | None, _arch()]
HereOrArch = Annotated[
    str | None, _arch(f" \\[default: that of the GPU here, else {DEFAULT_ARCH}]")
]
Rows = Annotated[
    int | None,
    rows_option(f"Number of rows to choose for. \\[default: {DEFAULT_ROWS}]"),
]
Alignment = Annotated[
    int | None,
    whole_option(
        "--alignment",
        least=1,
        help="Rows start on multiples of this many elements; 1 if they may start anywhere. "
        "\\[default: as in a contiguous array of --cols columns]",
        hidden=True,
    ),
]
BatchInvariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        help="The kernel of a call with batch_invariant=True, which is the same for any number of "
        "rows. If the bytes of a row are no multiple of 16, the kernel sums it in the same order "
        "wherever it starts (`fixed` in a name).",
        hidden=True,
    ),
]
StridedOption = Annotated[
    int,
    whole_option(
        "--strided",
        least=0,
        most=MOST_OUTER,
        help="Number of outer axes of a view, whose sizes and strides the kernel takes: 1 for "
        f"x[:, :n], and {MOST_OUTER} at most; 0 for contiguous arrays.",
        hidden=True,
    ),
]
InnerOption = Annotated[
    int | None,
    whole_option(
        "--inner",
        least=1,
        most=MOST_INNER,
        help="Elements behind the axis that is reduced: 64 for axis 1 of an 8x1000x64 array, 1 for "
        "the last axis. \\[default: 1]",
        hidden=True,
    ),
]
ShardedOption = Annotated[
    bool,
    typer.Option(
        "--sharded",
        help="For rows that are split among several devices, with --cols columns on each. The "
        "kernel exchanges partial results with the other devices.",
        hidden=True,
    ),
]
HooksOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hook",
        metavar="NAME",
        help="Operation on elements before or after the function, for example causal, bias or "
        "biasbf16 (docs/hooks.md); repeatable.",
    ),
]
Sms = Annotated[
    int | None,
    whole_option(
        "--sms",
        least=1,
        most=MOST_MULTIPROCESSORS,
        help="Number of SMs of the GPU, if it is another device of --arch than the known one, or "
        "a part of one (MIG, MPS). A cooperative kernel does not run on fewer SMs. "
        "\\[default: those of a known device, 132 for sm_90]",
        hidden=True,
    ),
]
VARIANTS = (
    'a strategy, a setting such as "safe_b256", a named choice such as "oneflow", or a full name '
    "such as softmax_f32_1000_safe_b256, which sets --cols, --dtype and so on too."
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


VariantOption = Annotated[str | None, variant_option("Use only this:")]


def edited_source(hidden: bool) -> Any:
    """Return --source."""
    return typer.Option(
        "--source",
        metavar="FILE",
        help="An emitted .cu file that was edited. Its kernel's name, or --variant, says what it "
        "should compute.",
        hidden=hidden,
    )


JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout, also on failure."),
]


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
