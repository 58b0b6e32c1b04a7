"""From a variant to its CUDA source text: one Jinja environment and one function."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.errors import SoftgenError, StrategyError
from softgen.spec.arch import Arch
from softgen.spec.dtypes import MAX_PACK_BYTES, DType, Float8, FloatType
from softgen.spec.layouts import Strided
from softgen.spec.operands import Extent, Measure, Operand
from softgen.spec.problem import Problem
from softgen.strategies.faults import fault, is_own
from softgen.strategies.variants import Variant

if TYPE_CHECKING:
    import jinja2

# CuPy adds both to every NVRTC compile; they are stated so that nvcc on the emitted file gives the
# same kernel.
COMPILE_OPTIONS = ("--std=c++17", "-ftz=true")


PACKAGE = Path(__file__).resolve().parents[1]

# Where the template of a strategy lies.
STRATEGY_FOLDERS = ("strategies", "strategies/lessons")

LINE = 100  # columns of an emitted line at most, as in .clang-format


@dataclass(frozen=True)
class Source:
    """An emitted CUDA file. Its text is the whole truth: no include but the toolkit's own.

    Attributes:
        variant: what it computes and how.
        name: stem of the file.
        symbol: name of the one `extern "C"` kernel, the file's stem. It takes (x, y, long long
            rows) and, if the launch says so, a workspace.
        text: the CUDA C++ text.
        options: what NVRTC or nvcc must be given.
    """

    variant: Variant
    name: str
    symbol: str
    text: str
    options: tuple[str, ...] = COMPILE_OPTIONS

    @classmethod
    def of(cls, variant: Variant, text: str) -> Source:
        """Return the source of `variant`, whose file and kernel have its name."""
        return cls(variant, variant.name, variant.name, text)

    @property
    def sha256(self) -> str:
        """Digest of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def template_directory() -> Path:
    """Return the folder of templates: inside an installed package, beside it in a checkout."""
    for folder in (PACKAGE / "templates", PACKAGE.parent / "templates"):
        if (folder / "kernel.cu.j2").is_file():
            return folder
    raise SoftgenError(
        f"no templates in {PACKAGE / 'templates'} nor {PACKAGE.parent / 'templates'}: "
        "the installation is damaged; install softgen again"
    )


def strategy_template(name: str) -> str:
    """Return the template of the strategy called `name`, as a path in the folder of templates."""
    for folder in STRATEGY_FOLDERS:
        if (template_directory() / folder / f"{name}.cu.j2").is_file():
            return f"{folder}/{name}.cu.j2"
    return f"{STRATEGY_FOLDERS[0]}/{name}.cu.j2"  # where a new one is written


def _spell(value: Any) -> Any:
    """Spell a value as C++ would; refuse what has no spelling (None, inf, nan)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise SoftgenError(f"a template tried to print {value!r}")
    if isinstance(value, float):
        return f"{value!r}f"
    return value


@functools.cache
def environment() -> jinja2.Environment:
    """Return the Jinja environment, whose delimiters are C++ comments and `${ }`.

    CUDA then needs no escapes: Jinja's own would take `{{0, 0}}`, `{#pragma` and `{%0, %1}` for
    tags.
    """
    import jinja2  # 18 ms that a process whose texts are all on disk does not spend

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_directory()),
        block_start_string="/*%",
        block_end_string="%*/",
        variable_start_string="${",
        variable_end_string="}",
        comment_start_string="/*#",
        comment_end_string="#*/",
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        optimized=False,  # folding constants takes longer than it saves, 15% of a first text
        finalize=_spell,
    )


def constant_lines(variant: Variant) -> list[str]:
    """Return one C++ constant a line for the width and each knob that has one, comments aligned."""
    problem = variant.problem
    rows = [("Col kCols", problem.cols, "elements in a row")]
    if problem.layout.step > 1:
        rows.append(("long long kInner", problem.layout.step, "from one of them to the next"))
    for field in variant.strategy.fields():
        value = getattr(variant.strategy, field.name)
        named = field.metadata["constant"] and field.name not in variant.strategy.unnamed
        if not named or value == field.default:
            continue
        kind = "bool" if isinstance(value, bool) else "int"
        constant = "k" + "".join(word.capitalize() for word in field.name.split("_"))
        rows.append((f"{kind} {constant}", value, field.metadata["meaning"]))
    declared = [f"constexpr {name} = {_spell(value)};" for name, value, _ in rows]
    width = max(map(len, declared))
    return [f"{code:<{width}}  // {row[2]}" for code, row in zip(declared, rows, strict=True)]


def signature(variant: Variant, symbol: str) -> str:
    """Return the kernel's name and parameters, broken where clang-format breaks a long line."""
    opening, parameters = f"    {symbol}(", variant.parameters
    behind = _filled(opening, " " * len(opening), parameters)
    below = [opening, *_filled(" " * 8, " " * 8, parameters)]
    # clang-format breaks before the first parameter where that takes three lines less.
    fits = max(map(len, behind)) <= LINE and len(behind) < len(below) + 3
    return "\n".join(behind if fits else below)


