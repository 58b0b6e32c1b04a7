"""Variants: one problem with one setting of one strategy's knobs, named, listed and chosen."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import cast

from softgen.errors import IllegalVariantError, InvalidValueError, SoftgenError, StrategyError
from softgen.plugins import fault, is_own
from softgen.problems.arch import KNOWN, Arch, capability_name
from softgen.problems.dtypes import DType, Float8, FloatType
from softgen.problems.functions import all_functions, function_named
from softgen.problems.layouts import LABEL, AnyWidth, Columns, Layout
from softgen.problems.problem import Problem
from softgen.strategies.base import (
    PDL_NEEDS,
    TRIGGERS,
    TRIGGERS_FIRST,
    WAITS,
    Strategy,
    features_of,
)
from softgen.strategies.launch import Launch
from softgen.strategies.registry import strategy_named, tuned_strategies

WIDTH_BYTES = 4  # of shared memory, where a launch says how wide rows are: an int


@dataclass(frozen=True)
class Variant:
    """A problem and a strategy: one to one with a source text."""

    problem: Problem
    strategy: Strategy

    @property
    def name(self) -> str:
        """Readable and unique; the stem of the emitted file."""
        return f"{self.problem.label}_{self.strategy.label}"

    @functools.cached_property
    def launch(self) -> Launch:
        """The launch shape, with what the layout and hooks need of it.

        Whether it may start before the one before, and for how many rows.
        """
        shape = self.strategy.launch(self.problem)
        if self.strategy.pdl:
            shape = dataclasses.replace(shape, dependent=True)
        if isinstance(self.problem.layout, AnyWidth):
            bytes_of = shape.static_shared_bytes + WIDTH_BYTES
            shape = dataclasses.replace(shape, static_shared_bytes=bytes_of)
        if any(hook.by_row for hook in self.problem.modifiers):
            from softgen.problems.hooks.places import MOST_ROWS  # which calls without hooks spare

            shape = dataclasses.replace(shape, most_rows=MOST_ROWS)
        return shape

    @property
    def parameters(self) -> tuple[str, ...]:
        """The kernel's parameters in C++: its operands, the number of rows, a workspace if any."""
        arrays = [operand.parameter for operand in self.problem.operands]
        workspace = ["unsigned char* workspace"] if self.launch.workspace_bytes_per_row else []
        return (*arrays, "long long rows", *workspace)

    @property
    def oldest_arch(self) -> str:
        """The oldest known architecture that has the instructions and the room, as in sm_90.

        Where a grid is sized for a number of SMs, a device of any architecture may have them.
        """
        needs = capability_name(max(self.strategy.oldest, self.problem.needs))
        return next((name for name, fits in self._fits.items() if fits), needs)

    @property
    def arch_rule(self) -> str:
        """The architectures that it is for, in words: the oldest, and newer ones without room."""
        newer = itertools.dropwhile(lambda name: not self._fits[name], self._fits)
        without = [name for name in newer if not self._fits[name]]
        rest = f", except {', '.join(without)}" if without else ""
        return f"any architecture from {self.oldest_arch} on{rest}"

    @functools.cached_property
    def _fits(self) -> dict[str, bool]:
        """Whether each known architecture has the instructions and the room."""
        needed = self.launch.multiprocessors
        return {
            name: self.strategy.is_legal(
                self.problem,
                arch
                if arch.multiprocessors >= needed
                else dataclasses.replace(arch, multiprocessors=needed),
            )
            for name, arch in KNOWN.items()
        }

    def check(self, arch: Arch) -> None:
        """Raise IllegalVariantError if the strategy cannot compute the problem on `arch`."""
        if not self.strategy.computes(self.problem):
            label = self.problem.layout.label
            layout = f" in the layout {label}" if label else ""
            missing = features_of(self.problem) - self.strategy.takes
            reasons = [*sorted(feature.value for feature in missing)]
            why = "; ".join([*reasons, *_other_axis(type(self.strategy), self.problem)])
            raise IllegalVariantError(
                f"{self.strategy.label}: {self.strategy.name} does not compute "
                f"{self.problem.computed}{layout}" + f" ({why})" * bool(why)
            )
        try:
            self.strategy.check(self.problem, arch)
        except Exception as error:
            raise_own_fault(type(self.strategy), error)
            raise
        self.strategy.require_launch(arch)
        self.strategy.require_types(self.problem, arch)


