"""A folder of kernels that builds: launches in C++, a CMake package, an example, bindings.

The kernels are the texts that `softgen emit` writes. Their launches are one table, which
templates/project/library.cpp.j2 spells from the list of operands.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softgen.errors import IllegalVariantError, InvalidValueError
from softgen.source import manifest
from softgen.source.bindings import bound, gradients
from softgen.source.cpp import broken, declaration, spell
from softgen.source.emit import Report, refuse_links, write_if_different
from softgen.source.lock import alone_in
from softgen.source.render import Source, environment, render
from softgen.spec.arch import Arch, arch_named
from softgen.spec.dtypes import DType, Float8, FloatType
from softgen.spec.hooks.arrays import Lines
from softgen.spec.layouts import ROWS, WIDTH, AnyWidth, Strided
from softgen.spec.operands import Extent, Operand
from softgen.spec.problem import MAX_INT32_COLS, Problem
from softgen.strategies.select import untimed
from softgen.strategies.variants import Variant, candidates

if TYPE_CHECKING:
    import jinja2

ARCHS = ("sm_80", "sm_90")
BINDINGS = ("tvm-ffi", "torch")
NAME = "softgen_kernels"

# Up to how many rows a class of them goes, and for how many its kernel is chosen.
CLASSES = ((128, 32), (2048, 512), (2**63 - 1, 8192))

_IDENTIFIER = 63  # characters that every compiler keeps of a name
_BLOCK = 256  # threads of a kernel of any width: rows are as often short as long

SCHEMA = 1


@dataclass(frozen=True)
class Kernel:
    """A kernel of the project, and the architectures that it is compiled for."""

    source: Source
    archs: tuple[str, ...]

    @property
    def capability(self) -> int:
        """The first compute capability that it is compiled for, as 80."""
        return min(map(_number, self.archs))


@dataclass(frozen=True)
class Entry:
    """A problem of the project, and its kernels.

    Attributes:
        problem: what is computed.
        name: of the C++ function; empty for one of any width, which only a dispatcher calls.
        kernels: the variant for each architecture and class of rows; none for an architecture that
            lacks the instructions of the types.
        origins: where each is from, in words.
    """

    problem: Problem
    name: str
    kernels: tuple[tuple[Variant, ...], ...]
    origins: tuple[tuple[str, ...], ...]

    @property
    def any_width(self) -> bool:
        """Whether it takes any width."""
        return isinstance(self.problem.layout, AnyWidth)


@dataclass(frozen=True)
class Group:
    """What one dispatcher serves: a function with its hooks and a layout, of all types and widths.

    Attributes:
        name: of the C++ function.
        entries: those of a known width first.
    """

    name: str
    entries: tuple[Entry, ...]

    @property
    def problem(self) -> Problem:
        """One of its problems: they have the same operands, of other types."""
        return self.entries[0].problem

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What a function takes before the rows; a width of any is no operand."""
        return self.problem.operands

    @property
    def arrays(self) -> tuple[Operand, ...]:
        """The operands that are arrays."""
        return tuple(o for o in self.operands if o.extent is not Extent.NUMBER)


@dataclass(frozen=True)
class Project:
    """What a folder is to hold: a name, the kernels, and what calls them."""

    name: str
    archs: tuple[Arch, ...]
    groups: tuple[Group, ...]
    kernels: dict[Variant, Kernel]
    bindings: tuple[str, ...]

    @property
    def entries(self) -> list[Entry]:
        """The problems of all groups."""
        return [entry for group in self.groups for entry in group.entries]


