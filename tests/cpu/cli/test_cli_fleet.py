"""softgen tune --gpus: real processes that share the shapes, with a tuner that needs no GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softgen.cli import group
from softgen.devices.gpu import device
from softgen.problems.arch import Arch, arch_named
from softgen.tuning import cache, fleet, process
from tests.helpers import fake_tuner
from tests.helpers.cli_helpers import ROOT, cli, document, ok, refused
from tests.helpers.fake_tuner import (
    BROKEN_DEVICE,
    CRASHING_COLS,
    HANGING_COLS,
    HANGING_DEVICE,
    HANGING_ONCE_COLS,
    INTERRUPTING_COLS,
    KILLING_COLS,
    KILLING_ONCE_COLS,
    MEETING_COLS,
    PRINTING_COLS,
    WAITING_COLS,
    WRONG_COLS,
    log,
    until,
)

COUNT = 16  # of GPUs that CUDA seems to see


@pytest.fixture(autouse=True)
def _fake_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(device, "unavailable_reason", lambda: None)
    monkeypatch.setattr(device, "count", lambda: COUNT)
    monkeypatch.setattr(device, "arch_of", lambda number: arch_named("sm_90"))
    monkeypatch.setattr(process, "WORKER", "tests.helpers.fake_tuner")
    monkeypatch.setenv(fake_tuner.LOG, str(tmp_path / "log"))


def stored() -> set[int]:
    """Return the columns that the cache has entries of."""
    return {entry.key.problem.cols for entry in cache.entries()}


def shapes(*cols: int) -> list[str]:
    return [word for each in cols for word in ("--shape", f"64x{each}")]


def test_two_gpus_print_what_one_prints_and_name_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("tune", *shapes(1000, MEETING_COLS, 8, 512), "--dtype", "float16", "--json")
    result = ok(*words, "--gpus", "0,1")
    assert {begun.device for begun in log()} == {0, 1}
    assert "GPU 0: softmax float16 64x" in result.stderr
    assert "GPU 1: softmax float16 64x" in result.stderr
    assert "(4 of 4)" in result.stderr
    assert stored() == {1000, MEETING_COLS, 8, 512}
    monkeypatch.setattr("softgen.tuning.tune.tune", fake_tuner.fake_tune)
    assert document(result) == document(ok(*words))


def test_the_largest_shape_goes_first() -> None:
    ok("tune", *shapes(8, 2048, 512), "--gpus", "3")
    assert [(number, cols) for number, cols, _ in log()] == [(3, 2048), (3, 512), (3, 8)]


def test_all_gpus_is_as_many_processes_as_there_are_shapes() -> None:
    ok("tune", *shapes(8, 16), "--gpus", "all")
    assert {begun.device for begun in log()} <= {0, 1}


def test_what_a_killed_worker_had_is_done_by_another_and_nothing_else_is_lost() -> None:
    result = ok("tune", *shapes(KILLING_ONCE_COLS, 1000, 8, 16), "--gpus", "0,1", "--json")
    assert [line["cols"] for line in document(result)] == [KILLING_ONCE_COLS, 1000, 8, 16]
    tries = [number for number, cols, _ in log() if cols == KILLING_ONCE_COLS]
    assert len(tries) == 2
    assert set(tries) == {0, 1}
    ended = f"GPU {tries[0]}: its process ended at softmax float32 64x5000 (killed by SIGKILL)"
    assert ended in result.stderr
    assert stored() == {KILLING_ONCE_COLS, 1000, 8, 16}


def test_one_gpu_alone_tries_a_lost_shape_in_a_new_process() -> None:
    ok("tune", *shapes(8, KILLING_ONCE_COLS), "--gpus", "0")
    assert [cols for _, cols, _ in log()] == [KILLING_ONCE_COLS, KILLING_ONCE_COLS, 8]


def test_a_shape_that_ends_two_workers_fails_by_name_and_the_others_are_tuned() -> None:
    result = cli("tune", *shapes(1000, KILLING_COLS, 8, 16), "--gpus", "0,1", "--json")
    assert result.exit_code == group.FAILED
    assert [line["cols"] for line in document(result)] == [1000, 8, 16]
    assert stored() == {1000, 8, 16}
    assert "error: softmax float32 64x6000: the process that tuned it ended on GPU" in result.stderr
    assert result.stderr.count("(killed by SIGKILL)") == 4  # each as it ended, and in the error


def test_an_error_that_is_not_softgens_ends_its_process_with_its_words() -> None:
    result = cli("tune", *shapes(CRASHING_COLS, 8), "--gpus", "2")
    assert result.exit_code == group.FAILED
    why = "(exit code 1: RuntimeError: an illegal memory access was encountered)"
    assert f"on GPU 2 {why} and on GPU 2 {why}" in result.stderr
    assert stored() == {8}


def test_what_a_worker_prints_is_told_and_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "UNBOUNDED_SECONDS", 15.0)
    result = ok("tune", *shapes(PRINTING_COLS, 8), "--gpus", "3", "--json")
    assert [line["cols"] for line in document(result)] == [PRINTING_COLS, 8]
    for language in ("Python", "C"):
        assert f"GPU 3: printed by {language}\n" in result.stderr
    assert [begun.cols for begun in log()] == [PRINTING_COLS, 8]


def test_a_shape_that_cannot_be_tuned_has_its_errors_exit_code() -> None:
    result = cli("tune", *shapes(WRONG_COLS, 8, 16), "--gpus", "0,1")
    assert result.exit_code == group.WRONG_RESULT
    assert "error: softmax float32 64x7000, on GPU " in result.stderr
    assert "no candidate works" in result.stderr
    assert [cols for _, cols, _ in log()].count(WRONG_COLS) == 1
    assert stored() == {8, 16}


def test_a_gpu_that_cannot_be_used_leaves_its_part_to_the_others() -> None:
    result = ok("tune", *shapes(8, 16, MEETING_COLS), "--gpus", f"0,{BROKEN_DEVICE}")
    assert "GPU 9: nothing more is tuned on it" in result.stderr
    assert "the device is not there" in result.stderr
    assert stored() == {8, 16, MEETING_COLS}


def test_shapes_that_no_gpu_is_left_for_are_named() -> None:
    result = cli("tune", *shapes(8, 16), "--gpus", str(BROKEN_DEVICE))
    assert result.exit_code == group.FAILED
    for cols in (8, 16):
        assert f"error: softmax float32 64x{cols}: no GPU is left to tune it on" in result.stderr


def test_a_gpu_whose_processes_keep_ending_is_given_up() -> None:
    lost = [KILLING_COLS] * fleet.MOST_ENDS
    result = cli("tune", *shapes(8, *lost), "--gpus", "0")
    assert result.exit_code == group.FAILED
    assert "GPU 0: nothing more is tuned on it" in result.stderr
    assert "64x8: no GPU is left" in result.stderr
    assert len(log()) == fleet.MOST_ENDS


def test_what_a_hanging_worker_had_is_done_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is alive and gives no answer, as one that waits for a GPU which has stopped."""
    monkeypatch.setattr(fleet, "ANSWER_SECONDS", 5.5)  # the other took more than 2 s once
    words = ("tune", *shapes(HANGING_ONCE_COLS, 8, 16), "--gpus", "0,1", "--budget", "0.25")
    result = ok(*words, "--json")
    assert [line["cols"] for line in document(result)] == [HANGING_ONCE_COLS, 8, 16]
    first, second = (each for each in log() if each.cols == HANGING_ONCE_COLS)
    assert {first.device, second.device} == {0, 1}
    shape = f"softmax float32 64x{HANGING_ONCE_COLS}"
    told = f"its process is killed at {shape} (no answer for 6 s with a budget of 0.25 s)"
    assert f"GPU {first.device}: {told}" in result.stderr
    assert gone(first.pid)