def candidates(
    problem: Problem, rows: int, arch: Arch, strategy: str | None = None
) -> Iterator[Variant]:
    """Yield the variants worth timing for `rows` rows on `arch`, best guess first.

    Args:
        problem: the request.
        rows: number of rows, which moves the best guess but never the legality.
        arch: the architecture to be legal on.
        strategy: only this strategy's; by default all that are tuned.
    """
    if arch.compute_capability < problem.needs:
        return
    if strategy is not None:
        chosen: tuple[type[Strategy], ...] = (strategy_named(strategy),)
    else:
        tuned = tuned_strategies(problem.layout)
        chosen = tuple(sorted(tuned, key=lambda kind: _estimate(kind, problem, rows, arch)))
    for kind in chosen:
        if not kind.computes(problem):
            continue
        try:
            for setting in kind.candidates(problem, rows, arch):
                if is_own(kind):
                    _require_own_check(setting, problem, arch)
                if setting.launch(problem).reaches(rows):
                    yield Variant(problem, _dependent(setting, problem, rows, arch))
        except Exception as error:
            raise_own_fault(kind, error)
            raise


# A launch that reads and writes at most so many bytes lets the next one start at once, or before
# its stores. On an H200 float32 128 x 1024, 1 MB, took 1.76 us at once and 2.17 before its stores;
# 128 x 4096 took 2.80 and 2.77. Of its shipped winners 17 of 19 up to 32 MB do one of both, 7 of 63
# above 64 MB.
AT_ONCE_BYTES = 2 << 20
BEFORE_STORES_BYTES = 32 << 20


def _dependent(setting: Strategy, problem: Problem, rows: int, arch: Arch) -> Strategy:
    """Return a candidate that waits for the launch before it, where GPUs can launch it so.

    A short one also lets the next go, if its strategy can. Lessons stay as their authors wrote
    them, and a strategy that was added says it itself.
    """
    kind = type(setting)
    if setting.pdl or not kind.tuned or is_own(kind) or arch.compute_capability < PDL_NEEDS:
        return setting
    moved = rows * problem.bytes_per_row
    early = moved <= BEFORE_STORES_BYTES and kind.triggers
    pdl = TRIGGERS_FIRST if moved <= AT_ONCE_BYTES else TRIGGERS
    return setting.with_knobs(pdl=pdl if early else WAITS)


def _require_own_check(setting: Strategy, problem: Problem, arch: Arch) -> None:
    """Raise StrategyError if a setting that was yielded as a candidate is not legal."""
    try:
        setting.check(problem, arch)
    except IllegalVariantError as error:
        raise StrategyError(
            f"candidates() of strategy {setting.name} yields a setting that its check() refuses "
            f"for {problem.label} on {arch.label}: {error}; yield only what is_legal() accepts"
        ) from error


def _estimate(kind: type[Strategy], problem: Problem, rows: int, arch: Arch) -> float:
    try:
        found = kind.estimate(problem, rows, arch)
    except Exception as error:
        raise_own_fault(kind, error)
        raise
    if is_own(kind) and not (isinstance(found, Real) and found == found):
        raise StrategyError(f"strategy {kind.name}: estimate() must return a number, got {found!r}")
    return found


def raise_own_fault(kind: type[Strategy], error: Exception) -> None:
    """Raise StrategyError from `error` if `kind` was added to softgen and `error` is not meant.

    An error of a strategy that comes with softgen is a bug of softgen's, and stays what it is.
    """
    if is_own(kind) and not isinstance(error, SoftgenError):
        raise fault("strategy", kind, error) from error


def _other_axis(kind: type[Strategy], problem: Problem) -> list[str]:
    """Return in words which axes a strategy is for, if not for that of `problem`."""
    if isinstance(problem.layout, kind.layouts):
        return []
    if any(issubclass(each, Columns) for each in kind.layouts):
        return ["it is for another axis than the last: --inner, or inner=, tells what is behind it"]
    if isinstance(problem.layout, Columns):
        return ["it is for the last axis"]
    return []


def best_guess(problem: Problem, rows: int, arch: Arch, strategy: str | None = None) -> Variant:
    """Return the first candidate: the choice without any timing."""
    for variant in candidates(problem, rows, arch, strategy):
        return variant
    raise InvalidValueError(none_legal(problem, rows, arch, strategy))


def none_legal(problem: Problem, rows: int, arch: Arch, strategy: str | None = None) -> str:
    """Return what to say where there is no candidate: why, and what to do."""
    why = f"{problem.label} on {arch.label}{_objection(problem, rows, arch, strategy)}"
    if strategy is None:
        return no_setting(why, problem.layout)
    return (
        f"strategy {strategy!r} has no setting worth running for {why}; `softgen list "
        f"{problem.command_options} {arch.command_options}` shows what has"
        f"{_sharing(problem.layout, strategy)}"
    )


def no_setting(why: str, layout: Layout) -> str:
    """Return what to say where no strategy has a setting for what `why` names."""
    return f"no strategy has a setting for {why}{_narrower(layout)}"