def project(
    folder: Path | str,
    problems: Sequence[Problem | Variant],
    *,
    name: str = NAME,
    archs: Sequence[Arch | str] = ARCHS,
    bindings: Sequence[str] = (),
) -> Report:
    """Write a folder that CMake builds: kernels for `problems`, and C++ functions that launch them.

    Each problem gets a typed function, and each function of rows a dispatcher that takes any type
    of the folder and any width: where there is no kernel of that width, one with the width at run
    time. For few, middle and many rows the kernels are the winners that softgen ships.

    Args:
        folder: made if it is not there. It may hold an earlier project, whose files are replaced
            unless they were edited.
        problems: what is computed (`softgen.Problem.of`). A Variant is taken as the kernel of its
            problem on the architectures where it is legal.
        name: of the library and its CMake package, and how its functions begin: lower-case letters,
            digits and _, at most 24.
        archs: the architectures to compile for.
        bindings: "tvm-ffi" and "torch", or none.

    Raises InvalidValueError for arguments that do not fit, or where a file was edited: nothing is
    written then.

    Example:
        >>> problems = [Problem.of("softmax", "bfloat16", cols) for cols in (64, 4096)]
        >>> project("kernels", problems, archs=["sm_80", "sm_90"])
    """
    made = plan(problems, name, archs, bindings)
    return write(Path(folder), texts(made), made)


def plan(
    problems: Sequence[Problem | Variant],
    name: str = NAME,
    archs: Sequence[Arch | str] = ARCHS,
    bindings: Sequence[str] = (),
) -> Project:
    """Return the project of these arguments, which are `project`'s."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,23}", name):
        raise InvalidValueError(
            f"name must be lower-case letters, digits and _, at most 24, got {name!r}"
        )
    for binding in bindings:
        if binding not in BINDINGS:
            raise InvalidValueError(f"bindings are {' and '.join(BINDINGS)}, got {binding!r}")
    if not problems or not archs:
        raise InvalidValueError("a project has at least one problem and one architecture")
    known = {arch if isinstance(arch, Arch) else arch_named(arch) for arch in archs}
    ordered = tuple(sorted(known, key=lambda arch: arch.compute_capability))
    chosen = {each.problem: each for each in problems if isinstance(each, Variant)}
    wanted = [each.problem if isinstance(each, Variant) else each for each in problems]
    groups: dict[str, list[Entry]] = {}
    for problem in dict.fromkeys(wanted):
        _require_alone(problem)
        entry = _entry(problem, chosen.get(problem), name, ordered)
        groups.setdefault(_group_name(problem, name), []).append(entry)
    for entries in groups.values():
        types = {(entry.problem.dtype, entry.problem.out_dtype): entry for entry in entries}
        entries += filter(None, (_of_any_width(each.problem, ordered) for each in types.values()))
    kernels: dict[Variant, list[str]] = {}
    for entry in (each for some in groups.values() for each in some):
        for arch, row in zip(ordered, entry.kernels, strict=True):
            for variant in row:
                kernels.setdefault(variant, []).append(arch.name)
    return Project(
        name,
        ordered,
        tuple(Group(each, tuple(entries)) for each, entries in groups.items()),
        {
            v: Kernel(render(v), tuple(dict.fromkeys(of)))
            for v, of in sorted(kernels.items(), key=_by_name)
        },
        tuple(dict.fromkeys(bindings)),
    )


def _by_name(item: tuple[Variant, list[str]]) -> str:
    return item[0].name


def _number(arch: str) -> int:
    """Return 90 for sm_90."""
    return int(arch.removeprefix("sm_"))


def _require_alone(problem: Problem) -> None:
    """Raise InvalidValueError for a problem whose launch is not one device's own."""
    if problem.sharded:
        raise InvalidValueError(
            f"{problem.label}: several devices hold its rows, and a project launches on one; "
            "`softgen emit --sharded` writes the kernel"
        )
    if isinstance(problem.layout, AnyWidth):
        raise InvalidValueError(f"{problem.label}: a project has the kernels of any width anyway")


def _shortened(name: str) -> str:
    """Return a name that fits a C identifier, the same in every release."""
    if len(name) <= _IDENTIFIER:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _IDENTIFIER - 9]}_{digest}"


def _group_name(problem: Problem, name: str) -> str:
    parts = (name, problem.function.name, problem.layout.label, *map(str, problem.hooks))
    return _shortened("_".join(filter(None, parts)))


