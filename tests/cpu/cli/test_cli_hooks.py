"""--hook of the commands that name kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.cli_helpers import ok, refused


def test_kernels_with_hooks_are_listed_shown_and_emitted(tmp_path: Path) -> None:
    asked = ("--cols", 300, "--hook", "causal", "--hook", "scale")
    listed = ok("list", *asked, "--variant", "block").output
    assert "softmax_f32_300_scale_causal_block_" in listed
    listed = ok("list", "--cols", 300, "--hook", "out_scale", "--hook", "bias").output
    assert "softmax_f32_300_biasf32_outscale_" in listed
    text = ok("emit", *asked, "--stdout").output
    assert "Compute scale, long long queries, long long causal_offset" in " ".join(text.split())
    assert "with scale * x, with x[:row % queries + causal_offset + 1]" in text
    name = text.split()[1]
    assert ok("show", name, "--hook", "scale", "--hook", "causal").output.startswith(f"// {name}")
    every = ok(
        *("emit", "--all", *asked, "--variant", "safe", "--dtype", "float32"),
        *("--out", tmp_path / "kernels"),
    ).output
    assert "_scale_causal_safe_" in every
    assert "merge" not in every


def test_what_does_not_go_together_is_refused() -> None:
    assert "did you mean 'causal'" in refused(2, "list", "--cols", 8, "--hook", "casual")
    message = refused(2, "emit", "--hook", "scale")
    assert "give --cols as well" in message
    message = refused(2, "show", "softmax_f32_300_scale_safe_b128", "--hook", "mask")
    assert "has scale, and --hook mask was given" in message
    message = refused(2, "show", "softmax_f32_300_safe_b128", "--hook", "mask")
    assert "has no hooks, and --hook mask was given" in message
    assert "merge takes no hooks" in refused(
        *(2, "list", "--function", "merge", "--cols", 8, "--hook", "scale")
    )


@pytest.mark.usefixtures("host_built")
def test_run_takes_the_arguments_of_a_call(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 40)).astype(np.float32)
    shown = np.arange(40) % 3 != 0
    for name, array in (("x", x), ("mask", shown), ("sink", np.ones((2, 1)))):
        np.save(tmp_path / f"{name}.npy", array)
    result = tmp_path / "y.npy"
    ok(
        *("run", "--input", tmp_path / "x.npy", "--output", result, "--device", "cpu"),
        *("--hook", "scale=-0.5", "--hook", f"mask={tmp_path / 'mask.npy'}"),
        *("--hook", f"sink={tmp_path / 'sink.npy'}", "--hook", "causal"),
    )
    seen = shown & (np.arange(40) <= np.arange(3)[:, None] + 37)
    terms = np.exp(np.where(seen, x * -0.5, -np.inf))
    wanted = terms / (terms.sum(-1, keepdims=True) + np.e)
    np.testing.assert_allclose(np.load(result), wanted, 3e-6)


@pytest.mark.usefixtures("host_built")
@pytest.mark.parametrize("shape", [(3, 1), ()])
def test_run_takes_a_bias_with_one_element_a_row(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 40)).astype(np.float32)
    bias = np.asarray(np.random.default_rng(1).standard_normal(shape) * 8, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "bias.npy", bias)
    ok(
        *("run", "--function", "logsumexp", "--input", tmp_path / "x.npy", "--device", "cpu"),
        *("--output", tmp_path / "lse.npy", "--hook", f"bias={tmp_path / 'bias.npy'}"),
    )
    wanted = np.log(np.exp(x.astype(np.float64) + bias).sum(-1))
    np.testing.assert_allclose(np.load(tmp_path / "lse.npy"), wanted, 1e-6, 1e-6)


AXIS = (4, 50, 6)  # x, along whose axis 1 rows lie


def _softmax(x: Any) -> Any:
    terms = np.exp(x - x.max(1, keepdims=True))
    return terms / terms.sum(1, keepdims=True)


@pytest.mark.usefixtures("host_built")
@pytest.mark.parametrize("variant", ["columns", "strips", "safe"])
def test_hooks_along_an_axis_are_those_of_its_rows(variant: str, tmp_path: Path) -> None:
    """Against NumPy alone: the command's own check takes what the kernel took."""
    random = np.random.default_rng(5)
    x = random.standard_normal(AXIS).astype(np.float32)
    biases = [random.standard_normal(shape) * 3 for shape in (AXIS, (50, 1), (4, 1, 6))]
    mask = random.random(AXIS) < 0.7
    lengths, sink = random.integers(1, 51, 6), random.standard_normal((4, 6))
    wide, columns = x.astype(np.float64), np.arange(50)[:, None]
    beside = np.concatenate([wide, sink.astype(np.float32)[:, None]], axis=1)
    cases: list[tuple[list[str], dict[str, Any], Any]] = [
        *((["bias"], {"bias": b.astype(np.float32)}, _softmax(wide + b)) for b in biases),
        (["mask"], {"mask": mask}, _softmax(np.where(mask, wide, -np.inf))),
        (["sink"], {"sink": sink.astype(np.float32)}, _softmax(beside)[:, :50]),
    ]
    if variant == "safe":  # which takes ends of rows too
        shown = columns < lengths
        cases.append((["lengths"], {"lengths": lengths}, _softmax(np.where(shown, wide, -np.inf))))
        shown = columns <= np.arange(6) + 44
        cases.append((["causal"], {}, _softmax(np.where(shown, wide, -np.inf))))
    np.save(tmp_path / "x.npy", x)
    for hooks, arrays, wanted in cases:
        for name, array in arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
        given = [f"{h}={tmp_path / h}.npy" if h in arrays else h for h in hooks]
        ok(
            *("run", "--input", tmp_path / "x.npy", "--inner", 6, "--device", "cpu"),
            *("--variant", variant, "--output", tmp_path / "y.npy"),
            *(word for hook in given for word in ("--hook", hook)),
        )
        np.testing.assert_allclose(
            np.load(tmp_path / "y.npy"), wanted, 3e-6, 1e-30, err_msg=f"{variant} {hooks}"
        )


