"""softgen.torch.topk_softmax: beside PyTorch's own functions, compiled, mapped, with gradients."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softgen.torch as st  # noqa: E402
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError  # noqa: E402

ROWS, COLS, K = 5, 16, 3


def drawn(*shape: int, dtype: Any = torch.float64, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def composed(x: Any, k: int, scores: str, bias: Any, renormalize: bool, scale: float) -> Any:
    s = torch.sigmoid(x) if scores == "sigmoid" else torch.softmax(x, -1)
    ids = torch.topk(s if bias is None else s + bias, k, -1).indices
    weights = s.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale, ids


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("biased", [False, True])
def test_as_pytorch_composes_it(biased: bool, scores: str, renormalize: bool) -> None:
    x = drawn(2, ROWS, COLS).requires_grad_()
    bias = drawn(COLS, seed=1) / 4 if biased else None
    given: dict[str, Any] = {"scores": scores, "renormalize": renormalize, "scale": 2.5}
    weights, ids = st.topk_softmax(x, K, choice_bias=bias, **given)
    wanted, wanted_ids = composed(x, K, scores, bias, renormalize, 2.5)
    assert ids.dtype is torch.int32
    assert not ids.requires_grad
    assert torch.equal(ids.long(), wanted_ids)
    torch.testing.assert_close(weights, wanted)
    upstream = drawn(*weights.shape, seed=2)
    found, right = (torch.autograd.grad(each, x, upstream)[0] for each in (weights, wanted))
    torch.testing.assert_close(found, right)
    assert torch.autograd.gradcheck(lambda z: st.topk_softmax(z, K, **given)[0], x)


def test_halves_give_float32_and_groups_are_kept() -> None:
    x = drawn(ROWS, COLS, dtype=torch.float32).bfloat16().requires_grad_()
    weights, ids = st.topk_softmax(x, 1, groups=4, topk_groups=1)
    assert weights.dtype is torch.float32
    assert weights.shape == ids.shape == (ROWS, 1)
    weights.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.bfloat16


def test_a_batch_is_more_rows() -> None:
    x, bias = drawn(4, ROWS, COLS), drawn(4, COLS, seed=1)
    given: dict[str, Any] = {"scores": "sigmoid", "renormalize": True}

    def one(z: Any, of: Any = None) -> Any:
        return st.topk_softmax(z, K, choice_bias=of, **given)

    for found, each in (
        (torch.vmap(one)(x), [one(z) for z in x]),
        (torch.vmap(one)(x, bias), [one(z, of) for z, of in zip(x, bias, strict=True)]),
        (torch.vmap(one, (0, None))(x, bias[0]), [one(z, bias[0]) for z in x]),
    ):
        for i, together in enumerate(found):
            assert torch.equal(together, torch.stack([of[i] for of in each]))
    gradients = torch.vmap(torch.func.grad(lambda z: one(z)[0][..., 0].sum()))(x)
    z = x.clone().requires_grad_()
    one(z)[0][..., 0].sum().backward()
    torch.testing.assert_close(gradients, z.grad)


def test_compiled_it_is_one_operator() -> None:
    x, bias = drawn(ROWS, COLS).requires_grad_(), drawn(COLS, seed=1)

    def call(z: Any) -> Any:
        weights, ids = st.topk_softmax(z, K, choice_bias=bias, scores="sigmoid")
        return weights * 2, ids

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for found, right in zip(compiled(x), call(x), strict=True):
        assert torch.equal(found, right)
    gradients = [torch.autograd.grad(f(x)[0].sum(), x)[0] for f in (compiled, call)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("temperature", [None, 0.5, torch.rand(2, 1) + 0.5])
@pytest.mark.parametrize("count", [(), (2,)])
def test_tokens_come_with_the_best_and_their_ranks(count: Any, temperature: Any) -> None:
    x = drawn(2, ROWS, COLS).requires_grad_()
    ids = torch.randint(COLS, (2, ROWS, *count), generator=torch.Generator().manual_seed(3))
    given: dict[str, Any] = {"temperature": temperature, "return_lse": True}
    log_p, best, columns, ranks, lse = st.token_log_probs(x, ids, topk=K, **given)
    scale = 1.0 if temperature is None else temperature
    scale = scale[..., None] if isinstance(scale, torch.Tensor) else scale
    whole = torch.log_softmax(x / scale, -1)
    wanted, wanted_columns = torch.topk(whole, K)
    picked = whole.gather(-1, ids.view(2, ROWS, -1))
    torch.testing.assert_close(log_p, picked.view(ids.shape))
    torch.testing.assert_close(best, wanted.detach())
    torch.testing.assert_close(lse, torch.logsumexp(x / scale, -1).detach())
    assert torch.equal(columns.long(), wanted_columns)
    larger = (whole[..., None, :] > picked[..., None]).sum(-1)
    assert torch.equal(ranks.long(), larger.view(ids.shape))
    assert (columns.dtype, ranks.dtype) == (torch.int32, torch.int32)
    assert log_p.requires_grad
    assert not any(each.requires_grad for each in (best, columns, ranks, lse))
    upstream = drawn(*log_p.shape, seed=2)
    found, right = (
        torch.autograd.grad(each, x, up)[0]
        for each, up in ((log_p, upstream), (picked, upstream.view(picked.shape)))
    )
    torch.testing.assert_close(found, right)


def test_the_best_of_a_batch_and_of_a_compiled_call() -> None:
    x, ids = drawn(4, ROWS, COLS), torch.randint(COLS, (4, ROWS))
    temperature = torch.rand(4, ROWS, dtype=torch.float64) + 0.5

    def one(z: Any, of: Any, t: Any) -> Any:
        return st.token_log_probs(z, of, temperature=t, topk=K)

    mapped = torch.vmap(one)(x, ids, temperature)
    for together, right in zip(mapped, one(x, ids, temperature), strict=True):
        assert torch.equal(together, right)
    compiled = torch.compile(one, fullgraph=True, backend="aot_eager")
    z = x[0].clone().requires_grad_()
    for found, right in zip(compiled(z, ids[0], 0.7), one(z, ids[0], 0.7), strict=True):
        assert torch.equal(found, right)
    grads = [torch.autograd.grad(f(z, ids[0], 0.7)[0].sum(), z)[0] for f in (compiled, one)]
    assert torch.equal(*grads)


def test_what_does_not_go_with_the_best_says_so() -> None:
    x, ids = drawn(ROWS, COLS), torch.zeros(ROWS, dtype=torch.int64)
    mask = torch.ones(COLS, dtype=torch.bool)
    for given, said in (
        ({"mask": mask}, "topk does not go with mask here.*softgen.token_log_probs"),
        ({"return_entropy": True}, "topk does not go with return_entropy"),
        ({"topk": 65}, "topk must be from 1 to 64, got 65"),
        ({"topk": 17}, "topk must be at most the 16 columns"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            st.token_log_probs(x, ids, **{"topk": 2, **given})
    z = x.requires_grad_()
    (dx,) = torch.autograd.grad(st.token_log_probs(z, ids, topk=2)[0].sum(), z, create_graph=True)
    with pytest.raises(NotSupportedError, match="not differentiable again"):
        torch.autograd.grad(dx.sum(), z)


def test_what_is_not_served_says_so() -> None:
    x = drawn(ROWS, COLS).requires_grad_()
    with pytest.raises(InvalidValueError, match="k must be from 1 to 64"):
        st.topk_softmax(x, 0)
    with pytest.raises(InvalidTypeError, match=r"choice_bias must be a tensor, got \[0, 1\]"):
        st.topk_softmax(x, 2, choice_bias=[0, 1])
    with pytest.raises(InvalidTypeError, match="scale must be a number, got 'a'"):
        st.topk_softmax(x, 2, scale="a")  # type: ignore[arg-type]
    (dx,) = torch.autograd.grad(st.topk_softmax(x, 2)[0].sum(), x, create_graph=True)
    with pytest.raises(NotSupportedError, match="not differentiable again"):
        torch.autograd.grad(dx.sum(), x)
