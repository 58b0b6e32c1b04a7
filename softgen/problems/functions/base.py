"""The interface of a function: its operands, what a right answer is, and how right it must be."""

from __future__ import annotations

import abc
from typing import Any

from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType, FloatType, Integer
from softgen.problems.hooks.base import Hook
from softgen.problems.operands import Extent, Limit, Measure, Operand
from softgen.problems.parts import MAX_SUM, Part


class Function(abc.ABC):
    """What is computed of each row. A subclass is frozen; its fields are options of the function.

    A module in this package that lists its functions in `FUNCTIONS`, with a template of its name in
    templates/functions/, is all that the generator, the tuner, the command line and the tests need.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """As in names of kernels and on the command line; lower-case letters and underscores."""

    @property
    @abc.abstractmethod
    def formula(self) -> str:
        """What the kernel computes, for the header of an emitted file."""

    @property
    def template(self) -> str:
        """The stem of its template in templates/functions/."""
        return self.name

    @property
    def call(self) -> str:
        """How people call it on arrays, for messages; empty where only `softgen.plan` does."""
        return ""

    @property
    def like(self) -> str:
        """The function whose tuned settings it takes where it has none of its own."""
        return self.name

    @property
    def own_terms(self) -> bool:
        """Whether its template has terms of its own where results are float32, or x is float16."""
        return False

    @property
    def textbook(self) -> bool:
        """Whether it is what other people's softmax kernels compute: y, or its logarithm, alone."""
        return False

    @property
    def hookable(self) -> bool:
        """Whether hooks may modify its elements: those of one input, for its maximum and sum."""
        kind = DType.FLOAT32
        operands = self.operands(kind, kind, kind)
        inputs = [o for o in operands if not o.result and o.extent is Extent.ELEMENT]
        return len(inputs) == 1 and self.part.has_maximum and self.reduces

    @property
    def shardable(self) -> bool:
        """Whether a device needs no more of others than their parts of a row, and an element."""
        plain = self.reduces and self.part.has_maximum and not self.modifiers
        return plain or self.posts_element

    @property
    def posts_element(self) -> bool:
        """Whether shards tell each other an element of the row, which one of them has, too."""
        return False

    @property
    def smooths(self) -> bool:
        """Whether all columns share some of the target's probability."""
        return False

    @property
    def barred(self) -> frozenset[str]:
        """The kinds of hooks that mean nothing to it, though it takes others."""
        return frozenset()

    @property
    def modifiers(self) -> tuple[Hook, ...]:
        """What it does itself as hooks do: with columns, or with results on their way out.

        They have no operands: their texts find the function's inputs by name.
        """
        return ()

    @property
    def twin(self) -> str:
        """The function that it differs from by the type of an integer alone; or ""."""
        return ""

    @property
    def weighs(self) -> bool:
        """Whether it has an element a column that sum to one in a row."""
        return False

    @property
    def writes_float8(self) -> bool:
        """Whether its results may be of 8 bits."""
        return False

    @property
    def chosen(self) -> int:
        """How many elements of a row are chosen, where parts have them."""
        return 0

    @property
    def ranked(self) -> int:
        """Of how many elements of a row, its ids', the larger ones are counted."""
        return 0

    @property
    def groups(self) -> int:
        """Into how many groups of columns a row is cut before they are, or 0."""
        return 0

    @property
    def sums(self) -> bool:
        """Whether exponentials of a row are summed, or are given as if they were."""
        return True

    @property
    def chooses_scores(self) -> bool:
        """Whether they are chosen by what is computed of them, and not by their own order."""
        return False

    @property
    def filtered(self) -> bool:
        """Whether it chooses among the largest elements of a row, however many those are."""
        return False

    @property
    def keeps_infinity(self) -> bool:
        """Whether +inf in a row gives +inf, not NaN."""
        return False

    @property
    def non_finite(self) -> str:
        """What a row with NaN or an infinity gives, for the header of an emitted file; or ""."""
        return ""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else a caller has to know of the results, a line each, for headers."""
        return ()

    @property
    def shifts(self) -> bool:
        """Whether elements are taken relative to a maximum of the row, and not to its lse."""
        return True

    @property
    def reduces(self) -> bool:
        """Whether the pair of a row is found, and not given."""
        return True

    @property
    def part(self) -> Part:
        """What a piece of a row reduces to."""
        return MAX_SUM

    @abc.abstractmethod
    def operands(self, dtype: DType, out_dtype: FloatType, compute: DType) -> tuple[Operand, ...]:
        """Return the arrays, inputs first, in the order of the kernel's signature.

        Args:
            dtype: element type of x, the first of them.
            out_dtype: type of the result that a caller chooses a type for.
            compute: the type of all arithmetic.
        """

    @property
    def least_cols(self) -> int:
        """The fewest columns that a row has."""
        return 1

    def objection(self, cols: int) -> str:
        """Return why it computes no row of `cols` columns, or ""."""
        return ""

    @abc.abstractmethod
    def reference(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the results for exact inputs, arrays of float64 or long double, in their type.

        By torch's rules for NaN and infinity.
        """

    def settled(
        self, exact: tuple[Any, ...], found: tuple[Any, ...], *inputs: Any, off: Any = 0.0
    ) -> Any:
        """Return the results that `found` is compared with, where several are right.

        Args:
            exact: what `reference` gives for `inputs`.
            found: what was computed, as exact values.
            inputs: as `reference` takes them.
            off: by how much hooks leave the elements of each row off, as a column.
        """
        return exact

    def compared(self, *inputs: Any) -> Any:
        """Return what a choice is made of, an element a column."""
        return inputs[0]

    def of_columns(self, columns: Any, *inputs: Any) -> tuple[Any, ...]:
        """Return the results where `columns`, (rows, chosen), are those that are chosen."""
        raise NotImplementedError(f"{self} chooses no columns")

    def magnitudes(self, *inputs: Any) -> tuple[Any, ...]:
        """Return for each result the size of what is added up in it, or None: see Measure.TERMS."""
        kind = DType.FLOAT64
        return (None,) * sum(operand.result for operand in self.operands(kind, kind, kind))

    def other_inputs(self, x: Any) -> tuple[Any, ...]:
        """Return inputs beside x that belong to it, for tests and examples: exact, as x is."""
        return ()

    def other_numbers(self, rows: int) -> tuple[dict[str, Any], ...]:
        """Return other values of inputs, by name, than those of `other_inputs`: for verification.

        Values of inputs that the function has not count for nothing.
        """
        return ()

    def beside_a_sink(self, cols: int, *others: Any) -> tuple[Any, ...]:
        """Return the inputs beside x for `reference`, where x has a sink as column `cols`."""
        return others

    def timed_inputs(self, rows: int, cols: int) -> dict[str, Any]:
        """Return inputs, by name, that are not random floats where kernels are timed: exact."""
        return {}

    @classmethod
    def of(cls, value: Function | str) -> Function:
        """Return the function called `value`; InvalidValueError names the choices."""
        if isinstance(value, Function):
            return value
        from softgen.problems.functions import function_named, unknown_function

        found = function_named(value) if isinstance(value, str) else None
        if found is None:
            raise InvalidValueError(unknown_function(str(value)))
        return found

    def __str__(self) -> str:
        return self.name