@pytest.mark.usefixtures("host_built")
def test_a_scale_that_is_taken_for_0_makes_nan_of_infinity_as_0_does(tmp_path: Path) -> None:
    x = np.ones((2, 4), np.float32)
    x[0, 1] = -np.inf
    np.save(tmp_path / "x.npy", x)
    for scale in ("0", "1e-40", "-1e-40"):
        ok(
            *("run", "--input", tmp_path / "x.npy", "--device", "cpu"),
            *("--output", tmp_path / "y.npy", "--hook", f"scale={scale}"),
        )
        y = np.load(tmp_path / "y.npy")
        assert np.isnan(y[0]).all(), scale
        assert y[1].tolist() == [0.25] * 4, scale


@pytest.mark.usefixtures("host_built")
def test_an_out_scale_may_be_one_of_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(6).standard_normal((3, 40)).astype(np.float32)
    scales = np.array([2, -0.5, 0])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "s.npy", scales)
    ok(
        *("run", "--input", tmp_path / "x.npy", "--device", "cpu", "--output", tmp_path / "y.npy"),
        *("--hook", f"out_scale={tmp_path / 's.npy'}"),
    )
    terms = np.exp(x.astype(np.float64))
    wanted = terms / terms.sum(1, keepdims=True) * scales[:, None]
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, 3e-6)


def test_run_refuses_what_no_call_takes() -> None:
    for given, message in (
        ("tempo=2", "unknown argument 'tempo'"),
        ("scale=two", "scale is a .npy file, as scale=values.npy, or a number, as scale=0.5"),
        ("out_scale=two", "out_scale is a .npy file, as out_scale=values.npy, or a number"),
        ("dropout=much", "dropout is a number, as dropout=0.1"),
        ("mask=3", "mask is a .npy file, as mask=values.npy"),
        ("softcap", "softcap is a number, as softcap=2"),
        ("baias=b.npy", "did you mean 'bias'"),
        ("dropout=0.5", "dropout needs seed="),
        ("seed=7", "--hook seed= needs --hook dropout="),
        ("seed_offset=7", "--hook seed_offset= needs --hook dropout="),
        ("causal=1", "--hook causal=1: causal takes no value: give --hook causal"),
        ("causal=", "causal takes no value: give --hook causal"),
    ):
        arguments = ("run", "--rows", 2, "--cols", 8, "--device", "cpu", "--hook", given)
        assert message in refused(2, *arguments)
    name = "softmax_f32_8_mask_safe_b128"
    message = refused(2, *("run", "--rows", 2, "--variant", name, "--device", "cpu"))
    assert "has the hooks mask, and those of --hook are none" in message


