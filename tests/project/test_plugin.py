"""examples/plugin: what it brings is found by its entry points, and works as softgen's own does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import softgen
from softgen import plugins
from softgen.errors import InvalidTypeError, InvalidValueError, PluginError
from softgen.problems.functions.logsumexp import LogSumExp
from softgen.source.store import source_of
from softgen.strategies.registry import added_strategies
from softgen.strategies.variants import Variant, parse_name
from tests.helpers.plugin import EXAMPLE, NAMES, ROOT, install, python

MODULES = EXAMPLE / "softgen_example"
PAGES = {"ceiling": "hook", "logmeanexp": "function", "thread": "strategy"}
TEMPLATES = {
    "ceiling": "hooks/ceiling.cuh.j2",
    "logmeanexp": "functions/logmeanexp.cuh.j2",
    "thread": "strategies/thread.cu.j2",
}


def page_of(kind: str) -> str:
    return (ROOT / "docs" / f"adding_a_{kind}.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_pages_show_the_files_of_the_example(name: str) -> None:
    page = page_of(PAGES[name])
    assert f"```python\n{(MODULES / f'{name}.py').read_text()}```" in page
    assert f"```cuda\n{(MODULES / 'templates' / TEMPLATES[name]).read_text()}```" in page
    assert f"softgen_example/{name}.py" in page
    assert f"softgen_example/templates/{TEMPLATES[name]}" in page


def test_the_page_shows_the_entry_points() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert shown in (EXAMPLE / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package as pip installs it into a folder, with its templates."""
    folder = tmp_path_factory.mktemp("site")
    words = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    ran = subprocess.run(
        [sys.executable, *words, folder, EXAMPLE], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return folder / "softgen_example"


def softgen_of(package: Path, *words: object) -> str:
    ran = python(package, "-m", "softgen", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "warning" not in ran.stderr
    return ran.stdout


@pytest.mark.usefixtures("host_built")
def test_doctor_names_what_packages_bring(site: Path) -> None:
    made = python(site, "-m", "softgen", "doctor", "--json").stdout
    (found,) = (each for each in json.loads(made)["checks"] if each["name"] == "plugins")
    assert found["ok"]
    assert found["detail"] == (
        "hook ceiling of softgen-example 0.1.0, function logmeanexp of softgen-example 0.1.0, "
        "strategy thread of softgen-example 0.1.0"
    )


@pytest.mark.usefixtures("host_built")
def test_doctor_names_what_is_left_out(tmp_path: Path) -> None:
    package = install(tmp_path)
    (package / "ceiling.py").write_text("1 / 0\n")
    ran = python(package, "-m", "softgen", "doctor", "--json")
    assert ran.returncode == 1
    (found,) = (each for each in json.loads(ran.stdout)["checks"] if each["name"] == "plugins")
    assert found["wrong"]
    where = f"{package / 'ceiling.py'}, line 1: ZeroDivisionError: division by zero"
    assert found["detail"].startswith(f"softgen-example 0.1.0: {where}")


@pytest.mark.usefixtures("host_built")
def test_its_function_its_hook_and_its_strategy_are_emitted_run_and_verified(site: Path) -> None:
    names = (
        *("logmeanexp_f32_300_safe_b128", "softmax_f32_300_ceiling_safe_b128"),
        *("softmax_f32_64_thread_b128", "logmeanexp_f32_64_thread_b128"),
    )
    for name in names:
        text = softgen_of(site, "emit", "--variant", name, "--stdout")
        assert text.startswith(f"// {name}\n")
        assert softgen_of(site, "show", name).startswith(f"// {name}\n")
    words = ("run", "--function", "logmeanexp", "--rows", 3, "--cols", 64, "--device", "cpu")
    assert "the bound is" in softgen_of(site, *words)
    assert "logmeanexp_f32_64_thread_b128" in softgen_of(site, *words, "--variant", "thread")
    variants = [word for name in names for word in ("--variant", name)]
    assert "4 checked, 0 failed" in softgen_of(site, "verify", "--device", "cpu", *variants)
    listed = softgen_of(site, "verify", "--list", "--variant", "safe", "--dtype", "float16")
    assert re.search(r"^softmax_f16_\d+_ceiling_safe_", listed, re.MULTILINE)
    assert "logmeanexp" in softgen_of(site, "functions")


@pytest.mark.usefixtures("host_built")
def test_the_commands_of_the_page_of_hooks(site: Path) -> None:
    (commands,) = re.findall(r"```sh\n(softgen .*?)```", page_of("hook"), re.DOTALL)
    emitted, verified = (softgen_of(site, *line.split()[1:]) for line in commands.splitlines())
    assert "state.ceiling = ceiling;" in emitted
    assert "1 checked, 0 failed" in verified


BROKEN_HOOK = [
    ("placed = False", "placed = property(lambda self: 1 / 0)", "ZeroDivisionError"),
    (
        'name = "ceiling"',
        'name = "scale"',
        "is called 'scale', and so is softgen.problems.hooks.scale",
    ),
    ('name = "ceiling"', 'name = "fixed"', "is called 'fixed', which has a meaning"),
    ('name = "ceiling"', 'name = "my_ceiling"', "'my_ceiling' is no name of a hook"),
    ("return (0.5,)", "return (0.5, 1)", "must return a value for each of its operands"),
]


@pytest.mark.parametrize(("line", "instead", "message"), BROKEN_HOOK)
def test_a_broken_hook_is_named_and_left_out(
    line: str, instead: str, message: str, tmp_path: Path
) -> None:
    package = install(tmp_path)
    path = package / "ceiling.py"
    assert line in path.read_text()
    path.write_text(path.read_text().replace(line, instead))
    shown = python(package, "-m", "softgen", "show", "--function", "logmeanexp", "--cols", 8)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.startswith(f"warning: {path}, line ")
    assert message in shown.stderr
    program = "import softgen; softgen.generate('softmax', 'float32', 8, hooks=['ceiling'])"
    failed = python(package, "-W", "ignore", "-c", program).stderr.splitlines()[-1]
    assert failed.startswith(f"softgen.errors.PluginError: {path}, line ")
    assert message in failed


def test_a_template_that_a_hook_lacks_is_asked_for(tmp_path: Path) -> None:
    package = install(tmp_path)
    path = package / "templates" / "hooks" / "ceiling.cuh.j2"
    path.unlink()
    shown = python(package, "-m", "softgen", "show", "softmax_f32_8_ceiling_safe_b128")
    assert shown.stderr == f"error: hook ceiling has no template; write {path}\n"


def test_a_kept_text_of_ones_own_goes_with_its_files(tmp_path: Path) -> None:
    package = install(tmp_path)
    program = (
        "from softgen.source.store import source_of\n"
        "from softgen.strategies.variants import parse_name\n"
        "import sys\n"
        "text = source_of(parse_name('softmax_f32_8_ceiling_safe_b128')).text\n"
        "print('jinja2' in sys.modules, 'min(values' in text)"
    )
    assert python(package, "-c", program).stdout == "True False\n"
    assert python(package, "-c", program).stdout == "False False\n"
    path = package / "templates" / "hooks" / "ceiling.cuh.j2"
    text = path.read_text()
    edited = text.replace("values[i] > ceiling ? ceiling : values[i]", "min(values[i], ceiling)")
    assert edited != text
    path.write_text(edited)
    assert python(package, "-c", program).stdout == "True True\n"
    assert python(package, "-c", program).stdout == "False True\n"


@pytest.fixture
def nothing_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test add what it wants, which nobody else sees."""
    monkeypatch.setattr(plugins, "_added", [])


class Mine(LogSumExp):
    name = "mine"


class Same(LogSumExp):
    name = "logsumexp"


@pytest.mark.usefixtures("nothing_added")
def test_what_a_program_registers_is_found_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "functions"
    folder.mkdir()
    template = folder / "mine.cuh.j2"
    template.write_text('/*% include "functions/logsumexp.cuh.j2" %*/\n')
    softgen.register(Mine(), templates=tmp_path)
    assert "lse[row]" in softgen.generate("mine", "float32", 8).text
    assert source_of(parse_name("mine_f32_8_safe_b128")).text
    softgen.register(Mine(), templates=tmp_path)  # a cell of a notebook that runs again
    assert list(plugins.added("function")) == ["mine"]
    with pytest.raises(PluginError, match=r"called 'logsumexp', and so is softgen\.problems"):
        softgen.register(Same(), templates=tmp_path)
    with pytest.raises(InvalidTypeError, match=r"register\(\) takes functions and hooks"):
        softgen.register(Mine, templates=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="templates must be a folder"):
        softgen.register(Mine(), templates=tmp_path / "none")


@pytest.mark.usefixtures("nothing_added")
def test_a_strategy_that_is_added_or_edited_lets_all_choices_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert added_strategies() == ""
    package = install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("softgen_example.thread")
    try:
        seen = {added_strategies()}
        for path in (package / "thread.py", package / "templates" / "strategies" / "thread.cu.j2"):
            path.write_text(path.read_text() + "\n")
            seen.add(added_strategies())
        assert len(seen) == 3
        assert all(re.fullmatch("[0-9a-f]{16}", each) for each in seen)
    finally:
        for name in [name for name in sys.modules if name.startswith("softgen_example")]:
            del sys.modules[name]


@pytest.mark.usefixtures("nothing_added")
def test_a_function_that_nobody_registered_has_softgens_templates() -> None:
    class Nameless(LogSumExp):
        name = "nameless"
        template = "logsumexp"

    problem = softgen.Problem.of(Nameless(), "float32", 8)
    safe = parse_name("logsumexp_f32_8_safe_b128").strategy
    assert "lse[row]" in source_of(Variant(problem, safe)).text
