"""What templates know of a variant, by the names that they call it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from softgen.problems.arch import Arch
from softgen.problems.dtypes import DType, Float8
from softgen.problems.layouts import AnyWidth, Strided
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from softgen.source.cpp import (
    broken,
    call,
    constant_lines,
    declaration,
    fill,
    fills,
    narrowed,
    signature,
    widened,
)
from softgen.source.header import alignment_rule, compile_command, flush_rule, shape_rule
from softgen.strategies import choice as choosing
from softgen.strategies.choice import Choice
from softgen.strategies.variants import Variant


def context(variant: Variant, arch: Arch | None) -> dict[str, Any]:
    """Return what the template of `variant` is rendered with; `arch` as in `render`.

    `templates/kernel.cu.j2` says what each name means.
    """
    problem = variant.problem
    return {
        "name": variant.name,
        "problem": problem,
        "strategy": variant.strategy,
        "launch": variant.launch,
        "choice": Choice.of(problem, variant.strategy),
        "choosing": choosing,
        "header": _header(variant, arch),
        "constants": constant_lines(variant),
        "float8": isinstance(problem.out_dtype, Float8),
        "writes": problem.writes_elements,
        "reduces": problem.function.reduces,
        "signature": functools.partial(signature, variant),
        "declaration": declaration,
        "widened": functools.partial(widened, problem),
        "narrowed": functools.partial(narrowed, problem),
        "fill": fill(problem),
        "fills": functools.partial(fills, problem),
        "col_offset": problem.layout.col_offset(),
        "given": _given(problem),
        "dependent": _dependent(variant),
        **_part_names(problem),
        **_row_names(problem),
        **_hook_names(variant),
    }


def _header(variant: Variant, arch: Arch | None) -> dict[str, Any]:
    """Return what the head of a file says in words."""
    problem = variant.problem
    built_for = arch.name if arch else variant.oldest_arch
    return {
        "alignment": alignment_rule(problem),
        "compile": functools.partial(compile_command, variant.name, built_for, variant.arch_rule),
        "flush": flush_rule(problem),
        "hooks": "".join(f", with {hook.formula}" for hook in problem.hooks),
        "shape": functools.partial(shape_rule, problem),
    }


class Others(tuple[Operand, ...]):
    """The inputs with an element a column but the first, in lists of parameters and arguments.

    A pattern says what stands there for each: text, with `{}` for the operand's name, or a function
    of its name.
    """

    __slots__ = ()

    def each(self, pattern: str | Callable[[str], str]) -> list[str]:
        """Return what stands for each."""
        spell = pattern.format if isinstance(pattern, str) else pattern
        return [spell(operand.name) for operand in self]

    def also(self, pattern: str | Callable[[str], str]) -> str:
        """Return that behind a comma each."""
        return "".join(f", {text}" for text in self.each(pattern))

    def ahead(self, pattern: str | Callable[[str], str]) -> str:
        """Return that before a comma each."""
        return "".join(f"{text}, " for text in self.each(pattern))


def _row_names(problem: Problem) -> dict[str, Any]:
    """Return how templates spell where rows are."""
    strided = isinstance(problem.layout, Strided)
    types = {operand.name: operand.cuda for operand in problem.whole_rows}
    results = {operand.name for operand in problem.results}

    def array(name: str) -> str:
        return f"{name}_rows" if strided else name

    def array_of(name: str) -> str:
        const = "" if name in results else "const "
        element = f"{const}{types.get(name, 'X')}"
        return f"StridedRows<{element}> {array(name)}" if strided else f"{element}* {name}"

    def row_of(name: str, row: str = "row") -> str:
        if problem.layout.step > 1:
            return f"{name} + {row} / kInner * (kInner * kCols) + {row} % kInner"
        return f"{array(name)}.at({row})" if strided else f"{name} + {row} * kCols"

    return {
        "strided": strided,
        "any_width": isinstance(problem.layout, AnyWidth),
        "array": array,
        "array_of": array_of,
        "row_of": row_of,
        # Between the rows of a view lies what is nobody's.
        "inner_row": "false" if strided else "row > 0 && row + 1 < rows",
    }


def _part_names(problem: Problem) -> dict[str, Any]:
    """Return what templates call the first input, the others, a part and a row's result."""
    part = problem.function.part
    has_maximum = part.has_maximum
    first, *others = problem.element_inputs
    written = [o.name for o in problem.results if o.extent is Extent.ELEMENT]

    def weighed(total: str, m: str = "", times: str = "") -> str:
        factor = f"factor_of({total}){times}"
        if not problem.weighs:
            return factor
        of_row = f", {m}, {total}" if problem.weighs_lse else ""
        return f"state.weigh({factor}{of_row})"

    def rebased_factor(m: str, whole: str) -> str:
        if not problem.weighs:
            return f"factor_of({m}, {whole})"
        return f"rebased({weighed(f'{whole}.d', f'{whole}.m')}, {m}, {whole}.m)"

    return {
        "x": first.name,
        "others": Others(others),
        "hook_types": {operand.name: operand.dtype for operand in problem.hook_operands},
        "state_parameter": ["const Row& state"] if problem.modifiers else [],
        "state_argument": ", state" if problem.modifiers else "",
        "weighed": weighed,
        "rebased_factor": rebased_factor,
        "result": written[0] if written else "",
        "has_maximum": has_maximum,
        "larger": _larger(problem),
        "of_sum": problem.logs_sum,
        "absent": "negative_infinity()" if has_maximum else "0",
        "part": part.cuda,
        "mail": "Mail" if problem.posts else part.cuda,
        "long_part": part.long_cuda,
        "noun": part.noun,
        # The file of a part, or one that is made of its members.
        "of_part": lambda file: [f"parts/{name}{file}.cuh.j2" for name in (f"{part.name}/", "")],
        "arguments": part.arguments,
        "chooses": part.chooses,
        "draws": part.draws,
        "of_sink": "part_of_sink(state.sink)",
    }


