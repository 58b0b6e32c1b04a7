"""What templates know of a variant, by the names that they call it."""

from __future__ import annotations

import functools
from typing import Any

from softgen.problems.arch import Arch
from softgen.problems.dtypes import DType, Float8
from softgen.problems.layouts import AnyWidth, Strided
from softgen.problems.operands import Extent
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
from softgen.strategies.choice import MANY, Choice, chunk, lanes_of_name, most_found, names
from softgen.strategies.variants import Variant


def context(variant: Variant, arch: Arch | None) -> dict[str, Any]:
    """Return what the template of `variant` is rendered with; `arch` as in `render`."""
    problem = variant.problem
    return {
        "float8": isinstance(problem.out_dtype, Float8),
        "problem": problem,
        "strategy": variant.strategy,
        "launch": variant.launch,
        "choice": Choice.of(problem, variant.strategy),
        "alignment_rule": alignment_rule(problem),
        "hooks_rule": "".join(f", with {hook.formula}" for hook in problem.hooks),
        "shape_rule": functools.partial(shape_rule, problem),
        "col_offset": problem.layout.col_offset(),
        "results_have_a_type": any(operand.cuda == "Y" for operand in problem.operands),
        "writes": problem.writes_elements,
        "reduces": problem.function.reduces,
        "flush_rule": flush_rule(problem),
        "compile_command": functools.partial(
            compile_command,
            variant.name,
            arch.name if arch else variant.oldest_arch,
            variant.arch_rule,
        ),
        "constants": constant_lines(variant),
        "symbol": variant.name,
        "name": variant.name,
        "signature": functools.partial(signature, variant),
        "declaration": declaration,
        "widened": functools.partial(widened, problem),
        "narrowed": functools.partial(narrowed, problem),
        "fill": fill(problem),
        "fills": functools.partial(fills, problem),
        **_part_names(problem),
        **_given_names(problem),
        **_row_names(problem),
        **_hook_names(variant),
        **_dependent_names(variant),
    }


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
        "choice_parameters": [
            array_of(o.name) if o.extent is Extent.ELEMENT else o.parameter for o in problem.given
        ],
        "choice_arguments": [
            array(o.name) if o.extent is Extent.ELEMENT else o.name for o in problem.given
        ],
        "more_arrays": [array_of(operand.name) for operand in problem.element_inputs[1:]],
        "more_rows_at": "".join(f", {row_of(o.name)}" for o in problem.element_inputs[1:]),
        "more_names": "".join(f", {array(o.name)}" for o in problem.element_inputs[1:]),
    }


def _part_names(problem: Problem) -> dict[str, Any]:
    """Return what templates call the first input, the others, a part and a row's result."""
    part = problem.function.part
    has_maximum = part.has_maximum
    first, *more = problem.element_inputs
    written = [o.name for o in problem.results if o.extent is Extent.ELEMENT]

    def more_elements(index: str) -> str:
        return "".join(f"{operand.name}_values[{index}], " for operand in more)

    def more_at(index: str) -> str:
        return "".join(f", {operand.name}_values[{index}]" for operand in more)

    def more_parameters(count: str) -> list[str]:
        return [f"const Compute (&{operand.name}_values)[{count}]" for operand in more]

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
        "more_inputs": more,
        "more_value": "".join(f", {operand.name}_value[1]" for operand in more),
        "more_single": "".join(f", {operand.name}_value" for operand in more),
        "more_row_list": [f"const X* row_{operand.name}" for operand in more],
        "more_raw_filled": [f"Raw (&{operand.name}_raw)[kPacks]" for operand in more],
        "more_raw_declared": "".join(f", {operand.name}_raw[kPacks]" for operand in more),
        "more_raw": [f"const Raw (&{operand.name}_raw)[kPacks]" for operand in more],
        "more_raw_packs": [f"Raw {operand.name}_raw" for operand in more],
        "more_packs": "".join(f", {operand.name}_raw" for operand in more),
        "more_pack": "".join(f", {operand.name}_raw[p]" for operand in more),
        "more_filled": [f"Compute (&{operand.name}_values)[kColsPerThread]" for operand in more],
        "more_declared": "".join(f", {operand.name}_values[kColsPerThread]" for operand in more),
        "more_row_parameters": "".join(f"const X* row_{operand.name}, " for operand in more),
        "more_rows": "".join(f", row_{operand.name}" for operand in more),
        "more_values": "".join(f", {operand.name}_values" for operand in more),
        "more_visited": "".join(f", Values& {operand.name}_values" for operand in more),
        "more_elements": more_elements,
        "more_at": more_at,
        "more_from": "".join(f", from_{operand.name}" for operand in more),
        "more_from_parameters": "".join(f", const X* from_{operand.name}" for operand in more),
        "more_parameters": more_parameters,
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
        "names": names,
        "lanes_of_name": lanes_of_name,
        "chunk": chunk,
        "most_found": most_found,
        "many": MANY,
        "of_sink": "part_of_sink(state.sink)",
    }


