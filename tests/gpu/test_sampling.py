"""sample on the GPU: ids of every strategy and alignment, and how often columns are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

cupy = pytest.importorskip("cupy")

import softgen  # noqa: E402
from softgen.problems.functions.sample import Sample  # noqa: E402
from tests.cpu.verify.test_sample import chi_squared  # noqa: E402

pytestmark = pytest.mark.gpu

STRATEGIES = ("online", "block", "cluster", "split", "shared")
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"top_k": 20, "min_p": 0.001},
    {"top_k": 300},
    {"top_p": 0.5},
)


def drawn(rows: int, cols: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(rows, cols)).astype(np.float32) * 3


@pytest.mark.parametrize("cols", [1000, 4096, 20000, 50257, 128256])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8"])
def test_every_strategy_and_alignment_draws_the_same(cols: int, kind: str) -> None:
    x = cupy.asarray(drawn(33, cols).astype(kind))
    wanted, log_probs = softgen.sample(x, temperature=0.7, seed=5, offset=9, variant="safe")
    served = 0
    for strategy in STRATEGIES:
        try:
            found = softgen.sample(x, temperature=0.7, seed=5, offset=9, variant=strategy)
        except (softgen.IllegalVariantError, softgen.InvalidValueError):  # has no setting here
            continue
        served += 1
        cupy.testing.assert_array_equal(found[0], wanted)
        cupy.testing.assert_allclose(found[1], log_probs, rtol=1e-5, atol=1e-5)
    assert served > 1
    wide = cupy.empty((33, cols + 1), kind)
    wide[:, 1:] = x
    view = softgen.sample(wide[:, 1:], temperature=0.7, seed=5, offset=9, tune="off")
    cupy.testing.assert_array_equal(view[0], wanted)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_rows_with_seeds_draw_the_same_in_any_batch(filters: dict[str, Any]) -> None:
    x, seeds = cupy.asarray(drawn(64, 5000)), cupy.arange(64) * 7919
    ids, log_probs = softgen.sample(x, temperature=0.8, seed=seeds, tune="off", **filters)
    for some in (slice(3, 4), slice(10, 50, 3)):
        given = {"temperature": 0.8, "seed": seeds[some], "tune": "off", **filters}
        found = softgen.sample(cupy.ascontiguousarray(x[some]), **given)
        cupy.testing.assert_array_equal(found[0], ids[some])
        cupy.testing.assert_allclose(found[1], log_probs[some], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_ids_are_those_of_the_reference(filters: dict[str, Any]) -> None:
    x = drawn(50, 700)
    ids, _ = softgen.sample(cupy.asarray(x), seed=3, tune="off", **filters)
    numbers = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    given = tuple(np.float64(1) * numbers[n] for n in ("top_k", "top_p", "min_p"))
    function = Sample(filtered=bool(filters))
    inputs = (x.astype(np.float64), np.float64(1), np.array(3), np.array(0))
    exact = function.reference(*inputs, *(given if filters else ()))
    found = (exact[0], ids.get())
    right = function.settled(exact, found, *inputs, *(given if filters else ()))[1]
    np.testing.assert_array_equal(ids.get(), right)


@pytest.mark.parametrize("cols", [40, 3000])
def test_a_million_draws_are_as_often_as_they_should(cols: int) -> None:
    x = drawn(1, cols, seed=1)[0] / 6
    p = np.exp(x.astype(np.float64) / 0.8)
    rows = cupy.broadcast_to(cupy.asarray(x), (10**5, cols))
    ids = [
        softgen.sample(cupy.ascontiguousarray(rows), temperature=0.8, seed=1, offset=n)[0]
        for n in range(10)
    ]
    statistic, bound = chi_squared(cupy.concatenate(ids).get(), p / p.sum())
    assert statistic < bound
