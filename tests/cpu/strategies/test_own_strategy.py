"""A strategy of one's own that fails: the message names its line, and all else still works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from softgen.errors import StrategyError
from softgen.spec.arch import arch_named
from softgen.spec.problem import Problem
from softgen.strategies.faults import SHIPPED
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, candidates
from tests.helpers.cli_helpers import break_line, copy_package

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "adding_a_strategy.md").read_text())
MODULE = next(body for kind, body in BLOCKS if kind == "python" and "class Thread" in body)
TEMPLATE = next(body for kind, body in BLOCKS if kind == "cuda")
CHAIN = (
    "import traceback\n"
    "from softgen import generate\n"
    "try:\n"
    "    generate('softmax', 'float32', 1000, variant='thread')\n"
    "except Exception:\n"
    "    print(traceback.format_exc())\n"
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the package with the strategy of docs/adding_a_strategy.md."""
    copy_package(tmp_path)
    (tmp_path / "softgen" / "strategies" / "thread.py").write_text(MODULE)
    (tmp_path / "templates" / "strategies" / "thread.cu.j2").write_text(TEMPLATE)
    return tmp_path


def python(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=checkout, capture_output=True, text=True, check=False
    )


MODULE_FAULTS = [
    ("return 3.0  # expected time", "return 3 / 0  #", "ZeroDivisionError: division by zero"),
    ("yield cls(block_size=128)", "yield cls(block=128)", "TypeError: .*'block'"),
    ("self.require(problem.cols", "self.require(problem.columns", "AttributeError: .*'columns'"),
    ("return Launch(self.block_size", "return Launch(self.blok", "AttributeError: .*'blok'"),
]


