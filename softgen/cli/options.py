"""The options that several commands share, each declared once."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from softgen.arch import MOST_MULTIPROCESSORS
from softgen.errors import InvalidValueError, NoDeviceError
from softgen.names import likely
from softgen.problem import MAX_COLS, MAX_ROWS, Algorithm, DType


def parse_dtype(text: str | DType) -> DType:
    """Return the dtype of that name; what Typer says of an Enum has no likely name."""
    names = [member.value for member in DType]
    if text not in names:
        choices, hint = ", ".join(map(repr, names)), likely(text, names)
        raise typer.BadParameter(f"{text!r} is not one of {choices}{';' if hint else ''}{hint}")
    return DType(text)


DTYPES = f"[{'|'.join(member.value for member in DType)}]"  # in the help

AlgorithmOption = Annotated[Algorithm, typer.Option("--algorithm", help="Function of each row.")]
AnyAlgorithm = Annotated[
    Algorithm | None, typer.Option("--algorithm", help="Function of each row. \\[default: softmax]")
]
DTypeOption = Annotated[
    DType,
    typer.Option("--dtype", parser=parse_dtype, metavar=DTYPES, help="Element type of the input."),
]
AnyDType = Annotated[
    DType | None,
    typer.Option(
        "--dtype",
        parser=parse_dtype,
        metavar=DTYPES,
        help="Element type of the input. \\[default: float32]",
    ),
]
OutDType = Annotated[
    DType | None,
    typer.Option(
        "--out-dtype",
        parser=parse_dtype,
        metavar=DTYPES,
        help="Element type of the result. \\[default: --dtype]",
    ),
]
Cols = Annotated[int, typer.Option("--cols", min=1, max=MAX_COLS, help="Elements in a row.")]
AnyCols = Annotated[
    int | None, typer.Option("--cols", min=1, max=MAX_COLS, help="Elements in a row.")
]
Rows = Annotated[
    int,
    typer.Option("--rows", min=0, max=MAX_ROWS, help="Number of rows that the best guess is for."),
]
Alignment = Annotated[
    int | None,
    typer.Option(
        "--alignment",
        help="Rows start on a multiple of this many elements; 1 for arrays that start anywhere. "
        "\\[default: what --cols gives]",
    ),
]
BatchInvariant = Annotated[
    bool,
    typer.Option(
        "--batch-invariant",
        help="Kernels as batch_invariant=True runs them: where rows are no whole packs of 16 bytes "
        "they are summed in one order wherever they lie (`fixed` in a name).",
    ),
]
ArchOption = Annotated[
    str, typer.Option("--arch", help="Architecture to be legal on, for example sm_90 or 90.")
]
Sms = Annotated[
    int | None,
    typer.Option(
        "--sms",
        min=1,
        max=MOST_MULTIPROCESSORS,
        help="SMs to choose and to size a grid for, where the GPU is another device of --arch or a "
        "part of one (MIG, MPS): a cooperative kernel does not run on fewer. "
        "\\[default: those of a known device, 132 for sm_90]",
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        help='Only this strategy, a named choice such as "oneflow" or "naive" (docs/ladder.md), or '
        "the full name of a variant.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON document on stdout, also on failure."),
]


class Device(str, Enum):
    """Where to compute."""

    AUTO = "auto"
    CUDA = "cuda"
    CPU = "cpu"


def require_new_file(option: str, path: Path, ending: str) -> None:
    """Raise InvalidValueError, before anything is computed, if `path` cannot be a new file."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        raise InvalidValueError(f"{option}: {path} {what}; give the path of a {ending} file")


def require_gpu() -> None:
    """Raise NoDeviceError, with the reason, unless a GPU can be used."""
    from softgen import device

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
        from softgen.device import available

        return Device.CUDA if available() else Device.CPU
    return device
