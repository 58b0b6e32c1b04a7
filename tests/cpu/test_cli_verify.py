"""softgen verify: what it asks for, and what it makes of the answer it gets."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from softgen.cli import group
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
        options["progress"](SimpleNamespace(done=5, total=5, variant="softmax_f32_8_safe_b256"))
        failures = [f"variant {number}: off" for number in range(seen["failed"])]
        return SimpleNamespace(**{**REPORT, "failed": len(failures), "failures": failures})

    module = ModuleType("softgen.verify")
    vars(module)["verify"] = verify
    monkeypatch.setitem(sys.modules, "softgen.verify", module)
    monkeypatch.setattr("softgen.device.available", lambda: False)
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
    assert "variant 0: off\nvariant 1: off\n" in told.output
    result = cli("verify", "--json")
    assert result.exit_code == group.WRONG_RESULT
    assert document(result) == {
        **REPORT,
        "failed": 2,
        "error": "2 of 5 variants are wrong",
        "kind": "VerificationError",
    }
