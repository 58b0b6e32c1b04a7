"""Launches that may run at once do not share a workspace: threads, graphs, what was interrupted."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

import softgen
from softgen.call.kernel import Kernel
from softgen.call.library import library_of
from softgen.devices.gpu import workspace
from softgen.devices.gpu.device import require_device

pytestmark = pytest.mark.gpu

# Grids of 50 to 490 blocks: several of them run at once on a large GPU.
SHAPES = [(1, 100001), (1, 1000001), (4, 30000)]
ODD = 100001


@pytest.fixture(autouse=True)
def fresh_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "_idle", {}, raising=False)


def two_inputs(rows: int, cols: int) -> tuple[Kernel, list[Any], list[Any]]:
    """Return a kernel that takes a workspace, two inputs, and what it gives for them."""
    import cupy

    kernel = softgen.plan("softmax", "float32", cols, rows=rows, variant="split")
    draw = cupy.random.default_rng(cols)
    x = [draw.standard_normal((rows, cols), dtype="float32") * (3 + 2 * i) for i in (0, 1)]
    wanted = [kernel(each) for each in x]
    cupy.cuda.runtime.deviceSynchronize()
    return kernel, x, wanted


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_threads_on_their_own_default_streams(rows: int, cols: int) -> None:
    """Handle 2 is the default stream of whatever thread asks, so it is another in each."""
    import cupy

    kernel, x, wanted = two_inputs(rows, cols)
    outputs = [[cupy.zeros_like(each) for _ in range(20)] for each in x]
    cupy.cuda.runtime.deviceSynchronize()
    wrong, errors, together = [0, 0], [], threading.Barrier(2)

    def work(i: int) -> None:
        try:
            cupy.cuda.runtime.setDevice(0)
            launch = kernel.loaded.launcher(rows)
            for _ in range(200):
                together.wait()
                for y in outputs[i]:
                    launch((x[i].data.ptr, y.data.ptr), cupy.cuda.runtime.streamPerThread)
                cupy.cuda.runtime.streamSynchronize(cupy.cuda.runtime.streamPerThread)
                wrong[i] += sum(not bool((y == wanted[i]).all()) for y in outputs[i])
        except Exception as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert wrong == [0, 0]


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_graphs_of_one_stream_replayed_at_once(rows: int, cols: int) -> None:
    import cupy

    _, x, wanted = two_inputs(rows, cols)
    y = [cupy.empty_like(each) for each in x]
    captured = cupy.cuda.Stream(non_blocking=True)
    graphs = []
    with captured:
        softgen.softmax(x[0], out=y[0], variant="split")
        for i in (0, 1):
            captured.begin_capture()
            for _ in range(50):
                softgen.softmax(x[i], out=y[i], variant="split")
            graphs.append(captured.end_capture())
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in graphs]
    for _ in range(20):
        for each in y:
            each.fill(0)
        cupy.cuda.runtime.deviceSynchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            graph.launch(stream)
        cupy.cuda.runtime.deviceSynchronize()
        for i in (0, 1):
            assert (y[i] == wanted[i]).all()


def test_a_graph_replayed_beside_calls_on_the_stream_it_was_captured_on() -> None:
    import cupy

    _, x, wanted = two_inputs(1, ODD)
    y = [cupy.empty_like(each) for each in x]
    captured, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with captured:
        softgen.softmax(x[0], out=y[0], variant="split")
        captured.begin_capture()
        for _ in range(50):
            softgen.softmax(x[0], out=y[0], variant="split")
        graph = captured.end_capture()
    for _ in range(20):
        for each in y:
            each.fill(0)
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(other)
        with captured:
            for _ in range(50):
                softgen.softmax(x[1], out=y[1], variant="split")
        cupy.cuda.runtime.deviceSynchronize()
        for i in (0, 1):
            assert (y[i] == wanted[i]).all()


def test_the_usual_recipe_of_pytorch() -> None:
    """Warm up on a side stream, capture on torch.cuda.graph's own."""
    torch = pytest.importorskip("torch")
    x = torch.randn(2, ODD, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            softgen.softmax(x, variant="split")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = softgen.softmax(softgen.softmax(x, variant="split"), variant="split")
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(y, torch.softmax(torch.softmax(x, -1), -1))


def test_graphs_of_pytorch_replayed_at_once() -> None:
    """torch.cuda.graph captures all of them on one stream of its own."""
    torch = pytest.importorskip("torch")
    x = [torch.randn(1, ODD, device="cuda") * (3 + 2 * i) for i in (0, 1)]
    wanted = [softgen.softmax(each, variant="split") for each in x]
    graphs, results = [], []
    for each in x:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append([softgen.softmax(each, variant="split") for _ in range(50)])
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in graphs]
    for _ in range(20):
        torch.cuda.synchronize()
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        torch.cuda.synchronize()
        for got, right in zip(results, wanted, strict=True):
            assert all(torch.equal(y, right) for y in got)