def _entry(problem: Problem, chosen: Variant | None, name: str, archs: tuple[Arch, ...]) -> Entry:
    """Return a problem with a kernel for each architecture and class of rows."""
    kernels, origins = [], []
    able = [arch for arch in archs if arch.compute_capability >= problem.needs]
    for arch in archs:
        found: list[tuple[Variant, str]] = []
        if arch not in able and able:
            pass
        elif chosen is not None and chosen.strategy.is_legal(problem, arch):
            found = [(chosen, "given")] * len(CLASSES)
        else:
            picked = [untimed(problem, rows, arch, problem.fixed_order) for _, rows in CLASSES]
            found = [(each.variant, each.origin) for each in picked]
        kernels.append(tuple(variant for variant, _ in found))
        origins.append(tuple(origin for _, origin in found))
    if chosen is not None and not any(chosen in row for row in kernels):
        raise IllegalVariantError(
            f"{chosen.name} is legal on none of {', '.join(arch.name for arch in archs)}; give "
            f"{chosen.oldest_arch}"
        )
    return Entry(problem, _shortened(f"{name}_{problem.label}"), tuple(kernels), tuple(origins))


def _of_any_width(problem: Problem, archs: tuple[Arch, ...]) -> Entry | None:
    """Return the kernel of the same with the width at run time; None where there is none.

    That is for other layouts, and for functions that cut a row into groups of columns.
    """
    if problem.layout is not ROWS or problem.function.groups:
        return None
    cols = MAX_INT32_COLS
    able = [arch for arch in archs if arch.compute_capability >= problem.needs]
    wide = dataclasses.replace(problem, cols=cols, alignment=1, layout=AnyWidth())
    found = [
        variant
        for variant in candidates(wide, CLASSES[1][1], able[0])
        if all(variant.strategy.is_legal(wide, arch) for arch in able)
    ]
    if not found:
        return None
    variant = min(found, key=lambda each: abs(each.launch.block_size - _BLOCK))
    classes = [len(CLASSES) * (arch in able) for arch in archs]
    kernels = tuple((variant,) * each for each in classes)
    return Entry(wide, "", kernels, tuple(("any width",) * each for each in classes))


# In C++


def dtype_name(project: Project, dtype: FloatType) -> str:
    """Return the enumerator of a dtype."""
    return f"{project.name.upper()}_{dtype.value.upper()}"


def _c_type(operand: Operand) -> str:
    """Return the C++ type of an operand of a typed function."""
    kind = operand.dtype.cuda
    return {"long long": "int64_t", "int": "int32_t"}.get(kind, kind)


def _erased(operand: Operand) -> str:
    """Return the same of a dispatcher, which takes each type of x and of results."""
    if operand.cuda not in ("X", "Y", "Compute"):
        return _c_type(operand)
    return "double" if operand.extent is Extent.NUMBER else "void"


def _head(name: str, group: Group, entry: Entry | None = None) -> str:
    """Return the head of a typed function, or of the dispatcher, in C++."""
    problem = entry.problem if entry else None
    found = [] if problem else [f"{name}_dtype in", f"{name}_dtype out", "int64_t cols"]
    for operand in (problem or group.problem).operands:
        kind = _c_type(operand) if problem is not None else _erased(operand)
        const = "" if operand.result or operand.extent is Extent.NUMBER else "const "
        pointer = "" if operand.extent is Extent.NUMBER else "*"
        found.append(f"{const}{kind}{pointer} {operand.name}")
    found += ["int64_t rows", "void* workspace", "size_t workspace_bytes", "cudaStream_t stream"]
    called = entry.name if entry else group.name
    return declaration(f"{name}_status {called}", found).removesuffix(" {")


def _query(name: str, group: Group) -> str:
    """Return the head of a dispatcher's query for a workspace, in C++."""
    found = [f"{name}_dtype in", f"{name}_dtype out", "int64_t cols", "int64_t rows"]
    return declaration(f"size_t {group.name}_workspace", found).removesuffix(" {")


def _addresses(group: Group, computed: Sequence[str] = ()) -> str:
    """Return where a launch finds its arguments, with room for three more, in C++.

    `computed` are numbers that a dispatcher takes as double, and has as float beside.
    """
    found = [
        f"wide ? address_of({o.name}) : address_of({o.name}_single)"
        if o.name in computed
        else f"address_of({o.name})"
        for o in group.operands
    ]
    return "\n      " + broken(" " * 6, [*found, *["nullptr"] * 3])


