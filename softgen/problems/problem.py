"""What is asked for: the compile-time part of a request."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.dtypes import DType, Float8, FloatType, compute_type, result_type
from softgen.problems.functions.base import Function
from softgen.problems.hooks.base import Hook
from softgen.problems.layouts import FIRST, ROWS, AnyWidth, Layout, layout_of
from softgen.problems.operands import Extent, Operand

# Column indices are 32-bit up to here. The margin to 2**31 leaves room for an index that runs past
# the row before it is compared with the width, by up to `Strategy.overrun`: packs of all threads
# that share a row. Of spread on 132 SMs these are 540,672 columns.
INDEX_MARGIN = 2**22
MAX_INT32_COLS = 2**31 - INDEX_MARGIN

MAX_COLS = 2**40

# More rows than any memory holds: estimates are made in floats, which end at 10**308.
MAX_ROWS = 2**40

# The first compute capability that converts to types of 8 bits in an instruction.
FLOAT8_NEEDS = (8, 9)

# Enough rows to fill any GPU, as batches of attention scores or logits usually are.
DEFAULT_ROWS = 4096

# Of any number that is given; a range of its own comes after that.
MOST_BITS = 128


def whole_number(name: str, value: Any) -> int:
    """Return `value` as an int, NumPy's integers too.

    Raises InvalidTypeError if it is none, InvalidValueError if it is far beyond any use:
    Python neither prints an int of 5000 digits nor makes a float of one of 400.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise InvalidTypeError(f"{name} must be an int, got {value!r}")
    if number.bit_length() > MOST_BITS:
        raise InvalidValueError(f"{name} must fit {MOST_BITS} bits, got {number.bit_length()}")
    return number


def largest_power_of_two_divisor(n: int) -> int:
    """Return the largest power of two that divides `n` > 0."""
    return n & -n


def _in_order(hooks: Sequence[Hook | str]) -> tuple[Hook, ...]:
    """Return hooks in the order in which they are applied."""
    if not hooks and not isinstance(hooks, str):
        return ()
    from softgen.problems.hooks.known import (
        in_order,  # 5 ms, which a first call without hooks spares
    )

    return in_order(hooks)


