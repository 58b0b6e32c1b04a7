"""softgen run on the CPU emulator: inputs, outputs, what is reported and what is refused."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from softgen.cli import group, output
from softgen.cli import run as run_module
from softgen.cli.run import Computed, compute
from softgen.disk.owned import sealed
from softgen.source.generate import generate
from tests.helpers.cli_helpers import cli, document, ok, refused, subprocess_cli
from tests.helpers.kept_builds import put_host

CPU = ("run", "--device", "cpu")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache folder for all tests here: each kernel is compiled once (a second each)."""
    folder = tmp_path_factory.mktemp("shared") / "cache"
    folder.mkdir(mode=0o700)
    put_host(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(shared: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache folder that the commands use."""
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(shared))
    return shared


def softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the softmax of the last axis in float64, by its definition."""
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis=-1, keepdims=True))
    result: NDArray[np.float64] = e / e.sum(axis=-1, keepdims=True)
    return result


def saved(path: Path, x: NDArray[Any]) -> Path:
    np.save(path, x)
    return path


def test_the_report_names_the_variant_and_its_source(cache: Path) -> None:
    report = document(ok(*CPU, "--rows", 6, "--cols", 1000, "--json"))
    source = generate("softmax", "float32", 1000, rows=6)
    assert report["variant"] == source.name
    assert report["strategy"] == source.variant.strategy.name
    assert report["parameters"] == source.variant.strategy.knobs
    assert report["device"] == "cpu emulator"
    assert report["source"] == str(cache / "sources" / f"{source.name}.cu")
    assert Path(report["source"]).read_bytes() == sealed(source.text.encode())
    assert 0 < report["max_relative_error"] <= report["bound"] <= 2e-6
    assert "microseconds" not in report


def test_people_get_the_same_in_lines() -> None:
    result = ok("run", "--device", "cpu", "--rows", 6, "--cols", 40, "--variant", "safe")
    assert "the emitted kernel runs on the CPU emulator" in result.stderr
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert lines["variant"] == "softmax_f32_40_safe_b256_pdl1"
    assert lines["parameters"] == "block_size=256 pdl=1"
    assert lines["source"].endswith("/cache/sources/softmax_f32_40_safe_b256_pdl1.cu")
    assert re.match(r"\S+e-0\d against float64, relative; the bound is 2e-06$", lines["error"])


def test_the_error_of_log_softmax_says_what_it_is_relative_to() -> None:
    words = ("run", "--device", "cpu", "--rows", 6, "--cols", 40, "--algorithm", "log_softmax")
    result = ok(*words).stdout
    assert " against float64, relative to 1 + |y|; the bound is 2e-06\n" in result
    assert "ulp (relative to 1 + |y| " in ok(*words, "--dtype", "float16").stdout


def test_an_error_that_grows_with_the_exponent_says_so(tmp_path: Path) -> None:
    """OneFlow's exponent puts some of these results off by three times 2e-6."""
    x = 3.7 - np.linspace(0, 69, 1000, dtype=np.float32)
    words = ("--input", saved(tmp_path / "x.npy", x), "--variant", "oneflow")
    said = ok(*CPU, *words).stdout
    assert re.search(
        r"e-0[67] against float64, relative to y \(1 \+ 0.045 \|x - max\|\); .* 2e-06", said
    )
    report = document(ok(*CPU, *words, "--out-dtype", "float16", "--json"))
    assert report["relative_to"] == ""


def test_integers_are_said_to_be_right() -> None:
    words = (*CPU, "--function", "ranked_log_probs_top20", "--rows", 3, "--cols", 40)
    assert ok(*words).stdout.endswith("2e-06; top_ids and ranks are those of float64\n")
    assert document(ok(*words, "--json"))["equal"] == ["top_ids", "ranks"]
    assert document(ok(*CPU, "--rows", 3, "--cols", 40, "--json"))["equal"] == []


def test_sixteen_bits_are_measured_in_steps_of_their_type() -> None:
    """A relative error of 0.004 beside a bound in another unit looked like a failure."""
    result = ok("run", "--device", "cpu", "--rows", 6, "--cols", 40, "--dtype", "bfloat16")
    lines = dict(line.split(None, 1) for line in result.stdout.splitlines())
    form = r"[01] ulp against float64; the bound is 1 ulp \(relative 0\.00\d+\)"
    assert re.fullmatch(form, lines["error"])


def test_without_a_gpu_auto_says_that_it_emulates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softgen.devices.gpu.device.available", lambda: False)
    result = ok("run", "--rows", 2, "--cols", 8, "--variant", "safe")
    assert "no GPU can be used: the emitted kernel runs on the CPU emulator" in result.stderr


