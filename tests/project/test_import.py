"""What importing softgen costs, and that its public names are what they seem."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import softgen
from softgen.problems.layouts import Columns
from softgen.strategies.registry import COLUMNAR, all_strategies

HEAVY = ("cupy", "numpy", "jinja2", "typer", "rich", "torch")


def loaded_after(code: str) -> set[str]:
    """Return which of the heavy packages a fresh interpreter has loaded after `code`."""
    program = f"import sys\n{code}\nprint(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(ran.stdout.split()) & set(HEAVY)


def test_import_softgen_loads_nothing_heavy() -> None:
    assert loaded_after("import softgen") == set()


def test_problems_and_errors_load_nothing_heavy() -> None:
    code = "from softgen import Problem, DType, Arch, SoftgenError; dir(__import__('softgen'))"
    assert loaded_after(code) == set()


def test_generating_needs_jinja_and_no_cupy() -> None:
    code = "import softgen; softgen.generate('softmax', 'float16', 64)"
    assert loaded_after(code) & {"cupy", "torch", "numpy", "typer"} == set()


def test_the_command_line_loads_no_cupy_numpy_or_jinja() -> None:
    assert loaded_after("import softgen.cli") & {"cupy", "numpy", "jinja2", "torch"} == set()


def test_a_call_loads_no_jinja_before_it_emits() -> None:
    assert loaded_after("import softgen.call.api") & {"jinja2", "typer", "rich"} == set()


def test_generate_stays_a_function_whatever_is_imported_first() -> None:
    code = "import softgen.source.generate, softgen; assert callable(softgen.generate)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted(softgen.__all__))
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(softgen, name)
    assert name in dir(softgen)
    if name != "__version__":
        assert value.__name__ == name
        assert value.__doc__


def test_every_error_class_is_public() -> None:
    from softgen import errors

    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert classes <= set(softgen.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'softgen' has no attribute 'sotfmax'"):
        _ = softgen.sotfmax


def test_the_old_name_of_function_names_the_new_one() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Algorithm'; it is softgen\.Function"):
        _ = softgen.Algorithm
    assert not hasattr(softgen, "Algorithm")
    assert softgen.Function.of("logsumexp").name == "logsumexp"


KEEP = """
from softgen.source.store import source_of
from softgen.strategies.variants import parse_name
from softgen.tuning import cache
from softgen.tuning.entry import Entry, Key
variant = parse_name("softmax_f32_1024_block_p4_c8_g128_b128_m12")
source_of(variant)
cache.store(Entry(Key.of(variant.problem, 64, {"device": "a test"}), variant, ()))
"""

# What a first call does without a GPU: the choice from the cache, the text from the store.
FIRST_CALL = """
import sys
import softgen
softgen.softmax
from softgen.source.store import source_of
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.tuning import cache
from softgen.tuning.entry import Key
problem = Problem.of("softmax", "float32", 1024)
entry = cache.load(Key.of(problem, 64, {"device": "a test"}), arch_named("sm_90"))
assert source_of(entry.winner).text
print(*sys.modules)
"""


def test_a_cached_first_call_loads_its_own_function_and_strategy_only(own_cache: Path) -> None:
    for program in (KEEP, FIRST_CALL):
        ran = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    loaded = set(ran.stdout.split())
    folder = Path(softgen.__file__).parent
    for room in ("problems/functions", "problems/hooks", "strategies", "strategies/lessons"):
        package = f"softgen.{room.replace('/', '.')}"
        own = {name.removeprefix(f"{package}.") for name in loaded if name.startswith(package)}
        modules = {path.stem for path in (folder / room).glob("*.py")} & own
        assert modules <= {
            *("base", "exhibit", "softmax"),
            *("block", "choice", "sliced", "launch", "registers", "registry"),
            *("variants", "winners"),
        }, room
    spared = {"jinja2", "logging", "softgen.problems.numerics", "softgen.tuning.tune"}
    assert loaded & spared == set()


GUESS = """
import sys
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.strategies.variants import best_guess
best_guess(Problem.of("softmax", "float32", 1024), 64, arch_named("sm_90"))
print(*sys.modules)
"""


def test_a_guess_along_the_last_axis_loads_no_strategy_of_columns() -> None:
    ran = subprocess.run([sys.executable, "-c", GUESS], capture_output=True, text=True, check=True)
    of_columns = {kind.name for kind in all_strategies() if kind.layouts == (Columns,)}
    assert of_columns == COLUMNAR
    loaded = {name.rpartition(".")[2] for name in ran.stdout.split() if "strategies." in name}
    assert loaded >= {
        "tiles",
        "warp",
        "block",
        "cluster",
        "cooperative",
        "online",
        "safe",
        "shared",
    }
    lessons = {kind.name for kind in all_strategies() if not kind.tuned}
    assert loaded & (COLUMNAR | lessons) == set()


def test_one_function_is_found_without_the_others() -> None:
    program = (
        "import sys\n"
        "from softgen import Function\n"
        "assert Function.of('softmax_lse').name == 'softmax_lse'\n"
        "print(*(name for name in sys.modules if 'functions.' in name))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = {name.rpartition(".")[2] for name in ran.stdout.split()}
    assert modules == {"base", "exhibit", "softmax"}


@pytest.mark.parametrize(
    "name", ["soft", "softmax_", "base", "_", "", "../functions/softmax", "a.b"]
)
def test_a_name_like_a_functions_is_unknown(name: str) -> None:
    with pytest.raises(softgen.InvalidValueError, match=r"unknown function .* softgen knows: "):
        softgen.Function.of(name)


def test_packages_are_imported_as_names_are() -> None:
    code = "import softgen; assert callable(softgen.scipy.softmax); assert 'torch' in dir(softgen)"
    subprocess.run([sys.executable, "-c", code], check=True)
