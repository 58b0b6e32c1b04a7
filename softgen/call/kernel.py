"""What `plan()` returns: a compiled variant that is called with an array."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from softgen.call.dispatch import finished, launched, other_inputs, require_room, words_of
from softgen.call.kernels import is_captured
from softgen.call.library import Library, library_of, usable_alignment
from softgen.call.outputs import Output, resolve_outputs
from softgen.call.reach import finding, require_neighbours, require_reach
from softgen.call.runner import Calls
from softgen.call.views import Placed, contiguous, placed
from softgen.devices.gpu.driver import on_device
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.devices.gpu.launcher import Launcher
from softgen.errors import InvalidTypeError, InvalidValueError, LaunchError
from softgen.problems.layouts import MOST_OUTER, Strided
from softgen.problems.operands import Operand
from softgen.problems.problem import natural_alignment
from softgen.source.render import Source
from softgen.strategies.variants import Variant


class KernelCalls(Calls):
    """The calls of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    @property
    def operands(self) -> Sequence[Operand]:
        """What a call is given and makes."""
        return self.kernel.variant.problem.given

    def dispatch(self, request: tuple[Any, ...] | None, x: Any, out: Any, *asked: Any) -> Any:
        """Return the result of a call that has no entry; see `Kernel.dispatch`."""
        return self.kernel.dispatch(request, x, out, *asked)


