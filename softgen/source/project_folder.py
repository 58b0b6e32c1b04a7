"""Writes a project into a folder, and keeps what somebody edited there."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softgen.errors import InvalidValueError
from softgen.problems.arch import Arch
from softgen.problems.problem import Problem
from softgen.source import manifest
from softgen.source.emit import Report, refuse_links, write_if_different
from softgen.source.lock import alone_in
from softgen.source.project import ARCHS, CLASSES, NAME, Project, plan
from softgen.source.project_text import texts
from softgen.strategies.variants import Variant

SCHEMA = 1


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
        found = {path: _there(folder, path, before, files.get(path)) for path in (*files, *before)}
        stale = [path for path in before if path not in files and found[path]]
        document = _document(made, files)
        changing = [path for path, digest in document["files"].items() if digest != found[path]]
        listed = folder / manifest.MANIFEST
        earlier = listed.read_text() if listed.exists() else ""
        if changing or stale:
            # First and last: a run that dies on the way leaves one that knows each file, as it was
            # and as it is to be, so that the next run knows it for softgen's.
            replaced = {path: found[path] for path in (*changing, *stale) if found[path]}
            write_if_different(listed, _to_text({**document, "replaces": replaced}))
        for path in stale:
            (folder / path).unlink()
        for path in changing:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            write_if_different(folder / path, files[path])
        write_if_different(listed, _to_text(document))
        if earlier != _to_text(document):
            changing.append(manifest.MANIFEST)
    unchanged = [path for path in (*files, manifest.MANIFEST) if path not in changing]
    return Report(tuple(changing), tuple(unchanged), tuple(stale), ())


def _to_text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _listed(folder: Path) -> dict[str, set[str]]:
    """Return the files of an earlier project in `folder`, with their digests.

    There are two of a file that a run was to replace which did not end.
    """
    path = folder / manifest.MANIFEST
    if not path.exists():
        return {}
    found: dict[str, set[str]] = {}
    try:
        document = json.loads(path.read_text())
        for files in (document["files"], document.get("replaces", {})):
            for name, digest in files.items():
                found.setdefault(str(name), set()).add(str(digest))
        safe = all(re.fullmatch(r"(?:[A-Za-z0-9_]+/)*[A-Za-z0-9_.]+", each) for each in found)
        if document["generator"] != manifest.GENERATOR or "project" not in document or not safe:
            raise ValueError("it lists no project")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidValueError(
            f"{path} is not the manifest of a project ({error}); choose another folder"
        ) from error
    return found


def _there(folder: Path, path: str, before: dict[str, set[str]], text: str | None) -> str:
    """Return the digest of a file, or "" where there is none.

    Raises InvalidValueError for one that is not as a project wrote it.
    """
    file = folder / path
    for each in (file, *(folder / parent for parent in Path(path).parents)):
        if each != folder and each.is_symlink():
            raise InvalidValueError(f"{each} is a symbolic link; remove it")
    if not file.exists():
        return ""
    found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    if not found or found not in (*before.get(path, ()), text and _digest(text)):
        raise InvalidValueError(
            f"{file} was edited, or is not softgen's; nothing was written. Move or delete it, or "
            "choose another folder"
        )
    return found
