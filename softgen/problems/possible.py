"""What no kernel computes: results of 8 bits, hooks and sharded rows that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType, Float8

if TYPE_CHECKING:
    from softgen.problems.problem import Problem


def require_kernel(problem: Problem) -> None:
    """Raise InvalidValueError for a problem that no kernel computes."""
    if isinstance(problem.out_dtype, Float8):
        _require_float8(problem)
    if problem.hooks:
        _require_hooks(problem)
    if problem.sharded:
        _require_shards(problem)


def _require_float8(problem: Problem) -> None:
    function, y_type = problem.function, problem.out_dtype
    if not function.writes_float8:
        raise InvalidValueError(
            f"{function.name} has no results of {y_type.value}; softmax and log_softmax have, with "
            "and without lse"
        )
    if problem.dtype is DType.FLOAT64:
        raise InvalidValueError(
            f"results of {y_type.value} are of arithmetic in float32, not of float64; cast x "
            "to float32 first"
        )


def _require_hooks(problem: Problem) -> None:
    function, names = problem.function, ", ".join(map(str, problem.hooks))
    if not function.hookable:
        raise InvalidValueError(
            f"{function.name} takes no hooks, got {names}; softmax takes all, and "
            "docs/hooks_table.md says which function takes which"
        )
    if problem.zero_rows and not problem.writes_elements:
        raise InvalidValueError(f"{function.name} has no NaN for zeroempty to replace")
    for hook in problem.hooks:
        if hook.kind in function.barred:
            raise InvalidValueError(f"{hook} means nothing to {function.name}; leave it out")
        if (hook.leaves or hook.weighs) and not function.weighs:
            raise InvalidValueError(
                f"{hook} is for results that sum to one, as softmax's; {function.name} has none"
            )


def _require_shards(problem: Problem) -> None:
    if not problem.function.shardable:
        raise InvalidValueError(
            f"{problem.function.name} has no kernel for sharded rows; softmax, log_softmax and "
            "entropy (each also with lse), logsumexp, partial, merge, merge_losses and "
            "cross_entropy have one: take one of them"
        )
    if problem.hooks:
        hooks = ", ".join(map(str, problem.hooks))
        raise InvalidValueError(f"sharded rows take no hooks, got {hooks}; leave them out")
