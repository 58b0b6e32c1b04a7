"""Files that a user names to write to: links, devices and pipes stay, a file is whole or the old.

Devices are nodes of the test's own folder: no test names one of the machine's.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from softgen.bench import grid
from softgen.bench.record import Finding, Status, records_of, to_csv
from softgen.bench.shape import Shape
from softgen.cli import group
from softgen.problems.dtypes import DType
from softgen.tuning import cache
from tests.cpu.cli.test_cli_bench import HERE, fake_run
from tests.cpu.cli.test_cli_grid import fake_search
from tests.cpu.tuning.test_cache import ENTRY
from tests.helpers.cli_helpers import cli, ok, refused, subprocess_cli

Words = Callable[[Path], tuple[object, ...]]

pytestmark = pytest.mark.usefixtures("host_built")


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim that there is a GPU, and that measuring on it is quick."""
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: None)
    monkeypatch.setattr("softgen.bench.race.run", fake_run)
    monkeypatch.setattr(grid, "search", fake_search)


def figures(path: Path) -> Path:
    """Write figures as `softgen bench --csv` does, beside `path`; return where."""
    found = [Finding("limit", Status.TIMED, 2.0), Finding("softgen", Status.TIMED, 2.5)]
    shapes = (Shape("llm", DType.FLOAT32, 4, cols) for cols in (8, 16))
    table = to_csv(record for shape in shapes for record in records_of(shape, found, HERE))
    made = path.parent / "figures"
    made.write_text(table)
    return made


def export(path: Path) -> tuple[object, ...]:
    cache.store(ENTRY)
    return ("cache", "export", path)


# The ending of a file, and the command line that writes to it.
COMMANDS: dict[str, tuple[str, Words]] = {
    "csv": ("csv", lambda path: ("bench", "--from", figures(path), "--csv", path)),
    "plot": ("png", lambda path: ("bench", "--from", figures(path), "--plot", path)),
    "measured": (
        "csv",
        lambda path: ("bench", "--shape", "4x8", "--peers", "softgen", "--csv", path),
    ),
    "grid": (
        "csv",
        lambda path: ("tune", "--strategy", "serial", "--shape", "4x64", "--grid", path),
    ),
    "export": ("json", export),
    "table": ("json", lambda path: (*export(path), "--table")),
    "run": (
        "npy",
        lambda path: ("run", "--device", "cpu", "--rows", 0, "--cols", 8, "--output", path),
    ),
}


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest) -> tuple[str, Words]:
    if request.param in ("plot", "grid"):  # the search draws a map beside its file
        pytest.importorskip("matplotlib")
    return COMMANDS[request.param]


@pytest.fixture
def named(command: tuple[str, Words], tmp_path: Path) -> tuple[Path, Words]:
    """Return a path that a user may name, in a folder of its own, and the words that name it."""
    folder = tmp_path / "named"
    folder.mkdir()
    return folder / f"it.{command[0]}", command[1]


def device(path: Path, minor: int) -> Path:
    """Make a node of the kind of /dev/null (3) or of /dev/full (7)."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, minor))
        path.open("wb").close()
    except PermissionError as error:
        pytest.skip(f"a device node cannot be made and opened here: {error}")
    return path


@contextmanager
def pipe(path: Path) -> Iterator[int]:
    """Make a FIFO that holds what is written into it, and yield its end that is read."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 2**20)
    try:
        yield reader
    finally:
        os.close(reader)


def contents(reader: int) -> bytes:
    """Return all that a pipe holds, whose writers have gone."""
    return b"".join(iter(lambda: os.read(reader, 2**16), b""))


def plain(path: Path, words: Words) -> bytes:
    """Return what a command writes to a path where nothing is."""
    ok(*words(path))
    written = path.read_bytes()
    path.unlink()
    return written


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_and_what_it_names_is_written(
    there: bool, named: tuple[Path, Words], tmp_path: Path
) -> None:
    path, words = named
    wanted = plain(path, words)
    target = tmp_path / "elsewhere"
    if there:
        target.write_text("old")
    path.symlink_to("../elsewhere")
    ok(*words(path))
    assert path.is_symlink()
    assert target.read_bytes() == wanted


def test_a_pipe_is_written_into(named: tuple[Path, Words]) -> None:
    path, words = named
    wanted = plain(path, words)
    with pipe(path) as reader:
        ok(*words(path))
        assert path.is_fifo()
        assert contents(reader) == wanted


def test_a_pipe_gets_one_table_of_all_shapes(tmp_path: Path) -> None:
    """A file has the shapes that are done; a pipe ends where its writer closes it."""
    shapes = ("--shape", "4x8", "--shape", "16x32", "--shape", "4x64")
    for words in (
        ("bench", *shapes, "--peers", "softgen", "--csv"),
        ("tune", *shapes, "--strategy", "serial", "--grid"),
    ):
        path = tmp_path / f"{words[0]}.csv"
        ok(*words, path)
        wanted = path.read_bytes()
        path.unlink()
        with pipe(path) as reader:
            ok(*words, path)
            assert contents(reader) == wanted


