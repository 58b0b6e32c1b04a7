"""--inner: kernels of an axis that is not the last, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from softgen.source.manifest import read
from tests.helpers.cli_helpers import cli, ok


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
        (("tune", "--suite", "llm", "--inner", "6"), "--inner goes with --shape and --shapes"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], message: str) -> None:
    done = cli(*options)
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
