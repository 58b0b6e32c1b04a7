"""What softgen.torch once did wrong without a word: each is right, or an error, and stays so.

Compiled code that took another operator's kernel is in test_inductor.py.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen  # noqa: E402
import softgen.torch as mine  # noqa: E402
from softgen.errors import InvalidValueError, NotSupportedError  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402
from tests.helpers.torch_functions import (  # noqa: E402
    COLS,
    FUNCTIONS,
    ROWS,
    agree,
    columns,
    drawn,
    gradient,
    refusal_or,
    same,
)

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

func, forward_ad = torch.func, torch.autograd.forward_ad
F = torch.nn.functional
functions = pytest.mark.parametrize("name", FUNCTIONS)
# Those of softgen that take tensors as they are, without gradients.
PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, ids: softgen.softmax(x),
    "log_softmax": lambda x, ids: softgen.log_softmax(x),
    "logsumexp": lambda x, ids: softgen.logsumexp(x),
    "entropy": lambda x, ids: softgen.entropy(x),
    "token_log_probs": softgen.token_log_probs,
    "cross_entropy": softgen.cross_entropy,
}


@pytest.fixture(autouse=True)
def warmed(world: World, request: pytest.FixtureRequest) -> None:
    """A test's function has served plain tensors of its shape before."""
    callspec = getattr(request.node, "callspec", None)
    name = callspec.params.get("name") if callspec is not None else None
    if name in FUNCTIONS:
        for _ in range(3):
            PLAIN[name](drawn(ROWS, COLS), columns(ROWS))
            gradient(FUNCTIONS[name].ours, drawn(ROWS, COLS), columns(ROWS))
        world.launches.clear()


# Tensors without memory of their own.


