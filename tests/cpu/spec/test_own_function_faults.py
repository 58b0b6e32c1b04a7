"""A function of one's own that is broken: one warning names its line, and all else still works."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from softgen.errors import FunctionError
from softgen.spec.functions import SHIPPED
from tests.helpers.cli_helpers import break_line, copy_package

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = dict(BLOCK.findall((ROOT / "docs/adding_a_function.md").read_text()))
SHIPPED_KERNEL = "softmax_f32_8_safe_b256"
OWN_KERNEL = "logmeanexp_f32_8_safe_b256"


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_package(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def checkout(copied: Path) -> Path:
    """Return a copy of the package with the function of docs/adding_a_function.md."""
    (copied / "softgen/spec/functions/logmeanexp.py").write_text(BLOCKS["python"])
    (copied / "templates/functions/logmeanexp.cuh.j2").write_text(BLOCKS["cuda"])
    return copied


def softgen(checkout: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "softgen", *map(str, words)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )


MODULE_FAULTS = [
    ("from softgen.spec.dtypes", "from softgen.spec.types", "ModuleNotFoundError: .*types"),
    ("FUNCTIONS = (LogMeanExp(),)", "raise SystemExit(7)", "SystemExit: 7"),
    ("FUNCTIONS = (LogMeanExp(),)", "raise SystemExit", "SystemExit;"),
    ("FUNCTIONS = (LogMeanExp(),)", "FUNCTIONS = (LogMeanExp(),", "SyntaxError"),
    ("FUNCTIONS = (LogMeanExp(),)", "FUNCTIONS = 1 / 0", "ZeroDivisionError"),
    ('formula = "lme', "formula = property(lambda self: self / 2)  #", "TypeError"),
    ('name = "log', "name = property(lambda self: self.title)  #", "AttributeError: .*'title'"),
    ('row_result("lme", out_dtype, "Y", Measure.LOGARITHM)', "x", "NameError: .*'x'"),
    (  # of pairs of types alone
        'row_result("lme", out_dtype, "Y", Measure.LOGARITHM)',
        'row_result("lme", {dtype: dtype}[out_dtype], "Y", Measure.LOGARITHM)',
        "KeyError",
    ),
    ("def operands(self, dtype", "def operand(self, dtype", "TypeError: .*abstract"),
    (
        "keeps_infinity = True",
        "keeps_infinity = property(lambda self: (_ for _ in ()).throw(SystemExit(1)))",
        "SystemExit: 1",
    ),
]


@pytest.mark.parametrize(("line", "instead", "message"), MODULE_FAULTS)
def test_a_broken_module_is_left_out(
    line: str, instead: str, message: str, checkout: Path, tmp_path: Path
) -> None:
    path = checkout / "softgen/spec/functions/logmeanexp.py"
    in_use = line.startswith(
        ("name", "formula", "keeps", "row_result")
    )  # the module itself can be imported
    number = break_line(path, line, instead)
    if "abstract" in message:  # it is found where the class is used
        number = BLOCKS["python"].splitlines().index("FUNCTIONS = (LogMeanExp(),)") + 1
    where = rf"{re.escape(str(path))}, line {number}: {message}"
    listed = softgen(checkout, "functions", "--json")
    assert listed.returncode == 0, listed.stderr
    names = [each["name"] for each in json.loads(listed.stdout)]
    assert "softmax" in names
    assert "logmeanexp" not in names
    assert re.fullmatch(rf"warning: {where}.*; the others work\n", listed.stderr), listed.stderr
    emitted = softgen(checkout, "emit", "--variant", SHIPPED_KERNEL, "--out", tmp_path)
    assert emitted.returncode == 0, emitted.stderr
    assert emitted.stderr.count("warning: ") == 1
    named = softgen(checkout, "show", "--function", "logmeanexp", "--cols", 8)
    assert named.returncode in (1, 2)
    assert re.search(rf"{where}", named.stderr.replace("\n", " ")), named.stderr
    assert "Traceback" not in listed.stderr + emitted.stderr + named.stderr
    advice = re.search(r"`python -c '(.*?)'` shows the traceback", listed.stderr)
    if advice is not None:
        words = [sys.executable, "-c", advice[1]]
        told = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
        assert "Traceback" in told.stderr or "SystemExit" in message
    assert (advice is not None) == (not in_use), listed.stderr


def test_a_function_of_many_names_that_raises_is_told(checkout: Path) -> None:
    path = checkout / "softgen/spec/functions/logmeanexp.py"
    path.write_text(path.read_text() + "\n\ndef function_of(name):\n    raise SystemExit(0)\n")
    named = softgen(checkout, "show", "--function", "logmeanexp_x", "--cols", 8)
    assert named.returncode == 1
    where = f"{path}, line {len(path.read_text().splitlines())}: SystemExit: 0"
    assert where in " ".join(named.stderr.split())
    assert softgen(checkout, "show", "--function", "logmeanexp", "--cols", 8).returncode == 0


@pytest.mark.usefixtures("host_built")
@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("(x,) = inputs", "(x, z) = inputs", "ValueError: not enough values"),
        ("(x,) = inputs", "raise SystemExit(0)", "SystemExit: 0"),
        ("return (log_sum_exp(x)", "return 7, (log_sum_exp(x)", "function logmeanexp: IndexError"),
    ],
)
def test_run_names_the_line_of_a_broken_reference(
    line: str, instead: str, message: str, checkout: Path
) -> None:
    path = checkout / "softgen/spec/functions/logmeanexp.py"
    number = break_line(path, line, instead)
    words = ("run", "--function", "logmeanexp", "--rows", 2, "--cols", 8, "--device", "cpu")
    ended = softgen(checkout, *words)
    assert ended.returncode == 1
    where = message if "function" in message else f"{path}, line {number}: {message}"
    assert where in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


@pytest.mark.usefixtures("host_built")
def test_a_broken_module_leaves_verification_alone(checkout: Path) -> None:
    break_line(
        checkout / "softgen/spec/functions/logmeanexp.py", "FUNCTIONS = (LogMeanExp(),)", "1 / 0"
    )
    words = ("verify", "--device", "cpu", "--json", "--variant", SHIPPED_KERNEL)
    verified = softgen(checkout, *words)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["checked"] == 1
    assert verified.stderr.count("ZeroDivisionError") == 1
    listed = softgen(checkout, "verify", "--list", "--variant", "safe", "--dtype", "float16")
    assert listed.returncode == 0
    assert "softmax_f16_7_safe_b256" in listed.stdout


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ("7", "FUNCTIONS must be a tuple of functions"),
        ("(LogMeanExp,)", "FUNCTIONS must be a tuple of functions"),
        ("(LogMeanExp(), LogMeanExp())", "two functions are called 'logmeanexp'"),
    ],
)
def test_what_is_no_list_of_functions_is_left_out(
    functions: str, message: str, checkout: Path
) -> None:
    path = checkout / "softgen/spec/functions/logmeanexp.py"
    break_line(path, "FUNCTIONS = (LogMeanExp(),)", f"FUNCTIONS = {functions}")
    listed = softgen(checkout, "functions")
    assert listed.returncode == 0
    assert re.match(rf"warning: {re.escape(str(path))}: {re.escape(message)}", listed.stderr)


@pytest.mark.parametrize("module", ["logmeanexp", "softmax_lse"])
@pytest.mark.parametrize("name", ["softmax_lse", "Log-mean"])
def test_a_name_that_cannot_be_is_left_out(module: str, name: str, checkout: Path) -> None:
    functions = checkout / "softgen/spec/functions"
    path = functions / f"{module}.py"
    (functions / "logmeanexp.py").rename(path)
    try:
        break_line(path, 'name = "logmeanexp"', f'name = "{name}"')
        listed = softgen(checkout, "functions", "--json")
        assert listed.returncode == 0
        formulas = {each["name"]: each["formula"] for each in json.loads(listed.stdout)}
        assert "lme" not in formulas["softmax_lse"]
        assert name == "softmax_lse" or name not in formulas
        assert listed.stderr.startswith(f"warning: {path}: ")
        assert repr(name) in listed.stderr
        shown = softgen(checkout, "show", "--function", "softmax_lse", "--cols", 8)
        assert shown.returncode == 0, shown.stderr
        assert "log(mean(exp(x)))" not in shown.stdout
    finally:
        path.unlink()


def test_ctrl_c_in_a_module_is_ctrl_c(checkout: Path) -> None:
    path = checkout / "softgen/spec/functions/logmeanexp.py"
    break_line(path, "FUNCTIONS = (LogMeanExp(),)", "raise KeyboardInterrupt")
    program = "from softgen.spec.functions import all_functions; all_functions()"
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, cwd=checkout, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.endswith("KeyboardInterrupt\n")


TEMPLATE_FAULTS = [
    ("lme[row] =", "/*% endif %*/ lme[row] =", "TemplateSyntaxError: .*'endif'"),
    ("lme[row] =", "lme[${ problem.rows }] =", "UndefinedError: .*'rows'"),
    ("functions/terms.cuh.j2", "functions/term.cuh.j2", "TemplateNotFound: .*term"),
    ("lme[row] =", "lme[${ 1 // 0 }] =", "ZeroDivisionError"),
]


@pytest.mark.parametrize(("line", "instead", "message"), TEMPLATE_FAULTS)
def test_a_template_that_fails_is_named_by_line(
    line: str, instead: str, message: str, checkout: Path
) -> None:
    path = checkout / "templates/functions/logmeanexp.cuh.j2"
    number = break_line(path, line, instead)
    shown = softgen(checkout, "show", OWN_KERNEL)
    assert shown.returncode == 1
    assert re.fullmatch(
        rf"error: {re.escape(str(path))}, line {number}: {message}.*\n", shown.stderr
    ), shown.stderr


def test_a_template_that_is_missing_is_asked_for(checkout: Path) -> None:
    path = checkout / "templates/functions/logmeanexp.cuh.j2"
    path.unlink()
    shown = softgen(checkout, "show", OWN_KERNEL)
    assert shown.returncode == 1
    assert shown.stderr == f"error: function logmeanexp has no template; write {path}\n"


@pytest.mark.usefixtures("host_built")
@pytest.mark.parametrize(
    ("file", "line", "instead", "message"),
    [
        ("templates/functions/logmeanexp.cuh.j2", "lme[row]", "${ 1 // 0 }", "ZeroDivisionError"),
        ("templates/functions/logmeanexp.cuh.j2", "lme[row]", "lmm[row]", "lmm"),
        ("softgen/spec/functions/logmeanexp.py", "(x,) = inputs", "(x, y) = inputs", "ValueError"),
        ("softgen/spec/functions/logmeanexp.py", "(x,) = inputs", "exit(1)", "SystemExit: 1"),
    ],
)
def test_verify_reports_what_fails_and_goes_on(
    file: str, line: str, instead: str, message: str, checkout: Path
) -> None:
    number = break_line(checkout / file, line, instead)
    words = ("verify", "--device", "cpu", "--variant", SHIPPED_KERNEL, "--variant", OWN_KERNEL)
    told = softgen(checkout, *words)
    assert told.returncode == 4, told.stderr
    assert "2 checked, 1 failed" in told.stdout
    assert "Traceback" not in told.stderr
    assert OWN_KERNEL in told.stdout
    assert message in told.stdout
    if message != "lmm":
        assert f"{checkout / file}, line {number}: {message}" in told.stdout
    made = json.loads(softgen(checkout, *words, "--json").stdout)
    assert made["failures"] == [OWN_KERNEL]


def test_a_bug_of_softgen_keeps_its_own_error(tmp_path: Path) -> None:
    checkout = copy_package(tmp_path)
    path = checkout / "softgen/spec/functions/merge.py"
    path.write_text(path.read_text() + "\n1 / 0\n")
    failed = softgen(checkout, "functions")
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr


def test_the_modules_that_come_with_softgen_are_known() -> None:
    there = {path.stem for path in (ROOT / "softgen/spec/functions").glob("*.py")}
    assert there - {"__init__"} == SHIPPED
    assert issubclass(FunctionError, RuntimeError)
