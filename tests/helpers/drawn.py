"""Hypothesis strategies for problems and architectures, and where widths get interesting."""

from __future__ import annotations

from hypothesis import strategies as st

from softgen.problems.arch import KNOWN, Arch
from softgen.problems.dtypes import DType
from softgen.problems.problem import MAX_COLS, MAX_INT32_COLS, Problem
from tests.helpers.single import BOTH

# Edges of warps, packs, registers, blocks, 32-bit indices and of what is accepted.
EDGES = (32, 64, 128, 160, 256, 512, 1000, 1024, 2048, 4096, 5120, 131072, 2**31, MAX_INT32_COLS)

widths = st.one_of(
    st.integers(1, 300),
    st.sampled_from(sorted({edge + d for edge in EDGES for d in (-1, 0, 1)})),
    st.builds(lambda odd, twos: odd << twos, st.integers(1, 999), st.integers(0, 16)),
    st.integers(1, MAX_COLS),
)
alignments = st.one_of(st.none(), st.integers(0, 5).map(lambda exponent: 1 << exponent))
row_counts = st.one_of(st.integers(1, 5000), st.integers(1, 2**40))
archs: st.SearchStrategy[Arch] = st.sampled_from(list(KNOWN.values()))
problems: st.SearchStrategy[Problem] = st.builds(
    lambda algorithm, dtype, cols, out_dtype, alignment: Problem.of(
        algorithm, dtype, cols, out_dtype=out_dtype, alignment=alignment
    ),
    st.sampled_from(BOTH),
    st.sampled_from(DType),
    widths,
    st.one_of(st.none(), st.sampled_from(DType)),
    alignments,
)
