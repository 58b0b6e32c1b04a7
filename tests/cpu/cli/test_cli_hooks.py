"""--hook of the commands that name kernels."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.cli_helpers import ok, refused


def test_kernels_with_hooks_are_listed_shown_and_emitted(tmp_path: Path) -> None:
    asked = ("--cols", 300, "--hook", "causal", "--hook", "scale")
    listed = ok("list", *asked, "--variant", "block").output
    assert "softmax_f32_300_scale_causal_block_" in listed
    text = ok("emit", *asked, "--stdout").output
    assert "Compute scale, long long queries, long long offset" in text
    assert "with scale * x, with x[:row % queries + offset + 1]" in text
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
