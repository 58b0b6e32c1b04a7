"""What the comment at the head of a file says, in words."""

from __future__ import annotations

from softgen.problems.dtypes import MAX_PACK_BYTES, DType, FloatType
from softgen.problems.hooks.places import packed_lines
from softgen.problems.layouts import Strided
from softgen.problems.operands import Extent, Measure, Operand
from softgen.problems.problem import Problem
from softgen.source.cpp import LINE


def aligned_bytes(problem: Problem, dtype: FloatType) -> int:
    """Return what the address of an array of `dtype` has to be a multiple of."""
    return min(problem.alignment * dtype.itemsize, MAX_PACK_BYTES)


def alignment_rule(problem: Problem) -> str:
    """Return what addresses have to be multiples of, in words; lines of a hook below the others."""
    lines = [f"lines of {name} to {size}" for name, size in packed_lines(problem).items()]
    below = f"\n//     {' and '.join(lines)} bytes (base and distances)" if lines else ""
    return _rows_rule(problem) + (below if problem.alignment > 1 else "")


def _rows_rule(problem: Problem) -> str:
    sizes = {o.name: aligned_bytes(problem, o.float_type) for o in problem.whole_rows}
    rows = "then every row is" if problem.alignment > 1 else "an element: rows may start anywhere"
    if isinstance(problem.layout, Strided) and problem.alignment > 1:
        rows = "bases and strides"
    if len(set(sizes.values())) == 1:
        *names, last = sizes
        listed = f"{', '.join(names)} and {last}" if names else last
        return f"{listed} to {next(iter(sizes.values()))} bytes ({rows})"
    return f"{' and '.join(f'{name} to {size}' for name, size in sizes.items())} bytes ({rows})"


def shape_rule(problem: Problem, operand: Operand) -> str:
    """Return the shape of an operand, in words, and of a number what it may be."""
    number = operand.accepts or problem.layout.accepts(operand.name)
    return {
        Extent.ELEMENT: problem.layout.shape_rule.format(cols=problem.cols),
        Extent.ROW: f"[rows]{''.join(f'[{n}]' for n in operand.behind)}, contiguous",
        Extent.NUMBER: f"number, {number}",
        Extent.COLUMN: f"[{problem.cols}], contiguous, for all rows",
        Extent.BROADCAST: problem.layout.accepts(operand.name)
        if operand in problem.layout_numbers
        else "[elements], of which a row finds its own by the numbers behind it",
    }[operand.extent]


def compile_command(name: str, arch: str, rule: str, options: str) -> str:
    """Return the comment that says how nvcc compiles the file of a kernel, a line or more.

    Args:
        name: of the kernel.
        arch: the architecture to compile for, as in sm_90.
        rule: the architectures that it is for, in words.
        options: what nvcc must be given.
    """
    lines = [f"//   compile: nvcc {options} -arch={arch} -c"]
    for piece in (f" {name}.cu", f"  # {rule}"):
        if len(lines[-1] + piece) <= LINE:
            lines[-1] += piece
        else:
            lines.append(f"//     {piece.lstrip()}")
    return "\n".join(lines)


def flush_rule(problem: Problem) -> str:
    """Return what -ftz=true does to a kernel, in words.

    It is for float32 alone. log_softmax has no result between 0 and the last place of its
    logarithm, which a number a row may be. A maximum that is a result is kept. No float16 is so
    small that it could be flushed, and float64's narrowing to bfloat16 does not flush.
    """
    single = problem.compute_dtype is DType.FLOAT32
    flushing = (DType.FLOAT32, DType.BFLOAT16) if single else (DType.FLOAT32,)
    flushed = not problem.keeps_maximum and any(
        operand.dtype in flushing
        and (operand.measure in (Measure.VALUE, Measure.TERMS) or operand in problem.row_results)
        for operand in problem.results
    )
    effect = "makes 0 of results below 1.2e-38" if flushed else "changes no result"
    return f"{effect}, and saves instructions" if single else effect
