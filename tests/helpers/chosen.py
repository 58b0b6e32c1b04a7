"""Variants of each strategy, type and layout of a function, run on rows that a test makes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from softgen.devices.emulator import Job
from softgen.problems.numerics import Storage
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.variants import Variant
from softgen.verify.matrix import matrix
from softgen.verify.placements import placement_of, rows_for
from tests.helpers.cover import cover
from tests.helpers.emulator_helpers import wrong_of


@functools.cache
def best_guesses() -> list[Variant]:
    """Return what `softgen verify` runs; the candidates of thousands of problems take 4 s."""
    return matrix(all_variants=False)


@functools.cache
def best_guesses_of(function: str) -> list[Variant]:
    """Return those of a function, with each hook too: for softmax that takes 10 s."""
    return matrix(False, None, None, [function])


def chosen(function: str, hook: str = "") -> list[Variant]:
    """Return a variant of every two of a strategy, a type, a layout and a way to hold packs.

    With `hook`, if given. Rows of several devices are left out, and columns of more than 400 rows.
    """
    found: dict[bool, dict[object, Variant]] = {False: {}, True: {}}
    for variant in best_guesses_of(function):
        problem, strategy = variant.problem, variant.strategy
        if problem.sharded or problem.function.twin or row_count(problem) > 400:
            continue
        if hook and hook not in {each.name for each in problem.hooks}:
            continue
        packed = bool(strategy.knobs.get("packed", False))
        types = (problem.dtype, problem.out_dtype, type(problem.layout), problem.fixed_order)
        found[packed].setdefault((strategy.name, bool(problem.hooks), *types), variant)
    return [variant for each in found.values() for variant in cover([*each.values()])]


def row_count(problem: Problem) -> int:
    """Return how many rows a test has: 9, or whole columns."""
    step = problem.layout.step
    return rows_for(problem, -(-9 // step) * step)


def objections(
    variants: Sequence[Variant], inputs_of: Callable[[Problem], Sequence[Storage]]
) -> list[str]:
    """Return what is wrong with the results of any variant: one line for each that is wrong."""
    jobs = []
    for variant in variants:
        problem = variant.problem.launched_on(1000)
        x, *others = inputs_of(problem)
        placement = placement_of(problem, len(x))
        jobs.append(Job(render(variant), x, tuple(others), placement=placement))
    return wrong_of(jobs)
