"""`softgen run` of functions that take class indices and numbers beside x."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.cli_helpers import ok, refused

pytestmark = pytest.mark.usefixtures("host_built")

CPU = ("--device", "cpu")


def test_cross_entropy_of_files_and_its_gradient(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6, 30)).astype(np.float32)
    target = np.array([0, 29, -100, 3, 7, 7], np.int32)
    lse = np.log(np.exp(x.astype(float)).sum(1))
    arrays = {"x": x, "target": target, "lse": lse.astype(np.float32), "upstream": np.full(1, 0.5)}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    given = {name: ("--operand", f"{name}={tmp_path / name}.npy") for name in arrays}
    ran = ("--input", tmp_path / "x.npy", *CPU, "--output", tmp_path / "result.npy")
    ok("run", "--function", "cross_entropy", *given["target"], "--operand", "z_loss=0.25", *ran)
    counts = target != -100
    picked = x[np.arange(6), np.where(counts, target, 0)]
    wanted = np.where(counts, lse - picked + 0.25 * lse * lse, 0)
    np.testing.assert_allclose(np.load(tmp_path / "result.npy"), wanted, 3e-6)
    beside = (*given["target"], *given["lse"], *given["upstream"])
    ok("run", "--function", "cross_entropy_backward", *beside, *ran)
    dx = np.exp(x - lse[:, None]) - (np.arange(30) == target[:, None])
    np.testing.assert_allclose(
        np.load(tmp_path / "result.npy"), np.where(counts[:, None], dx / 2, 0), 1e-4, 1e-6
    )


def test_a_number_of_64_bits_is_taken_as_it_is(tmp_path: Path) -> None:
    """A float has 53 of them, and another seed draws others."""
    x = np.random.default_rng(0).standard_normal((200, 30)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    drawn: dict[str, Any] = {}
    for seed in ("9007199254740992", "9007199254740993", str(2**64 - 1), "-1", "1e3", "1000"):
        given = ("--operand", f"seed={seed}", "--result", f"ids={tmp_path / 'ids.npy'}")
        ok("run", "--function", "sample", "--input", tmp_path / "x.npy", *given, *CPU)
        drawn[seed] = np.load(tmp_path / "ids.npy")
    assert (drawn["9007199254740992"] != drawn["9007199254740993"]).any()
    np.testing.assert_array_equal(drawn[str(2**64 - 1)], drawn["-1"])
    np.testing.assert_array_equal(drawn["1e3"], drawn["1000"])
    for number, said in ((2**64, "must fit 64 bits"), (10**400, "must fit")):
        too_large = ("--operand", f"seed={number}")
        message = refused(2, "run", "--function", "sample", *too_large, *CPU, "--shape", "2x8")
        assert said in message


def test_random_rows_need_no_files_and_wrong_numbers_are_told(tmp_path: Path) -> None:
    for name in ("cross_entropy", "cross_entropy_grad_i32", "cross_entropy_backward"):
        printed = ok("run", "--function", name, "--rows", 5, "--cols", 40, *CPU).output
        assert "the bound is 2e-06" in printed
    np.save(tmp_path / "x.npy", np.zeros((2, 3), np.float32))
    np.save(tmp_path / "t.npy", np.zeros(2, np.int64))
    asked = ("run", "--function", "cross_entropy", "--input", tmp_path / "x.npy", *CPU)
    target = ("--operand", f"target={tmp_path / 't.npy'}")
    message = refused(2, *asked, *target, "--operand", "z_loss=much")
    assert "--operand z_loss is a number, as z_loss=1, got much" in message
    message = refused(2, *asked, *target, "--operand", "z_loss=nan")
    assert "--operand z_loss must be finite, got nan" in message
    assert "give --operand target=FILE.npy" in refused(2, *asked)
    message = refused(2, *asked, "--operand", "targets=3")
    assert "--operand target=FILE.npy, --operand ignore_index=-100, " in message
    message = refused(2, *asked, *target, "--operand", "ignore_index=1.5")
    assert "--operand ignore_index must be a whole number, got 1.5" in message
    backward = ("run", "--function", "cross_entropy_backward", "--input", tmp_path / "x.npy", *CPU)
    assert refused(2, *backward, *target) == (
        "cross_entropy_backward takes lse and upstream too; give --operand lse=FILE.npy --operand "
        "upstream=FILE.npy"
    )
