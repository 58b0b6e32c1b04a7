"""softgen.distributed.on_cupy on the arrays of helpers/cupy_calls.py, and threads for processes."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softgen.distributed import gathered, local, on_cupy
from softgen.errors import InvalidTypeError, InvalidValueError
from tests.helpers.cupy_calls import CupyArray, cupy_array, zeros
from tests.helpers.cupy_calls import on_cupy as calls_on_cupy

INF, NAN = float("inf"), float("nan")
WIDTHS = (5, 0, 8)


class Ranks:
    """What a communicator of cupyx.distributed does, between threads."""

    def __init__(self, rank: int, shared: dict[int, Any], barrier: threading.Barrier) -> None:
        self.rank, self.shared, self.barrier = rank, shared, barrier
        self.sent: list[int] = []

    def all_gather(self, mine: Any, every: Any, count: int) -> None:
        assert mine.flags.c_contiguous
        assert (every.size, mine.size) == (count * len(WIDTHS), count)
        self.sent.append(count)
        every[...] = np.stack(self._all(mine)).reshape(every.shape)

    def all_reduce(self, mine: Any, found: Any) -> None:
        found[...] = sum(self._all(mine))

    def _all(self, mine: Any) -> list[Any]:
        self.shared[self.rank] = mine
        self.barrier.wait(20)
        every = [self.shared[i] for i in range(len(WIDTHS))]
        self.barrier.wait(20)
        return every


class OnArrays:
    """NumPy's functions in the place of CuPy's, whose arrays they return."""

    ndarray = CupyArray

    def __getattr__(self, name: str) -> Any:
        found = getattr(np, name)
        if isinstance(found, type):
            return found
        return lambda *given, **options: found(*given, **options).view(CupyArray)


@pytest.fixture
def cupys(monkeypatch: pytest.MonkeyPatch) -> None:
    """softgen's calls on CuPy's arrays, and what is asked of CuPy itself."""
    calls_on_cupy(monkeypatch)
    module = OnArrays()
    monkeypatch.setattr(on_cupy, "_cupy", lambda: module)
    for each in (local, gathered):
        monkeypatch.setattr(each, "module_of", lambda x: module)


def on_all(run: Callable[[Any, Any], Any], x: Any) -> list[Any]:
    """Return run(shard, communicator) of each thread."""
    shared: dict[int, Any] = {}
    barrier = threading.Barrier(len(WIDTHS))
    found: dict[int, Any] = {}
    ends = np.cumsum(WIDTHS)

    def one(rank: int) -> None:
        shard = cupy_array(x[..., ends[rank] - WIDTHS[rank] : ends[rank]])
        with np.errstate(all="ignore"):
            found[rank] = run(shard, Ranks(rank, shared, barrier))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(len(WIDTHS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(WIDTHS), "a thread failed"
    return [found[rank] for rank in range(len(WIDTHS))]


def rows() -> Any:
    """Return whole rows of all regimes, (regime, row, column)."""
    x = np.random.default_rng(0).standard_normal((6, 2, sum(WIDTHS))).astype("float32")
    x[1, :, : WIDTHS[0]] = -INF
    x[2] = -INF
    x[3, 0, 1], x[4, 1, -1] = NAN, INF
    x[5] = x[5] * 8 + 192
    return x


def exact_of(x: Any) -> tuple[Any, Any]:
    """Return log_softmax and lse in float64."""
    x = x.astype("float64")
    m = x.max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        shift = np.where(np.isinf(m), 0, m)
        lse = shift + np.log(np.exp(x - shift).sum(-1, keepdims=True))
        return x - np.where(lse == INF, NAN, lse), lse[..., 0]


def losses_of(target: Any, reduction: str, shard: Any, comm: Any) -> Any:
    return on_cupy.cross_entropy(shard, target, comm, reduction=reduction)


@pytest.mark.usefixtures("cupys")
def test_each_function_is_that_of_whole_rows() -> None:
    x = rows()
    log_p, lse = exact_of(x)
    close = np.testing.assert_allclose
    for found, exact in (
        (on_all(on_cupy.softmax, x), np.exp(log_p)),
        (on_all(on_cupy.log_softmax, x), log_p),
    ):
        assert {each.dtype.name for each in found} == {"float32"}
        close(np.concatenate(found, -1), exact, 3e-6, 3e-6)
    double = on_all(lambda shard, comm: on_cupy.softmax(shard, comm, dtype="float64"), x)
    close(np.concatenate(double, -1), np.exp(log_p), 1e-13, 1e-13)
    for each in on_all(lambda shard, comm: on_cupy.logsumexp(shard, comm, keepdim=True), x):
        close(each[..., 0], lse, 3e-6, 3e-6)
    ids = cupy_array(np.arange(12).reshape(6, 2) % sum(WIDTHS))
    at = np.take_along_axis(log_p, ids[..., None], -1)[..., 0]
    at[0, 0] = NAN  # of an id that nobody has
    ids[0, 0] = 99
    for found_p, found_lse in on_all(
        lambda shard, comm: on_cupy.token_log_probs(shard, ids, comm, return_lse=True), x
    ):
        close(found_p, at, 3e-6, 3e-6)
        close(found_lse, np.where(lse == INF, NAN, lse), 3e-6, 3e-6)
    target = ids.astype("int32")
    target[0, 1] = -100
    losses = np.where(target == -100, 0, -at)
    some = [0, 5], 1  # one of them is ignored
    for reduction, of, exact in (
        ("none", ..., losses),
        ("sum", some, losses[some].sum()),
        ("mean", some, losses[5, 1]),
    ):
        run = functools.partial(losses_of, target[of], reduction)
        for each in on_all(run, x[of]):
            close(each, exact, 3e-6, 3e-6)
            assert each.dtype == "float32", reduction


@pytest.mark.usefixtures("cupys")
def test_pairs_are_all_that_is_sent_and_columns_are_asked_for_once() -> None:
    x, ids = rows(), cupy_array(np.zeros((6, 2, 3), "int64"))

    def run(shard: Any, comm: Any) -> list[int]:
        on_cupy.softmax(shard, comm)
        on_cupy.logsumexp(shard, comm)
        for _ in range(2):
            on_cupy.token_log_probs(shard, ids, comm)
        on_cupy.token_log_probs(shard[:1], ids[:1], comm, offset=0)
        sent: list[int] = comm.sent
        return sent

    assert on_all(run, x) == [[24, 12, 1, 60, 60, 10]] * 3


@pytest.mark.usefixtures("cupys")
def test_bad_input_is_told_what_is_wrong() -> None:
    x, target = zeros(2, 3), cupy_array(np.zeros(2, "int64"))
    with pytest.raises(InvalidTypeError, match="takes CuPy arrays, got list"):
        on_cupy.softmax([1.0], None)
    with pytest.raises(InvalidValueError, match="along its last axis"):
        on_cupy.softmax(x[0, 0, None].reshape(()), None)
    with pytest.raises(InvalidValueError, match=r"shape of x's rows, \(2,\), got \(3,\)"):
        on_cupy.cross_entropy(x, cupy_array(np.zeros(3, "int64")), None)
    with pytest.raises(InvalidValueError, match="or one axis more"):
        on_cupy.token_log_probs(x, cupy_array(np.zeros((3, 1), "int64")), None)
    with pytest.raises(InvalidTypeError, match="int32 or int64, got float32"):
        on_cupy.cross_entropy(x, x[:, 0], None)
    with pytest.raises(InvalidTypeError, match=r"ids must be a CuPy array .* got list"):
        on_cupy.token_log_probs(x, [0, 1], None)
    with pytest.raises(InvalidValueError, match="did you mean"):
        on_cupy.cross_entropy(x, target, None, reduction="means")
    with pytest.raises(InvalidTypeError, match=r"ignore_index must be an int, got 1\.5"):
        on_cupy.cross_entropy(x, target, None, ignore_index=1.5)  # type: ignore[arg-type]
    for run in (on_cupy.cross_entropy, on_cupy.token_log_probs):
        with pytest.raises(InvalidValueError, match="first column, 0 or above, got -1"):
            run(x, target, None, offset=-1)


def test_it_needs_no_pytorch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from softgen.distributed import on_cupy\n"
        "import softgen.distributed\n"
        "try: softgen.distributed.softmax\n"
        "except ImportError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "softgen.distributed needs PyTorch" in run.stdout
    assert "on_cupy" in run.stdout
