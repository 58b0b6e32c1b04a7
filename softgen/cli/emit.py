"""`softgen emit`: kernels as files, for the gallery or for a build of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from softgen.cli import options, output
from softgen.cli.group import FAILED, failure
from softgen.cli.problem_options import ProblemOptions, require_possible
from softgen.errors import InvalidValueError
from softgen.logs import printable
from softgen.problems.arch import DEFAULT_ARCH, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.hooks.known import in_order
from softgen.problems.layouts import Strided
from softgen.problems.problem import DEFAULT_ROWS, Problem
from softgen.source.project import ARCHS, BINDINGS, NAME
from softgen.strategies.select import Untimed, select, shipped_of, untimed
from softgen.strategies.variants import Variant, no_setting

if TYPE_CHECKING:
    from softgen.source.render import Source

_T = TypeVar("_T")

DEFAULT_FOLDER = Path("generated")
LISTED = 30  # files named one by one; --all writes hundreds


def emit(
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder to write into, made if it is not there. \\[default: generated, in the "
            "current folder]",
        ),
    ] = None,
    shape: options.ShapeOption = None,
    cols: options.SomeCols = None,
    dtype: options.SomeDTypes = None,
    function: options.SomeFunctions = None,
    arch: options.SomeArchs = None,
    given: ProblemOptions,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Write every candidate, not one choice; needs --cols.", hidden=True
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Write nothing; print a diff and exit with 1 if a file differs.",
            hidden=True,
        ),
    ] = False,
    stdout: Annotated[
        bool,
        typer.Option("--stdout", help="Print the sources instead of writing files.", hidden=True),
    ] = False,
    project: Annotated[
        Path | None,
        typer.Option(
            "--project",
            metavar="FOLDER",
            help="Write a project into this folder: kernels for every --cols, --dtype and "
            "--function, C++ functions that launch them, a CMake package and an example.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help=f"Name of the project's library. \\[default: {NAME}]",
            hidden=True,
        ),
    ] = None,
    bindings: Annotated[
        list[str] | None,
        typer.Option(
            "--bindings",
            metavar="NAME",
            help="Bindings of the project for another library: "
            f"{' or '.join(BINDINGS)}; repeatable.",
            hidden=True,
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Write CUDA files, with a manifest.json that says what each of them is.

    Without options it writes the gallery. With --shape or --cols it adds one kernel to the folder:
    the winner that softgen ships for --rows on the device of --arch (an NVIDIA H200 for sm_90), if
    there is one, else that of a similar shape or device, else the best guess; a message says which.
    With --all --cols it writes every candidate of every strategy for that width, for all dtypes and
    all functions unless --dtype, --function or --variant narrow it.

    The gallery and --all are whole sets: a file that an earlier run of the same set wrote, and that
    is no longer produced, is deleted unless it was edited. Nothing else is touched.
    """
    if shape is not None:
        given = replace(given, shape=shape, cols=cols[0] if cols else None).sized()
        cols = [given.cols] if given.cols else None
    if project is not None:
        aligned = given.alignment is not None
        if stdout or check or every or out is not None or given.sharded or aligned:
            raise typer.BadParameter(
                "--project takes none of --out, --all, --check, --stdout, --sharded and --alignment"
            )
        if (given.rows, given.sms, given.batch_invariant) != (None, None, False):
            raise typer.BadParameter(
                "a project has kernels for few, middle and many rows, which the shipped tables "
                "choose: --rows, --sms and --batch-invariant are not for it"
            )
        problems = _problems(cols, dtype, function, given)
        called = NAME if name is None else name
        _project(project, problems, called, arch or ARCHS, bindings or [], json)
        return
    if name is not None or bindings:
        raise typer.BadParameter("--name and --bindings need --project")
    if stdout and (check or out is not None):
        raise typer.BadParameter("--stdout goes with neither --out nor --check")
    one = replace(
        given,
        cols=_one("--cols", cols),
        dtype=_one("--dtype", dtype),
        function=_one("--function", function),
        arch=_one("--arch", arch) or DEFAULT_ARCH,
    )
    wanted = Selection(one, every)
    sources, of = wanted.sources(), wanted.set_name()
    if stdout:
        _print(sources, json)
    elif check:
        _check(out or DEFAULT_FOLDER, sources, of, json)
    else:
        _write(out or DEFAULT_FOLDER, sources, of, json, wanted.unasked())
        if not json and (shipped := wanted.passed_by()):
            output.note(
                f"it is the best guess of {given.variant}; --variant {shipped.variant.name} is the "
                f"winner, {shipped.origin}"
            )
        if out is None and not json:
            output.note(f"they are in {DEFAULT_FOLDER.absolute()}; --out names another folder")


