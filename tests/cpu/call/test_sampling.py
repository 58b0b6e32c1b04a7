"""sample on CuPy arrays: which kernel a call asks for, with which arrays, its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgen.call.sampling import sample
from softgen.errors import InvalidTypeError, InvalidValueError
from softgen.problems.hooks.draw import noise
from tests.helpers.cupy_calls import World, cupy_array, drawn

ROWS, COLS = 5, 16


def chosen(z: Any, seed: Any, offset: int = 0) -> Any:
    """Return the ids of rows, of any shape."""
    flat = np.asarray(z, np.float64).reshape(-1, z.shape[-1])
    keys = flat - noise(
        *flat.shape, np.asarray(seed).reshape(-1) if np.ndim(seed) else seed, offset
    )
    return keys.argmax(axis=1).reshape(z.shape[:-1])


def log_probs_of(z: Any, ids: Any) -> Any:
    z = np.asarray(z, np.float64)
    lse = np.log(np.exp(z).sum(axis=-1))
    return np.take_along_axis(z, ids[..., None], -1)[..., 0] - lse


def test_a_number_each(world: World) -> None:
    x = drawn(2, ROWS, COLS)
    for _again in range(3):  # by dispatch, then by an entry
        ids, log_probs = sample(x, temperature=0.5, seed=7, offset=3)
        assert (ids.dtype, log_probs.dtype) == (np.int64, np.float32)
        np.testing.assert_array_equal(ids, chosen(np.asarray(x) * 2, 7, 3))
        np.testing.assert_allclose(log_probs, log_probs_of(np.asarray(x) * 2, ids), rtol=1e-5)
    assert world.cold == 1
    assert world.last().function.name == "sample"
    others = [sample(x, seed=7, offset=n)[0].tobytes() for n in range(8)]
    assert len({*others}) > 4
    assert world.cold == 1  # another temperature, seed or offset is another number of one entry


def test_one_a_row(world: World) -> None:
    x, seeds = drawn(2, ROWS, COLS), np.arange(2 * ROWS).reshape(2, ROWS) - 3
    warm = np.linspace(0.25, 4, 2 * ROWS).reshape(2, ROWS).astype(np.float16)
    ids, log_probs = sample(x, temperature=cupy_array(warm), seed=cupy_array(seeds))
    assert world.last().function.name == "sample_rows_seeds"
    z = np.asarray(x) * (1 / warm.astype(np.float32))[..., None]
    np.testing.assert_array_equal(ids, chosen(z, seeds))
    np.testing.assert_allclose(log_probs, log_probs_of(z, ids), rtol=1e-5)
    some, _ = sample(cupy_array(x[1, 2:]), seed=cupy_array(seeds[1, 2:].astype(np.int32)))
    assert world.last().function.name == "sample_seeds"
    np.testing.assert_array_equal(some, chosen(x, seeds)[1, 2:])  # in another batch
    sample(x, temperature=cupy_array(warm), seed=1)
    assert world.last().function.name == "sample_rows"


def test_the_largest_at_temperature_0(world: World) -> None:
    x = drawn(ROWS, COLS, kind="f8")
    x[1, 3] = x[1, 9] = 20
    ids, log_probs = sample(x, temperature=0, seed=1)
    np.testing.assert_array_equal(ids, x.argmax(axis=1))
    np.testing.assert_allclose(log_probs, log_probs_of(x, ids))
    assert (log_probs.dtype, ids[1]) == (np.float64, 3)
    warm = cupy_array(np.array([0, 1, 0, -1, np.inf]))
    ids, log_probs = sample(x, temperature=warm, seed=1)
    assert ids[0] == x[0].argmax()
    assert ids[2] == x[2].argmax()
    assert ids[3] == ids[4] == 0
    assert np.isnan(log_probs[3:]).all()


def test_hooks_come_first(world: World) -> None:
    x, mask = drawn(ROWS, COLS), np.ones((ROWS, COLS), bool)
    mask[:, ::2] = False
    ids, log_probs = sample(x, temperature=0.5, seed=1, mask=cupy_array(mask), scale=2.0)
    assert (ids % 2 == 1).all()
    hidden = np.where(mask, np.asarray(x) * 4, -np.inf)
    np.testing.assert_array_equal(ids, chosen(hidden, 1))
    np.testing.assert_allclose(log_probs, log_probs_of(hidden, ids), rtol=1e-5, atol=1e-6)


def test_filters_keep_the_largest(world: World) -> None:
    x = drawn(2, ROWS, COLS)
    z = np.asarray(x) * np.float32(2)
    p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
    ranks = np.argsort(np.argsort(-z, axis=-1), axis=-1)
    before = np.where(z[..., None, :] > z[..., None], p[..., None, :], 0).sum(axis=-1)
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"top_k": 3}, ranks < 3),
        ({"top_p": 0.6}, before < 0.6),
        ({"min_p": 0.25}, p >= 0.25 * p.max(axis=-1, keepdims=True)),
        ({"top_p": 0.0}, ranks < 1),
        ({"top_k": 5, "min_p": 0.125}, (ranks < 5) & (p >= p.max(axis=-1, keepdims=True) / 8)),
    ]
    for filters, kept in cases:
        ids, log_probs = sample(x, temperature=0.5, seed=7, **filters)
        name = "sample_k8" if "top_k" in filters else "sample_filtered"
        assert world.driver.names[-1] == name
        np.testing.assert_array_equal(ids, chosen(np.where(kept, z, -np.inf), 7))
        np.testing.assert_allclose(log_probs, log_probs_of(z, ids), rtol=1e-5, atol=1e-6)
    sample(x, seed=7, top_k=COLS, top_p=1, min_p=0)  # all are kept
    assert world.last().function.name == "sample"


def test_causal_has_an_offset_of_its_own(world: World) -> None:
    x = drawn(ROWS, COLS)
    ids, log_probs = sample(x, seed=1, offset=3, causal=True, causal_offset=2)
    assert world.last().label.startswith("sample_f32_16_causal")
    shown = np.arange(COLS) < np.arange(ROWS)[:, None] + 3
    z = np.where(shown, np.asarray(x, np.float64), -np.inf)
    np.testing.assert_array_equal(ids, chosen(z, 1, 3))
    np.testing.assert_allclose(log_probs, log_probs_of(z, ids), rtol=1e-5)


def test_filters_of_rows_go_with_numbers(world: World) -> None:
    x, counts = drawn(ROWS, COLS), np.array([1, 3, 0, 2, 16], np.int32)
    ids, _ = sample(x, top_k=cupy_array(counts), min_p=0.0625, seed=cupy_array(np.arange(ROWS)))
    assert world.last().function.name == "sample_filtered_rows_seeds"
    z = np.asarray(x, np.float64)
    ranks = np.argsort(np.argsort(-z, axis=-1), axis=-1)
    kept = ranks < np.where(counts > 0, counts, COLS)[:, None]
    kept &= z - z.max(axis=-1, keepdims=True) >= np.log(0.0625)
    np.testing.assert_array_equal(ids, chosen(np.where(kept, z, -np.inf), np.arange(ROWS)))


def test_no_rows(world: World) -> None:
    ids, log_probs = sample(drawn(0, COLS), seed=1)
    assert ids.shape == log_probs.shape == (0,)


@pytest.mark.parametrize(
    ("error", "said", "given"),
    [
        (InvalidValueError, "temperature must be 0 or more, got -1", {"temperature": -1.0}),
        (InvalidValueError, "temperature must be finite, got nan", {"temperature": float("nan")}),
        (InvalidTypeError, "temperature must be a number, or an array", {"temperature": "1"}),
        (InvalidTypeError, "temperature must be of floats", {"temperature": np.ones(ROWS, int)}),
        (
            InvalidValueError,
            r"temperature must have .* \(5,\), got \(4,\)",
            {"temperature": np.ones(4)},
        ),
        (InvalidTypeError, "seed must be an int, got 1.5", {"seed": 1.5}),
        (InvalidTypeError, "seed must be an int, got None", {"seed": None}),
        (InvalidValueError, "seed must fit 64 bits", {"seed": 2**64}),
        (InvalidTypeError, "seed must be of integers, got float64", {"seed": np.ones(ROWS)}),
        (InvalidValueError, "offset must fit 64 bits", {"offset": 2**64}),
        (InvalidTypeError, "top_q", {"top_q": 1}),
        (InvalidValueError, "top_k must be at least 1, or 0 for all, got -1", {"top_k": -1}),
        (InvalidTypeError, "top_k must be an int, got 1.5", {"top_k": 1.5}),
        (InvalidTypeError, "top_k must be of integers", {"top_k": np.ones(ROWS)}),
        (InvalidValueError, "top_p must be from 0 to 1, got 1.5", {"top_p": 1.5}),
        (InvalidValueError, "min_p must be from 0 to 1, got -0.1", {"min_p": -0.1}),
        (InvalidTypeError, "min_p must be a number, or an array", {"min_p": "1"}),
        (InvalidTypeError, "sink", {"sink": np.ones(ROWS, np.float32)}),
    ],
)
def test_bad_arguments(world: World, error: type[Exception], said: str, given: Any) -> None:
    arrays = {name: cupy_array(v) if hasattr(v, "shape") else v for name, v in given.items()}
    with pytest.raises(error, match=said):
        sample(drawn(ROWS, COLS), **{"seed": 1, **arrays})
