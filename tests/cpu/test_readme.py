"""Every code block of the README, run; and every output block, compared with what was printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from softgen.devices.gpu.device import unavailable_reason

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(kind, body) for kind, body in BLOCK.findall((ROOT / "README.md").read_text())]
SHELL = [body for kind, body in BLOCKS if kind == "sh"]
PYTHON = [body for kind, body in BLOCKS if kind == "python"]
TEXT = [body for kind, body in BLOCKS if kind == "text"]


def run(command: list[str], cwd: Path, **environment: str) -> str:
    answer = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stderr + answer.stdout


def softgen(line: str, cwd: Path, **environment: str) -> str:
    """Run one `softgen ...` line of the README with this interpreter."""
    words = line.split()
    assert words[0] == "softgen"
    return run([sys.executable, "-m", *words], cwd, **environment)


def without_figures(text: str) -> list[str]:
    """Return the lines without measured figures and folders."""
    text = re.sub(r"\d\.\d+e-\d+", "FIGURE", text)
    return [re.sub(r"\S*/(?=\S+\.cu)", "", line).rstrip() for line in text.splitlines()]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the package, so that a test may add to it."""
    for folder in ("softgen", "templates"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def test_every_block_is_known() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "text", "python", "cuda"}
    assert (len(SHELL), len(TEXT), len(PYTHON)) == (7, 3, 3)


def test_first_command(checkout: Path) -> None:
    install, _, command = SHELL[0].strip().partition(" && ")
    assert install == "pip install '.[cuda13]'"  # continuous integration installs the same way
    printed = softgen(f"{command} --device cpu", checkout)
    # Asked for the CPU, it need not say why there is no GPU.
    assert without_figures(TEXT[0])[1:] == without_figures(printed)[-5:]
    error = re.search(r"error +(\S+) against", printed)
    assert error is not None
    assert float(error[1]) <= 2e-6


def test_second_command_is_what_ci_runs() -> None:
    assert SHELL[1].strip() == "pip install '.[test]' && pytest"
    assert SHELL[1].strip() in (ROOT / ".ci" / "run").read_text().splitlines()


def test_emit(checkout: Path) -> None:
    printed = softgen(SHELL[2].strip(), checkout)
    assert printed.splitlines() == TEXT[1].splitlines()
    for line in TEXT[1].splitlines()[:2]:
        assert (checkout / line.removeprefix("wrote ")).is_file()


def test_list_and_show(checkout: Path) -> None:
    listing, show = SHELL[3].splitlines()
    assert "softmax_bf16_4096_block_p8_c32_g128_b128_m8" in softgen(listing, checkout)
    printed = softgen(show, checkout)
    assert 'extern "C" __global__' in printed
    assert "registers" in printed


def test_generate(checkout: Path) -> None:
    assert run([sys.executable, "-c", PYTHON[0]], checkout) == TEXT[2]


@pytest.mark.gpu
def test_call() -> None:
    printed = run([sys.executable, "-c", PYTHON[1]], ROOT, SOFTGEN_TUNE="off")
    assert re.fullmatch(r"softmax_bf16_32000_\w+", printed.strip())


def test_verify(checkout: Path) -> None:
    printed = softgen(SHELL[4].strip(), checkout)
    assert re.search(r"\b0 failed", printed), printed


def test_bench_asks_for_a_gpu_and_for_nothing_else(checkout: Path) -> None:
    if unavailable_reason() is None:
        pytest.skip("there is a GPU, where the whole suite takes a minute")
    words = SHELL[5].split()
    assert words[:2] == ["softgen", "bench"]
    plotless = words[: words.index("--plot")]  # matplotlib is an extra
    answer = subprocess.run([sys.executable, "-m", *plotless], cwd=checkout, check=False)
    assert answer.returncode == 3


def test_adding_a_strategy(checkout: Path) -> None:
    (template,) = (body for kind, body in BLOCKS if kind == "cuda")
    (checkout / "softgen" / "strategies" / "thread.py").write_text(PYTHON[2])
    (checkout / "templates" / "strategies" / "thread.cu.j2").write_text(template)
    assert "softmax_f32_1000_thread_b128" in softgen("softgen list --cols 1000", checkout)
    printed = softgen(SHELL[6].strip(), checkout)
    assert re.search(r"\b0 failed", printed), printed
    assert "thread" in printed
