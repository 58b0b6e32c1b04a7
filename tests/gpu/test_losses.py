"""Cross entropy on the GPU: against float64 and PyTorch, autograd, compiled, patched, warm."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.numerics import check, encode, numpy_dtype, other_inputs
from softgen.problems.problem import Problem
from tests.helpers.device_reference import on_host

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape of its own each, which would be tuned for up to 2 s."""
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


@pytest.mark.parametrize("cols", [1, 33, 1000, 4097, 32000, 131072, 300000])
@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.short)
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_against_float64(dtype: DType, cols: int, kind: str) -> None:
    """Targets are of all kinds, those that are no class among them."""
    import cupy

    for stem in ("cross_entropy", "cross_entropy_grad"):
        problem = Problem.of(stem if kind == "int64" else f"{stem}_i32", dtype, cols)
        x = encode(np.random.default_rng(cols).standard_normal((17, cols)) * 3, dtype)
        inputs = (x, *other_inputs(x, problem))
        given, target = cupy.asarray(x.view(numpy_dtype(dtype))), cupy.asarray(inputs[1])
        if stem == "cross_entropy":
            z_loss = float(inputs[3])
            options: dict[str, Any] = {"reduction": "none", "return_lse": True}
            results = softgen.cross_entropy(given, target, z_loss=z_loss, **options)
        else:
            up, z = (float(number) for number in inputs[3:])
            results = softgen.cross_entropy_grad(given, target, up, z_loss=z)
        accuracy = check(on_host(*results), inputs, problem)
        assert accuracy.ok, accuracy.message
        if stem == "cross_entropy_grad":
            again = softgen.cross_entropy_grad(given, target, up, z_loss=z, out=given)
            assert again[0] is given
            assert on_host(given)[0].tobytes() == on_host(results[0])[0].tobytes()


CASES: tuple[dict[str, Any], ...] = (
    *({"reduction": reduction} for reduction in ("mean", "sum", "none")),
    {"label_smoothing": 0.1},
    {"reduction": "none", "label_smoothing": 1.0},
    {"weight": True},
    {"weight": True, "reduction": "none"},
    {"ignore_index": 3},
)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(70, 1001), (3, 130, 8), (1000,)], ids=str)
def test_it_is_what_pytorch_gives_in_float64(shape: tuple[int, ...], dtype: str) -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    torch.manual_seed(0)
    classes = shape[1] if len(shape) > 1 else shape[0]
    x = torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))
    target = torch.randint(classes, shape[:1] + shape[2:] if len(shape) > 1 else (), device="cuda")
    if len(shape) == 2:
        target[::7], target[1] = -100, 3
    for case in CASES:
        options = dict(case)
        weight = (
            torch.rand(classes, device="cuda", dtype=x.dtype) if options.pop("weight", 0) else None
        )
        a, b = (x.to(kind, copy=True).requires_grad_() for kind in (x.dtype, torch.float64))
        if "ignore_index" in case:
            target = target.clip(0)
        found = softgen.torch.cross_entropy(a, target, weight, **options)
        wide = None if weight is None else weight.double()
        wanted = torch.nn.functional.cross_entropy(b, target, wide, **options)
        half = x.dtype.itemsize == 2
        torch.testing.assert_close(found.double(), wanted, rtol=1e-2 if half else 3e-6, atol=1e-5)
        assert found.dtype is x.dtype
        g = torch.randn_like(found)
        found.backward(g)
        wanted.backward(g.double())
        tolerance = {"rtol": 1e-2, "atol": 1e-4} if half else {"rtol": 3e-5, "atol": 1e-7}
        torch.testing.assert_close(a.grad.double(), b.grad, **tolerance)


def test_gradcheck_of_both_derivatives() -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    x = torch.randn(6, 70, device="cuda", dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 69, -100, 2, 3, 1], device="cuda")
    for options in ({}, {"z_loss": 0.02, "label_smoothing": 0.1}, {"reduction": "none"}):
        for each in (target, target.int()):

            def loss(x: Any, each: Any = each, options: Any = options) -> Any:
                return softgen.torch.cross_entropy(x, each, **options)

            assert torch.autograd.gradcheck(loss, (x,))
            assert torch.autograd.gradgradcheck(loss, (x,))