def _filled(first: str, indent: str, parameters: Sequence[str]) -> list[str]:
    """Return parameters in lines as full as can be, the last of which opens a body."""
    lines = [first + parameters[0]]
    for parameter in parameters[1:]:
        end = ", " if parameter is not parameters[-1] else ") {"
        if len(f"{lines[-1]}, {parameter}{end.rstrip()}") <= LINE:
            lines[-1] += f", {parameter}"
        else:
            lines[-1] += ","
            lines.append(indent + parameter)
    lines[-1] += ") {"
    return lines


def declaration(opening: str, parameters: list[str]) -> str:
    """Return a function's head, broken where clang-format breaks it; a parameter "" is left out.

    For functions that have other parameters in other files.
    """
    some = [parameter for parameter in parameters if parameter]
    lines = [f"{opening}({some[0]}"]
    for parameter in some[1:]:
        end = "," if parameter is not some[-1] else ") {"
        if len(f"{lines[-1]}, {parameter}{end}") <= LINE:
            lines[-1] += f", {parameter}"
        else:
            lines[-1] += ","
            lines.append(" " * (len(opening) + 1) + parameter)
    return "\n".join(lines) + ") {"


def _broken(indent: str, words: Sequence[str]) -> str:
    """Return words in lines as full as can be, the first of which has its indentation already."""
    lines = [indent]
    for word in words:
        if len(f"{lines[-1]}{word},") > LINE:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += f"{word}, "
    return "\n".join(lines)[len(indent) : -2]


def widened(problem: Problem, element: str) -> str:
    """Return the number that an element of x is, in the type of all arithmetic."""
    conversions = {DType.FLOAT16: "__half2float", DType.BFLOAT16: "__bfloat162float"}
    if problem.dtype in conversions:
        return f"{conversions[problem.dtype]}({element})"
    return element


def narrowed(problem: Problem, number: str) -> str:
    """Return a result as an element of its type, to which it is rounded once."""
    double = problem.compute_dtype is DType.FLOAT64
    conversions = {
        DType.FLOAT16: "__double2half" if double else "__float2half_rn",
        DType.BFLOAT16: "__double2bfloat16" if double else "__float2bfloat16_rn",
    }
    if isinstance(problem.out_dtype, DType) and problem.out_dtype in conversions:
        return f"{conversions[problem.out_dtype]}({number})"
    if isinstance(problem.out_dtype, Float8):
        return f"to_float8({number})"
    return number if problem.out_dtype is problem.compute_dtype else f"static_cast<Y>({number})"


def fill(problem: Problem) -> str:
    """Return what stands for an element that is not there."""
    if problem.function.part.fill == 0:
        return "X(0)"
    bits = {
        DType.FLOAT16: "__ushort_as_half(0xfc00)",
        DType.BFLOAT16: "__ushort_as_bfloat16(0xff80)",
    }
    return bits.get(problem.dtype, "negative_infinity()")


def fills(problem: Problem, count: int) -> str:
    """Return a pack of so many of `fill`, as the words of an access."""
    if problem.function.part.fill == 0:
        return "{}"
    half = {DType.FLOAT16: "fc00", DType.BFLOAT16: "ff80"}.get(problem.dtype)
    if half is not None:
        return (
            f"{{0x{half}}}" if count == 1 else f"{{{', '.join(['0x' + half * 2] * (count // 2))}}}"
        )
    words = ["0xff800000"] if problem.dtype is DType.FLOAT32 else ["0", "0xfff00000"]
    return f"{{{', '.join(words * count)}}}"


def aligned_bytes(problem: Problem, dtype: FloatType) -> int:
    """Return what the address of an array of `dtype` has to be a multiple of."""
    return min(problem.alignment * dtype.itemsize, MAX_PACK_BYTES)