def _one(option: str, values: Sequence[_T] | None) -> _T | None:
    """Return what was given once, or nothing."""
    if values and len(values) > 1:
        raise typer.BadParameter(f"{option} may be repeated with --project only")
    return values[0] if values else None


def _problems(
    cols: list[int] | None,
    dtypes: list[DType] | None,
    functions: list[Function] | None,
    given: ProblemOptions,
) -> list[Problem | Variant]:
    """Return what a project is for: the product of the options, or one variant of a full name."""
    variant, named = given.variant, given.named
    if named is not None:
        if cols or dtypes or functions:
            raise typer.BadParameter("the full name of a variant says --cols, --dtype and so on")
        given.problem()  # raises where another option says something else than the name
        return [named]
    if not cols:
        raise typer.BadParameter("--project needs --cols, which may be repeated")
    found: list[Problem | Variant] = []
    for function in functions or [Function.of("softmax")]:
        for dtype in dtypes or [DType.FLOAT32]:
            for width in cols:
                problem = given.problem_of(function, dtype, width)
                chosen: Problem | Variant = problem
                if variant is not None:
                    chosen = select(problem, DEFAULT_ROWS, arch_named(DEFAULT_ARCH), variant)
                found.append(chosen)
    return found


def _project(
    folder: Path,
    problems: Sequence[Problem | Variant],
    name: str,
    archs: Sequence[str],
    bindings: Sequence[str],
    json: bool,
) -> None:
    from softgen.source.project_folder import project

    report = project(folder, problems, name=name, archs=archs, bindings=bindings)
    if json:
        output.document({"folder": str(folder), **asdict(report)})
        return
    kernels = sum(path.endswith(".cu") for path in (*report.written, *report.unchanged))
    output.note(
        f"{folder}: {output.count(kernels, 'kernel')}; {len(report.written)} files written, "
        f"{len(report.unchanged)} unchanged, {len(report.removed)} removed. Build it: cmake -S "
        f"{folder} -B build && cmake --build build; {folder / 'README.md'} says how to call"
    )


class Selection:
    """What the options ask for: the gallery, one kernel, or with `every` all candidates."""

    def __init__(self, given: ProblemOptions, every: bool) -> None:
        self.every = every
        self.layout = given.layout
        self.named = given.problem() if given.named is not None else None
        narrowed = replace(given, rows=None, arch=DEFAULT_ARCH, sms=None, hooks=given.hooks or None)
        if self.named is not None:
            given, self.layout = _as_named(given, self.named), self.named.layout
        elif given.cols is None and (every or narrowed != ProblemOptions()):
            raise typer.BadParameter(
                "these options select kernels of one width: give --cols as well, "
                "or none of them for the gallery"
            )
        self.given, self.arch, self.rows = given, given.device, given.rows_or_default
        if given.cols is None and (given.rows, given.arch, given.sms) != (None, DEFAULT_ARCH, None):
            raise typer.BadParameter(
                "the gallery has its own rows and architecture: --rows, --arch and --sms need "
                "--cols"
            )

    def sources(self) -> list[Source]:
        """Return the sources to emit."""
        from softgen.source.render import render

        if self.given.cols is None:
            from softgen.source.gallery import gallery

            return gallery()
        if self.every:
            return self._every_candidate(self.given.cols)
        chosen = self.unasked()
        if chosen is not None:
            return [render(chosen.variant, self.arch)]
        chosen_by_name = select(self._problem(), self.rows, self.arch, self.given.variant)
        return [render(chosen_by_name, self.arch)]

    def unasked(self) -> Untimed | None:
        """Return the choice that softgen makes; None for a set, or where --variant makes it."""
        if self.given.cols is None or self.every or self.given.variant is not None:
            return None
        return untimed(self._problem(), self.rows, self.arch, self.given.batch_invariant)

    def passed_by(self) -> Untimed | None:
        """Return the shipped winner, if --variant names its strategy and so chooses another."""
        choice = self.given.variant
        if self.given.cols is None or self.every or choice is None or self.named is not None:
            return None
        problem, invariant = self._problem(), self.given.batch_invariant
        found = shipped_of(choice, problem, self.rows, self.arch, invariant)
        if found is None:
            return None
        guess = select(found.variant.problem, self.rows, self.arch, choice)
        return found if found.variant != guess else None

    def _problem(self) -> Problem:
        """Return the problem of one kernel."""
        return self.named or replace(self.given, variant=None).problem()

    def _every_candidate(self, cols: int) -> list[Source]:
        from softgen.cli.listing import matching
        from softgen.source.render import render

        given, found = self.given, []
        require_possible(given.alignment, cols, self.layout)
        kinds = {hook.kind for hook in in_order(given.hooks or ())}
        every = [f for f in all_functions() if not kinds or (f.hookable and not kinds & f.barred)]
        if self.layout.sharded:
            every = [each for each in every if each.shardable]
        for function in [given.function] if given.function else every:
            for dtype in [given.dtype] if given.dtype else list(DType):
                problem = self.named or given.problem_of(function, dtype, cols)
                found += matching(problem, self.rows, self.arch, given.variant)
        if not found:
            raise InvalidValueError(self._none_legal(cols))
        return [render(variant, self.arch) for variant in found]

    def _none_legal(self, cols: int) -> str:
        """Return what to say where no problem has a legal setting."""
        where = f"{cols} columns on {self.arch.label}, so nothing is emitted"
        if self.given.variant is not None:
            advice = "`softgen list` without --variant prints what is legal"
            return f"no setting of {self.given.variant} is legal for {where}; {advice}"
        return no_setting(where, self.layout)

    def set_name(self) -> str:
        """Return what the sources are all of: the manifest says it of each file."""
        from softgen.source.manifest import GALLERY, ONE_KERNEL

        given = self.given
        if given.cols is None:
            return GALLERY
        if not self.every:
            return ONE_KERNEL
        narrowing = (
            ("--function", given.function and given.function.name),
            ("--dtype", given.dtype and given.dtype.value),
            ("--out-dtype", given.out_dtype and given.out_dtype.value),
            ("--alignment", given.alignment),
            ("--variant", given.variant),
        )
        said = "".join(f" {option} {value}" for option, value in narrowing if value is not None)
        said += " --batch-invariant" if given.batch_invariant else ""
        if isinstance(self.layout, Strided):
            said += f" --strided {self.layout.outer}"
        elif self.layout.step > 1:
            said += f" --inner {self.layout.step}"
        elif self.layout.sharded:
            said += " --sharded"
        said += "".join(f" --hook {hook}" for hook in in_order(given.hooks or ()))
        sized = f"--rows {self.rows} {self.arch.command_options}"
        return f"--all --cols {given.cols}{said} {sized}"


