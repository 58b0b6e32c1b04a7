"""token_log_probs and its gradient on the GPU: every regime, PyTorch's autograd, the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import softgen
from softgen.problems.dtypes import DType
from softgen.problems.numerics import check, numpy_dtype, other_inputs
from softgen.problems.problem import Problem
from tests.helpers.device_reference import hard_rows, on_host

pytestmark = pytest.mark.gpu

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tokens.md"


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("cols", [1, 33, 1000, 4097, 32000, 151936])
def test_every_regime(cols: int, dtype: DType) -> None:
    import cupy

    x = hard_rows(cols, dtype)
    given = cupy.asarray(x.view(numpy_dtype(dtype)))
    for name in ("token_log_probs_entropy", "token_log_probs_entropy_i32_k3"):
        problem = Problem.of(name, dtype, cols)
        others = other_inputs(x, problem)
        log_p, lse, entropy = softgen.token_log_probs(
            *(given, cupy.asarray(others[0])),
            dtype=dtype.value,
            return_lse=True,
            return_entropy=True,
            tune="off",
        )
        assert check(on_host(log_p, entropy, lse), (x, *others), problem).message == ""
    for name in ("token_log_probs_backward", "token_log_probs_backward_entropy_i32_k3"):
        problem = Problem.of(name, dtype, cols)
        others = other_inputs(x, problem)
        arrays = [cupy.asarray(each) for each in others]
        dx = softgen.token_log_probs_backward(given, *arrays, tune="off")
        assert check(on_host(dx), (x, *others), problem).message == ""
        mine = given.copy()
        assert softgen.token_log_probs_backward(mine, *arrays, tune="off", out=mine) is mine
        assert on_host(mine)[0].tobytes() == on_host(dx)[0].tobytes()


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("cols", [33, 1000, 4097, 151936])
def test_the_best_and_ranks_in_every_regime(cols: int, dtype: DType) -> None:
    import cupy

    x = hard_rows(cols, dtype)
    given = cupy.asarray(x.view(numpy_dtype(dtype)))
    for k, ids in ((20, ""), (1, "_i32_k3"), (33, "_k64")):
        problem = Problem.of(f"ranked_log_probs_top{k}{ids}", dtype, cols)
        others = other_inputs(x, problem)
        found = softgen.token_log_probs(
            given, cupy.asarray(others[0]), topk=k, return_lse=True, tune="off"
        )
        results = zip(on_host(*found), problem.results, strict=True)
        shaped = [each.reshape(operand.shape(len(x), cols)) for each, operand in results]
        assert check(shaped, (x, *others), problem).message == ""


def test_the_page_of_serving() -> None:
    pytest.importorskip("torch")
    page = PAGE.with_name("serving.md")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(block, str(page), "exec"), {})


@pytest.mark.parametrize("temperature", [None, 0.7, "rows"])
@pytest.mark.parametrize("shape", [(4,), (4, 3)])
def test_the_gradient_is_pytorchs(shape: tuple[int, ...], temperature: Any) -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    x = torch.randn(4, 7, device="cuda", dtype=torch.float64, requires_grad=True)
    ids = torch.randint(7, shape, device="cuda")
    if temperature == "rows":
        temperature = torch.linspace(0.5, 2, 4, device="cuda", dtype=torch.float64)
    by = temperature[:, None] if torch.is_tensor(temperature) else temperature or 1.0
    log_p = torch.log_softmax(x / by, -1)
    picked = log_p.gather(-1, ids.reshape(4, -1)).reshape(shape)
    wanted = picked, -(log_p.exp() * log_p).sum(-1)

    def mine(a: Any) -> Any:
        return softgen.torch.token_log_probs(a, ids, temperature=temperature, return_entropy=True)

    torch.testing.assert_close(mine(x), wanted)
    assert torch.autograd.gradcheck(mine, (x,))
    compiled = torch.compile(mine, fullgraph=True, backend="aot_eager")
    (found,) = torch.autograd.grad(sum(each.sum() for each in compiled(x)), x)
    torch.testing.assert_close(found, *torch.autograd.grad(sum(e.sum() for e in wanted), x))


def test_the_page_runs_as_written() -> None:
    torch = pytest.importorskip("torch")
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    logits = names["logits"].detach().double().requires_grad_()
    log_p = torch.log_softmax(logits, -1)
    picked = log_p.gather(-1, names["ids"][..., None])[..., 0]
    entropy = -(log_p.exp() * log_p).sum(-1)
    (-(names["advantage"] * picked).mean() - 0.01 * entropy.mean()).backward()
    wide = names["logits"].grad.double()
    torch.testing.assert_close(wide, logits.grad, rtol=1e-2, atol=1e-6)
