"""What comes from files and names never commands a terminal, whoever prints it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from softgen.bench.record import Finding, Machine, Record, Status, records_of, to_csv
from softgen.bench.shape import Shape
from softgen.cli.bench_table import show
from softgen.problems.dtypes import DType
from softgen.tuning import cache
from tests.cpu.tuning.test_cache import ENTRY, GOOD, put
from tests.helpers.cli_helpers import cli, ok, subprocess_cli

# A title for the window, a colour, the C1 form of an escape, a line that is written over, DEL, and
# the letter that turns the direction of reading.
EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\r\x7f\u202e"


def harmless(*texts: str) -> None:
    for text in texts:
        bad = sorted({letter for letter in text if not letter.isprintable()} - {"\n"})
        assert bad == [], text


def quiet(result: Result) -> str:
    """Return what a command printed, which commands nothing."""
    assert isinstance(result.exception, SystemExit | None), result.exc_info
    harmless(result.stdout, result.stderr)
    return result.stdout + result.stderr


def evil_records(name: str = EVIL.replace("\r", "")) -> list[Record]:
    machine = Machine(*(f"{part}{name}" for part in ("a GPU", "580", "softgen 1")))
    found = [
        Finding("limit", Status.TIMED, 2.0),
        Finding("softgen", Status.TIMED, 2.5),
        Finding(f"peer{name}", Status.TIMED, 3.0),
        Finding(f"other{name}", Status.ABSENT, note=f"why{name}"),
    ]
    return records_of(Shape(f"suite{name}", DType.FLOAT32, 4, 8), found, machine)


@pytest.mark.parametrize("width", ["240", "60"])
def test_a_table_of_figures(width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softgen.cli.output.PIPE_WIDTH", int(width))
    path = tmp_path / "f.csv"
    path.write_bytes(to_csv(evil_records()).encode())
    printed = quiet(ok("bench", "--from", path))
    assert "peer\\x1b]0;owned\\x07" in "".join(printed.split())
    quiet(ok("bench", "--from", path, "--json"))
    quiet(cli("bench", "--from", path, "--suite", "llm"))


def test_a_heading_is_no_markup_and_no_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(evil_records(" [bold]loud[/bold] [/red]\nlimit"))
    printed = capsys.readouterr().out
    assert "peer [bold]loud[/bold] [/red]\\nlimit" in printed


@pytest.mark.parametrize("name", ["\x1b\u2603\ufffe", "$x^$", "$", r"\$\frac$"])
def test_a_plot_of_such_figures(name: str, tmp_path: Path) -> None:
    """Matplotlib warns of letters that its font lacks, and takes $...$ for a formula."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "f.csv"
    path.write_bytes(to_csv(evil_records(name)).encode())
    words = ("bench", "--from", path, "--plot", tmp_path / "f.png")
    done = subprocess_cli(
        *words, cwd=tmp_path, prelude="import warnings; warnings.simplefilter('default')"
    )
    harmless(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "f.png").exists()


def test_what_a_library_warns_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warns(*_: object) -> list[Record]:
        warnings.warn(f"a library's{EVIL}", UserWarning, stacklevel=1)
        return evil_records()

    said: list[str] = []
    monkeypatch.setattr("softgen.bench.record.read_csv", warns)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_, **__: said.append(message))
        ok("bench", "--from", tmp_path / "f.csv")
    (one,) = map(str, said)
    assert one.startswith("a library's\\x1b")
    harmless(one)


def test_stored_choices_and_what_is_damaged_of_them(tmp_path: Path, own_cache: Path) -> None:
    cache.store(ENTRY)
    environment = {**GOOD["key"]["environment"], "device": f"GPU{EVIL}"}
    evil = {**GOOD, "key": {**GOOD["key"], "environment": environment}}
    put(json.dumps(evil))
    assert "GPU\\x1b" in quiet(ok("cache", "ls"))
    quiet(ok("cache", "ls", "--json"))
    broken = {**GOOD, "winner": {"strategy": f"vanished{EVIL}", "parameters": {}}}
    put(json.dumps(broken))
    other = tmp_path / f"other{EVIL}.json"
    other.write_text(json.dumps([broken]))
    for words in (
        ("cache", "ls"),
        ("cache", "merge", str(other)),
        ("cache", "import", str(other)),
        ("cache", "import", str(tmp_path / f"none{EVIL}")),
        ("cache", "export", str(tmp_path / f"no{EVIL}" / "x")),
    ):
        done = subprocess_cli(*words, cwd=tmp_path)  # whose log no test catches
        harmless(done.stdout, done.stderr)
        assert "\\x1b" in done.stderr, done
        assert "Traceback" not in done.stderr


