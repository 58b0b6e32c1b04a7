"""Do tests see that a line of softgen's Python is wrong? The counterpart of tests/mutation.py.

`python -m tests.python_mutation 150` draws 150 lines of softgen/, breaks each in one place, runs
the tests that name its module and those of its room, and prints the score and the survivors. The
seed was fixed before the first run, and is never drawn again: every run breaks the same places of
the same text. `--first N` leaves out the first N, to go on with a run that was stopped.

A mutant lies in a copy of the tree, in a temporary folder. It is seen if a test fails that passes
without it. Not counted are those whose bytecode is the original's (equal), whose tests do not end
within `--seconds` (late: they hang, or have more to do), and of which the first test that fails
does so without them too (unsure).
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SEED = 39
AT_ONCE = os.cpu_count() or 2
# What these keep for other runs would be that of a mutant.
KEEPING = ("devices", "disk")

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult},
    **{ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
    **{ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.BitXor: ast.BitOr},
}
_DROPPED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Continue, ast.Break, ast.Assert)


class Change(NamedTuple):
    """What stands in the place of a node."""

    rule: str
    node: ast.expr | ast.stmt
    new: str


def changes(tree: ast.AST) -> Iterator[Change]:
    """Yield each change of a module: not of annotations, docstrings and texts."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.expr | ast.stmt):
        yield from _of_node(tree)
    left_alone = (getattr(tree, "annotation", None), getattr(tree, "returns", None))
    for child in ast.iter_child_nodes(tree):
        if child not in left_alone and not isinstance(child, ast.JoinedStr):
            yield from changes(child)


