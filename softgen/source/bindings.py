"""What bindings of a project know of a function: its arguments in their order, and their types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from softgen.problems.dtypes import DType, Float8, FloatType
from softgen.problems.layouts import ROWS
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem

if TYPE_CHECKING:
    from softgen.source.project import Group, Project

# A function, its gradient, what is saved, and the gradient's arguments: where a folder has both.
_GRADIENTS = (
    ("softmax", "softmax_backward", "output", "grad.contiguous(), ctx.saved_tensors[0]"),
    ("log_softmax", "log_softmax_backward", "output", "grad.contiguous(), ctx.saved_tensors[0]"),
    (
        *("logsumexp", "logsumexp_backward", "inputs[0], output"),
        "ctx.saved_tensors[0], *(each.to(_COMPUTE[ctx.saved_tensors[0].dtype == torch.float64])"
        ".contiguous() for each in (ctx.saved_tensors[1], grad))",
    ),
)

_FIXED = {"int": "kInt32", "long long": "kInt64", "bool": "kBool"}
_NUMBERS = {"int": "int64_t", "long long": "int64_t", "bool": "bool"}
_TORCH = {
    **{"int": "ScalarType::Int", "long long": "ScalarType::Long", "bool": "ScalarType::Bool"},
    **{"float": "ScalarType::Float", "double": "ScalarType::Double"},
    **{"__half": "ScalarType::Half", "__nv_bfloat16": "ScalarType::BFloat16"},
}


@dataclass(frozen=True)
class Bound:
    """One dispatcher, of contiguous rows, as bindings call it: inputs, results, numbers."""

    group: Group
    library: str

    @property
    def name(self) -> str:
        """The dispatcher's."""
        return self.group.name

    @property
    def export(self) -> str:
        """What the function is called in a module."""
        return self.name.removeprefix(f"{self.library}_")

    @property
    def problem(self) -> Problem:
        """One of its problems."""
        return self.group.problem

    @property
    def operands(self) -> tuple[Operand, ...]:
        """In the dispatcher's order."""
        return self.problem.operands

    @cached_property
    def inputs(self) -> list[Operand]:
        """The arrays that are read."""
        return [o for o in self.operands if o.extent is not Extent.NUMBER and not o.result]

    @property
    def results(self) -> tuple[Operand, ...]:
        """The arrays that are written."""
        return self.problem.results

    @property
    def arrays(self) -> list[Operand]:
        """Both."""
        return [*self.inputs, *self.results]

    @property
    def numbers(self) -> list[Operand]:
        """What is passed by value."""
        return [o for o in self.operands if o.extent is Extent.NUMBER]

    @property
    def first(self) -> str:
        """The array whose shape is that of the rows."""
        return self.problem.element_inputs[0].name

    @property
    def typed(self) -> str:
        """The result whose type its caller chooses, or ""."""
        return next((o.name for o in self.results if o.cuda == "Y"), "")

    @property
    def computed(self) -> bool:
        """Whether an array is of the type of all arithmetic."""
        return any(o.cuda == "Compute" for o in self.arrays)

    @property
    def outs(self) -> list[tuple[DType, FloatType]]:
        """The type of results for each type of x: the same, where the folder has it."""
        found: dict[DType, FloatType] = {}
        for entry in self.group.entries:
            x, y = entry.problem.dtype, entry.problem.out_dtype
            if x not in found or y is x:
                found[x] = y
        return list(found.items())

    @property
    def outs_differ(self) -> bool:
        """Whether results are of other types than x."""
        return any(x is not y for x, y in self.outs)

    @property
    def number_types(self) -> dict[str, str]:
        """The C++ types of numbers."""
        return {o.name: _NUMBERS.get(o.dtype.cuda, "double") for o in self.numbers}

    @property
    def casts(self) -> dict[str, str]:
        """The C++ types that the dispatcher takes, where arguments are of others; else ""."""
        found = {}
        for o in self.operands:
            pointed = {"long long": "int64_t", "int": "int32_t"}.get(o.cuda, o.cuda)
            erased = o.cuda in ("X", "Y", "Compute")
            if o.extent is Extent.NUMBER:
                found[o.name] = "int32_t" if o.cuda == "int" else ""
                found[o.name] = "float" if o.cuda == "float" else found[o.name]
            else:
                found[o.name] = "" if erased else f"{'' if o.result else 'const '}{pointed}*"
        return found

    @property
    def sizes(self) -> dict[str, str]:
        """The elements of arrays, in C++."""
        return {o.name: _elements(o) for o in self.arrays}

    @property
    def types(self) -> dict[str, str]:
        """The types of arrays for TVM-FFI, in C++."""
        kinds = {"X": "kTypes[in]", "Y": "kTypes[out]", "Compute": "compute"}
        plain = {kind.cuda: f"kTypes[{i}]" for i, kind in enumerate(DType)}
        return {o.name: {**plain, **_FIXED, **kinds}[o.cuda] for o in self.arrays}

    @property
    def torch_types(self) -> dict[str, str]:
        """The same for PyTorch."""
        kinds = {"X": "kTypes[in]", "Y": "kTypes[out]", "Compute": "compute"}
        return {o.name: {**_TORCH, **kinds}[o.cuda] for o in self.arrays}

    @property
    def python_types(self) -> dict[str, str]:
        """The types of results, in Python."""
        kinds = {kind: f'kinds["{kind}"]' for kind in ("Y", "Compute")}
        return {o.name: kinds.get(o.cuda, f"torch.{o.dtype.value}") for o in self.results}

    @property
    def python(self) -> str:
        """The arguments, in Python."""
        return ", ".join(o.name for o in (*self.inputs, *self.numbers))

    @property
    def schema(self) -> str:
        """The arguments in a schema of PyTorch's."""
        kinds = {"int64_t": "int", "double": "float", "bool": "bool"}
        numbers = (f"{kinds[kind]} {name}" for name, kind in self.number_types.items())
        return ", ".join([*(f"Tensor {o.name}" for o in self.inputs), *numbers])

    def parameters(self, kind: str, arrays: list[Operand]) -> str:
        """Return arrays of a C++ type and the numbers, as C++ parameters."""
        numbers = (f"{each} {name}" for name, each in self.number_types.items())
        return ", ".join([*(f"{kind} {o.name}" for o in arrays), *numbers])

    @property
    def arguments(self) -> str:
        """What the dispatcher is called with, in C++."""
        found = []
        for o in self.operands:
            value = o.name if o.extent is Extent.NUMBER else f"{o.name}.data_ptr()"
            cast = self.casts[o.name]
            found.append(f"static_cast<{cast}>({value})" if cast else value)
        return ", ".join(found)


