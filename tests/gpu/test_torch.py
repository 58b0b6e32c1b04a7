"""softgen.torch on the GPU: gradients, compiled, transformed, patched."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import softgen  # noqa: E402
from softgen.errors import InvalidTypeError, NotSupportedError  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape of its own each, which would be tuned for up to 2 s."""
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


PAGE = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"

NAMES = ("softmax", "log_softmax", "logsumexp")
DTYPES = ("float16", "bfloat16", "float32", "float64")


def pair(name: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return softgen's function and PyTorch's."""
    import softgen.torch

    return getattr(softgen.torch, name), getattr(torch, name)


def twins(*shape: int, dtype: str = "float32") -> tuple[Any, Any]:
    """Return two leaves of the same values."""
    x = torch.randn(*shape, device="cuda", dtype=getattr(torch, dtype)) * 3
    return x.clone().requires_grad_(), x.clone().requires_grad_()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward_are_right(name: str, dim: int, dtype: str) -> None:
    """PyTorch computes in float64 here: of 16 bits it rounds what its own gradients start from."""
    mine, theirs = pair(name)
    a, _ = twins(33, 40, 129, dtype=dtype)
    ours, wanted = mine(a, dim), theirs(a.detach().double(), dim)
    assert (ours.dtype, ours.shape) == (a.dtype, wanted.shape)
    torch.testing.assert_close(ours, wanted.to(a.dtype))
    dy = torch.randn_like(ours)
    ours.backward(dy)
    assert a.grad.dtype is a.dtype
    exact = gradient_of(name, dim, a.detach().double(), ours.detach().double(), dy.double())
    torch.testing.assert_close(a.grad, exact.to(a.dtype))


def gradient_of(name: str, dim: int, x: Any, y: Any, dy: Any) -> Any:
    """Return dx from what each gradient starts from: the rounded y, or x."""
    if name == "softmax":
        return y * (dy - (dy * y).sum(dim, keepdim=True))
    if name == "log_softmax":
        return dy - torch.exp(y) * dy.sum(dim, keepdim=True)
    return torch.softmax(x, dim) * dy.unsqueeze(dim)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_and_theirs_are_right(name: str) -> None:
    mine, _ = pair(name)
    for dim in (-1, 0):
        x = torch.randn(3, 5, device="cuda", dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda a, dim=dim: mine(a, dim), (x,))
        assert torch.autograd.gradgradcheck(lambda a, dim=dim: mine(a, dim), (x,))


def test_a_result_of_another_type_has_a_gradient_of_the_inputs() -> None:
    mine, theirs = pair("softmax")
    a, b = twins(64, 1000, dtype="bfloat16")
    ours, wanted = mine(a, -1, dtype=torch.float32), theirs(b, -1, dtype=torch.float32)
    assert ours.dtype is torch.float32
    torch.testing.assert_close(ours, wanted)
    dy = torch.randn_like(wanted)
    ours.backward(dy)
    wanted.backward(dy)
    torch.testing.assert_close(a.grad, b.grad)


def test_autocast_gives_float32() -> None:
    mine, _ = pair("log_softmax")
    x = torch.randn(8, 1000, device="cuda", dtype=torch.float16)
    with torch.autocast("cuda"):
        assert mine(x, -1).dtype is torch.float32
    assert mine(x, -1).dtype is torch.float16


def test_a_training_step_of_mixed_precision() -> None:
    torch.manual_seed(0)
    rows, target = torch.randn(64, 48, device="cuda"), torch.randint(1000, (64,), device="cuda")
    found = []
    import softgen.torch

    for functions in (softgen.torch, torch.nn.functional):
        torch.manual_seed(1)
        layer = torch.nn.Linear(48, 1000, device="cuda")
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = layer(rows)
            p = functions.softmax(logits, -1)
            loss = functions.cross_entropy(logits, target) + p.pow(2).sum()
        assert (logits.dtype, p.dtype, loss.dtype) == (torch.float16, *[torch.float32] * 2)
        scaler.scale(loss).backward()
        found.append((loss.detach(), layer.weight.grad / 1024, layer.bias.grad / 1024))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_gradients_that_lie_otherwise(name: str) -> None:
    mine, theirs = pair(name)
    a, b = twins(40, 72)
    given = (
        torch.randn(72, 40, device="cuda").T,
        torch.randn(40, 73, device="cuda")[:, 1:],
        torch.randn(40, 1, device="cuda").expand(40, 72),
        torch.randn(40 * 72 + 1, device="cuda")[1:].view(40, 72),
    )
    for dy in (*given, *given):
        (ours,) = torch.autograd.grad(mine(a, -1), a, dy)
        (wanted,) = torch.autograd.grad(theirs(b, -1), b, dy)
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own code generation
def test_compiled_calls_beside_each_other() -> None:
    soft, soft_theirs = pair("softmax")
    log, log_theirs = pair("log_softmax")
    a, b = twins(64, 332)
    dy = torch.randn_like(a)
    compiled = torch.compile(lambda x: log(soft(x * 2, -1), -1) + 1, fullgraph=True)
    ours, wanted = compiled(a), log_theirs(soft_theirs(b * 2, -1), -1) + 1
    ours.backward(dy)
    wanted.backward(dy)
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_without_a_graph_break(name: str) -> None:
    mine, theirs = pair(name)
    a, b = twins(64, 300)
    compiled = torch.compile(lambda x: mine(x * 2, -1) + 1, fullgraph=True, backend="aot_eager")
    ours, wanted = compiled(a), theirs(b * 2, -1) + 1
    torch.testing.assert_close(ours, wanted)
    dy = torch.randn_like(wanted)
    ours.backward(dy)
    wanted.backward(dy)
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own code generation
def test_compiled_into_a_cuda_graph() -> None:
    mine, theirs = pair("softmax")
    compiled = torch.compile(lambda x: mine(x * 2, -1) + 1, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):  # the first compiles, the second records
        torch.manual_seed(seed)
        x = torch.randn(64, 300, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(compiled(x), theirs(x * 2, -1) + 1)


def test_the_operators_are_registered_as_they_should_be() -> None:
    from softgen.torch.operators import LogSoftmax, LogSumExp, Softmax

    x = torch.randn(4, 50, device="cuda", requires_grad=True)
    torch.library.opcheck(Softmax.operator, (x, -1, torch.float32, None))
    torch.library.opcheck(LogSoftmax.operator, (x, 0, torch.float32, None))
    torch.library.opcheck(LogSumExp.operator, (x, [1], None))


def test_transforms_of_functions() -> None:
    mine, theirs = pair("softmax")
    x = torch.randn(4, 5, 60, device="cuda")
    weights = torch.arange(60.0, device="cuda")
    for f in (torch.func.vmap, torch.func.grad):
        ours, wanted = (f(lambda v, g=g: (g(v, -1) * weights).sum())(x) for g in (mine, theirs))
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


def test_checkpoints_and_tensors_that_are_kept_elsewhere() -> None:
    from torch.utils.checkpoint import checkpoint

    mine, theirs = pair("softmax")
    a, b = twins(16, 1000)
    with torch.autograd.graph.save_on_cpu():
        checkpoint(lambda x: mine(x, -1), a, use_reentrant=False).pow(2).sum().backward()
    theirs(b, -1).pow(2).sum().backward()
    torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("name", ["log_softmax", "cross_entropy"])
def test_a_graph_of_a_training_step(name: str) -> None:
    import softgen.torch

    a, b = twins(64, 1000)
    target = torch.randint(1000, (64,), device="cuda")

    def step(functions: Any, x: Any) -> None:
        given = (-1,) if name == "log_softmax" else (target,)
        getattr(functions, name)(x, *given).pow(2).sum().backward()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            a.grad = None
            step(softgen.torch, a)
        a.grad.zero_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step(softgen.torch, a)
    with torch.no_grad():
        a.copy_(b.mul_(0.5))
    target.copy_(target.flip(0))
    graph.replay()
    torch.cuda.synchronize()
    step(torch.nn.functional, b)
    atol = 1e-4 if name == "log_softmax" else 1e-6
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=atol)


def test_a_second_step_goes_past_all_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tensors require grad and autograd keeps them, and it is warm as a plain call is."""
    from softgen.call import dispatch, kernels

    seen: list[str] = []
    kernel_for = kernels.kernel_for

    def counted(problem: Any, *request: Any) -> Any:
        seen.append(problem.function.name)
        return kernel_for(problem, *request)

    monkeypatch.setattr(dispatch, "kernel_for", counted)
    mine, _ = pair("softmax")
    (a, _), dy = twins(48, 1008), torch.randn(48, 1008, device="cuda")
    for _ in range(4):
        (dx,) = torch.autograd.grad(mine(a, -1), a, dy)
    assert seen == ["softmax", "softmax_backward"]
    y = torch.softmax(a.detach(), -1)
    torch.testing.assert_close(dx, y * (dy - (dy * y).sum(-1, keepdim=True)))
    with pytest.raises(NotSupportedError, match="requires grad"):
        softgen.softmax(a)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_patched_modules_run_softgen_and_are_restored() -> None:
    import softgen.torch

    functional = torch.nn.functional
    before = functional.softmax, functional.log_softmax
    module, x = torch.nn.Softmax(dim=-1), torch.randn(8, 1000, device="cuda")
    wanted = torch.softmax(x, -1)
    softgen.torch.patch()
    try:
        softgen.torch.patch()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            y = module(x)
            torch.cuda.synchronize()
        assert any(event.key.startswith("softmax_f32_1000_") for event in seen.key_averages())
        torch.testing.assert_close(y, wanted)
        # Whatever softgen does not serve is PyTorch's.
        assert functional.softmax(torch.randn(3, 4), -1).device.type == "cpu"
        with pytest.warns(UserWarning, match="[Ii]mplicit dimension"):
            functional.softmax(x)
    finally:
        softgen.torch.unpatch()
    assert (functional.softmax, functional.log_softmax) == before


def test_the_page_runs_as_written() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    torch.testing.assert_close(names["y"], torch.softmax(names["x"], -1))
    torch.testing.assert_close(names["probabilities"], names["y"])
    logits, target, loss = (names[name] for name in ("logits", "target", "loss"))
    wanted = torch.nn.functional.cross_entropy(logits.float(), target, label_smoothing=0.1)
    torch.testing.assert_close(loss, wanted.to(loss.dtype))
    assert names["scores"].grad.abs().max() < 1e-5  # rows of softmax sum to 1, whatever the scores


def test_what_it_refuses() -> None:
    mine, _ = pair("softmax")
    with pytest.raises(InvalidTypeError, match="takes tensors"):
        mine([1.0], -1)
    with pytest.raises(IndexError):
        mine(torch.randn(3, 4, device="cuda"), 5)
    with pytest.warns(UserWarning, match="no dim was given"):
        assert mine(torch.randn(3, 4, device="cuda")).sum(1).allclose(torch.ones(3, device="cuda"))
