"""plan: a kernel chosen and compiled once, for arrays of one dtype and width, to launch often."""

from __future__ import annotations

from collections.abc import Sequence

from softgen.call.kernel import Kernel
from softgen.call.kernels import INVARIANT, kernel_for
from softgen.devices.gpu.device import require_device
from softgen.errors import InvalidValueError
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.layouts import layout_from
from softgen.problems.problem import Problem, whole_number
from softgen.strategies.select import Choice
from softgen.tuning.policy import NOMINAL_ROWS, batch_invariant_default, tune_mode


def plan(
    function: Function | str,
    dtype: object,
    cols: int,
    *,
    rows: int | None = None,
    out_dtype: object = None,
    alignment: int | None = None,
    inner: int = 1,
    tune: str | None = None,
    variant: Choice = None,
    batch_invariant: bool | None = None,
    pdl: bool = True,
    strided: int = 0,
    hooks: Sequence[Hook | str] = (),
) -> Kernel:
    """Choose and compile once for the current device, and return the kernel to launch many times.

    Args:
        function: its name, for example "softmax" or "logsumexp".
        dtype: of the input, as a name or a NumPy / PyTorch dtype.
        cols: elements in a row.
        rows: the number of rows to choose for (any number can be launched); 4096 by default.
        out_dtype: of the result; `dtype` by default.
        alignment: rows start on a multiple of this many elements; by default what `cols` gives for
            arrays as they are allocated, 1 for any.
        inner: elements behind the axis that is reduced: x is then (..., cols, inner), contiguous,
            and results of a row are (..., inner).
        tune: as in `softmax`.
        variant: as in `softmax`.
        batch_invariant: as in `softmax`; `rows` and `tune` then move nothing.
        pdl: as in `softmax`.
        strided: 0 for contiguous arrays; up to 3 for views of so many outer axes or fewer, whose
            last axis is contiguous, contiguous arrays too.
        hooks: what is done to elements on their way in and out, by name, for example ["causal"]; a
            call takes their values behind x, in the order of docs/hooks.md.

    Returns:
        A Kernel: `kernel(x)` or `kernel(x, out)`; it has `.variant`, `.source` and `.registers`.
    """
    invariant = batch_invariant_default() if batch_invariant is None else batch_invariant
    problem = Problem.of(
        *(function, dtype, cols),
        out_dtype=out_dtype,
        alignment=alignment,
        fixed_order=invariant,
        layout=layout_from(inner, strided),
        hooks=hooks,
    )
    nominal = NOMINAL_ROWS if rows is None else whole_number("rows", rows)
    if nominal < 1:
        raise InvalidValueError(f"rows must be at least 1, got {rows!r}")
    device = int(require_device().cuda.runtime.getDevice())
    mode = INVARIANT if invariant else tune_mode(tune)
    return Kernel(kernel_for(problem, nominal, device, mode, variant), pdl)
