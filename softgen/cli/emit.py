"""`softgen emit`: kernels as files, for the gallery or for a build of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from softgen.cli import options, output
from softgen.cli.group import FAILED, failure
from softgen.errors import InvalidValueError
from softgen.logs import printable
from softgen.source.project import ARCHS, BINDINGS, NAME
from softgen.spec.arch import DEFAULT_ARCH, arch_named
from softgen.spec.dtypes import DType, FloatType
from softgen.spec.functions import all_functions
from softgen.spec.functions.base import Function
from softgen.spec.hooks.base import Hook
from softgen.spec.hooks.known import in_order
from softgen.spec.layouts import Strided, layout_from
from softgen.spec.problem import DEFAULT_ROWS, Problem
from softgen.strategies.select import Untimed, select, shipped_of, untimed
from softgen.strategies.variants import Variant, is_full_name, no_setting, parse_name

if TYPE_CHECKING:
    from softgen.source.render import Source

_T = TypeVar("_T")

DEFAULT_FOLDER = Path("generated")
LISTED = 30  # files named one by one; --all writes hundreds


def emit(
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
    out_dtype: options.OutDType = None,
    alignment: options.Alignment = None,
    rows: options.Rows = None,
    arch: options.SomeArchs = None,
    sms: options.Sms = None,
    variant: options.VariantOption = None,
    batch_invariant: options.BatchInvariant = False,
    strided: options.StridedOption = 0,
    inner: options.InnerOption = 1,
    sharded: options.ShardedOption = False,
    hooks: options.HooksOption = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Every candidate instead of one choice; needs --cols.", hidden=True
        ),
    ] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Write nothing; print a diff and exit 1 if any differs.", hidden=True
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
            help="Folder for a project instead: kernels for every --cols, --dtype and --function, "
            "C++ functions that launch them, a CMake package and an example.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help=f"Of the project's library. \\[default: {NAME}]",
            hidden=True,
        ),
    ] = None,
    bindings: Annotated[
        list[str] | None,
        typer.Option(
            "--bindings",
            metavar="NAME",
            help=f"Of the project, for other libraries: {' or '.join(BINDINGS)}; repeatable.",
            hidden=True,
        ),
    ] = None,
    json: options.JsonOption = False,
) -> None:
    """Write CUDA files, with a manifest.json that says what each of them is.

    Without options: the gallery. With --shape or --cols: one kernel, added to the folder. It is the
    winner that softgen ships for --rows on the device of --arch (an NVIDIA H200 for sm_90), where
    there is one, else the best guess; what is printed says which. With --all --cols: every
    candidate of every strategy for that width, for all dtypes and all functions unless --dtype,
    --function or --variant narrow it.

    The gallery and --all are whole sets: files that an earlier run of the same set wrote and that
    are no longer produced are deleted, unless they were edited. Nothing else is touched.
    """
    if shape is not None:
        rows, width = options.sized(shape, rows, cols[0] if cols else None)
        cols = [width] if width else None
    if project is not None:
        if stdout or check or every or out is not None or sharded or alignment is not None:
            raise typer.BadParameter(
                "--project takes none of --out, --all, --check, --stdout, --sharded and --alignment"
            )
        if (rows, sms, batch_invariant) != (None, None, False):
            raise typer.BadParameter(
                "a project has kernels for few, middle and many rows, which the shipped tables "
                "choose: --rows, --sms and --batch-invariant are not for it"
            )
        problems = _problems(cols, dtype, function, out_dtype, strided, inner, hooks, variant)
        _project(project, problems, name or NAME, arch or ARCHS, bindings or [], json)
        return
    if name is not None or bindings:
        raise typer.BadParameter("--name and --bindings are of a --project")
    if stdout and (check or out is not None):
        raise typer.BadParameter("--stdout goes with neither --out nor --check")
    one = (_one("--cols", cols), _one("--dtype", dtype), _one("--function", function))
    where = _one("--arch", arch) or DEFAULT_ARCH
    wanted = Selection(
        *(*one, out_dtype, alignment, rows, where, sms, variant),
        *(batch_invariant, strided, inner, hooks, every, sharded),
    )
    sources, of = wanted.sources(), wanted.set_name()
    if stdout:
        _print(sources, json)
    elif check:
        _check(out or DEFAULT_FOLDER, sources, of, json)
    else:
        _write(out or DEFAULT_FOLDER, sources, of, json, wanted.unasked())
        if not json and (shipped := wanted.passed_by()):
            output.note(
                f"it is the best guess of {variant}; --variant {shipped.variant.name} is the "
                f"winner, {shipped.origin}"
            )
        if out is None and not json:
            output.note(f"they are in {DEFAULT_FOLDER.absolute()}; --out names another folder")


def _one(option: str, values: Sequence[_T] | None) -> _T | None:
    """Return what was given once, or nothing."""
    if values and len(values) > 1:
        raise typer.BadParameter(f"{option} is given once, but for --project")
    return values[0] if values else None


def _problems(
    cols: list[int] | None,
    dtypes: list[DType] | None,
    functions: list[Function] | None,
    out_dtype: FloatType | None,
    strided: int,
    inner: int,
    hooks: list[str] | None,
    variant: str | None,
) -> list[Problem | Variant]:
    """Return what a project is for: the product of the options, or one variant of a full name."""
    if variant is not None and is_full_name(variant):
        if cols or dtypes or functions:
            raise typer.BadParameter("the full name of a variant says --cols, --dtype and so on")
        return [parse_name(variant)]
    if not cols:
        raise typer.BadParameter("--project needs --cols, which may be repeated")
    layout = layout_from(inner, strided)
    found: list[Problem | Variant] = []
    for function in functions or [Function.of("softmax")]:
        for dtype in dtypes or [DType.FLOAT32]:
            for width in cols:
                problem = Problem.of(
                    *(function, dtype, width), out_dtype=out_dtype, hooks=hooks or (), layout=layout
                )
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
    from dataclasses import asdict

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
    """What the options ask for."""

    def __init__(
        self,
        cols: int | None,
        dtype: DType | None,
        function: Function | None,
        out_dtype: FloatType | None,
        alignment: int | None,
        rows: int | None,
        arch: str,
        sms: int | None,
        variant: str | None,
        batch_invariant: bool,
        strided: int,
        inner: int,
        hooks: list[str] | None,
        every: bool,
        sharded: bool,
    ) -> None:
        behind = inner if inner > 1 else None
        lies = (strided or None, behind, sharded or None)
        flags = (batch_invariant or None, *lies, hooks or None, every or None)
        self.hooks: tuple[Hook, ...] = in_order(hooks or ())
        self.layout = layout_from(inner, strided, sharded)
        self.named: Problem | None = None
        narrowing = (dtype, function, out_dtype, alignment, variant, *flags)
        if variant is not None and is_full_name(variant):
            described = (cols, dtype, function, out_dtype, alignment, batch_invariant)
            named = options.problem_of(variant, *described, strided, inner, hooks, sharded)
            cols, dtype, function = named.cols, named.dtype, named.function
            out_dtype, alignment = named.out_dtype, named.alignment
            batch_invariant, self.hooks = named.fixed_order, named.hooks
            self.layout = named.layout
            self.named = named
        elif cols is None and any(value is not None for value in narrowing):
            raise typer.BadParameter(
                "these options select kernels of one width: give --cols as well, "
                "or none of them for the gallery"
            )
        known = arch_named(arch, sms)
        if cols is None and (rows, arch, sms) != (None, DEFAULT_ARCH, None):
            raise typer.BadParameter(
                "the gallery has its own rows and architecture: --rows, --arch and --sms need "
                "--cols"
            )
        self.rows = DEFAULT_ROWS if rows is None else rows
        self.cols, self.arch, self.variant = cols, known, variant
        self.dtype, self.function = dtype, function
        self.out_dtype, self.alignment, self.every = out_dtype, alignment, every
        self.batch_invariant = batch_invariant

    def sources(self) -> list[Source]:
        """Return the sources to emit."""
        from softgen.source.render import render

        if self.cols is None:
            from softgen.source.gallery import gallery

            return gallery()
        if self.every:
            return self._every_candidate(self.cols)
        chosen = self.unasked()
        if chosen is not None:
            return [render(chosen.variant, self.arch)]
        return [render(select(self._problem(), self.rows, self.arch, self.variant), self.arch)]

    def unasked(self) -> Untimed | None:
        """Return the choice that softgen makes; None for a set, or where --variant makes it."""
        if self.cols is None or self.every or self.variant is not None:
            return None
        return untimed(self._problem(), self.rows, self.arch, self.batch_invariant)

    def passed_by(self) -> Untimed | None:
        """Return the shipped winner, if --variant names its strategy and so chooses another."""
        if self.cols is None or self.every or self.variant is None:
            return None
        asked = (self.variant, self._problem(), self.rows, self.arch, self.batch_invariant)
        found = shipped_of(*asked) if not is_full_name(self.variant) else None
        guess = select(found.variant.problem, *asked[2:4], self.variant) if found else None
        return found if found and found.variant != guess else None

    def _problem(self) -> Problem:
        """Return the problem of one kernel."""
        if self.named is not None:
            return self.named
        described = (self.cols, self.dtype, self.function, self.out_dtype, self.alignment)
        lies = (options.outer_of(self.layout), self.layout.step)
        hooks = [hook.name for hook in self.hooks]
        shards = self.layout.sharded
        return options.problem_of(None, *described, self.batch_invariant, *lies, hooks, shards)

    def _every_candidate(self, cols: int) -> list[Source]:
        from softgen.cli.listing import matching
        from softgen.source.render import render

        found = []
        options.require_possible(self.alignment, cols, self.layout)
        kinds = {hook.kind for hook in self.hooks}
        every = [f for f in all_functions() if not kinds or (f.hookable and not kinds & f.barred)]
        if self.layout.sharded:
            every = [each for each in every if each.shardable]
        for function in [self.function] if self.function else every:
            for dtype in [self.dtype] if self.dtype else list(DType):
                problem = Problem.of(
                    *(function, dtype, cols),
                    out_dtype=self.out_dtype,
                    alignment=self.alignment,
                    fixed_order=self.batch_invariant,
                    hooks=self.hooks,
                    layout=self.layout,
                )
                found += matching(problem, self.rows, self.arch, self.variant)
        if not found:
            raise InvalidValueError(self._none_legal(cols))
        return [render(variant, self.arch) for variant in found]

    def _none_legal(self, cols: int) -> str:
        """Return what to say where no problem has a legal setting."""
        where = f"{cols} columns on {self.arch.label}, so nothing is emitted"
        if self.variant is not None:
            advice = "`softgen list` without --variant prints what is legal"
            return f"no setting of {self.variant} is legal for {where}; {advice}"
        return no_setting(where, self.layout)

    def set_name(self) -> str:
        """Return what the sources are all of: the manifest says it of each file."""
        from softgen.source.manifest import GALLERY, ONE_KERNEL

        if self.cols is None:
            return GALLERY
        if not self.every:
            return ONE_KERNEL
        narrowing = (
            ("--function", self.function and self.function.name),
            ("--dtype", self.dtype and self.dtype.value),
            ("--out-dtype", self.out_dtype and self.out_dtype.value),
            ("--alignment", self.alignment),
            ("--variant", self.variant),
        )
        given = "".join(f" {option} {value}" for option, value in narrowing if value is not None)
        invariant = " --batch-invariant" if self.batch_invariant else ""
        if isinstance(self.layout, Strided):
            invariant += f" --strided {self.layout.outer}"
        elif self.layout.step > 1:
            invariant += f" --inner {self.layout.step}"
        elif self.layout.sharded:
            invariant += " --sharded"
        invariant += "".join(f" --hook {hook}" for hook in self.hooks)
        sized = f"--rows {self.rows} {self.arch.command_options}"
        return f"--all --cols {self.cols}{given}{invariant} {sized}"


def _print(sources: Sequence[Source], json: bool) -> None:
    if json:
        output.document([{"name": source.name, "source": source.text} for source in sources])
        return
    for source in sources:
        typer.echo(source.text, nl=False)


def _write(
    folder: Path, sources: Sequence[Source], of: str, json: bool, choice: Untimed | None
) -> None:
    from dataclasses import asdict

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
    from dataclasses import asdict

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