def element(name: str, dtype: DType, cuda: str) -> Operand:
    """Return an input of one element a column."""
    return Operand(name, dtype, Extent.ELEMENT, result=False, cuda=cuda)


def row_input(name: str, dtype: DType, cuda: str, width: int = 1) -> Operand:
    """Return an input of one element a row, or a few."""
    return Operand(name, dtype, Extent.ROW, result=False, cuda=cuda, width=width)


def row_ids(name: str, kind: Integer, width: int = 1) -> Operand:
    """Return an input of one integer a row, or a few, as the number of a column."""
    return Operand(name, kind, Extent.ROW, result=False, cuda=kind.cuda, width=width)


def number_input(
    name: str, kind: DType | Integer, cuda: str, accepts: str, default: float
) -> Operand:
    """Return an input that is one number for all rows; `accepts` says which, in words."""
    return Operand(name, kind, Extent.NUMBER, False, cuda, accepts=accepts, default=default)


def element_result(
    name: str,
    dtype: FloatType,
    cuda: str,
    measure: Measure,
    may_be: str = "",
    limit: Limit = Limit.NONE,
) -> Operand:
    """Return a result of one element a column."""
    return Operand(name, dtype, Extent.ELEMENT, True, cuda, may_be, measure, limit=limit)


def row_result(
    name: str,
    dtype: FloatType,
    cuda: str,
    measure: Measure,
    width: int = 1,
    limit: Limit = Limit.NONE,
) -> Operand:
    """Return a result of one element a row, or a few."""
    return Operand(name, dtype, Extent.ROW, True, cuda, measure=measure, width=width, limit=limit)


def lse_result(dtype: FloatType, cuda: str = "Compute") -> Operand:
    """Return log(sum(exp(x))) of each row, which has the largest element's term of 1."""
    return row_result("lse", dtype, cuda, Measure.LOGARITHM, limit=Limit.AT_LEAST_MAXIMUM)
