"""softgen verify: what it asks for, and what it makes of the answer it gets."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from softgen.cli import group
from softgen.cli import verify as verify_command
from tests.cpu.cli_helpers import cli, document, ok

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
            options["progress"](SimpleNamespace(done=done, total=5, variant="", seconds_left=left))
        failures = [f"variant_{n}: variant_{n}.cu:{n + 7}: off" for n in range(seen["failed"])]
        failures += seen.pop("others", [])
        return SimpleNamespace(**{**REPORT, "failed": len(failures), "failures": failures})

    module = ModuleType("softgen.verify.verify")
    vars(module)["verify"] = verify
    monkeypatch.setitem(sys.modules, "softgen.verify.verify", module)
    monkeypatch.setattr("softgen.devices.gpu.device.available", lambda: False)
    return seen


def test_without_options_everything_is_verified_on_the_cpu(asked: dict[str, Any]) -> None:
    assert document(ok("verify", "--json")) == REPORT
    del asked["progress"]
    assert asked == {
        "failed": 0,
        "device": "cpu",
        "all_variants": False,
        "variants": None,
        "dtypes": None,
    }


def test_options_narrow_it(asked: dict[str, Any]) -> None:
    words = ("--all", "--variant", "safe", "--variant", "warp", "--dtype", "float16")
    ok("verify", "--device", "cpu", *words)
    assert asked["all_variants"] is True
    assert list(asked["variants"]) == ["safe", "warp"]
    assert [dtype.value for dtype in asked["dtypes"]] == ["float16"]


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
        "error": "2 of 5 variants are wrong",
        "kind": "VerificationError",
    }


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


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (70.4, "70 s"), (149.0, "2 min"), (431.0, "7 min")]
)
def test_durations_are_rounded(seconds: float, words: str) -> None:
    assert verify_command.duration(seconds) == words