class Wrapper(torch.Tensor):  # type: ignore[misc, name-defined]
    """A tensor around another one, which hands each operator on."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            *(cls, inner.shape),
            strides=inner.stride(),
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: Any) -> None:
        self.inner = inner.detach()

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def unwrapped(each: Any) -> Any:
            return each.inner if isinstance(each, cls) else each

        tree_map = torch.utils._pytree.tree_map
        found = operator(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs or {}))
        return tree_map(lambda each: cls(each) if isinstance(each, torch.Tensor) else each, found)


def collective(x: Any) -> Any:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    return AsyncCollectiveTensor(x)


def fake(x: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(x)


WRAPPERS = {"wrapper": Wrapper, "collective": collective}


@functions
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapper_that_has_a_rule_is_served(name: str, kind: str) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    found = pair.ours(WRAPPERS[kind](drawn(ROWS, COLS)), ids)
    found = found.inner if isinstance(found, Wrapper) else found + 0
    same(found, pair.theirs(drawn(ROWS, COLS), ids))


@functions
def test_a_wrapper_has_a_gradient(name: str) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    x = Wrapper(drawn(ROWS, COLS)).requires_grad_()
    y = pair.ours(x, ids)
    upstream = torch.linspace(-1.0, 2.0, y.numel()).reshape(y.shape)
    (dx,) = torch.autograd.grad(y, x, Wrapper(upstream))
    same((y.inner, dx.inner), gradient(pair.theirs, drawn(ROWS, COLS), ids))


@functions
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("tracked", [False, True])
def test_a_fake_tensor_gives_a_fake_one(
    name: str, inside: bool, tracked: bool, world: World
) -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    pair, mode = FUNCTIONS[name], FakeTensorMode()
    x, ids = (mode.from_tensor(each) for each in (drawn(ROWS, COLS), columns(ROWS)))
    x.requires_grad_(tracked)
    results = []
    for function in (pair.ours, pair.theirs):
        if inside:
            with mode:
                y = function(x, ids)
        else:
            y = function(x, ids)
        results.append((y, *(torch.autograd.grad(y.sum(), x) if tracked else ())))
    for ours, theirs in zip(*results, strict=True):
        assert type(ours) is FakeTensor
        assert ours.shape == theirs.shape
        assert (ours.dtype, ours.device, ours.stride()) == (
            *(theirs.dtype, theirs.device),
            theirs.stride(),
        )
    assert not world.launches


@functions
@pytest.mark.parametrize("tracked", [False, True])
def test_meta_tensors_give_meta_tensors(name: str, tracked: bool, world: World) -> None:
    pair = FUNCTIONS[name]
    x = torch.empty(ROWS, COLS, device="meta", requires_grad=tracked)
    ids = columns(ROWS).to("meta")
    results = []
    for function in (pair.ours, pair.theirs):
        y = function(x, ids)
        results.append((y, *(torch.autograd.grad(y.sum(), x) if tracked else ())))
    for ours, theirs in zip(*results, strict=True):
        assert ours.device.type == "meta"
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    assert not world.launches


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("kind", [Wrapper, collective, fake])
def test_a_plain_call_refuses_what_has_no_memory(
    name: str, kind: Callable[[Any], Any], world: World
) -> None:
    with pytest.raises(NotSupportedError, match="memory no kernel can see"):
        PLAIN[name](kind(drawn(ROWS, COLS)), columns(ROWS))
    assert not world.launches


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two devices, of which this process is the first; collectives do nothing."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


def spread(mesh: Any, local: Any, placement: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(local, mesh, [placement], run_check=False)


@functions
@pytest.mark.parametrize("sharded", [False, True])
def test_a_dtensor_whose_rows_are_whole_is_served(name: str, sharded: bool, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard

    pair = FUNCTIONS[name]
    placement = Shard(0) if sharded else Replicate()
    ours, theirs = pair.ours, pair.theirs
    if name == "cross_entropy":  # a mean of what two devices have would be a sum between them
        ours, theirs = (
            lambda x, ids, f=f: f(x, ids, reduction="none")
            for f in (mine.cross_entropy, F.cross_entropy)
        )
    x, ids = drawn(ROWS, COLS).requires_grad_(), columns(ROWS)
    given = spread(mesh, x, placement), spread(mesh, ids, placement)
    y = ours(*given)
    assert y.placements == (placement,)
    assert y.shape[0] == ROWS * (2 if sharded else 1)
    upstream = torch.linspace(-1.0, 2.0, y.to_local().numel()).reshape(y.to_local().shape)
    (dx,) = torch.autograd.grad(y.to_local(), x, upstream)
    same((y.to_local().detach(), dx), gradient(theirs, x, ids))


@functions
@pytest.mark.parametrize("sharded", [False, True])
def test_devices_that_have_whole_rows_say_nothing_to_each_other(
    name: str, sharded: bool, mesh: Any
) -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode

    placement = Shard(0) if sharded else Replicate()
    ours = FUNCTIONS[name].ours
    if name == "cross_entropy":  # a mean is one of all devices
        ours = functools.partial(mine.cross_entropy, reduction="none")
    x, ids = drawn(ROWS, COLS).requires_grad_(), columns(ROWS)
    given = spread(mesh, x, placement), spread(mesh, ids, placement)
    with CommDebugMode() as said:
        y = ours(*given).to_local()
        torch.autograd.grad(y, x, torch.ones_like(y))
    assert said.get_comm_counts() == {}


@functions
@pytest.mark.parametrize("tracked", [False, True])
def test_a_dtensor_sharded_along_rows_says_where_to_go(
    name: str, tracked: bool, mesh: Any, world: World
) -> None:
    from torch.distributed.tensor import Replicate, Shard

    x = spread(mesh, drawn(ROWS, COLS).requires_grad_(tracked), Shard(1))
    with pytest.raises(NotSupportedError, match=r"softgen\.distributed"):
        FUNCTIONS[name].ours(x, spread(mesh, columns(ROWS), Replicate()))
    assert not world.launches


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_call_refuses_a_dtensor(name: str, mesh: Any, world: World) -> None:
    from torch.distributed.tensor import Replicate

    with pytest.raises(NotSupportedError, match=r"to_local\(\)"):
        PLAIN[name](spread(mesh, drawn(ROWS, COLS), Replicate()), columns(ROWS))
    assert not world.launches


# Records of a call.


@functions
def test_a_trace_follows_its_input(name: str) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    traced = torch.jit.trace(lambda x: pair.ours(x, ids), (drawn(ROWS, COLS),))
    other = drawn(ROWS, COLS, seed=1)
    same(traced(other), pair.theirs(other, ids))


@functions
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("of", ["value", "gradient"])
def test_a_graph_follows_its_input(name: str, mode: str, of: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    pair, ids = FUNCTIONS[name], columns(ROWS)

    def taken(function: Callable[..., Any]) -> Any:
        if of == "value":
            return function
        return func.grad(lambda x, ids: function(x, ids).square().sum())

    graph = make_fx(taken(pair.ours), tracing_mode=mode)(drawn(ROWS, COLS), ids)
    rows = ROWS + 2 if mode == "symbolic" else ROWS
    other, ids = drawn(rows, COLS, seed=1), columns(rows, seed=1)
    same(graph(other, ids), taken(pair.theirs)(other, ids))


# Tangents.


def tangent(function: Callable[[Any, Any], Any], x: Any, t: Any) -> Any:
    with forward_ad.dual_level():
        y = function(forward_ad.make_dual(x, t), columns(ROWS))
        return tuple(forward_ad.unpack_dual(y))


def jvp(function: Callable[[Any, Any], Any], x: Any, t: Any) -> Any:
    return func.jvp(lambda x: function(x, columns(ROWS)), (x,), (t,))


@functions
@pytest.mark.parametrize("tangents", [tangent, jvp])
@pytest.mark.parametrize("tracked", [False, True])
def test_tangents_are_right_or_refused(
    name: str, tangents: Callable[..., Any], tracked: bool
) -> None:
    pair, x, t = FUNCTIONS[name], drawn(ROWS, COLS), drawn(ROWS, COLS, seed=1)
    x.requires_grad_(tracked)
    wanted = tangents(pair.theirs, x, t)
    found, refusal = refusal_or(lambda: tangents(pair.ours, x, t))
    if refusal:
        assert not pair.tangents
        assert name in refusal
    else:
        same(found, wanted)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("tangents", [tangent, jvp])
def test_tangents_of_a_plain_call_are_right_or_refused(
    name: str, tangents: Callable[..., Any]
) -> None:
    x, t = drawn(ROWS, COLS), drawn(ROWS, COLS, seed=1)
    found, refusal = refusal_or(lambda: tangents(PLAIN[name], x, t))
    if refusal:
        assert "softgen.torch" in refusal
    else:
        same(found, tangents(FUNCTIONS[name].theirs, x, t))


@functions
def test_a_tensor_without_a_tangent_is_served_at_a_dual_level(name: str) -> None:
    with forward_ad.dual_level():
        agree(name)


# Memory that is written.


def _outs() -> dict[str, tuple[Callable[..., Any], int]]:
    """Return each function that takes `out`, of x and what it reads too, and out's dimensions."""
    x, ids = drawn(ROWS, COLS), columns(ROWS)
    y, lse, h, g = x.softmax(-1), x.logsumexp(-1), x[:, 0] * 0, x[:, 1].clone()
    return {
        "softmax": (softgen.softmax, 2),
        "log_softmax": (softgen.log_softmax, 2),
        "logsumexp": (softgen.logsumexp, 1),
        "entropy": (softgen.entropy, 1),
        "token_log_probs": (lambda x, out: softgen.token_log_probs(x, ids, out=out), 1),
        "finish": (lambda x, out: softgen.finish(x, *softgen.partial(x), out=out), 2),
        "softmax_backward": (lambda x, out: softgen.softmax_backward(x, y, out=out), 2),
        "log_softmax_backward": (lambda x, out: softgen.log_softmax_backward(x, y, out=out), 2),
        "logsumexp_backward": (lambda x, out: softgen.logsumexp_backward(x, lse, g, out=out), 2),
        "entropy_backward": (lambda x, out: softgen.entropy_backward(x, lse, h, g, out=out), 2),
        "token_log_probs_backward": (
            lambda x, out: softgen.token_log_probs_backward(x, ids, lse, g, out=out),
            2,
        ),
        "cross_entropy_backward": (
            lambda x, out: softgen.cross_entropy_backward(x, ids, lse, g, out=out),
            2,
        ),
        "cross_entropy_grad": (lambda x, out: softgen.cross_entropy_grad(x, ids, 1.0, out=out), 2),
    }