def _of_node(node: ast.expr | ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield Change("constant", node, f"({ast.unparse(node)} + 1)")
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield Change("constant", node, str(not node.value))
    elif isinstance(node, ast.Compare):
        ops = [_swapped(node.ops[0]), *node.ops[1:]]
        yield Change("compare", node, _text(ast.Compare(node.left, ops, node.comparators)))
    elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        swapped = ast.BinOp(node.left, _swapped(node.op), node.right)
        yield Change("arithmetic", node, _text(swapped))
    elif isinstance(node, ast.BoolOp):
        yield Change("logic", node, _text(ast.BoolOp(_swapped(node.op), node.values)))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield Change("not", node, _text(node.operand))
    elif isinstance(node, ast.Return) and node.value and ast.unparse(node.value) != "None":
        yield Change("returned", node, "return None")
    elif isinstance(node, _DROPPED) and not _is_needed(node):
        yield Change("dropped", node, "pass")
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield Change("negated", node.test, f"(not {_text(node.test)})")


def _swapped(op: ast.AST) -> Any:
    return _SWAPPED[type(op)]()


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _is_needed(node: ast.stmt) -> bool:
    """Whether nothing runs without it: it gives a name its first value. A docstring is, too."""
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
        return not any(isinstance(n, ast.Name) and n.id == target.id for n in ast.walk(node.value))
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@dataclass(frozen=True)
class Mutant:
    """A module, by its path in the tree, that is wrong in one place."""

    path: str
    change: Change

    @property
    def original(self) -> str:
        """The module's text."""
        return (ROOT / self.path).read_text()

    @property
    def text(self) -> str:
        """The text with the change."""
        node, lines = self.change.node, self.original.encode().splitlines(keepends=True)
        first, last = node.lineno - 1, (node.end_lineno or 0) - 1
        new = lines[first][: node.col_offset] + self.change.new.encode()
        lines[first : last + 1] = [new + lines[last][node.end_col_offset :]]
        return b"".join(lines).decode()

    @property
    def tests(self) -> list[str]:
        """The files of tests that name the module, then those of its room."""
        module = self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        parent, _, name = module.rpartition(".")
        naming = re.compile(rf"\b{module}\b(?!\.)|from {parent} import .*\b{name}\b")
        every = sorted((ROOT / "tests").glob("[cp]*/**/test_*.py"))
        room = ROOT / "tests" / "cpu" / Path(self.path).parts[1].removesuffix(".py")
        found = [path for path in every if naming.search(path.read_text())]
        found += [path for path in every if path.is_relative_to(room)]
        return [str(path.relative_to(ROOT)) for path in dict.fromkeys(found)]

    def __str__(self) -> str:
        rule, node, new = self.change
        return f"{self.path}:{node.lineno}: {rule}: {ast.unparse(node)} -> {new}"


def bytecode(text: str) -> Any:
    """Return what a text compiles to, without its places."""

    def bare(code: CodeType) -> Any:
        constants = [bare(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
        return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars

    return bare(compile(text, "", "exec", dont_inherit=True))


def sample(count: int) -> list[Mutant]:
    """Return mutants of so many lines; of more lines the first ones are the same."""
    by_line: dict[tuple[str, int], list[Change]] = {}
    for path in sorted((ROOT / "softgen").rglob("*.py")):
        for change in changes(ast.parse(path.read_text())):
            place = (str(path.relative_to(ROOT)), change.node.lineno)
            by_line.setdefault(place, []).append(change)
    generator = random.Random(SEED)
    drawn = [Mutant(place[0], generator.choice(found)) for place, found in by_line.items()]
    generator.shuffle(drawn)
    return drawn[:count]


@dataclass(frozen=True)
class Tree:
    """A folder whose tests run there."""

    folder: Path

    @classmethod
    def copied(cls, folder: Path) -> Tree:
        """Return a copy of this tree."""
        ignored = shutil.ignore_patterns(".git", "__pycache__", ".*_cache")
        shutil.copytree(ROOT, folder, ignore=ignored)
        return cls(folder)

    def run(self, tests: Sequence[str], seconds: float, **environment: str) -> str | None:
        """Return the first test that fails, "" if none does, and None where they take longer.

        Its name is from pytest's cache: on the screen what a test is given and what is said of it
        cannot be told apart.
        """
        with tempfile.TemporaryDirectory() as kept:  # others may run here at the same time
            command = f"nice {sys.executable} -B -m pytest -x -q -n0 -o cache_dir={kept}"
            process = subprocess.Popen(
                [*command.split(), *tests],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(self.folder), **environment},
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None
            path = Path(kept, "v", "cache", "lastfailed")
            failed = [*json.loads(path.read_text())] if path.exists() else []
        return failed[0] if failed else "" if code in (0, 5) else "pytest"


class Judge:
    """Trees that have a mutant each, and one without."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.free: queue.Queue[Tree] = queue.Queue()
        for number in range(AT_ONCE):
            self.free.put(Tree.copied(folder / str(number)))
        whole = Tree.copied(folder / "whole")
        self.passes = functools.cache(lambda test: whole.run([test], seconds) == "")

    def __call__(self, mutant: Mutant) -> tuple[str, str]:
        """Return what becomes of a mutant, and the test that fails."""
        if bytecode(mutant.text) == bytecode(mutant.original):
            return "equal", ""
        keeps = Path(mutant.path).parts[1] in KEEPING
        kept = {"SOFTGEN_BUILD_CACHE": tempfile.mkdtemp(dir=self.folder)} if keeps else {}
        tree = self.free.get()
        path = tree.folder / mutant.path
        path.write_text(mutant.text)
        failed = tree.run(mutant.tests, self.seconds, **kept)
        path.write_text(mutant.original)
        self.free.put(tree)
        if not failed:
            return "late" if failed is None else "survived", ""
        return "seen" if failed == "pytest" or self.passes(failed) else "unsure", failed


def main() -> None:
    """Print what becomes of so many mutants, and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    mutants = sample(arguments.count)[arguments.first :]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        judge = Judge(Path(folder), arguments.seconds)
        numbers = {pool.submit(judge, mutant): number for number, mutant in enumerate(mutants)}
        for future in as_completed(numbers):
            number, (what, by) = numbers[future], future.result()
            counts[what] += 1
            print(arguments.first + number, what, mutants[number], by and f"by {by}", flush=True)
    print(f"{counts['seen']} of {counts['seen'] + counts['survived']} were seen; {dict(counts)}")


if __name__ == "__main__":
    main()
