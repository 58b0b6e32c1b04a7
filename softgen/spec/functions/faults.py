"""What is wrong with a function that was added to softgen, and what is said of it."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Container
from pathlib import Path
from types import ModuleType

from softgen.errors import FunctionError
from softgen.faults import told
from softgen.spec.dtypes import DType, compute_type
from softgen.spec.functions import SHIPPED
from softgen.spec.functions.base import Function
from softgen.spec.operands import Extent, Operand

PACKAGE = __name__.rpartition(".")[0]
FOLDER = Path(__file__).parent


def is_own(function: Function) -> bool:
    """Whether a function is somebody's own, not one that comes with softgen."""
    package, _, module = type(function).__module__.rpartition(".")
    return package != PACKAGE or module not in SHIPPED


def module_fault(name: str, error: BaseException, advice: str = "") -> FunctionError:
    """Return the error for the added module called `name`, which `error` makes useless."""
    place, reason = told(error, _is_added)
    words = (f"{place or FOLDER / f'{name}.py'}: {reason}", advice, "the others work")
    return FunctionError("; ".join(filter(None, words)))


def _is_added(path: Path) -> bool:
    return path.parent == FOLDER and path.suffix == ".py" and path.stem not in SHIPPED


def fault(function: Function, error: BaseException) -> FunctionError:
    """Return what to raise from `error`, which a function that was added caused.

    Its message names the innermost line of what was added: the module, or its template.
    """
    module = getattr(sys.modules.get(type(function).__module__), "__file__", None)
    template = ("functions", f"{function.template}.cuh.j2")
    place, reason = told(error, lambda path: str(path) == module or path.parts[-2:] == template)
    return FunctionError(f"{place or f'function {function.name}'}: {reason}")


def objection(module: ModuleType, taken: Container[str]) -> str:
    """Return why the functions of an added module cannot be used; empty if they can.

    Each property and the operands are looked at once, here, so that what lists all functions need
    not fear any of them.

    Args:
        module: may have FUNCTIONS and EXHIBITS.
        taken: names of other functions.

    Raises whatever the author's own lines raise.
    """
    functions = getattr(module, "FUNCTIONS", ())
    if not isinstance(functions, tuple) or not all(isinstance(f, Function) for f in functions):
        return "FUNCTIONS must be a tuple of functions, as in FUNCTIONS = (LogMeanExp(),)"
    from softgen.spec.functions.exhibit import Exhibit  # which only the gallery needs

    exhibits = getattr(module, "EXHIBITS", ())
    if not isinstance(exhibits, tuple) or not all(isinstance(e, Exhibit) for e in exhibits):
        return "EXHIBITS must be a tuple of Exhibits"
    names = set()
    for function in functions:
        name = function.name
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            return f"{name!r} is no name; give lower-case letters, digits and underscores"
        if name in taken or name in names:
            return f"two functions are called {name!r}; give this one another name"
        names.add(name)
        hash(function)
        for attribute in dir(type(function)):
            if isinstance(getattr(type(function), attribute), property):
                getattr(function, attribute)
        for kind, out in itertools.product(DType, DType):
            operands = function.operands(kind, out, compute_type(kind, out))
            if not all(isinstance(operand, Operand) for operand in operands) or not any(
                operand.extent is Extent.ELEMENT and not operand.result for operand in operands
            ):
                return f"operands() of {name} must return Operands, one of them element(...)"
    return ""