FLOAT32 = ("softmax_backward", "log_softmax_backward", "token_log_probs")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in _outs()),
        *((name, torch.float16) for name in _outs() if name not in FLOAT32),
    ],
)
def test_out_counts_as_written(name: str, dtype: Any) -> None:
    """A first call, a warm one, and a view of a larger tensor, whose counter it shares."""
    call, dims = _outs()[name]
    x, out = drawn(ROWS, COLS), torch.empty((ROWS, COLS)[:dims])
    x, out = x.to(dtype), out.to(dtype)
    for _ in range(4):
        before = out._version
        call(x, out=out)
        assert out._version > before
    whole = torch.empty((ROWS, 2 * COLS)[:dims] if dims == 2 else (2 * ROWS,), dtype=dtype)
    view = whole[:, ::2] if dims == 2 else whole[::2]
    for _ in range(4):
        before = whole._version
        try:
            call(x, out=view)
        except InvalidValueError:  # an out that has to be contiguous
            break
        assert whole._version > before


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_autograd_sees_that_a_saved_tensor_was_overwritten(name: str) -> None:
    for _ in range(4):
        w, a = drawn(ROWS, COLS).requires_grad_(), drawn(ROWS, COLS, seed=1)
        y = w * a
        getattr(softgen, name)(a, out=a)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@functions
