"""Column indices of 32 bits hold all that a kernel makes of them, up to the widest row."""

from __future__ import annotations

import re

import pytest

from softgen.errors import IllegalVariantError
from softgen.problems.arch import KNOWN, arch_named
from softgen.problems.dtypes import DType
from softgen.problems.layouts import ROWS, Columns, Strided
from softgen.problems.problem import INDEX_MARGIN, MAX_INT32_COLS, Problem
from softgen.source.render import render
from softgen.strategies.online import Online
from softgen.strategies.registry import all_strategies
from softgen.strategies.spread import Spread
from softgen.strategies.variants import Variant, candidates, parse_name

H200 = arch_named("sm_90")
LARGEST = 2**31 - 1
CONSTANT = re.compile(r"^constexpr (?:int|Col|long long) (k\w+) = ([^;]+);", re.MULTILINE)


def constants(text: str) -> dict[str, int]:
    """Return the constants of an emitted text, in whole numbers that do not overflow."""
    found: dict[str, int] = {}
    for name, value in CONSTANT.findall(text):
        words = re.sub(r"static_cast<\w+>|\b0x[\da-f]+ull\b", "", value).replace("/", "//")
        try:
            found[name] = int(eval(words, {"__builtins__": {}}, dict(found)))
        except (NameError, SyntaxError, TypeError):
            continue  # of another kind
    return found


def largest_index(text: str) -> int:
    """Return the largest `int` that the loops of an emitted text make of a column or a pack.

    A walk compares `at + (kUnroll - 1) * step < end`, for the last time with at = end - 1 + step:
    from there on it goes one by one. A part of a row begins at `part * kPartPacks`.
    """
    known = constants(text)
    cols, unroll = known["kCols"], known.get("kUnroll", 1)
    largest = cols
    if "visit_columns" in text:
        step = known.get("kStride", 1)
        largest = cols - 1 + step + max(unroll - 1, 1) * step
    elif "visit_packs" in text:
        packs = cols // known["kPackSize"]
        if "kPartPacks" in known:
            packs = max(packs + known["kAllParts"], known["kParts"] * known["kPartPacks"])
        largest = max(cols, packs - 1 + (unroll + 1) * known["kBlockSize"])
    return largest


def near_the_end() -> list[Problem]:
    """Problems whose columns are as many as 32 bits are used for, a few less and more."""
    found = []
    for number, cols in enumerate(
        (MAX_INT32_COLS, MAX_INT32_COLS - 7, MAX_INT32_COLS + 1, 2**31 - 2**17, LARGEST, 2**31)
    ):
        dtype = list(DType)[number % 4]
        for function in ("softmax", "logsumexp", "softmax_backward", "finish"):
            layouts = (Columns(16), Columns(3)) if function[0] == "s" else ()
            found.append(Problem.of(function, dtype, cols))
            found.append(Problem.of(function, dtype, cols, alignment=1))
            found += [Problem.of(function, dtype, cols, layout=each) for each in layouts]
        found.append(Problem.of("softmax", dtype, cols, layout=Strided(1)))
    return found


def test_no_candidate_makes_an_int_that_is_too_large() -> None:
    """Of every strategy: the one whose threads take the most at once, and the best guess."""
    seen = set()
    for problem in near_the_end():
        for kind in all_strategies():
            found = list(candidates(problem, 4, H200, kind.name))
            if not found:
                continue
            greedy = max(found, key=lambda variant: variant.strategy.overrun(problem))
            for variant in {found[0], greedy}:
                text = render(variant).text
                wide = "using Col = long long;" in text
                assert wide is problem.wide_index, variant.name
                assert wide or largest_index(text) <= LARGEST, variant.name
                assert largest_index(text) - problem.cols <= 2 * variant.strategy.overrun(problem)
                seen.add(kind.name)
    assert seen >= {"online", "safe", "split", "spread", "strips", "threepass", "recurrence"}


def test_no_setting_of_softgens_is_refused_for_it() -> None:
    """The margin has room for all candidates of every architecture."""
    for arch in KNOWN.values():
        for layout in (ROWS, Columns(16)):
            near = Problem.of("softmax", "float32", MAX_INT32_COLS, layout=layout)
            for variant in candidates(near, 4, arch):
                assert variant.strategy.overrun(near) < INDEX_MARGIN, variant.name


def test_the_widest_walk_that_softgen_tunes_ends_below_2_to_the_31() -> None:
    """8 columns at once of 132 blocks of 512 threads: 473,088 more than the last one."""
    problem = Problem.of("softmax", "float32", 2**31 - 2**17, layout=Columns(64))
    setting = Spread(1, 1, 512, 1, 132, 1, 1, unroll=8)
    assert (setting.unroll - 1) * setting.stride == 473_088
    text = render(Variant(problem, setting)).text
    assert "using Col = long long;" in text or largest_index(text) <= LARGEST


def test_parts_that_would_run_past_2_to_the_31_are_refused() -> None:
    problem = Problem.of("finish", "float32", MAX_INT32_COLS, alignment=1)
    setting = Online(1, 1, 1024, parts=65536)
    with pytest.raises(IllegalVariantError, match="a column index of 32 bits would run past 2"):
        Variant(problem, setting).check(H200)
    assert not setting.is_legal(problem, H200)
    wide = Problem.of("finish", "float32", MAX_INT32_COLS + 1, alignment=1)
    Variant(wide, setting).check(H200)
    named = parse_name(f"finish_f32_{MAX_INT32_COLS}_align1_online_p1_u1_b1024_s65536")
    with pytest.raises(IllegalVariantError, match="take fewer than 20132"):
        named.check(H200)
