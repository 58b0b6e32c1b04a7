"""softgen doctor: a report on a good machine, and on every kind of bad one."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from softgen.cli import checks as doctor
from softgen.cli import group
from softgen.problems.arch import arch_named
from tests.helpers.cli_helpers import cli, document, ok

REQUIRED = {
    *("python", "numpy", "jinja2", "typer", "rich"),
    *("templates", "C++ compiler", "CPU emulator"),
}


def broken(message: str) -> Callable[[], str]:
    """Return a probe that fails as a broken installation does."""

    def probe() -> str:
        raise RuntimeError(message)

    return probe


@pytest.mark.usefixtures("host_built")
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


@pytest.mark.usefixtures("host_built")
def test_the_probe_of_the_cache_folder_leaves_nothing_behind(own_cache: Path) -> None:
    ok("doctor")
    assert {path.name for path in own_cache.iterdir()} <= {"emulator"}


@pytest.mark.usefixtures("host_built")
def test_what_is_missing_comes_with_the_command_that_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_nvrtc", broken("NVRTC is broken\nin two lines"))
    result = ok("doctor")
    assert "NVRTC is broken" in result.stdout
    assert "in two lines" not in result.stdout
    assert "to get NVRTC: pip install '.[cuda13]'" in result.stdout


@pytest.mark.usefixtures("host_built")
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
    monkeypatch.setattr(doctor, "_emulator", lambda: "it would build in a temporary folder")
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


def finding(name: str) -> doctor.Finding:
    return next(found for found in doctor.examine() if found.name == name)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (None, "the table of NVIDIA H200, 132 SMs"),
        ("NVIDIA H200", "the table of NVIDIA H200, 132 SMs"),
        (
            "NVIDIA H100 PCIe",
            "first guesses from the table of NVIDIA H200, 132 SMs: NVIDIA H100 PCIe has none",
        ),
    ],
)
def test_it_says_whose_winners_a_call_takes(
    device: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = dataclasses.replace(arch_named("sm_90"), device=device or "")
    monkeypatch.setattr("softgen.devices.gpu.device.available", lambda: device is not None)
    monkeypatch.setattr("softgen.devices.gpu.device.current_arch", lambda: arch)
    monkeypatch.setattr(doctor, "_emulator", lambda: "computes")
    assert finding("tuned winners").detail == told


def test_a_read_only_home_is_told_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cupy"))
    monkeypatch.setattr(doctor, "_emulator", lambda: "root may write anywhere, and it would")
    made = tempfile.TemporaryFile

    def refused(dir: Path) -> object:
        if dir == tmp_path:
            raise PermissionError("Permission denied")
        return made(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    ours, cupys = finding("cache folder"), finding("CuPy cache")
    assert (ours.ok, ours.detail) == (False, f"{tmp_path} cannot be written")
    assert ours.fix == "set SOFTGEN_CACHE_DIR to a folder of your own"
    assert (cupys.ok, cupys.required) == (False, False)
    assert cupys.detail == f"{tmp_path}/cupy is not used: {tmp_path} cannot be written"
    assert cupys.fix == "set CUPY_CACHE_DIR to a folder of your own"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SOFTGEN_TUNE", "bogus"),
        ("SOFTGEN_TUNE_BUDGET", "soon"),
        ("SOFTGEN_BATCH_INVARIANT", "yes"),
        ("SOFTGEN_DEBUG", "all"),
    ],
)
def test_a_setting_that_no_call_takes_is_a_finding(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_emulator", lambda: "computes")
    assert finding("settings").detail == "tuning on, at most 2 s"
    monkeypatch.setenv(variable, value)
    found = finding("settings")
    assert (found.ok, found.required, found.fix) == (False, False, "set it so, or unset it")
    assert (found.wrong, found.state) == (True, "WRONG")
    assert found.detail.startswith(f"the environment variable {variable} must be ")


def test_with_a_wrong_setting_it_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_emulator", lambda: "computes")
    monkeypatch.setenv("SOFTGEN_TUNE", "yes")
    told = "the environment variable SOFTGEN_TUNE must be one of on, cached, off, force; got 'yes'"
    result = cli("doctor")
    assert result.exit_code == group.FAILED
    assert re.search(rf"^settings +WRONG +{told} *$", result.stdout, re.MULTILINE)
    assert result.stderr == f"error: {told}\n"
    as_json = cli("doctor", "--json")
    assert as_json.exit_code == group.FAILED
    report = document(as_json)
    assert (report["ok"], report["error"], report["kind"]) == (False, told, "Unhealthy")
    assert [check["name"] for check in report["checks"] if check["wrong"]] == ["settings"]


@pytest.mark.usefixtures("host_built")
def test_a_cache_folder_that_is_unsafe_is_a_finding(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_emulator", lambda: "it would build in a temporary folder")
    own_cache.chmod(0o777)
    found = finding("cache folder")
    assert (found.ok, found.fix) == (False, "set SOFTGEN_CACHE_DIR to a folder of your own")
    assert found.detail == f"{own_cache}/tuned is not used: others can write to {own_cache}"
    own_cache.chmod(0o700)
    (own_cache / "texts").symlink_to(own_cache)
    assert finding("cache folder").detail == f"{own_cache}/texts is not used: it is a symbolic link"
