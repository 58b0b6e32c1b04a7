"""softgen tune and softgen cache, with a tuner that needs no GPU in place of the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from softgen.bench.suites import SUITES
from softgen.cli import group
from softgen.cli.shapes import parse_shape, read_shapes
from softgen.errors import InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.strategies.variants import candidates
from tests.helpers.cli_helpers import cli, document, ok, refused
from tests.helpers.fake_tuner import INTERRUPTING_COLS, fake_tune


@pytest.fixture(autouse=True)
def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim that there is a GPU, and that tuning on it is quick."""
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: None)
    monkeypatch.setattr("softgen.tuning.tune.tune", fake_tune)


@pytest.mark.parametrize("text", ["4096x1024", "4096 x 1024", " 4096,1024 ", "4096*1024"])
def test_shapes_are_rows_by_columns(text: str) -> None:
    assert parse_shape(text, "--shape") == (4096, 1024)


@pytest.mark.parametrize("text", ["", "4096", "4096x", "x1024", "-1x5", "1.5x2", "0x4", "1x2x3"])
def test_other_shapes_say_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"--shape: .* write ROWSxCOLS"):
        parse_shape(text, "--shape")


def test_a_file_of_shapes(tmp_path: Path) -> None:
    path = tmp_path / "shapes"
    path.write_text("# attention\n4096x1024\n\n 64 128256  # logits\n")
    assert read_shapes(path) == [(4096, 1024), (64, 128256)]
    path.write_text("4096x1024\nwide\n")
    with pytest.raises(InvalidValueError, match="shapes, line 2: 'wide' is not a shape"):
        read_shapes(path)


def test_tune_reports_the_winner_of_every_shape() -> None:
    words = ("tune", "--shape", "64x1000", "--shape", "32x2048", "--dtype", "float16", "--json")
    first, second = document(ok(*words))
    problem = Problem.of("softmax", "float16", 1000)
    winner = list(candidates(problem, 64, arch_named("sm_90"), "online"))[1]
    assert first == {
        "function": "softmax",
        "dtype": "float16",
        "rows": 64,
        "cols": 1000,
        "variant": winner.name,
        "microseconds": 2.0,
        "gigabytes_per_second": 128.0,
        "candidates": 2,
    }
    assert (second["rows"], second["cols"]) == (32, 2048)


def test_tune_shows_the_best_so_far() -> None:
    result = ok("tune", "--shape", "64x1000")
    assert "200 GB/s softmax_f32_1000_online" in result.stderr
    assert "softmax_f32_1000_online" in result.stdout


def test_ctrl_c_keeps_what_is_finished() -> None:
    words = ("tune", "--shape", "64x1000", "--shape", f"64x{INTERRUPTING_COLS}", "--shape", "64x8")
    result = cli(*words, "--json")
    assert result.exit_code == group.INTERRUPTED
    assert [line["cols"] for line in document(result)] == [1000]
    assert "1 of 3 shapes are tuned and stored" in result.stderr
    assert [line["cols"] for line in document(ok("cache", "ls", "--json"))] == [1000]


def test_cache_lists_exports_clears_and_imports(tmp_path: Path, own_cache: Path) -> None:
    assert document(ok("cache", "ls", "--json")) == []
    assert "no tuned choices" in ok("cache", "ls").stderr
    tuned = document(ok("tune", "--shape", "64x1000", "--json"))[0]
    listed: list[dict[str, Any]] = document(ok("cache", "ls", "--json"))
    assert [(line["variant"], line["device"]) for line in listed] == [(tuned["variant"], "a test")]
    assert tuned["variant"] in ok("cache", "ls").stdout

    path = tmp_path / "choices.json"
    assert document(ok("cache", "export", path, "--json")) == {"exported": 1, "file": str(path)}
    assert document(ok("cache", "clear", "--json")) == {
        "folder": str(own_cache),
        "deleted": {"tuned": 1, "texts": 0, "code": 0, "emulator": 0, "sources": 0},
        "left": {},
    }
    assert document(ok("cache", "ls", "--json")) == []
    assert document(ok("cache", "import", path, "--json")) == {"imported": 1, "file": str(path)}
    assert document(ok("cache", "ls", "--json")) == listed


