"""The wheel works where there is no checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import softgen

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the checkout, and return it."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout = folder / "checkout"
    checkout.mkdir()
    junk = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in ("softgen", "templates"):
        shutil.copytree(ROOT / name, checkout / name, ignore=junk)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, checkout / name)
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    ran = run([sys.executable, "-c", build, str(folder)], checkout)
    assert ran.returncode == 0, ran.stderr
    return folder / ran.stdout.split()[-1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel, which is all that installing a pure one means."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(
    command: list[str], folder: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if path is not None:
        settings["PYTHONPATH"] = str(path)
    return subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, check=False
    )


def python(installed: Path, folder: Path, *arguments: str) -> str:
    ran = run([sys.executable, *arguments], folder, installed)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def files_of(root: Path, prefix: str = "") -> set[str]:
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {prefix + path.as_posix() for path in paths if "__pycache__" not in path.parts}


def test_the_wheel_holds_the_package_and_the_templates(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not archive.getinfo(name).is_dir()}
    info = {name for name in names if ".dist-info/" in name}
    source = files_of(ROOT / "softgen", "softgen/")
    templates = files_of(ROOT / "templates", "softgen/templates/")
    assert names - info == source | templates
    assert {"softgen/py.typed", "softgen/templates/kernel.cu.j2"} <= names
    assert "softgen/strategies/tables/nvidia_h200.json" in names
    assert {
        name
        for name in names
        if name.startswith("softgen/devices/emulator/") and name.endswith(".h")
    }
    for name in ("LICENSE", "NOTICE"):
        assert f"softgen-{softgen.__version__}.dist-info/licenses/{name}" in info


def test_one_version_in_all_files() -> None:
    cited = re.findall(
        r"^(version|date-released): (.*)$", (ROOT / "CITATION.cff").read_text(), re.M
    )
    released = re.findall(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (softgen.__version__, dict(cited)["date-released"]) == released[0]
    assert dict(cited)["version"] == softgen.__version__


def test_the_notice_names_where_reproduced_code_lies() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for word in (
        "OneFlow",
        "Apache License, Version 2.0",
        "Triton",
        "Permission is hereby granted",
    ):
        assert word in notice
    named = re.findall(r"(?:softgen|templates)/[\w/*.]+", notice)
    assert len(named) == 5
    for path in named:
        assert list(ROOT.glob(path.rstrip("."))), path


def test_what_the_wheel_says_of_itself(installed: Path) -> None:
    (info,) = installed.glob("*.dist-info")
    metadata = (info / "METADATA").read_text()
    assert f"\nVersion: {softgen.__version__}\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    extras = set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.MULTILINE))
    assert {"cuda12", "cuda13", "torch", "test"} <= extras
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert {"jinja2", "packaging"} <= set(needed)
    assert not {name for name in needed if name.startswith(("cupy", "torch", "cuda"))}
    assert "softgen = softgen.cli:app" in (info / "entry_points.txt").read_text()
    assert "Root-Is-Purelib: true" in (info / "WHEEL").read_text()


@pytest.mark.parametrize(
    ("extra", "package", "wanted", "refused"),
    [
        # What PyTorch 2.11 and 2.15 want, and the newest toolkit when this was written.
        ("cuda13", "cuda-toolkit", ["13.0.2", "13.2.2", "13.5.0"], ["12.9.1", "14.0.0"]),
        # What PyTorch 2.4 and 2.10 want.
        ("cuda12", "nvidia-cuda-nvrtc-cu12", ["12.1.105", "12.8.93"], ["11.8.89", "13.0.48"]),
        ("cuda12", "nvidia-cuda-runtime-cu12", ["12.1.105", "12.8.90"], ["11.8.89", "13.0.48"]),
    ],
)
def test_an_extra_takes_the_toolkit_that_pytorch_brought(
    extra: str, package: str, wanted: list[str], refused: list[str], installed: Path
) -> None:
    (info,) = installed.glob("*.dist-info")
    lines = re.findall(r"^Requires-Dist: (.*)$", (info / "METADATA").read_text(), re.MULTILINE)
    known = [r for r in map(Requirement, lines) if r.name == package]
    (found,) = [r for r in known if r.marker and r.marker.evaluate({"extra": extra})]
    assert [v for v in wanted + refused if found.specifier.contains(v)] == wanted


GENERATE = """
import softgen
source = softgen.generate("softmax", "float32", 1000)
print(softgen.__file__)
print(source.code_sha256)
print(source.text, end="")
"""


def test_the_installed_package_generates_the_same_text(installed: Path, tmp_path: Path) -> None:
    answer = python(installed, tmp_path, "-c", GENERATE)
    place, code, text = answer.split("\n", 2)
    assert Path(place) == installed / "softgen" / "__init__.py"
    here = softgen.generate("softmax", "float32", 1000)
    assert text == here.text
    # Choices that were tuned for in a checkout are good for the installed package too.
    assert code == here.code_sha256


def test_the_installed_command_emits_a_kernel(installed: Path, tmp_path: Path) -> None:
    arguments = ["-m", "softgen", "emit", "--dtype", "float32", "--cols", "1000"]
    arguments += ["--algorithm", "softmax"]
    text = python(installed, tmp_path, *arguments, "--stdout")
    assert softgen.generate("softmax", "float32", 1000).text.strip() in text
    assert list(tmp_path.iterdir()) == []
    python(installed, tmp_path, *arguments, "--out", "kernels")
    manifest = json.loads((tmp_path / "kernels" / "manifest.json").read_text())
    written = {path.name for path in (tmp_path / "kernels").glob("*.cu")}
    assert written == set(manifest["files"])
    assert len(written) == 1


def test_the_installed_package_finds_its_emulators_headers(installed: Path, tmp_path: Path) -> None:
    code = "import softgen.devices.emulator as e; print(*e.__path__)"
    (folder,) = python(installed, tmp_path, "-c", code).split()
    assert Path(folder) == installed / "softgen" / "devices" / "emulator"
    assert files_of(Path(folder)) == files_of(ROOT / "softgen" / "devices" / "emulator")
