"""The tables of tuned winners that come with softgen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from softgen.errors import InvalidValueError
from softgen.problems.arch import Arch, arch_named
from softgen.problems.problem import Problem, rows_bucket
from softgen.strategies import winners
from softgen.strategies.online import Online
from softgen.strategies.safe import Safe
from softgen.strategies.select import untimed
from softgen.strategies.variants import Variant, parse_name
from softgen.tuning import table
from softgen.tuning.entry import Entry, Key, Timing
from tests import shipped_times

H200 = arch_named("sm_90")
H100 = replace(H200, device="NVIDIA H100 NVL")
OTHERS = (
    H100,
    replace(H200, multiprocessors=114, device="NVIDIA H100 PCIe"),
    *(arch_named(name) for name in ("sm_80", "sm_100", "sm_120")),
)
THOUSAND = Problem.of("softmax", "float32", 1000)
ENVIRONMENT: dict[str, str | int] = {"device": "NVIDIA H200", "nvrtc": "13.0", "sources": "0123"}
SHIPPED = sorted(winners.DIRECTORY.glob("*.json"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let an empty folder be that of the tables."""
    monkeypatch.setattr(winners, "DIRECTORY", tmp_path)
    winners._winners.cache_clear()
    yield tmp_path
    winners._winners.cache_clear()


def entry(problem: Problem = THOUSAND, rows: int = 4096, block_size: int = 512) -> Entry:
    variant = Variant(problem, Safe(block_size))
    timings = (Timing("another", 2.0, 2.0, 2.0), Timing(variant.name, 3.14159, 3.0, 4.0))
    return Entry(Key.of(problem, rows, ENVIRONMENT), variant, timings)


def ship(folder: Path, *entries: Entry) -> None:
    (folder / "nvidia_h200.json").write_text(table.text_of(list(entries)))


def test_files_are_named_after_the_device(folder: Path) -> None:
    assert winners.path_of("NVIDIA H200") == folder / "nvidia_h200.json"
    assert winners.path_of("NVIDIA GeForce RTX 4090") == folder / "nvidia_geforce_rtx_4090.json"
    assert winners.path_of("../NVIDIA H200 MIG 1g.18gb") == folder / "nvidia_h200_mig_1g_18gb.json"


def test_what_is_shipped_is_found(folder: Path) -> None:
    ship(folder, entry(), entry(rows=64, block_size=128))
    assert winners.winner(THOUSAND, 4096, H200) == Variant(THOUSAND, Safe(512))
    assert winners.winner(THOUSAND, 2049, H200) == Variant(THOUSAND, Safe(512))
    assert winners.winner(THOUSAND, 50, H200) == Variant(THOUSAND, Safe(128))


@pytest.mark.parametrize(
    ("problem", "rows", "device"),
    [
        (THOUSAND, 2048, "NVIDIA H200"),
        (THOUSAND, 4097, "NVIDIA H200"),
        (THOUSAND, 4096, "NVIDIA H200 NVL"),
        (Problem.of("softmax", "float32", 1004), 4096, "NVIDIA H200"),
        (Problem.of("softmax", "float16", 1000), 4096, "NVIDIA H200"),
        (Problem.of("softmax", "float32", 1000, out_dtype="float16"), 4096, "NVIDIA H200"),
        (Problem.of("softmax", "float32", 1000, alignment=1), 4096, "NVIDIA H200"),
    ],
)
def test_nothing_is_found_for_another_key(
    problem: Problem, rows: int, device: str, folder: Path
) -> None:
    ship(folder, entry())
    assert winners.winner(problem, rows, replace(H200, device=device)) is None


def test_targets_of_32_bits_take_the_winner_of_those_of_64(folder: Path) -> None:
    wide, narrow = (
        Problem.of(name, "bfloat16", 1000) for name in ("cross_entropy", "cross_entropy_i32")
    )
    ship(folder, entry(Problem.of("logsumexp", "bfloat16", 1000), block_size=128))
    assert winners.winner(narrow, 4096, H200) == Variant(narrow, Safe(128))
    ship(folder, entry(wide, block_size=256))
    winners._winners.cache_clear()
    assert winners.winner(narrow, 4096, H200) == Variant(narrow, Safe(256))