def test_a_shape_at_which_two_workers_hang_fails_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "UNBOUNDED_SECONDS", 1.0)
    result = cli("tune", *shapes(HANGING_COLS, 8), "--gpus", "0", "--json")
    assert result.exit_code == group.FAILED
    assert [line["cols"] for line in document(result)] == [8]
    ends = "GPU 0 (no answer for 1 s) and on GPU 0 (no answer for 1 s)"
    shape = f"softmax float32 64x{HANGING_COLS}"
    assert f"error: {shape}: the process that tuned it ended on {ends}" in result.stderr


def test_a_gpu_that_never_gets_ready_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "STARTING_SECONDS", 1.5)
    result = cli("tune", *shapes(8), "--gpus", str(HANGING_DEVICE))
    assert result.exit_code == group.FAILED
    assert "GPU 10: its process is killed (no answer for 1.5 s)" in result.stderr
    assert "GPU 10: nothing more is tuned on it" in result.stderr
    assert "64x8: no GPU is left to tune it on" in result.stderr
    assert all(gone(each.pid) for each in log())


def test_a_process_that_does_not_end_is_left_with_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the driver hangs: a signal ends it when the driver comes back."""
    monkeypatch.setattr(fleet, "ANSWER_SECONDS", 0.5)
    end = process.Process.end
    monkeypatch.setattr(process.Process, "end", lambda self: end(self) and self.slot != 0)
    result = cli("tune", *shapes(HANGING_COLS, 8), "--gpus", "0", "--budget", "0.25")
    assert result.exit_code == group.FAILED
    assert "GPU 0: its process does not end; the GPU or its driver hangs" in result.stderr
    assert "64x8: no GPU is left to tune it on" in result.stderr


PROGRAM = """
from softgen.devices.gpu import device
from softgen.problems.arch import arch_named
from softgen.tuning import fleet, process

