"""Few kernels that have every pair that functions and strategies declare."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product

from softgen.problems.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.problems.functions import all_functions
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.layouts import AnyWidth, Columns, Layout
from softgen.strategies.variants import Variant, candidates
from softgen.verify.pairs import (
    Kind,
    Pair,
    Types,
    Value,
    hook_values,
    kinds,
    pairs_between,
    pairs_of,
    possible,
    type_values,
)
from softgen.verify.problems import CHOICES, SEVERAL_IDS

MOST_HOOKS = 3  # of a kernel: with more one may hide what another does
_ROWS = 64  # moves the best guess only

# The first that a strategy is there for is taken: what runs in the least time.
_WIDTHS = (33, 1000, 96, 5000, 20000, 32768)
_COLUMNS = ((21, 3), (96, 8), (97, 24), (1000, 3), (1000, 6), (5000, 16), (20001, 3), (20000, 4))

_CHOICES_OF_GROUPS = (
    "topk_softmax_k3_g3of2",
    "topk_softmax_k64_g32of31_norm",
    "topk_softmax_k8_sigmoid_bias_g8of4_norm",
)
_CHOICES_OF_SCORES = ("topk_softmax_k6_bias", "topk_softmax_k64_bias_norm")

# Pairs that functions and strategies declare and no setting of a strategy takes: the reason, the
# functions, and what none of them has.
_REFUSED: tuple[tuple[str, tuple[str, ...], tuple[Value, ...]], ...] = (
    (
        "groups, and scores that need a row's sum, take one exchange more than a block has",
        (*_CHOICES_OF_GROUPS, *_CHOICES_OF_SCORES),
        (("strategy", "block"), ("strategy", "cluster")),
    ),
    (
        "what is found while a row is read are its largest elements, of x, and the sum of all",
        (
            *(*_CHOICES_OF_GROUPS, *_CHOICES_OF_SCORES),
            *("topk_softmax_k1_sigmoid", "topk_softmax_k6_sigmoid_bias", "topk_softmax_k20_norm"),
        ),
        (("strategy", "online"),),
    ),
    (
        "while a row is read what is larger than one id is counted",
        ("ranked_log_probs_top1_k3", "ranked_log_probs_top64_k64"),
        (("strategy", "online"),),
    ),
    (
        "groups must divide the columns, of which a launch says how many there are",
        _CHOICES_OF_GROUPS[1:],  # 3 do not divide the most columns
        (("layout", "AnyWidth"),),
    ),
)
WITHOUT: Mapping[Pair, str] = {
    **{
        (("function", function), value): reason
        for reason, functions, values in _REFUSED
        for function, value in product(functions, values)
    },
    **dict.fromkeys(
        (
            (("dtype", "float64"), ("strategy", "oneflowwarp")),
            (("out_dtype", "float64"), ("strategy", "oneflowwarp")),
        ),
        "OneFlow holds no row of float64 in registers",
    ),
}


@functools.cache
def pairwise() -> tuple[Variant, ...]:
    """Return kernels with every declared pair, but those of WITHOUT, which a test looks for."""
    found, _ = covering(declared_kinds(), arch_named(DEFAULT_ARCH), WITHOUT)
    return tuple(found)


def declared_kinds() -> list[Kind]:
    """Return what strategies declare to compute of every function."""
    listed = (Function.of(name) for name, *_ in (*CHOICES, *SEVERAL_IDS))
    return kinds((*all_functions(), *listed))


def covering(
    kinds: Sequence[Kind], arch: Arch, without: Iterable[Pair] = ()
) -> tuple[list[Variant], set[Pair]]:
    """Return kernels, and the pairs that none of them has: greedily, the rarest pairs first.

    Pairs of `without` are not looked for.
    """
    missing: set[Pair] = set().union(*(kind.pairs for kind in kinds))
    able: dict[Pair, list[Kind]] = {}
    for kind in kinds:
        for pair in kind.pairs:
            able.setdefault(pair, []).append(kind)
    missing.difference_update(without)
    chosen: list[Variant] = []
    for pair in sorted(missing, key=lambda pair: (len(able[pair]), pair)):
        if pair in missing:
            for variant in _having(pair, able[pair], missing, arch, len(chosen)):
                chosen.append(variant)
                missing -= pairs_of(variant)
                break
    return chosen, missing


def _having(
    pair: Pair, able: Sequence[Kind], missing: set[Pair], arch: Arch, turn: int
) -> Iterator[Variant]:
    """Yield kernels that have `pair`: first those that bring the most that are missing."""

    def gain(kind: Kind) -> int:
        return -sum(each in missing for each in pairs_between(kind.values))

    for kind in sorted(able, key=gain):
        own = tuple(hook for hook in kind.hooks if ("hook", hook.name) in pair)
        for types in _best_types(kind, pair, missing, turn):
            for hooks in dict.fromkeys((_more_hooks(kind, types, own, missing), own)):
                yield from _kernels(kind, types, hooks, arch, turn)


def _best_types(kind: Kind, pair: Pair, missing: set[Pair], turn: int) -> list[Types]:
    """Return types that have `pair`, the most gainful first; where several are they take turns."""

    def gain(types: Types) -> int:
        return -sum(each in missing for each in pairs_between((*kind.values, *type_values(types))))

    wanted = {value for value in pair if value[0] in ("dtype", "out_dtype")}
    fitting = [types for types in kind.types if wanted <= {*type_values(types)}]
    at = turn % len(fitting)
    return sorted((*fitting[at:], *fitting[:at]), key=gain)


def _more_hooks(
    kind: Kind, types: Types, hooks: tuple[Hook, ...], missing: set[Pair]
) -> tuple[Hook, ...]:
    """Return hooks with others, one of a kind, that bring pairs that are missing."""
    found = list(hooks)
    values = (*kind.values, *type_values(types))
    for hook in kind.hooks:
        if len(found) < MOST_HOOKS and hook.kind not in [each.kind for each in found]:
            brought = pairs_between((*values, *hook_values([hook])))
            if any(pair in missing and hook_values([hook])[0] in pair for pair in brought):
                found.append(hook)
    return tuple(found)


def _kernels(
    kind: Kind, types: Types, hooks: tuple[Hook, ...], arch: Arch, turn: int
) -> Iterator[Variant]:
    """Yield the best guess for the narrowest row that the strategy is there for."""
    for layout, cols in _sizes(kind.layout, turn):
        problem = possible(kind.function, layout, types, hooks, cols=cols)
        if problem is not None:
            yield from islice(candidates(problem, _ROWS, arch, kind.strategy.name), 1)


def _sizes(layout: Layout, turn: int) -> Iterator[tuple[Layout, int]]:
    """Yield layouts of a class with numbers of columns; whole packs and others take turns."""
    if isinstance(layout, Columns):
        for cols, inner in _COLUMNS[turn % 2 :]:
            yield Columns(inner), cols
    elif isinstance(layout, AnyWidth):
        yield layout, 1
    else:
        first = _WIDTHS[:2]
        for cols in (*(first[::-1] if turn % 2 else first), *_WIDTHS[2:]):
            yield layout, cols
