"""--inner: kernels of an axis that is not the last, on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softgen.source.manifest import read
from tests.helpers.cli_helpers import cli, document, ok

pytestmark = pytest.mark.usefixtures("host_built")


def test_a_kernel_is_emitted(tmp_path: Path) -> None:
    ok("emit", "--cols", 128, "--inner", 1024, "--rows", 65536, "--out", tmp_path)
    (name,) = read(tmp_path)
    assert name.startswith("softmax_f32_128_in1024_columns_")
    entry = read(tmp_path)[name]
    assert entry["problem"]["layout"] == "in1024"
    assert entry["problem"]["alignment"] == 4
    assert entry["operands"][0]["shape"] == ["rows / 1024", 128, 1024]


def test_every_candidate_of_one_inner_is_a_set_of_its_own(tmp_path: Path) -> None:
    for inner in ("6", "10"):
        options = ("--all", "--cols", "5", "--inner", inner, "--function", "logsumexp")
        ok("emit", *options, "--dtype", "float64", "--variant", "safe", "--out", tmp_path)
    names = list(read(tmp_path))
    assert {name.split("_")[3] for name in names} == {"in6", "in10"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("show", "softmax_f32_128_in8_safe_b256", "--inner", "16"), "is for --inner 8, and"),
        (("list", "--inner", "16", "--strided", "1"), "columns are of contiguous arrays"),
        (("list", "--cols", "8", "--inner", "6", "--alignment", "4"), "multiples of 2 at most"),
        (
            ("run", "--rows", "50", "--inner", "24"),
            "rows come in multiples of inner; give --rows 72",
        ),
        (("run", "--variant", "columns"), "it is for another axis than the last: --inner"),
        (("run", "--variant", "columns_p4_w8_b128_c8_m1"), "for another axis than the last"),
        (("run", "--variant", "warp", "--inner", "8"), "it is for the last axis"),
        (("run", "--variant", "softmax_f32_8_in8_safe_b64", "--inner", "4"), "is for --inner 8"),
        (("tune", "--suite", "llm", "--inner", "6"), "--inner goes with --shape and --shapes"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], message: str) -> None:
    done = cli(*options, *(("--device", "cpu") if options[0] == "run" else ()))
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("shape", "inner", "axis"), [((3, 9, 5), 5, 1), ((6, 4, 2), 8, 0), ((2, 1, 7, 4), 4, 2)]
)
def test_run_finds_the_axis_of_a_file(
    shape: tuple[int, ...], inner: int, axis: int, tmp_path: Path
) -> None:
    x = np.random.default_rng(0).standard_normal(shape) * 9
    np.save(tmp_path / "x.npy", x)
    options = ("--function", "softmax_lse", "--inner", inner, "--device", "cpu", "--json")
    files = ("--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    report = document(ok("run", *options, *files, "--result", f"lse={tmp_path / 'lse.npy'}"))
    assert report["shape"] == list(shape)
    assert f"_{shape[axis]}_in{inner}_" in report["variant"]
    terms = np.exp(x - x.max(axis=axis, keepdims=True))
    total = terms.sum(axis=axis, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), terms / total, rtol=1e-13)
    lse = np.squeeze(x.max(axis=axis, keepdims=True) + np.log(total), axis=axis)
    np.testing.assert_allclose(np.load(tmp_path / "lse.npy"), lse, rtol=1e-13)
    for given in (axis, axis - len(shape)):
        named = ("--axis", given, "--device", "cpu", "--json", *files)
        assert document(ok("run", *named))["variant"] == report["variant"].replace("_lse", "")
        np.testing.assert_allclose(np.load(tmp_path / "y.npy"), terms / total, rtol=1e-13)


def test_an_axis_of_one_element_and_one_that_is_not_there(tmp_path: Path) -> None:
    """--inner cannot tell an axis of one element from the next; --axis can."""
    np.save(tmp_path / "x.npy", np.zeros((2, 1, 7)))
    run = ("run", "--device", "cpu", "--input", tmp_path / "x.npy")
    report = document(ok(*run, "--axis", 1, "--output", tmp_path / "y.npy", "--json"))
    assert "_f64_1_in7_" in report["variant"]
    assert (np.load(tmp_path / "y.npy") == 1).all()
    for words, message in (
        ((*run, "--axis", 3), "--axis 3: an array of shape (2, 1, 7) has axes -3 to 2"),
        ((*run, "--axis", 1, "--inner", 7), "--axis needs --input, and cannot be given"),
        (("run", "--axis", 1), "--axis needs --input"),
        ((*run, "--axis", 0, "--variant", "softmax_f64_2_in6_safe_b64"), "is for --inner 6, and"),
    ):
        done = cli(*words)
        assert done.exit_code == 2
        assert message in " ".join(done.output.split())


def test_run_says_what_the_axes_of_a_file_have_behind_them(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 30, 6)))
    done = cli("run", "--input", tmp_path / "x.npy", "--inner", 5, "--device", "cpu")
    assert done.exit_code != 0
    wanted = "shape (4, 30, 6) has 5 elements behind it, as --inner says; its axes have 180, 6, 1"
    assert wanted in " ".join(done.output.split())


def test_random_rows_come_in_whole_outer_indices() -> None:
    report = document(ok("run", "--cols", 5, "--inner", 24, "--device", "cpu", "--json"))
    assert report["shape"] == [3, 5, 24]


def test_explain_is_of_such_an_axis() -> None:
    told = document(ok("explain", "65536x128", "--inner", 1024, "--arch", "sm_90", "--json"))
    assert told["layout"] == "in1024"
    assert told["variant"].startswith("softmax_f32_128_in1024_columns_")
    assert {each["strategy"] for each in told["strategies"]} >= {"columns", "strips"}