device.unavailable_reason = lambda: None
device.count = lambda: 2
device.arch_of = lambda number: arch_named("sm_90")
process.WORKER = "tests.helpers.fake_tuner"
from softgen.cli import app
app()
"""


@pytest.fixture
def waiting() -> Iterator[subprocess.Popen[str]]:
    """A command whose second shape takes a minute, at that shape."""
    words = ("tune", "--shape", "1x8", "--shape", f"1x{WAITING_COLS}", "--gpus", "0,1", "--json")
    command = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell lets the commands of a script that run in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    until(lambda: any(cols == WAITING_COLS for _, cols, _ in log()) and stored() == {8})
    yield command
    command.kill()
    command.communicate()


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_ctrl_c_ends_all_processes_and_keeps_what_is_finished(
    waiting: subprocess.Popen[str],
) -> None:
    workers = children(waiting.pid)
    assert workers
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == group.INTERRUPTED
    assert "interrupted; 1 of 2 shapes are tuned and stored" in err
    assert '"cols": 8' in out
    assert all(gone(pid) for pid in workers)


def test_workers_end_with_a_command_that_is_killed(waiting: subprocess.Popen[str]) -> None:
    workers = children(waiting.pid)
    assert workers
    waiting.kill()
    waiting.communicate(timeout=30)
    until(lambda: all(gone(pid) for pid in workers))


def test_what_another_process_kills_is_done_again(waiting: subprocess.Popen[str]) -> None:
    """As the kernel of the system does where memory is short."""
    (first,) = [begun for begun in log() if begun.cols == WAITING_COLS]
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: [begun.cols for begun in log()].count(WAITING_COLS) == 2)
    second = log()[-1]
    assert {first.device, second.device} == {0, 1}
    os.kill(second.pid, signal.SIGKILL)
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == group.FAILED
    ends = " and on ".join(f"GPU {each.device} (killed by SIGKILL)" for each in (first, second))
    assert f"softmax float32 1x{WAITING_COLS}: the process that tuned it ended on {ends}" in err
    assert '"cols": 8' in out


def test_ctrl_c_in_a_worker_is_an_error_of_its_own() -> None:
    """A terminal's Ctrl-C does not reach it: it has a session of its own."""
    result = cli("tune", *shapes(INTERRUPTING_COLS, 8), "--gpus", "0")
    assert result.exit_code == group.FAILED
    assert stored() == {8}


def refused_gpus(text: str) -> str:
    return refused(group.USAGE, "tune", "--shape", "8x8", "--gpus", text)


@pytest.mark.parametrize("text", ["", "one", "0,", "0;1", "-1", "0-3"])
def test_other_gpus_say_how_to_name_them(text: str) -> None:
    assert "write all, or their numbers, for example 0,1" in refused_gpus(text)


def test_a_gpu_that_is_not_there() -> None:
    told = refused_gpus("0,16")
    assert "there is no GPU 16 here; CUDA sees 16 GPUs, GPUs 0 to 15" in told


def test_gpus_of_two_models_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    models: dict[int, Arch] = {0: arch_named("sm_90"), 1: arch_named("sm_80")}
    monkeypatch.setattr(device, "count", lambda: 2)
    monkeypatch.setattr(device, "arch_of", models.__getitem__)
    assert "tune on each alone: --gpus 0, then --gpus 1" in refused_gpus("all")
    assert refused_gpus("0,1") == refused_gpus("all")
    ok("tune", "--shape", "8x8", "--gpus", "1")


def test_gpus_go_without_a_grid(tmp_path: Path) -> None:
    words = ("--strategy", "threepass", "--grid", tmp_path / "x.csv")
    told = refused(group.USAGE, "tune", "--shape", "8x8", "--gpus", "all", *words)
    assert "--gpus and --shard go without --grid" in told
