"""PyTorch's own functions while they are patched: who computes, and that PyTorch does the rest."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import softgen.torch as mine  # noqa: E402
from softgen.call import dispatch  # noqa: E402
from softgen.errors import CaptureError  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

Tensor: Any = torch.Tensor
NAMES = ("softmax", "log_softmax", "cross_entropy")
ATEN = ("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data")
BOTH = ["softmax", "log_softmax"]
HALVES = [torch.float16, torch.bfloat16]
ROWS, COLS = 4, 5
TARGET = torch.tensor([2, -100, 0, 4])


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    yield
    mine.unpatch()


@pytest.fixture
def launches(world: World) -> list[str]:
    """What is launched, while PyTorch's functions are patched."""
    mine.patch()
    return world.launches


def numbers(*shape: int, dtype: Any = torch.float32, seed: int = 7) -> Any:
    of = shape or (ROWS, COLS)
    return (torch.randn(of, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def theirs(run: Callable[..., Any], *given: Any) -> Any:
    """Return what PyTorch computes unpatched."""
    mine.unpatch()
    try:
        return run(*given)
    finally:
        mine.patch()


def with_gradient(run: Callable[[Any], Any], x: Any) -> tuple[Any, Any]:
    """Return a result, and the gradient of x of a sum that tells its elements apart."""
    x = x.detach().requires_grad_()
    y = run(x)
    weights = torch.linspace(-1.0, 2.0, y.numel(), dtype=y.dtype).reshape(y.shape)
    return y.detach(), torch.autograd.grad(y, x, weights)[0]


def of_rows(launches: list[str]) -> list[str]:
    """Return the launches without those that make one number of a loss's rows, and its gradient.

    Losses with smoothing are a function of their own.
    """
    named = [each.removesuffix("_smooth") for each in launches]
    return [each for each in named if each not in ("reduce_rows", "share")]


def same(found: Any, wanted: Any, **near: float) -> None:
    """Compare tensors, or several, with their types and strides."""
    torch.testing.assert_close(found, wanted, check_stride=True, **near)


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "F.softmax": (lambda x: F.softmax(x, -1), "softmax"),
    "torch.softmax": (lambda x: torch.softmax(x, 1), "softmax"),
    "x.softmax": (lambda x: x.softmax(-1), "softmax"),
    "nn.Softmax": (lambda x: torch.nn.Softmax(dim=-1)(x), "softmax"),
    "F.softmin": (lambda x: F.softmin(x, -1), "softmax"),
    "another dimension": (lambda x: torch.softmax(x, 0), "softmax"),
    "a transposed tensor": (lambda x: torch.softmax(x.T, -1), "softmax"),
    "a strided tensor": (lambda x: torch.softmax(x[:, ::2], -1), "softmax"),
    "an expanded tensor": (lambda x: torch.softmax(x[:, :1].expand(ROWS, 3), 0), "softmax"),
    "a result of float64": (lambda x: F.softmax(x, -1, dtype=torch.float64), "softmax"),
    "F.log_softmax": (lambda x: F.log_softmax(x, -1), "log_softmax"),
    "torch.log_softmax": (lambda x: torch.log_softmax(x, 0), "log_softmax"),
    "x.log_softmax": (lambda x: x.log_softmax(1), "log_softmax"),
    "nn.LogSoftmax": (lambda x: torch.nn.LogSoftmax(dim=0)(x.T), "log_softmax"),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_eager_calls_run_softgen(launches: list[str], name: str, dtype: Any) -> None:
    run, kernel = CALLS[name]
    x = numbers(dtype=dtype)
    found = with_gradient(run, x)
    assert launches == [kernel, f"{kernel}_backward"]
    near = {"rtol": 2e-2, "atol": 3e-2} if dtype in HALVES else {}
    same(found, theirs(with_gradient, run, x), **near)


@pytest.mark.parametrize("name", BOTH)
def test_gradients_of_results_that_lie_otherwise(launches: list[str], name: str) -> None:
    """Of a sum dy is one number for all, and of a transposed result it lies across."""
    across = numbers(COLS, ROWS, seed=8)
    for behind in (torch.sum, lambda y: (y.T * across).sum()):

        def run(x: Any, behind: Any = behind) -> Any:
            return behind(getattr(torch, name)(x, -1))

        same(with_gradient(run, numbers()), theirs(with_gradient, run, numbers()))
    assert launches == [name, f"{name}_backward"] * 2


@pytest.mark.parametrize("name", BOTH)
def test_half_to_float(launches: list[str], name: str) -> None:
    """What PyTorch calls for float32 of float16 on a GPU; its own kernel there refuses a CPU."""
    x = numbers(dtype=torch.float16)
    y, dx = with_gradient(lambda x: getattr(torch, f"_{name}")(x, -1, True), x)
    assert launches == [name, f"{name}_backward"]
    wide, of_wide = with_gradient(lambda x: getattr(torch, name)(x, -1), x.float())
    same(y, wide)
    same(dx, of_wide.half(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_is_widened_by_the_kernel(world: World, name: str, autocast: bool) -> None:
    x = numbers(dtype=torch.bfloat16)

    def run(x: Any) -> Any:
        with torch.autocast("cpu", enabled=autocast):  # that of a GPU gives float32
            return getattr(F, name)(x, -1, dtype=None if autocast else torch.float32)

    wanted = with_gradient(lambda x: getattr(F, name)(x, -1, dtype=torch.float32), x)
    mine.patch()
    with torch.profiler.profile() as seen:
        found = with_gradient(run, x)
    assert world.launches == [name, f"{name}_backward"]
    assert "aten::_to_copy" not in [event.name for event in seen.events()]
    same(found, wanted, rtol=1e-2, atol=1e-2)


OTHERS: dict[str, Callable[[], Any]] = {
    "of nothing": lambda: torch.softmax(torch.empty(0, 3), -1),
    "of rows of nothing": lambda: torch.softmax(torch.empty(3, 0), -1),
    "of a number": lambda: torch.softmax(torch.tensor(2.0), 0),
    "of a subclass": lambda: torch.softmax(numbers().as_subclass(Subclass), -1),
    "weights": lambda: F.cross_entropy(numbers(), TARGET, torch.arange(5.0)),
    "probabilities": lambda: F.cross_entropy(numbers(), torch.full((4, 5), 0.2)),
    "images": lambda: F.cross_entropy(numbers(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64)),
    "size_average": lambda: F.cross_entropy(numbers(), TARGET, size_average=False),
    "a share of True": lambda: F.cross_entropy(numbers(), TARGET, label_smoothing=True),
    "a share in a tensor": lambda: F.cross_entropy(
        numbers(), TARGET, label_smoothing=torch.tensor(0.1)
    ),
}
FAILURES: dict[str, Callable[[], Any]] = {
    "a dimension that is none": lambda: torch.softmax(numbers(), 2),
    "integers": lambda: torch.softmax(torch.arange(3), 0),
    "a wrong reduction": lambda: F.cross_entropy(numbers(), TARGET, reduction="median"),
    "a wrong label_smoothing": lambda: F.cross_entropy(numbers(), TARGET, label_smoothing=2.0),
    "no label_smoothing": lambda: F.cross_entropy(numbers(), TARGET, label_smoothing=None),
    "half_to_float of float32": lambda: torch._softmax(numbers(), -1, True),
}


class Subclass(Tensor):  # type: ignore[misc]
    pass


@pytest.mark.parametrize("name", OTHERS)
def test_what_pytorch_computes(launches: list[str], name: str) -> None:
    found = OTHERS[name]()
    assert set(launches) == (set() if name.startswith("of ") else {"log_softmax"})
    wanted = theirs(OTHERS[name])
    assert type(found) is type(wanted)
    same(found, wanted)


@pytest.mark.parametrize("name", FAILURES)
def test_errors_are_pytorchs(launches: list[str], name: str) -> None:
    with pytest.raises(Exception, match=r".") as found:
        FAILURES[name]()
    with pytest.raises(Exception, match=r".") as wanted:
        theirs(FAILURES[name])
    assert (type(found.value), str(found.value)) == (type(wanted.value), str(wanted.value))
    assert launches == []


def test_no_timing_decides_where_pytorch_is_to_be_deterministic(
    launches: list[str], world: World
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        for name in BOTH:
            with_gradient(functools.partial(getattr(torch, name), dim=-1), numbers())
    finally:
        torch.use_deterministic_algorithms(False)
    assert launches == [each + end for each in BOTH for end in ("", "_backward")]
    assert world.modes == ["off"] * 4


def test_what_is_not_loaded_in_a_capture(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise CaptureError("nothing is loaded while a stream is captured")

    x = numbers().requires_grad_()
    y = torch.softmax(x, -1)
    monkeypatch.setattr(dispatch, "kernel_for", refuse)
    runs: list[Callable[[Any], Any]] = [
        lambda x: torch.log_softmax(x, -1),
        lambda x: F.softmax(x[:, 1:].bfloat16(), -1, dtype=torch.float32),
        lambda x: F.cross_entropy(x, TARGET),
    ]
    (dx,) = torch.autograd.grad(y, x, numbers(seed=8))
    found = [with_gradient(run, x) for run in runs]
    assert launches == ["softmax"]
    same(found, [theirs(with_gradient, run, x) for run in runs])
    same(dx, torch.autograd.grad(theirs(torch.softmax, x, -1), x, numbers(seed=8))[0])


def _squares(name: str) -> Callable[[Any], Any]:
    if name == "cross_entropy":
        return lambda x: F.cross_entropy(x, TARGET, label_smoothing=0.1).square()
    return lambda x: getattr(F, name)(x, -1).square().sum()


def _grad_twice(run: Callable[[Any], Any], x: Any) -> Any:
    x = x.requires_grad_()
    (dx,) = torch.autograd.grad(run(x), x, create_graph=True)
    (ddx,) = torch.autograd.grad(dx.square().sum(), x, create_graph=True)
    return torch.autograd.grad(ddx.square().sum(), x)[0]


def _batched(run: Callable[[Any], Any], x: Any) -> Any:
    y = torch.stack([run(x.requires_grad_())] * 3)
    return torch.autograd.grad(y, x, torch.eye(3, dtype=x.dtype), is_grads_batched=True)[0]


def _dual(run: Callable[[Any], Any], x: Any) -> Any:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(run(forward_ad.make_dual(x, torch.ones_like(x)))))


TRANSFORMS: dict[str, Callable[[Callable[[Any], Any], Any], Any]] = {
    "autograd.functional.hessian": lambda run, x: torch.autograd.functional.hessian(run, x),
    "hessian": lambda run, x: torch.func.hessian(run)(x),
    "jacrev of jacrev": lambda run, x: torch.func.jacrev(torch.func.jacrev(run))(x),
    "jacfwd": lambda run, x: torch.func.jacfwd(run)(x),
    "jvp": lambda run, x: torch.func.jvp(run, (x,), (torch.ones_like(x),)),
    "a dual number": _dual,
    "vjp": lambda run, x: torch.func.vjp(run, x)[1](torch.tensor(2.0, dtype=x.dtype)),
    "vmap(grad)": lambda run, x: torch.func.vmap(torch.func.grad(run))(torch.stack([x, 2 * x])),
    "create_graph, twice": _grad_twice,
    "is_grads_batched": _batched,
    "inference_mode": torch.inference_mode()(lambda run, x: run(x)),
    "jit.trace": lambda run, x: torch.jit.trace(run, x, check_trace=False)(2 * x),
    "make_fx": lambda run, x: make_fx(run)(x)(2 * x),
    "make_fx of a gradient": lambda run, x: make_fx(torch.func.grad(run))(x)(2 * x),
    "aot_eager": lambda run, x: with_gradient(torch.compile(run, backend="aot_eager"), x),
    "eager": lambda run, x: with_gradient(torch.compile(run, backend="eager"), x),
    "fx": lambda run, x: torch.fx.symbolic_trace(run)(x),
    "compiled gradient": lambda run, x: torch.compile(torch.func.grad(run), backend="aot_eager")(x),
}


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (transform, name)
        for transform in TRANSFORMS
        for name in NAMES
        # The gradient of softgen.torch.cross_entropy cannot be batched so (docs/pytorch.md).
        if (transform, name) != ("is_grads_batched", "cross_entropy")
    ],
)
def test_what_pytorch_does_around_a_call(launches: list[str], transform: str, name: str) -> None:
    torch._dynamo.reset()
    run, x = TRANSFORMS[transform], numbers(dtype=torch.float64)
    found = run(_squares(name), x.clone())
    assert set(of_rows(launches)) >= served_of(transform, name), launches
    assert "cross_entropy_backward" not in launches or transform in UNRECORDED
    torch._dynamo.reset()
    wanted = theirs(run, _squares(name), x.clone())
    torch.testing.assert_close(found, wanted)


# Where F.cross_entropy runs on tensors of its caller, while nobody records.
UNRECORDED = ("autograd.functional.hessian", "create_graph, twice", "inference_mode", "eager")


def served_of(transform: str, name: str) -> set[str]:
    """Return what has to be launched: PyTorch composes a loss of log_softmax where it records."""
    if name == "cross_entropy" and transform not in (*UNRECORDED, "fx"):
        name = "log_softmax"
    # A tangent of a gradient is that of what PyTorch composes it of.
    forward_only = (
        "hessian",
        "jacfwd",
        "jvp",
        "a dual number",
        "inference_mode",
        "jit.trace",
        "make_fx",
    )
    if transform in (*forward_only, "fx", "is_grads_batched"):
        return {name}
    return {name, f"{name}_backward"}


HEAD = torch.linspace(-1.0, 2.0, 8 * COLS).view(8, COLS)


def _logits(x: Any) -> Any:
    return F.linear(x, HEAD.to(x.dtype))


# Of 16-bit tensors, with what models convert to float32.
COMPILED: dict[str, Callable[[Any], Any]] = {
    "a loss of converted logits": (
        lambda x: F.cross_entropy(_logits(x).float().view(-1, 8), TARGET, label_smoothing=0.1)
    ),
    "a loss": lambda x: F.cross_entropy(_logits(x), TARGET, reduction="none"),
    "softmax with a dtype": lambda x: F.softmax(_logits(x), -1, dtype=torch.float32),
    "log_softmax of what was converted": lambda x: F.log_softmax(_logits(x).float(), dim=-1),
    "torch.softmax": lambda x: torch.softmax(_logits(x), -1),
    "nn.Softmax": lambda x: torch.nn.Softmax(-1)(_logits(x)),
}


@pytest.mark.parametrize("patched_first", [True, False])
@pytest.mark.parametrize("name", COMPILED)
def test_what_is_compiled_is_pytorchs(world: World, name: str, patched_first: bool) -> None:
    """Inductor gets the same graphs of operators, forward and backward, and no softmax in them.

    Dynamo looks torch up once: patched before that, it takes a wrapper for PyTorch's own.
    """
    from torch._dynamo import trace_rules

    x, texts, results = numbers(dtype=torch.bfloat16), {}, {}
    wanted = with_gradient(COMPILED[name], x)
    try:
        trace_rules.get_torch_obj_rule_map.cache_clear()
        for patched in (patched_first, not patched_first):
            (mine.patch if patched else mine.unpatch)()
            torch._dynamo.reset()
            graphs: list[str] = []

            def keep(graph: Any, _: Any, graphs: list[str] = graphs) -> Any:
                graphs.append(graph.code)
                return graph.forward

            backend = aot_autograd(fw_compiler=keep, decompositions=select_decomp_table())
            run = torch.compile(COMPILED[name], fullgraph=True, backend=backend)
            results[patched], texts[patched] = with_gradient(run, x), graphs
    finally:
        trace_rules.get_torch_obj_rule_map.cache_clear()
    assert world.launches == []
    assert len(texts[True]) == 2
    assert texts[True] == texts[False]
    same(results[True], results[False], rtol=0, atol=0)
    same(results[True], wanted, rtol=2e-2, atol=2e-2)


def test_inductor(launches: list[str]) -> None:
    from torch._inductor import config

    run = COMPILED["a loss of converted logits"]
    torch._dynamo.reset()
    with config.patch(force_disable_caches=True):
        found = with_gradient(torch.compile(run, fullgraph=True), numbers(dtype=torch.bfloat16))
    assert launches == []
    wanted = theirs(with_gradient, run, numbers(dtype=torch.bfloat16))
    same(found, wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", NAMES)
def test_script_compiles_pytorchs_own(launches: list[str], name: str) -> None:
    def along(x):  # type: ignore[no-untyped-def]
        return F.softmax(x, -1) + F.log_softmax(x, dim=0)

    def loss(x):  # type: ignore[no-untyped-def]
        return F.cross_entropy(x, torch.zeros([4], dtype=torch.int64))

    modules = torch.nn.Softmax(-1), torch.nn.LogSoftmax(-1)
    for run in (loss,) if name == "cross_entropy" else (along, *modules, getattr(F, name)):
        scripted = torch.jit.script(run)
        given = (numbers(), -1) if run is getattr(F, name) else (numbers(),)
        torch.testing.assert_close(scripted(*given), theirs(run, *given))
    assert launches


def test_attention_with_weights(launches: list[str]) -> None:
    torch.manual_seed(0)
    attention = torch.nn.MultiheadAttention(8, 2)
    x = numbers(3, 2, 8).requires_grad_()

    def run() -> Any:
        y, p = attention(x, x, x, need_weights=True)
        return y, p, *torch.autograd.grad(y.square().sum() + p.square().sum(), x)

    found = run()
    assert launches == ["softmax", "softmax_backward"]
    torch.testing.assert_close(found, theirs(run))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("selective", [False, True])
def test_checkpoints(launches: list[str], name: str, selective: bool) -> None:
    from torch.utils import checkpoint

    def policy(ctx: Any, operator: Any, *_: Any, **__: Any) -> Any:
        saved = operator.name() in ("aten::_softmax", "aten::_log_softmax")
        policies = checkpoint.CheckpointPolicy
        return policies.MUST_SAVE if saved else policies.PREFER_RECOMPUTE

    contexts = checkpoint.create_selective_checkpoint_contexts
    more = {"context_fn": functools.partial(contexts, policy)} if selective else {}

    def run(x: Any) -> Any:
        return checkpoint.checkpoint(_squares(name), x, use_reentrant=False, **more)

    found = with_gradient(run, numbers())
    kernel = "log_softmax" if selective and name == "cross_entropy" else name
    again = [] if selective else [kernel]
    assert of_rows(launches) == [kernel, *again, f"{kernel}_backward"]
    torch.testing.assert_close(found, theirs(with_gradient, run, numbers()))


def test_modules_are_copied_and_pickled(launches: list[str]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(COLS, 3), torch.nn.Softmax(-1))
    wanted = module(numbers())
    for each in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        same(each(numbers()), wanted)
    assert launches == ["softmax"] * 3
    assert pickle.loads(pickle.dumps(F.softmax)) is copy.deepcopy(F.softmax) is F.softmax


def test_no_launch_on_fake_tensors(launches: list[str]) -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(3, 5, requires_grad=True)
        loss = F.cross_entropy(x, torch.zeros(3, dtype=torch.int64)) + F.softmax(x.T, 0).sum()
        assert torch.autograd.grad(loss, x)[0].shape == (3, 5)
    assert launches == []


def test_modes_of_functions_see_calls(launches: list[str]) -> None:
    from torch.overrides import TorchFunctionMode

    seen = []

    class Mode(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    with Mode():
        F.cross_entropy(numbers(), TARGET)
        F.softmax(numbers(dtype=torch.bfloat16), -1, dtype=torch.float32)
    assert "cross_entropy" in seen
    assert "softmax" in seen


REQUESTS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignored": {"ignore_index": 4},
    "smooth": {"label_smoothing": 0.2},
}


@pytest.mark.parametrize("request_of", REQUESTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_losses(launches: list[str], request_of: str, dtype: Any) -> None:
    def run(x: Any) -> Any:
        target = TARGET.clamp(min=0) if request_of == "ignored" else TARGET
        return F.cross_entropy(x, target, **REQUESTS[request_of])

    found = with_gradient(run, numbers(dtype=dtype))
    assert of_rows(launches) == ["cross_entropy", "cross_entropy_backward"]
    near = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    same(found, theirs(with_gradient, run, numbers(dtype=dtype)), **near)


def test_a_target_that_is_no_class_gives_nan(launches: list[str]) -> None:
    """PyTorch stops by an assertion on a GPU, and raises on a CPU."""
    loss = F.cross_entropy(numbers(), torch.tensor([0, 1, 5, 2]))
    assert loss.isnan()
    with pytest.raises(IndexError):
        theirs(F.cross_entropy, numbers(), torch.tensor([0, 1, 5, 2]))


def test_what_was_tracked_is_differentiated_after_unpatch(launches: list[str]) -> None:
    x = numbers(dtype=torch.bfloat16).requires_grad_()
    y = F.softmax(x, -1, dtype=torch.float32), torch.softmax(x, -1)
    mine.unpatch()
    for each in y:
        (found,) = torch.autograd.grad(each.square().sum(), x)
        (wanted,) = torch.autograd.grad(F.softmax(x, -1, dtype=each.dtype).square().sum(), x)
        same(found, wanted, rtol=2e-2, atol=2e-2)


def kernels_of_aten() -> list[str]:
    return [torch._C._dispatch_dump(f"aten::{name}") for name in ATEN]


def test_patching_twice_is_patching_once(world: World) -> None:
    before, kernels = [getattr(F, name) for name in NAMES], kernels_of_aten()
    mine.patch()
    wrappers, mines = [getattr(F, name) for name in NAMES], kernels_of_aten()
    mine.patch()
    assert [getattr(F, name) for name in NAMES] == wrappers
    assert kernels_of_aten() == mines
    F.cross_entropy(numbers(), TARGET, reduction="none")
    assert world.launches == ["cross_entropy"]
    for _ in range(2):
        mine.unpatch()
        assert [getattr(F, name) for name in NAMES] == before
        assert kernels_of_aten() == kernels
    F.cross_entropy(numbers(), TARGET)
    torch.softmax(numbers(), -1)
    assert world.launches == ["cross_entropy"]
    mine.patch()
    torch.softmax(numbers(), -1)
    assert world.launches == ["cross_entropy", "softmax"]


def test_what_came_after_stays(launches: list[str]) -> None:
    of_softgen, kernels = F.cross_entropy, kernels_of_aten()
    pytorchs = theirs(lambda: F.cross_entropy)
    calls = []

    def later(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return of_softgen(*args, **kwargs)

    F.cross_entropy = later
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_softmax", lambda x, dim, half: torch.full_like(x, 0.5), "CPU")
        mine.unpatch()
        assert F.cross_entropy is later
        assert F.cross_entropy(numbers(), TARGET) == theirs(of_softgen, numbers(), TARGET)
        mine.unpatch()
        assert launches == []
        assert len(calls) == 1
        assert bool((torch.softmax(numbers(), -1) == 0.5).all())
    finally:
        library._destroy()
    assert kernels_of_aten() != kernels
    mine.patch()
    F.cross_entropy(numbers(), TARGET, reduction="none")
    assert launches == ["cross_entropy"]
    mine.unpatch()
    F.cross_entropy = of_softgen  # as it was when the other library came
    mine.patch()
    F.cross_entropy(numbers(), TARGET, reduction="none")
    assert launches == ["cross_entropy"] * 2
    mine.unpatch()
    assert F.cross_entropy is pytorchs


def at_once(run: Callable[[int], None]) -> None:
    """Run it in several threads, with their numbers."""
    failed: list[Exception] = []

    def guarded(number: int) -> None:
        try:
            run(number)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed


def test_threads(launches: list[str]) -> None:
    """Several compute, then several patch: PyTorch's registry takes no change during a call."""
    before, kernels = theirs(lambda: (F.softmax, kernels_of_aten()))
    wanted = theirs(lambda: with_gradient(lambda x: F.softmax(x, -1), numbers()))

    def compute(number: int) -> None:
        for _ in range(10):
            same(with_gradient(lambda x: F.softmax(x, -1), numbers()), wanted)
            F.cross_entropy(numbers(), TARGET, reduction="none")

    def change(number: int) -> None:
        for turn in range(10):
            (mine.patch, mine.unpatch)[(turn + number) % 2]()

    at_once(compute)
    assert sorted(launches) == sorted(["softmax", "softmax_backward", "cross_entropy"] * 40)
    at_once(change)
    mine.unpatch()
    assert F.softmax is before
    assert kernels_of_aten() == kernels
