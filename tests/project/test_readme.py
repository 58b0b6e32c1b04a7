"""Every code block of the README, run; and every output block, compared with what was printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from softgen.devices.gpu.device import unavailable_reason
from softgen.spec.functions import all_functions
from tests.helpers.cli_helpers import copy_package

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
    return copy_package(tmp_path)


def test_every_block_is_known() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "text", "python"}
    assert (len(SHELL), len(TEXT), len(PYTHON)) == (7, 3, 5)


@pytest.mark.usefixtures("host_built")
def test_first_command(checkout: Path) -> None:
    clone, line = SHELL[0].splitlines()
    # No owner and no host is known before the repository has a public address.
    assert clone == "git clone <url of this repository> softgen && cd softgen"
    install, _, command = line.partition(" && ")
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


def test_it_says_how_to_patch_a_model_and_when_to_take_something_else() -> None:
    text = (ROOT / "README.md").read_text()
    assert "`softgen.torch.patch()`" in text.partition("\n## PyTorch\n")[2].partition("\n## ")[0]
    other = text.partition("\n## When to take something else\n")[2].partition("\n## ")[0]
    for name in ("FlashAttention", "torch.compile", "Liger"):
        assert name in other


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
    assert run([sys.executable, "-c", PYTHON[1]], checkout) == TEXT[2]


@pytest.mark.gpu
def test_call() -> None:
    assert run([sys.executable, "-c", PYTHON[0]], ROOT, SOFTGEN_TUNE="off") == ""
    printed = run([sys.executable, "-c", PYTHON[2]], ROOT, SOFTGEN_TUNE="off")
    assert re.fullmatch(r"softmax_bf16_32000_\w+", printed.strip())


@pytest.mark.usefixtures("host_built")
def test_verify(checkout: Path) -> None:
    printed = softgen(SHELL[4].strip(), checkout)
    assert re.search(r"\b0 failed", printed), printed


@pytest.mark.usefixtures("host_built")
def test_beside_softmax(checkout: Path) -> None:
    """Each function is in the table of its page; the command writes both files."""
    page = (ROOT / "docs" / "functions.md").read_text()
    told = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    names = [name for cell in told for name in re.findall(r"\w+", cell)]
    assert {f.name for f in all_functions() if not f.twin} <= set(names)
    printed = softgen(f"{SHELL[5].strip()} --device cpu", checkout)
    assert "the bound is 2e-06" in printed
    y, lse = (np.load(checkout / f"{name}.npy") for name in ("y", "lse"))
    assert (y.shape, lse.shape) == ((8, 300), (8,))


@pytest.mark.gpu
def test_call_beside_softmax() -> None:
    program = f"{PYTHON[3]}\nprint(abs(y - softgen.softmax(x)).max() < 1e-6, lse.shape)"
    assert run([sys.executable, "-c", program], ROOT, SOFTGEN_TUNE="off") == "True (4096,)\n"


@pytest.mark.gpu
def test_pytorch() -> None:
    pytest.importorskip("torch")
    program = f"{PYTHON[4]}\nprint(float(logits.grad.sum(1).abs().max()) < 1e-4)"
    assert run([sys.executable, "-c", program], ROOT, SOFTGEN_TUNE="off") == "True\n"


def test_bench_asks_for_a_gpu_and_for_nothing_else(checkout: Path) -> None:
    if unavailable_reason() is None:
        pytest.skip("there is a GPU, where the whole suite takes a minute")
    words = SHELL[6].split()
    assert words[:2] == ["softgen", "bench"]
    plotless = words[: words.index("--plot")]  # matplotlib is an extra
    answer = subprocess.run([sys.executable, "-m", *plotless], cwd=checkout, check=False)
    assert answer.returncode == 3


@pytest.mark.usefixtures("host_built")
def test_adding_a_strategy(checkout: Path) -> None:
    blocks = dict(BLOCK.findall((ROOT / "docs" / "adding_a_strategy.md").read_text()))
    (checkout / "softgen" / "strategies" / "thread.py").write_text(blocks["python"])
    (checkout / "templates" / "strategies" / "thread.cu.j2").write_text(blocks["cuda"])
    assert "softmax_f32_1000_thread_b128" in softgen("softgen list --cols 1000", checkout)
    printed = softgen(blocks["sh"].strip(), checkout)
    assert re.search(r"\b0 failed", printed), printed
    assert "thread" in printed