def _larger(problem: Problem) -> str:
    """Return what gives the larger of two numbers."""
    if problem.compute_dtype is DType.FLOAT64:
        return "larger"
    return "exact_max" if problem.keeps_maximum else "max"


def _given(problem: Problem) -> dict[str, Any]:
    """Return how templates spell what is given of a row, where its part is."""
    if problem.function.reduces:
        return {}
    if problem.function.modifiers:
        of_state = {"base": "state.base", "factor": "1", "type": "Compute"}
        return {**of_state, "parameters": [], "arguments": ""}
    kind = problem.compute_dtype
    given = [o for o in problem.inputs if o.extent is Extent.ROW and o.dtype is kind]
    first, *others = (f"{operand.name}[row]" for operand in given)
    return {
        "base": first,
        "factor": ", ".join(others),
        "type": "Compute" if len(others) == 1 else "Factor",
        "parameters": [operand.parameter for operand in given],
        "arguments": "".join(f", {operand.name}" for operand in given),
    }


def _hook_names(variant: Variant) -> dict[str, Any]:
    """Return what finding the hooks of a row takes, and what the results of a row take of them."""
    problem, rows = variant.problem, _row_names(variant.problem)
    array, array_of = rows["array"], rows["array_of"]
    first = problem.element_inputs[0].name
    reads = problem.posts or any(hook.reads for hook in problem.modifiers)
    parameters = [operand.parameter for operand in problem.row_operands]
    arguments = [operand.name for operand in problem.row_operands]
    if reads:
        parameters.insert(0, array_of(first))
        arguments.insert(0, array(first))
    if problem.function.modifiers and variant.strategy.past_rows:  # whose arrays end with the rows
        parameters.insert(0, "long long rows")
        arguments.insert(0, "rows")
    turned = ""
    if variant.strategy.turns:
        turned = next((hook.kind for hook in problem.hooks if hook.lined), "")
    places = [f"{turned}_{number}" for number in ("every", "count", "inner")]
    written = [operand.name for operand in problem.row_results]
    declared = [operand.parameter for operand in problem.row_results]
    if written and problem.function.modifiers:
        written = ["state", *([] if reads else [array(first)]), *written]
        of_x = [] if reads else [array_of(first)]
        declared = ["const Row& state", *of_x, *declared]
    taken = [(o.name, o.parameter, o.extent is Extent.ELEMENT) for o in problem.given]
    choice_parameters = [array_of(name) if whole else single for name, single, whole in taken]
    choice_arguments = [array(name) if whole else name for name, _, whole in taken]
    if problem.function.chooses_scores and problem.enters:  # whose elements are read again
        choice_parameters.insert(0, "const Row& state")
        choice_arguments.insert(0, "state")
    if problem.function.ranked:
        results = problem.row_results
        choice_parameters = ["const int (&larger)[kIdPlaces]", "const Compute (&logits)[kIdPlaces]"]
        choice_parameters += [operand.parameter for operand in results]
        choice_arguments = ["larger", "logits", *(operand.name for operand in results)]
    # Beside widened float32 it spilled 24 bytes in threads of 64 elements.
    packed = variant.strategy.knobs.get("packed", False)
    # Elements that stay packed meet hooks when they are widened.
    loads = problem.shortens or (problem.enters and not packed)
    loads = loads or (problem.ends and variant.strategy.loads_to_end)
    patches = problem.picks and variant.strategy.patches and packed
    return {
        "choice_parameters": choice_parameters,
        "write_choice": lambda indent, *of_row: call(
            "write_choice", ["row", *of_row, *choice_arguments], indent, ""
        ),
        # What reads the element of an id, when the row is here.
        "of_ids": f"state, {array(first)}",
        "patches": patches,
        # What all columns are less by is no target's alone.
        "leaves": problem.leaves and (not patches or problem.function.smooths),
        "hook_parameters": parameters,
        "turned": turned,
        "turned_block": call("turned_block", places, 2, "const unsigned int block = "),
        "block": "block" if turned else "blockIdx.x",
        "hook_arguments": "".join(f", {name}" for name in arguments),
        "load_parameter": ["const Row& state"] if loads else [],
        "load_argument": ", state" if loads else "",
        "row_state": functools.partial(call, "state_of", ["row", *arguments]),
        "state_of_row": lambda row, *where: call("state_of", [row, *arguments], *where),
        "rowwise": any(hook.by_row or hook.leaves for hook in problem.hooks),
        "row_results": ", ".join(written),
        "row_parameters": declared,
    }


def _dependent(variant: Variant) -> dict[str, Any]:
    """Return what a dependent launch's wait takes: the kernel's arrays, by reference."""
    arrays = [parameter for parameter in variant.parameters if "*" in parameter]
    names = [array.rpartition("* ")[2] for array in arrays]
    operands = [f'"+l"({name})' for name in names]
    return {
        "arrays": [array.replace("* ", "*& ") for array in arrays],
        "names": ", ".join(names),
        "operands": ", ".join(operands),
        "lines": broken(" " * 17, operands),
    }
