"""Streams, graph capture, tuning and its cache on the GPU."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import softgen
from softgen.call.kernel import Kernel
from softgen.devices.gpu.device import arch_of, environment
from softgen.problems.dtypes import DType
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.problem import Problem
from softgen.strategies.variants import candidates
from softgen.tuning import cache, policy
from softgen.tuning import tune as tuner
from softgen.tuning.entry import Key
from softgen.tuning.gate import Gate
from softgen.tuning.measure import Buffers
from tests.helpers.device_reference import device_normal, error_over_bound

pytestmark = pytest.mark.gpu


def test_runs_on_the_callers_stream() -> None:
    import cupy

    x = cupy.zeros((4096, 8192), "float32")
    softgen.softmax(x, tune="off")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for _ in range(20):  # keeps the stream busy; a launch elsewhere would read x too early
            x += 1
        x[:, 0] = 3
        y = softgen.softmax(x, tune="off")
    stream.synchronize()
    assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1


def test_capture_needs_a_warm_call_and_then_replays() -> None:
    import cupy

    x = device_normal(32, 777, DType.FLOAT32)
    y = cupy.empty_like(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(softgen.CaptureError, match="call it once before"):
            softgen.softmax(x, out=y)
        with pytest.raises(softgen.CaptureError, match="pass out="):
            softgen.softmax(x)
        stream.end_capture()
        softgen.softmax(x, out=y)
        stream.begin_capture()
        softgen.softmax(x, out=y)
        graph = stream.end_capture()
        y[...] = 0
        x += 1
        graph.launch(stream)
    stream.synchronize()
    assert error_over_bound(y, x, SOFTMAX, DType.FLOAT32) <= 1


def test_torch_graph_allocates_its_result() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(64, 500, device="cuda", dtype=torch.bfloat16)
    softgen.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = softgen.softmax(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, -1))


def test_a_call_tunes_once_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    x = device_normal(100, 640, DType.FLOAT32)
    with caplog.at_level(logging.INFO, "softgen"):
        softgen.softmax(x)
        softgen.softmax(x)
    assert [r.message.split(" for ")[0] for r in caplog.records] == ["tuned softmax_f32_640"]
    (entry,) = cache.entries()
    assert entry.key.rows == 128
    assert entry.winner.name in {timing.variant for timing in entry.timings}
    assert entry.failures == ()
    fastest = entry.timings[0]
    assert 0 < fastest.p10 <= fastest.microseconds <= fastest.p90


TUNED_ELSEWHERE = """
import sys, time, cupy, softgen, softgen.tuning.tune
def timed(*args, **kwargs): raise SystemExit("the second process tuned again")
softgen.tuning.tune.tune = timed
x = cupy.ones((4096, 1024), "float32")
softgen.softmax(x)
from softgen.call.kernels import _kernels
(kernel,) = _kernels.values()
print(kernel.variant.name)
"""


def test_a_second_process_uses_the_winner_without_timing(own_cache: Path) -> None:
    entry = tuner.tune(Problem.of("softmax", "float32", 1024), 4096)
    (path,) = (own_cache / "tuned").glob("*.json")
    before = path.stat().st_mtime_ns
    answer = subprocess.run(
        [sys.executable, "-c", TUNED_ELSEWHERE],
        env={**os.environ, "SOFTGEN_CACHE_DIR": str(own_cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == entry.winner.name
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["", "{", '{"schema": 99}', '["not", "an", "entry"]'])
def test_a_damaged_entry_is_a_miss(
    damage: str, own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problem = Problem.of("softmax", "float32", 96)
    entry = tuner.tune(problem, 64, budget=0.2)
    (path,) = (own_cache / "tuned").glob("*.json")
    path.write_text(damage)
    with caplog.at_level(logging.WARNING, "softgen"):
        assert policy.choose(problem, 64, 0, "cached").variant.problem == problem
    assert str(path) in caplog.text
    assert cache.load(entry.key, arch_of(0)) is None


def test_an_entry_with_an_illegal_parameter_is_a_miss(own_cache: Path) -> None:
    problem = Problem.of("softmax", "float32", 96)
    tuner.tune(problem, 64, budget=0.2)
    (path,) = (own_cache / "tuned").glob("*.json")
    data = json.loads(path.read_text())
    data["winner"] = {"strategy": "safe", "parameters": {"block_size": 33}}
    path.write_text(json.dumps(data))
    assert cache.load(Key.of(problem, 64, environment(0)), arch_of(0)) is None


def test_the_gate_stops_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from softgen.devices.gpu.compile import compile_source
    from softgen.source.render import render

    problem = Problem.of("softmax", "float32", 1000)
    buffers = Buffers.allocate(problem, 128)
    gate = Gate(problem, buffers)
    source = render(next(candidates(problem, 128, arch_of(0), "warp")))
    assert gate.objection(compile_source(source)) is None
    wrong = source.text.replace("return kept * factor", "return kept * factor * 1.001f")
    assert wrong != source.text
    objection = gate.objection(compile_source(dataclasses.replace(source, text=wrong)))
    assert objection is not None
    assert "128000 of 128000 results differ" in objection


def test_batch_invariance() -> None:
    x = device_normal(4096, 1000, DType.FLOAT32)
    whole = softgen.softmax(x, batch_invariant=True)
    for rows in (1, 7, 300):
        part = softgen.softmax(x[:rows].copy(), batch_invariant=True)
        assert (part == whole[:rows]).all()


def test_kernels_report_their_resources() -> None:
    kernel = softgen.plan("softmax", "float32", 1000, variant="warp")
    assert isinstance(kernel, Kernel)
    assert kernel.local_bytes == 0
    assert 32 < kernel.registers <= 128
