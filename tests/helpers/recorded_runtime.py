"""A project's library on the CPU: its launches are recorded, and computed by the emulator.

The C++ that a project writes is compiled as it is, against a stub of CUDA's runtime
(cuda_stub/) that hands each launch to Python. The kernels' texts run on the emulator.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from softgen.devices.emulator import Program, build
from softgen.errors import EmulationError
from softgen.problems.layouts import AnyWidth
from softgen.problems.numerics import check, from_memory, in_memory, storage_dtype
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from softgen.source.project import Entry, Group, Project
from softgen.source.project_text import texts
from softgen.source.render import Source
from tests.helpers.kept_builds import build_library

STUB = Path(__file__).parent / "cuda_stub"
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")

COOPERATIVE, DEPENDENT = 2, 6

_NUMBERS: dict[str, Any] = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "bool": ctypes.c_bool,
}

Array = npt.NDArray[Any]


class _Dim3(ctypes.Structure):
    _fields_ = [(axis, ctypes.c_uint) for axis in "xyz"]


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", _Dim3),
        ("block", _Dim3),
        ("shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    ]


_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Config), ctypes.POINTER(ctypes.c_void_p)
)


@dataclass(frozen=True)
class Launched:
    """One launch: which kernel, on how many rows and columns, with which attributes."""

    source: Source
    grid: int
    block: int
    shared: int
    attributes: tuple[int, ...]
    rows: int
    cols: int
    stream: int


@dataclass
class Library:
    """A project's functions, on the CPU.

    Attributes:
        project: what was written.
        launches: those since the last `take`.
        computes: whether launches are computed, and not only recorded.
    """

    project: Project
    handle: ctypes.CDLL
    program: Program | None
    launches: list[Launched] = field(default_factory=list)
    computes: bool = True
    sizes: dict[int, int] = field(default_factory=dict)  # of broadcast arrays, by address
    wrong: list[str] = field(default_factory=list)

    def device(
        self, capability: int = 90, multiprocessors: int = 132, shared: int = 232448
    ) -> None:
        """Set what the stub says of its device; what kernels found of another one is kept."""
        given = (("capability", capability), ("multiprocessors", multiprocessors))
        for name, value in (*given, ("shared", shared)):
            ctypes.c_int.in_dll(self.handle, f"stub_{name}").value = value

    def take(self) -> list[Launched]:
        """Return the launches so far, and forget them."""
        found, self.launches[:] = list(self.launches), []
        wrong, self.wrong[:] = list(self.wrong), []
        assert not wrong, wrong
        return found

    def dtype(self, dtype: Any) -> int:
        """Return the enumerator of a dtype."""
        from softgen.problems.dtypes import DType, Float8

        return [*DType, *Float8].index(dtype)

    def status_text(self, status: int) -> str:
        """Return what the library says of a status."""
        function = getattr(self.handle, f"{self.project.name}_status_text")
        function.restype = ctypes.c_char_p
        return str(function(status).decode())

    def call(
        self,
        function: str,
        problem: Problem,
        values: list[Any],
        rows: int,
        *before: Any,
        workspace: Array | int | None = None,
        workspace_bytes: int | None = None,
        stream: int = 7,
    ) -> int:
        """Call a function on arrays (or addresses) and numbers, in operands' order."""
        words: list[Any] = list(before)
        for operand, value in zip(problem.operands, values, strict=True):
            if operand.extent is not Extent.NUMBER:
                words.append(ctypes.c_void_p(_address(value)))
                if isinstance(value, np.ndarray):
                    self.sizes[value.ctypes.data] = value.size
            elif before and operand.cuda == "Compute":
                words.append(ctypes.c_double(float(value)))
            else:
                words.append(_NUMBERS[operand.dtype.value](value))
        size = workspace.nbytes if isinstance(workspace, np.ndarray) else 0
        words += [ctypes.c_int64(rows), ctypes.c_void_p(_address(workspace))]
        words.append(ctypes.c_size_t(size if workspace_bytes is None else workspace_bytes))
        return int(getattr(self.handle, function)(*words, ctypes.c_void_p(stream)))

    def workspace(self, function: str, *given: Any) -> int:
        """Return what a workspace query says."""
        query = getattr(self.handle, f"{function}_workspace")
        query.restype = ctypes.c_size_t
        return int(query(*given))

    def _launch(self, source: Source, config: _Config, arguments: Any) -> int:
        """Record a launch, and compute it; return CUDA's error."""
        problem, launch = source.variant.problem, source.variant.launch
        values = [_value(operand, arguments[i]) for i, operand in enumerate(problem.operands)]
        rows = ctypes.c_int64.from_address(arguments[len(values)]).value
        cols = values[-1] if isinstance(problem.layout, AnyWidth) else problem.cols
        attributes = tuple(
            config.attributes[i].id for i in range(config.count) if config.attributes[i].value[0]
        )
        self.launches.append(
            Launched(
                *(source, config.grid.x, config.block.x, config.shared, attributes, rows, cols),
                config.stream or 0,
            )
        )
        if (
            launch.cooperative
            and config.grid.x > ctypes.c_int.in_dll(self.handle, "stub_multiprocessors").value
        ):
            return 9
        if self.computes:
            try:
                self._compute(source, values, rows, cols, config.grid.x)
            except EmulationError as error:
                self.wrong.append(str(error))
        return 0

    def _compute(self, source: Source, values: list[Any], rows: int, cols: int, grid: int) -> None:
        assert self.program is not None
        problem = source.variant.problem.launched_on(cols)
        found: dict[str, Array] = {}
        for operand, value in zip(problem.operands, values, strict=True):
            if operand.extent is Extent.NUMBER:
                found[operand.name] = np.array(value, storage_dtype(operand.dtype))
                continue
            shape: tuple[int, ...] = operand.shape(rows, cols)
            if operand.extent is Extent.BROADCAST:
                shape = (self.sizes[value],)
            kind = storage_dtype(operand.dtype)
            raw = (ctypes.c_char * (math.prod(shape) * kind.itemsize)).from_address(value)
            found[operand.name] = np.frombuffer(memoryview(raw).cast("B"), kind).reshape(shape)
        inputs = [
            np.array(_rows_of(found[operand.name], operand, problem, rows))
            for operand in problem.inputs
        ]
        starts = [
            values[problem.operands.index(operand)] % 16 // operand.dtype.itemsize
            for operand in problem.whole_rows
        ]
        results = self.program.run_each(
            *(source, inputs[0]),
            others=tuple(inputs[1:]),
            grid=None if grid == source.variant.launch.grid(rows) else grid,
            x_offset=starts[0],
            y_offset=starts[-1],
        )
        for operand, result in zip(problem.results, results, strict=True):
            stored = in_memory(result, operand, problem)
            found[operand.name][...] = stored.reshape(found[operand.name].shape)


