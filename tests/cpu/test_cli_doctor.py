"""softgen doctor: a report on a good machine, and on every kind of bad one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from softgen import doctor
from softgen.cli import group
from tests.cpu.cli_helpers import cli, document, ok

REQUIRED = {
    *("python", "numpy", "jinja2", "typer", "rich"),
    *("templates", "C++ compiler", "CPU emulator"),
}


def broken(message: str) -> Callable[[], str]:
    """Return a probe that fails as a broken installation does."""

    def probe() -> str:
        raise RuntimeError(message)

    return probe


def test_this_machine_can_run_the_cpu_path(own_cache: Path) -> None:
    report = document(ok("doctor", "--json"))
    assert report["ok"] is True
    checks = {check["name"]: check for check in report["checks"]}
    assert {name for name, check in checks.items() if check["required"]} == REQUIRED
    assert all(checks[name]["ok"] for name in REQUIRED)
    assert str(own_cache) in checks["cache folder"]["detail"]
    assert checks.keys() - REQUIRED >= {
        *("cupy", "NVRTC", "GPU", "ml_dtypes", "torch", "matching versions")
    }
    for check in checks.values():
        assert check["detail"]
        assert bool(check["fix"]) is not check["ok"]


def test_the_probe_of_the_cache_folder_leaves_nothing_behind(own_cache: Path) -> None:
    ok("doctor")
    assert {path.name for path in own_cache.iterdir()} <= {"emulator"}


def test_what_is_missing_comes_with_the_command_that_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_nvrtc", broken("NVRTC is broken\nin two lines"))
    result = ok("doctor")
    assert "NVRTC is broken" in result.stdout
    assert "in two lines" not in result.stdout
    assert "to get NVRTC: pip install 'softgen[cuda13]'" in result.stdout


def test_without_a_compiler_it_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_compiler", broken("no C++ compiler"))
    result = cli("doctor")
    assert result.exit_code == group.FAILED
    assert "apt-get install g++" in result.stdout
    assert "the CPU path needs: C++ compiler" in result.stderr
    as_json = cli("doctor", "--json")
    assert as_json.exit_code == group.FAILED
    report = document(as_json)
    assert (report["ok"], report["kind"]) == (False, "Unhealthy")
    assert report["error"] == "the CPU path needs: C++ compiler"


def test_a_cache_folder_that_is_a_file_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(tmp_path / "file"))
    (found,) = [f for f in doctor.examine() if f.name == "cache folder"]
    assert not found.ok
    assert "is not a folder" in found.detail
    assert "SOFTGEN_CACHE_DIR" in found.fix


def test_nothing_that_a_probe_throws_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for probe in ("_python", "_templates", "_compiler", "_emulator", "_cupy", "_nvrtc", "_gpu"):
        monkeypatch.setattr(doctor, probe, broken(""))
    findings = doctor.examine()
    assert not doctor.healthy(findings)
    assert {f.detail for f in findings if f.name == "templates"} == {"RuntimeError"}