def test_a_device_is_written_into(named: tuple[Path, Words]) -> None:
    path, words = named
    device(path, 3)
    ok(*words(path))
    assert path.is_char_device()


def test_a_device_that_is_full_stays_and_is_an_error(named: tuple[Path, Words]) -> None:
    path, words = named
    device(path, 7)
    result = cli(*words(path))
    assert result.exit_code == group.FAILED, result.output
    assert f"cannot use {path}: No space left on device" in result.stderr
    assert path.is_char_device()
    assert not [each for each in path.parent.iterdir() if each.suffix == ".tmp"]


def test_a_file_keeps_its_mode_and_a_new_one_has_the_umasks(named: tuple[Path, Words]) -> None:
    path, words = named
    previous = os.umask(0o027)
    try:
        ok(*words(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        ok(*words(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(previous)


def test_a_full_disk_leaves_the_old_file(
    named: tuple[Path, Words], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, words = named
    given = words(path)
    path.write_text("old")
    before = {*path.parent.iterdir()}
    replace = os.replace

    def full(source: str, target: Path) -> None:
        if Path(target) == path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    result = cli(*given)
    assert result.exit_code == group.FAILED, result.output
    assert f"cannot use {path}: No space left on device" in result.stderr
    assert path.read_text() == "old"
    assert {*path.parent.iterdir()} == before


def test_what_cannot_be_a_file_is_refused_by_its_name(
    named: tuple[Path, Words], tmp_path: Path
) -> None:
    path, words = named
    path.mkdir()
    assert f"{path} is a folder" in refused(group.USAGE, *words(path))
    assert path.is_dir()
    missing = path / "no" / f"it{path.suffix}"

    def given(other: Path) -> tuple[object, ...]:
        return tuple(other if word == path else word for word in words(path))

    error = refused(group.USAGE, *given(missing))
    assert f"{missing} is in a folder that does not exist" in error
    dangling = tmp_path / f"link{path.suffix}"
    dangling.symlink_to(missing)
    error = refused(group.USAGE, *given(dangling))
    assert f"{dangling} is a link to {missing}, in a folder that does not exist" in error
    circle = tmp_path / f"circle{path.suffix}"
    circle.symlink_to(circle)
    assert f"{circle} is a link to itself" in refused(group.USAGE, *given(circle))


def test_what_goes_to_stdout_by_its_path_is_in_order(tmp_path: Path) -> None:
    """A shell's redirection is no file to be replaced: what is printed later would be lost."""
    table = figures(tmp_path / "x")
    stdout = tmp_path / "stdout"  # a link of the test's own, as /dev/stdout is
    stdout.symlink_to("/proc/self/fd/1")
    program = f"""
import os
os.dup2(os.open({str(tmp_path / "out")!r}, os.O_WRONLY | os.O_CREAT), 1)
"""
    done = subprocess_cli(
        *("bench", "--from", table, "--csv", stdout), cwd=tmp_path, prelude=program
    )
    assert stdout.is_symlink()
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "out").read_text()
    assert text.startswith(table.read_text() + "a GPU, driver 580.1\n")


def test_results_of_one_run_have_a_file_each(tmp_path: Path) -> None:
    """--output and --result to one file kept but one of them."""
    x = tmp_path / "x.npy"
    np.save(x, np.zeros((0, 8), np.float32))
    (tmp_path / "inner").mkdir()
    (tmp_path / "link.npy").symlink_to("y.npy")
    words = ("run", "--device", "cpu", "--input", x, "--function", "softmax_lse")
    y = tmp_path / "y.npy"
    for other in (y, tmp_path / "inner" / ".." / "y.npy", tmp_path / "link.npy"):
        error = refused(group.USAGE, *words, "--output", y, "--result", f"lse={other}")
        assert f"--output and --result lse= name one file, {y}; give each its own" in error
        both = ("--result", f"y={other}", "--result", f"lse={y}")
        assert "--result y= and --result lse= name one file" in refused(2, *words, *both)
    assert not y.exists()
    y.write_text("old")
    os.link(y, tmp_path / "hard.npy")
    error = refused(2, *words, "--output", y, "--result", f"lse={tmp_path / 'hard.npy'}")
    assert "name one file" in error
    assert y.read_text() == "old"
    null = device(tmp_path / "null", 3)
    ok(*words, "--output", null, "--result", f"lse={null}")  # which keeps nothing anyway
    ok(*words, "--output", x, "--result", f"lse={tmp_path / 'lse.npy'}")  # in place of the input


def test_figures_and_their_plot_have_a_file_each(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "it.png"
    words = ("bench", "--from", figures(path), "--csv", path, "--plot", path)
    assert f"--csv and --plot name one file, {path}" in refused(group.USAGE, *words)
    assert not path.exists()
