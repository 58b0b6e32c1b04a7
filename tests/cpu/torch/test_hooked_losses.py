"""log_softmax, logsumexp, log-probabilities and losses with hooks, against PyTorch's operations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.errors import InvalidValueError, SoftgenError  # noqa: E402
from tests.helpers.hooked_losses import (  # noqa: E402
    CAP,
    COLS,
    FUNCTIONS,
    HOOKS,
    IDS,
    ROWS,
    TARGET,
    drawn,
    every_other,
    given_of,
    hooked,
    with_gradients,
)
from tests.helpers.torch_calls import World  # noqa: E402

F = torch.nn.functional


def test_not_causal_is_no_hook(world: World) -> None:
    x, target = drawn(ROWS, COLS), TARGET
    with_smoothing: dict[str, Any] = {"label_smoothing": 0.25}
    plain = mine.cross_entropy(x, target, **with_smoothing)
    torch.testing.assert_close(mine.cross_entropy(x, target, causal=False, **with_smoothing), plain)
    best = mine.token_log_probs(x, IDS, topk=2)
    torch.testing.assert_close(mine.token_log_probs(x, IDS, topk=2, causal=False), best)
    with pytest.raises(InvalidValueError, match="causal_offset needs causal=True"):
        mine.softmax(x, -1, causal=False, causal_offset=1)


@pytest.mark.parametrize("ids", [[0, -100], [-100, 0], [0, 0], [-100, -100], [2, COLS]])
def test_a_hidden_id_beside_one_that_is_no_column(ids: list[int], world: World) -> None:
    x, mask = drawn(1, COLS).requires_grad_(), torch.ones(COLS, dtype=torch.bool)
    mask[0] = False
    chosen = torch.tensor([ids])
    y = mine.token_log_probs(x, chosen, mask=mask)
    inside = (chosen >= 0) & (chosen < COLS)
    (dx,) = torch.autograd.grad(torch.where(inside, y, 0).sum(), x)
    wanted = torch.zeros_like(x)
    p = torch.softmax(x.detach().masked_fill(~mask, -torch.inf), -1)
    for column in (each for each in ids if 0 <= each < COLS):
        wanted -= p
        wanted[0, column] += mask[column]
    torch.testing.assert_close(dx, wanted)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str, compiled: bool, world: World) -> None:
    ours, theirs, takes_sink = FUNCTIONS[name]
    torch._dynamo.reset()
    every = [
        hooks
        for count in (range(1, 6) if not compiled else (5,))
        for hooks in itertools.combinations(HOOKS, count)
    ]
    for hooks in every:
        asked = tuple(each for each in hooks if takes_sink or each != "sink")
        if not asked:
            continue
        given, x = given_of(asked), drawn(ROWS, COLS)

        def run(x: Any, hooks: dict[str, Any]) -> Any:
            return ours(x, **hooks)

        if compiled:
            run = torch.compile(run, backend="aot_eager", fullgraph=True)
        found = with_gradients(run, x, given)
        wanted = with_gradients(
            lambda x, hooks: theirs(hooked(x, hooks), hooks.get("sink")), x, given
        )
        for got, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-11, msg=str(asked))
    assert world.launches


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_types(name: str, dtype: Any) -> None:
    ours, theirs, _ = FUNCTIONS[name]
    hooks = {"softcap": CAP, "bias": drawn(COLS, seed=2, dtype=dtype)}
    x = drawn(ROWS, COLS, dtype=dtype)
    found = with_gradients(lambda x, hooks: ours(x, **hooks), x, hooks)
    exact = {**hooks, "bias": hooks["bias"].double()}
    wanted = with_gradients(lambda x, hooks: theirs(hooked(x, hooks), None), x.double(), exact)
    of_ids = "id" in name or "tokens" in name or "token" in name
    assert found[0].dtype is (torch.float32 if of_ids else dtype)
    assert found[1].dtype is found[2].dtype is dtype
    tolerance = {torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float32: 1e-5}[dtype]
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap_is_each_sample_alone(name: str, dim: int) -> None:
    x, bias = drawn(3, 2, 4, 5), drawn(3, 5, seed=4)
    sink = drawn(3, 1, seed=5)

    def run(x: Any, bias: Any, sink: Any) -> Any:
        return getattr(mine, name)(x, dim, bias=bias, sink=sink, causal=True, softcap=CAP)

    def gradients(*given: Any) -> Any:
        return torch.func.grad(lambda *each: run(*each).masked_fill(~ok, 0).sum(), (0, 1, 2))(
            *given
        )

    alone = torch.stack([run(*each) for each in zip(x, bias, sink, strict=True)])
    found = torch.vmap(run)(x, bias, sink)
    torch.testing.assert_close(found, alone)
    torch.testing.assert_close(torch.vmap(run, in_dims=(0, None, 0))(x, bias[0], sink)[0], alone[0])
    ok = alone[0].isfinite()
    of_one = [gradients(*each) for each in zip(x, bias, sink, strict=True)]
    for got, *right in zip(torch.vmap(gradients)(x, bias, sink), *of_one, strict=True):
        torch.testing.assert_close(got, torch.stack(right))


def test_vmap_of_vectors_and_ids() -> None:
    x, bias = drawn(ROWS, COLS), drawn(COLS, seed=4)

    def run(x: Any, ids: Any) -> Any:
        return mine.token_log_probs(x, ids, bias=bias, causal=True, causal_offset=4)

    def loss(x: Any, target: Any) -> Any:
        return mine.cross_entropy(x, target, softcap=CAP)

    for ids in (IDS, IDS[:, 0]):
        wanted = torch.stack([run(*each) for each in zip(x, ids, strict=True)])
        torch.testing.assert_close(torch.vmap(run)(x, ids), wanted)
    wanted = torch.stack([loss(*each) for each in zip(x, IDS[:, 0], strict=True)])
    torch.testing.assert_close(torch.vmap(loss)(x, IDS[:, 0]), wanted)


def test_rows_that_are_hidden_whole() -> None:
    x, mask = drawn(2, COLS).requires_grad_(), torch.tensor([[True], [False]])
    lse = mine.logsumexp(x, -1, mask=mask)
    assert lse[1] == -torch.inf
    (dx,) = torch.autograd.grad(lse[0], x)
    torch.testing.assert_close(dx, torch.stack((torch.softmax(x[0], -1), 0 * x[1])))
    sink = torch.tensor([-torch.inf]).double().requires_grad_()
    lse = mine.logsumexp(x, -1, mask=mask, sink=sink)
    (dsink,) = torch.autograd.grad(lse, sink, torch.tensor([1.0, 0.0]).double())
    assert dsink == 0


@pytest.mark.parametrize("hidden", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_hidden_has_no_part_in_gradients(name: str, hidden: float) -> None:
    """Nor in that of a scale, which is 0 in one row."""
    ours, theirs, _ = FUNCTIONS[name]
    for asked in (("scale", "mask"), ("scale", "softcap", "bias", "mask")):
        given, x = given_of(asked), drawn(ROWS, COLS)
        given["scale"][1] = 0
        unseen = x.masked_fill(~given["mask"], hidden)
        found = with_gradients(lambda x, hooks: ours(x, **hooks), unseen, given)
        wanted = with_gradients(lambda x, hooks: theirs(hooked(x, hooks), None), x, given)
        for got, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-11, msg=str(asked))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_no_rows(name: str) -> None:
    ours, *_ = FUNCTIONS[name]
    x = drawn(0, COLS).requires_grad_()
    bias, scale = drawn(COLS).requires_grad_(), drawn(0).requires_grad_()
    found = torch.autograd.grad(ours(x, bias=bias, scale=scale).sum(), (x, bias, scale))
    assert [each.shape for each in found] == [x.shape, bias.shape, scale.shape]
    assert not found[1].any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_upstream_with_strides_of_its_own(name: str) -> None:
    """Every other element of a tensor, and one for all as that of a sum is."""
    ours, theirs, _ = FUNCTIONS[name]
    x, bias = drawn(ROWS, COLS).requires_grad_(), drawn(COLS, seed=2)
    y, exact = ours(x, bias=bias), theirs(x + bias, None)
    for dy in every_other(y), y.new_ones(()).expand_as(y):
        (found,) = torch.autograd.grad(y, x, dy, retain_graph=True)
        (wanted,) = torch.autograd.grad(exact, x, dy, retain_graph=True)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


def test_only_what_asks_for_a_gradient_gets_one() -> None:
    bias = drawn(COLS, seed=2).requires_grad_()
    loss = mine.cross_entropy(drawn(ROWS, COLS), TARGET, bias=bias)
    (found,) = torch.autograd.grad(loss, bias)
    wanted = torch.autograd.grad(F.cross_entropy(drawn(ROWS, COLS) + bias, TARGET), bias)[0]
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize(
    "options",
    [
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.1, "weight": torch.arange(1.0, COLS + 1).double()},
        {"probabilities": True},
        {"probabilities": True, "label_smoothing": 0.1, "reduction": "sum"},
    ],
    ids=str,
)
def test_smoothing_and_probabilities(options: dict[str, Any], compiled: bool) -> None:
    torch._dynamo.reset()
    is_of_classes = "probabilities" not in options
    options = {name: each for name, each in options.items() if name != "probabilities"}
    target = TARGET if is_of_classes else drawn(ROWS, COLS, seed=7).softmax(-1)
    kinds = ("scale", "softcap", "bias")
    for count in range(1, 4) if not compiled else (3,):
        for asked in itertools.combinations(kinds, count):
            given, x = given_of(asked), drawn(ROWS, COLS)
            if is_of_classes:
                x[2] = torch.nan  # of an ignored row

            def run(x: Any, hooks: dict[str, Any]) -> Any:
                return mine.cross_entropy(x, target, **options, **hooks)

            if compiled:
                run = torch.compile(run, backend="aot_eager", fullgraph=True)
            found = with_gradients(run, x, given)
            wanted = with_gradients(
                lambda x, hooks: F.cross_entropy(hooked(x, hooks), target, **options),
                x.nan_to_num(),
                given,
            )
            for got, right in zip(found, wanted, strict=True):
                torch.testing.assert_close(got, right, rtol=1e-9, atol=1e-11, msg=str(asked))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_smoothing_of_other_types_is_rounded_once(dtype: Any) -> None:
    x = drawn(ROWS, COLS, dtype=dtype).requires_grad_()
    exact = x.detach().double().requires_grad_()
    loss = mine.cross_entropy(x, TARGET, label_smoothing=0.1, softcap=CAP, dtype=torch.float32)
    wanted = F.cross_entropy(CAP * torch.tanh(exact / CAP), TARGET, label_smoothing=0.1)
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-6, atol=0)
    (dx,), (right,) = torch.autograd.grad(loss, x), torch.autograd.grad(wanted, exact)
    assert dx.dtype is dtype
    near = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-5}[dtype]
    torch.testing.assert_close(dx.double(), right, rtol=1.01 * near, atol=1e-6)


def test_what_goes_with_no_hooks() -> None:
    x = drawn(ROWS, COLS)
    plain = mine.cross_entropy(x, TARGET, softcap=None, label_smoothing=0.1)  # which is no hook
    assert plain == mine.cross_entropy(x, TARGET, label_smoothing=0.1)
    with pytest.raises(InvalidValueError, match="overwrite takes no hooks, got softcap"):
        mine.cross_entropy(x, TARGET, softcap=CAP, overwrite=True)
    said = "label_smoothing and probabilities take scale, softcap and bias of the hooks, got mask"
    for target, smoothing in ((TARGET, 0.1), (x.softmax(-1), 0.0)):
        with pytest.raises(InvalidValueError, match=said):
            mine.cross_entropy(x, target, label_smoothing=smoothing, softcap=CAP, mask=x > 0)
    refused: list[dict[str, Any]] = [{"softcap": 0.0}, {"scale": float("inf")}]
    for wrong in refused:
        with pytest.raises(InvalidValueError, match=next(iter(wrong))):
            mine.cross_entropy(x, TARGET, label_smoothing=0.1, **wrong)
    with pytest.raises(InvalidValueError, match=r"hooks take an input of .* reshape it"):
        mine.cross_entropy(drawn(2, 3, 4), torch.zeros(2, 4, dtype=torch.int64), softcap=CAP)
    with pytest.raises(InvalidValueError, match="scale is 1 / temperature"):
        mine.token_log_probs(x, IDS, temperature=2.0, scale=0.5)
    with pytest.raises(SoftgenError, match="sink"):
        mine.token_log_probs(x, IDS, sink=drawn(1))
    for name in ("log_softmax", "logsumexp"):
        with pytest.raises(SoftgenError, match="dropout"):
            getattr(mine, name)(x, -1, dropout=0.5, seed=1)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_losses_of_another_type(compiled: bool) -> None:
    torch._dynamo.reset()
    x = drawn(ROWS, COLS, dtype=torch.bfloat16).requires_grad_()

    def run(x: Any) -> Any:
        return mine.cross_entropy(x, TARGET, dtype=torch.float32)

    loss = (torch.compile(run, backend="aot_eager", fullgraph=True) if compiled else run)(x)
    wanted = F.cross_entropy(x.float(), TARGET)
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=1e-6)
    (dx,) = torch.autograd.grad(loss, x)
    assert dx.dtype is torch.bfloat16
    (right,) = torch.autograd.grad(wanted, x)
    torch.testing.assert_close(dx, right)
    with pytest.raises(SoftgenError, match="dtype must be a float"):
        mine.cross_entropy(x, TARGET, dtype=torch.int32)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_overwritten_logits_are_their_gradient(reduction: str) -> None:
    hidden, weight = drawn(ROWS, 3).requires_grad_(), drawn(COLS, 3, seed=1).requires_grad_()
    upstream = drawn(ROWS, seed=5) if reduction == "none" else torch.tensor(0.5).double()

    def gradients(loss_of: Callable[[Any], Any]) -> tuple[Any, Any]:
        logits = hidden @ weight.T
        return logits, torch.autograd.grad(loss_of(logits), (hidden, weight), upstream)

    logits, found = gradients(
        lambda x: mine.cross_entropy(x, TARGET, reduction=reduction, overwrite=True)
    )
    _, wanted = gradients(lambda x: F.cross_entropy(x, TARGET, reduction=reduction))
    torch.testing.assert_close(found, wanted)
    of_logits = (logits.detach() @ weight.detach()) - wanted[0]  # they hold dlogits now
    torch.testing.assert_close(of_logits, torch.zeros_like(of_logits))


def test_what_reads_overwritten_logits_later_is_told() -> None:
    x = drawn(ROWS, COLS).requires_grad_()
    logits = x * 1
    loss = mine.cross_entropy(logits, TARGET, overwrite=True)
    (dx,) = torch.autograd.grad(loss, x, retain_graph=True)
    torch.testing.assert_close(dx, torch.autograd.grad(F.cross_entropy(x, TARGET), x)[0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, x)


def test_logits_are_kept_where_they_cannot_be_overwritten() -> None:
    x = drawn(COLS, ROWS).requires_grad_()
    logits = (x * 1).T
    before = logits.detach().clone()
    loss = mine.cross_entropy(logits, TARGET, overwrite=True)
    (dx,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(logits.detach(), before)
    torch.testing.assert_close(dx, torch.autograd.grad(F.cross_entropy(x.T, TARGET), x)[0])
    y = drawn(ROWS, COLS).requires_grad_()
    kept = y * 1
    loss = mine.cross_entropy(kept, TARGET, overwrite=True)
    (dy,) = torch.autograd.grad(loss, y, create_graph=True)
    assert dy.requires_grad
    torch.testing.assert_close(kept, y)


def test_a_parameter_is_not_overwritten_by_its_gradient() -> None:
    leaf = torch.nn.Parameter(drawn(ROWS * COLS))
    before = leaf.detach().clone()
    mine.cross_entropy(leaf.view(ROWS, COLS), TARGET, overwrite=True).backward()
    assert torch.equal(leaf.detach(), before)
    (wanted,) = torch.autograd.grad(F.cross_entropy(leaf.view(ROWS, COLS), TARGET), leaf)
    torch.testing.assert_close(leaf.grad, wanted)
    logits = drawn(ROWS, COLS).requires_grad_()
    mine.cross_entropy(logits, TARGET, overwrite=True).backward()
    assert logits.grad.data_ptr() != logits.data_ptr()