def test_a_file_that_does_not_fit_is_told_with_its_option(tmp_path: Path) -> None:
    words, flags = tmp_path / "words.npy", tmp_path / "flags.npy"
    np.save(words, np.asarray(["a"]))
    np.save(flags, np.ones(40, bool))
    run = ("run", "--device", "cpu", "--rows", 3, "--cols", 40)
    told = refused(2, *run, "--hook", "bias=nothing.npy")
    assert "--hook bias: nothing.npy does not exist" in told
    told = refused(2, *run, "--hook", f"mask={words}")
    assert "--hook mask:" in told
    assert "accepted are bfloat16, bool, float16" in told
    assert "--hook bias:" in refused(2, *run, "--hook", f"bias={flags}")
    additive = tmp_path / "additive.npy"
    np.save(additive, np.where(np.arange(40) < 30, 0, -np.inf))
    told = refused(2, *run, "--hook", f"mask={additive}")
    assert "float64 cannot be a mask" in told
    assert told.endswith(f"or an additive mask, 0 and -inf, as --hook bias={additive}")
    told = refused(2, *run, "--function", "softmax_backward", "--operand", "y=nothing.npy")
    assert "--operand y: nothing.npy does not exist" in told


@pytest.mark.parametrize("sizes", [("--rows", 3, "--cols", 0), ("--rows", 0, "--cols", 8)])
@pytest.mark.parametrize(
    ("hooks", "message"),
    [
        (("temperature=1",), "unknown argument 'temperature'"),
        (("softcap=0",), "softcap must be above 0, got 0"),
        (("softcap=1e39",), "softcap must fit float32, got 1e+39"),
        (("scale=1e39",), "scale must fit float32, got 1e+39"),
        (("dropout=2",), "dropout must be from 0 to 1, got 2.0"),
        (("dropout=0.5",), "dropout needs seed="),
        (("seed=1",), "--hook seed= needs --hook dropout=0.1"),
        (("causal_offset=1",), "causal_offset needs causal=True"),
        (("causal", "causal"), "each --hook at most once"),
        (("causal=1",), "causal takes no value"),
        (("mask={tmp}/none.npy",), "none.npy does not exist"),
        (("mask={tmp}/wide.npy",), "mask must broadcast to ("),
        (("bias={tmp}/wide.npy",), "bias must broadcast to ("),
        (("scale={tmp}/wide.npy",), "scale must broadcast to ("),
        (("lengths={tmp}/half.npy",), "int64 does not hold all of the float32 values"),
        (("mask={tmp}/half.npy",), "float32 cannot be a mask"),
    ],
)
def test_run_checks_hooks_where_nothing_is_computed(
    sizes: tuple[object, ...], hooks: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "wide.npy", np.ones((5, 9), bool if "mask" in hooks[0] else np.float32))
    np.save(tmp_path / "half.npy", np.full(3, 0.5, np.float32))
    given = [word for each in hooks for word in ("--hook", each.format(tmp=tmp_path))]
    assert message in refused(2, "run", "--device", "cpu", *sizes, *given)


def test_run_of_rows_without_elements_has_the_hooks_results(tmp_path: Path) -> None:
    lse = tmp_path / "lse.npy"
    words = ("run", "--device", "cpu", "--rows", 3, "--cols", 0, "--function", "logsumexp")
    ok(*words, "--hook", "scale=2", "--hook", "causal", "--output", lse)
    assert np.load(lse).tolist() == [-np.inf] * 3
    assert "takes no hooks" in refused(
        *(2, "run", "--device", "cpu", "--rows", 3, "--cols", 0, "--function", "merge"),
        *("--hook", "scale=2"),
    )