@pytest.mark.usefixtures("host_built")
def test_cache_clear_says_what_it_did(own_cache: Path) -> None:
    ok("tune", "--shape", "64x1000")
    ok("run", "--device", "cpu", "--rows", 2, "--cols", 8)
    (own_cache / "texts").mkdir(mode=0o700)
    (own_cache / "texts" / "chapter1.md").write_text("mine")
    lines = ok("cache", "clear").stderr.splitlines()
    assert lines == [
        f"warning: {own_cache / 'texts'} is left alone: softgen did not make it, or not all that "
        "it holds",
        "deleted 1 choices, 0 texts of kernels, "
        "0 pieces of machine code, 2 programs and objects of the emulator, 1 sources "
        f"from {own_cache}",
    ]
    assert (own_cache / "texts" / "chapter1.md").read_text() == "mine"


def imported(tmp_path: Path, device: object) -> Result:
    """Import an entry of a device with that name."""
    path = tmp_path / "choices.json"
    ok("tune", "--shape", "64x1000")
    ok("cache", "export", path)
    ok("cache", "clear")
    (entry,) = json.loads(path.read_text())
    entry["key"]["environment"]["device"] = device
    path.write_text(json.dumps([entry]))
    return cli("cache", "import", path)


def test_what_an_imported_file_says_is_no_command_to_the_terminal(tmp_path: Path) -> None:
    assert imported(tmp_path, "\x1b]0;owned\x07\x1b[2J\u202ebad\nforged\r").exit_code == 0
    printed = ok("cache", "ls").stdout
    assert "\\x1b]0;owned\\x07\\x1b[2J\\u202ebad\\nforged\\r" in printed
    assert all(letter.isprintable() for letter in printed.replace("\n", ""))
    assert len(printed.splitlines()) == 2
    (line,) = document(ok("cache", "ls", "--json"))
    assert line["device"].startswith("\x1b]0;owned")


@pytest.mark.parametrize("device", [["a", "list"], {}, None, 1.5, "half a pair \udc80"])
def test_a_device_that_is_no_text_is_not_imported(device: object, tmp_path: Path) -> None:
    result = imported(tmp_path, device)
    assert result.exit_code == group.USAGE
    assert "device must be a text or a number" in result.stderr
    assert "nothing was imported" in result.stderr
    assert "no tuned choices" in ok("cache", "ls").stderr


def test_a_suite_is_tuned_in_its_dtype() -> None:
    lines = document(ok("tune", "--suite", "fastsoftmax", "--shape", "8x64", "--json"))[1:]
    assert {(line["dtype"], line["rows"]) for line in lines} == {("float32", 128)}
    assert [line["cols"] for line in lines] == [2**i for i in range(10, 18)]


def test_a_suite_is_tuned_for_its_function() -> None:
    words = ("tune", "--suite", "logsumexp", "--suite", "fastsoftmax", "--shape", "8x64", "--json")
    lines = document(ok(*words))
    functions = [(line["function"], line["cols"]) for line in lines]
    assert functions[0] == ("softmax", 64)
    assert [cols for function, cols in functions if function == "logsumexp"] == [
        case[2] for case in SUITES["logsumexp"].cases
    ]
    assert {function for function, _ in functions[1 + len(SUITES["logsumexp"].cases) :]} == {
        "softmax"
    }
    for line in document(ok(*words, "--function", "partial")):
        assert line["function"] == "partial"


def test_the_cache_becomes_a_table_of_winners(tmp_path: Path) -> None:
    tuned = document(ok("tune", "--shape", "64x1000", "--shape", "60x1000", "--json"))[0]
    path = tmp_path / "a_test.json"
    answer = document(ok("cache", "export", path, "--table", "--json"))
    assert answer == {"exported": 1, "file": str(path)}
    (entry,) = json.loads(path.read_text())["entries"]
    assert entry == {"variant": tuned["variant"], "rows": 64, "microseconds": 2.0}
    assert f"wrote 1 entries to {path}" in ok("cache", "export", path, "--table").stderr


def test_an_empty_cache_makes_no_table(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    assert "no tuned choices" in refused(group.USAGE, "cache", "export", path, "--table")
    assert not path.exists()


def test_files_that_cannot_be_are_told_apart(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "x.json"
    assert f"{missing} is in a folder that does not exist" in refused(
        group.USAGE, "cache", "export", missing
    )
    assert "there is no such file" in refused(group.USAGE, "cache", "import", missing)


def test_cache_path_is_the_folder(own_cache: Path) -> None:
    assert ok("cache", "path").stdout == f"{own_cache}\n"
    assert document(ok("cache", "path", "--json")) == {"path": str(own_cache)}


@pytest.mark.parametrize("text", ["", "{}", "[1]", "not json", '[{"schema": 1}]'])
def test_importing_anything_else_stores_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "choices.json"
    path.write_text(text)
    assert str(path) in refused(group.USAGE, "cache", "import", path)
    assert document(ok("cache", "ls", "--json")) == []