def _nothing(group: Group) -> str:
    """Return arguments that are nothing, in C++."""
    zero = {True: "0", False: "nullptr"}
    return ", ".join(zero[o.extent is Extent.NUMBER] for o in group.operands)


def _formula(problem: Problem) -> str:
    """Return what is computed, with its hooks."""
    hooks = "".join(f", with {hook.formula}" for hook in problem.hooks)
    return f"{problem.function.formula}{hooks}"


def _described(problem: Problem) -> Iterator[str]:
    """Yield for each array of a problem what a launch checks of it, as an initializer."""
    arrays = [o for o in problem.operands if o.extent is not Extent.NUMBER]
    names = [operand.name for operand in arrays]
    places = [operand.name for operand in problem.operands]
    lines = {hook.kind for hook in problem.hooks if isinstance(hook, Lines) and hook.packs}
    for operand in arrays:
        replaces = names.index(operand.may_be) if operand in problem.replacing else -1
        whole = operand.extent is Extent.ELEMENT
        strides: tuple[str, ...] = ()
        if whole and isinstance(problem.layout, Strided):
            strides = problem.layout.strides(operand.name)
        elif operand.name in lines:
            strides = (f"{operand.name}_stride", f"{operand.name}_step")
        values = (
            f"k{operand.extent.value.capitalize()}",
            *(operand.dtype.itemsize, operand.width, spell(operand.result), replaces),
            spell(whole or operand.name in lines),
            f"{{{', '.join(str(places.index(each)) for each in strides)}}}",
            len(strides),
        )
        yield f"{{{', '.join(map(str, values))}}}"


def _plain(problem: Problem) -> str:
    """Return which loop of the example checks a problem: a name, or ""."""
    name, kind = problem.function.name, problem.out_dtype
    simple = not problem.hooks and problem.layout is ROWS and not isinstance(kind, Float8)
    return name if simple and name in ("softmax", "log_softmax", "logsumexp") else ""


@functools.cache
def _environment() -> jinja2.Environment:
    """Return Jinja's with other delimiters: CMake has `${ }` of its own."""
    return environment().overlay(
        block_start_string="[%",
        block_end_string="%]",
        variable_start_string="[[",
        variable_end_string="]]",
        comment_start_string="[#",
        comment_end_string="#]",
    )


def texts(made: Project) -> dict[str, str]:
    """Return every file of the folder but its manifest, by path."""
    name = made.name
    files = {
        f"include/{name}.h": "library.h.j2",
        f"src/{name}.cpp": "library.cpp.j2",
        "CMakeLists.txt": "CMakeLists.txt.j2",
        f"cmake/{name}Config.cmake.in": "Config.cmake.in.j2",
        "example/main.cpp": "main.cpp.j2",
        "README.md": "README.md.j2",
    }
    if "tvm-ffi" in made.bindings:
        files["bindings/tvm_ffi.cpp"] = "tvm_ffi.cpp.j2"
    if "torch" in made.bindings:
        files["bindings/torch.cpp"] = "torch.cpp.j2"
        files[f"python/{name}/__init__.py"] = "torch.py.j2"
    sets: dict[tuple[str, ...], list[Kernel]] = {}
    for kernel in made.kernels.values():
        sets.setdefault(kernel.archs, []).append(kernel)
    given = {
        "project": made,
        "name": name,
        "upper": name.upper(),
        "kernels": list(made.kernels.values()),
        "indices": functools.partial(_indices, list(made.kernels)),
        "sets": {" ".join(archs): some for archs, some in sets.items()},
        "classes": CLASSES,
        "capabilities": [_number(arch.name) for arch in made.archs],
        "dtypes": list(dict.fromkeys([*DType, *Float8])),
        "dtype_name": functools.partial(dtype_name, made),
        "head": functools.partial(_head, name),
        "formula": _formula,
        "query": functools.partial(_query, name),
        "addresses": _addresses,
        "nothing": _nothing,
        "described": _described,
        "number": _number,
        "plain": _plain,
        "strided": lambda problem: isinstance(problem.layout, Strided),
        "width": WIDTH,
        "number_extent": Extent.NUMBER,
        "element_extent": Extent.ELEMENT,
        "row_extent": Extent.ROW,
        "float32": DType.FLOAT32,
        "float64": DType.FLOAT64,
        "bound": bound(made),
        "gradients": list(gradients(made)),
        "types": {each for entry in made.entries for each in _types_of(entry.problem)},
    }
    found = {f"src/{each.source.name}.cu": each.source.text for each in made.kernels.values()}
    for path, template in files.items():
        found[path] = _environment().get_template(f"project/{template}").render(given)
    return found


