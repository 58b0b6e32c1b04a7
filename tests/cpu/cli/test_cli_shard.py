"""softgen tune --shard: which shapes, and which GPU, a process of several takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from softgen.cli import group
from softgen.cli.shard import LAUNCHERS, Shard, shard_of
from softgen.devices.gpu import device
from softgen.errors import InvalidValueError
from softgen.problems.arch import arch_named
from softgen.problems.problem import Problem
from softgen.tuning import process
from softgen.tuning.work_queue import Task
from tests.helpers import fake_tuner
from tests.helpers.cli_helpers import document, ok, refused

WIDTHS = (8, 4096, 512, 64, 1000, 2048, 16)


@pytest.fixture(autouse=True)
def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "unavailable_reason", lambda: None)
    monkeypatch.setattr("softgen.tuning.tune.tune", fake_tuner.fake_tune)
    for name in (name for names in LAUNCHERS for name in names):
        monkeypatch.delenv(name, raising=False)


def launched(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def tuned(*words: object) -> list[int]:
    asked = [word for cols in WIDTHS for word in ("--shape", f"64x{cols}")]
    return [line["cols"] for line in document(ok("tune", *asked, *words, "--json"))]


@pytest.mark.parametrize("world", [2, 3, 7, 9])
def test_the_parts_are_all_shapes_each_once(world: int) -> None:
    parts = [tuned("--shard", f"{rank}/{world}") for rank in range(world)]
    assert sorted(cols for part in parts for cols in part) == sorted(WIDTHS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:  # in the order that was asked for
        assert part == sorted(part, key=WIDTHS.index)
    assert parts == [tuned("--shard", f"{rank}/{world}") for rank in range(world)]


def test_large_shapes_are_dealt_out_too() -> None:
    tasks = [Task(n, Problem.of("softmax", "float32", 8), 1 << n) for n in range(8)]
    for rank in range(2):
        part = Shard(rank, 2, None, "a test").part(tasks)
        assert [task.number for task in part] == [n for n in range(8) if n % 2 != rank]


def test_a_part_says_what_it_is() -> None:
    told = ok("tune", "--shape", "8x8", "--shape", "8x9", "--shape", "8x10", "--shard", "1/2")
    assert "shard 1 of 2, by --shard: 1 of 3 shapes" in told.stderr


def test_one_of_one_is_everything() -> None:
    assert tuned("--shard", "0/1") == list(WIDTHS)
    assert "shard" not in ok("tune", "--shape", "8x8", "--shard", "0/1").stderr


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        *((text, "for example 0/8 to 7/8") for text in ("", "1", "-1/2", "1/0", "0/0", "1/1")),
        *((text, "for example 0/8 to 7/8") for text in ("a/b", "1/2/3", "0/99999999")),
        ("2/2", "0/2 to 1/2"),
        ("4/4", "0/4 to 3/4"),
    ],
)
def test_other_parts_say_how_to_write_one(text: str, parts: str) -> None:
    told = refused(group.USAGE, "tune", "--shape", "8x8", "--shard", text)
    assert told.endswith(f"{text!r} is no part of the shapes; write RANK/WORLD, {parts}")


def test_torchruns_variables_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, RANK=1, WORLD_SIZE=3)
    assert tuned() == tuned("--shard", "1/3")
    told = ok("tune", "--shape", "8x8").stderr
    assert "shard 1 of 3, by RANK and WORLD_SIZE: 0 of 1 shape" in told
    assert tuned("--shard", "0/1") == list(WIDTHS)


def test_sruns_variables_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, SLURM_PROCID=2, SLURM_STEP_NUM_TASKS=3, SLURM_LOCALID=0)
    monkeypatch.setattr(device, "count", lambda: 1)
    assert tuned() == tuned("--shard", "2/3")
    launched(monkeypatch, RANK=0, WORLD_SIZE=2)  # torchrun below srun
    assert shard_of(None) == Shard(0, 2, None, "RANK and WORLD_SIZE")


def test_a_batch_script_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch, SLURM_PROCID=0, SLURM_NTASKS=8, SLURM_LOCALID=0)
    assert tuned() == list(WIDTHS)


@pytest.mark.parametrize(("rank", "world"), [("3", "3"), ("", "3"), ("one", "3"), ("-1", "3")])
def test_variables_that_name_no_process(
    rank: str, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched(monkeypatch, RANK=rank, WORLD_SIZE=world)
    with pytest.raises(InvalidValueError, match=r"RANK=.* WORLD_SIZE='3' .* --shard 0/1"):
        shard_of(None)


def test_a_launched_process_takes_the_gpu_of_its_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(device, "count", lambda: 4)
    monkeypatch.setattr(device, "arch_of", lambda number: arch_named("sm_90"))
    monkeypatch.setattr(process, "WORKER", "tests.helpers.fake_tuner")
    monkeypatch.setenv(fake_tuner.LOG, str(tmp_path / "log"))
    launched(monkeypatch, RANK=6, WORLD_SIZE=8, LOCAL_RANK=2)
    assert tuned() == tuned("--shard", "6/8")
    assert {begun.device for begun in fake_tuner.log() if begun.device} == {2}
    launched(monkeypatch, LOCAL_RANK=4)
    told = refused(group.USAGE, "tune", "--shape", "8x8")
    assert "this is process 4 of this machine by its launcher, and CUDA sees 4 GPUs" in told
    ok("tune", "--shape", "8x8", "--gpus", "3")  # what is said counts more
