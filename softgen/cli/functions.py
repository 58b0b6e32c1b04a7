"""`softgen functions`: the functions of a row, by the names that --function takes."""

from __future__ import annotations

from softgen.cli import options, output
from softgen.problems.functions import SUFFIXES, all_functions, rules


def functions(json: options.JsonOption = False) -> None:
    """List the functions of a row: the names that --function takes, and what each computes.

    docs/functions.md says more of them.
    """
    if json:
        output.document(
            [
                {"name": each.name, "formula": each.formula, "call": each.call}
                for each in all_functions()
            ]
        )
        return
    found = [each for each in all_functions() if not each.twin]
    output.table(("function", "computes"), ((each.name, each.formula) for each in found))
    output.note(SUFFIXES)
    for rule in rules().values():
        output.note(f"there are {rule}")
