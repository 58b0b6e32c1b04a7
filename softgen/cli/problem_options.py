"""The options of the problem that several commands take, declared once, as one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeVar, get_type_hints

import typer

from softgen.cli import options
from softgen.cli.shapes import parse_shape
from softgen.errors import InvalidValueError
from softgen.problems.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.functions.base import Function
from softgen.problems.hooks.known import in_order
from softgen.problems.layouts import Layout, Strided, layout_from
from softgen.problems.problem import DEFAULT_ROWS, Problem, largest_power_of_two_divisor
from softgen.strategies.select import require_known
from softgen.strategies.variants import Variant, is_full_name, parse_name

_Given = TypeVar("_Given", bound="ProblemOptions")


@dataclass(frozen=True)
class ProblemOptions:
    """A problem, and the device that it is for, as options say them; a field is an option.

    A command has one parameter of this class, and `expanded` makes the options from it. A subclass
    declares an option anew if its command has another help or default, and names the options that
    its command does not take: `class ShowOptions(ProblemOptions, without=("rows",))`.
    """

    without: ClassVar[Sequence[str]] = ()

    shape: options.ShapeOption = None
    cols: options.AnyCols = None
    dtype: options.AnyDType = None
    function: options.AnyFunction = None
    out_dtype: options.OutDType = None
    alignment: options.Alignment = None
    rows: options.Rows = None
    arch: options.ArchOption = DEFAULT_ARCH
    sms: options.Sms = None
    variant: options.VariantOption = None
    batch_invariant: options.BatchInvariant = False
    strided: options.StridedOption = 0
    inner: options.InnerOption = None
    sharded: options.ShardedOption = False
    hooks: options.HooksOption = None

    def __init_subclass__(cls, without: Sequence[str] = ()) -> None:
        cls.without = without

    @property
    def device(self) -> Arch:
        """The device that the kernel is for."""
        return arch_named(self.arch or DEFAULT_ARCH, self.sms)

    @property
    def layout(self) -> Layout:
        """How rows lie in memory."""
        return layout_from(self.inner or 1, self.strided, self.sharded)

    @property
    def rows_or_default(self) -> int:
        """The number of rows to choose for."""
        return DEFAULT_ROWS if self.rows is None else self.rows

    @property
    def named(self) -> Variant | None:
        """The variant whose full name is given; None for another name, and for none."""
        full = self.variant is not None and is_full_name(self.variant)
        return parse_name(self.variant or "") if full else None

    def sized(self: _Given) -> _Given:
        """Return the same with --rows and --cols in place of --shape."""
        if self.shape is None:
            return self
        if self.rows is not None or self.cols is not None:
            raise typer.BadParameter("give --shape, or --rows and --cols, not both")
        rows, cols = parse_shape(self.shape, "--shape")
        return replace(self, shape=None, rows=rows, cols=cols)

    def problem(self) -> Problem:
        """Return the problem that the options describe, or the full name of a variant among them.

        Raises InvalidValueError where an option says something else than the name.
        """
        named = self.named
        if named is not None:
            self.require_agreement(named)
            own = named.problem.hooks
            if self.hooks and in_order(self.hooks) != own:
                said = f"has {', '.join(map(str, own))}" if own else "has no hooks"
                raise InvalidValueError(
                    f"{named.name} {said}, and --hook {' --hook '.join(self.hooks)} was given; "
                    f"leave it out, or give the setting alone: --variant {named.strategy.label}"
                )
            return named.problem
        if self.cols is None:
            if self.variant is not None:
                require_known(self.variant)
            raise typer.BadParameter("give --cols, or the full name of a variant as --variant")
        require_possible(self.alignment, self.cols, self.layout)
        function = self.function or Function.of("softmax")
        return self.problem_of(function, self.dtype or DType.FLOAT32, self.cols)

    def problem_of(self, function: Function, dtype: DType, cols: int) -> Problem:
        """Return the problem of that function, type and width, for which the other options hold."""
        return Problem.of(
            *(function, dtype, cols),
            out_dtype=self.out_dtype,
            alignment=self.alignment,
            fixed_order=self.batch_invariant,
            hooks=self.hooks or (),
            layout=self.layout,
        )

    def require_agreement(self, named: Variant) -> None:
        """Raise InvalidValueError if an option that was given differs from what a name says."""
        own = named.problem
        asked = Problem.of(
            *(own.function, own.dtype, own.cols),
            out_dtype=own.out_dtype,
            alignment=own.alignment if self.alignment is None else self.alignment,
            fixed_order=self.batch_invariant or own.fixed_order,
            layout=own.layout,
        )
        some_layout = self.inner is not None or self.strided > 0 or self.sharded
        layout = self.layout if some_layout else None
        for option, value, said in (
            ("--cols", self.cols, own.cols),
            ("--dtype", self.dtype and self.dtype.value, own.dtype.value),
            ("--function", self.function and self.function.name, own.function.name),
            ("--out-dtype", self.out_dtype and self.out_dtype.value, own.out_dtype.value),
            ("--alignment", asked.alignment, own.alignment),
            ("--strided", layout and outer_of(layout), outer_of(own.layout)),
            ("--inner", layout and layout.step, own.layout.step),
        ):
            if value is not None and value != said:
                raise InvalidValueError(
                    f"{named.name} is for {option} {said}, and {option} {value} was given; leave "
                    f"{option} out, or give the setting alone: --variant {named.strategy.label}"
                )
        if self.sharded and not own.sharded:
            raise InvalidValueError(
                f"{named.name} is for rows on one device, and --sharded was given; leave it out, "
                f"or choose a name with `sharded` in it: `softgen list --cols {own.cols} --dtype "
                f"{own.dtype.value} --sharded`"
            )
        if asked.fixed_order != own.fixed_order:
            raise InvalidValueError(
                f"{named.name} sums in an order that depends on where a row lies, and "
                "--batch-invariant was given; leave it out, or choose a name with `fixed` in it: "
                f"`softgen list --cols {own.cols} --dtype {own.dtype.value} --batch-invariant`"
            )


def require_possible(alignment: int | None, cols: int, layout: Layout) -> None:
    """Raise InvalidValueError if no two rows in a row can start on multiples of `alignment`."""
    pitch = layout.pitch(cols)
    most = largest_power_of_two_divisor(pitch)
    if alignment is not None and alignment > most:
        what = "rows of" if layout.step == 1 else "columns of rows side by side, of"
        raise InvalidValueError(
            f"--alignment {alignment}: {what} {pitch} elements start on multiples of {most} at "
            f"most; give --alignment {most} or less, or leave it out"
        )


def outer_of(layout: Layout) -> int:
    """Return the value of --strided."""
    return layout.outer if isinstance(layout, Strided) else 0


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has an option for each field of its parameter of ProblemOptions.

    A field is left out where the command has a parameter of that name, and keeps its default.
    """
    types = get_type_hints(command, include_extras=True)
    given = next((name for name, kind in types.items() if _has_options(kind)), None)
    if given is None:
        return command
    group, own = types.pop(given), inspect.signature(command).parameters
    taken = [each for each in fields(group) if each.name not in (*group.without, *own)]
    field_types = get_type_hints(group, include_extras=True)

    @functools.wraps(command)
    def run(**values: Any) -> None:
        options_given = {each.name: values.pop(each.name) for each in taken}
        command(**{given: group(**options_given)}, **values)

    parameters: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name == given:
            for each in taken:
                types[each.name] = field_types[each.name]
                parameters.append(
                    inspect.Parameter(each.name, parameter.KEYWORD_ONLY, default=each.default)
                )
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
    run.__annotations__ = types
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(annotation=types[each.name]) for each in parameters]
    )
    return run


def _has_options(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, ProblemOptions)