def _larger(problem: Problem) -> str:
    """Return what gives the larger of two numbers."""
    if problem.compute_dtype is DType.FLOAT64:
        return "larger"
    return "exact_max" if problem.keeps_maximum else "max"


def _given_names(problem: Problem) -> dict[str, Any]:
    """Return how templates spell what is given of a row, where its part is."""
    if problem.function.reduces:
        return {}
    if problem.function.modifiers:
        names = {"given_base": "state.base", "given_factor": "1", "given_type": "Compute"}
        return {**names, "given_parameters": [], "given_arguments": ""}
    kind = problem.compute_dtype
    given = [o for o in problem.inputs if o.extent is Extent.ROW and o.dtype is kind]
    first, *others = (f"{operand.name}[row]" for operand in given)
    return {
        "given_base": first,
        "given_factor": ", ".join(others),
        "given_type": "Compute" if len(others) == 1 else "Factor",
        "given_parameters": [operand.parameter for operand in given],
        "given_arguments": "".join(f", {operand.name}" for operand in given),
    }


def _hook_names(variant: Variant) -> dict[str, Any]:
    """Return what finding the hooks of a row takes, and what the results of a row take of them."""
    problem, rows = variant.problem, _row_names(variant.problem)
    first = problem.element_inputs[0].name
    reads = problem.posts or any(hook.reads for hook in problem.modifiers)
    parameters = [operand.parameter for operand in problem.row_operands]
    arguments = [operand.name for operand in problem.row_operands]
    if reads:
        parameters.insert(0, rows["array_of"](first))
        arguments.insert(0, rows["array"](first))
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
        written = ["state", *([] if reads else [rows["array"](first)]), *written]
        of_x = [] if reads else [rows["array_of"](first)]
        declared = ["const Row& state", *of_x, *declared]
    choice = {name: rows[name] for name in ("choice_parameters", "choice_arguments")}
    if problem.function.ranked:
        choice["choice_parameters"] = ["const int (&larger)[kIdPlaces]", *declared]
        choice["choice_arguments"] = ["larger", *written]
    # Beside widened float32 it spilled 24 bytes in threads of 64 elements.
    packed = variant.strategy.knobs.get("packed", False)
    patches = problem.picks and variant.strategy.patches and packed
    return {
        **choice,
        "write_choice": lambda indent, *of_row: call(
            "write_choice", ["row", *of_row, *choice["choice_arguments"]], indent, ""
        ),
        # What reads the element of an id, when the row is here.
        "of_ids": f"state, {rows['array'](first)}",
        "patches": patches,
        # What all columns are less by is no target's alone.
        "leaves": problem.leaves and (not patches or problem.function.smooths),
        "hook_parameters": parameters,
        "turned": turned,
        "turned_block": call("turned_block", places, 2, "const unsigned int block = "),
        "block": "block" if turned else "blockIdx.x",
        "hook_arguments": "".join(f", {name}" for name in arguments),
        "row_state": functools.partial(call, "state_of", ["row", *arguments]),
        "state_of_row": lambda row, *where: call("state_of", [row, *arguments], *where),
        "rowwise": any(hook.by_row or hook.leaves for hook in problem.hooks),
        "row_results": ", ".join(written),
        "row_parameters": declared,
    }


def _dependent_names(variant: Variant) -> dict[str, Any]:
    """Return what a dependent launch's wait takes: the kernel's arrays, by reference."""
    arrays = [parameter for parameter in variant.parameters if "*" in parameter]
    names = [array.rpartition("* ")[2] for array in arrays]
    return {
        "dependent_arrays": [array.replace("* ", "*& ") for array in arrays],
        "dependent_operands": ", ".join(f'"+l"({name})' for name in names),
        "dependent_lines": broken(" " * 17, [f'"+l"({name})' for name in names]),
        "dependent_names": ", ".join(names),
    }