def shape_rule(problem: Problem, operand: Operand) -> str:
    """Return the shape of an operand, in words, and of a number what it may be."""
    number = operand.accepts or problem.layout.accepts(operand.name)
    return {
        Extent.ELEMENT: problem.layout.shape_rule.format(cols=problem.cols),
        Extent.ROW: f"[rows]{''.join(f'[{n}]' for n in operand.behind)}, contiguous",
        Extent.NUMBER: f"number, {number}",
        Extent.BROADCAST: problem.layout.accepts(operand.name)
        if operand in problem.layout_numbers
        else "[elements], of which a row finds its own by the numbers behind it",
    }[operand.extent]


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
        "array": array,
        "array_of": array_of,
        "row_of": row_of,
        # Between the rows of a view lies what is nobody's.
        "inner_row": "false" if strided else "row > 0 && row + 1 < rows",
        "more_arrays": [array_of(operand.name) for operand in problem.element_inputs[1:]],
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

    def weighed(factor: str) -> str:
        return f"hooks.weigh({factor})" if problem.weighs else factor

    return {
        "x": first.name,
        "more_inputs": more,
        "more_filled": [f"Compute (&{operand.name}_values)[kColsPerThread]" for operand in more],
        "more_declared": "".join(f", {operand.name}_values[kColsPerThread]" for operand in more),
        "more_row_parameters": "".join(f"const X* row_{operand.name}, " for operand in more),
        "more_rows": "".join(f", row_{operand.name}" for operand in more),
        "more_values": "".join(f", {operand.name}_values" for operand in more),
        "more_visited": "".join(f", auto& {operand.name}_values" for operand in more),
        "more_elements": more_elements,
        "more_at": more_at,
        "more_from": "".join(f", from_{operand.name}" for operand in more),
        "more_from_parameters": "".join(f", const X* from_{operand.name}" for operand in more),
        "more_parameters": more_parameters,
        "hook_types": {operand.name: operand.dtype for operand in problem.hook_operands},
        "hooks_parameter": ["const Hooks& hooks"] if problem.modifiers else [],
        "hooks_argument": ", hooks" if problem.modifiers else "",
        "weighed": weighed,
        "result": written[0] if written else "",
        "has_maximum": has_maximum,
        "absent": "negative_infinity()" if has_maximum else "0",
        "part": part.cuda,
        "long_part": part.long_cuda,
        "noun": part.noun,
        "arguments": part.arguments,
        "of_sink": part.of_element("hooks.sink"),
    }


def _given_names(problem: Problem) -> dict[str, Any]:
    """Return how templates spell what is given of a row, where its part is."""
    if problem.function.reduces:
        return {}
    if problem.function.modifiers:
        names = {"given_base": "hooks.base", "given_factor": "1", "given_type": "Compute"}
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
    picks = any(hook.picks for hook in problem.modifiers)
    parameters = [operand.parameter for operand in problem.row_operands]
    arguments = [operand.name for operand in problem.row_operands]
    if picks:
        parameters.insert(0, rows["array_of"](first))
        arguments.insert(0, rows["array"](first))
    if problem.function.modifiers and variant.strategy.past_rows:  # whose arrays end with the rows
        parameters.insert(0, "long long rows")
        arguments.insert(0, "rows")
    written = [operand.name for operand in problem.row_results]
    declared = [operand.parameter for operand in problem.row_results]
    if written and problem.function.modifiers:
        written = ["hooks", *([] if picks else [rows["array"](first)]), *written]
        of_x = [] if picks else [rows["array_of"](first)]
        declared = ["const Hooks& hooks", *of_x, *declared]
    return {
        "hook_parameters": parameters,
        "hook_arguments": "".join(f", {name}" for name in arguments),
        "row_hooks": functools.partial(_call, "hooks_of", ["row", *arguments]),
        "hooks_of_row": lambda row, *where: _call("hooks_of", [row, *arguments], *where),
        "rowwise": any(hook.by_row or hook.leaves for hook in problem.hooks),
        "row_results": ", ".join(written),
        "row_parameters": declared,
    }


def _call(
    name: str, arguments: Sequence[str], indent: int, before: str = "const Hooks hooks = "
) -> str:
    """Return a statement's call without its `;`, broken where clang-format breaks it."""
    lines = [f"{before}{name}({arguments[0]}"]
    for argument in arguments[1:]:
        end = "," if argument is not arguments[-1] else ");"
        if indent + len(f"{lines[-1]}, {argument}{end}") <= LINE:
            lines[-1] += f", {argument}"
        else:
            lines[-1] += ","
            lines.append(" " * (indent + len(before) + len(name) + 1) + argument)
    return "\n".join(lines) + ")"


