"""Which installed packages want another version of what softgen needs."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from softgen.cli.requirements import conflicts
from tests.helpers.cli_helpers import document, ok

TORCH = ("torch", "2.15.0", "cuda-toolkit[cudart,nvrtc]==13.2.2; platform_system != 'None'")
CUPY = ("cupy-cuda13x", "14.2.0", "numpy<2.6,>=2.0")
SOFTGEN = (
    *("softgen", "0.1.0", "numpy>=1.25"),
    *("cupy-cuda12x>=13; extra == 'cuda12'", "nvidia-cuda-nvrtc-cu12==12.*; extra == 'cuda12'"),
    *("cupy-cuda13x>=14; extra == 'cuda13'", "cuda-toolkit[nvrtc]==13.*; extra == 'cuda13'"),
    *("torch>=2.7; extra == 'torch'", "pytest>=8; extra == 'test'"),
)


def toolkit(version: str, nvrtc: str) -> tuple[str, ...]:
    return ("cuda-toolkit", version, f"nvidia-cuda-nvrtc=={nvrtc}; extra == 'nvrtc'")


def site(folder: Path, *packages: tuple[str, ...]) -> Path:
    """Make a folder of installed packages, each a name, a version and what it requires."""
    for name, version, *requirements in packages:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [f"Requires-Dist: {text}\n" for text in requirements]
        extras = {text.partition("extra == ")[2].strip("'") for text in requirements} - {""}
        lines += [f"Provides-Extra: {extra}\n" for extra in sorted(extras)]
        head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(head + "".join(lines))
    return folder


def found(folder: Path, *packages: tuple[str, ...]) -> list[tuple[str, str]]:
    made = importlib.metadata.distributions(path=[str(site(folder, *packages))])
    return [(str(conflict), conflict.fix) for conflict in conflicts(made)]


def test_what_fits_is_no_conflict(tmp_path: Path) -> None:
    nvrtc = ("nvidia-cuda-nvrtc", "13.2.86")
    fitting = (SOFTGEN, TORCH, CUPY, toolkit("13.2.2", "13.2.*"), nvrtc, ("numpy", "2.4.6"))
    assert found(tmp_path, *fitting) == []


def test_a_toolkit_that_torch_was_not_made_for(tmp_path: Path) -> None:
    nvrtc = ("nvidia-cuda-nvrtc", "13.0.88")
    assert found(tmp_path, SOFTGEN, TORCH, CUPY, toolkit("13.0.0", "13.0.*"), nvrtc) == [
        (
            "torch 2.15.0 wants cuda-toolkit==13.2.2, 13.0.0 is installed",
            "'cuda-toolkit[cudart,nvrtc]==13.2.2'",
        )
    ]


def test_a_compiler_that_is_not_of_its_toolkit(tmp_path: Path) -> None:
    """Whoever asks for cuda-toolkit[nvrtc] wants what that extra wants."""
    nvrtc = ("nvidia-cuda-nvrtc", "13.5.37")
    assert found(tmp_path, SOFTGEN, CUPY, toolkit("13.2.2", "13.2.*"), nvrtc) == [
        (
            "cuda-toolkit 13.2.2 wants nvidia-cuda-nvrtc==13.2.*, 13.5.37 is installed",
            "'nvidia-cuda-nvrtc==13.2.*'",
        )
    ]


def test_softgens_own_requirements_and_those_of_extras_in_use(tmp_path: Path) -> None:
    old = ("numpy", "1.20")
    assert [text for text, _ in found(tmp_path, SOFTGEN, CUPY, old, ("torch", "2.2"))] == [
        "softgen 0.1.0 wants numpy>=1.25, 1.20 is installed",
        "softgen 0.1.0 wants torch>=2.7, 2.2 is installed",
        "cupy-cuda13x 14.2.0 wants numpy<2.6,>=2.0, 1.20 is installed",
    ]


def test_an_extra_of_which_a_part_is_absent_wants_nothing(tmp_path: Path) -> None:
    """CUDA 12's CuPy beside a PyTorch for CUDA 12.9, say: no 13 is wanted."""
    cupy, nvrtc = ("cupy-cuda12x", "14.2.0"), ("nvidia-cuda-nvrtc-cu12", "12.1.105")
    assert found(tmp_path, SOFTGEN, cupy, nvrtc, toolkit("12.9.1", "12.9.*")) == []


def test_what_softgen_does_not_need_is_left_to_others(tmp_path: Path) -> None:
    quarrel = ("web-app", "1.0", "pytest<7", "sqlalchemy==1.*")
    assert found(tmp_path, SOFTGEN, quarrel, ("sqlalchemy", "2.0"), ("pytest", "9.0")) == []


def test_metadata_that_nobody_can_read_is_passed_by(tmp_path: Path) -> None:
    odd = ("odd", "1.0", "numpy >= not a version", "numpy==1.*")
    assert found(tmp_path, SOFTGEN, odd, ("numpy", "custom build")) == []


def test_a_prerelease_and_a_spelling_of_the_name(tmp_path: Path) -> None:
    other = ("Other_Package", "1.0", "NumPy<2")
    assert [text for text, _ in found(tmp_path, SOFTGEN, other, ("numpy", "2.5.0rc1"))] == [
        "other-package 1.0 wants NumPy<2, 2.5.0rc1 is installed"
    ]


def test_without_softgen_there_is_nothing_to_ask(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="softgen itself is not installed"):
        found(tmp_path, CUPY)


@pytest.mark.usefixtures("host_built")
def test_doctor_reports_it_and_the_exit_code_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(site(tmp_path, ("torchlike", "2.15.0", "numpy==0.1")))
    checks = {check["name"]: check for check in document(ok("doctor", "--json"))["checks"]}
    versions = checks["matching versions"]
    assert (versions["ok"], versions["required"]) == (False, False)
    assert "torchlike 2.15.0 wants numpy==0.1, " in versions["detail"]
    assert "to get matching versions: pip install 'numpy==0.1'" in ok("doctor").stdout