def _as_named(given: ProblemOptions, named: Problem) -> ProblemOptions:
    """Return the options as if each had been given that a full name says; but for the layout."""
    return replace(
        given,
        cols=named.cols,
        dtype=named.dtype,
        function=named.function,
        out_dtype=named.out_dtype,
        alignment=named.alignment,
        batch_invariant=named.fixed_order,
        hooks=[hook.name for hook in named.hooks],
    )


def _print(sources: Sequence[Source], json: bool) -> None:
    if json:
        output.document([{"name": source.name, "source": source.text} for source in sources])
        return
    for source in sources:
        typer.echo(source.text, nl=False)


def _write(
    folder: Path, sources: Sequence[Source], of: str, json: bool, choice: Untimed | None
) -> None:
    from softgen.source.emit import write

    report = write(folder, sources, of)
    if json:
        chosen = {} if choice is None else {"tuned_on": choice.tuned_on}
        output.document({"folder": str(folder), **asdict(report), **chosen})
        return
    for name in report.written[:LISTED]:
        output.note(f"wrote {folder / name}")
    if len(report.written) > LISTED:
        output.note(f"... and {len(report.written) - LISTED} more")
    for name in report.removed:
        output.note(f"removed {folder / name}, no longer produced")
    for name in report.edited:
        output.warn(f"{folder / name} is no longer produced, and was edited; left alone")
    if choice is not None:
        output.note(f"{choice.variant.name}: {choice.origin}")
    written = output.count(len(report.written), "file")
    output.note(
        f"{folder}: {written} written, {len(report.unchanged)} unchanged, "
        f"{len(report.removed)} removed"
    )


def _check(folder: Path, sources: Sequence[Source], of: str, json: bool) -> None:
    from softgen.source.drift import check

    differences = check(folder, sources, of)
    kinds = ", ".join(f"{found.file} ({found.kind})" for found in differences)
    message = f"{folder} is not what `softgen emit` writes: {kinds}"
    if json:
        document = {"folder": str(folder), "differences": [asdict(found) for found in differences]}
        output.document(document | (failure(message, "Drift") if differences else {}))
    elif differences:
        for found in differences:
            typer.echo(printable(found.diff, keep="\n\t"), nl=False)
        output.fail(message)
    else:
        output.note(f"{folder}: {output.count(len(sources), 'source')}, all as emitted")
    if differences:
        raise typer.Exit(FAILED)
