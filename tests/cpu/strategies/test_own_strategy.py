"""A strategy of one's own that fails: the message names its line, and all else still works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from softgen.errors import PluginError, StrategyError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant, candidates
from tests.helpers.cli_helpers import break_line, copy_package
from tests.helpers.plugin import install, python

CHAIN = (
    "import traceback\n"
    "from softgen import generate\n"
    "try:\n"
    "    generate('softmax', 'float32', 1000, variant='thread')\n"
    "except Exception:\n"
    "    print(traceback.format_exc())\n"
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return an installed copy of the package of examples/plugin."""
    return install(tmp_path / "site")


MODULE_FAULTS = [
    ("return 3.0  # expected time", "return 3 / 0  #", "ZeroDivisionError: division by zero"),
    ("yield cls(block_size=128)", "yield cls(block=128)", "TypeError: .*'block'"),
    ("self.require(problem.cols", "self.require(problem.columns", "AttributeError: .*'columns'"),
    ("return Launch(self.block_size", "return Launch(self.blok", "AttributeError: .*'blok'"),
]


@pytest.mark.parametrize(("line", "instead", "message"), MODULE_FAULTS)
def test_a_module_that_fails_is_named_by_line(
    line: str, instead: str, message: str, package: Path
) -> None:
    path = package / "thread.py"
    number = break_line(path, line, instead)
    listed = python(package, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 1
    assert "Traceback" not in listed.stderr
    assert re.search(rf"^error: {path}, line {number}: {message}", listed.stderr), listed.stderr
    other = python(package, "-m", "softgen", "show", "softmax_f32_1000_safe_b256")
    assert other.returncode == 0, other.stderr


@pytest.mark.parametrize(
    ("instead", "told"),
    [("pass", "None"), ("return '3'", "'3'"), ("return float('nan')", "nan")],
)
def test_an_estimate_that_is_no_number_is_told(instead: str, told: str, package: Path) -> None:
    break_line(package / "thread.py", "return 3.0", instead)
    listed = python(package, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 1
    message = f"error: strategy thread: estimate() must return a number, got {told}"
    assert message in listed.stderr, listed.stderr


TEMPLATE_FAULTS = [
    ("/*% block kernel %*/", "/*% blok kernel %*/", "TemplateSyntaxError: .*'blok'"),
    ("row < rows;", "row < ${ problem.rows };", "UndefinedError: .*'rows'"),
    ("row < rows;", "row < ${ none };", "SoftgenError: a template tried to print None"),
    ("lib/element/math.cuh.j2", "lib/element/maths.cuh.j2", "TemplateNotFound: .*maths"),
    ("row < rows;", "row < ${ 1 // 0 };", "ZeroDivisionError"),
]


@pytest.mark.parametrize(("line", "instead", "message"), TEMPLATE_FAULTS)
def test_a_template_that_fails_is_named_by_line(
    line: str, instead: str, message: str, package: Path
) -> None:
    path = package / "templates" / "strategies" / "thread.cu.j2"
    number = break_line(path, line, instead)
    shown = python(package, "-m", "softgen", "show", "--cols", "1000", "--variant", "thread")
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    assert re.search(rf"^error: {path}, line {number}: {message}", shown.stderr), shown.stderr
    chain = python(package, "-c", CHAIN).stdout
    assert f"{path}, line {number}: " in chain
    assert f'File "{path}", line {number}, in' in chain  # of the error that it is raised from
    assert "direct cause" in chain


def test_a_template_that_is_missing_is_asked_for(package: Path) -> None:
    (package / "templates" / "strategies" / "thread.cu.j2").unlink()
    shown = python(package, "-m", "softgen", "show", "--cols", "1000", "--variant", "thread")
    assert shown.returncode == 1
    path = package / "templates" / "strategies" / "thread.cu.j2"
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
    line: str, instead: str, message: str, package: Path
) -> None:
    path = package / "thread.py"
    number = break_line(path, line, instead)
    where = rf"{path}, line {number}: {message}"
    listed = python(package, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 0
    assert "softmax_f32_1000_safe_b256" in listed.stdout
    assert re.match(rf"warning: {where}.*\n.* candidates\n.*\n\Z", listed.stderr), listed.stderr
    named = python(package, "-m", "softgen", "list", "--variant", "thread")
    assert named.returncode == 1
    assert re.fullmatch(rf"error: {where}.*\n", named.stderr), named.stderr
    advice = re.search(r"`python -c '(.*?)'` shows the traceback", named.stderr)
    assert advice is not None
    told = python(package, "-c", advice[1]).stderr
    if not message.startswith("SystemExit"):  # of which Python prints none
        assert "Traceback" in told
        assert re.search(message, told.splitlines()[-1]), told
    assert "direct cause" in python(package, "-c", CHAIN).stdout


ADVICE = "`python -c 'import softgen_example.thread'` shows the traceback; the others work"


def test_a_field_that_is_no_knob_is_left_out(package: Path) -> None:
    path = package / "thread.py"
    break_line(path, 'block_size: int = knob("b", "threads in a block")', "block_size: int = 128")
    said = (
        f"{path}, line {line_of_register(path)}: field block_size of Thread "
        f'is no knob(); write block_size: int = knob("b", "its meaning"); {ADVICE}'
    )
    listed = python(package, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 0, listed.stderr
    assert "softmax_f32_1000_safe_b256" in listed.stdout
    assert listed.stderr.startswith(f"warning: {said}\n")
    named = python(package, "-m", "softgen", "list", "--variant", "thread")
    assert named.returncode == 1
    assert named.stderr == f"error: {said}\n"
    raised = python(package, "-W", "error", "-c", CHAIN).stdout
    assert f"PluginWarning: {said}\n" in raised


def line_of_register(path: Path) -> int:
    lines = path.read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.startswith("register("))


@pytest.mark.parametrize(
    ("name", "objection"),
    [
        ("warp", "is called 'warp', and so is softgen.strategies.warp.Warp; give it another name"),
        ("safe", "is called 'safe', and so is softgen.strategies.safe.Safe; give it another name"),
        (
            "causal",
            "is called 'causal', and so is softgen.problems.hooks.ends.Causal; give it another",
        ),
        ("oneflow", "is called 'oneflow', which has a meaning; give it another name"),
        ("fixed", "is called 'fixed', which has a meaning; give it another name"),
    ],
)
def test_a_name_that_is_taken_is_left_out(name: str, objection: str, package: Path) -> None:
    path = package / "thread.py"
    path.write_text(path.read_text().replace('name = "thread"', f'name = "{name}"'))
    listed = python(package, "-m", "softgen", "list", "--cols", "1000", "--variant", "warp")
    assert listed.returncode == 0, listed.stderr
    assert "softmax_f32_1000_warp_p4_c32_g32" in listed.stdout
    where = f"{path}, line {line_of_register(path)}"
    assert f"warning: {where}: softgen_example.thread.Thread {objection}" in listed.stderr


def test_of_two_packages_with_one_name_the_second_is_left_out(package: Path) -> None:
    path = install(package.parent, package="softgen_zother") / "thread.py"
    listed = python(package, "-m", "softgen", "list", "--cols", "64", "--variant", "thread")
    assert listed.returncode == 0, listed.stderr
    assert "softmax_f32_64_thread_b128" in listed.stdout
    assert (
        f"warning: {path}, line {line_of_register(path)}: softgen_zother.thread.Thread is called "
        "'thread', and so is softgen_example.thread.Thread; give it another name"
    ) in listed.stderr


def test_a_candidate_that_its_own_check_refuses_is_told(package: Path) -> None:
    path = package / "thread.py"
    break_line(path, "if cls(block_size=128).is_legal(problem, arch):", "if True:")
    break_line(path, "yield cls(block_size=128)", "yield cls(block_size=100)")
    listed = python(package, "-m", "softgen", "list", "--cols", "1000")
    assert listed.returncode == 1
    assert listed.stderr == (
        "error: candidates() of strategy thread yields a setting that its check() refuses for "
        "softmax_f32_1000 on sm_90: thread_b100: block_size must be a multiple of 32 from 32 to "
        "1024; yield only what is_legal() accepts\n"
    )


@pytest.mark.usefixtures("host_built")
def test_text_that_does_not_compile_is_told_with_its_template(package: Path) -> None:
    path = package / "templates" / "strategies" / "thread.cu.j2"
    break_line(path, "row < rows;", "row < rowz;")
    words = ("-m", "softgen", "verify", "--device", "cpu", "--variant")
    failed = python(package, *words, "softmax_f32_1000_thread_b128")
    name = re.search(r"(softmax_f32_\w+)\.cu:\d+:\d+: error: .*rowz", failed.stdout)
    assert name is not None, failed.stdout
    assert (
        f"{name[1]}.cu is of strategy thread, template {path}; `softgen show {name[1]}` prints it"
    ) in failed.stdout
    shown = python(package, "-m", "softgen", "show", "softmax_f32_1000_thread_b128")
    assert "row < rowz;" in shown.stdout
    assert "NVRTC refused softmax_f32_1000_thread_b128 for sm_90" in shown.stderr
    assert f"is of strategy thread, template {path}" in shown.stderr


def test_a_bug_of_softgen_keeps_its_own_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    path = copy_package(tmp_path) / "softgen" / "strategies" / "block.py"
    path.write_text(path.read_text() + "\n1 / 0\n")
    words = [sys.executable, "-m", "softgen", "list"]
    failed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr


def test_errors_of_strategies_are_of_plugins_and_of_python() -> None:
    assert issubclass(StrategyError, PluginError)
    assert issubclass(PluginError, RuntimeError)
