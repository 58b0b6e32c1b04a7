"""What `softgen tune --candidates` prints of a GPU, `softgen explain` says afterwards."""

from __future__ import annotations

import pytest

from softgen.devices.gpu.device import arch_of
from softgen.problems.problem import Problem
from softgen.tuning.cost import worth_timing
from softgen.tuning.explain import peaks_of
from tests.helpers.cli_helpers import document, ok

pytestmark = pytest.mark.gpu


def test_a_shape_is_tuned_and_explained() -> None:
    words = ("--dtype", "bfloat16", "--json")
    before = document(ok("explain", "1000x3000", *words))
    assert before["timed_rows"] is None
    (line,) = document(ok("tune", "--shape", "1000x3000", *words, "--candidates"))
    after = document(ok("explain", "1000x3000", *words))

    assert after["candidates"] == line["table"]
    assert after["variant"] == line["variant"]
    assert after["timed_rows"] == 1000
    assert after["origin"] == f"tuned here, {line['candidates']} candidates timed"
    problem = Problem.of("softmax", "bfloat16", 3000)
    names = {each["variant"] for each in line["table"]}
    worth = {variant.name for variant in worth_timing(problem, 1000, arch_of(0))}
    assert worth <= names
    # What the tuner tries beside: settings of them, launched otherwise.
    assert {name.rpartition("_pdl")[0] for name in names - worth} <= {
        name.rpartition("_pdl")[0] for name in worth
    }
    timed = [each for each in line["table"] if each["microseconds"]]
    assert len(timed) == line["candidates"] >= 8
    (winner,) = (each for each in timed if each["winner"])
    # Of those within the noise the earlier guess wins.
    assert winner["microseconds"] <= timed[0]["microseconds"] * 1.02
    assert winner["p10"] <= winner["microseconds"] <= winner["p90"]
    # x is read from memory; what is written may stay in L2.
    assert winner["microseconds"] >= after["roofline"]["memory"] / 2
    assert after["resources"]["registers"] >= 16
    assert after["resources"]["spill_bytes"] == 0


def test_the_text_for_people() -> None:
    ok("tune", "--shape", "256x1000")
    printed = ok("explain", "256x1000").stdout
    assert ": tuned here, " in printed
    assert "% of the peak" in printed
    assert "registers a thread" in printed


def test_the_peak_of_the_memory_is_that_of_the_data_sheet() -> None:
    arch = arch_of(0)
    peaks = peaks_of(0, arch)
    assert peaks is not None
    published = {"NVIDIA H200": 4800, "NVIDIA H100 80GB HBM3": 3350}.get(arch.device)
    if published:
        assert peaks.gigabytes_per_second == pytest.approx(published, rel=0.05)
    assert 100 <= peaks.gigabytes_per_second <= 20000
    assert 500 <= peaks.megahertz <= 4000
