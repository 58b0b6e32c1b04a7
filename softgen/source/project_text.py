"""The files of a project: its launches in one table of C++, spelled from the list of operands.

The templates are in templates/project/.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from softgen.problems.dtypes import DType, Float8, FloatType
from softgen.problems.hooks.arrays import Lines
from softgen.problems.hooks.places import MOST_ROWS
from softgen.problems.layouts import ROWS, Strided
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from softgen.source.bindings import bound, gradients, without_gradient
from softgen.source.cpp import LINE, broken, declaration, spell
from softgen.source.header import shape_rule
from softgen.source.project import CLASSES, Entry, Group, Kernel, Project, arch_number
from softgen.source.render import environment
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    import jinja2


def _dtype_name(project: Project, dtype: FloatType) -> str:
    """Return the enumerator of a dtype."""
    return f"{project.name.upper()}_{dtype.value.upper()}"


def _c_type(operand: Operand) -> str:
    """Return the C++ type of an operand of a typed function."""
    kind = operand.dtype.cuda
    return {"long long": "int64_t", "int": "int32_t"}.get(kind, kind)


def _erased(operand: Operand) -> str:
    """Return the same of a dispatcher, which takes each type of x and of results."""
    if operand.cuda not in ("X", "Y", "Compute"):
        return _c_type(operand)
    return "double" if operand.extent is Extent.NUMBER else "void"


def _head(name: str, group: Group, entry: Entry | None = None) -> str:
    """Return the head of a typed function, or of the dispatcher, in C++."""
    problem = entry.problem if entry else None
    found = [] if problem else [f"{name}_dtype in", f"{name}_dtype out", "int64_t cols"]
    for operand in (problem or group.problem).operands:
        kind = _c_type(operand) if problem is not None else _erased(operand)
        const = "" if operand.result or operand.extent is Extent.NUMBER else "const "
        pointer = "" if operand.extent is Extent.NUMBER else "*"
        found.append(f"{const}{kind}{pointer} {operand.name}")
    found += ["int64_t rows", "void* workspace", "size_t workspace_bytes", "cudaStream_t stream"]
    called = entry.name if entry else group.name
    return declaration(f"{name}_status {called}", found).removesuffix(" {")


def _query(name: str, group: Group) -> str:
    """Return the head of a dispatcher's query for a workspace, in C++."""
    found = [f"{name}_dtype in", f"{name}_dtype out", "int64_t cols", "int64_t rows"]
    return declaration(f"size_t {group.name}_workspace", found).removesuffix(" {")


def _addresses(group: Group, computed: Sequence[str] = ()) -> str:
    """Return where a launch finds its arguments, with room for three more, in C++.

    `computed` are numbers that a dispatcher takes as double, and has as float beside.
    """
    found = [
        f"wide ? address_of({o.name}) : address_of({o.name}_single)"
        if o.name in computed
        else f"address_of({o.name})"
        for o in group.operands
    ]
    return "\n      " + broken(" " * 6, [*found, *["nullptr"] * 3])


def _nothing(group: Group) -> str:
    """Return arguments that are nothing, in C++."""
    zero = {True: "0", False: "nullptr"}
    return ", ".join(zero[o.extent is Extent.NUMBER] for o in group.operands)


def _formula(problem: Problem) -> str:
    """Return what is computed, with its hooks."""
    hooks = "".join(f", with {hook.formula}" for hook in problem.hooks)
    return f"{problem.function.formula}{hooks}"


def _arguments(project: Project, group: Group) -> Iterator[str]:
    """Yield a line for each argument of a group: its type, its shape, what it may be."""
    problem = group.problem
    pairs = {(entry.problem.dtype, entry.problem.out_dtype): None for entry in group.entries}
    known = "; ".join(" and ".join(_dtype_name(project, each) for each in pair) for pair in pairs)
    of_type = {
        kind: " and ".join(o.name for o in group.arrays if o.cuda == kind) for kind in ("X", "Y")
    }
    outs = f"that of {of_type['Y']}" if of_type["Y"] else "the same"
    if not of_type["Y"] and any(x is not y for x, y in pairs):
        outs = "what widens the arithmetic"
    yield f"in, out: of a dispatcher: the type of {of_type['X']}, and {outs}: {known}"
    yield "cols: of a dispatcher: the elements of a row"
    double = any(DType.FLOAT64 in pair for pair in pairs)
    arithmetic = "float32, or float64 where in or out is," if double else "float32"
    types = {"X": "in", "Y": "out", "Compute": arithmetic}
    numbers = {operand.name for operand in group.operands}
    for operand in group.operands:
        name, shape = operand.name, shape_rule(problem, operand)
        if operand.extent is Extent.NUMBER:
            yield f"{name}: {shape.removeprefix('number, ')}"
            continue
        if operand.extent in (Extent.ELEMENT, Extent.COLUMN):
            shape = shape.replace(f"[{problem.cols}]", "[cols]")
        elif operand.extent is Extent.BROADCAST:
            inner = f" + row % {name}_inner * {name}_step" if f"{name}_inner" in numbers else ""
            stride = f" * {name}_stride" if f"{name}_stride" in numbers else ""
            first = f"row / {name}_every % {name}_count{stride}{inner}"
            shape = f"[elements], those of a row from {first} on, where divisors are 1 or more"
        place = f"; may be {operand.may_be} where in is out" if operand.may_be else ""
        yield f"{name}: {types.get(operand.cuda, operand.dtype.value)} {shape}{place}"
    if not problem.hooks and problem.function.non_finite:
        yield problem.function.non_finite
    yield from problem.function.remarks
    step = problem.layout.step
    yield f"rows: 0 or more{f', a multiple of {step}' if step > 1 else ''}"


