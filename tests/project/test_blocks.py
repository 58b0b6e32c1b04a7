"""Every code block of docs/ is run: here, or by the test of its page. Others say why not.

A block that is not run has `<!-- not run: the reason -->` on the line before it. Python for PyTorch
is run on CPU tensors where it is small, and on a GPU as it is written; CuPy's takes a GPU. Output
(`text`) and the order of the site (`{toctree}`) are no code.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from softgen.cli import group
from softgen.problems.problem import Problem
from softgen.source.render import render
from softgen.strategies.lessons.ladder import ARTICLES, LADDER, step
from softgen.strategies.variants import Variant
from tests.helpers.cli_helpers import ROOT, ok, refused

DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^(?:<!-- not run: (.+?) -->\n)?```([\w{}]+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
FENCE = re.compile(r"^ *```[\w{}]", re.MULTILINE)
# Pages whose blocks of code another test runs, all that are not marked.
ELSEWHERE = {
    "adding_a_function": "project/test_own_function.py",
    "adding_a_hook": "project/test_hooks_page.py",
    "adding_a_strategy": "project/test_readme.py",
    "cpp": "project/test_cpp_pages.py",
    "distributed": "cpu/distributed/test_distributed.py",
    "edit_a_kernel": "project/test_cpp_pages.py",
    "megatron": "cpu/distributed/test_distributed.py",
    "plugins": "project/test_plugin.py",
    "partial": "project/test_partial_page.py",
    "tensor_parallel": "cpu/distributed/test_distributed.py",
}
# Of another page, those in this language.
IN_PART = {("emit", "cuda"): "project/test_emit_page.py", ("scipy", "python"): "gpu/test_scipy.py"}
SMALL = ("choosing", "sampling", "serving", "start", "tokens")  # enough to run on the CPU
TORCH = (*SMALL, "linear_losses", "losses", "pytorch")
CUPY = ("float8", "hooks", "losses", "start", "views")
# What a page takes for granted.
BEFORE = {
    page: """
import softgen, torch
logits = torch.randn(4, 256, device="cuda")
seeds = torch.arange(4, device="cuda")
"""
    for page in ("choosing", "sampling")
}


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return of each block why it is not run, "" where it is, the language and the text."""
    return BLOCK.findall((DOCS / f"{page}.md").read_text())


PAGES = sorted(path.relative_to(DOCS).as_posix()[:-3] for path in DOCS.rglob("*.md"))
EXCERPTS = ("ladder", "oneflow")


def programs(page: str, library: str) -> list[str]:
    """Return the Python of a page that is for a library: CuPy's begins with its import."""
    found, current = [], "torch"
    for reason, language, text in blocks(page):
        if language == "python" and not reason:
            if re.search(r"^import (?:torch|softgen\.torch)", text, re.MULTILINE):
                current = "torch"
            elif "import cupy" in text:
                current = "cupy"
            if current == library:
                found.append(text)
    return found


def how(page: str, reason: str, language: str, text: str) -> str:
    """Return how a block is run, "" where it is not."""
    if reason:
        return "marked"
    if language in ("text", "{toctree}"):
        return "no code"
    if page in ELSEWHERE or (page, language) in IN_PART:
        return "by the page's own test"
    if language == "sh" and all(line.startswith("softgen ") for line in text.splitlines()):
        return "commands"
    if language == "cuda" and page in EXCERPTS:
        return "excerpts, compared"
    if language == "python" and page in TORCH and text in programs(page, "torch"):
        return "PyTorch on the CPU" if page in SMALL else "PyTorch on a GPU"
    if language == "python" and page in CUPY and text in programs(page, "cupy"):
        return "CuPy on a GPU"
    return ""


def tally() -> str:
    """Return how many blocks of code are run, and how."""
    every = [how(page, *block) for page in PAGES for block in blocks(page)]
    ways = Counter(way for way in every if way != "no code")
    counts = ", ".join(f"{count} {way}" for way, count in ways.items())
    return f"blocks: {ways.total() - ways['marked']} of {ways.total()} of docs/ are run: {counts}"


def test_every_block_is_run_or_says_why() -> None:
    for page in PAGES:
        text = (DOCS / f"{page}.md").read_text()
        assert len(FENCE.findall(text)) == len(blocks(page)), f"{page}: a block has no language"
        for reason, language, body in blocks(page):
            way = how(page, reason, language, body)
            assert way, f"{page}.md: nothing runs this block, and it does not say why:\n{body}"


def test_what_others_run_is_there() -> None:
    for page, test in [*ELSEWHERE.items(), *((p, t) for (p, _), t in IN_PART.items())]:
        assert page in (ROOT / "tests" / test).read_text(), (page, test)


@pytest.mark.parametrize("page", PAGES)
def test_python_is_python(page: str) -> None:
    for _, language, text in blocks(page):
        if language == "python":
            ast.parse(text)


COMMANDS = [
    pytest.param(line, id=f"{page}-{number}")
    for page in PAGES
    for reason, language, text in blocks(page)
    if how(page, reason, language, text) == "commands"
    for number, line in enumerate(text.splitlines())
]


@pytest.mark.usefixtures("host_built")
@pytest.mark.parametrize("line", COMMANDS)
def test_commands_succeed(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    ok(*words, *(["--device", "cpu"] if words[0] == "run" else []))


MEASURED = sorted(
    {
        line
        for page in PAGES
        for reason, language, text in blocks(page)
        if reason and language == "sh"
        for line in text.splitlines()
        if line.startswith(("softgen bench", "softgen tune")) and "--ray" not in line
    }
)


@pytest.mark.parametrize("line", MEASURED)
def test_commands_that_measure_are_taken_as_written(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To where they ask for a GPU."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("softgen.devices.gpu.device.unavailable_reason", lambda: "a test")
    monkeypatch.chdir(tmp_path)
    Path("shapes.txt").write_text("4096x1024\n")
    words = shlex.split(line, comments=True)[1:]
    assert "no GPU can be used: a test" in refused(group.NO_DEVICE, *words)


@pytest.mark.parametrize("page", EXCERPTS)
def test_excerpts_are_of_the_emitted_files(page: str) -> None:
    problem = Problem.of("softmax", "float32", 8192)
    texts = [render(Variant(problem, step(name, problem))).text for name in (*LADDER, *ARTICLES)]
    every = {" ".join(line.split()) for text in texts for line in text.splitlines()}
    for reason, language, excerpt in blocks(page):
        if language == "cuda" and not reason:
            lines = [" ".join(line.split()) for line in excerpt.splitlines() if "..." not in line]
            assert not {*lines} - every


def run(page: str, code: list[str]) -> None:
    names: dict[str, Any] = {}
    for text in [BEFORE.get(page, ""), *code]:
        exec(compile(text, f"docs/{page}.md", "exec"), names)


@pytest.mark.parametrize("page", SMALL)
def test_pytorch_runs_on_the_cpu(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from tests.helpers.torch_calls import on_cpu

    on_cpu(monkeypatch)
    monkeypatch.setitem(BEFORE, page, BEFORE.get(page, "").replace('"cuda"', '"cpu"'))
    run(page, [text.replace('"cuda"', '"cpu"') for text in programs(page, "torch")])


@pytest.mark.gpu
@pytest.mark.parametrize("page", TORCH)
def test_pytorch_runs_as_written(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    run(page, programs(page, "torch"))


@pytest.mark.gpu
@pytest.mark.parametrize("page", CUPY)
def test_cupy_runs_as_written(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_TUNE", "off")
    run(page, programs(page, "cupy"))
