"""Every code block of the README, run; and every output block, compared with what was printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from softgen.bench.record import LIMIT, SOFTGEN, Finding, Machine, Status, records_of, to_csv
from softgen.bench.suites import SUITES, shapes_of
from softgen.devices.gpu.device import unavailable_reason
from softgen.problems.functions import all_functions
from tests import figures, readme_picture
from tests.helpers.cli_helpers import copy_package
from tests.helpers.plugin import install

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
        env={**os.environ, "COLUMNS": "200", "PYTHONPATH": str(ROOT), **environment},
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


def test_it_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 1200
    assert len(text.splitlines()) <= 200


def test_every_block_is_known() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "text", "python"}
    assert (len(SHELL), len(TEXT), len(PYTHON)) == (4, 2, 2)


@pytest.mark.usefixtures("host_built")
def test_first_command(tmp_path: Path) -> None:
    clone, line = SHELL[0].splitlines()
    # No owner and no host is known before the repository has a public address.
    assert clone == "git clone <url of this repository> softgen && cd softgen"
    install, _, command = line.partition(" && ")
    assert install == "pip install '.[cuda13]'"  # continuous integration installs the same way
    printed = softgen(f"{command} --device cpu", tmp_path)
    # Asked for the CPU, it need not say why there is no GPU.
    assert without_figures(TEXT[0])[1:] == without_figures(printed)[-5:]
    error = re.search(r"error +(\S+) against", printed)
    assert error is not None
    assert float(error[1]) <= 2e-6


def test_second_command_is_what_ci_runs() -> None:
    assert SHELL[1].strip() == "pip install '.[test]' && pytest"
    assert SHELL[1].strip() in (ROOT / ".ci" / "run").read_text().splitlines()


def test_it_says_how_to_patch_a_model_and_when_to_take_something_else() -> None:
    assert PYTHON[0] == "import softgen.torch\n\nsoftgen.torch.patch()\n"
    text = (ROOT / "README.md").read_text()
    other = text.partition("\n## When to take something else\n")[2].partition("\n## ")[0]
    for name in ("FlashAttention", "torch.compile", "Liger", "server"):
        assert name in other


def test_emit_and_explain(tmp_path: Path) -> None:
    emit, explain = SHELL[2].splitlines()
    printed = softgen(emit, tmp_path)
    (name, _) = re.findall(r"^wrote (kernels/\S+)$", printed, re.MULTILINE)
    assert (tmp_path / name).read_text().startswith(f"// {Path(name).stem}\n")
    assert "tuned on NVIDIA H200 for 8192 rows" in printed
    assert softgen(f"{explain} --arch sm_90", tmp_path).splitlines()[0] == TEXT[1].strip()


@pytest.mark.gpu
def test_pytorch() -> None:
    torch = pytest.importorskip("torch")
    same = "torch.softmax(x, -1) is not None"
    program = f"import torch\n{PYTHON[0]}\nx = torch.ones(4, 8, device='cuda')\nprint({same})"
    assert torch is not None
    assert run([sys.executable, "-c", program], ROOT, SOFTGEN_TUNE="off") == "True\n"


@pytest.mark.gpu
def test_call() -> None:
    program = f"{PYTHON[1]}\nprint(abs(y.sum(1) - 1).max() < 1e-5, lse.shape)"
    assert run([sys.executable, "-c", program], ROOT, SOFTGEN_TUNE="off") == "True (4096,)\n"


@pytest.mark.usefixtures("host_built")
def test_verify(tmp_path: Path) -> None:
    printed = softgen(SHELL[3].strip(), tmp_path)
    assert re.search(r"\b0 failed", printed), printed


def test_every_function_is_on_its_page() -> None:
    page = (ROOT / "docs" / "functions.md").read_text()
    told = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", page, re.MULTILINE)
    names = [name for cell in told for name in re.findall(r"\w+", cell)]
    assert {f.name for f in all_functions() if not f.twin} <= set(names)


def test_its_commands_are_of_files_and_suites_that_are_there() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.partition("| command |")[2].partition("\n\n")[0]
    commands = re.findall(r"\| `([^`]+)` \|$", table, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        examples, suites = (
            re.findall(r"examples/\S+", command),
            re.findall(r"--suite (\S+)", command),
        )
        assert all((ROOT / path).is_file() for path in examples)
        assert all(suite in SUITES for suite in suites)
        assert examples or suites


def test_bench_asks_for_a_gpu_and_for_nothing_else() -> None:
    if unavailable_reason() is None:
        pytest.skip("there is a GPU, where the whole suite takes a minute")
    command = [sys.executable, "-m", "softgen", "bench", "--suite", "losses"]
    answer = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert answer.returncode == 3
    assert answer.stderr.startswith("error: no GPU can be used: ")


@pytest.mark.parametrize("scheme", readme_picture.PICTURES)
def test_the_picture_is_of_the_files(scheme: str) -> None:
    path = readme_picture.PICTURES[scheme]
    assert str(path.relative_to(ROOT)) in (ROOT / "README.md").read_text()
    drawn = readme_picture.drawn_of(path)
    assert drawn == readme_picture.digest(), "python -m tests.readme_picture"


def test_choosing_has_a_panel_as_soon_as_its_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    for name in readme_picture.CHOOSING:
        (shape, *_) = shapes_of([name])
        peers = [LIMIT, *(SUITES[name].peers or ())]
        found = [Finding(peer, Status.TIMED, 2.0 + n) for n, peer in enumerate(peers)]
        records = records_of(shape, found, Machine("a GPU", "580", "softgen 1"))
        (tmp_path / f"{name}.csv").write_text(to_csv(records))
    for path in (figures.DOCS / "benchmark").glob("*.csv"):
        if path.stem not in readme_picture.CHOOSING:
            (tmp_path / path.name).symlink_to(path)
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "benchmark").symlink_to(tmp_path)
    (docs / "published").symlink_to(figures.DOCS / "published")
    monkeypatch.setattr(figures, "DOCS", docs)
    monkeypatch.setattr(readme_picture, "DOCS", docs)
    figures.calls.cache_clear()
    try:
        choosing = readme_picture.panels()[-2]
        readme_picture.figure("light")
    finally:
        figures.calls.cache_clear()
    assert choosing.title.startswith("Choosing")
    assert len(choosing.cases) == 3
    assert choosing.points[SOFTGEN][0] == (2 / 3, 0.0)
    assert {"torch", "torch.compile", "flashinfer", "vllm"} <= choosing.points.keys()


@pytest.mark.usefixtures("host_built")
def test_adding_a_strategy(tmp_path: Path) -> None:
    blocks = dict(BLOCK.findall((ROOT / "docs" / "adding_a_strategy.md").read_text()))
    install(tmp_path)
    path = f"{ROOT}:{tmp_path}"
    listed = softgen("softgen list --cols 1000", tmp_path, PYTHONPATH=path)
    assert "softmax_f32_1000_thread_b128" in listed
    printed = softgen(blocks["sh"].strip(), tmp_path, PYTHONPATH=path)
    assert re.search(r"\b0 failed", printed), printed
    assert "thread" in printed
