"""What the set-up of the tests promises itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import os, time
import pytest
from tests.conftest import alone_on_the_gpu

@pytest.mark.gpu
@pytest.mark.parametrize("i", range(6))
def test_on_the_gpu(i):
    with open("log", "a", buffering=1) as log:
        log.write(f"{os.getpid()} starts\\n")
        time.sleep(0.1)
        log.write(f"{os.getpid()} ends\\n")
"""


def test_one_process_at_a_time_is_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "test_gpu.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: on the GPU\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
    # pytest deletes what earlier runs left in its own place: tens of thousands of folders.
    command += ["--basetemp", str(tmp_path / "base")]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = (tmp_path / "log").read_text().split("\n")[:-1]
    assert len(lines) == 12
    processes = [line.split()[0] for line in lines]
    assert len(set(processes)) == 2
    assert processes[0::2] == processes[1::2]
    assert [line.split()[1] for line in lines] == ["starts", "ends"] * 6
