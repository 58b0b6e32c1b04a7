"""What PyTorch does to functions: softgen's give PyTorch's values and gradients under all of it."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
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

func = torch.func
functions = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.fixture(autouse=True)
def served_by_kernels(world: World, request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is compiled before, and each test launches softgen's kernels."""
    torch._dynamo.reset()
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed:
        return
    callspec = getattr(request.node, "callspec", None)
    if callspec is None:
        return
    name = callspec.params["name"]
    assert any(each.startswith(name) for each in world.launches)


class Count:
    """A backend of torch.compile that counts its graphs and runs them as they are.

    Attributes:
        graphs: the forward ones.
        operators: those of softgen in them and in the backward ones.
    """

    def __init__(self) -> None:
        from torch._dynamo.backends.common import aot_autograd

        self.graphs, self.operators = 0, set[str]()
        self.backend = aot_autograd(fw_compiler=self._forward, bw_compiler=self._run)

    def _forward(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return self._run(graph, inputs)

    def _run(self, graph: Any, inputs: Any) -> Any:
        targets = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        self.operators |= {each for each in targets if each.startswith("softgen")}

        def run(arguments: Any) -> Any:
            return graph.forward(*arguments)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


# Compiled.


@functions
def test_compiled_without_a_break(name: str) -> None:
    count, pair = Count(), FUNCTIONS[name]
    compiled = torch.compile(pair.ours, fullgraph=True, backend=count.backend)
    for _ in range(2):
        agree(name, compiled)
        with torch.no_grad():
            same(
                compiled(drawn(ROWS, COLS), columns(ROWS)),
                pair.theirs(drawn(ROWS, COLS), columns(ROWS)),
            )
    assert count.graphs == 2  # with and without a gradient
    assert len(count.operators) >= 2  # forward and backward


@functions
def test_compiled_for_any_shape(name: str) -> None:
    count, pair = Count(), FUNCTIONS[name]
    compiled = torch.compile(pair.ours, fullgraph=True, backend=count.backend, dynamic=True)
    for rows, cols in ((3, 5), (4, 5), (4, 7), (9, 6)):
        x, ids = drawn(rows, cols), columns(rows)
        same(gradient(compiled, x, ids), gradient(pair.theirs, x, ids))
    assert count.graphs == 1


@functions
def test_compiled_anew_once_where_shapes_turn_out_to_change(name: str) -> None:
    count, pair = Count(), FUNCTIONS[name]
    compiled = torch.compile(pair.ours, fullgraph=True, backend=count.backend)
    for rows in (3, 4, 5, 6, 7):
        x, ids = drawn(rows, COLS), columns(rows)
        same(gradient(compiled, x, ids), gradient(pair.theirs, x, ids))
    assert count.graphs == 2


@functions
def test_compiled_by_inductor_to_reduce_overhead(name: str) -> None:
    """On a CPU without CUDA's graphs. A mean would be a kernel in C++, 15 s."""
    if name == "cross_entropy":
        compiled = torch.compile(
            lambda x, ids: mine.cross_entropy(x, ids, reduction="none"), mode="reduce-overhead"
        )
        x, ids = drawn(ROWS, COLS), columns(ROWS)
        wanted = gradient(torch.nn.functional.cross_entropy, x, ids, None, None, -100, None, "none")
        same(gradient(compiled, x, ids), wanted)
    else:
        agree(name, torch.compile(FUNCTIONS[name].ours, mode="reduce-overhead", fullgraph=True))


class Head(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module that calls a function behind a product."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.weight = torch.nn.Parameter(drawn(COLS, COLS, seed=3))

    def forward(self, x: Any, ids: Any) -> Any:
        return FUNCTIONS[self.name].ours(x @ self.weight, ids)

    def theirs(self, x: Any, ids: Any) -> Any:
        return FUNCTIONS[self.name].theirs(x @ self.weight, ids)


def same_as_theirs(module: Any, run: Callable[..., Any]) -> None:
    """Require the value and the gradient of the weight."""
    x, ids, found = drawn(ROWS, COLS), columns(ROWS), []
    for function in (run, module.theirs):
        y = function(x, ids)
        upstream = torch.linspace(-1.0, 2.0, y.numel()).reshape(y.shape)
        found.append((y.detach(), *torch.autograd.grad(y, module.weight, upstream)))
    same(*found)


@functions
@pytest.mark.parametrize("strict", [False, True])
def test_exported(name: str, strict: bool) -> None:
    """With rows of any number, as an operator, which what it is decomposed into still has."""
    head = Head(name)
    rows = torch.export.Dim("rows", min=2, max=64)
    exported = torch.export.export(
        head,
        (drawn(ROWS, COLS), columns(ROWS)),
        dynamic_shapes=({0: rows}, {0: rows}),
        strict=strict,
    )
    for program in (exported, exported.run_decompositions()):
        assert any("softgen" in str(node.target) for node in program.graph.nodes)
        for n in (ROWS, ROWS + 4):
            x, ids = drawn(n, COLS, seed=1), columns(n, seed=1)
            same(program.module()(x, ids).detach(), head.theirs(x, ids).detach())


def test_aot_inductor_lowers_what_is_exported() -> None:
    """To C++ that calls each operator; to compile it takes 25 s, and it was tried by hand."""
    import zipfile

    def all_of_them(x: Any, ids: Any) -> Any:
        return tuple(pair.ours(x, ids) for pair in FUNCTIONS.values())

    class Every(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, ids: Any) -> Any:
            return all_of_them(x, ids)

    exported = torch.export.export(Every(), (drawn(ROWS, COLS), columns(ROWS)))
    package = torch._inductor.aoti_compile_and_package(
        exported, inductor_configs={"aot_inductor.package_cpp_only": True}
    )
    with zipfile.ZipFile(package) as files:
        texts = [files.read(each).decode() for each in files.namelist() if each.endswith(".cpp")]
    for name in FUNCTIONS:
        assert any(f"softgen.{name}" in text for text in texts), name


@functions
def test_exported_and_loaded_again(name: str) -> None:
    head, file = Head(name), io.BytesIO()
    torch.export.save(torch.export.export(head, (drawn(ROWS, COLS), columns(ROWS))), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    x, ids = drawn(ROWS, COLS, seed=1), columns(ROWS, seed=1)
    same(loaded(x, ids).detach(), head.theirs(x, ids).detach())


@functions
def test_exported_for_training(name: str) -> None:
    """Its graph is called under autograd."""
    head = Head(name)
    exported = torch.export.export(head, (drawn(ROWS, COLS), columns(ROWS))).module()
    x, ids, found = drawn(ROWS, COLS), columns(ROWS), []
    for run, weight in ((exported, exported.weight), (head.theirs, head.weight)):
        found.append(torch.autograd.grad(run(x, ids).square().sum(), weight))
    same(*found)


@functions
def test_compiled_autograd(name: str) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)

    def step(x: Any) -> Any:
        y = pair.ours(x, ids)
        y.square().sum().backward()
        return y

    x = drawn(ROWS, COLS).requires_grad_()
    wanted = torch.autograd.grad(pair.theirs(x, ids).square().sum(), x)[0]
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="aot_eager")(x)
    same(x.grad, wanted)


@functions
def test_the_engine_compiled_around_an_eager_call(name: str) -> None:
    """softgen's own Python is not what is compiled: its gradient is one operator of a graph."""
    from torch._dynamo import compiled_autograd
    from torch._dynamo.utils import counters

    pair, ids = FUNCTIONS[name], columns(ROWS)
    x = drawn(ROWS, COLS).requires_grad_()
    wanted = torch.autograd.grad(pair.theirs(x, ids).square().sum(), x)[0]
    counters.clear()
    with compiled_autograd._enable(torch.compile(backend="eager", dynamic=False)):
        pair.ours(x, ids).square().sum().backward()
    same(x.grad, wanted)
    assert counters["frames"]["total"] < 10


# Transformed.


def of(*transforms: Callable[..., Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("transform", transforms, ids=lambda each: each.__name__)


def vmap(f: Callable[..., Any]) -> Any:
    return func.vmap(f)(drawn(4, ROWS, COLS), columns(4, ROWS))


def vmap_of_vmap(f: Callable[..., Any]) -> Any:
    return func.vmap(func.vmap(f))(drawn(2, 4, ROWS, COLS), columns(2, 4, ROWS))


def grad(f: Callable[..., Any]) -> Any:
    return func.grad(lambda x, ids: f(x, ids).square().sum())(drawn(ROWS, COLS), columns(ROWS))


def vmap_of_grad(f: Callable[..., Any]) -> Any:
    run = func.grad(lambda x, ids: f(x, ids).square().sum())
    return func.vmap(run)(drawn(4, ROWS, COLS), columns(4, ROWS))


def grad_of_vmap(f: Callable[..., Any]) -> Any:
    ids = columns(4, ROWS)
    return func.grad(lambda x: func.vmap(f)(x, ids).square().sum())(drawn(4, ROWS, COLS))


def jacrev(f: Callable[..., Any]) -> Any:
    return func.jacrev(f)(drawn(ROWS, COLS), columns(ROWS))


def vmap_of_jacrev(f: Callable[..., Any]) -> Any:
    return func.vmap(func.jacrev(f))(drawn(2, ROWS, COLS), columns(2, ROWS))


def vjp(f: Callable[..., Any]) -> Any:
    y, pull = func.vjp(lambda x: f(x, columns(ROWS)), drawn(ROWS, COLS))
    upstream = drawn(4, *y.shape, seed=2)
    return y, func.vmap(pull)(upstream)


@functions
@of(vmap, vmap_of_vmap, grad, vmap_of_grad, grad_of_vmap, jacrev, vmap_of_jacrev, vjp)
def test_transformed(name: str, transform: Callable[..., Any]) -> None:
    same(transform(FUNCTIONS[name].ours), transform(FUNCTIONS[name].theirs))


def jacfwd(f: Callable[..., Any]) -> Any:
    return func.jacfwd(f)(drawn(ROWS, COLS), columns(ROWS))


def vmap_of_jvp(f: Callable[..., Any]) -> Any:
    def push(x: Any, t: Any, ids: Any) -> Any:
        return func.jvp(lambda x: f(x, ids), (x,), (t,))

    return func.vmap(push)(drawn(2, ROWS, COLS), drawn(2, ROWS, COLS, seed=1), columns(2, ROWS))


def grad_of_grad(f: Callable[..., Any]) -> Any:
    def slope(x: Any) -> Any:
        return func.grad(lambda x: f(x, ids).square().sum())(x).square().sum()

    ids = columns(ROWS)

    return func.grad(slope)(drawn(ROWS, COLS))


def hessian(f: Callable[..., Any]) -> Any:
    return func.hessian(lambda x, ids: f(x, ids).square().sum())(drawn(ROWS, COLS), columns(ROWS))


def jacrev_of_jacrev(f: Callable[..., Any]) -> Any:
    return func.jacrev(func.jacrev(f))(drawn(ROWS, COLS), columns(ROWS))


@functions
@of(jacfwd, vmap_of_jvp, grad_of_grad, hessian, jacrev_of_jacrev)
def test_transformed_where_there_is_a_rule(name: str, transform: Callable[..., Any]) -> None:
    """Of softmax, log_softmax and logsumexp; others may be refused, which test_refused.py reads."""
    pair = FUNCTIONS[name]
    found, refusal = refusal_or(lambda: transform(pair.ours))
    if refusal:
        assert not pair.tangents or transform is hessian
        assert name in refusal
        pair.ours(drawn(ROWS, COLS), columns(ROWS))  # as a kernel has to be launched
    else:
        same(found, transform(pair.theirs))


@functions
def test_finite_differences(name: str) -> None:
    x, ids = drawn(ROWS, COLS, dtype=torch.float64).requires_grad_(), columns(ROWS)
    pair = FUNCTIONS[name]
    assert torch.autograd.gradcheck(pair.ours, (x, ids), check_forward_ad=pair.tangents)
    if pair.again:
        assert torch.autograd.gradgradcheck(pair.ours, (x, ids))


# Registered.


HOOKED: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda x, ids: mine.softmax(
        *(x, -1),
        bias=x.detach(),
        sink=x[:, 0].detach(),
        scale=0.5,
        softcap=3.0,
        dropout=0.5,
        seed=1,
    ),
    "token_log_probs": lambda x, ids: mine.token_log_probs(
        x, ids, temperature=0.5, return_entropy=True
    )[1],
    "cross_entropy": lambda x, ids: mine.cross_entropy(x, ids, label_smoothing=0.1, z_loss=0.1),
    "logsumexp": lambda x, ids: mine.logsumexp(x, ()),
    "entropy": lambda x, ids: mine.entropy(x, (0, 1)),
    "log_softmax": lambda x, ids: mine.log_softmax(x, 0, dtype=torch.float64),
}


def recorded(run: Callable[[Any, Any], Any]) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return softgen's operators that a call and its gradient go through, with what they got."""
    from torch.utils._python_dispatch import TorchDispatchMode

    found = []

    class Record(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if op.namespace == "softgen":
                taken = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in args]
                found.append((op, (*taken, *(kwargs or {}).values())))
            return op(*args, **(kwargs or {}))

    x = drawn(ROWS, COLS).requires_grad_()
    with Record():
        run(x, columns(ROWS)).square().sum().backward()
    return found


@functions
@pytest.mark.parametrize("hooked", [False, True])
def test_what_is_called_is_registered_as_it_should_be(name: str, hooked: bool) -> None:
    """Schema, fake kernel, autograd and AOT: PyTorch's own checks, of each operator that runs."""
    found = recorded(HOOKED[name] if hooked else FUNCTIONS[name].ours)
    assert len(found) >= 2  # forward and backward
    for operator, arguments in found:
        floats = [each for each in arguments if isinstance(each, torch.Tensor)]
        if "backward" not in str(operator):  # gradients of gradients: gradgradcheck above
            floats[0].requires_grad_()
        torch.library.opcheck(operator, arguments)


@functions
def test_a_dispatch_mode_sees_an_operator_and_its_gradient(name: str) -> None:
    names = [str(operator) for operator, _ in recorded(FUNCTIONS[name].ours)]
    assert any(name in each and "backward" not in each for each in names)
    assert any(name in each and "backward" in each for each in names)


# Kept for the backward pass.


def forwards(name: str, world: World) -> int:
    """Return how often the function itself was launched."""
    return sum(each.startswith(name) and "backward" not in each for each in world.launches)


@functions
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(name: str, reentrant: bool, world: World) -> None:
    from torch.utils.checkpoint import checkpoint

    pair, ids, x = FUNCTIONS[name], columns(ROWS), drawn(ROWS, COLS).requires_grad_()
    checkpoint(pair.ours, x, ids, use_reentrant=reentrant).square().sum().backward()
    same(x.grad, torch.autograd.grad(pair.theirs(x, ids).square().sum(), x)[0])
    assert forwards(name, world) == 2


@functions
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_checkpointed_by_operator(name: str, kept: bool, compiled: bool, world: World) -> None:
    """A policy that keeps softgen's results launches each function once, another twice."""
    from torch.utils import checkpoint as again

    seen: set[str] = set()

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        seen.add(operator.namespace)
        mine = kept and operator.namespace == "softgen"
        return again.CheckpointPolicy.MUST_SAVE if mine else again.CheckpointPolicy.MUST_RECOMPUTE

    contexts = functools.partial(again.create_selective_checkpoint_contexts, policy)

    def run(x: Any, ids: Any) -> Any:
        ours = FUNCTIONS[name].ours
        return again.checkpoint(
            lambda x: ours(x * 1, ids), x, use_reentrant=False, context_fn=contexts
        )

    agree(name, torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run)
    assert "softgen" in seen
    assert forwards(name, world) == (1 if kept else 2)


@functions
def test_saved_tensors_go_through_hooks(name: str) -> None:
    packed, unpacked = [], []

    def pack(x: Any) -> Any:
        packed.append(x)
        return x.clone().numpy() if not x.requires_grad else x.detach().clone().numpy()

    def unpack(x: Any) -> Any:
        unpacked.append(x)
        return torch.from_numpy(x)

    def run(x: Any, ids: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return FUNCTIONS[name].ours(x, ids)

    agree(name, run)
    assert packed
    assert len(unpacked) == len(packed)


@functions
def test_a_graph_may_be_kept_and_run_again(name: str) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    x = drawn(ROWS, COLS).requires_grad_()
    y, z = pair.ours(x, ids), pair.theirs(x, ids)
    for factor in (1, 2):
        found, wanted = (
            torch.autograd.grad(each.sum() * factor, x, retain_graph=True)[0] for each in (y, z)
        )
        same(found, wanted)
    torch.autograd.grad(y.sum(), x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), x)


# Modes, modules, threads.


@functions
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_without_tracking(name: str, mode: Any) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    for x in (drawn(ROWS, COLS), drawn(ROWS, COLS).requires_grad_()):
        with mode():
            for given in (x, x * 1, torch.nn.Parameter(x.detach())):
                y, wanted = pair.ours(given, ids), pair.theirs(given, ids)
                assert y.is_inference() is wanted.is_inference()
                assert not y.requires_grad
                same(y, wanted)
    with torch.inference_mode():
        inferred = drawn(ROWS, COLS)
    same(pair.ours(inferred, ids), pair.theirs(inferred, ids))


@functions
def test_anomalies_are_looked_for(name: str) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        agree(name)


@functions
def test_deterministic_algorithms(name: str) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        agree(name)
    finally:
        torch.use_deterministic_algorithms(False)


@functions
def test_a_module_is_copied_and_pickled(name: str) -> None:
    head = Head(name)
    same_as_theirs(head, head)
    for other in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        same_as_theirs(other, other)
    function = getattr(mine, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


@functions
def test_a_module_that_kept_a_result_is_copied_as_pytorchs(name: str) -> None:
    """A result that is tracked is no leaf, which PyTorch does not copy; its value it does."""
    y = FUNCTIONS[name].ours(drawn(ROWS, COLS).requires_grad_(), columns(ROWS))
    same(copy.deepcopy(y.detach()), y.detach())
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(y)


@functions
def test_two_threads_at_once(name: str) -> None:
    """Each with shapes of its own that take turns; gradients are computed in other threads."""
    pair, wrong = FUNCTIONS[name], []
    barrier = threading.Barrier(2)

    def work(number: int) -> None:
        try:
            barrier.wait(10)
            for step in range(15):
                rows = 1 + (step + number) % 4
                x, ids = drawn(rows, COLS, seed=step), columns(rows, seed=step)
                same(gradient(pair.ours, x, ids), gradient(pair.theirs, x, ids))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if wrong:
        raise wrong[0]


# Inputs.


INPUTS: dict[str, Callable[[], Any]] = {
    "transposed": lambda: drawn(COLS, ROWS).T,
    "columns of more": lambda: drawn(ROWS, 3 * COLS)[:, COLS : 2 * COLS],
    "every second column": lambda: drawn(ROWS, 2 * COLS)[:, ::2],
    "every second row": lambda: drawn(2 * ROWS, COLS)[::2],
    "one row for all": lambda: drawn(1, COLS).expand(ROWS, COLS),
    "one column for all": lambda: drawn(ROWS, 1).expand(ROWS, COLS),
    "rows that overlap": lambda: drawn(ROWS + COLS).as_strided((ROWS, COLS), (1, 1)),
    "not aligned": lambda: drawn(1 + ROWS * COLS)[1:].view(ROWS, COLS),
    "float64": lambda: drawn(ROWS, COLS, dtype=torch.float64),
    "-inf": lambda: drawn(ROWS, COLS).where(drawn(ROWS, COLS, seed=5) < 3, -torch.inf),
}


@functions
@pytest.mark.parametrize("kind", INPUTS)
def test_inputs_in_any_memory(name: str, kind: str) -> None:
    for _ in range(3):
        agree(name, x=INPUTS[kind]())


@functions
def test_parameters(name: str) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    for _ in range(3):
        a, b = (torch.nn.Parameter(drawn(ROWS, COLS)) for _ in range(2))
        pair.ours(a, ids).square().sum().backward()
        pair.theirs(b, ids).square().sum().backward()
        assert type(a.grad) is torch.Tensor
        same(a.grad, b.grad)


@functions
def test_upstream_gradients_in_any_memory(name: str) -> None:
    """Expanded, transposed, a result itself, of another layout, a Parameter, none."""
    pair, ids = FUNCTIONS[name], columns(ROWS)
    x = drawn(ROWS, COLS).requires_grad_()
    kinds: tuple[Callable[[Any], Any], ...] = (
        lambda y: y.new_ones(()).expand(y.shape),
        lambda y: y.detach(),
        lambda y: torch.nn.Parameter(y.detach().clone()),
        lambda y: y.detach().mT.contiguous().mT if y.dim() == 2 else y.detach(),
        lambda y: torch.cat([y.detach()[None]] * 2, -1)[0][..., ::2] if y.dim() else y.detach(),
    )
    for kind in kinds:
        y, z = pair.ours(x, ids), pair.theirs(x, ids)
        upstream = kind(z)
        upstream = upstream if upstream.shape == y.shape else torch.ones_like(z)
        same(
            *(torch.autograd.grad(each, x, upstream.detach())[0] for each in (y, z)),
        )
        with torch.no_grad():
            y.detach().copy_(y)
    unused = drawn(ROWS, COLS).requires_grad_()
    assert torch.autograd.grad(pair.ours(x, ids).sum(), unused, allow_unused=True)[0] is None


@functions
def test_one_tensor_used_twice(name: str) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)

    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, ids: function(x, ids) + function(x.flip(-1), ids) * 2

    x = drawn(ROWS, COLS)
    same(gradient(twice(pair.ours), x, ids), gradient(twice(pair.theirs), x, ids))


class Plain(torch.Tensor):  # type: ignore[misc, name-defined]
    """A subclass with memory, as torchvision's and fastai's are."""


@functions
@pytest.mark.parametrize("tracked", [False, True])
def test_a_subclass_with_memory_is_kept(name: str, tracked: bool) -> None:
    pair, ids = FUNCTIONS[name], columns(ROWS)
    for _ in range(3):
        x = drawn(ROWS, COLS).as_subclass(Plain).requires_grad_(tracked)
        y, wanted = pair.ours(x, ids), pair.theirs(x, ids)
        assert type(y) is type(wanted)
        same(y.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))
        if tracked:
            same(torch.autograd.grad(y.sum(), x), torch.autograd.grad(wanted.sum(), x))


@functions
def test_functions_modes_see_the_call(name: str) -> None:
    """It passes on what it gets, as that of a default device does."""

    class Seen(torch.overrides.TorchFunctionMode):  # type: ignore[misc, name-defined]
        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return f(*args, **(kwargs or {}))

    with Seen():
        agree(name)


@functions
def test_a_default_device_and_dtype_change_nothing(name: str) -> None:
    pair, x, ids = FUNCTIONS[name], drawn(ROWS, COLS), columns(ROWS)
    wanted = pair.theirs(x, ids)
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("cpu"):  # the mode that any device is
            same(pair.ours(x, ids), wanted)
    finally:
        torch.set_default_dtype(was)
