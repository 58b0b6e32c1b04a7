"""A function of one's own that is broken: one warning names its line, and all else still works."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from softgen.errors import FunctionError, PluginError
from softgen.problems.functions.logsumexp import LogSumExp
from softgen.problems.parts import Part
from softgen.strategies.own import register
from tests.helpers.cli_helpers import break_line, copy_package
from tests.helpers.plugin import install, python

SHIPPED_KERNEL = "softmax_f32_8_safe_b256"
OWN_KERNEL = "logmeanexp_f32_8_safe_b256"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return an installed copy of the package of examples/plugin."""
    return install(tmp_path / "site")


def softgen(package: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return python(package, "-m", "softgen", *words)


REGISTER = 'register(LogMeanExp(), templates=Path(__file__).parent / "templates")'
MODULE_FAULTS = [
    ("from softgen.problems.dtypes", "from softgen.problems.types", "ModuleNotFoundError: .*types"),
    (REGISTER, "raise SystemExit(7)", "SystemExit: 7"),
    (REGISTER, "raise SystemExit", "SystemExit;"),
    (REGISTER, REGISTER[:-1], "SyntaxError"),
    (REGISTER, "register(1 / 0)", "ZeroDivisionError"),
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
    line: str, instead: str, message: str, package: Path, tmp_path: Path
) -> None:
    path = package / "logmeanexp.py"
    number = break_line(path, line, instead)
    if "abstract" in message:  # it is found where the class is used
        number = path.read_text().splitlines().index(REGISTER) + 1
    where = rf"{re.escape(str(path))}, line {number}: {message}"
    listed = softgen(package, "functions", "--json")
    assert listed.returncode == 0, listed.stderr
    names = [each["name"] for each in json.loads(listed.stdout)]
    assert "softmax" in names
    assert "logmeanexp" not in names
    assert re.fullmatch(rf"warning: {where}.*; the others work\n", listed.stderr), listed.stderr
    emitted = softgen(package, "emit", "--variant", SHIPPED_KERNEL, "--out", tmp_path)
    assert emitted.returncode == 0, emitted.stderr
    assert emitted.stderr.count("warning: ") == 1
    named = softgen(package, "show", "--function", "logmeanexp", "--cols", 8)
    assert named.returncode in (1, 2)
    assert re.search(rf"{where}", named.stderr.replace("\n", " ")), named.stderr
    assert "Traceback" not in listed.stderr + emitted.stderr + named.stderr
    advice = re.search(r"`python -c '(.*?)'` shows the traceback", listed.stderr)
    assert advice is not None
    told = python(package, "-c", advice[1])
    assert "Traceback" in told.stderr or "SystemExit" in message


PART = Part("own", "Own", "LongOwn", "part", "parts", members=("m", "d"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "max_sum"}, "which is softgen's"),
        ({"fill": 0.0}, "so it must be a number"),
        (
            {"members": ("m", "d", "s")},
            r"totals=\('total',\); .* behind the first, as in totals=\('total', 's_total'\)$",
        ),
        ({"totals": ("total", "dot_total")}, r"members=\('m', 'd'\) .* totals=\('total',\)$"),
    ],
)
def test_a_part_that_cannot_be_used(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    class Own(LogSumExp):
        name = "own"
        part = replace(PART, **changes)

    with pytest.raises(PluginError, match=message):
        register(Own(), templates=tmp_path)


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
    line: str, instead: str, message: str, package: Path
) -> None:
    path = package / "logmeanexp.py"
    number = break_line(path, line, instead)
    words = ("run", "--function", "logmeanexp", "--rows", 2, "--cols", 8, "--device", "cpu")
    ended = softgen(package, *words)
    assert ended.returncode == 1
    where = message if "function" in message else f"{path}, line {number}: {message}"
    assert where in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


@pytest.mark.usefixtures("host_built")
def test_a_broken_module_leaves_verification_alone(package: Path) -> None:
    break_line(package / "logmeanexp.py", REGISTER, "1 / 0")
    words = ("verify", "--device", "cpu", "--json", "--variant", SHIPPED_KERNEL)
    verified = softgen(package, *words)
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["checked"] == 1
    assert verified.stderr.count("ZeroDivisionError") == 1
    listed = softgen(package, "verify", "--list", "--variant", "safe", "--dtype", "float16")
    assert listed.returncode == 0
    assert "softmax_f16_7_safe_b256" in listed.stdout


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("7", "InvalidTypeError: register() takes functions and hooks, as in"),
        ("LogMeanExp", "InvalidTypeError: register() takes functions and hooks, as in"),
        ("LogMeanExp(), LogMeanExp()", "is called 'logmeanexp', and so is"),
    ],
)
def test_what_is_no_function_is_left_out(added: str, message: str, package: Path) -> None:
    path = package / "logmeanexp.py"
    number = break_line(path, "register(LogMeanExp()", f"register({added}")
    listed = softgen(package, "functions")
    assert listed.returncode == 0
    assert listed.stderr.startswith(f"warning: {path}, line {number}: ")
    assert message in listed.stderr