@pytest.mark.parametrize(
    "words", [("--hook", "mask=3"), ("--variant", "wrap"), ("--operand", "y=3"), ("--inner", 7)]
)
def test_nothing_is_said_to_run_before_a_usage_error(words: tuple[str, object]) -> None:
    result = cli("run", "--device", "cpu", "--rows", 2, "--cols", 8, *words)
    assert result.exit_code == group.USAGE
    assert "runs on" not in result.stderr


def test_a_file_of_any_shape_goes_in_and_comes_out(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 1, 40)).astype(np.float32)
    target = tmp_path / "y.out"
    words = ("--input", saved(tmp_path / "x.npy", x), "--output", target, "--variant", "safe")
    report = document(ok(*CPU, *words, "--json"))
    assert (report["shape"], report["output"]) == ([2, 3, 1, 40], str(target))
    y = np.load(target)
    assert (y.dtype, y.shape) == (np.float32, x.shape)
    np.testing.assert_allclose(y, softmax(x), rtol=2e-6)


def test_log_softmax_and_a_wider_result(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 40)).astype(np.float16)
    target = tmp_path / "y.npy"
    words = ("--input", saved(tmp_path / "x.npy", x), "--output", target, "--variant", "safe")
    ok(*CPU, *words, "--algorithm", "log_softmax", "--out-dtype", "float32")
    y = np.load(target)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, np.log(softmax(x)), rtol=2e-6, atol=2e-6)


def test_bfloat16_is_read_from_float32_and_saved_as_float32(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 40)).astype(np.float32)
    target = tmp_path / "y.npy"
    words = ("--input", saved(tmp_path / "x.npy", x), "--output", target, "--variant", "safe")
    result = ok(*CPU, *words, "--dtype", "bfloat16")
    assert "bfloat16 saved as float32" in result.stdout
    y = np.load(target)
    assert y.dtype == np.float32
    assert not (y.view(np.uint32) & 0xFFFF).any()  # every value is a bfloat16
    np.testing.assert_allclose(y, softmax(x), rtol=0.03)


def test_eight_bits_are_saved_as_float32(tmp_path: Path, cache: Path) -> None:
    y = tmp_path / "y.npy"
    shape = ("--rows", 2, "--cols", 8, "--out-dtype", "float8_e4m3fn", "--variant", "safe")
    lines = ok(*CPU, *shape, "--output", y).stdout.splitlines()
    assert lines[-1] == f"result      y={y} (float8_e4m3fn saved as float32)"
    saved_as = np.load(y)
    assert saved_as.dtype == np.float32
    mantissa, _ = np.frexp(saved_as[saved_as >= 2.0**-6])
    assert (mantissa * 16 % 1 == 0).all()  # 4 significant bits
    np.testing.assert_allclose(saved_as.sum(axis=1), 1, rtol=0.1)


def test_each_file_that_is_written_is_told(tmp_path: Path, cache: Path) -> None:
    y, lse = tmp_path / "y.npy", tmp_path / "lse.npy"
    shape = ("--rows", 2, "--cols", 8, "--dtype", "bfloat16", "--variant", "safe")
    words = (*CPU, *shape, "--function", "softmax_lse", "--result", f"lse={lse}")
    lines = ok(*words, "--output", y).stdout.splitlines()
    assert lines[-2:] == [
        f"result      y={y} (bfloat16 saved as float32)",
        f"result      lse={lse}",  # a float32
    ]
    np.testing.assert_allclose(np.load(y).sum(axis=1), 1, rtol=0.02)
    y.unlink()
    alone = ok(*words)
    assert alone.stdout.splitlines()[-1] == f"result      lse={lse}"
    assert not y.exists()
    report = document(ok(*words, "--json"))
    assert report["files"] == {"lse": str(lse)}
    assert "output" not in report
    assert "widened" not in report


def test_the_kept_source_is_told_where_nothing_is_launched(cache: Path) -> None:
    lines = ok(*CPU, "--rows", 0, "--cols", 12, "--variant", "safe").stdout.splitlines()
    assert lines[1] == "no elements: nothing was launched"
    assert lines[2] == f"source      {cache}/sources/softmax_f32_12_safe_b256_pdl1.cu"
    assert (cache / "sources" / "softmax_f32_12_safe_b256_pdl1.cu").exists()


