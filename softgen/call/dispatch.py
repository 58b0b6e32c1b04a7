"""The full path of a call: from its arrays to a launch, with all checks.

A call that has an entry goes past it (runner.py). PyTorch's dispatcher is no part of it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from softgen.call.axes import Reduced, reduced
from softgen.call.kernels import INVARIANT, is_captured, kernel_for, launch_on_fewer, serves_views
from softgen.call.library import Library, library_of, usable_alignment
from softgen.call.outputs import Output, require_fit, resolve_outputs
from softgen.call.runner import Calls
from softgen.call.transpose import run_transposed
from softgen.call.views import Placed, copied, numbers_of, placed, share_memory
from softgen.devices.gpu.driver import on_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.launcher import Launcher
from softgen.errors import CaptureError, InvalidTypeError, InvalidValueError, LaunchError
from softgen.problems.dtypes import DType, result_type
from softgen.problems.functions.base import Function
from softgen.problems.layouts import ROWS
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from softgen.strategies.base import features_of
from softgen.tuning.policy import batch_invariant_default, tune_mode

if TYPE_CHECKING:
    from softgen.strategies.select import Choice


@functools.cache
def calls_of(function: str, pdl: bool = True, hooks: tuple[str, ...] = ()) -> FunctionCalls:
    """Return the calls of the function that is called so; without `pdl`, by plain launches.

    With `hooks`, by name, the inputs beside x are what those take.
    """
    return FunctionCalls(function, pdl, hooks)


class FunctionCalls(Calls):
    """The calls of a function, which choose a kernel for their arrays.

    Attributes:
        function: its name.
        pdl: as in `api.softmax`.
        hooks: by name; what they take comes last among the inputs.
    """

    def __init__(self, function: str, pdl: bool = True, hooks: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.function, self.pdl, self.hooks = function, pdl, hooks

    @property
    def operands(self) -> Sequence[Operand]:
        """What a call is given and makes: of any type the same."""
        function = Function.of(self.function)
        return Problem.of(function, DType.FLOAT32, function.least_cols, hooks=self.hooks).given

    def dispatch(
        self,
        request: tuple[Any, ...] | None,
        x: Any,
        out: Any,
        axis: int | tuple[int, ...] | None,
        dtype: object,
        tune: str | None,
        choice: Choice,
        batch_invariant: bool | None,
        rest: Sequence[Any] = (),
    ) -> Any:
        """Return the result of a call that has no entry, and keep one under `request`."""
        given = x
        library, x = library_of(x)
        x_type = library.dtype(x)
        along = reduced(x.shape, axis)
        mode = tune_mode(tune)
        device = library.device(x)
        invariant = batch_invariant_default() if batch_invariant is None else batch_invariant
        # A row of nothing has no kernel, but its operands have types and shapes.
        shape_only = Problem.of(
            *(Function.of(self.function), x_type, max(1, along.cols)),
            out_dtype=x_type if dtype is None else result_type(dtype),
            hooks=self.hooks,
            layout=along.layout,
        )
        if _has_no_kernel(along, shape_only) and 0 not in x.shape:

            def run(arrays: Sequence[Any], last: tuple[int, ...]) -> Any:
                options = (last, dtype, tune, choice, batch_invariant)
                return self.dispatch(None, arrays[0], None, *options, arrays[1:])

            with on_device(device):
                if out is not None:
                    require_fit(library, x, out, shape_only, along.row_shape)
                others = other_inputs(library, x, shape_only, rest, (), along.row_shape)
                return run_transposed(library, shape_only, along.axes, (x, *others), out, run)
        with on_device(device):
            stream = library.stream(device)
            captured = library.mallocs_in_capture and is_captured(stream)
            require_room(captured, out, shape_only)
            last = along.axes in ((), (x.ndim - 1,))  # views are of those
            outputs = resolve_outputs(library, x, out, shape_only, along.row_shape, views=last)
            others = other_inputs(library, x, shape_only, rest, outputs, along.row_shape)
            if 0 in x.shape:
                return _of_nothing(library, shape_only, others, outputs)
            rows = math.prod(x.shape) // along.cols
            found = _placed(library, shape_only, [x, *others], outputs, last)
            problem = _problem_of(library, shape_only, found, invariant)
            if invariant and problem.alignment < shape_only.alignment:
                # The kernel of another alignment might sum in another order.
                if captured:
                    raise CaptureError(
                        f"rows that do not start on {shape_only.alignment} elements are copied for "
                        "batch_invariant, and CuPy cannot allocate the copy while a stream is "
                        "captured; copy them before"
                    )
                found = _aligned(library, shape_only, found)
                problem = _problem_of(library, shape_only, found, invariant)
            wanted = INVARIANT if invariant else mode
            if not serves_views(problem, rows, device, wanted, choice, library):
                found = copied(library, shape_only, found)
                problem = _problem_of(library, shape_only, found, invariant)
            kernel = kernel_for(problem, rows, device, wanted, choice, library)

            def fewer(error: LaunchError) -> Launcher:
                return launch_on_fewer(kernel, rows, stream, library, choice, error, pdl=self.pdl)

            kept = request if mode != "force" else None
            asked = (given, *rest)
            return launched(
                self, kept, library, kernel, problem, rows, found, asked, out, fewer, self.pdl
            )


def launched(
    calls: Calls,
    request: tuple[Any, ...] | None,
    library: Library,
    kernel: LoadedKernel,
    problem: Problem,
    rows: int,
    found: Placed,
    asked: Sequence[Any],
    out: Any,
    fewer: Callable[[LaunchError], Launcher],
    pdl: bool,
) -> Any:
    """Launch a kernel on arrays that were checked, keep an entry, and return the result, or all.

    Args:
        calls: what keeps it.
        request: under what; None for a call that cannot be kept.
        library: of all arrays; the device is current.
        kernel: the kernel.
        problem: what it computes.
        rows: how many.
        found: the arrays.
        asked: the inputs as the caller gave them: what was copied for a launch is copied each time.
        out: the caller's array for the first result, or None.
        fewer: returns the launch where the stream has too few SMs for the kernel.
        pdl: as in `api.softmax`.
    """
    fixed = numbers_of(problem, found.placement, rows)
    words = [*words_of(library, problem, found), *fixed.values()]
    launch = kernel.launcher(rows, library, pdl=pdl, fixed=fixed)
    stream = library.stream(library.device(found.inputs[0]))
    try:
        launch(words, stream)
    except LaunchError as error:
        fewer(error)(words, stream)
    else:
        if all(map(operator.is_, found.inputs, asked)):
            calls.keep(request, library, problem.given, found.inputs, out, found.outputs, launch)
    return finished(library, found.outputs)


def _aligned(library: Library, problem: Problem, found: Placed) -> Placed:
    """Return the same in arrays of their own, whose rows start where kernels like it best."""
    copies = [
        library.copy(each) if operand.extent is Extent.ELEMENT else each
        for operand, each in zip(problem.inputs, found.inputs, strict=True)
    ]
    elsewhere = [
        output.elsewhere(library, operand.dtype)
        for operand, output in zip(problem.results, found.outputs, strict=True)
    ]
    return Placed(copies, elsewhere, None, problem.layout)


def _problem_of(library: Library, shape_only: Problem, found: Placed, invariant: bool) -> Problem:
    """Return the problem of these arrays."""
    words = words_of(library, shape_only, found)
    strides = found.placement.strides if found.placement else ()
    return Problem.of(
        *(shape_only.function, shape_only.dtype, shape_only.cols),
        out_dtype=shape_only.out_dtype,
        alignment=usable_alignment(shape_only.alignment, shape_only.operands, words, strides),
        fixed_order=invariant,
        hooks=shape_only.hooks,
        layout=found.layout,
    )


def require_room(captured: bool, out: Any, problem: Problem) -> None:
    """Raise CaptureError if a result would be allocated where a capture would break."""
    if captured and (out is None or len(problem.results) > 1):
        advice = "pass out=" if len(problem.results) == 1 else "capture with PyTorch"
        raise CaptureError(
            f"a result cannot be allocated while a CuPy stream is captured; {advice}"
        )


def _has_no_kernel(along: Reduced, problem: Problem) -> bool:
    """Whether memory has no such rows, or only the oracle knows the function for them."""
    if along.moves or problem.layout is ROWS:
        return along.moves
    from softgen.strategies.strips import Strips  # calls along the last axis do without

    return bool(features_of(problem) - Strips.takes)


def _placed(
    library: Library, problem: Problem, inputs: list[Any], outputs: list[Output], views: bool
) -> Placed:
    """Return the arrays of a launch: views where they are, or copies of what is not contiguous."""
    if not views:
        dense = copied(library, problem, Placed(inputs, outputs, None, ROWS))
        return dense._replace(layout=problem.layout)
    found = placed(library, problem, inputs, outputs)
    assert found is not None  # it copies what it must
    return found


def other_inputs(
    library: Library,
    x: Any,
    problem: Problem,
    given: Sequence[Any],
    outputs: Sequence[Output],
    row_shape: tuple[int, ...],
) -> list[Any]:
    """Return the inputs beside x: those of a row each contiguous, others as they are.

    Raise unless each array belongs to x and stays as it is. `row_shape` is the shape of those of
    a row.
    """
    found = []
    for operand, array in zip(problem.inputs[1:], given, strict=True):
        if operand.extent is Extent.NUMBER:
            found.append(array)
            continue
        mine = _other_input(library, x, problem.operands[0].name, operand, array, row_shape)
        if any(share_memory(library, mine, output.target) for output in outputs):
            raise InvalidValueError(f"out overlaps {operand.name}; pass an array of its own memory")
        found.append(mine)
    return found


def finished(library: Library, outputs: Sequence[Output]) -> Any:
    """Return the result, or all of them as a tuple."""
    results = tuple(output.finish(library) for output in outputs)
    return results[0] if len(results) == 1 else results


def words_of(library: Library, problem: Problem, found: Placed) -> list[int]:
    """Return what a launch takes of each operand: an array's address, or a number's bits.

    Without the numbers of the layout, which come behind.

    Raises InvalidTypeError or InvalidValueError for what is no number that the operand can be.
    """
    arrays, targets = iter(found.inputs), iter(output.target for output in found.outputs)
    given = [(operand, next(targets if operand.result else arrays)) for operand in problem.given]
    return [
        operand.word(value) if operand.extent is Extent.NUMBER else library.pointer(value)
        for operand, value in given
    ]


def _other_input(
    library: Library, x: Any, name: str, operand: Operand, array: Any, row_shape: tuple[int, ...]
) -> Any:
    """Return an input beside x; raise unless it belongs to x, called `name`."""
    other, array = library_of(array, operand.name)
    if other is not library or library.device(array) != library.device(x):
        raise InvalidValueError(f"{operand.name} must be of {name}'s library and on its device")
    found = library.element_type(array)
    if found is not operand.dtype:
        raise InvalidTypeError(f"{operand.name} must be {operand.dtype.value}, got {found.value}")
    if operand.extent is Extent.BROADCAST:  # whose shape is the caller's, and told by numbers
        return array
    row = operand.extent is Extent.ROW
    shape = (*row_shape, *operand.behind) if row else tuple(x.shape)
    if operand.extent is Extent.COLUMN:
        shape = (
            (math.prod(x.shape) // math.prod(row_shape),) if math.prod(row_shape) else array.shape
        )
    if tuple(array.shape) != shape:
        of = f"{name}'s rows" if row else name
        raise InvalidValueError(
            f"{operand.name} must have the shape of {of}, {shape}, got {tuple(array.shape)}"
        )
    return library.contiguous(array) if row else array


def _of_nothing(
    library: Library, problem: Problem, others: Sequence[Any], outputs: Sequence[Output]
) -> Any:
    """Return the results for an x without elements, without a launch: those of empty rows."""
    from softgen.problems.numerics import of_empty_row

    for operand, value in zip(problem.inputs[1:], others, strict=True):
        if operand.extent is Extent.NUMBER:
            operand.word(value)  # as a launch would: it refuses what does not fit
    values = of_empty_row(problem)
    for operand, output, value in zip(problem.results, outputs, values, strict=True):
        if operand.extent is Extent.ROW:
            library.fill(output.target, value)
    return finished(library, outputs)
