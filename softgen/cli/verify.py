"""`softgen verify`: the numerics of the variant matrix against float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from softgen.cli import options, output
from softgen.cli.group import WRONG_RESULT, failure
from softgen.problem import DType

if TYPE_CHECKING:
    from softgen.verify import Report


def verify(
    device: Annotated[
        options.Device, typer.Option("--device", help="Where to run; auto takes a GPU if it can.")
    ] = options.Device.AUTO,
    every: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Thousands of settings that cover every knob value, not only the best guesses.",
        ),
    ] = False,
    variant: Annotated[
        list[str] | None,
        typer.Option("--variant", help=f"Only this, may be repeated: {options.VARIANTS}"),
    ] = None,
    dtype: Annotated[
        list[DType] | None,
        typer.Option(
            "--dtype",
            parser=options.parse_dtype,
            metavar=options.DTYPES,
            help="Only this dtype; may be repeated.",
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Compute hard rows with the variants of every strategy and compare them with float64.

    Exits with 4 if a result is farther from float64 than its bound.
    """
    where = options.resolve_device(device)
    report = _verify(where.value, every, variant or [], dtype or [])
    if json:
        document = summary(report)
        message = f"{report.failed} of {report.checked} variants are wrong"
        output.document(document | (failure(message, "VerificationError") if report.failed else {}))
    else:
        _print(report)
    if report.failed:
        raise typer.Exit(WRONG_RESULT)


def summary(report: Report) -> dict[str, Any]:
    """Return the document of a report."""
    return {
        "checked": report.checked,
        "failed": report.failed,
        "worst": dict(report.worst),
        "by_strategy": dict(report.by_strategy),
    }


def _verify(device: str, every: bool, variants: list[str], dtypes: list[DType]) -> Report:
    """Run with a progress bar on stderr; no variants or dtypes means all of them."""
    from rich.progress import Progress

    from softgen.verify import verify as verify_variants

    with Progress(console=output.console()) as bars:
        bar = bars.add_task(f"verify on {device}", total=None)

        def show(step: Any) -> None:
            bars.update(bar, completed=step.done, total=step.total)

        return verify_variants(
            device=device,
            all_variants=every,
            variants=variants or None,
            dtypes=dtypes or None,
            progress=show,
        )


def _print(report: Report) -> None:
    from softgen.numerics import unit_of

    output.table(("strategy", "checked"), report.by_strategy.items())
    errors = ((k, f"{worst:.3g} {unit_of(DType.of(k))}") for k, worst in report.worst.items())
    output.table(("dtype", "worst error"), errors)
    for reason in report.failures:
        output.result(reason)
    output.result(f"{report.checked} checked, {report.failed} failed")