def _commented(heading: str, lines: Iterable[str]) -> str:
    """Return a heading and lines below it as comments of C++, broken where they are too long."""
    behind = "//     "
    found = [textwrap.fill(heading, LINE, initial_indent="// ", subsequent_indent=behind)]
    for line in lines:
        found.append(textwrap.fill(line, LINE, initial_indent="//   ", subsequent_indent=behind))
    return "\n".join(found)


def _described(problem: Problem) -> Iterator[str]:
    """Yield for each array of a problem what a launch checks of it, as an initializer."""
    arrays = [o for o in problem.operands if o.extent is not Extent.NUMBER]
    names = [operand.name for operand in arrays]
    places = [operand.name for operand in problem.operands]
    lines = {hook.kind for hook in problem.hooks if isinstance(hook, Lines) and hook.packs}
    for operand in arrays:
        replaces = names.index(operand.may_be) if operand in problem.replacing else -1
        whole = operand.extent is Extent.ELEMENT
        strides: tuple[str, ...] = ()
        if whole and isinstance(problem.layout, Strided):
            strides = problem.layout.strides(operand.name)
        elif operand.name in lines:
            strides = (f"{operand.name}_stride", f"{operand.name}_step")
        values = (
            f"k{operand.extent.value.capitalize()}",
            *(operand.dtype.itemsize, operand.width, spell(operand.result), replaces),
            spell(whole or operand.name in lines),
            f"{{{', '.join(str(places.index(each)) for each in strides)}}}",
            len(strides),
        )
        yield f"{{{', '.join(map(str, values))}}}"


def _divisors(problem: Problem) -> list[int]:
    """Return the places of the numbers that a row's number is divided by."""
    return [place for place, operand in enumerate(problem.operands) if operand.divides]


def _plain(problem: Problem) -> str:
    """Return which loop of the example checks a problem: a name, or ""."""
    name, kind = problem.function.name, problem.out_dtype
    simple = not problem.hooks and problem.layout is ROWS and not isinstance(kind, Float8)
    return name if simple and name in ("softmax", "log_softmax", "logsumexp") else ""


@functools.cache
def _environment() -> jinja2.Environment:
    """Return Jinja's with other delimiters: CMake has `${ }` of its own."""
    return environment().overlay(
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )


def texts(made: Project) -> dict[str, str]:
    """Return every file of the folder but its manifest, by path."""
    name = made.name
    files = {
        f"include/{name}.h": "library.h.j2",
        f"src/{name}.cpp": "library.cpp.j2",
        "CMakeLists.txt": "CMakeLists.txt.j2",
        f"cmake/{name}Config.cmake.in": "Config.cmake.in.j2",
        "example/main.cpp": "main.cpp.j2",
        "README.md": "README.md.j2",
    }
    if "tvm-ffi" in made.bindings:
        files["bindings/tvm_ffi.cpp"] = "tvm_ffi.cpp.j2"
    if "torch" in made.bindings:
        files["bindings/torch.cpp"] = "torch.cpp.j2"
        files[f"python/{name}/__init__.py"] = "torch.py.j2"
    sets: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in made.kernels.values():
        sets.setdefault(kernel.archs, []).append(kernel)
    given = {
        "project": made,
        "name": name,
        "upper": name.upper(),
        "kernels": list(made.kernels.values()),
        "indices": functools.partial(_indices, list(made.kernels)),
        "sets": {" ".join(archs): some for archs, some in sets.items()},
        "classes": CLASSES,
        "capabilities": [arch_number(arch.name) for arch in made.archs],
        "dtypes": list(dict.fromkeys([*DType, *Float8])),
        "dtype_name": functools.partial(_dtype_name, made),
        "head": functools.partial(_head, name),
        "formula": _formula,
        "divisors": _divisors,
        "most_divisor": MOST_ROWS,
        "most_divisors": max(1, *(len(_divisors(entry.problem)) for entry in made.entries)),
        "arguments": lambda group: _commented(
            f"{group.name}: {_formula(group.problem)}.", _arguments(made, group)
        ),
        "query": functools.partial(_query, name),
        "addresses": _addresses,
        "nothing": _nothing,
        "described": _described,
        "number": arch_number,
        "plain": _plain,
        "strided": lambda problem: isinstance(problem.layout, Strided),
        "number_extent": Extent.NUMBER,
        "element_extent": Extent.ELEMENT,
        "float32": DType.FLOAT32,
        "float64": DType.FLOAT64,
        "bound": bound(made),
        "gradients": list(gradients(made)),
        "without_gradient": without_gradient(made),
        "types": {each for entry in made.entries for each in _types_of(entry.problem)},
    }
    found = {f"src/{each.source.name}.cu": each.source.text for each in made.kernels.values()}
    for path, template in files.items():
        found[path] = _environment().get_template(f"project/{template}").render(given)
    return found


def _indices(kernels: list[Variant], row: tuple[Variant, ...]) -> list[int]:
    """Return where the variants of an architecture are among all; -1 for none."""
    return [kernels.index(variant) for variant in row] or [-1] * len(CLASSES)


def _types_of(problem: Problem) -> set[str]:
    return {operand.dtype.cuda for operand in problem.operands}