def _indices(kernels: list[Variant], row: tuple[Variant, ...]) -> list[int]:
    """Return where the variants of an architecture are among all; -1 for none."""
    return [kernels.index(variant) for variant in row] or [-1] * len(CLASSES)


def _types_of(problem: Problem) -> set[str]:
    return {operand.dtype.cuda for operand in problem.operands}


# On disk


def _document(made: Project, files: dict[str, str]) -> dict[str, Any]:
    """Return the project's manifest: its functions, its kernels, and the digest of each file."""
    return {
        "generator": manifest.GENERATOR,
        "schema": SCHEMA,
        "project": made.name,
        "architectures": [arch.name for arch in made.archs],
        "rows": [least for least, _ in CLASSES[:-1]],
        "functions": [
            {
                "name": entry.name or group.name,
                "dispatcher": group.name,
                "problem": entry.problem.as_json,
                "kernels": {
                    arch.name: [variant.name for variant in row]
                    for arch, row in zip(made.archs, entry.kernels, strict=True)
                },
                "from": {
                    arch.name: list(row)
                    for arch, row in zip(made.archs, entry.origins, strict=True)
                },
            }
            for group in made.groups
            for entry in group.entries
        ],
        "kernels": [
            {**manifest.describe(each.source), "architectures": list(each.archs)}
            for each in made.kernels.values()
        ],
        "files": {path: _digest(text) for path, text in sorted(files.items())},
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write(folder: Path, files: dict[str, str], made: Project) -> Report:
    """Make `folder` hold these files and their manifest; say what that took.

    Raises InvalidValueError if a file there is a link, was edited, or is not a project's: nothing
    is written then.
    """
    refuse_links(folder)
    if folder.exists() and not folder.is_dir():
        raise InvalidValueError(f"{folder} is a file; give a folder for the project")
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        before = _listed(folder)
        for path in (*files, *before):
            _refuse_foreign(folder, path, before, files.get(path))
        stale = [path for path in before if path not in files and (folder / path).is_file()]
        for path in stale:
            (folder / path).unlink()
        written = []
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            if write_if_different(folder / path, text):
                written.append(path)
        document = json.dumps(_document(made, files), indent=2) + "\n"
        if write_if_different(folder / manifest.MANIFEST, document):
            written.append(manifest.MANIFEST)
    unchanged = [path for path in (*files, manifest.MANIFEST) if path not in written]
    return Report(tuple(written), tuple(unchanged), tuple(stale), ())


def _listed(folder: Path) -> dict[str, str]:
    """Return the files of an earlier project in `folder`, with their digests."""
    path = folder / manifest.MANIFEST
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text())
        files = {str(name): str(digest) for name, digest in document["files"].items()}
        safe = all(re.fullmatch(r"(?:[A-Za-z0-9_]+/)*[A-Za-z0-9_.]+", each) for each in files)
        if document["generator"] != manifest.GENERATOR or "project" not in document or not safe:
            raise ValueError("it lists no project")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValueError(
            f"{path} is not the manifest of a project ({error}); choose another folder"
        ) from error
    return files


def _refuse_foreign(folder: Path, path: str, before: dict[str, str], text: str | None) -> None:
    """Raise InvalidValueError for a file that is not as a project wrote it."""
    file = folder / path
    for each in (file, *(folder / parent for parent in Path(path).parents)):
        if each != folder and each.is_symlink():
            raise InvalidValueError(f"{each} is a symbolic link; remove it")
    if not file.exists():
        return
    found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    if found not in (before.get(path), text and _digest(text)):
        raise InvalidValueError(
            f"{file} was edited, or is not softgen's; nothing was written. Move or delete it, or "
            "choose another folder"
        )