@pytest.mark.parametrize("options", [{}, {"reduction": "none", "label_smoothing": 0.1}], ids=str)
def test_compiled_without_a_graph_break(options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    @torch.compile(fullgraph=True, backend="aot_eager")  # type: ignore[untyped-decorator]
    def step(x: Any, target: Any) -> Any:
        return softgen.torch.cross_entropy(x * 2, target, **options).sum()

    x = torch.randn(40, 1001, device="cuda", requires_grad=True)
    target = torch.randint(1001, (40,), device="cuda")
    step(x, target).backward()
    twin = x.detach().clone().requires_grad_()
    torch.nn.functional.cross_entropy(twin * 2, target, **options).sum().backward()
    torch.testing.assert_close(x.grad, twin.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_patched_it_takes_what_it_serves() -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    F = torch.nn.functional
    x = torch.randn(40, 1001, device="cuda")
    target = torch.randint(1001, (40,), device="cuda")
    p = torch.softmax(torch.randn_like(x), -1)
    wanted = F.cross_entropy(x, target), F.cross_entropy(x, p)
    softgen.torch.patch()
    try:
        with torch.profiler.profile() as seen:
            found = torch.nn.CrossEntropyLoss()(x, target), F.cross_entropy(x, p)
            F.cross_entropy(x.cpu(), target.cpu())
        names = [event.key for event in seen.key_averages()]
        assert sum(bool(re.match("cross_entropy_f32_1001_", name)) for name in names) == 1
    finally:
        softgen.torch.unpatch()
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_warm_calls_take_other_targets_and_numbers() -> None:
    import cupy

    x = cupy.random.default_rng(0).standard_normal((64, 1000), dtype="float32")
    logs = cupy.log(cupy.exp(x.astype("float64")).sum(axis=1))
    for seed in range(4):
        target = cupy.random.default_rng(seed).integers(0, 1000, 64)
        target[seed] = seed - 1
        found = softgen.cross_entropy(x, target, ignore_index=seed - 1, reduction="none")
        wanted = logs - x[cupy.arange(64), target.clip(0)]
        wanted[target == seed - 1] = 0
        cupy.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    target[9] = 1000
    with pytest.raises(InvalidValueError, match="1 are not, the first is 1000"):
        softgen.cross_entropy(x, target, ignore_index=seed - 1, checked=True)
    assert bool(cupy.isnan(softgen.cross_entropy(x, target)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rows", [1, 31, 1025, 9000, 65536, 65537])
def test_one_number_of_any_number_of_rows_has_the_same_bits_each_time(
    rows: int, dtype: str
) -> None:
    """Of up to 65536 rows it is a kernel's, whose block has 1024 threads of 8 rows each."""
    torch = pytest.importorskip("torch")
    import softgen.torch

    torch.manual_seed(rows)
    kind = getattr(torch, dtype)
    x = torch.randn(rows, 33, device="cuda").to(kind).requires_grad_()
    target = torch.randint(33, (rows,), device="cuda")
    target[1::5] = -100
    wide = x.detach().to(torch.float64, copy=True).requires_grad_()
    near = {"float64": 1e-13, "float32": 3e-6, "bfloat16": 2.0**-8, "float16": 2.0**-10}[dtype]
    for reduction in ("mean", "sum"):
        wanted = torch.nn.functional.cross_entropy(wide, target, reduction=reduction)
        (wanted_dx,) = torch.autograd.grad(wanted * 0.75, wide)
        found = []
        for _ in range(4):
            loss = softgen.torch.cross_entropy(x, target, reduction=reduction)
            found.append((loss.detach(), *torch.autograd.grad(loss * 0.75, x)))
        for loss, dx in found:
            if rows <= 65536:
                assert torch.equal(loss, found[0][0])
                assert torch.equal(dx, found[0][1])
            # Half of 65536 losses is more than float16 holds.
            torch.testing.assert_close(loss, wanted.to(kind), rtol=2 * near, atol=0)
            # dx of a mean of 65536 rows is below the least normal float16: half a step off there.
            half_a_step = 2.0**-25 if dtype == "float16" else 0
            error = float((dx.double() - wanted_dx).abs().max())
            assert error <= 2 * near * float(wanted_dx.abs().max()) + half_a_step


def test_a_graph_of_a_loss_and_its_gradient_takes_new_values() -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    x = torch.randn(40, 1001, device="cuda", requires_grad=True)
    target = torch.randint(1001, (40,), device="cuda")
    x.grad = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            softgen.torch.cross_entropy(x, target).backward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.grad.zero_()
        loss = softgen.torch.cross_entropy(x, target)
        loss.backward()
    for seed in range(3):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.normal_()
            target.random_(0, 1001)
            target[seed :: 3 + seed] = -100
        graph.replay()
        twin = x.detach().clone().requires_grad_()
        wanted = torch.nn.functional.cross_entropy(twin, target)
        wanted.backward()
        torch.testing.assert_close(loss.detach(), wanted.detach())
        torch.testing.assert_close(x.grad, twin.grad, rtol=1e-4, atol=1e-7)


def test_a_loss_on_a_stream_of_a_device_that_is_not_the_current_one() -> None:
    torch = pytest.importorskip("torch")
    import softgen.torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(40, 1001, device="cuda:1", requires_grad=True)
    target = torch.randint(1001, (40,), device="cuda:1")
    (wanted,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x, target), x)
    for current in (0, 1, 0):
        with torch.cuda.device(current):
            (dx,) = torch.autograd.grad(softgen.torch.cross_entropy(x, target), x)
        assert dx.device == x.device
        torch.testing.assert_close(dx, wanted, rtol=1e-4, atol=1e-7)
