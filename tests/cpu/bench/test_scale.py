"""The cost model of rows over several GPUs: what it adds up."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from softgen.bench.scale import H200, WORK, predict

TIMES = Path(__file__).resolve().parents[3] / "docs" / "scale" / "scaling.csv"


def rows() -> list[dict[str, str]]:
    with TIMES.open(newline="") as file:
        return list(csv.DictReader(file))


def test_one_gpu_moves_its_bytes() -> None:
    """Softmax reads and writes 4096 x 128256 elements of 2 bytes, and launches once."""
    found = predict("softmax", 4096, 128256, 1, H200)
    assert found.total == found.shard
    assert found.shard == pytest.approx(2 * 4096 * 128256 * 2 / 4200e3)
    assert predict("logsumexp", 4096, 128256, 1, H200).shard == found.shard / 2


@pytest.mark.parametrize("function", WORK)
def test_a_host_shares_the_columns_out(function: str) -> None:
    """The widest shard counts; a message has a tag for each word, from every other GPU."""
    one, three = (predict(function, 4096, 128257, n, H200) for n in (1, 3))
    assert three.shard == pytest.approx(one.shard * 42753 / 128257)
    waves = 4096 * 42753 * 2 / H200.held
    stalled = (waves - 1) * H200.stall if WORK[function].holds else 0
    assert three.exchange == pytest.approx(H200.exchange + stalled)
    slow = dataclasses.replace(H200, links=1e-3)
    wire = 2 * max(8, WORK[function].sent) * 4096 * 2 / 1e-3 / 1e3
    assert predict(function, 4096, 128257, 3, slow).exchange == pytest.approx(
        H200.exchange + stalled + wire - three.shard
    )


def test_hosts_gather_all_pairs_on_every_gpu() -> None:
    """And softmax reads its shard twice then."""
    inside, outside = (predict("softmax", 4096, 2**20, n, H200) for n in (8, 16))
    assert outside.shard == pytest.approx(inside.shard / 2 * 3 / 2)
    every = 8 * 4096 * 15
    assert outside.exchange == pytest.approx(8 + 5 + every / 45e3 + 2 * every / 4200e3)


def test_what_was_timed_is_near() -> None:
    """Predictions of one and two GPUs are the times of the page within a tenth."""
    for row in rows():
        shape = (int(row["rows"]), int(row["columns"]), int(row["gpus"]))
        found = predict(row["function"], *shape, H200).total
        assert found == pytest.approx(float(row["us_graph"]), rel=0.1), row


def test_the_page_has_what_is_predicted() -> None:
    page = (TIMES.parents[1] / "scale.md").read_text()
    for row in rows():
        shape = (int(row["rows"]), int(row["columns"]), int(row["gpus"]))
        found = predict(row["function"], *shape, H200).total
        cells = [row["function"], row["gpus"], row["columns"], _short(float(row["us_graph"]))]
        cells += [_short(float(row["us_eager"])), _short(found)]
        assert f"| {' | '.join(cells)} | " in page
    for cols in (128256, 2**20):
        for function in WORK:
            made = [predict(function, 4096, cols, n, H200) for n in (4, 8, 64, 1024)]
            cells = [f"{_short(each.total)} ({_short(each.exchange)})" for each in made]
            assert f"| {function} | {cols} | {' | '.join(cells)} |\n" in page


def test_the_page_says_what_a_machine_is_made_of() -> None:
    """And what a message of 16 bytes a row into each GPU of a host takes by that."""
    page = " ".join((TIMES.parents[1] / "scale.md").read_text().split())
    gather, more = H200.gather
    assert (
        f"Measured are {H200.memory} GB/s of memory, {H200.launch} us a launch, {H200.exchange} us "
        f"an exchange, {H200.stall:g} us a wave of rows and {gather} us an all-gather, "
    ) in page
    assert (
        f"Assumed are {H200.links} GB/s of NVLink into a GPU, {H200.network} GB/s of network, and "
        f"{more} us for a doubling of hosts."
    ) in page
    sent = 16 * 4096 * (H200.hosted - 1)
    us = sent / H200.links / 1e3
    assert (
        f"{sent / 1e6:.1f} MB at 4096 rows and {H200.hosted} GPUs, {us:.1f} us of {H200.links} GB/s"
    ) in page


def _short(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def test_the_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    script, path = str(TIMES.with_name("plot.py")), tmp_path / "scaling.png"
    environment = {**os.environ, "PYTHONPATH": str(TIMES.parents[2])}
    subprocess.run([sys.executable, script, str(TIMES), str(path)], check=True, env=environment)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