@pytest.mark.parametrize("name", ["softmax_lse", "Log-mean"])
def test_a_name_that_cannot_be_is_left_out(name: str, package: Path) -> None:
    path = package / "logmeanexp.py"
    break_line(path, 'name = "logmeanexp"', f'name = "{name}"')
    listed = softgen(package, "functions", "--json")
    assert listed.returncode == 0
    formulas = {each["name"]: each["formula"] for each in json.loads(listed.stdout)}
    assert "lme" not in formulas["softmax_lse"]
    assert name == "softmax_lse" or name not in formulas
    assert listed.stderr.startswith(f"warning: {path}, line ")
    assert repr(name) in listed.stderr
    shown = softgen(package, "show", "--function", "softmax_lse", "--cols", 8)
    assert shown.returncode == 0, shown.stderr
    assert "log(mean(exp(x)))" not in shown.stdout


def test_ctrl_c_in_a_module_is_ctrl_c(package: Path) -> None:
    path = package / "logmeanexp.py"
    break_line(path, REGISTER, "raise KeyboardInterrupt")
    program = "from softgen.problems.functions import all_functions; all_functions()"
    ended = python(package, "-c", program)
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
    line: str, instead: str, message: str, package: Path
) -> None:
    path = package / "templates/functions/logmeanexp.cuh.j2"
    number = break_line(path, line, instead)
    shown = softgen(package, "show", OWN_KERNEL)
    assert shown.returncode == 1
    assert re.fullmatch(
        rf"error: {re.escape(str(path))}, line {number}: {message}.*\n", shown.stderr
    ), shown.stderr


def test_a_template_that_is_missing_is_asked_for(package: Path) -> None:
    path = package / "templates/functions/logmeanexp.cuh.j2"
    path.unlink()
    shown = softgen(package, "show", OWN_KERNEL)
    assert shown.returncode == 1
    assert shown.stderr == f"error: function logmeanexp has no template; write {path}\n"


@pytest.mark.usefixtures("host_built")
@pytest.mark.parametrize(
    ("file", "line", "instead", "message"),
    [
        ("templates/functions/logmeanexp.cuh.j2", "lme[row]", "${ 1 // 0 }", "ZeroDivisionError"),
        ("templates/functions/logmeanexp.cuh.j2", "lme[row]", "lmm[row]", "lmm"),
        ("logmeanexp.py", "(x,) = inputs", "(x, y) = inputs", "ValueError"),
        ("logmeanexp.py", "(x,) = inputs", "exit(1)", "SystemExit: 1"),
    ],
)
def test_verify_reports_what_fails_and_goes_on(
    file: str, line: str, instead: str, message: str, package: Path
) -> None:
    number = break_line(package / file, line, instead)
    words = ("verify", "--device", "cpu", "--variant", SHIPPED_KERNEL, "--variant", OWN_KERNEL)
    told = softgen(package, *words)
    assert told.returncode == 4, told.stderr
    assert "2 checked, 1 failed" in told.stdout
    assert "Traceback" not in told.stderr
    assert OWN_KERNEL in told.stdout
    assert message in told.stdout
    if message != "lmm":
        assert f"{package / file}, line {number}: {message}" in told.stdout
    made = json.loads(softgen(package, *words, "--json").stdout)
    assert made["failures"] == [OWN_KERNEL]


def test_a_bug_of_softgen_keeps_its_own_error(tmp_path: Path) -> None:
    path = copy_package(tmp_path) / "softgen/problems/functions/merge.py"
    path.write_text(path.read_text() + "\n1 / 0\n")
    words = [sys.executable, "-m", "softgen", "functions"]
    failed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr
    assert "ZeroDivisionError" in failed.stderr


def test_errors_of_functions_are_of_plugins_and_of_python() -> None:
    assert issubclass(FunctionError, PluginError)
    assert issubclass(PluginError, RuntimeError)