@pytest.mark.parametrize(("line", "instead", "message"), MODULE_FAULTS)
def test_a_module_that_fails_is_named_by_line(
    line: str, instead: str, message: str, checkout: Path
) -> None:
    path = checkout / "softgen" / "strategies" / "thread.py"
    number = break_line(path, line, instead)
    listed = python(checkout, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 1
    assert "Traceback" not in listed.stderr
    assert re.search(rf"^error: {path}, line {number}: {message}", listed.stderr), listed.stderr
    other = python(checkout, "-m", "softgen", "show", "softmax_f32_1000_safe_b256")
    assert other.returncode == 0, other.stderr


TEMPLATE_FAULTS = [
    ("/*% block kernel %*/", "/*% blok kernel %*/", "TemplateSyntaxError: .*'blok'"),
    ("row < rows;", "row < ${ problem.rows };", "UndefinedError: .*'rows'"),
    ("row < rows;", "row < ${ none };", "SoftgenError: a template tried to print None"),
    ("lib/element/math.cuh.j2", "lib/element/maths.cuh.j2", "TemplateNotFound: .*maths"),
    ("row < rows;", "row < ${ 1 // 0 };", "ZeroDivisionError"),
]


@pytest.mark.parametrize(("line", "instead", "message"), TEMPLATE_FAULTS)
def test_a_template_that_fails_is_named_by_line(
    line: str, instead: str, message: str, checkout: Path
) -> None:
    path = checkout / "templates" / "strategies" / "thread.cu.j2"
    number = break_line(path, line, instead)
    shown = python(checkout, "-m", "softgen", "show", "--cols", "1000", "--variant", "thread")
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    assert re.search(rf"^error: {path}, line {number}: {message}", shown.stderr), shown.stderr
    chain = python(checkout, "-c", CHAIN).stdout
    assert f"{path}, line {number}: " in chain
    assert f'File "{path}", line {number}, in' in chain  # of the error that it is raised from
    assert "direct cause" in chain


def test_a_template_that_is_missing_is_asked_for(checkout: Path) -> None:
    (checkout / "templates" / "strategies" / "thread.cu.j2").unlink()
    shown = python(checkout, "-m", "softgen", "show", "--cols", "1000", "--variant", "thread")
    assert shown.returncode == 1
    path = checkout / "templates" / "strategies" / "thread.cu.j2"
    assert shown.stderr == f"error: strategy thread has no template; write {path}\n"


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        (
            "from softgen import Arch",
            "from softgen.archs import Arch",
            "ModuleNotFoundError: .*archs",
        ),
        ("def check(self", "def check(self,,", "SyntaxError"),
        ('name = "thread"', 'name = "thread" + 1', "TypeError"),
        ('"a row a thread, two passes"', "1 / 0", "ZeroDivisionError"),
        ("from softgen import Arch", "raise SystemExit(3) #", "SystemExit: 3"),
    ],
)
def test_what_cannot_be_imported_is_left_out(
    line: str, instead: str, message: str, checkout: Path
) -> None:
    path = checkout / "softgen" / "strategies" / "thread.py"
    number = break_line(path, line, instead)
    where = rf"{path}, line {number}: {message}"
    listed = python(checkout, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 0
    assert "softmax_f32_1000_safe_b256" in listed.stdout
    assert re.match(rf"warning: {where}.*\n.* candidates\n.*\n\Z", listed.stderr), listed.stderr
    named = python(checkout, "-m", "softgen", "list", "--variant", "thread")
    assert named.returncode == 1
    assert re.fullmatch(rf"error: {where}.*\n", named.stderr), named.stderr
    advice = re.search(r"`python -c '(.*?)'` shows the traceback", named.stderr)
    assert advice is not None
    told = python(checkout, "-c", advice[1]).stderr
    if not message.startswith("SystemExit"):  # of which Python prints none
        assert "Traceback" in told
        assert re.search(message, told.splitlines()[-1]), told
    assert "direct cause" in python(checkout, "-c", CHAIN).stdout


def test_a_field_that_is_no_knob_is_left_out(checkout: Path) -> None:
    path = checkout / "softgen" / "strategies" / "thread.py"
    break_line(path, 'block_size: int = knob("b", "threads in a block")', "block_size: int = 128")
    said = (
        f"{path}: field block_size of Thread is no knob(); write "
        'block_size: int = knob("b", "its meaning"); the others work'
    )
    listed = python(checkout, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 0, listed.stderr
    assert "softmax_f32_1000_safe_b256" in listed.stdout
    assert listed.stderr.startswith(f"warning: {said}\n")
    named = python(checkout, "-m", "softgen", "list", "--variant", "thread")
    assert named.returncode == 1
    assert named.stderr == f"error: {said}\n"
    with path.open("a") as file:
        file.write('\n\nclass Other(Thread):\n    name = "other"\n')
    listed = python(checkout, "-m", "softgen", "list", "--cols", "1000", "--json")
    assert listed.stderr == f"warning: {said}\n"
    raised = python(checkout, "-W", "error", "-c", CHAIN).stdout
    assert f"StrategyWarning: {said}\n" in raised


@pytest.mark.parametrize("module", ["mine", "zwarp"])
def test_a_name_that_is_taken_is_left_out(module: str, checkout: Path) -> None:
    strategies = checkout / "softgen" / "strategies"
    (strategies / "thread.py").rename(strategies / f"{module}.py")
    path = strategies / f"{module}.py"
    path.write_text(path.read_text().replace('name = "thread"', 'name = "warp"'))
    listed = python(checkout, "-m", "softgen", "list", "--cols", "1000", "--variant", "warp")
    assert listed.returncode == 0, listed.stderr
    assert "softmax_f32_1000_warp_p4_c32_g32" in listed.stdout
    assert (
        f"warning: {path}: Thread is called 'warp', and so is softgen.strategies.warp.Warp; "
        "give it another name; the others work"
    ) in listed.stderr


def test_a_candidate_that_its_own_check_refuses_is_told(checkout: Path) -> None:
    path = checkout / "softgen" / "strategies" / "thread.py"
    break_line(path, "if cls(block_size=128).is_legal(problem, arch):", "if True:")
    break_line(path, "yield cls(block_size=128)", "yield cls(block_size=100)")
    listed = python(checkout, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 1
    assert listed.stderr == (
        "error: candidates() of strategy thread yields a setting that its check() refuses for "
        "softmax_f32_1000 on sm_90: thread_b100: block_size must be a multiple of 32 from 32 to "
        "1024; yield only what is_legal() accepts\n"
    )


@pytest.mark.usefixtures("host_built")
def test_text_that_does_not_compile_is_told_with_its_template(checkout: Path) -> None:
    path = checkout / "templates" / "strategies" / "thread.cu.j2"
    break_line(path, "row < rows;", "row < rowz;")
    words = ("-m", "softgen", "verify", "--device", "cpu", "--variant")
    failed = python(checkout, *words, "softmax_f32_1000_thread_b128")
    name = re.search(r"(softmax_f32_\w+)\.cu:\d+:\d+: error: .*rowz", failed.stdout)
    assert name is not None, failed.stdout
    assert (
        f"{name[1]}.cu is of strategy thread, template {path}; `softgen show {name[1]}` prints it"
    ) in failed.stdout
    shown = python(checkout, "-m", "softgen", "show", "softmax_f32_1000_thread_b128")
    assert "row < rowz;" in shown.stdout
    assert "NVRTC refused softmax_f32_1000_thread_b128 for sm_90" in shown.stderr
    assert f"is of strategy thread, template {path}" in shown.stderr


def test_a_bug_of_softgen_keeps_its_own_error(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def use() -> None:
        problem, arch = Problem.of("softmax", "float32", 8), arch_named("sm_90")
        Variant(problem, Safe(256)).check(arch)
        list(candidates(problem, 8, arch))

    for part in ("check", "candidates", "estimate"):
        with monkeypatch.context() as patch:
            patch.setattr(Safe, part, broken)
            with pytest.raises(ZeroDivisionError, match="a bug"):
                use()
    path = checkout / "softgen" / "strategies" / "block.py"
    path.write_text(path.read_text() + "\n1 / 0\n")
    failed = python(checkout, "-m", "softgen", "list")
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr


def test_the_modules_that_come_with_softgen_are_known() -> None:
    strategies = ROOT / "softgen" / "strategies"
    there = {path.stem for path in strategies.rglob("*.py")} | {"lessons"}
    assert there >= SHIPPED
    assert issubclass(StrategyError, RuntimeError)
