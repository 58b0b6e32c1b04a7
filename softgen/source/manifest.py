"""manifest.json: what each emitted file is, and how `softgen emit` knows its own files."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from softgen.errors import InvalidValueError
from softgen.problems.layouts import Strided
from softgen.problems.operands import Extent, Operand
from softgen.problems.problem import Problem
from softgen.source.render import Source

MANIFEST = "manifest.json"
GENERATOR = "softgen"
SCHEMA = 2
READABLE = (1, SCHEMA)

# What a file was written for; a request of --all is called by its options.
GALLERY = "gallery"
ONE_KERNEL = "one kernel"

# Names come from variants and are of this form by construction. A manifest is read from a folder
# that anybody may have filled, so its names are held against it before a file is touched.
_FILE_NAME = re.compile(r"[a-z][a-z0-9_]{0,200}\.cu")

Entries = dict[str, dict[str, Any]]


def is_file_name(name: object) -> bool:
    """Whether `name` is one that softgen gives to a file: no separator, no dot but in `.cu`."""
    return isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None


def file_name(source: Source) -> str:
    """Return the file name of `source`; InvalidValueError if it could leave the folder."""
    name = f"{source.name}.cu"
    if not is_file_name(name):
        raise InvalidValueError(
            f"{source.name!r} cannot name a file: lower-case letters, digits and _ only"
        )
    return name


def describe(source: Source) -> dict[str, Any]:
    """Return the manifest's entry of `source`: only what its text determines."""
    variant = source.variant
    return {
        "name": source.name,
        "symbol": source.symbol,
        "problem": variant.problem.as_json,
        "strategy": variant.strategy.name,
        "parameters": variant.strategy.knobs,
        "arguments": list(variant.parameters),
        "operands": [_operand(operand, variant.problem) for operand in variant.problem.operands],
        "grid": variant.launch.grid_rule,
        "launch": dataclasses.asdict(variant.launch),
        "options": list(source.options),
        "oldest_arch": variant.oldest_arch,
        "sha256": source.sha256,
    }


def sets_of(entry: dict[str, Any]) -> list[str]:
    """Return what a file was written for: the gallery, where an entry does not say it."""
    return list(entry.get("sets", [GALLERY]))


def with_sets(entry: dict[str, Any], sets: Iterable[str]) -> dict[str, Any]:
    """Return `entry` saying that its file is of `sets`."""
    others = {name: value for name, value in entry.items() if name != "sets"}
    return others if set(sets) == {GALLERY} else {**others, "sets": sorted(sets)}


def digests_of(entry: dict[str, Any]) -> set[str]:
    """Return what the file of an entry may have: two digests where a run was killed before it."""
    return {entry[key] for key in ("sha256", "replaces") if key in entry}


def start_of(name: str) -> str:
    """Return how each text begins that softgen writes to a file `name`."""
    if name == MANIFEST:
        return to_text({}).partition('"schema"')[0]
    return f"// {name.removesuffix('.cu')}\n"


def to_text(entries: Entries) -> str:
    """Return the manifest of `entries`: sorted, so that it depends on nothing else."""
    document = {"generator": GENERATOR, "schema": SCHEMA, "files": dict(sorted(entries.items()))}
    return json.dumps(document, indent=2) + "\n"


def read(folder: Path) -> Entries:
    """Return the entries of the manifest in `folder`; nothing if there is no manifest.

    Raises InvalidValueError if there is a manifest.json that softgen did not write.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        if not path.is_file():
            raise ValueError("it is no regular file")
        document = json.loads(path.read_text())
        if document["generator"] != GENERATOR or document["schema"] not in READABLE:
            raise ValueError("another program's, or another version's")
        entries = dict(document["files"])
        for name, entry in entries.items():
            if not is_file_name(name) or not _is_entry(entry):
                raise ValueError(f"entry {name!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidValueError(
            f"{path} is not a manifest that softgen wrote ({error}); choose another folder, or "
            "delete that file if the kernels beside it may be replaced"
        ) from error
    return entries


def _is_entry(entry: Any) -> bool:
    """Whether what `softgen emit` looks at in an entry is of the types that it writes."""
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("sha256"), str)
        and isinstance(entry.get("replaces", ""), str)
        and isinstance(entry.get("problem", {}), dict)
        and isinstance(entry.get("sets", []), list)
        and all(isinstance(name, str) for name in entry.get("sets", []))
    )


def by_file(sources: Sequence[Source]) -> dict[str, Source]:
    """Return `sources` by file name; InvalidValueError if two texts claim one name."""
    found: dict[str, Source] = {}
    for source in sources:
        name = file_name(source)
        if found.setdefault(name, source).text != source.text:
            raise InvalidValueError(f"two different sources are called {source.name}")
    return dict(sorted(found.items()))


def _operand(operand: Operand, problem: Problem) -> dict[str, Any]:
    shapes: dict[Extent, list[str | int]] = {
        Extent.ELEMENT: ["rows", problem.cols],
        Extent.ROW: ["rows", *operand.behind],
        Extent.NUMBER: [],
        Extent.COLUMN: [problem.cols],
        Extent.BROADCAST: ["elements"],
    }
    found = {
        "name": operand.name,
        "dtype": operand.dtype.value,
        "shape": shapes[operand.extent],
        "result": operand.result,
        "may_be": operand.may_be or None,
    }
    if isinstance(problem.layout, Strided) and operand.extent is Extent.ELEMENT:
        found["shape"] = [*problem.layout.shape, problem.cols]
        found["strides"] = [*problem.layout.strides(operand.name), 1]
    if problem.layout.step > 1 and operand.extent is Extent.ELEMENT:
        inner = problem.layout.step
        found["shape"] = [f"rows / {inner}", problem.cols, inner]
    return found
