"""The generator as one call: names in, CUDA source text out; needs neither a GPU nor CuPy."""

from __future__ import annotations

from collections.abc import Sequence

from softgen.errors import InvalidValueError
from softgen.problems.arch import DEFAULT_ARCH, Arch, arch_named
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.layouts import layout_from
from softgen.problems.problem import DEFAULT_ROWS, MAX_ROWS, Problem, whole_number
from softgen.source.render import Source, render
from softgen.strategies.select import Choice, select, untimed


def generate(
    function: Function | str,
    dtype: object,
    cols: int,
    *,
    variant: Choice = None,
    rows: int = DEFAULT_ROWS,
    arch: Arch | str = DEFAULT_ARCH,
    out_dtype: object = None,
    alignment: int | None = None,
    inner: int = 1,
    sms: int | None = None,
    batch_invariant: bool = False,
    strided: int = 0,
    sharded: bool = False,
    hooks: Sequence[Hook | str] = (),
) -> Source:
    """Return the CUDA source of one kernel: text only, the same on every machine.

    Args:
        function: its name, for example "softmax" or "logsumexp", or a Function.
        dtype: element type of the input: float16, bfloat16, float32 or float64.
        cols: elements in a row.
        variant: None for the winner that softgen ships for `rows` on the device of `arch`, else the
            best guess; the name of a strategy for its best guess, "oneflow", a step of the ladder
            ("naive"), the label of a setting ("warp_p4_c32_g32_r1_pad_b128"), the full name of a
            variant, a Strategy or a Variant.
        rows: how many rows to choose for, up to 2**40; the kernel takes any number.
        arch: the architecture, for example "sm_90", or an Arch; the header's compile line names it.
        out_dtype: element type of the result; `dtype` by default.
        alignment: where rows start, in elements; see `Problem.of`.
        inner: elements behind the axis that is reduced: memory is (rows / inner, cols, inner).
        sms: how many SMs will run the kernel, from 1 to 1024, where that is another device of
            `arch` or a part of one (MIG, MPS): the choice and the grid are for so many. By default
            as many as the device has that `arch` stands for, 132 for "sm_90". A cooperative kernel
            needs all SMs that it is sized for, `source.variant.launch.multiprocessors`; any other
            runs on any number.
        batch_invariant: whether rows that are no whole packs of 16 bytes are summed in one order
            wherever they lie; see `softmax`. The choice is then one for any number of rows.
        strided: 0 for contiguous arrays, or for views the number of outer axes, up to 3, whose
            sizes and strides the kernel takes.
        sharded: whether several devices hold the rows; `cols` are then those of one, and the kernel
            takes mailboxes (docs/sharded.md).
        hooks: what is done to elements on their way in and out, by name, for example ["causal"];
            docs/hooks.md has them.

    Raises InvalidValueError or InvalidTypeError for an argument that does not fit,
    IllegalVariantError for a variant that cannot compute it on `arch`.

    Example:
        >>> generate("softmax", "float32", 1000, variant="oneflow").name
        'softmax_f32_1000_oneflowwarp_p2_c32_g32_r1_pad_b128_n67584'
    """
    problem = Problem.of(
        *(function, dtype, cols),
        out_dtype=out_dtype,
        alignment=alignment,
        fixed_order=batch_invariant,
        layout=layout_from(inner, strided, sharded),
        hooks=hooks,
    )
    rows = whole_number("rows", rows)
    if not 0 <= rows <= MAX_ROWS:
        raise InvalidValueError(f"rows must be from 0 to 2**40, got {rows}")
    known = arch if isinstance(arch, Arch) else arch_named(arch)
    if sms is not None:
        known = known.with_multiprocessors(whole_number("sms", sms))
    if variant is None:
        return render(untimed(problem, rows, known, batch_invariant).variant, known)
    return render(select(problem, rows, known, variant), known)