def _elements(operand: Operand) -> str:
    return {
        Extent.ELEMENT: "rows * cols",
        Extent.ROW: f"rows * {operand.width}" if operand.width > 1 else "rows",
        Extent.COLUMN: "cols",
    }.get(operand.extent, "-1")


def bound(made: Project) -> list[Bound]:
    """Return the functions that bindings have: those of contiguous rows."""
    return [Bound(group, made.name) for group in made.groups if group.problem.layout is ROWS]


def gradients(made: Project) -> Iterator[tuple[str, tuple[str, str], str]]:
    """Yield the functions that autograd gets a gradient for, where the folder has it."""
    there = {each.export: each for each in bound(made)}
    for forward, backward, saved, arguments in _GRADIENTS:
        if forward not in there or backward not in there:
            continue
        differ = there[forward].outs_differ or there[backward].outs_differ
        if not differ and not _has_float8(there[forward]):
            yield forward, (backward, arguments), saved


def without_gradient(made: Project) -> list[tuple[str, str]]:
    """Return every other function, and what its users read where they ask for a gradient."""
    derived = {forward for forward, _, _ in gradients(made)}
    backwards = {forward: backward for forward, backward, *_ in _GRADIENTS}
    found = []
    for each in bound(made):
        if each.export in derived:
            continue
        text = f"{each.export} of this project has no gradient"
        if each.export in backwards:
            text += (
                f": emit it with --function {backwards[each.export]}, "
                "and with results of the type of x, float16, bfloat16, float32 or float64"
            )
        found.append((each.export, text))
    return found


def _has_float8(each: Bound) -> bool:
    return any(isinstance(y, Float8) for _, y in each.outs)