def test_log_softmax_takes_softmaxs_winner_where_it_has_none(folder: Path) -> None:
    log_form = Problem.of("log_softmax", "float32", 1000)
    ship(folder, entry())
    assert winners.winner(log_form, 4096, H200) == Variant(log_form, Safe(512))
    winners._winners.cache_clear()
    ship(folder, entry(), entry(log_form, block_size=64))
    assert winners.winner(log_form, 4096, H200) == Variant(log_form, Safe(64))
    assert winners.winner(THOUSAND, 4096, H200) == Variant(THOUSAND, Safe(512))


def test_softmax_does_not_take_log_softmaxs(folder: Path) -> None:
    ship(folder, entry(Problem.of("log_softmax", "float32", 1000)))
    assert winners.winner(THOUSAND, 4096, H200) is None


def test_a_device_without_a_table_has_no_winners(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert winners.winner(THOUSAND, 4096, H200) is None
    assert caplog.records == []


def test_a_name_that_no_longer_parses_is_passed_by(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ship(folder, entry(), entry(rows=64))
    path = folder / "nvidia_h200.json"
    path.write_text(path.read_text().replace("safe_b512", "vanished_b512", 1))
    assert winners.winner(THOUSAND, 64, H200) is None
    assert winners.winner(THOUSAND, 4096, H200) is not None
    assert caplog.records == []


def test_names_that_begin_alike_are_told_apart(folder: Path) -> None:
    """A problem's label begins the names of others: of other alignments, of one order, wider."""
    begins = [
        THOUSAND,
        Problem.of("softmax", "float32", 1000, alignment=1),
        Problem.of("softmax", "float32", 1000, alignment=1, fixed_order=True),
        Problem.of("softmax", "float32", 1001),
        Problem.of("softmax", "float32", 1001, fixed_order=True),
        Problem.of("softmax", "float32", 10010),
        Problem.of("log_softmax", "float32", 1000),
        Problem.of("softmax_lse", "float32", 1000),
    ]
    sizes = range(32, 32 * len(begins) + 1, 32)
    ship(folder, *(entry(p, block_size=size) for p, size in zip(begins, sizes, strict=True)))
    for problem, size in zip(begins, sizes, strict=True):
        assert winners.winner(problem, 4096, H200) == Variant(problem, Safe(size))


def test_a_winner_must_be_legal_on_the_device(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = Problem.of("softmax", "float16", 4096)
    variant = Variant(problem, Online(8, 4, 1024))
    ship(folder, Entry(Key.of(problem, 8, ENVIRONMENT), variant, ()))
    assert winners.winner(problem, 8, H200) == variant
    assert winners.winner(problem, 8, replace(H200, registers_per_multiprocessor=32768)) is None
    assert caplog.records == []


# First guesses from the nearest table


def shipped() -> list[tuple[Variant, int]]:
    """Return the winners of the H200's table, and their buckets of rows."""
    return [(parse_name(name), rows) for name, rows, _ in winners._winners(H200.device)]


@pytest.mark.parametrize("arch", OTHERS, ids=lambda arch: arch.device)
def test_a_device_without_a_table_takes_what_is_legal_there(arch: Arch) -> None:
    """And again the same, for the shapes of the table, for others near them and far from them."""
    taken = 0
    for variant, rows in shipped():
        own = variant.problem
        others = (replace(own, cols=own.cols + 8, alignment=1), replace(own, cols=own.cols * 3))
        for problem in (own, *others):
            near = winners.near(problem, rows, arch)
            assert winners.near(problem, rows, arch) == near
            if near is not None:
                near.variant.check(arch)
                taken += 1
    assert taken > len(shipped()) / 3


def test_one_with_as_many_sms_of_the_same_kind_takes_the_table_as_it_is() -> None:
    for variant, rows in shipped():
        near = winners.near(variant.problem, rows, H100)
        assert near == winners.Near(variant, H200, rows, variant.problem.cols)
        assert near.origin == (
            f"from the table of NVIDIA H200, 132 SMs, tuned for {rows} x {variant.problem.cols}"
        )


def test_a_grid_sized_for_other_sms_is_no_guess() -> None:
    sized = [(v, rows) for v, rows in shipped() if v.launch.multiprocessors]
    assert len(sized) > 10
    for arch in OTHERS[1:]:
        for variant, rows in sized:
            near = winners.near(variant.problem, rows, arch)
            assert near is None or not near.variant.launch.multiprocessors


def test_an_older_device_waits_for_no_launch(folder: Path) -> None:
    waiting = Variant(THOUSAND, Safe(512, pdl=1))
    ship(folder, Entry(Key.of(THOUSAND, 4096, ENVIRONMENT), waiting, ()))
    for name, pdl in (("sm_80", 0), ("sm_100", 1)):
        near = winners.near(THOUSAND, 4096, arch_named(name))
        assert near is not None
        assert near.variant.strategy == Safe(512, pdl=pdl)


def test_the_nearest_device_is_the_one_whose_sms_are_alike(folder: Path) -> None:
    t4, a100, b200, h20 = (
        *(arch_named(name) for name in ("sm_75", "sm_80", "sm_100")),
        H200.with_multiprocessors(78),
    )
    assert winners.nearest(H100) is None
    ship(folder, entry())
    text = (folder / "nvidia_h200.json").read_text()
    assert [winners.nearest(each) for each in (H200, H100, t4)] == [H200] * 3
    (folder / "nvidia_a100.json").write_text(text)
    assert [winners.nearest(each) for each in (H200, H100, b200, h20)] == [H200] * 4
    assert [winners.nearest(each) for each in (a100, t4, arch_named("sm_86"))] == [a100] * 3


@pytest.mark.parametrize(
    ("rows", "cols", "found"),
    [
        (4096, 1000, True),
        (1024, 1000, True),
        (512, 1000, False),  # eight times fewer
        (16384, 1000, True),
        (32768, 1000, False),
        (4096, 1092, True),
        (4096, 912, True),
        (4096, 1200, False),
        (4096, 1001, False),  # its rows do not start on packs
    ],
)
def test_a_shape_that_no_table_has_takes_the_setting_of_one_near_it(
    rows: int, cols: int, found: bool, folder: Path
) -> None:
    ship(folder, entry())
    problem = Problem.of("softmax", "float32", cols)
    near = winners.near(problem, rows, H200)
    assert (near is not None) is found
    if near is not None:
        assert near == winners.Near(Variant(problem, Safe(512)), H200, 4096, 1000)
        assert untimed(problem, rows - 1, H200).variant == near.variant


def test_it_is_the_nearest_that_is_legal(folder: Path) -> None:
    ship(folder, entry(rows=2048, block_size=128), entry(rows=512, block_size=33))
    near = winners.near(THOUSAND, 512, H200)
    assert near is not None
    assert near.variant.strategy == Safe(128)
    assert (near.rows, near.cols) == (2048, 1000)


def test_many_rows_are_alike_however_many(folder: Path) -> None:
    ship(folder, entry(rows=2**20, block_size=128), entry(rows=2**17, block_size=256))
    for rows, size in ((2**17, 256), (2**19, 128), (2**26, 128)):
        near = winners.near(THOUSAND, rows, H200)
        assert near is not None
        assert near.variant.strategy == Safe(size)
    invariant = untimed(THOUSAND, 1, H100, batch_invariant=True)
    assert invariant.variant.strategy == Safe(128)


def test_of_another_function_only_the_very_shape_counts(folder: Path) -> None:
    log_form = Problem.of("log_softmax", "float32", 1000)
    ship(folder, entry())
    assert winners.near(log_form, 4096, H100) is not None
    assert winners.near(log_form, 2048, H100) is None
    assert winners.near(replace(log_form, cols=1020), 4096, H100) is None


def test_rows_count_by_sm(folder: Path) -> None:
    ship(folder, entry(rows=4096, block_size=512), entry(rows=2048, block_size=256))
    half = H200.with_multiprocessors(66)
    for arch, rows, size in ((H200, 2048, 256), (half, 2048, 512), (half, 1024, 256)):
        near = winners.near(THOUSAND, rows, arch)
        assert near is not None
        assert near.variant.strategy == Safe(size)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', '"text"', '{"schema": 99}'])
def test_a_damaged_table_is_no_table(text: str, folder: Path) -> None:
    (folder / "nvidia_h200.json").write_text(text)
    assert winners.winner(THOUSAND, 4096, H200) is None


@pytest.mark.parametrize("change", [{"schema": 2}, {"device": "NVIDIA H100"}])
def test_a_table_of_another_schema_or_device_is_no_table(
    change: dict[str, Any], folder: Path
) -> None:
    data = json.loads(table.text_of([entry()]))
    (folder / "nvidia_h200.json").write_text(json.dumps({**data, **change}))
    assert winners.winner(THOUSAND, 4096, H200) is None


def test_the_text_is_a_line_an_entry_in_order() -> None:
    wide = Problem.of("softmax", "float32", 20000)
    text = table.text_of([entry(wide), entry(rows=4096), entry(rows=64)])
    assert json.loads(text) == {
        "schema": 1,
        "device": "NVIDIA H200",
        "made_with": {"nvrtc": "13.0", "sources": "0123"},
        "entries": [
            {"variant": "softmax_f32_1000_safe_b512", "rows": 64, "microseconds": 3.142},
            {"variant": "softmax_f32_1000_safe_b512", "rows": 4096, "microseconds": 3.142},
            {"variant": "softmax_f32_20000_safe_b512", "rows": 4096, "microseconds": 3.142},
        ],
    }
    assert sum('"variant"' in line for line in text.splitlines()) == 3
    assert text == table.text_of([entry(rows=64), entry(wide), entry(rows=4096)])


def test_a_table_is_of_one_device_and_version() -> None:
    other = Key.of(THOUSAND, 64, {**ENVIRONMENT, "sources": "4567"})
    with pytest.raises(InvalidValueError, match="of 2; tune into an empty SOFTGEN_CACHE_DIR"):
        table.text_of([entry(), replace(entry(), key=other)])
    with pytest.raises(InvalidValueError, match="holds no tuned choices"):
        table.text_of([])
    timed_before = replace(entry(), code="0123456789abcdef")
    with pytest.raises(InvalidValueError, match=r"softmax_f32_1000_safe_b512 has changed .*\(1 "):
        table.text_of([entry(rows=64), timed_before])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_winner_can_be_used(path: Path) -> None:
    """None has gone stale: those that changed strategies would only be passed by in silence."""
    data = json.loads(path.read_text())
    arch = shipped_times.arch_of(data)
    assert winners.path_of(data["device"]) == path
    assert data["schema"] == winners.SCHEMA
    keys = set()
    for item in data["entries"]:
        variant = parse_name(item["variant"])
        variant.check(arch)
        assert rows_bucket(item["rows"]) == item["rows"]
        assert item["microseconds"] > 0
        assert winners.winner(variant.problem, item["rows"], arch) == variant
        keys.add((variant.problem, item["rows"]))
        times = winners.times_of(variant, item["rows"], data["device"])
        assert times is not None
        assert rows_bucket(times.rows or item["rows"]) == item["rows"]
    assert len(keys) == len(data["entries"])
    assert shipped_times.written(path.read_text()) == path.read_text(), (
        "python -m tests.shipped_times"
    )