@dataclass(frozen=True)
class Kernel:
    """A variant compiled and loaded for one device; call it with an array.

    Attributes:
        loaded: the kernel as it is launched on addresses.
        pdl: whether it may be launched while the one before it on the stream still runs, where the
            text waits for that one and the GPU can.
    """

    loaded: LoadedKernel
    pdl: bool = True
    _calls: KernelCalls = field(init=False, repr=False, compare=False)
    _others: int = field(init=False, repr=False, compare=False)
    # Places, among what is behind x, of the numbers by which rows find theirs of an array.
    _finding: tuple[int, ...] = field(init=False, repr=False, compare=False)

    @property
    def variant(self) -> Variant:
        """The problem and the strategy with its knobs."""
        return self.loaded.variant

    @property
    def source(self) -> Source:
        """The emitted text."""
        return self.loaded.source

    @property
    def device(self) -> int:
        """Number of the device that it is loaded on."""
        return self.loaded.device

    @property
    def registers(self) -> int:
        """32-bit registers of a thread."""
        return self.loaded.registers

    @property
    def local_bytes(self) -> int:
        """Local memory of a thread in bytes; above 0, registers were spilled."""
        return self.loaded.local_bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "_calls", KernelCalls(self))
        problem = self.variant.problem
        object.__setattr__(self, "_others", len(problem.inputs) - 1)
        object.__setattr__(self, "_finding", finding(problem))

    def __call__(self, x: Any, *arrays: Any, out: Any = None) -> Any:
        """Apply the kernel along the planned axis of `x` and return the result, or a tuple of all.

        Args:
            x: an array (CuPy, PyTorch or protocol) of the planned dtype, on the planned device,
                whose last axis has the planned width and whose rows are aligned as planned;
                contiguous, unless the plan is for views. In a plan with `inner` the last axes are
                (cols, inner), and cols is reduced.
            arrays: the other inputs, as m and d of finish, then the numbers that hooks take; after
                them `out` may follow.
            out: the first result's array; x itself, or disjoint from the inputs. A new array by
                default.

        Raises InvalidTypeError or InvalidValueError, before any launch, if the arrays do not fit
        the plan, and LaunchError if the kernel needs more SMs at once than the caller's stream has.
        """
        others = self._others
        if len(arrays) != others:
            if len(arrays) != others + 1 or out is not None:
                raise self._wrong_number(1 + len(arrays), out)
            arrays, out = arrays[:others], arrays[others]
        numbers = None
        if self._finding:  # calls with other numbers are checked anew
            numbers = tuple([_kept(arrays[place]) for place in self._finding])
        return self._calls[type(x)](x, out, -1, None, None, numbers, None, arrays)

    def _wrong_number(self, given: int, out: Any) -> InvalidTypeError:
        problem = self.variant.problem
        inputs = ", ".join(operand.name for operand in problem.inputs)
        results = " and ".join(operand.name for operand in problem.results)
        beside = "" if out is None else " and out="
        return InvalidTypeError(
            f"a kernel of {problem.function.name} takes {inputs} and returns {results}; it was "
            f"called with {_arrays(given)}{beside}. Call kernel({inputs}), or kernel({inputs}, out)"
        )

    def dispatch(self, request: tuple[Any, ...] | None, x: Any, out: Any, *asked: Any) -> Any:
        """Return the result of a call that has no entry, and keep one under `request`.

        The arguments are those of `Calls.dispatch`; no option counts, as the choice is made.
        """
        given, rest = x, asked[-1]
        library, x = library_of(x)
        self._check(library, x)
        problem = self.variant.problem
        views = isinstance(problem.layout, Strided)
        with on_device(self.device):
            stream = library.stream(self.device)
            require_room(library.mallocs_in_capture and is_captured(stream), out, problem)
            row_shape = problem.layout.row_shape(tuple(x.shape))
            outputs = resolve_outputs(library, x, out, problem, row_shape, views=views)
            others = other_inputs(library, x, problem, rest, outputs, row_shape)
            require_neighbours(library, problem, others)
            rows = math.prod(x.shape) // problem.cols
            if rows == 0:
                return finished(library, outputs)
            require_reach(library, problem, others)
            found = self._placed(library, [x, *others], outputs)
            self._require_alignment(library, found)

            def fewer(error: LaunchError) -> Launcher:
                launch = self.loaded.fitting_launcher(rows, stream, library, pdl=self.pdl)
                if launch is None:
                    raise LaunchError(
                        f"{self.variant.name} needs more SMs at once than its stream has "
                        f"({error}); plan with another variant"
                        + self._or_call(", or call {}, which takes one")
                    ) from error
                return launch

            return launched(
                *(self._calls, request, library, self.loaded, problem, rows, found),
                *((given, *rest), out, fewer, self.pdl),
            )

    def _placed(self, library: Library, inputs: list[Any], outputs: list[Output]) -> Placed:
        """Return where rows lie; raise InvalidValueError where that is not in the plan."""
        problem = self.variant.problem
        if not isinstance(problem.layout, Strided):
            others = contiguous(library, problem, inputs[1:])
            return Placed([inputs[0], *others], outputs, None, problem.layout)
        found = placed(library, problem, inputs, outputs, problem.layout.outer)
        if found is None:
            raise InvalidValueError(
                f"the plan takes views whose last axis is contiguous and whose other axes join to "
                f"{problem.layout.outer} at most; {problem.inputs[0].name} has strides "
                f"{library.byte_strides(inputs[0])} in bytes"
                + "".join(
                    f", the result {library.byte_strides(output.target)}" for output in outputs[:1]
                )
                + f". Plan with strided up to {MOST_OUTER}{self._or_call(', or call {}')}"
            )
        return found

    def _require_alignment(self, library: Library, found: Placed) -> None:
        """Raise InvalidValueError unless rows start where the plan needs it."""
        problem = self.variant.problem
        natural = natural_alignment(problem.dtype, problem.cols, problem.layout)
        strides = found.placement.strides if found.placement else ()
        words = words_of(library, problem, found)
        alignment = usable_alignment(natural, problem.given, words, strides)
        if alignment < problem.alignment:
            raise InvalidValueError(
                f"the plan needs rows that start on {problem.alignment} elements; these start on "
                f"{alignment}. Plan with alignment={alignment}{self._or_call(', or call {}')}"
            )

    def _check(self, library: Library, x: Any) -> None:
        problem = self.variant.problem
        if library.dtype(x) is not problem.dtype:
            raise InvalidTypeError(
                f"the plan is for {problem.dtype.value}, got {library.dtype(x).value}; plan for "
                "that dtype or cast x"
            )
        if library.device(x) != self.device:
            raise InvalidValueError(
                f"the plan is for device {self.device}, x is on device {library.device(x)}; make a "
                "plan while that device is current"
            )
        wanted = problem.layout.last_axes(problem.cols)
        if (tuple(x.shape) or (1,))[-len(wanted) :] != wanted:
            axes = f"a last axis of {wanted[0]}" if len(wanted) == 1 else f"last axes of {wanted}"
            raise InvalidValueError(f"the plan is for {axes}, got shape {tuple(x.shape)}")
        if not library.is_contiguous(x) and not isinstance(problem.layout, Strided):
            raise InvalidValueError(
                "this plan takes C-contiguous arrays; plan with strided=1, 2 or 3 for views of so "
                "many outer axes, or make x contiguous"
                + self._or_call(", or call {}, which takes views too")
            )

    def _or_call(self, advice: str) -> str:
        """Return `advice` with the call of the function in it; nothing if there is none."""
        call = self.variant.problem.function.call
        return advice.format(call) if call else ""


def _kept(number: Any) -> Any:
    """Return a whole number as an int; what is none as what no call is kept by."""
    try:
        return operator.index(number)
    except TypeError:
        return []


def _arrays(count: int) -> str:
    return "1 array" if count == 1 else f"{count} arrays"
