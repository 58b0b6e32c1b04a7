"""The command line as a whole: help, version, errors, exit codes, pipes."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import softgen
from softgen.cli import group
from softgen.problems.functions import all_functions
from tests.helpers.cli_helpers import ROOT, cli, document, ok, refused, subprocess_cli

COMMANDS = (
    *("run", "emit", "functions", "list", "show", "explain", "tune", "bench", "verify", "cache"),
    "doctor",
)


def test_version() -> None:
    assert ok("--version").stdout == f"softgen {softgen.__version__}\n"


def test_help_names_every_command() -> None:
    text = ok("--help").stdout
    for command in COMMANDS:
        assert f" {command} " in text


@pytest.mark.parametrize("command", [*COMMANDS, "cache ls", "cache export", "cache import"])
def test_every_command_has_help_and_json(command: str) -> None:
    text = ok(*command.split(), "-h").stdout
    assert "Usage: softgen" in text
    if command != "cache":
        assert "--json" in text


def test_the_functions_are_listed_in_one_place() -> None:
    told = ok("functions").stdout.splitlines()
    names = [function.name for function in all_functions()]
    shown = [name for name in names if "_i32" not in name]
    assert [line.split()[0] for line in told[1:]] == shown
    assert ["softmax", "y", "=", "softmax(x)"] in [line.split() for line in told]
    listed = document(ok("functions", "--json"))
    assert [each["name"] for each in listed] == names
    assert "token_log_probs" not in ok("list", "--help").stdout


def test_no_arguments_show_the_help() -> None:
    result = cli()
    assert result.exit_code == group.USAGE
    assert "Usage: softgen" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("list", "--colour"), "No such option"),
        (("list", "--dtype", "int8"), "'float16', 'bfloat16', 'float32', 'float64'"),
        (("list", "--dtype", "float23"), "did you mean 'float32'"),
        (("list", "--out-dtype", "bfloat32"), "'bfloat32' is not one of .* did you mean 'float32'"),
        (("run", "--dtype", "flaot16"), "did you mean 'float16'"),
        (("list", "--arch", "sm_91"), "did you mean 'sm_90'"),
        (("list", "--variant", "wrap"), "did you mean 'warp'"),
        (("list", "--variant", "one_flow"), "unknown variant 'one_flow'; did you mean 'oneflow'"),
        (("tune", "--suite", "LLMs"), "did you mean 'llm'"),
        (("tune", "--budget", "long"), "'long' is not accepted; give a number, 0.01 or more"),
        (("tune", "--budget", "nan"), "'nan' is not accepted; give a number, 0.01 or more"),
        (("bench", "--seconds", "0"), "'0' is not accepted; give a number, 0.001 or more"),
        (("run", "--seed", "-1"), "'-1' is not accepted; give a whole number, 0 or more"),
        (("bench", "--peers", "torhc"), "did you mean 'torch'"),
        (("verify", "--variant", "Block"), "did you mean 'block'"),
        (("list", "--function", "softmin"), "did you mean 'softmax'"),
        (
            ("list", "--cols", "0"),
            "'0' is not accepted; give a whole number from 1 to 1099511627776",
        ),
        (
            ("list", "--cols", "many"),
            "'--cols': 'many' is not accepted; give a whole number from 1 to",
        ),
        (
            ("list", "--rows", "-1"),
            "'-1' is not accepted; give a whole number from 0 to 1099511627776",
        ),
        (("list", "--arch", "sm_1"), "sm_75, sm_80"),
        (("list", "--arch", "sm_99"), "unknown architecture 'sm_99'; did you mean"),
        (("list", "--arch", "sm_70"), "softgen needs sm_75 or later, and sm_70 is older; it knows"),
        (("list", "--variant", "best"), "unknown variant 'best'.*online.*settings such as"),
        (("list", "--alignment", "3"), "power of two"),
        (
            ("list", "--cols", "1001", "--alignment", "4"),
            "of 1001 elements start on",
        ),
        (
            ("show", "--cols", "6", "--alignment", "4"),
            "give --alignment 2 or less, or leave it",
        ),
        (("emit", "--all", "--cols", "6", "--alignment", "4"), "--alignment 4: rows of 6 elements"),
        (("show",), "give --cols, or the full name of a variant"),
        (("show", "nope"), "unknown variant 'nope'; softgen knows: .*settings such as"),
        (("show", "onlin"), "unknown variant 'onlin'; did you mean 'online'"),
        (("show", "softmx_f32_1000_safe_b256"), "function 'softmx'; did you mean 'softmax'"),
        (
            ("emit", "--variant", "softmx_f32_1000_safe_b256"),
            "unknown function 'softmx'; did you mean 'softmax'",
        ),
        (
            ("emit", "--variant", "softmax_f32_1000_scal_block_p4_c8_g128_b128_m1"),
            "unknown hook or modifier 'scal'; did you mean 'scale'",
        ),
        (("show", "online"), "give --cols, or the full name of a variant"),
        (("show", "online_p4_u2_b128"), "give --cols, or the full name of a variant"),
        (("show", "naive"), "give --cols, or the full name of a variant"),
        (("show", "softmax_f32_1000"), "not the name of a variant"),
        (("show", "softmax_f32_1000_safe_b100"), "multiple of 32"),
        (("show", "softmax_f32_8_safe_b256", "--variant", "safe"), "not both"),
        (("list", "--variant", "safe_b"), "'safe_b' is no setting of safe, whose knobs are b"),
        (("emit", "--variant", "safe"), "give --cols as well"),
        (("emit", "--stdout", "--check"), "--stdout goes with neither"),
        (("emit", "--dtype", "float16"), "give --cols as well"),
        (("emit", "--all"), "give --cols as well"),
        (("emit", "--arch", "sm_80"), "--rows, --arch and --sms need --cols"),
        (("emit", "--sms", "78"), "--rows, --arch and --sms need --cols"),
        (
            ("emit", "--cols", "10", "--sms", "0"),
            "'0' is not accepted; give a whole number from 1 to 1024",
        ),
        (("list", "--sms", "1025"), "'1025' is not accepted; .* from 1 to 1024"),
        (("show", "--cols", "10", "--sms", "2.5"), "'2.5' is not accepted; give a whole number"),
        (("tune",), "at least one --shape"),
        (("explain",), "Missing argument 'ROWSxCOLS'"),
        (("explain", "4096"), "ROWSxCOLS: '4096' is not a shape; write ROWSxCOLS"),
        (("explain", "8x1001", "--alignment", "2"), "give --alignment 1 or less, or leave it"),
        (("explain", "8x8", "--arch", "sm_91"), "did you mean 'sm_90'"),
        (("run", "--dtype", "float8_e4m3fn"), "'float64'; only results have it: .* --out-dtype$"),
        (("tune", "--shape", "1024"), "write ROWSxCOLS"),
        (("tune", "--shape", "8x" + "9" * 5000), "write ROWSxCOLS"),
        (("tune", "--shape", f"{2**41}x8"), "two positive numbers up to 2"),
        (("tune", "--shape", "0x5"), "write ROWSxCOLS"),
        (
            ("tune", "--shapes", "nowhere.txt"),
            "^--shapes: cannot read nowhere.txt: No such file or directory; give a text file",
        ),
        (("cache", "merge", "nowhere"), "^nowhere does not exist; name a cache folder, as "),
        (("cache", "import", "nowhere.json"), "cannot read nowhere.json"),
        (("verify", "--variant", "best"), "unknown variant 'best'"),
    ],
)
def test_usage_errors_exit_with_2_and_are_json_when_asked(
    words: tuple[str, ...], message: str
) -> None:
    import re

    error = refused(group.USAGE, *words)
    assert re.search(message, error), error


def test_a_command_that_needs_a_gpu_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: "there is none")
    for words in (("tune", "--shape", "64x64"), ("run", "--device", "cuda")):
        assert "there is none" in refused(group.NO_DEVICE, *words)
    assert "there is none" in refused(group.NO_DEVICE, "verify", "--device", "cuda")


def test_errors_of_the_system_are_one_line(tmp_path: Path) -> None:
    target = tmp_path / f"{'x' * 300}.json"  # and no temporary file beside it
    message = refused(group.FAILED, "cache", "export", target)
    assert message.startswith(f"cannot use {target}: File name too long; ")
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "x.json"
    message = refused(group.USAGE, "cache", "export", target)
    assert message.startswith(f"{target} is in a folder that does not exist; ")
    message = refused(group.USAGE, "cache", "export", tmp_path)
    assert message.startswith(f"{tmp_path} is a folder; ")


def test_a_bug_keeps_its_traceback_and_is_still_one_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("softgen.disk.folders.directory", broken)
    result = cli("cache", "path", "--json")
    assert result.exit_code == group.FAILED
    assert document(result) == {"error": "a bug", "kind": "ZeroDivisionError"}
    assert "Traceback" in result.stderr
    assert isinstance(cli("cache", "path").exception, ZeroDivisionError)


def test_json_is_known_before_the_line_is_parsed() -> None:
    assert group.asks_for_json(["list", "--json"])
    assert not group.asks_for_json(["show", "--", "--json"])


def test_python_m_is_the_same_command(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "softgen", "--version"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert ran.stdout == f"softgen {softgen.__version__}\n"


def test_a_pipe_gets_whole_names_and_no_escape_codes(tmp_path: Path) -> None:
    ran = subprocess_cli("list", "--cols", "1000", cwd=tmp_path, COLUMNS="20")
    assert ran.returncode == 0, ran.stderr
    assert "\x1b" not in ran.stdout + ran.stderr
    assert "softmax_f32_1000_safe_b256" in ran.stdout


def test_no_color_is_respected(tmp_path: Path) -> None:
    forced = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    words = ("list", "--arch", "sm_1")
    colored = subprocess_cli(*words, cwd=tmp_path, **forced)
    plain = subprocess_cli(*words, cwd=tmp_path, NO_COLOR="1", **forced)
    assert "\x1b[1;31m" in colored.stderr
    assert "31m" not in plain.stderr
    assert colored.returncode == plain.returncode == group.USAGE


def test_a_reader_that_stops_early_is_no_traceback(tmp_path: Path) -> None:
    name = "softmax_f32_1000_online_p4_u2_b128"
    command = f"{sys.executable} -m softgen show {name} | head -n 1"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout == f"// {name}\n"
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("command", ["", *COMMANDS, "cache clear", "cache export"])
def test_help_is_wrapped_once(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a paragraph ends only where the next word would not fit."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    lines = ok(*command.split(), "--help").stdout.splitlines()
    prose = [line.strip() for line in lines[: [line[:1] for line in lines].index("╭")]]
    for line, following in itertools.pairwise(prose):
        if line and following:
            assert len(f" {line} {following.split()[0]} ") > 80, line


def test_lines_are_as_wide_as_a_terminal_and_whole_in_a_pipe(tmp_path: Path) -> None:
    words = ("list", "--cols", "1000", "--variant", "softmax_f32_1000_safe_b256", "--rows", "12345")
    environment = {"COLUMNS": "40", "NO_COLOR": "1"}
    piped = subprocess_cli(*words, cwd=tmp_path, **environment).stderr
    told = "softmax of float32 with 1000 columns, alignment 4, 12345 rows, sm_90: 1 candidate\n"
    assert piped == told
    shown = subprocess_cli(*words, cwd=tmp_path, **environment, FORCE_COLOR="1").stderr
    assert shown.splitlines()[0].rstrip() == "softmax of float32 with 1000 columns,"
    assert " ".join(shown.split()).startswith(told.strip())


def test_a_word_that_is_wider_than_the_terminal_stays_whole(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 60)
    words = ("cache", "clear")
    environment = {"SOFTGEN_CACHE_DIR": str(folder), "COLUMNS": "40", "FORCE_COLOR": "1"}
    assert str(folder) in subprocess_cli(*words, cwd=tmp_path, **environment).stderr


def test_a_strategy_of_a_checkout_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "softgen/strategies").mkdir(parents=True)
    (tmp_path / "softgen/strategies/mine.py").touch()
    told = refused(2, "show", "mine_b128", "--cols", 8)
    assert "unknown variant 'mine_b128'" in told
    assert "The checkout here has softgen/strategies/mine.py" in told
    assert told.endswith("install the checkout with `pip install -e .`")
    assert "checkout" not in refused(2, "show", "yours_b128", "--cols", 8)
