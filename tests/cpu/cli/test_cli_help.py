"""Help that fits 80 columns, names of types, and the completion of shells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from softgen.cli import app
from softgen.cli.group import PANELS
from softgen.problems.dtypes import DType, Float8, result_type
from tests.helpers.cli_helpers import ROOT, cli, document, ok, refused

MOST = 12  # options and arguments in sight


def commands(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of every command and group, and what Typer made of it."""
    yield words, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *words, name)


EVERY = dict(commands(typer.main.get_command(app)))
SINGLE = {words: command for words, command in EVERY.items() if not hasattr(command, "commands")}


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)


def told(words: tuple[str, ...], option: str = "--help") -> str:
    return ok(*words, option).stdout


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_fits_and_breaks_no_word(words: tuple[str, ...]) -> None:
    for option in ("--help", "--help-all") if words in SINGLE else ("--help",):
        text = told(words, option)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text
        assert not re.search(r"<\w|list\[", text)  # names of Python's types
        printed = set(re.sub("[│╭╰─╮╯]", " ", text).split())
        for param in EVERY[words].params:
            if option == "--help-all" or not getattr(param, "hidden", False):
                wanted = f"{getattr(param, 'help', '')} {param.metavar or ''}".replace("\\[", "[")
                assert set(wanted.split()) <= printed, (param.name, option)


@pytest.mark.parametrize("words", SINGLE, ids=" ".join)
def test_few_options_are_in_sight_and_all_have_a_panel(words: tuple[str, ...]) -> None:
    params = SINGLE[words].params
    hidden = [param for param in params if getattr(param, "hidden", False)]
    assert len(params) - len(hidden) + 1 <= MOST  # and --help
    text, whole = told(words), told(words, "--help-all")
    assert "Options" not in text
    panels = {option for options in PANELS.values() for option in options}
    for param in params:
        if param.param_type_name == "option":
            assert max(param.opts, key=len) in panels
            assert f"\n│ {max(param.opts, key=len)} " in whole
    for param in hidden:
        assert f"\n│ {param.opts[0]} " not in text
    assert (f"--help-all has {len(hidden)} more" in " ".join(text.split())) == bool(hidden)
    assert told(words) == text  # --help-all leaves nothing behind


def test_dtypes_are_understood_by_their_short_names() -> None:
    for dtype, names in {
        DType.FLOAT16: ("f16", "fp16", "half", "FP16"),
        DType.BFLOAT16: ("bf16", "BF16"),
        DType.FLOAT32: ("f32", "fp32"),
        DType.FLOAT64: ("f64", "fp64"),
    }.items():
        for name in (dtype.value, *names):
            assert DType.of(name) is dtype
            assert result_type(name) is dtype
            (first, *_) = document(ok("list", "--cols", 64, "--dtype", name, "--json"))
            assert first["name"].startswith(f"softmax_{dtype.short}_64_")
    assert result_type("e4m3") is Float8.E4M3


def test_a_shape_is_rows_and_columns() -> None:
    for command in ("list", "show", "emit"):
        words = (command, *(["--stdout"] if command == "emit" else []), "--dtype", "bf16")
        one, two = ok(*words, "--shape", "8x4096"), ok(*words, "--cols", 4096, "--rows", 8)
        assert (one.stdout, one.stderr) == (two.stdout, two.stderr)
    for command in ("list", "show", "emit", "run"):
        told = refused(2, command, "--shape", "8x4096", "--rows", "8")
        assert "give --shape, or --rows and --cols, not both" in told
        assert "'8' is not a shape" in refused(2, command, "--shape", "8")


def test_wrong_usage_looks_like_every_other_error() -> None:
    lines = cli("cache", "merge", "--colour").stderr.splitlines()
    assert lines[0].startswith("error: No such option: --colour")
    assert lines[1] == "`softgen cache merge --help` has what it takes"
    assert cli("list", "--arch", "sm_1").stderr.startswith("error: unknown architecture 'sm_1'")


def test_ctrl_c_of_a_command_that_does_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softgen.source.emit.write", stop)
    words = ("emit", "--cols", 8, "--out", "x")
    result = cli(*words)
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr == "warning: interrupted; what is not named above was not finished\n"
    assert document(cli(*words, "--json")) == {"error": "interrupted", "kind": "Abort"}


ASKED = {
    ("softgen", "em"): {"emit"},
    ("softgen", "emit", "--dt"): {"--dtype"},
    ("softgen", "emit", "--dtype", "b"): {"bfloat16"},
    ("softgen", "list", "--align"): {"--alignment"},  # not in sight
    ("softgen", "bench", "--suite", "ro"): {"routing"},
    ("softgen", "show", "cl"): {"cluster"},
}
IN_BASH = """
source "$0"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _softgen_completion softgen
printf '%s\\n' "${COMPREPLY[@]}"
"""
# What zsh's completion would be told to offer.
IN_ZSH = """
compdef() { : }; _arguments() { print -r -- "$@" }
source "$0"
words=("$@"); CURRENT=$#; _softgen_completion
"""


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "softgen"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from softgen.cli import app\napp(prog_name='softgen')\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    script = tmp_path / "completion"  # made once: each start of Python takes a second
    environment = {**os.environ, "_SOFTGEN_COMPLETE": f"source_{shell}"}
    script.write_bytes(
        subprocess.run([program], env=environment, stdout=subprocess.PIPE, check=True).stdout
    )
    for words, wanted in ASKED.items():
        command = [shell, "-c", IN_BASH, str(script), *words]
        if shell == "zsh":
            command = [shell, "-fc", IN_ZSH, str(script), *words]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.findall(r'"([\w-]+)"', ran.stdout) if shell == "zsh" else ran.stdout.split()
        assert set(found) == wanted, (words, ran.stdout, ran.stderr)
