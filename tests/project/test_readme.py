"""Every code block of the README, run; and every output block, compared with what was printed."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from softgen.bench.record import LIMIT, Record, Status, read_csv
from softgen.bench.roster import others
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
    blocks = dict(BLOCK.findall((ROOT / "docs" / "strategies.md").read_text()))
    (checkout / "softgen" / "strategies" / "thread.py").write_text(blocks["python"])
    (checkout / "templates" / "strategies" / "thread.cu.j2").write_text(blocks["cuda"])
    assert "softmax_f32_1000_thread_b128" in softgen("softgen list --cols 1000", checkout)
    printed = softgen(blocks["sh"].strip(), checkout)
    assert re.search(r"\b0 failed", printed), printed
    assert "thread" in printed


SUITES = ("triton", "fastsoftmax", "online", "oneflow", "llm")
MORE = ("drawn", "short", "chained")
Timed = dict[tuple[str, str, int, int], dict[str, Record]]


@pytest.fixture(scope="module")
def timed() -> Timed:
    """Return what the committed tables hold, by shape and competitor."""
    found: Timed = {}
    for name in (*SUITES, *MORE):
        for record in read_csv(ROOT / "docs/benchmark" / f"{name}.csv"):
            if record.microseconds and record.status is not Status.HOST:
                shape = (name, *record.shape[1:])
                found.setdefault(shape, {})[record.peer] = record
    return found


def said(heading: str = "") -> str:
    """Return the README's section of that heading, by default all before the first, in one line."""
    text = (ROOT / "README.md").read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2]
    return " ".join(text.partition("\n## ")[0].split())


def test_the_figures_of_the_limits_are_those_of_the_tables(timed: Timed) -> None:
    limits = said("Limits, honestly")
    largest = timed["online", "float32", 4, 16777216]["softgen"]
    assert f"float32 4 x 16777216 takes {largest.ratio_to_limit:.2f} of a copy's time" in limits
    few = timed["llm", "bfloat16", 8, 128256]
    ratio, copy = few["softgen"].ratio_to_limit, few["limit"].microseconds
    assert f"bfloat16 8 x 128256 takes {ratio:.1f} of a copy's {copy:.1f} us" in limits


def test_the_first_figures_are_those_of_the_tables(timed: Timed) -> None:
    """The sentences before the first heading, from what the suites' tables hold."""
    five = {shape: peers for shape, peers in timed.items() if shape[0] in SUITES}
    ratio = {shape: peers["softgen"].ratio_to_limit or 0.0 for shape, peers in timed.items()}
    wide = [ratio[shape] for shape in five if shape[1:3] == ("float32", 4096) and shape[3] >= 1024]
    close = sum(ratio[shape] <= 1.05 for shape in five)
    slowest = max(five, key=ratio.__getitem__)
    drawn = max((shape for shape in timed if shape[0] == "drawn"), key=ratio.__getitem__)
    libraries = {"torch", "liger", "triton", "cupyx", "torch.compile", "quack"}
    rivals = others() - {LIMIT}
    count = {name: sum(name in peers for peers in five.values()) for name in libraries}
    time = {shape: {n: r.microseconds or 0.0 for n, r in five[shape].items()} for shape in five}
    behind = max(
        peers["softgen"] / min(peers[name] for name in rivals & peers.keys())
        for peers in time.values()
    )

    def lead(suite: str) -> str:
        ratios = [
            min(peers[name].microseconds or 0.0 for name in rivals & peers.keys())
            / (peers["softgen"].microseconds or 0.0)
            for shape, peers in timed.items()
            if shape[0] == suite
        ]
        return f"{min(ratios):.2f} to {max(ratios):.2f}"

    times = [p["softgen"].microseconds or 0.0 for s, p in timed.items() if s[0] == "short"]

    def spelled(shape: tuple[str, str, int, int]) -> str:
        return f"{shape[1]} {shape[2]} x {shape[3]}"

    first = said()
    for sentence in (
        f"takes {min(wide):.2f} to {max(wide):.2f} of the time of a plain copy.",
        f"{close} of the {len(five)} timings of five suites are within 5% of a copy.",
        f"The slowest takes {ratio[slowest]:.2f}: {spelled(slowest)}.",
        f"of random shapes, the slowest takes {ratio[drawn]:.2f}: {spelled(drawn)}.",
        f"softgen is ahead of every other library that was timed, by {(1 - behind) * 100:.1f}% at "
        "least.",
        f"Calls of {min(times):.1f} to {max(times):.1f} us are {lead('short')} times as fast as "
        f"the fastest other, and {lead('chained')} times in a chain.",
        f"PyTorch was timed at all {count['torch']} of them, Liger at {count['liger']}, Triton at "
        f"{count['triton']}, CuPy at {count['cupyx']}, `torch.compile` at {count['torch.compile']} "
        f"and QuACK at {count['quack']}.",
    ):
        assert sentence in first


def test_the_figures_between_matrix_products_are_those_of_the_file() -> None:
    with (ROOT / "docs" / "matmuls" / "between_matmuls.csv").open(newline="") as file:
        steps = list(csv.DictReader(file))

    def ratios(what: str, where: str) -> list[float]:
        """Return how many times what softgen adds to the products another adds."""
        return [
            (float(step[what]) - float(step["gap"])) / (float(step["softgen"]) - float(step["gap"]))
            for step in steps
            if step["where"] == where
        ]

    def over_softgen(what: str, where: str) -> str:
        found = ratios(what, where)
        return f"{min(found):.1f} to {max(found):.1f} times"

    first = said()
    torch = f"`torch.softmax` adds {over_softgen('torch', 'eager')} the time that softgen adds."
    assert torch in first
    assert f"With `pdl=False` softgen adds {over_softgen('softgen_plain', 'eager')} what" in first
    graph = f"In a CUDA graph `torch.softmax` adds {over_softgen('torch', 'graph')} what softgen"
    assert graph in first
    most = max(ratios("softgen_plain", "graph")) - 1
    assert f"`pdl=False` costs up to {most * 100:.0f}%" in first