def _sharing(layout: Layout, strategy: str) -> str:
    """Return what to do where a strategy has no setting for shards: another, or narrower ones."""
    if not layout.sharded or isinstance(layout, strategy_named(strategy).layouts):
        return _narrower(layout)
    able = [kind.name for kind in tuned_strategies(layout) if isinstance(layout, kind.layouts)]
    return f"; only {' and '.join(able)} have sharded kernels"


def _narrower(layout: Layout) -> str:
    return "; take more GPUs, so that a shard is narrower" if layout.sharded else ""


def _objection(problem: Problem, rows: int, arch: Arch, strategy: str | None) -> str:
    """Return why what another architecture would run is not legal on `arch`, if any would.

    Or which axes the strategy is for.
    """
    if strategy is not None:
        for reason in _other_axis(strategy_named(strategy), problem):
            return f" ({reason})"
    for other in KNOWN.values():
        for variant in candidates(problem, rows, other, strategy):
            try:
                variant.check(arch)
            except IllegalVariantError as error:
                return f" ({error})"
    return ""


@functools.cache
def _name_pattern(hooks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        r"(?P<function>[a-z][a-z\d_]*?)"
        r"_(?P<dtype>f16|bf16|f32|f64)(?:_to_(?P<out>f16|bf16|f32|f64|e4m3|e5m2))?"
        rf"_(?P<cols>\d{{1,13}})(?:_(?P<layout>{LABEL}))?"
        r"(?:_align(?P<align>\d{1,2}))?(?P<fixed>_fixed)?"
        rf"(?P<hooks>(?:_(?:{'|'.join(hooks)}))*)"
        r"_(?P<strategy>[a-z]+)(?P<knobs>(?:_[a-z]+\d{0,9})*)"
    )


def parse_name(name: str) -> Variant:
    """Return the variant called `name`, the inverse of `Variant.name`.

    Raises InvalidValueError if no variant has that name. Legality is not checked.
    """
    example = "`softgen list` prints names, for example softmax_f32_1000_online_p4_u2_b128"
    from softgen.problems.hooks.known import (
        all_hooks,  # 5 ms, and a call finds its kernel by no name
    )

    match = _name_pattern(tuple(hook.name for hook in all_hooks())).fullmatch(name)
    if match and function_named(match["function"]) is not None:
        by_short = {dtype.short: dtype for dtype in DType}
        results: dict[str, FloatType] = {**by_short, **{dtype.short: dtype for dtype in Float8}}
        align, out = match["align"], match["out"]
        problem = Problem.of(
            match["function"],
            by_short[match["dtype"]],
            int(match["cols"]),
            out_dtype=results[out] if out else None,
            alignment=int(align) if align else None,
            fixed_order=match["fixed"] is not None,
            hooks=match["hooks"].split("_")[1:],
            layout=match["layout"] or "",
        )
        try:
            setting = _parse_knobs(strategy_named(match["strategy"]), match["knobs"])
        except InvalidValueError:
            setting = None  # it may be a misspelt hook that stands there
        if setting is not None:
            found = Variant(problem, setting)
            if found.name == name:
                return found
            example = f"did you mean {found.name!r}?"
    from softgen.strategies.name_errors import wrong_part  # it imports this module, for parse_label

    raise InvalidValueError(f"{name!r} is not the name of a variant: {wrong_part(name) or example}")


# No setting and no named choice has a dtype and a number in a row. Compiled at its first use.
_PROBLEM = rf"_(?:{'|'.join(d.short for d in DType)})(?:_to_[a-z\d]+)?_\d"


def is_full_name(text: str) -> bool:
    """Whether `text` is meant as the name of a variant: it may have slips."""
    begins = tuple(f"{function.name}_" for function in all_functions())
    return text.startswith(begins) or re.search(_PROBLEM, text) is not None


def parse_label(label: str) -> Strategy:
    """Return the setting called `label`, the inverse of `Strategy.label`.

    Raises InvalidValueError if no setting is called that. Legality is not checked.
    """
    name, _, rest = label.partition("_")
    kind = strategy_named(name)
    setting = _parse_knobs(kind, f"_{rest}")
    if setting is None or setting.label != label:
        raise InvalidValueError(
            f"{label!r} is no setting of {name}, whose knobs are {kind.legend()} in this order; "
            "`softgen list` prints names that end in settings"
        )
    return setting


def _parse_knobs(kind: type[Strategy], text: str) -> Strategy | None:
    parts = dict(re.findall(r"_([a-z]+)(\d*)", text))
    values: dict[str, int | bool] = {}
    for field in kind.fields():
        short = cast(str, field.metadata["short"])
        if field.type in (bool, "bool"):
            values[field.name] = short in parts
        elif parts.get(short):
            values[field.name] = int(parts[short])
        elif field.default is dataclasses.MISSING:
            return None
    return kind(**values)