def test_the_seed_decides_the_random_input(tmp_path: Path) -> None:
    results = []
    for seed in (0, 0, 1):
        words = ("--rows", 2, "--cols", 8, "--variant", "safe", "--seed", seed)
        ok(*CPU, *words, "--output", tmp_path / "y.npy")
        results.append(np.load(tmp_path / "y.npy"))
    assert np.array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8), (4, 0), (0,)])
def test_inputs_without_elements_give_results_without(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path, target = saved(tmp_path / "x.npy", np.zeros(shape, np.float32)), tmp_path / "y.npy"
    report = document(ok(*CPU, "--input", path, "--output", target, "--json"))
    assert (report["shape"], report["max_relative_error"]) == (list(shape), 0.0)
    assert np.load(target).shape == shape
    ok(*CPU, "--input", path)


def test_no_rows_and_no_columns_by_number() -> None:
    assert document(ok(*CPU, "--rows", 0, "--cols", 8, "--json"))["shape"] == [0, 8]
    assert document(ok(*CPU, "--rows", 8, "--cols", 0, "--json"))["variant"] is None
    said = ok(*CPU, "--rows", 8, "--cols", 0).stdout.splitlines()[1:]
    assert said == ["no elements: nothing was launched"]


def test_a_single_number_is_a_row_of_one(tmp_path: Path) -> None:
    path, target = saved(tmp_path / "x.npy", np.float32(3.0)), tmp_path / "y.npy"  # type: ignore[arg-type]
    ok(*CPU, "--input", path, "--output", target)
    assert (np.load(target).shape, float(np.load(target))) == ((), 1.0)


def test_nan_and_infinity_rows_are_results_not_failures(tmp_path: Path) -> None:
    x = np.zeros((4, 8), np.float32)
    x[0, 3], x[1, 3], x[2, 3], x[3, :] = np.nan, np.inf, -np.inf, -np.inf
    path, target = saved(tmp_path / "x.npy", x), tmp_path / "y.npy"
    report = document(ok(*CPU, "--input", path, "--output", target, "--json"))
    y = np.load(target)
    assert np.isnan(y[[0, 1, 3]]).all()
    assert y[2, 3] == 0
    assert report["max_relative_error"] <= report["bound"]


def test_byte_order_and_fortran_order_do_not_matter(tmp_path: Path) -> None:
    x = np.asfortranarray(np.arange(12).reshape(3, 4).astype(">f4"))
    path, target = saved(tmp_path / "x.npy", x), tmp_path / "y.npy"
    ok(*CPU, "--input", path, "--output", target, "--variant", "safe")
    np.testing.assert_allclose(np.load(target), softmax(x), rtol=2e-6)


def test_bad_files_say_what_is_accepted(tmp_path: Path) -> None:
    np.savez(tmp_path / "several.npz", a=np.zeros(3))
    (tmp_path / "text.npy").write_text("1 2 3\n")
    whole = saved(tmp_path / "whole.npy", np.zeros((64, 64), np.float32)).read_bytes()
    (tmp_path / "half.npy").write_bytes(whole[: len(whole) // 2])
    saved(tmp_path / "int.npy", np.arange(8))
    saved(tmp_path / "complex.npy", np.zeros(3, np.complex64))
    np.save(tmp_path / "pickle.npy", np.array([{}]), allow_pickle=True)
    for name, message in (
        ("nowhere.npy", "does not exist"),
        ("several.npz", "archive of several arrays"),
        ("text.npy", "cannot be read as a .npy file"),
        ("half.npy", "cannot be read as a .npy file"),
        ("pickle.npy", "holds pickled Python objects"),
        ("int.npy", "holds int64; softgen computes floating point: .*astype"),
        ("complex.npy", "holds complex64"),
    ):
        error = refused(group.USAGE, *CPU, "--input", tmp_path / name)
        assert re.search(message, error), error
        assert name in error


def test_other_bad_requests(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.npy", np.zeros((2, 8), np.float32))
    for words, message in (
        (("--input", path, "--rows", 2), "the file's shape counts"),
        (("--rows", 2, "--cols", 8, "--output", tmp_path), "is a folder"),
        (("--rows", 2, "--cols", 8, "--output", tmp_path / "no" / "y.npy"), "does not exist"),
        (("--rows", 2, "--cols", 8, "--variant", "best"), "unknown variant 'best'"),
        (
            ("--cols", 8, "--variant", "softmax_f32_9_safe_b256_pdl1"),
            "is for --cols 9, and --cols 8 was",
        ),
        (
            ("--input", path, "--variant", "softmax_f32_9_safe_b256_pdl1"),
            "with 9 columns.*with 8 col",
        ),
        (("--rows", 2**20, "--cols", 2**10), "too many for the CPU emulator"),
        (("--rows", 2**40, "--cols", 2**40), "too many: the most are 1099511627776"),
    ):
        error = refused(group.USAGE, *CPU, *words)
        assert re.search(message, error), error


def test_a_full_name_says_the_shape_and_the_types() -> None:
    name = "log_softmax_f16_to_f32_9_safe_b128"
    report = document(ok(*CPU, "--rows", 2, "--variant", name, "--json"))
    assert (report["variant"], report["shape"]) == (name, [2, 9])
    assert (report["function"], report["dtype"]) == ("log_softmax", "float16")
    fixed = "softmax_f32_9_fixed_safe_b128"
    assert document(ok(*CPU, "--rows", 2, "--variant", fixed, "--json"))["variant"] == fixed
    message = refused(group.USAGE, *CPU, "--variant", name, "--dtype", "float32")
    assert f"{name} is for --dtype float16, and --dtype float32 was given" in message


def test_a_wrong_result_exits_with_4(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: Any) -> Computed:
        made = compute(*arguments)
        made.results[0][1, 3] *= 1.001
        return made

    monkeypatch.setattr(run_module, "compute", wrong)
    words = (*CPU, "--rows", 2, "--cols", 8, "--variant", "safe")
    result = cli(*words)
    assert result.exit_code == group.WRONG_RESULT
    assert "softmax_f32_8_safe_b256_pdl1 computes a wrong result: 1 of 16 elements" in result.stderr
    as_json = cli(*words, "--json")
    assert as_json.exit_code == group.WRONG_RESULT
    report = document(as_json)
    assert report["kind"] == "VerificationError"
    assert report["max_relative_error"] == pytest.approx(1e-3, rel=0.01)


def test_a_cache_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOFTGEN_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = (*CPU, "--rows", 2, "--cols", 8, "--variant", "safe")
    result = ok(*words, "--json")
    assert (
        f"the cache folder {tmp_path}/file/sources cannot be written (Not a directory); the source "
        "is not kept. Set SOFTGEN_CACHE_DIR to a folder of your own"
    ) in result.stderr
    assert document(result)["source"] is None
    assert "source      not kept; softgen show softmax_f32_8_safe_b256_pdl1\n" in ok(*words).stdout


def test_a_cache_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file, which no user can write into")
    (tmp_path / "tmp").mkdir()
    environment = {name: str(tmp_path / "home" / "x") for name in ("HOME", "SOFTGEN_CACHE_DIR")}
    words = (*CPU, "--rows", 2, "--cols", 8, "--variant", "safe")
    ran = subprocess_cli(*words, cwd=tmp_path, TMPDIR=str(tmp_path / "tmp"), **environment)
    assert ran.returncode == 0, ran.stderr
    assert "ResourceWarning" not in ran.stderr
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_document_is_plain_json() -> None:
    result = ok(*CPU, "--rows", 2, "--cols", 8, "--json")
    assert json.loads(result.stdout, parse_constant=pytest.fail)["dtype"] == "float32"


def test_a_long_run_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log gets one line, if it would be silent for long; a program that reads JSON gets none."""
    words = (*CPU, "--rows", 2, "--cols", 8, "--variant", "safe")
    assert "emulating" not in ok(*words).stderr
    monkeypatch.setattr(run_module, "EMULATED_PER_SECOND", 1)
    assert "compiling and emulating 16 elements, about 17 s\n" in ok(*words).stderr
    assert "emulating" not in ok(*words, "--json").stderr
    assert "emulating" not in ok(*CPU, "--rows", 2, "--cols", 0).stderr


def test_the_choice_is_told_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTGEN_DEBUG", "1")
    for words, told in (((), "best guess"), (("--variant", "safe"), "asked for")):
        result = ok(*CPU, "--rows", 2, "--cols", 8, *words, "--json")
        label = document(result)["variant"].removeprefix("softmax_f32_8_")
        line = f"softgen: softmax_f32_8 for 2 rows on the CPU emulator: {label}, {told}, "
        assert re.search(re.escape(line) + r"\d+\.\d{3} s\n", result.stderr)
    monkeypatch.setenv("SOFTGEN_DEBUG", "0")
    assert "softgen: " not in ok(*CPU, "--rows", 2, "--cols", 8).stderr


def test_a_terminal_shows_that_something_is_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(output, "console", lambda: shown)
    with output.working("emulating [16] elements", quiet=True):
        pass
    assert isinstance(shown.file, io.StringIO)
    assert "emulating [16] elements" in shown.file.getvalue()