def test_autograd_sees_that_a_saved_input_or_result_was_overwritten(name: str) -> None:
    x = drawn(ROWS, COLS).requires_grad_()
    y = FUNCTIONS[name].ours(x, columns(ROWS))
    of = y if name in ("softmax", "log_softmax") else x
    softgen.softmax(of.detach(), out=of.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# Autocast.


def dtype_on_a_gpu(function: Callable[[Any, Any], Any], dtype: Any) -> Any:
    """Return the dtype of a result on a GPU under torch.autocast, as PyTorch's own lists say."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    was = torch.is_autocast_enabled("cuda")
    with FakeTensorMode():
        x = torch.empty(ROWS, COLS, dtype=dtype, device="cuda")
        ids = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
        torch.set_autocast_enabled("cuda", True)
        try:
            return function(x, ids).dtype
        finally:
            torch.set_autocast_enabled("cuda", was)


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{name: (pair.ours, pair.theirs) for name, pair in FUNCTIONS.items()},
    "softmax to bfloat16": (
        lambda x, ids: mine.softmax(x, -1, dtype=torch.bfloat16),
        lambda x, ids: torch.softmax(x, -1, dtype=torch.bfloat16),
    ),
    "log_softmax to float64": (
        lambda x, ids: mine.log_softmax(x, 0, dtype=torch.float64),
        lambda x, ids: torch.log_softmax(x, 0, dtype=torch.float64),
    ),
    "logsumexp of two": (
        lambda x, ids: mine.logsumexp(x, (0, 1), True),
        lambda x, ids: torch.logsumexp(x, (0, 1), True),
    ),
    **{
        f"cross_entropy {options}": (
            lambda x, ids, o=options: mine.cross_entropy(x, ids, **o),
            lambda x, ids, o=options: F.cross_entropy(x, ids, **o),
        )
        for options in ({"label_smoothing": 0.1}, {"reduction": "none"}, {"reduction": "sum"})
    },
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_under_autocast_are_those_of_pytorchs_lists_for_cuda(name: str, dtype: Any) -> None:
    """The stand-in's tensors are on the CPU, whose autocast softgen asks: of x's own device."""
    ours, theirs = CALLS[name]
    x, ids = drawn(ROWS, COLS, dtype=dtype), columns(ROWS)
    for tracked in (False, True):
        x = x.detach().requires_grad_(tracked)
        for _ in range(2):
            ours(x, ids)  # without it, which a warm call is not to remember
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = ours(x, ids)
            with torch.autocast("cpu", enabled=False):
                assert ours(x, ids).dtype is theirs(x, ids).dtype
        assert y.dtype is dtype_on_a_gpu(theirs, dtype)
        # PyTorch's expressions of 16 bits are asked of wider numbers: those are exact.
        wide = x.detach().to(torch.promote_types(dtype, torch.float32))
        torch.testing.assert_close(y.detach(), theirs(wide, ids).to(y.dtype))
        if tracked:
            assert torch.autograd.grad(y.sum(), x)[0].dtype is dtype


# Lazy tensors.


def negated(x: Any) -> Any:
    return x._neg_view()


def imaginary(x: Any) -> Any:
    return torch.complex(x, x).conj().imag


def zeros(x: Any) -> Any:
    return torch._efficientzerotensor(x.shape)


@functions
@pytest.mark.parametrize("lazy", [negated, imaginary, zeros])
def test_lazy_tensors_are_what_they_stand_for(name: str, lazy: Callable[[Any], Any]) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    for _ in range(3):
        x = lazy(drawn(ROWS, COLS))
        same(pair.ours(x, ids), pair.theirs(x.clone(), ids))


@functions
@pytest.mark.parametrize("lazy", [negated, imaginary])
def test_lazy_tensors_have_gradients_and_are_gradients(
    name: str, lazy: Callable[[Any], Any]
) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    agree(name, x=lazy(drawn(ROWS, COLS)))
    x = drawn(ROWS, COLS).requires_grad_()
    found, wanted = (
        torch.autograd.grad(y, x, lazy(torch.linspace(1, 2, y.numel()).reshape(y.shape)))
        for y in (pair.ours(x, ids), pair.theirs(x, ids))
    )
    same(found, wanted)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("lazy", [negated, imaginary, zeros])
def test_a_plain_call_of_a_lazy_tensor_is_right_or_refused(
    name: str, lazy: Callable[[Any], Any]
) -> None:
    x = lazy(drawn(ROWS, COLS))
    found, refusal = refusal_or(lambda: PLAIN[name](x, columns(ROWS)))
    if refusal:
        assert "resolve_neg" in refusal
    else:
        same(found, FUNCTIONS[name].theirs(x.clone(), columns(ROWS)))


# Options that change.


def classes() -> dict[int, str]:
    """Return the name of each class that is there, by its identity."""
    gc.collect()
    return {id(each): repr(each) for each in gc.get_objects() if isinstance(each, type)}


CHANGING = {
    "z_loss": lambda x, ids, step: mine.cross_entropy(x, ids, z_loss=1e-4 * (step + 1)),
    "label_smoothing": lambda x, ids, step: mine.cross_entropy(
        x, ids, label_smoothing=0.1 / (step + 1)
    ),
    "ignore_index": lambda x, ids, step: mine.cross_entropy(x, ids, ignore_index=-1 - step),
    "temperature": lambda x, ids, step: mine.token_log_probs(x, ids, temperature=1.0 + step / 100),
    "rows": lambda x, ids, step: mine.cross_entropy(
        x[:1].expand(1 + step, COLS), ids[:1].expand(1 + step)
    ),
}


@pytest.mark.parametrize("option", CHANGING)
def test_an_option_that_changes_each_step_leaves_nothing_behind(option: str, world: World) -> None:
    """A class a step would never be freed, and of one that is kept 60 more are too many."""
    x, ids = drawn(ROWS, COLS).requires_grad_(), columns(ROWS)

    def steps(first: int, last: int) -> None:
        for step in range(first, last):
            CHANGING[option](x, ids, step).sum().backward()

    steps(0, 20)
    before, chosen = classes(), len(world.chosen)
    steps(20, 80)
    made = [name for each, name in classes().items() if each not in before]
    assert len(made) < 5, made
    if option != "rows":
        assert len(world.chosen) == chosen  # the kernels are those of the first steps


@pytest.mark.parametrize("option", ["z_loss", "label_smoothing", "temperature"])
def test_an_option_that_changes_each_step_stops_being_compiled(option: str) -> None:
    """PyTorch compiles any float that an operator takes anew, up to its limit; its own too."""
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=4):
        compiled = torch.compile(CHANGING[option], backend=count)
        x, ids = drawn(ROWS, COLS), columns(ROWS)
        for step in range(8):
            same(compiled(x, ids, step), CHANGING[option](x, ids, step))
    # After the fourth the function runs as it is, or in parts that are compiled once.
    assert len(graphs) <= 6


# Transforms.


SAMPLES: dict[str, tuple[int | None, int | None]] = {
    "both": (0, 0),
    "x alone": (0, None),
    "ids alone": (None, 0),
    "x along the last": (2, 0),
}


@functions
@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize("of", ["value", "gradient"])
def test_samples_are_batched(name: str, samples: str, of: str) -> None:
    pair, dims = FUNCTIONS[name], SAMPLES[samples]
    x, ids = drawn(4, ROWS, COLS), columns(4, ROWS)
    tensors = (
        x[0] if dims[0] is None else x.movedim(0, dims[0]),
        ids[0] if dims[1] is None else ids,
    )

    def batched(function: Callable[..., Any]) -> Any:
        taken = function
        if of == "gradient":
            taken = func.grad(lambda x, ids: function(x, ids).square().sum())
        return func.vmap(taken, in_dims=dims)(*tensors)

    same(batched(pair.ours), batched(pair.theirs))


@functions
def test_gradients_of_each_sample(name: str) -> None:
    """As torch.func's page has them: a sample is a row, and the function sees a batch of one."""
    pair = FUNCTIONS[name]

    def each(function: Callable[..., Any]) -> Any:
        def loss(x: Any, index: Any) -> Any:
            return function(x[None], index[None]).square().sum()

        return func.vmap(func.grad(loss))(drawn(ROWS, COLS), columns(ROWS))

    same(each(pair.ours), each(pair.theirs))


@functions
def test_a_gradient_of_torch_func_is_compiled(name: str) -> None:
    pair = FUNCTIONS[name]

    def step(function: Callable[..., Any]) -> Any:
        return func.grad(lambda x, ids: function(x, ids).square().sum())

    torch._dynamo.reset()
    compiled = torch.compile(step(pair.ours), backend="aot_eager", fullgraph=True)
    given = drawn(ROWS, COLS), columns(ROWS)
    same(compiled(*given), step(pair.theirs)(*given))


# Found by random calls (tests/torch_calls.py).


@pytest.mark.parametrize("rows", [(3,), (2, 3)])
@pytest.mark.parametrize("entropies", [False, True])
def test_one_id_in_a_dimension_of_its_own_beside_a_temperature_a_row(
    rows: tuple[int, ...], entropies: bool
) -> None:
    """The gradient of rows was times the temperatures of others."""
    ids, temperature = columns(*rows, 1), drawn(*rows, seed=2).abs() + 0.5

    def ours(x: Any) -> Any:
        found = mine.token_log_probs(x, ids, temperature=temperature, return_entropy=entropies)
        return found[0] + found[1][..., None] if entropies else found

    def theirs(x: Any) -> Any:
        log_p = torch.log_softmax(x / temperature[..., None], -1)
        of_rows = -(log_p.exp() * log_p).sum(-1, keepdim=True) if entropies else 0
        return log_p.gather(-1, ids) + of_rows

    x = drawn(*rows, COLS)
    same(gradient(ours, x), gradient(theirs, x))


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_smoothed_loss_of_a_class_of_probability_0_is_as_pytorchs(
    reduction: str, smoothing: float
) -> None:
    """Infinite; with all of the smoothing NaN, as 0 is times infinity."""
    x = torch.tensor([[0.0, -torch.inf, 1.0], [0.0, 1.0, 2.0]])
    found, wanted = (
        gradient(
            lambda x, f=f: f(
                x, torch.tensor([1, 2]), label_smoothing=smoothing, reduction=reduction
            ),
            x,
        )
        for f in (mine.cross_entropy, F.cross_entropy)
    )
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_an_entropy_of_float64_is_as_exact_where_it_is_tracked() -> None:
    x = drawn(ROWS, COLS)
    for tracked in (False, True):
        found = mine.entropy(x.requires_grad_(tracked), dtype=torch.float64).detach()
        wanted = FUNCTIONS["entropy"].theirs(x.detach().double(), None)
        torch.testing.assert_close(found, wanted, rtol=1e-13, atol=0)
