"""Pairs of what a kernel is of, as of a function and a hook: those of one, those that may be.

Functions and strategies declare them, and nothing lists them: what is added brings its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

from softgen.errors import SoftgenError
from softgen.problems.dtypes import DType, Float8, FloatType
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.hooks.known import HOOKS
from softgen.problems.layouts import ROWS, AnyWidth, Columns, Layout, Strided
from softgen.problems.problem import Problem
from softgen.problems.shards import SHARDS
from softgen.strategies.base import Strategy
from softgen.strategies.registry import all_strategies
from softgen.strategies.variants import Variant

# A factor and its value, as ("dtype", "float32").
Value = tuple[str, str]
Pair = tuple[Value, Value]
Types = tuple[DType, FloatType]

# One of each class.
LAYOUTS: tuple[Layout, ...] = (ROWS, Strided(2), AnyWidth(), Columns(16), SHARDS)

_TYPES: tuple[Types, ...] = tuple(product(DType, (*DType, *Float8)))

# Where strategies are asked what they compute: few columns, and more than any function chooses.
_WIDTHS = (96, 1024)

# The most columns of rows of any width: blocks are small up to here.
_MOST_OF_ANY = 4096


def values_of(function: Function, strategy: str, layout: Layout) -> tuple[Value, ...]:
    """Return the values of three factors; the twin of a function counts as that."""
    return (
        ("function", function.twin or function.name),
        ("strategy", strategy),
        ("layout", type(layout).__name__),
    )


def type_values(types: Types) -> tuple[Value, ...]:
    """Return the values of the types of x and of the result."""
    return ("dtype", types[0].value), ("out_dtype", types[1].value)


def hook_values(hooks: Iterable[Hook]) -> tuple[Value, ...]:
    """Return the values of hooks."""
    return tuple(("hook", hook.name) for hook in hooks)


def pairs_between(values: Iterable[Value]) -> Iterator[Pair]:
    """Yield the pairs of values, each in one order; those of one factor, two hooks, are none."""
    for one, other in combinations(sorted(values), 2):
        if one[0] != other[0]:
            yield one, other


def pairs_of(variant: Variant) -> set[Pair]:
    """Return the pairs that a kernel has."""
    problem = variant.problem
    values = values_of(problem.function, variant.strategy.name, problem.layout)
    types = type_values((problem.dtype, problem.out_dtype))
    return {*pairs_between((*values, *types, *hook_values(problem.hooks)))}


@dataclass(frozen=True)
class Kind:
    """What a strategy computes of a function in a layout.

    Attributes:
        function: the function.
        strategy: the strategy.
        layout: the layout, one of LAYOUTS.
        types: of x and of the result.
        hooks: those that it takes.
    """

    function: Function
    strategy: type[Strategy]
    layout: Layout
    types: tuple[Types, ...]
    hooks: tuple[Hook, ...]

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The values of its three factors."""
        return values_of(self.function, self.strategy.name, self.layout)

    @cached_property
    def every_value(self) -> frozenset[Value]:
        """Those, and all that the others may have."""
        types = (value for each in self.types for value in type_values(each))
        return frozenset((*self.values, *types, *hook_values(self.hooks)))

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """The pairs that its kernels may have."""
        found: set[Pair] = set()
        types = {value for each in self.types for value in type_values(each)}
        hooks = hook_values(self.hooks)
        for each in self.types:
            found |= {*pairs_between((*self.values, *type_values(each)))}
        for one in hooks:
            found |= {*pairs_between((*self.values, one))}
        found |= {(one, other) if one < other else (other, one) for one in types for other in hooks}
        return frozenset(found)


def kinds(functions: Iterable[Function]) -> list[Kind]:
    """Return what every strategy declares to compute of functions, but twins, in every layout."""
    return [
        kind
        for function in functions
        if not function.twin
        for layout in LAYOUTS
        for kind in _kinds(function, layout)
    ]


def _kinds(function: Function, layout: Layout) -> Iterator[Kind]:
    plain = [each for cols in _WIDTHS if (each := possible(function, layout, cols=cols))]
    if not plain:
        return
    cols = plain[-1].cols
    typed = {types: possible(function, layout, types, cols=cols) for types in _TYPES}
    hooked = {hook: possible(function, layout, hooks=(hook,), cols=cols) for hook in HOOKS}
    for strategy in all_strategies():
        if not any(map(strategy.computes, plain)):
            continue
        types = (types for types, each in typed.items() if each and strategy.computes(each))
        hooks = (hook for hook, each in hooked.items() if each and strategy.computes(each))
        yield Kind(function, strategy, layout, tuple(types), tuple(hooks))


def possible(
    function: Function,
    layout: Layout,
    types: Types = (DType.FLOAT32, DType.FLOAT32),
    hooks: tuple[Hook, ...] = (),
    *,
    cols: int,
) -> Problem | None:
    """Return such a problem, or None where no kernel computes it."""
    width = _MOST_OF_ANY if isinstance(layout, AnyWidth) else cols
    try:
        return Problem.of(
            *(function, types[0], width), out_dtype=types[1], hooks=hooks, layout=layout
        )
    except SoftgenError:
        return None
