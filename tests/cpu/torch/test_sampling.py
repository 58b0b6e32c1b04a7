"""softgen.torch.sample: beside PyTorch's own functions, compiled, mapped, without a gradient."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softgen.torch as st  # noqa: E402
from softgen.errors import InvalidTypeError, InvalidValueError  # noqa: E402

ROWS, COLS = 5, 16


def drawn(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_columns_and_log_p_of_them(dtype: Any) -> None:
    x = drawn(2, ROWS, COLS, dtype=dtype)
    ids, log_probs = st.sample(x, temperature=0.5, seed=3)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    assert (ids.dtype, log_probs.dtype) == (torch.int64, wide)
    wanted = torch.log_softmax(x.to(wide) / 0.5, -1).gather(-1, ids[..., None])[..., 0]
    torch.testing.assert_close(log_probs, wanted)
    again = st.sample(x, temperature=0.5, seed=3)
    assert torch.equal(ids, again[0])
    assert any(not torch.equal(ids, st.sample(x, temperature=0.5, seed=s)[0]) for s in range(4, 9))
    assert torch.equal(st.sample(x, temperature=0, seed=3)[0], x.argmax(-1))


def test_rows_with_seeds_of_their_own_draw_the_same_in_any_batch() -> None:
    x, seeds = drawn(8, COLS), torch.arange(8) * 1000 - 3
    warm = torch.linspace(0.2, 2, 8)
    ids, log_probs = st.sample(x, temperature=warm, seed=seeds, offset=-1)
    for some in (slice(1, 2), slice(3, 8), slice(None, None, 2)):
        found = st.sample(x[some], temperature=warm[some], seed=seeds[some], offset=-1)
        assert torch.equal(found[0], ids[some])
        assert torch.equal(found[1], log_probs[some])
    mapped = torch.vmap(lambda z, t, s: st.sample(z, temperature=t, seed=s, offset=-1))
    assert torch.equal(mapped(x, warm, seeds)[0], ids)
    assert torch.equal(torch.vmap(lambda z: st.sample(z, seed=1)[0])(x), st.sample(x, seed=1)[0])


def test_filters_are_numbers_or_tensors() -> None:
    x = drawn(2, ROWS, COLS)
    best = x.topk(3, -1)
    ids, log_probs = st.sample(x, top_k=3, seed=3)
    assert (ids[..., None] == best.indices).any(-1).all()
    every = torch.full((2, ROWS), 3)
    found = st.sample(x, top_k=every, min_p=torch.zeros(2, ROWS), top_p=1.0, seed=3)
    assert torch.equal(found[0], ids)
    assert torch.equal(found[1], log_probs)
    mapped = torch.vmap(lambda z, k: st.sample(z, top_k=k, seed=torch.arange(ROWS))[0])(x, every)
    for of, z in zip(mapped, x, strict=True):
        assert torch.equal(of, st.sample(z, top_k=3, seed=torch.arange(ROWS))[0])


def test_compiled_it_is_one_operator_and_has_no_gradient() -> None:
    x, seeds = drawn(ROWS, COLS).requires_grad_(), torch.arange(ROWS)

    def call(z: Any) -> Any:
        ids, log_probs = st.sample(z * 2, temperature=0.7, seed=seeds)
        return ids + 1, log_probs

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for found, right in zip(compiled(x), call(x), strict=True):
        assert torch.equal(found, right)
        assert not found.requires_grad
    batched = torch.func.vmap(torch.func.grad(lambda z: (z * st.sample(z, seed=1)[1]).sum()))
    assert batched(x.detach()).shape == x.shape


def test_bad_arguments_say_what_is_accepted() -> None:
    x = drawn(ROWS, COLS)
    with pytest.raises(InvalidValueError, match="temperature must be 0 or more"):
        st.sample(x, temperature=-1, seed=1)
    with pytest.raises(InvalidTypeError, match="seed must be an int"):
        st.sample(x, seed="1")
    with pytest.raises(InvalidTypeError, match="seed must be of integers"):
        st.sample(x, seed=torch.ones(ROWS))
    with pytest.raises(InvalidValueError, match=r"temperature must have a number a row"):
        st.sample(x, temperature=torch.ones(1), seed=1)
