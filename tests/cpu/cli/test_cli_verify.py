"""softgen verify: what it asks for, and what it makes of the answer it gets."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from json import loads
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from softgen.cli import group, output
from softgen.cli import verify as verify_command
from tests.helpers.cli_helpers import ROOT, cli, document, ok, refused, subprocess_cli

REPORT = {
    "checked": 5,
    "failed": 0,
    "worst": {"float32": 1.5e-7, "bfloat16": 0.5},
    "by_strategy": {"safe": 2, "warp": 3},
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the command asked for; the answer is REPORT with `failed` taken from here."""
    seen: dict[str, Any] = {"failed": 0}

    def verify(**options: Any) -> SimpleNamespace:
        seen.update(options)
        for done, left in ((0, seen.pop("guess", 70.4)), (3, 41.0), (5, 0.0)):
            step = SimpleNamespace(done=done, total=5, failed=0, variant="", seconds_left=left)
            options["progress"](step)
            if done == seen.get("stopped at"):
                raise KeyboardInterrupt
        failures = [f"variant_{n}: variant_{n}.cu:{n + 7}: off" for n in range(seen["failed"])]
        failures += seen.pop("others", [])
        wrong = [line.partition(": ")[0] for line in failures]
        told = {"failed": len(failures), "failures": failures, "wrong": wrong}
        return SimpleNamespace(**{**REPORT, **told})

    module = ModuleType("softgen.verify.verify")
    vars(module)["verify"] = verify
    monkeypatch.setitem(sys.modules, "softgen.verify.verify", module)
    monkeypatch.setattr("softgen.devices.gpu.device.available", lambda: False)
    return seen


def test_without_options_everything_is_verified_on_the_cpu(asked: dict[str, Any]) -> None:
    assert document(ok("verify", "--json")) == {**REPORT, "failures": []}
    del asked["progress"]
    assert asked == {
        "failed": 0,
        "device": "cpu",
        "all_variants": False,
        "variants": None,
        "dtypes": None,
        "functions": None,
        "cols": None,
    }


def test_options_narrow_it(asked: dict[str, Any]) -> None:
    words = ("--all", "--variant", "safe", "--variant", "warp", "--dtype", "float16")
    functions = ("--function", "partial", "--function", "logsumexp")
    ok("verify", "--device", "cpu", *words, *functions)
    assert asked["all_variants"] is True
    assert list(asked["variants"]) == ["safe", "warp"]
    assert [dtype.value for dtype in asked["dtypes"]] == ["float16"]
    assert [function.name for function in asked["functions"]] == ["partial", "logsumexp"]


def test_people_get_tables(asked: dict[str, Any]) -> None:
    lines = [line.split() for line in ok("verify").stdout.splitlines()]
    assert ["warp", "3"] in lines
    assert ["float32", "1.5e-07", "relative"] in lines
    assert ["bfloat16", "0.5", "ulp"] in lines
    assert ["5", "checked,", "0", "failed"] in lines


def test_a_failure_exits_with_4(asked: dict[str, Any]) -> None:
    asked["failed"] = 2
    told = cli("verify")
    assert told.exit_code == group.WRONG_RESULT
    assert "variant_0: variant_0.cu:7: off\nand alike: variant_1\n" in told.output
    result = cli("verify", "--json")
    assert result.exit_code == group.WRONG_RESULT
    assert document(result) == {
        **REPORT,
        "failed": 2,
        "failures": ["variant_0", "variant_1"],
        "error": "2 of 5 variants are wrong",
        "kind": "VerificationError",
    }


