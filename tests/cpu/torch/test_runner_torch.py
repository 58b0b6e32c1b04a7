"""Calls of the call room on PyTorch's tensors: what happens between two equal ones is seen.

With the comparison by which PyTorch guards compiled code, and on a PyTorch that has none.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch's tensors")

import softgen  # noqa: E402
from softgen.call.library import library_of  # noqa: E402
from softgen.call.torch_library import TorchLibrary  # noqa: E402
from softgen.errors import (  # noqa: E402
    InvalidTypeError,
    InvalidValueError,
    NotSupportedError,
)
from softgen.problems.dtypes import DType, Integer  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402
from tests.helpers.torch_kinds import Mode, Sub  # noqa: E402

# Of PyTorch's own code.
pytestmark = pytest.mark.filterwarnings("ignore")

# Any where PyTorch is not installed, as where the linters run.
Tensor: Any = torch.Tensor
forward_ad: Any = torch.autograd.forward_ad


@pytest.fixture(autouse=True, params=[True, False], ids=["guards", "no guards"])
def guards(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    if not request.param:
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")


def require_right(y: Any, x: Any) -> None:
    torch.testing.assert_close(y, torch.softmax(x.detach(), -1))


def warmed(world: World, x: Any) -> None:
    """Call with x until such calls have an entry."""
    for _ in range(2):
        require_right(softgen.softmax(x), x)
    world.chosen.clear()
    world.launches.clear()


def test_an_equal_call_goes_past_dispatch(world: World) -> None:
    for _ in range(3):
        x = torch.randn(6, 8)
        y = softgen.softmax(x)
        require_right(y, x)
        assert type(y) is Tensor
        assert not y.requires_grad
    assert (world.chosen, world.launches) == (["softmax"], ["softmax"] * 3)


OTHERS: dict[str, Callable[[], Any]] = {
    "shape": lambda: torch.randn(8, 6),
    "rank": lambda: torch.randn(2, 3, 8),
    "dtype": lambda: torch.randn(6, 8).half(),
    "wide": lambda: torch.randn(6, 8).double(),
    "alignment": lambda: torch.randn(49)[1:].reshape(6, 8),
    "pitch": lambda: torch.randn(6, 12)[:, :8],
    "columns": lambda: torch.randn(8, 6).t(),
    "expanded": lambda: torch.randn(1, 8).expand(6, 8),
    "empty": lambda: torch.randn(0, 8),
    "subclass": lambda: torch.randn(6, 8).as_subclass(Sub),
}


@pytest.mark.parametrize("other", OTHERS)
def test_any_other_tensor_goes_to_dispatch(other: str, world: World) -> None:
    warmed(world, torch.randn(6, 8))
    x = OTHERS[other]()
    require_right(softgen.softmax(x), x)
    assert world.chosen == ["softmax"] * (other != "empty")
    softgen.softmax(torch.randn(6, 8))
    require_right(softgen.softmax(x), x)
    assert len(world.chosen) == {"empty": 0, "columns": 2, "subclass": 2}.get(other, 1)


def test_two_shapes_and_two_views_in_turns(world: World) -> None:
    wide = torch.randn(2, 6, 12)
    inputs = [torch.randn(6, 8), torch.randn(5, 8), wide[0, :, :8], wide[1, ::2, :8]]
    for x in inputs * 3:
        require_right(softgen.softmax(x), x)
    assert len(world.chosen) == len(inputs)


@contextlib.contextmanager
def faked() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


BETWEEN: dict[str, Callable[[Any], Any]] = {
    "a mode": lambda x: with_(Mode(), x),
    "FakeTensors": lambda x: with_(faked(), x),
    "a level of forward AD": lambda x: with_(forward_ad.dual_level(), x),
    "vmap": lambda x: torch.func.vmap(softgen.softmax)(x[None]),
    "vmap of a constant": lambda x: torch.func.vmap(lambda _: softgen.softmax(x))(x[None]),
    "grad": lambda x: torch.func.grad(lambda x: softgen.softmax(x).sum())(x),
    "grad of a constant": lambda x: torch.func.grad(lambda z: softgen.softmax(x).sum() * z)(
        x.sum()
    ),
    "jvp": lambda x: torch.func.jvp(softgen.softmax, (x,), (x,)),
    "functionalize": lambda x: torch.func.functionalize(softgen.softmax)(x),
    "make_fx": lambda x: torch.fx.experimental.proxy_tensor.make_fx(lambda x: softgen.softmax(x))(
        x
    ),
    "jit.trace": lambda x: torch.jit.trace(softgen.softmax, x),
    "requires_grad": lambda x: softgen.softmax(x.clone().requires_grad_()),
    "a Parameter": lambda x: softgen.softmax(torch.nn.Parameter(x)),
    "a negation": lambda x: softgen.softmax(x._neg_view()),
    "zeros without memory": lambda x: softgen.softmax(torch._efficientzerotensor(x.shape)),
}


def with_(context: Any, x: Any) -> Any:
    with context:
        return softgen.softmax(x)


@pytest.mark.parametrize("between", BETWEEN)
def test_what_goes_on_between_two_equal_calls_is_seen(between: str, world: World) -> None:
    """A launch would go unseen: of the recorded, the derived, the batched call."""
    import torch.fx.experimental.proxy_tensor

    x = torch.randn(6, 8)
    warmed(world, x)
    for _ in range(2):
        with pytest.raises(NotSupportedError):
            BETWEEN[between](x)
    assert world.launches == []
    require_right(softgen.softmax(x), x)
    assert world.chosen == []


@pytest.mark.parametrize(
    "context",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu"), torch.enable_grad],
    ids=["no_grad", "inference_mode", "autocast", "enable_grad"],
)
def test_what_changes_no_result_is_served(context: Any, world: World) -> None:
    x = torch.randn(6, 8)
    warmed(world, x)
    with context():
        for each in (x, torch.randn(6, 8), x):
            y = softgen.softmax(each)
            assert y.dtype is torch.float32
            require_right(y, each)
    require_right(softgen.softmax(x), x)
    assert world.launches == ["softmax"] * 4


def test_the_grad_mode_counts_at_every_call(world: World) -> None:
    x = torch.randn(6, 8, requires_grad=True)
    for _ in range(3):
        with torch.no_grad():
            for _ in range(2):
                require_right(softgen.softmax(x), x)
        with pytest.raises(NotSupportedError, match="requires grad"):
            softgen.softmax(x)
        plain = x.detach()
        require_right(softgen.softmax(plain), plain)
    assert len(world.launches) == 9


def test_an_input_beside_x_that_wants_a_gradient_counts_too(world: World) -> None:
    dy, y = torch.randn(6, 8), torch.randn(6, 8)
    for _ in range(3):
        softgen.softmax_backward(dy, y)
    wants = torch.randn(6, 8, requires_grad=True)
    for _ in range(2):
        with pytest.raises(NotSupportedError, match="requires grad"):
            softgen.softmax_backward(dy, wants)
        with torch.no_grad():
            softgen.softmax_backward(dy, wants)
    assert len(world.launches) == 5


def test_the_grad_mode_of_a_thread_is_its_own(world: World) -> None:
    x = torch.randn(6, 8, requires_grad=True)
    with torch.no_grad(), ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            softgen.softmax(x)
            with pytest.raises(NotSupportedError, match="requires grad"):
                pool.submit(softgen.softmax, x).result()


def test_parameters_and_tensors_share_entries(world: World) -> None:
    plain, parameter = torch.randn(6, 8), torch.nn.Parameter(torch.randn(6, 8))
    with torch.no_grad():
        for x in (plain, parameter, parameter, plain, parameter):
            y = softgen.softmax(x)
            require_right(y, x)
            assert type(y) is Tensor
    assert world.chosen == ["softmax"]


# out=


@pytest.mark.parametrize("function", [softgen.softmax, softgen.log_softmax])
def test_an_out_has_another_version(function: Any, world: World) -> None:
    """By which autograd tells that what it saved was overwritten."""
    memory = torch.empty(6, 16)
    for out in (torch.empty(6, 8), memory[:, :8], memory.t()[:8].t()):
        x = torch.randn(6, 8)
        for _ in range(3):
            before, of_x = out._version, x._version
            assert function(x, out=out) is out
            assert out._version > before
            assert x._version == of_x
    transposed = torch.empty(8, 6).t()  # written elsewhere, then copied
    before = transposed._version
    function(torch.randn(6, 8), out=transposed)
    assert transposed._version > before


def test_autograd_refuses_what_was_overwritten(world: World) -> None:
    for _ in range(3):
        w, a = torch.randn(6, 8, requires_grad=True), torch.randn(6, 8)
        loss = (w * a).sum()
        softgen.softmax(a, out=a)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_an_out_in_inference_mode(world: World) -> None:
    """Of an inference tensor nobody counts; one from outside is counted."""
    outside = torch.empty(6, 8)
    with torch.inference_mode():
        inside = torch.empty(6, 8)
        for _ in range(3):
            x = torch.randn(6, 8)
            require_right(softgen.softmax(x, out=inside), x)
            before = outside._version
            require_right(softgen.softmax(x, out=outside), x)
            assert outside._version > before
    for _ in range(2):
        require_right(softgen.softmax(x, out=inside), x)


def test_results_go_where_the_caller_says(world: World) -> None:
    memory = torch.randn(18, 8)
    x = memory[6:12]
    values = x.clone()
    for out in (torch.empty(6, 8), memory[12:], memory[:6], torch.empty(6, 8)):
        assert softgen.softmax(x, out=out) is out
        require_right(out, values)
    assert world.chosen == ["softmax"]
    for out in (memory[5:11], memory[7:13]):
        with pytest.raises(InvalidValueError, match="overlaps x"):
            softgen.softmax(x, out=out)
    assert softgen.softmax(x, out=x) is x
    require_right(x, values)


def wanting(tracked: bool) -> Any:
    leaf = torch.randn(6, 8, requires_grad=True)
    return leaf * 2 if tracked else leaf


def fake(x: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return mode.from_tensor(x)


BAD_OUT: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "a leaf that requires grad": (lambda: wanting(False), NotSupportedError),
    "a result that has a gradient": (lambda: wanting(True), NotSupportedError),
    "fake": (lambda: fake(torch.empty(6, 8)), NotSupportedError),
    "negated": (lambda: torch.empty(6, 8)._neg_view(), NotSupportedError),
    "zeros without memory": (lambda: torch._efficientzerotensor(6, 8), NotSupportedError),
    "meta": (lambda: torch.empty(6, 8, device="meta"), InvalidTypeError),
    "another dtype": (lambda: torch.empty(6, 8).half(), InvalidValueError),
    "another shape": (lambda: torch.empty(8, 6), InvalidValueError),
    "repeated": (lambda: torch.empty(1, 8).expand(6, 8), InvalidValueError),
}


@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("bad", BAD_OUT)
def test_an_out_that_no_kernel_may_write_to(bad: str, axis: int, world: World) -> None:
    x, out = torch.randn(6, 8), torch.empty(6, 8)
    for _ in range(2):
        softgen.softmax(x, axis, out=out)
    world.launches.clear()
    make, error = BAD_OUT[bad]
    for _ in range(2):
        with pytest.raises(error):
            softgen.softmax(x, axis, out=make())
    assert world.launches == []


def test_an_out_that_requires_grad_is_written_where_nobody_tracks(world: World) -> None:
    out = wanting(False)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(6, 8)
            assert softgen.softmax(x, out=out) is out
            require_right(out, x)


# The rest


def test_entries_keep_no_tensor_alive(world: World) -> None:
    for with_out in (False, True):
        inputs, out = (
            [torch.randn(6, 8), torch.randn(6, 8)],
            torch.empty(6, 8) if with_out else None,
        )
        for _ in range(2):
            found = softgen.softmax_backward(*inputs, out=out)
        gone = [weakref.ref(each) for each in (*inputs, found)]
        del inputs, out, found
        gc.collect()
        assert all(ref() is None for ref in gone)


def test_memory_that_was_freed_is_not_launched_on(world: World) -> None:
    """As FSDP frees that of parameters; PyTorch refuses them too."""
    x, y, out = torch.randn(6, 8), torch.randn(6, 8), torch.empty(6, 8)
    for _ in range(2):
        softgen.softmax_backward(x, y)
        softgen.softmax_backward(x, y, out=out)
    world.launches.clear()
    freed = torch.randn(6, 8)
    freed.untyped_storage().resize_(0)
    for inputs, where in (((freed, y), None), ((x, freed), None), ((x, y), freed)):
        for _ in range(2):
            with pytest.raises(NotSupportedError, match="memory was freed"):
                softgen.softmax_backward(*inputs, out=where)
    assert world.launches == []
    require_right(softgen.softmax(x), x)


def test_threads(world: World) -> None:
    def work(seed: int) -> None:
        for rows in (5, 6, 5, 6):
            x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
            require_right(softgen.softmax(x), x)
            number = 0.25 * (seed + 1)
            torch.testing.assert_close(
                softgen.softmax(x, scale=number), torch.softmax(x * number, -1)
            )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(32)))


def test_a_launch_goes_to_the_stream_that_is_current(world: World) -> None:
    for stream in (5, 7, 0, 5):
        world.driver.stream = stream
        softgen.softmax(torch.randn(6, 8))
        assert world.driver.launches[-1].stream == stream
    assert world.chosen == ["softmax"]


def test_where_another_context_is_current_dispatch_makes_it_so(world: World) -> None:
    warmed(world, torch.randn(6, 8))
    world.driver.context += 1
    for _ in range(4):
        softgen.softmax(torch.randn(6, 8))
    assert len(world.chosen) in (1, 2)


def test_what_softgen_asks_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(6, 10, dtype=torch.bfloat16)
    library, same = library_of(x)
    assert same is x
    assert isinstance(library, TorchLibrary)
    assert library.pointer(x) == x.data_ptr()
    assert library.dtype(x) is DType.BFLOAT16
    assert library.device(x) == x.get_device()
    assert library.byte_strides(x) == (20, 2)
    assert library.is_contiguous(x)
    assert library.contiguous(x) is x
    assert library.is_contiguous(library.contiguous(x.t()))
    assert library.copy(x).data_ptr() != x.data_ptr()
    assert library.stream(1) == 5
    other = torch.zeros_like(x)
    library.assign(other, x)
    torch.testing.assert_close(other, x)
    library.fill(other, 3)
    assert (other == 3).all()
    assert not library.mallocs_in_capture
    assert library.element_type(torch.zeros(3, dtype=torch.int64)) is Integer.INT64
    with pytest.raises(InvalidTypeError, match="dtype 'int64' is not supported"):
        library.dtype(torch.zeros(3, dtype=torch.int64))
    made = []
    monkeypatch.setattr(torch, "empty", lambda *given, **options: made.append((given, options)))
    TorchLibrary().empty((2, 3), DType.FLOAT64, 1)
    assert made == [(((2, 3),), {"dtype": torch.float64, "device": torch.device("cuda", 1)})]


def test_tensors_are_made_past_the_dispatcher_where_that_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guards, shape = torch._C._dynamo.guards, (2, 3, 4)
    for name in ("empty_strided_cuda", "_empty_strided_cuda"):
        monkeypatch.setattr(guards, name, lambda *facts: ("direct", *facts), raising=False)
    make = TorchLibrary().maker(shape, DType.FLOAT64)
    assert make() == ("direct", shape, (12, 4, 1), torch.float64)
    monkeypatch.delattr(guards, "_empty_strided_cuda")
    monkeypatch.setattr(torch, "empty", lambda shape, **options: (shape, options))
    make = TorchLibrary().maker(shape, DType.FLOAT64)
    assert make() == (shape, {"dtype": torch.float64, "device": "cuda"})