@dataclass(frozen=True)
class Problem:
    """The compile-time part of a request: one Problem and one Strategy make one source text.

    Attributes:
        function: what is computed of each row.
        dtype: element type of the input x.
        out_dtype: element type of the result that has a type of its own (see Function.operands).
        cols: elements in a row.
        alignment: every row of x and of y starts on a multiple of this many elements of its own
            type (of 16 bytes, where that is less). A power of two. In the layout of columns so
            many rows side by side start on such a multiple in every column.
        fixed_order: whether the order in which a row is summed must not depend on where the row
            lies. False where rows are whole packs of 16 bytes, and in a layout whose kernels all
            have one order, since then it does not anyway.
        hooks: what is done to elements on their way in and out, in this order.
        layout: where the elements of a row lie; by default they are contiguous, and so are rows.

    `Problem.of` takes names and fills in the defaults.
    """

    function: Function
    dtype: DType
    out_dtype: FloatType
    cols: int
    alignment: int
    fixed_order: bool = False
    hooks: tuple[Hook, ...] = ()
    layout: Layout = ROWS

    @classmethod
    def of(
        cls,
        function: Function | str,
        dtype: object,
        cols: int,
        *,
        out_dtype: object = None,
        alignment: int | None = None,
        fixed_order: bool = False,
        hooks: Sequence[Hook | str] = (),
        layout: Layout | str = ROWS,
    ) -> Problem:
        """Return the problem for the given names.

        Args:
            function: its name, for example "softmax".
            dtype: float16, bfloat16, float32 or float64, as a name or a NumPy / PyTorch dtype.
            cols: elements in a row, from 1 to 2**40.
            out_dtype: element type of the result; `dtype` by default. Of softmax and log_softmax
                also float8_e4m3fn and float8_e5m2, where x is not float64.
            alignment: in elements, a power of two. By default what `cols` gives when both arrays
                start on a 16-byte boundary, as allocators' arrays do; 1 for arrays that start
                anywhere.
            fixed_order: whether a row must be summed in the same order wherever it lies.
            hooks: what is done to elements on their way in and out, by name, for example
                ["scale", "causal"]; in any order.
            layout: where the elements of a row lie: a Layout, for example Columns(1024), or its
                label.

        Raises InvalidValueError or InvalidTypeError, saying what is accepted.
        """
        x_type = DType.of(dtype)
        y_type = x_type if out_dtype is None else result_type(out_dtype)
        cols = whole_number("cols", cols)
        if not 1 <= cols <= MAX_COLS:
            raise InvalidValueError(f"cols must be from 1 to 2**40, got {cols}")
        lies = layout_of(layout)
        if cols * lies.step > MAX_COLS:
            raise InvalidValueError(f"cols x inner must be at most 2**40, got {cols} x {lies.step}")
        natural = natural_alignment(x_type, cols, lies)
        if alignment is None:
            alignment = natural
        alignment = whole_number("alignment", alignment)
        if alignment < 1 or alignment & (alignment - 1):
            raise InvalidValueError(
                f"alignment must be a power of two (in elements), got {alignment}"
            )
        alignment = min(alignment, natural)
        fixed_order = fixed_order and alignment < x_type.max_pack and not lies.has_one_order
        of = Function.of(function)
        if objection := of.objection(cols):
            raise InvalidValueError(f"{of.name}: {objection}")
        problem = cls(
            *(of, x_type, y_type, cols),
            *(alignment, fixed_order, _in_order(hooks), lies),
        )
        if isinstance(y_type, Float8) or problem.hooks or problem.sharded:
            from softgen.problems.possible import require_kernel  # plain calls do without

            require_kernel(problem)
        return problem

    @property
    def needs(self) -> tuple[int, int]:
        """The first compute capability that has the instructions of the types."""
        return FLOAT8_NEEDS if isinstance(self.out_dtype, Float8) else (7, 5)

    @property
    def sharded(self) -> bool:
        """Whether several devices have a shard each of every row."""
        return self.layout.sharded

    # Thousands of settings are checked for one problem, and each asks: what takes a loop is kept.

    @property
    def bare(self) -> Problem:
        """The problem whose tuned settings it takes: without hooks, and of contiguous rows."""
        return replace(self, hooks=(), layout=self.layout.like)

    @cached_property
    def compute_dtype(self) -> DType:
        """The type of all arithmetic: float64 if either array is, else float32."""
        return compute_type(self.dtype, self.out_dtype)

    def launched_on(self, cols: int) -> Problem:
        """Return the problem of a launch on arrays of so many columns, if it says how many."""
        return replace(self, cols=cols) if isinstance(self.layout, AnyWidth) else self

    @property
    def wide_index(self) -> bool:
        """Whether column indices need 64 bits."""
        return self.cols > MAX_INT32_COLS

    @property
    def bytes_per_row(self) -> int:
        """The fewest bytes a row must move: each operand's once."""
        return sum(operand.bytes_per_row(self.cols) for operand in self.operands)

    @property
    def part_bytes(self) -> int:
        """The bytes of a part of a row; of a choice its board counts them."""
        return self.function.part.numbers * self.compute_dtype.itemsize

    @property
    def key_bytes(self) -> int:
        """The bytes of an element with its column."""
        return 4 if self.column_bits else 2 * self.compute_dtype.itemsize

    @property
    def column_bits(self) -> int:
        """The bits of a widened element that tell its column where elements are chosen, or 0.

        A bfloat16 leaves 16 of 32, a float16 13, unless hooks compute with them. Threads may count
        up to twice the columns.
        """
        bits = {DType.BFLOAT16: 16, DType.FLOAT16: 13}.get(self.dtype, 0)
        fits = 2 * self.cols <= 2**bits and self.compute_dtype is DType.FLOAT32
        return bits if fits and not (self.function.chooses_scores or self.computes) else 0

    @property
    def mail_bytes(self) -> int:
        """The bytes that a shard tells another of a row."""
        return self.part_bytes + self.posts * self.compute_dtype.itemsize

    @property
    def posts(self) -> bool:
        """Whether shards tell each other an element of a row beside its part."""
        return self.sharded and self.function.posts_element

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What the kernel takes, in the order of its signature.

        The function's arrays, then what hooks take, then the numbers of the layout.
        """
        return (*self.given, *self.layout.numbers(self.given))

    @cached_property
    def given(self) -> tuple[Operand, ...]:
        """The operands without the numbers of the layout: what a call is given, or makes."""
        arrays = self.function.operands(self.dtype, self.out_dtype, self.compute_dtype)
        return (*arrays, *self.hook_operands)

    @cached_property
    def hook_operands(self) -> tuple[Operand, ...]:
        """What hooks take."""
        return tuple(each for hook in self.hooks for each in hook.operands(self.compute_dtype))

    @cached_property
    def modifiers(self) -> tuple[Hook, ...]:
        """The hooks, behind what the function does itself as they do."""
        return (*self.function.modifiers, *self.hooks)

    @cached_property
    def row_operands(self) -> tuple[Operand, ...]:
        """What finding the modifiers of a row takes, beside its number."""
        if not self.function.modifiers:
            return self.hook_operands
        others = (o for o in self.inputs if o.extent is not Extent.ELEMENT)
        first = (o for o in self.layout_numbers if o.name == FIRST)
        return tuple(dict.fromkeys((*others, *self.hook_operands, *first)))

    @property
    def ends(self) -> bool:
        """Whether a row ends at run time."""
        return any(hook.ends for hook in self.modifiers)

    @cached_property
    def shortens(self) -> bool:
        """Whether a hook hides the end of a row, which may be any part of it."""
        return any(hook.ends for hook in self.hooks)

    @property
    def enters(self) -> bool:
        """Whether a hook modifies or hides elements on their way in."""
        return any(hook.enters for hook in self.modifiers)

    @property
    def computes(self) -> bool:
        """Whether a hook makes other numbers of elements, of any size whatever x's type."""
        return any(hook.computes for hook in self.modifiers)

    @cached_property
    def placed(self) -> bool:
        """Whether a hook has to know the column of an element, or that one is not there."""
        return any(hook.placed for hook in self.modifiers)

    @property
    def picks(self) -> bool:
        """Whether an element is read by its column before any result is written over it."""
        return self.writes_elements and any(hook.picks for hook in self.modifiers)

    @property
    def logs_sum(self) -> bool:
        """Whether a loss is made of the sum beside results: what all terms share is in it."""
        return self.writes_elements and any(operand.name == "loss" for operand in self.results)

    @property
    def keeps_maximum(self) -> bool:
        """Whether a row's maximum is a result: the number itself, a subnormal one too."""
        return any(operand.name == "maxima" for operand in self.results)

    @property
    def leaves(self) -> bool:
        """Whether a hook modifies results one by one."""
        return any(hook.leaves for hook in self.modifiers)

    @property
    def hook_instructions(self) -> float:
        """About how many instructions an element the hooks take."""
        return sum(hook.instructions for hook in self.hooks)

    @property
    def weighs(self) -> bool:
        """Whether a hook multiplies all results of a row by a number."""
        return any(hook.weighs for hook in self.modifiers)

    @property
    def slopes(self) -> bool:
        """Whether results are with respect to elements before the hooks."""
        return bool(self.hooks) and any(hook.slopes for hook in self.modifiers)

    @property
    def weighs_lse(self) -> bool:
        """Whether that number depends on the row's maximum and sum, too."""
        return any(hook.weighs_lse for hook in self.modifiers)

    @property
    def sinks(self) -> bool:
        """Whether a row has a logit without a column."""
        return any(hook.sinks for hook in self.hooks)

    @property
    def zero_rows(self) -> bool:
        """Whether a row of nothing but -inf gives 0, and not NaN."""
        return any(hook.zeroes for hook in self.hooks)

    @cached_property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that the kernel only reads, without the numbers of the layout."""
        return tuple(operand for operand in self.given if not operand.result)

    @cached_property
    def layout_numbers(self) -> tuple[Operand, ...]:
        """The numbers that tell where rows lie, the last operands."""
        return self.layout.numbers(self.given)

    @cached_property
    def results(self) -> tuple[Operand, ...]:
        """The operands that the kernel writes."""
        return tuple(operand for operand in self.operands if operand.result)

    @cached_property
    def element_inputs(self) -> tuple[Operand, ...]:
        """The inputs with an element a column; the first is what a row is reduced from."""
        return tuple(operand for operand in self.inputs if operand.extent is Extent.ELEMENT)

    @cached_property
    def replacing(self) -> tuple[Operand, ...]:
        """The results that may have an input's memory, in place: they are of its dtype too."""
        dtypes = {operand.name: operand.dtype for operand in self.inputs}
        return tuple(r for r in self.results if r.may_be and r.dtype is dtypes[r.may_be])

    @cached_property
    def row_results(self) -> tuple[Operand, ...]:
        """The results of one element a row."""
        return tuple(operand for operand in self.results if operand.extent is Extent.ROW)

    @cached_property
    def whole_rows(self) -> tuple[Operand, ...]:
        """The operands with an element a column."""
        return tuple(o for o in self.operands if o.extent is Extent.ELEMENT)

    @cached_property
    def writes_elements(self) -> bool:
        """Whether there is a result of one element a column."""
        return any(operand.extent is Extent.ELEMENT for operand in self.results)

    @property
    def as_json(self) -> dict[str, str | int | bool | list[str]]:
        """The fields as JSON values, by name."""
        return {
            "function": self.function.name,
            "dtype": self.dtype.value,
            "out_dtype": self.out_dtype.value,
            "cols": self.cols,
            "alignment": self.alignment,
            "fixed_order": self.fixed_order,
            **({"hooks": [hook.name for hook in self.hooks]} if self.hooks else {}),
            **({"layout": self.layout.label} if self.layout.label else {}),
        }

    @property
    def computed(self) -> str:
        """What is computed, in words, for example softmax with scale * x."""
        hooks = "".join(f" with {hook.formula}" for hook in self.hooks)
        return f"{self.function.name}{hooks}"

    @property
    def stem(self) -> str:
        """The function with its types, for example softmax_f32 or log_softmax_bf16_to_f32."""
        types = self.dtype.short
        if self.out_dtype is not self.dtype:
            types += f"_to_{self.out_dtype.short}"
        return f"{self.function.name}_{types}"

    @property
    def command_options(self) -> str:
        """The options of the command line that ask for it, as --dtype float32 --cols 1000."""
        found = [f"--dtype {self.dtype.value} --cols {self.cols}"]
        if self.function.name != "softmax":
            found.insert(0, f"--function {self.function.name}")
        if self.out_dtype is not self.dtype:
            found.append(f"--out-dtype {self.out_dtype.value}")
        if self.alignment != natural_alignment(self.dtype, self.cols, self.layout):
            found.append(f"--alignment {self.alignment}")
        found += ["--batch-invariant"] * self.fixed_order
        found += [f"--hook {hook.name}" for hook in self.hooks]
        found += [self.layout.command_options] * bool(self.layout.command_options)
        return " ".join(found)

    @cached_property
    def label(self) -> str:
        """Readable and unique: the first part of a variant's name."""
        label = "_".join(filter(None, [f"{self.stem}_{self.cols}", self.layout.label]))
        if self.alignment != natural_alignment(self.dtype, self.cols, self.layout):
            label += f"_align{self.alignment}"
        if self.fixed_order:
            label += "_fixed"
        return "_".join([label, *(hook.name for hook in self.hooks)])


def rows_bucket(rows: int) -> int:
    """Return the least power of two that is at least `rows` >= 1: a choice is kept per bucket."""
    return 1 << (rows - 1).bit_length()


def natural_alignment(dtype: DType, cols: int, layout: Layout = ROWS) -> int:
    """Return the alignment in elements of rows of `cols` when the first starts on 16 bytes."""
    return min(largest_power_of_two_divisor(layout.pitch(cols)), dtype.max_pack)
