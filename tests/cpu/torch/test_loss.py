"""Cross entropy: a mean is four launches with its gradient, and the values are PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen  # noqa: E402
import softgen.torch as mine  # noqa: E402
from softgen.call import means  # noqa: E402
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402

theirs = torch.nn.functional.cross_entropy
FORWARD, BACKWARD = ["cross_entropy", "reduce_rows"], ["share", "cross_entropy_backward"]
# Of float32 results beside float64's, which assert_close would hold to 1e-7, half a rounding.
OF_FLOAT32 = {"rtol": 1.3e-6, "atol": 1e-6}


def draw(rows: int = 6, cols: int = 5, dtype: Any = torch.float32) -> tuple[Any, Any]:
    target = torch.randint(cols, (rows,))
    target[::3] = -100
    return torch.randn(rows, cols).to(dtype).requires_grad_(), target


def same_as_torchs(x: Any, target: Any, z_loss: float = 0.0, **options: Any) -> None:
    """Forward and backward, of which the second is of a loss that is used in a sum."""
    wide = x.detach().double().requires_grad_()
    wanted = theirs(wide, target.long(), **options)
    if z_loss:
        of_rows = torch.where(target == -100, 0.0, torch.logsumexp(wide, 1)).pow(2).sum()
        counted = (target != -100).sum() if options.get("reduction") != "sum" else 1
        wanted = wanted + z_loss * of_rows / counted
    loss = mine.cross_entropy(x, target, z_loss=z_loss, **options)
    assert loss.dtype is x.dtype
    near = {"rtol": 1e-2, "atol": 1e-3} if x.dtype.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(loss.double(), wanted, **near)
    (dx,) = torch.autograd.grad(loss * 3, x)
    (wanted_dx,) = torch.autograd.grad(wanted * 3, wide)
    torch.testing.assert_close(dx.double(), wanted_dx, **near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    "options",
    [{}, {"reduction": "sum"}, {"z_loss": 0.25}, {"label_smoothing": 0.1}],
    ids=str,
)
def test_it_is_pytorchs_and_nothing_is_asked_again(
    dtype: Any, kind: Any, options: dict[str, Any], world: World
) -> None:
    x, target = draw(dtype=dtype)
    target = target.to(kind)
    for _ in range(4):
        same_as_torchs(x, target, **options)
    assert len(world.chosen) == 2
    suffix = "" if kind is torch.int64 else "_i32"
    smooth = "_smooth" * ("label_smoothing" in options)
    names = [f"cross_entropy{smooth}{suffix}", "reduce_rows", f"cross_entropy_backward{suffix}"]
    shares = "reduction" not in options  # a sum's gradient is that of each row
    assert [name for name in world.launches[-3 - shares :] if name != "share"] == names
    assert world.launches.count("share") == 4 * shares


def test_requests_in_turn_and_parameters(world: World) -> None:
    requests: list[tuple[Any, Any, dict[str, Any]]] = [
        (*draw(), {}),
        (*draw(), {"reduction": "sum"}),
        (*draw(3, 7), {"ignore_index": 2}),
        (torch.nn.Parameter(torch.randn(4, 5)), torch.tensor([0, 1, 2, 3]), {}),
    ]
    for _ in range(3):
        for x, target, options in requests:
            if "ignore_index" in options:
                target = target.clip(0)
            same_as_torchs(x, target, **options)
    assert len(world.chosen) == len({(*x.shape,) for x, *_ in requests}) * 2


def test_a_request_that_only_equals_the_last_is_looked_at() -> None:
    x, target = draw()
    target = target.clip(0)
    for _ in range(2):
        mine.cross_entropy(x, target, ignore_index=1, z_loss=0.5)
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"ignore_index": True}, InvalidTypeError),
        ({"ignore_index": 1.0}, InvalidTypeError),
        ({"reduction": "average"}, InvalidValueError),
        ({"label_smoothing": 2}, InvalidValueError),
        ({"z_loss": float("inf")}, InvalidValueError),
        ({"size_average": True}, NotSupportedError),
        ({"ignore_index": 1.5}, InvalidTypeError),
        ({"ignore_index": "1"}, InvalidTypeError),
        ({"z_loss": "a"}, InvalidTypeError),
        ({"z_loss": True}, InvalidTypeError),
        ({"z_loss": float("nan")}, InvalidValueError),
        ({"label_smoothing": "a"}, InvalidTypeError),
    ]
    for options, error in wrong:
        for beside in ({}, {"return_lse": True}):
            given = {"ignore_index": 1, "z_loss": 0.5, **options, **beside}
            with pytest.raises(error, match=next(iter(options))):
                mine.cross_entropy(x, target, **given)
    mine.cross_entropy(x, target, ignore_index=np.int32(1), z_loss=np.float32(0.5))  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="target must have the shape"):
        mine.cross_entropy(x, target[1:])
    with pytest.raises(InvalidTypeError, match="in the shape of class indices"):
        mine.cross_entropy(x, torch.rand(6))
    with pytest.raises(InvalidValueError, match="ignore_index is for class indices"):
        mine.cross_entropy(x, torch.rand(6, 5), ignore_index=1)
    with pytest.raises(InvalidValueError, match="leave it out"):
        mine.cross_entropy(x, torch.rand(6, 5), mask=x > 0)


def test_what_has_more_to_give_takes_the_other_way(world: World) -> None:
    x, target = draw(dtype=torch.float64)
    weight = torch.rand(5, dtype=torch.float64)
    for _ in range(2):
        same_as_torchs(x, target)
        same_as_torchs(x, target, weight=weight)
        loss, lse = mine.cross_entropy(x, target, return_lse=True)
        torch.testing.assert_close(loss, theirs(x, target))
        counts = target != -100
        torch.testing.assert_close(lse[counts], torch.logsumexp(x, 1).detach()[counts])
        rows = mine.cross_entropy(x, target, reduction="none")
        torch.testing.assert_close(rows, theirs(x, target, reduction="none"))
        deep = torch.randn(2, 5, 3, dtype=torch.float64).requires_grad_()
        ids = torch.randint(5, (2, 3))
        (dx,) = torch.autograd.grad(mine.cross_entropy(deep, ids), deep)
        torch.testing.assert_close(dx, torch.autograd.grad(theirs(deep, ids), deep)[0])
    assert world.launches.count("reduce_rows") == 6
    assert world.launches.count("weigh_rows") == 2


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ids", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_weights_of_classes(world: World, reduction: str, ids: Any, dtype: Any) -> None:
    """Two launches, and two for the gradient of a mean."""
    x, target = draw(dtype=dtype)
    weight = torch.rand(5, dtype=torch.float64).to(dtype)
    wide = x.detach().double().requires_grad_()
    exact = theirs(wide, target, weight.double(), reduction=reduction)
    loss = mine.cross_entropy(x, target.to(ids), weight, reduction=reduction)
    near = {torch.bfloat16: {"rtol": 1e-2, "atol": 1e-2}, torch.float32: OF_FLOAT32}
    close = near.get(dtype, {})
    torch.testing.assert_close(loss.double(), exact, check_dtype=False, **close)
    found, wanted = torch.autograd.grad(loss, x)[0], torch.autograd.grad(exact, wide)[0]
    torch.testing.assert_close(found.double(), wanted, **close)
    forward = [each.removesuffix("_i32") for each in world.launches[:2]]
    assert forward == ["cross_entropy", "weigh_rows"]
    assert ("share_weighed" in world.launches) == (reduction == "mean")


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("dtype", "made"),
    [
        (torch.float16, torch.float64),
        (torch.float32, torch.float64),
        (torch.float64, torch.float32),
        (torch.float64, torch.bfloat16),
    ],
)
def test_the_arithmetic_is_that_of_the_logits_whatever_the_loss_is_of(
    dtype: Any, made: Any, reduction: str, weighed: bool
) -> None:
    """The kernel that reduces took losses of float32 for float64 where the loss was to be of it."""
    x, target = draw(dtype=dtype)
    weight = torch.linspace(0.5, 2, 5, dtype=torch.float64) if weighed else None
    wide = x.detach().double().requires_grad_()
    exact = theirs(wide, target, weight, reduction=reduction)
    loss = mine.cross_entropy(x, target, weight, reduction=reduction, dtype=made)
    assert loss.dtype is made
    near = {"rtol": 1e-2, "atol": 1e-3} if 2 in (dtype.itemsize, made.itemsize) else OF_FLOAT32
    torch.testing.assert_close(loss.double(), exact, **near)
    (found,), (wanted,) = torch.autograd.grad(loss, x), torch.autograd.grad(exact, wide)
    torch.testing.assert_close(found.double(), wanted, **near)


def test_rows_that_one_block_would_not_sum_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, target = draw()
    monkeypatch.setattr(means, "MOST_ROWS", 5)
    same_as_torchs(x, target)
    assert "reduce_rows" not in world.launches


def test_rows_of_which_none_counts_and_targets_that_are_no_class() -> None:
    x, target = draw()
    for _ in range(3):
        assert mine.cross_entropy(x, torch.full_like(target, -100)).isnan()
        assert not mine.cross_entropy(x, torch.full_like(target, -100), reduction="sum")
        loss = mine.cross_entropy(x, torch.full_like(target, 5))
        assert loss.isnan()
        (dx,) = torch.autograd.grad(loss, x)
        assert dx.isnan().all()


def test_a_row_of_minus_infinity_counts() -> None:
    x, target = draw()
    with torch.no_grad():
        x[1] = -torch.inf
    for _ in range(3):
        (dx,) = torch.autograd.grad(mine.cross_entropy(x, target), x)
        (wanted,) = torch.autograd.grad(theirs(x, target), x)
        torch.testing.assert_close(dx, wanted, equal_nan=True)


def test_who_differentiates_decides_anew_at_each_call(world: World) -> None:
    x, target = draw()
    for _ in range(3):
        assert mine.cross_entropy(x, target).requires_grad
        with torch.no_grad():
            assert not mine.cross_entropy(x, target).requires_grad
        assert not mine.cross_entropy(x.detach(), target).requires_grad
        with torch.inference_mode():
            assert mine.cross_entropy(x, target).is_inference()
    assert world.launches == FORWARD * 12


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("z_loss", [0.0, 0.02])
def test_a_gradient_that_is_differentiated_again(reduction: str, z_loss: float) -> None:
    torch.manual_seed(2)  # a third derivative may be the difference of large numbers
    x, target = draw()
    target[0] = -100

    def again(loss: Any) -> list[Any]:
        found = [(loss.square() * 3).sum()]
        for _ in range(3):
            found.append(torch.autograd.grad(found[-1].square().sum(), x, create_graph=True)[0])
        return found

    rows = theirs(x, target, reduction="none", label_smoothing=0.1)
    rows = rows + z_loss * torch.logsumexp(x, -1).square() * (target != -100)
    wanted = again(rows if reduction == "none" else rows.sum() / (target != -100).sum())
    for _ in range(3):
        options: dict[str, Any]
        options = {"reduction": reduction, "label_smoothing": 0.1, "z_loss": z_loss}
        found = again(mine.cross_entropy(x, target, **options))
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_a_transform_launches_as_much() -> None:
    x, target = draw()
    dx = torch.func.grad(lambda a: mine.cross_entropy(a, target))(x.detach())
    torch.testing.assert_close(dx, torch.autograd.grad(theirs(x, target), x)[0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dims", [(0, 0, None), (0, None, 0), (None, 0, 0), (1, 0, None)])
def test_losses_of_samples(reduction: str, dims: tuple[Any, ...]) -> None:
    """Of each of a batch, with weights that are its own or those of all."""
    shapes = [(3, 4, 5), (3, 4), (3, 5)]
    weight = torch.rand(3, 5) + 0.5
    target = torch.randint(5, (3, 4))
    target[0, 1] = -100
    given = [
        each[0] if dim is None else torch.movedim(each, 0, dim)
        for each, dim in zip((torch.randn(shapes[0]), target, weight), dims, strict=True)
    ]
    upstream = torch.arange(1.0, 5.0) if reduction == "none" else torch.tensor(2.0)
    found, wanted = (
        torch.func.vmap(
            torch.func.grad_and_value(
                lambda x, t, w, f=f: (f(x, t, w, reduction=reduction) * upstream).sum()
            ),
            in_dims=dims,
        )(*given)
        for f in (mine.cross_entropy, theirs)
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"bias": torch.arange(5) / 4}])
def test_losses_of_single_rows_with_weights(options: dict[str, Any]) -> None:
    """A target without axes was an index whose number the host reads, in a batch an error."""
    x, target, weight = torch.randn(4, 5), torch.tensor([1, -100, 4, 0]), torch.rand(5) + 0.5
    smoothing, bias = options.get("label_smoothing", 0.0), options.get("bias", 0)

    def ours(x: Any, target: Any, weight: Any) -> Any:
        return mine.cross_entropy(x, target, weight, reduction="sum", **options)

    x.requires_grad_()
    wanted = theirs(x + bias, target, weight, reduction="none", label_smoothing=smoothing)
    (of_x,) = torch.autograd.grad(wanted.sum(), x)
    each = torch.func.vmap(torch.func.grad_and_value(ours), (0, 0, None))
    torch.testing.assert_close(each(x.detach(), target, weight), (of_x, wanted.detach()))


def test_what_was_saved_comes_back_otherwise() -> None:
    x, target = draw()
    for _ in range(3):
        same_as_torchs(x, target)
    wanted = torch.autograd.grad(theirs(x, target), x)[0]

    def apart(t: Any) -> Any:
        return torch.cat((t.new_zeros(1), t.reshape(-1)))[1:].view(t.shape)

    for unpack in (torch.clone, apart, lambda t: t.clone().requires_grad_(t.is_floating_point())):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
            loss = mine.cross_entropy(x, target)
        torch.testing.assert_close(torch.autograd.grad(loss, x)[0], wanted)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.double() if t.dim() == 1 and t.is_floating_point() else t
    ):
        loss = mine.cross_entropy(x, target)
    with pytest.raises(InvalidTypeError, match="lse must be float32, got float64"):
        torch.autograd.grad(loss, x)


def test_inputs_that_were_changed_are_noticed() -> None:
    x, target = draw()
    for _ in range(3):
        y = x * 1
        loss = mine.cross_entropy(y, target)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_autocast_gives_float32_and_ends() -> None:
    x, target = draw(dtype=torch.float16)
    for _ in range(3):
        assert mine.cross_entropy(x, target).dtype is torch.float16
        with torch.autocast("cpu", dtype=torch.float16):
            loss = mine.cross_entropy(x, target)
        assert loss.dtype is torch.float32
        assert torch.autograd.grad(loss, x)[0].dtype is torch.float16


REDUCTIONS = ("mean", "sum", "none")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weighed", [False, True])
def test_probabilities_of_classes(reduction: str, smoothing: float, weighed: bool) -> None:
    weight = torch.rand(5, dtype=torch.float64) + 0.5 if weighed else None
    options: Any = {"reduction": reduction, "label_smoothing": smoothing}
    for shape in ((5,), (6, 5), (2, 5, 3)):
        x = torch.randn(shape, dtype=torch.float64).requires_grad_()
        probs = torch.rand(shape, dtype=torch.float64).requires_grad_()

        def run(x: Any, probs: Any) -> Any:
            return mine.cross_entropy(x, probs, weight, **options)

        if reduction == "mean" and smoothing == 0.2 and len(shape) == 2:  # each takes 1 s
            run = torch.compile(run, backend="aot_eager", fullgraph=True)
        loss, wanted = run(x, probs), theirs(x, probs, weight, **options)
        torch.testing.assert_close(loss, wanted)
        up = torch.randn_like(wanted)
        found = torch.autograd.grad(loss, (x, probs), up)
        torch.testing.assert_close(found, torch.autograd.grad(wanted, (x, probs), up))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_probabilities_of_other_types(world: World, dtype: Any) -> None:
    x, _ = draw(dtype=dtype)
    probs = torch.softmax(torch.randn(6, 5), -1)
    wide = x.detach().double().requires_grad_()
    loss = mine.cross_entropy(x, probs, dtype=torch.float32)
    wanted = theirs(wide, probs.to(dtype).double())
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=1e-6)
    (dx,) = torch.autograd.grad(loss, x)
    near = {"rtol": 1e-2, "atol": 1e-3} if dtype.itemsize == 2 else OF_FLOAT32
    torch.testing.assert_close(dx.double(), torch.autograd.grad(wanted, wide)[0], **near)
    assert world.launches == ["cross_entropy_probs", "cross_entropy_probs_backward"]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(5,), (6, 5), (2, 5, 3)])
def test_weights_with_smoothing(reduction: str, shape: tuple[int, ...]) -> None:
    weight = torch.rand(5, dtype=torch.float64) + 0.5
    x = torch.randn(shape, dtype=torch.float64).requires_grad_()
    rows = shape[:-1] if len(shape) < 3 else (2, 3)
    target = torch.randint(5, rows)
    if rows:
        target.view(-1)[0] = -100
    options: Any = {"reduction": reduction, "label_smoothing": 0.3}
    loss, wanted = (f(x, target, weight, **options) for f in (mine.cross_entropy, theirs))
    torch.testing.assert_close(loss, wanted)
    up = torch.randn_like(wanted)
    found, right = (torch.autograd.grad(each, x, up)[0] for each in (loss, wanted))
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_probabilities_without_a_gradient_are_reduced_as_pytorch_does(
    world: World, reduction: str
) -> None:
    x, _ = draw()
    q = torch.rand(x.shape)
    found = softgen.cross_entropy(x.detach(), q, reduction=reduction)
    torch.testing.assert_close(found, theirs(x.detach(), q, reduction=reduction))


@pytest.mark.parametrize("shape", [(6, 5), (2, 3, 5), (5,)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("of", ["classes", "probabilities"])
def test_weights_with_smoothing_of_softgen_are_pytorchs(
    shape: tuple[int, ...], dtype: Any, of: str
) -> None:
    """On arrays, of which PyTorch's tensors are one kind."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.linspace(0, 2, 5, dtype=torch.float64)
    target = torch.randint(1, 5, shape[:-1], generator=generator)
    if of == "probabilities":
        target = torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype)
    elif len(shape) > 1:
        target.view(-1)[2] = -100
    for smoothing in (0.0, 0.2, 1.0):
        exact = x.double().clone().requires_grad_()
        rows = exact.reshape(-1, 5) if len(shape) > 1 else exact
        flat = target.reshape(rows.shape if of == "probabilities" else rows.shape[:-1])
        flat = flat.double() if of == "probabilities" else flat
        wanted = torch.nn.functional.cross_entropy(rows, flat, weight, label_smoothing=smoothing)
        of_rows = torch.nn.functional.cross_entropy(
            rows, flat, weight, label_smoothing=smoothing, reduction="none"
        )
        (dx,) = torch.autograd.grad(of_rows.sum(), exact)
        options = {"weight": weight.to(torch.float64 if dtype is torch.float64 else torch.float32)}
        options["label_smoothing"] = smoothing
        near = 1e-12 if dtype is torch.float64 else 2e-6
        found = softgen.cross_entropy(x, target, **options)
        torch.testing.assert_close(found.double(), wanted.detach(), rtol=near, atol=near)
        found, loss, lse = softgen.cross_entropy_grad(x, target, **options)
        torch.testing.assert_close(
            loss.double().reshape(of_rows.shape), of_rows.detach(), rtol=near, atol=near
        )
        near = 2**-8 if dtype is torch.bfloat16 else near
        torch.testing.assert_close(found.double(), dx, rtol=near, atol=near)
        again = softgen.cross_entropy_backward(x, target, lse, torch.ones_like(lse), **options)
        torch.testing.assert_close(again.double(), dx, rtol=near, atol=near)
