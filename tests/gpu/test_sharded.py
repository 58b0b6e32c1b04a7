"""Sharded kernels on a GPU: two streams of it stand for two devices, on rows that both hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from softgen.devices.gpu.compile import compile_source
from softgen.devices.gpu.kernel import LoadedKernel
from softgen.problems.numerics import Storage, encode
from softgen.problems.shards import mailbox_bytes
from softgen.problems.storage import storage_dtype
from softgen.source.render import render
from softgen.strategies.variants import parse_name
from softgen.verify.sharded import accuracy_of, agree

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

PAIRS = [
    (
        "softmax_f32_100_sharded_block_p4_c4_g64_b128_m1_pdl1",
        "softmax_f32_5000_sharded_cluster_p4_c20_b128_k2_m10_pdl2",
    ),
    (
        "log_softmax_lse_f16_1001_sharded_block_p8_c8_g128_b256_m6_pdl1",
        "log_softmax_lse_f16_1_sharded_block_p1_c1_g64_b64_m1",
    ),
    (
        "entropy_f64_3001_sharded_block_p2_c16_g192_b192_m3_pdl1",
        "entropy_f64_1000_sharded_block_p2_c16_g64_b64_m1_pdl1",
    ),
]
ROOM, ROWS = 16, 13
PATIENCE = 10**10


class Peers:
    """Mailboxes of two shards, and a stream for each."""

    def __init__(self) -> None:
        self.boxes = [cupy.zeros(mailbox_bytes(2, ROOM), "uint8") for _ in range(2)]
        self.addresses = cupy.array([box.data.ptr for box in self.boxes], "int64")
        self.pinned = cupy.cuda.alloc_pinned_memory(8)
        self.alarms = np.frombuffer(self.pinned, np.uint32, 2)
        self.alarms[:] = 0
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
        cupy.cuda.Device().synchronize()

    def launch(
        self, kernel: LoadedKernel, shard: int, x: Any, out: Sequence[Any], patience: int = PATIENCE
    ) -> None:
        """Launch; the results are there when the stream has ended."""
        mine = (self.boxes[shard].data.ptr, self.pinned.ptr + 4 * shard)
        words = (self.addresses.data.ptr, *mine, shard, 2, ROOM, patience)
        arrays = (x.data.ptr, *(each.data.ptr for each in out))
        kernel.launch([*arrays, *words], len(x), self.streams[shard].ptr)

    def wait(self) -> None:
        for stream in self.streams:
            stream.synchronize()


@pytest.fixture
def peers() -> Iterator[Peers]:
    found = Peers()
    yield found
    found.wait()


def results_of(kernel: LoadedKernel, rows: int) -> list[Any]:
    """Return arrays for results. None is allocated while a kernel may wait for the next one."""
    problem = kernel.variant.problem
    return [
        cupy.empty(o.shape(rows, problem.cols), storage_dtype(o.dtype)) for o in problem.results
    ]


def rows_of(kernel: LoadedKernel, seed: int) -> Storage:
    problem = kernel.variant.problem
    x = np.random.default_rng([seed, problem.cols]).standard_normal((ROWS, problem.cols)) * 4
    x[seed % ROWS] = -np.inf
    x[seed % ROWS - 1, 0] = np.nan
    return encode(np.full_like(x, -np.inf) if problem.cols == 1 else x, problem.dtype)


@pytest.mark.parametrize("names", PAIRS, ids=lambda names: names[0].partition("_sharded")[0])
def test_two_shards_in_many_launches(names: tuple[str, str], peers: Peers) -> None:
    """All are under way at once; launches of one row are among them, and either is first."""
    kernels = [compile_source(render(parse_name(name))) for name in names]
    problem = kernels[0].variant.problem
    hosts = [[rows_of(kernel, 10 * i + j) for j, kernel in enumerate(kernels)] for i in range(4)]
    hosts = [[x[: 1 if i == 2 else ROWS] for x in pair] for i, pair in enumerate(hosts)]
    arrays = [[cupy.asarray(x) for x in pair] for pair in hosts]
    found = [[results_of(k, len(x)) for k in kernels] for i in range(40) for x in hosts[i % 4][:1]]
    cupy.cuda.Device().synchronize()
    for i, pair in enumerate(found):
        for j in (0, 1) if i % 3 else (1, 0):
            peers.launch(kernels[j], j, arrays[i % 4][j], pair[j])
    peers.wait()
    assert peers.alarms.tolist() == [0, 0]
    for i, pair in enumerate(found):
        results = [tuple(map(cupy.asnumpy, each)) for each in pair]
        accuracy = accuracy_of(problem, hosts[i % 4], results)
        assert accuracy.ok, f"launch {i}: {accuracy.message}"
        assert agree(problem, results)


def test_a_shard_that_never_comes_is_named(peers: Peers) -> None:
    kernel = compile_source(render(parse_name(PAIRS[0][1])))
    x = cupy.asarray(rows_of(kernel, 1))
    (y,) = out = results_of(kernel, ROWS)
    cupy.cuda.Device().synchronize()
    peers.launch(kernel, 1, x, out, patience=20_000_000)
    peers.wait()
    assert peers.alarms.tolist() == [0, 1]
    assert bool(cupy.isnan(y).all())