def _dependent_names(variant: Variant) -> dict[str, Any]:
    """Return what a dependent launch's wait takes: the kernel's arrays, by reference."""
    arrays = [parameter for parameter in variant.parameters if "*" in parameter]
    names = [array.rpartition("* ")[2] for array in arrays]
    return {
        "dependent_arrays": [array.replace("* ", "*& ") for array in arrays],
        "dependent_operands": ", ".join(f'"+l"({name})' for name in names),
        "dependent_lines": _broken(" " * 17, [f'"+l"({name})' for name in names]),
        "dependent_names": ", ".join(names),
    }


def alignment_rule(problem: Problem) -> str:
    """Return what addresses have to be multiples of, in words."""
    sizes = {o.name: aligned_bytes(problem, o.float_type) for o in problem.whole_rows}
    rows = "then every row is" if problem.alignment > 1 else "an element: rows may start anywhere"
    if isinstance(problem.layout, Strided) and problem.alignment > 1:
        rows = "bases and strides"
    if len(set(sizes.values())) == 1:
        *names, last = sizes
        listed = f"{', '.join(names)} and {last}" if names else last
        return f"{listed} to {next(iter(sizes.values()))} bytes ({rows})"
    return f"{' and '.join(f'{name} to {size}' for name, size in sizes.items())} bytes ({rows})"


def flush_rule(problem: Problem) -> str:
    """Return what -ftz=true does to a kernel, in words.

    It is for float32 alone. log_softmax has no result between 0 and the last place of its
    logarithm, no float16 is so small that it could be flushed, and float64's narrowing to bfloat16
    does not flush.
    """
    single = problem.compute_dtype is DType.FLOAT32
    flushing = (DType.FLOAT32, DType.BFLOAT16) if single else (DType.FLOAT32,)
    flushed = any(
        operand.measure in (Measure.VALUE, Measure.TERMS) and operand.dtype in flushing
        for operand in problem.results
    )
    effect = "makes 0 of results below 1.2e-38" if flushed else "changes no result"
    return f"{effect}, and saves instructions" if single else effect


@functools.lru_cache(maxsize=4096)
def render(variant: Variant, arch: Arch | None = None) -> Source:
    """Return the source of `variant`: the same text on every machine and day.

    `arch` is what the header's line `compile:` names, by default the oldest that the variant fits;
    the code does not depend on it. What runs is always rendered without it, so that there is one
    text of a variant on disk and in CuPy's cache, whatever a file was emitted for.

    Raises StrategyError where a strategy that was added to softgen, or its template, fails.
    """
    kind = type(variant.strategy)
    try:
        return Source.of(variant, _text(variant, arch))
    except Exception as error:
        if not is_own(kind) or isinstance(error, StrategyError):
            raise
        from jinja2 import TemplateNotFound

        template = strategy_template(kind.name)
        if isinstance(error, TemplateNotFound) and error.name == template:
            file = template_directory() / template
            raise StrategyError(f"strategy {kind.name} has no template; write {file}") from error
        raise fault(kind.name, error) from error


def _text(variant: Variant, arch: Arch | None) -> str:
    problem = variant.problem
    path = strategy_template(variant.strategy.name)
    template = environment().get_template(path)
    return template.render(
        template=path,
        float8=isinstance(problem.out_dtype, Float8),
        problem=problem,
        strategy=variant.strategy,
        launch=variant.launch,
        alignment_rule=alignment_rule(problem),
        hooks_rule="".join(f", with {hook.formula}" for hook in problem.hooks),
        shape_rule=functools.partial(shape_rule, problem),
        col_offset=problem.layout.col_offset(),
        results_have_a_type=any(operand.cuda == "Y" for operand in problem.operands),
        writes=problem.writes_elements,
        reduces=problem.function.reduces,
        flush_rule=flush_rule(problem),
        compile_arch=arch.name if arch else variant.oldest_arch,
        arch_rule=variant.arch_rule,
        constants=constant_lines(variant),
        symbol=variant.name,
        signature=functools.partial(signature, variant),
        declaration=declaration,
        widened=functools.partial(widened, problem),
        narrowed=functools.partial(narrowed, problem),
        fill=fill(problem),
        fills=functools.partial(fills, problem),
        **_part_names(problem),
        **_given_names(problem),
        **_row_names(problem),
        **_hook_names(variant),
        **_dependent_names(variant),
        name=variant.name,
        options=" ".join(COMPILE_OPTIONS),
    )