def test_a_worst_error_that_is_not_finite(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON has no inf: it is null, as in what `softgen run` says."""
    asked["failed"] = 1
    monkeypatch.setitem(REPORT, "worst", {"float32": math.inf, "float64": math.nan, "float16": 0.5})
    result = cli("verify", "--json")
    assert result.exit_code == group.WRONG_RESULT
    assert document(result)["worst"] == {"float32": None, "float64": None, "float16": 0.5}
    assert document(result)["failures"] == ["variant_0"]
    lines = [line.split() for line in cli("verify").stdout.splitlines()]
    assert ["float32", "not", "finite"] in lines
    assert ["float16", "0.5", "ulp"] in lines


def test_a_slip_that_all_variants_share_is_told_once(asked: dict[str, Any]) -> None:
    asked["failed"], asked["others"] = 9, ["other_1: wrong"]
    lines = cli("verify").stdout.splitlines()
    names = ", ".join(f"variant_{number}" for number in range(1, 6))
    first = lines.index("variant_0: variant_0.cu:7: off")
    assert lines[first + 1 : first + 3] == [f"and alike: {names} and 3 more", "other_1: wrong"]


def test_it_says_how_long_it_will_take(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    told = ok("verify").stderr
    assert told.startswith(
        "verify on cpu: 5 kernels, about 70 s on 2 cores, less where they are compiled already\n"
    )
    assert "3 of 5" not in told
    monkeypatch.setattr(verify_command, "SILENT_SECONDS", -1.0)
    assert "3 of 5 kernels, about 41 s left\n" in ok("verify").stderr
    asked["guess"] = None
    assert ok("verify").stderr.startswith("verify on cpu: 5 kernels\n")


def test_one_kernel_is_one_and_where_none_has_an_error_there_is_no_table(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert output.count(1, "kernel") == "1 kernel"
    assert output.count(0, "kernel") == "0 kernels"
    monkeypatch.setitem(REPORT, "worst", {})
    assert "worst error" not in ok("verify").stdout


@pytest.mark.usefixtures("host_built")
def test_what_is_finished_is_not_said_to_take_longer() -> None:
    told = subprocess_cli(
        *("verify", "--device", "cpu", "--variant", "softmax_f32_8_safe_b256"),
        cwd=ROOT,
        FORCE_COLOR="1",
        NO_COLOR="1",
        COLUMNS="100",
    )
    assert told.returncode == 0, told.stderr
    assert "verify on cpu: 1 kernel, about" in told.stderr
    assert " left" not in told.stderr.rpartition("1/1")[2]


def children(process: int) -> set[int]:
    """Return the processes that one has begun, and theirs."""
    found: set[int] = set()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | children(child)
    return found


@pytest.mark.parametrize("json", [False, True])
def test_ctrl_c_ends_compilers_too(json: bool, tmp_path: Path) -> None:
    words = ["-m", "softgen", "verify", "--device", "cpu", "--variant", "online"]
    words += ["--function", "softmax", "--dtype", "float32"]  # compilers begin the sooner
    words += ["--json"] if json else []
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SOFTGEN_CACHE_DIR": str(tmp_path)},
        # A shell lets the commands of a script that run in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        started: set[int] = set()
        while len(started) < 3:  # a compiler, and what it has begun
            assert process.poll() is None
            time.sleep(0.05)
            started = children(process.pid)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        stdout, stderr = process.communicate()
    assert time.monotonic() - began < 4
    assert process.returncode == group.INTERRUPTED
    assert "Traceback" not in stderr
    if json:
        assert loads(stdout)["kind"] == "Abort"
        told = loads(stdout)["error"]
    else:
        told = stderr.splitlines()[-1].removeprefix("warning: ")
    assert re.fullmatch(r"interrupted; 0 of \d+ kernels were checked", told)
    assert not [child for child in started if Path(f"/proc/{child}/exe").exists()]


def test_ctrl_c_says_how_far_it_was(asked: dict[str, Any]) -> None:
    asked["stopped at"] = 3
    result = cli("verify")
    assert result.exit_code == group.INTERRUPTED
    told = "interrupted; 3 of 5 kernels were checked, 0 of them wrong"
    assert result.stderr.splitlines()[-1] == f"warning: {told}"
    assert document(cli("verify", "--json")) == {"error": told, "kind": "Abort"}


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (70.4, "70 s"), (149.0, "2 min"), (431.0, "7 min")]
)
def test_durations_are_rounded(seconds: float, words: str) -> None:
    assert verify_command.duration(seconds) == words


def test_list_names_what_would_run() -> None:
    """As many as would be verified, none of which is built."""
    options = ("--list", "--variant", "block", "--dtype", "float16", "--function", "logsumexp")
    result = ok("verify", *options)
    names = result.stdout.split()
    assert all(name.startswith("logsumexp_f16_") for name in names)
    assert len(set(names)) == len(names) > 5
    assert f"{len(names)} kernels" in result.stderr
    assert document(ok("verify", *options, "--json")) == {"variants": names}
    assert len(ok("verify", *options, "--all").stdout.split()) >= len(names)


def test_a_width_is_verified_that_is_asked_for() -> None:
    options = ("--list", "--dtype", "float16", "--function", "softmax", "--cols", 12345)
    names = ok("verify", *options, "--cols", 33).stdout.split()
    assert {re.match(r"softmax_f16_(\d+)_", name)[1] for name in names} == {"12345", "33"}  # type: ignore[index]
    assert any("_cluster_" in name for name in names)
    (one,) = ok("verify", "--list", "--variant", "safe_b128", *options[1:]).stdout.split()
    assert one == "softmax_f16_12345_safe_b128"
    told = refused(2, "verify", "--list", "--variant", "softmax_f32_8_safe_b128", "--cols", 9)
    assert told.endswith("of float16, bfloat16, float32, float64 with 9 columns")
