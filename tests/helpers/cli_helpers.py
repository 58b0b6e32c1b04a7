"""Running the command line in tests: in this process, or in a fresh interpreter."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from softgen.cli import app

ROOT = Path(__file__).resolve().parents[2]


# To make all commands of their functions, as a run does, takes half of the time of a small one.
command = functools.cache(typer.main.get_command)


def cli(*words: object) -> Result:
    """Run a command line in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", command, raising=False)
        return CliRunner().invoke(app, [str(word) for word in words])


def ok(*words: object) -> Result:
    """Run a command line that must succeed."""
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return result


def document(result: Result) -> Any:
    """Return the one JSON document on stdout; json.loads refuses a second one."""
    return json.loads(result.stdout)


def refused(code: int, *words: object) -> str:
    """Run a command line that must fail with `code`, for people and as JSON; return the message."""
    for_people = cli(*words)
    assert for_people.exit_code == code, for_people.output
    assert for_people.stdout == ""
    assert for_people.stderr.strip()
    as_json = cli(*words, "--json")
    assert as_json.exit_code == code, as_json.output
    failure = document(as_json)
    assert failure.keys() == {"error", "kind"}
    assert failure["kind"]
    return str(failure["error"])


def subprocess_cli(
    *words: object, cwd: Path, prelude: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command line in a fresh interpreter, after the Python code `prelude`."""
    program = f"{prelude}\nfrom softgen.cli import app\napp(prog_name='softgen')"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def python(*words: object, cwd: Path) -> str:
    """Run Python, which must succeed, with the package of `cwd` or this one; return its output."""
    answer = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), str(ROOT)]), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def copy_package(folder: Path) -> Path:
    """Copy the package and its templates, with what Python has compiled: a child starts sooner."""
    for part in ("softgen", "templates"):
        # Another process may be about to give a file of bytecode its name.
        unfinished = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / part, folder / part, ignore=unfinished)
    return folder


def break_line(path: Path, line: str, instead: str) -> int:
    """Replace the first line with `line` in it and return its number."""
    lines = path.read_text().splitlines()
    number = next(number for number, text in enumerate(lines) if line in text)
    lines[number] = lines[number].replace(line, instead)
    path.write_text("\n".join(lines) + "\n")
    return number + 1