def test_folders_of_kernels(tmp_path: Path) -> None:
    folder = tmp_path / f"kernels{EVIL}"
    one = ("emit", "--cols", 8, "--variant", "safe", "--out", folder)
    quiet(ok(*one))
    quiet(ok(*one))
    document = json.loads((folder / "manifest.json").read_text())
    (name,) = document["files"]
    (folder / name).write_text(f"// {EVIL}\n")
    quiet(cli(*one))
    quiet(cli(*one, "--check"))
    entries: list[dict[str, Any]] = [{f"x{EVIL}.cu": {}}, {name: EVIL}]
    for broken in entries:
        (folder / "manifest.json").write_text(json.dumps({**document, "files": broken}))
        quiet(cli(*one))
        quiet(cli(*one, "--check"))
    (folder / "manifest.json").write_text(EVIL)
    quiet(cli(*one))


@pytest.mark.usefixtures("host_built")
def test_arrays_and_their_names(tmp_path: Path) -> None:
    path = tmp_path / f"x{EVIL}.npy"
    run = ("run", "--device", "cpu", "--input", path)
    quiet(cli(*run))
    np.save(tmp_path / "x.npy", np.zeros((0, 8), np.float32))
    path.write_bytes((tmp_path / "x.npy").read_bytes())
    quiet(ok(*run, "--output", tmp_path / f"y{EVIL}.npy"))
    path.write_bytes(path.read_bytes().replace(b"<f4", b"\x1b[3"))
    quiet(cli(*run))
    quiet(cli(*run, "--output", tmp_path / f"no{EVIL}" / "y.npy"))
    quiet(cli("tune", "--shapes", path))
    (tmp_path / f"s{EVIL}").write_text(f"8x8\n{EVIL}\n")
    quiet(cli("tune", "--shapes", tmp_path / f"s{EVIL}"))


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--cols", EVIL),
        ("run", "--hook", EVIL),
        ("run", "--operand", EVIL),
        ("run", f"--{EVIL}"),
        ("run", EVIL),
        (EVIL,),
        (f"--{EVIL}",),
        ("cache", EVIL),
        ("list", "--dtype", EVIL),
        ("list", "--function", EVIL),
        ("list", "--variant", EVIL),
        ("list", "--cols", "8", "--arch", EVIL),
        ("show", EVIL),
        ("explain", EVIL),
        ("bench", "--suite", EVIL),
        ("bench", "--peers", EVIL),
        ("bench", "--plot", EVIL),
        ("tune", "--shape", EVIL),
        ("tune", "--shape", "8x8", "--strategy", EVIL, "--grid", f"x{EVIL}.csv"),
        ("tune", "--shape", "8x8", "--strategy", "safe", "--grid", f"x{EVIL}"),
        ("tune", "--shape", "8x8", "--gpus", EVIL),
        ("tune", "--shape", "8x8", "--shard", EVIL),
        ("verify", "--variant", EVIL),
    ],
)
def test_words_of_the_command_line(words: tuple[str, ...]) -> None:
    result = cli(*words)
    assert result.exit_code == 2
    assert "\\x1b" in quiet(result)
    quiet(cli(*words, "--json"))


@pytest.mark.usefixtures("host_built")
@pytest.mark.parametrize("name", ["CXX", "SOFTGEN_TUNE", "SOFTGEN_TUNE_BUDGET", "CUPY_CACHE_DIR"])
def test_variables_of_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"/no{EVIL}")
    quiet(cli("doctor"))
    quiet(cli("doctor", "--json"))


def test_what_a_library_says_in_a_log(tmp_path: Path) -> None:
    """softgen's own messages, of a program that set no logging up."""
    put(json.dumps({**GOOD, "winner": {"strategy": f"vanished{EVIL}", "parameters": {}}}))
    program = "from softgen.tuning import cache; cache.entries(); raise SystemExit(0)"
    done = subprocess_cli(cwd=tmp_path, prelude=program)
    assert "vanished" in done.stderr
    harmless(done.stderr)