def test_a_workspace_goes_with_the_graph_it_belongs_to() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(1, ODD, device="cuda")
    softgen.softmax(x, variant="split")
    torch.cuda.synchronize()
    for _ in range(3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = softgen.softmax(x, variant="split")
        graph.replay()
        torch.testing.assert_close(y, torch.softmax(x, -1))
    del graph, y
    gc.collect()
    captures = [key for key in workspace._idle if key[2]]
    assert len(captures) <= 1  # of the last capture on that stream


def test_two_branches_of_one_capture() -> None:
    torch = pytest.importorskip("torch")
    x = [torch.randn(1, ODD, device="cuda") * (3 + 2 * i) for i in (0, 1)]
    wanted = [softgen.softmax(each, variant="split") for each in x]
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            b = [softgen.softmax(x[1], variant="split") for _ in range(30)]
        a = [softgen.softmax(x[0], variant="split") for _ in range(30)]
        here.wait_stream(side)
    for _ in range(20):
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(y, wanted[0]) for y in a)
        assert all(torch.equal(y, wanted[1]) for y in b)


def test_a_capture_that_is_given_up_leaves_nothing() -> None:
    """Its clearing never ran, and calls on the stream go on."""
    torch = pytest.importorskip("torch")
    x = torch.randn(1, ODD, device="cuda")
    right = softgen.softmax(x, variant="split")
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()

    def given_up() -> None:
        with torch.cuda.graph(graph, stream=stream):
            softgen.softmax(x, variant="split")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        given_up()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            assert torch.equal(softgen.softmax(x, variant="split"), right)
    for _ in range(3):
        assert torch.equal(softgen.softmax(x, variant="split"), right)


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_launch_that_did_not_end_well_spoils_no_other(failure: type[BaseException]) -> None:
    cupy = require_device()
    kernel, x, wanted = two_inputs(1, ODD)
    stream = cupy.cuda.get_current_stream().ptr
    launch, y = kernel.loaded.launcher(1), cupy.empty_like(x[0])
    launch((x[0].data.ptr, y.data.ptr), stream)
    values, _, lent, kept = launch.make()

    def fails() -> int:
        cupy.cuda.runtime.memset(values[3], 0xFF, 408)
        raise failure

    launch.take = lambda: (values, fails, lent, kept)
    with pytest.raises(failure):
        launch((x[0].data.ptr, y.data.ptr), stream)
    launch.take = launch.make
    launch((x[1].data.ptr, y.data.ptr), stream)
    cupy.cuda.runtime.deviceSynchronize()
    assert (y == wanted[1]).all()


def test_memory_comes_from_the_stream_it_is_used_on() -> None:
    """A block that another stream freed may still be written by that stream's work."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    seen = []
    allocator, _ = library_of(cupy.empty(1))

    class Watched:
        mallocs_in_capture = True

        def scratch(self, size: int, device: int, handle: int) -> tuple[Any, int]:
            owner, address = allocator.scratch(size, device, handle)
            seen.append((handle, owner.data.mem))
            return owner, address

    key, found = workspace.lend(Watched(), 0, stream.ptr, 4096)
    assert key[0] == 0
    assert key[2] == 0
    assert seen[0][0] == stream.ptr
    workspace.give_back(key, found, stream.ptr)
    assert workspace.lend(Watched(), 0, stream.ptr, 4096)[1] is found
    assert workspace.lend(Watched(), 0, 0, 4096)[0] != key
