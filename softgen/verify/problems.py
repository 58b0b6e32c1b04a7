"""What `softgen verify` asks of kernels: functions, types, widths, hooks and layouts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from random import Random

from softgen.problems.dtypes import DType, Float8
from softgen.problems.functions import all_functions
from softgen.problems.hooks.known import all_hooks
from softgen.problems.layouts import AnyWidth, Columns, Strided
from softgen.problems.problem import MAX_INT32_COLS, Problem
from softgen.problems.shards import SHARDS
from softgen.strategies.base import Strategy
from softgen.strategies.registry import all_strategies

# One column, less than a pack, a warp and one more, no power of two, odd, more than OneFlow's 1024.
WIDTHS = (1, 7, 32, 33, 100, 256, 1000, 1001, 1500)

# Rows that start anywhere.
MISALIGNED_WIDTHS = (33, 1000)

# The same, summed in an order that does not depend on where they start.
FIXED_WIDTHS = (33, 1001)

# Rows for many threads, by the strategies that are there for them. Odd ones start anywhere.
WIDE_WIDTHS = {
    2049: ("block", "shared"),
    5000: ("block", "shared"),
    8193: ("cluster", "shared"),
    20000: ("cluster", "shared", "split"),
    32768: ("cooperative",),
}
WIDEST = 50257
WIDEST_STRATEGIES = ("cluster", "split")
WIDEST_DTYPES = (DType.FLOAT32, DType.BFLOAT16)

# The functions that are verified at all of these, and what suffices for the others, whose kernels
# differ from theirs in what they write.
WIDELY = ("softmax", "log_softmax")
FEW_WIDTHS = (33, 1000)
FEW_WIDE_WIDTHS = (5000, 20000, 32768)

MIXED_WIDTHS = (33, 1000)
MIXED = (
    (DType.BFLOAT16, DType.FLOAT32),
    (DType.FLOAT16, DType.FLOAT32),
    (DType.FLOAT32, DType.FLOAT16),
    (DType.FLOAT32, DType.BFLOAT16),
    (DType.FLOAT32, DType.FLOAT64),
)

# Results of 8 bits: of rows for one thread to those for many, and of columns.
FLOAT8 = (
    ("softmax", DType.BFLOAT16, Float8.E4M3),
    ("softmax", DType.FLOAT32, Float8.E5M2),
    ("log_softmax_lse", DType.FLOAT16, Float8.E5M2),
    ("log_softmax", DType.FLOAT32, Float8.E4M3),
)
FLOAT8_WIDTHS = (33, 1000)

# Hooks, each alone and some together, at widths that start on packs and that do not. Wide ones
# have rows for many threads.
HOOK_WIDTHS = (1000, 33)
HOOK_WIDE_WIDTHS = (20000, 32768)
HOOK_SETS = (
    ("scale", "causal"),
    ("scaleany", "maskany", "zeroempty"),
    ("scalerow", "softcap", "biasbf16", "dropout"),
    ("softcap", "causal", "sinkbf16"),
    ("biasf32any", "lengthsi32", "causal"),
    ("mask", "lengthsi64", "sinkf32", "zeroempty", "outscale"),
    ("scale", "biasf16", "mask", "causal", "sinkf16", "zeroempty", "outscale", "dropout"),
)
HOOK_SETS_WIDE = (("mask", "sinkf32"), ("scalerow", "biasbf16"), ("lengthsi64",), ("dropout",))
DRAWN_SETS, DRAWN_SEED = 20, 0  # more sets, of hooks that go together
OF_LOGARITHMS = (("scale", "causal"), ("softcap", "biasf32", "sinkf32"), ("maskany", "zeroempty"))

# Columns of memory: (columns, inner, type), with inner whole packs, less than a pack and odd, and
# rows that one thread, one warp, a block and a cluster hold.
COLUMNS = (
    (1, 16, DType.FLOAT32),
    (3, 4, DType.FLOAT32),
    (21, 2, DType.BFLOAT16),
    (21, 3, DType.FLOAT64),
    (21, 1024, DType.FLOAT16),
    (128, 77, DType.FLOAT32),
    (128, 1024, DType.BFLOAT16),
    (1001, 3, DType.FLOAT16),
    (1001, 16, DType.FLOAT64),
    (5000, 2, DType.FLOAT64),
    (5000, 16, DType.FLOAT32),
    (5000, 77, DType.BFLOAT16),
    (20001, 3, DType.BFLOAT16),
    (20001, 4, DType.FLOAT16),
)
HOOKED_COLUMNS = ((21, 3, DType.BFLOAT16), (5000, 16, DType.FLOAT32))
HOOKED_PLACES = ((21, 3), (300, 8), (97, 24))  # with hooks that ask for the place of an element
# What starts anywhere, and results of other types.
OTHER_COLUMNS = (300, 24)

# Rows of views, by the number of outer axes, each at two alignments.
STRIDED = (
    ("softmax", DType.FLOAT32, 1000, 1),
    ("softmax", DType.BFLOAT16, 33, 1),
    ("log_softmax_lse", DType.FLOAT16, 1001, 2),
    ("softmax", DType.FLOAT64, 1000, 3),
    ("logsumexp", DType.BFLOAT16, 1000, 2),
    ("finish", DType.FLOAT32, 33, 2),
    ("softmax", DType.BFLOAT16, 5000, 2),
    ("softmax", DType.FLOAT32, 20000, 1),
    ("log_softmax", DType.BFLOAT16, 32768, 3),
)

# Rows whose width is a number of the launch, and the one that it is.
ANY_WIDTH = 1001
OF_ANY_WIDTH: tuple[tuple[str, DType, tuple[str, ...]], ...] = (
    ("softmax", DType.BFLOAT16, ()),
    ("log_softmax_lse", DType.FLOAT64, ()),
    ("logsumexp", DType.FLOAT16, ()),
    ("softmax_backward", DType.FLOAT32, ()),
    ("cross_entropy_grad_smooth", DType.FLOAT32, ()),
    ("token_log_probs_entropy", DType.BFLOAT16, ()),
    ("topk_softmax_k20_norm", DType.FLOAT16, ()),
    ("softmax", DType.FLOAT32, ("mask", "lengthsi64", "sinkf32")),
    ("softmax", DType.BFLOAT16, ("scale", "biasf32any", "causal", "dropout")),
)

# Rows on several devices: those of a block, of several blocks, and of rows side by side in one.
SHARDED = (
    ("softmax", DType.FLOAT32, 1000),
    ("softmax", DType.BFLOAT16, 33),
    ("log_softmax_lse", DType.FLOAT16, 1001),
    ("log_softmax", DType.FLOAT64, 33),
    ("softmax_lse", DType.BFLOAT16, 2049),
    ("softmax", DType.FLOAT32, 1),
    ("logsumexp", DType.BFLOAT16, 1000),
    ("partial", DType.FLOAT32, 33),
    ("entropy", DType.FLOAT32, 1000),
    ("softmax", DType.BFLOAT16, 8193),
    ("cross_entropy", DType.BFLOAT16, 1000),
    ("cross_entropy", DType.FLOAT64, 33),
    ("cross_entropy_i32", DType.FLOAT32, 8193),
    ("merge", DType.FLOAT32, 1),
    ("merge_losses", DType.FLOAT32, 1),
    ("merge_losses", DType.FLOAT64, 1),
)


# Choices of scores, which only some strategies take: those with a sum, and those of groups.
CHOICES = (
    ("topk_softmax_k6_bias", DType.FLOAT16, 1000),
    ("topk_softmax_k64_bias_norm", DType.FLOAT32, 160),
    ("topk_softmax_k8_sigmoid_bias_g8of4_norm", DType.BFLOAT16, 256),
    ("topk_softmax_k3_g3of2", DType.FLOAT64, 33),
    ("topk_softmax_k64_g32of31_norm", DType.FLOAT32, 384),
    ("topk_softmax_k33", DType.BFLOAT16, 1000),
    ("ranked_log_probs_top64_k64", DType.BFLOAT16, 1000),
    ("ranked_log_probs_top1_i32", DType.FLOAT64, 33),
)

# Rows of several ids, of 32 and 64 bits: two, more than a thread of a warp holds, and the most.
SEVERAL_IDS = (
    ("token_log_probs_k2", DType.FLOAT16, 1000),
    ("token_log_probs_lse_k17", DType.BFLOAT16, 1000),
    ("token_log_probs_entropy_i32_k64", DType.FLOAT32, 33),
    ("token_log_probs_backward_k2", DType.FLOAT32, 1000),
    ("token_log_probs_backward_k17", DType.FLOAT64, 33),
    ("token_log_probs_backward_entropy_i32_k64", DType.BFLOAT16, 1000),
)


def problems(every: bool = False) -> list[Problem]:
    """Return the problems to verify.

    With `every` all hooks and many sets of them with each type, and all functions of views.
    """
    found = []
    for function in all_functions():
        if function.twin:  # whose texts differ by the type of an integer
            found.append(Problem.of(function, DType.FLOAT32, FEW_WIDTHS[0]))
            continue
        widely = function.name in WIDELY
        for dtype in DType:
            whole, misaligned, fixed, wide = (
                (WIDTHS, MISALIGNED_WIDTHS, FIXED_WIDTHS, WIDE_WIDTHS)
                if widely
                else (
                    FEW_WIDTHS,
                    FEW_WIDTHS[:1],
                    FEW_WIDTHS[:1],
                    FEW_WIDE_WIDTHS,
                )
            )
            found += [Problem.of(function, dtype, cols) for cols in whole]
            found += [Problem.of(function, dtype, cols, alignment=1) for cols in misaligned]
            found += [Problem.of(function, dtype, cols, fixed_order=True) for cols in fixed]
            found += [Problem.of(function, dtype, cols) for cols in wide]
        for x_type, y_type in MIXED:
            cols_of_all = MIXED_WIDTHS if widely else MIXED_WIDTHS[:1]
            found += [Problem.of(function, x_type, cols, out_dtype=y_type) for cols in cols_of_all]
    found += _float8_problems()
    for name, dtype, cols, outer in STRIDED:
        layout = Strided(outer)
        found.append(Problem.of(name, dtype, cols, layout=layout))
        if cols < max(WIDE_WIDTHS):  # whose strategy takes whole packs only
            found.append(Problem.of(name, dtype, cols, layout=layout, alignment=1))
    found.append(Problem.of("softmax", "bfloat16", 1001, layout=Strided(1), fixed_order=True))
    found += [
        Problem.of(function, dtype, MAX_INT32_COLS, hooks=hooks, layout=AnyWidth())
        for function, dtype, hooks in OF_ANY_WIDTH
    ]
    found += [Problem.of(*each) for each in (*CHOICES, *SEVERAL_IDS)]
    found += [Problem.of(*each, layout=SHARDS) for each in SHARDED]
    for fixed_order in (False, True):
        found += [
            Problem.of("softmax", dtype, WIDEST, fixed_order=fixed_order) for dtype in WIDEST_DTYPES
        ]
    found += hooked_problems()
    found += _columns_problems()
    found += _products() if every else []
    return [
        problem
        for problem in dict.fromkeys(found)  # 33 columns are misaligned anyway
        if any(kind.computes(problem) for kind in _kinds_for(problem))
    ]


def problems_of(widths: Sequence[int]) -> list[Problem]:
    """Return the problems of contiguous rows so wide: each function, with each type."""
    return [
        Problem.of(function, dtype, cols)
        for function in all_functions()
        if not function.twin
        for dtype in DType
        for cols in widths
        if cols >= function.least_cols
    ]


def _float8_problems() -> list[Problem]:
    """Return problems whose results have 8 bits: each type and width takes turns with the rest."""
    found = []
    for i, (function, x_type, y_type) in enumerate(FLOAT8):
        one = functools.partial(Problem.of, function, x_type, out_dtype=y_type)
        found += [one(cols) for cols in FLOAT8_WIDTHS]
        found.append(one(FEW_WIDE_WIDTHS[i % len(FEW_WIDE_WIDTHS)]))
        found.append(one(FLOAT8_WIDTHS[i % 2], alignment=1, fixed_order=i % 2 == 0))
        found.append(one(OTHER_COLUMNS[0], layout=Columns(OTHER_COLUMNS[1])))
        if function == "softmax":
            found.append(one(FLOAT8_WIDTHS[i], hooks=("scale", "outscalerow")))
    return found


def hooked_problems() -> list[Problem]:
    """Return problems with hooks to verify: types and widths take turns."""
    types = list(DType)
    sets = [*((hook.name,) for hook in all_hooks()), *HOOK_SETS]
    found = [
        Problem.of("softmax", types[i // 2 % len(types)], HOOK_WIDTHS[i % 2], hooks=hooks)
        for i, hooks in enumerate(sets)
    ]
    found += [
        Problem.of("softmax", types[i % len(types)], HOOK_WIDTHS[i // 4 % 2], hooks=hooks)
        for i, hooks in enumerate(drawn_sets())
    ]
    found += [
        Problem.of("softmax", types[i % len(types)], cols, hooks=hooks)
        for i, hooks in enumerate(HOOK_SETS_WIDE)
        for cols in HOOK_WIDE_WIDTHS
    ]
    found.append(
        Problem.of("softmax", "bfloat16", 1000, hooks=HOOK_SETS[-1], layout=Strided(2), alignment=1)
    )
    for i, hooks in enumerate(OF_LOGARITHMS):
        dtype = types[-1 - i]
        found.append(Problem.of("log_softmax_lse", dtype, HOOK_WIDTHS[i % 2], hooks=hooks))
        if "zeroempty" not in hooks:
            found.append(Problem.of("logsumexp", dtype, HOOK_WIDTHS[i % 2], hooks=hooks))
    for i, hooks in enumerate((("scalerow",), ("softcap", "mask"), ("scale", "causal"))):
        of = ("ranked_log_probs_top20", "ranked_log_probs_top1_k3")[i % 2]
        found.append(Problem.of(of, types[i], HOOK_WIDTHS[i % 2], hooks=hooks))
    for i, hooks in enumerate((("softcap", "mask"), ("biasf32",), ("softcap", "biasbf16", "mask"))):
        for j, of in enumerate(("topk_softmax_k8", "topk_softmax_k6_sigmoid_bias")):
            found.append(Problem.of(of, types[(i + j) % 3], HOOK_WIDTHS[j], hooks=hooks))
    # Those to which the pair of a row is given, which is that of x as it is: no hook that would
    # make larger elements of it.
    for function in all_functions():
        if function.hookable and not function.reduces and not function.twin:
            for hooks in (("causal",), ("lengthsi64",)):
                if "causal" not in function.barred:
                    found.append(Problem.of(function, DType.FLOAT32, HOOK_WIDTHS[0], hooks=hooks))
    # Gradients with respect to x as it is before hooks, which find lse of what those make of it.
    sloped = [each for each in all_functions() if "mask" in each.barred and not each.twin]
    for i, function in enumerate(each for each in sloped if each.hookable and each.reduces):
        for j, hooks in enumerate((("softcap",), ("scale", "softcap"), ("scaleany",))):
            dtype, cols = types[(i + j) % len(types)], HOOK_WIDTHS[(i + j) % 2]
            found.append(Problem.of(function, dtype, cols, hooks=hooks))
    return found


def _products() -> list[Problem]:
    """Return each hook and each set with each type, and each function of views with each type."""
    sets = [*((hook.name,) for hook in all_hooks()), *HOOK_SETS, *drawn_sets()]
    found = [
        Problem.of("softmax", dtype, HOOK_WIDTHS[(i + j) % 2], hooks=hooks)
        for i, hooks in enumerate(sets)
        for j, dtype in enumerate(DType)
    ]
    types = list(DType)
    found += [
        Problem.of("softmax", types[i % len(types)], cols, hooks=(hook,))
        for i, hook in enumerate(all_hooks())
        for cols in HOOK_WIDE_WIDTHS
    ]
    found += [_hooked_columns(i, hooks) for i, hooks in enumerate(drawn_sets())]
    found += [
        _hooked_columns(i + 2 * j, (hook.name,))
        for i, hook in enumerate(all_hooks())
        for j in range(4)
    ]
    for i, function in enumerate(all_functions()):
        for j, dtype in enumerate(DType):
            layout = Strided(1 + (i + j) % 3)
            found.append(Problem.of(function, dtype, HOOK_WIDTHS[(i + j) % 2], layout=layout))
    return found


def drawn_sets() -> list[tuple[str, ...]]:
    """Return sets of two to six hooks, of one kind each, by a seed."""
    random = Random(DRAWN_SEED)
    kinds: dict[str, list[str]] = {}
    for hook in all_hooks():
        kinds.setdefault(hook.kind, []).append(hook.name)
    return [
        tuple(random.choice(kinds[kind]) for kind in random.sample([*kinds], random.randint(2, 6)))
        for _ in range(DRAWN_SETS)
    ]


def _columns_problems() -> list[Problem]:
    """Return those of columns: softmax at all sizes, the other functions at one each."""
    found = [
        Problem.of("softmax", dtype, cols, layout=Columns(inner)) for cols, inner, dtype in COLUMNS
    ]
    hooks = ("scale", "outscale", "zeroempty")  # those that ask for no place
    found += [
        Problem.of("softmax", dtype, cols, hooks=hooks, layout=Columns(inner))
        for cols, inner, dtype in HOOKED_COLUMNS
    ]
    sets = [*({hook.kind: (hook.name,) for hook in all_hooks()}.values()), *HOOK_SETS]
    found += [_hooked_columns(i, hooks) for i, hooks in enumerate(sets)]
    cols, inner = OTHER_COLUMNS
    for dtype in DType:
        found.append(Problem.of("log_softmax", dtype, cols, layout=Columns(inner), alignment=1))
    for x_type, y_type in MIXED:
        found.append(Problem.of("softmax", x_type, cols, out_dtype=y_type, layout=Columns(inner)))
    for function in all_functions():
        if function.name not in WIDELY and not function.twin:
            found.append(Problem.of(function, DType.FLOAT32, 96, layout=Columns(8)))
    return found


def _hooked_columns(number: int, hooks: Sequence[str]) -> Problem:
    """Return a problem of columns with hooks; types, sizes and functions take turns."""
    types = list(DType)
    cols, inner = HOOKED_PLACES[number % len(HOOKED_PLACES)]
    leaves = {"outscale", "outscalerow", "dropout"} & {*hooks}
    function = "softmax" if leaves or number % 2 else "log_softmax_lse"
    dtype = types[number // 2 % len(types)]
    return Problem.of(function, dtype, cols, hooks=hooks, layout=Columns(inner))


def wanted_strategies(problem: Problem) -> tuple[str, ...]:
    """Return the strategies that rows so wide are for; nothing if for all."""
    cols = 0 if isinstance(problem.layout, Columns) else problem.cols
    return WIDEST_STRATEGIES if cols == WIDEST else WIDE_WIDTHS.get(cols, ())


def _kinds_for(problem: Problem) -> list[type[Strategy]]:
    wanted = wanted_strategies(problem)
    return [kind for kind in all_strategies() if not wanted or kind.name in wanted]