def _rows_of(array: Array, operand: Operand, problem: Problem, rows: int) -> Array:
    """Return an array of elements as (rows, cols), and any other as it is."""
    if operand.extent is not Extent.ELEMENT:
        return array
    found: Array = from_memory(array, operand, problem, rows)
    return found


def _address(value: Any) -> int | None:
    return int(value.ctypes.data) if isinstance(value, np.ndarray) else value


def _value(operand: Operand, at: int) -> Any:
    if operand.extent is not Extent.NUMBER:
        return ctypes.c_uint64.from_address(at).value
    return _NUMBERS[operand.dtype.value].from_address(at).value


def library(
    made: Project,
    folder: Path,
    *,
    computes: bool = True,
    built: Path | None = None,
    more: Sequence[str | Path] = (),
) -> Library:
    """Build a project's C++ against the stub, and load it.

    `more` are further sources and flags of the compiler; `built` is where the library goes.
    """
    for path, text in texts(made).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / path).exists():
            (folder / path).write_text(text)
    symbols = [kernel.source.symbol for kernel in made.kernels.values()]
    stubs = folder / "kernels.cpp"
    stubs.write_text("".join(f'extern "C" void {symbol}();\n' for symbol in symbols))
    # Bodies that differ, so that no two are one.
    bodies = "".join(
        f'extern "C" void {symbol}() {{ which = {i}; }}\n' for i, symbol in enumerate(symbols)
    )
    stubs.write_text(f"static volatile int which;\n{stubs.read_text()}{bodies}")
    built = built or folder / "library.so"
    build_library(
        [
            *(
                *FLAGS,
                "-shared",
                "-Wl,-Bsymbolic",
                "-Dmain=example_main",
                f"-isystem{STUB}",
                f"-I{folder}/include",
            ),
            *(folder / "src" / f"{made.name}.cpp", folder / "example" / "main.cpp"),
            *(stubs, STUB / "runtime.cpp", *more),
        ],
        folder,
        built,
    )
    handle = ctypes.CDLL(str(built))
    sources = {symbol_address(handle, k.source.symbol): k.source for k in made.kernels.values()}
    program = build([kernel.source for kernel in made.kernels.values()]) if computes else None
    loaded = Library(made, handle, program, computes=computes)

    def launch(symbol: int, config: Any, arguments: Any) -> int:
        try:
            return loaded._launch(sources[symbol], config.contents, arguments)
        except Exception as error:  # ctypes would print it and go on
            loaded.wrong.append(repr(error))
            return 1

    callback = _LAUNCH(launch)
    ctypes.c_void_p.in_dll(handle, "stub_launch").value = ctypes.cast(
        callback, ctypes.c_void_p
    ).value
    handle.kept = callback  # type: ignore[attr-defined]
    return loaded


def symbol_address(handle: ctypes.CDLL, symbol: str) -> int:
    """Return where a function lies."""
    return int(ctypes.cast(getattr(handle, symbol), ctypes.c_void_p).value or 0)


def entries(made: Project) -> list[tuple[Group, Entry]]:
    """Return the typed functions of a project."""
    return [(g, e) for g in made.groups for e in g.entries if not e.any_width]


def require_right(problem: Problem, values: list[Any], rows: int) -> None:
    """Compare the results among the operands of a launch, on the host, with float64."""
    results: list[Any] = []
    inputs: list[Any] = []
    for operand, value in zip(problem.operands, values, strict=True):
        if operand in problem.layout_numbers:
            continue
        array = np.asarray(value, storage_dtype(operand.dtype))
        if operand.extent is Extent.ELEMENT:
            array = problem.layout.from_memory(array, rows, problem.cols)
        (results if operand.result else inputs).append(array)
    found = check(results, inputs, problem)
    assert found.ok, f"{problem.label}: {found.message}"
