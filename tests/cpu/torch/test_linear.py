"""Losses of hidden states: values and gradients are the composition's, and no logits are kept."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="softgen.torch needs PyTorch")

import softgen.torch as mine  # noqa: E402
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError  # noqa: E402
from softgen.torch.chunks import chunk_rows  # noqa: E402
from tests.helpers.ranks import run_ranks  # noqa: E402
from tests.helpers.torch_calls import World  # noqa: E402
from tests.helpers.torch_parallel import train_head  # noqa: E402

F = torch.nn.functional
IGNORED = -100
# Columns of odd vocabularies too: of less than a tile, and of one or two and a few.
COLS = (5, 16, 67, 136, 145)
HIDDEN = 8
EPSILON = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-9}


def drawn(*shape: int, seed: int, dtype: Any = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def given(
    rows: Any = 9, cols: int = 67, dtype: Any = torch.float32, seed: int = 0, ignored: int = 2
) -> tuple[Any, Any, Any, Any]:
    """Return hidden states, a weight, targets of which some are ignored, and a bias."""
    shape = (rows,) if isinstance(rows, int) else tuple(rows)
    x, weight = drawn(*shape, HIDDEN, seed=seed), drawn(cols, HIDDEN, seed=seed + 1)
    target = torch.randint(cols, shape, generator=torch.Generator().manual_seed(seed + 2))
    flat = target.view(-1)
    flat[torch.randperm(len(flat), generator=torch.Generator().manual_seed(seed))[:ignored]] = (
        IGNORED
    )
    tensors = (x, weight, drawn(cols, seed=seed + 3))
    x, weight, bias = (each.to(dtype).requires_grad_() for each in tensors)
    return x, weight, target, bias


def theirs(
    x: Any,
    head: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    softcap: float | None = None,
    z_loss: float = 0.0,
    reduction: str = "mean",
    num_items: Any = None,
    **options: Any,
) -> Any:
    """Return the loss by PyTorch's functions."""
    logits = F.linear(x, head, linear_bias)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logits, flat = logits.reshape(-1, logits.shape[-1]), target.reshape(-1).long()
    if options.get("weight") is not None:
        options["weight"] = options["weight"].to(logits.dtype)
    how = reduction if num_items is None and not z_loss else "none"
    loss = F.cross_entropy(logits, flat, reduction=how, **options)
    counts = (flat != options.get("ignore_index", IGNORED)).to(loss.dtype)
    if options.get("weight") is not None:
        counts = counts * options["weight"][flat.clip(0)]
    if z_loss:
        loss = (
            loss
            + torch.where(counts != 0, z_loss * torch.logsumexp(logits, -1).square(), 0) * counts
        )
    if how == "none" and reduction == "sum":
        return loss.sum()
    if how == "none" and reduction == "mean":
        return loss.sum() / (counts.sum() if num_items is None else num_items)
    return loss.reshape(target.shape) if how == "none" else loss


def gradients(loss: Any, *inputs: Any, keep: bool = False) -> list[Any]:
    """Return the gradients of inputs that ask for one, from an upstream that has no zeros."""
    upstream = torch.linspace(0.5, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    wanted = [each for each in inputs if each is not None and each.requires_grad]
    if not wanted:
        return []
    return list(torch.autograd.grad(loss, wanted, upstream, retain_graph=keep))


def error(found: Any, exact: Any) -> Any:
    assert found.shape == exact.shape
    return (found.double() - exact).abs().max().item() if found.numel() else 0.0


def agree(found: Any, wanted: Any, exact: Any, dtype: Any) -> None:
    """Require that found is about as far from what is exact as PyTorch's result is."""
    assert found.dtype == wanted.dtype
    assert torch.equal(found.isnan(), exact.isnan())
    found, wanted, exact = (each.detach().nan_to_num() for each in (found, wanted, exact))
    scale = exact.abs().max().item() if exact.numel() else 0.0
    assert error(found, exact) <= 2 * error(wanted, exact) + EPSILON[dtype] * scale


def drawn_case(seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of linear_cross_entropy."""
    chosen = random.Random(seed)
    dtype = chosen.choice((torch.float64, torch.float32, torch.bfloat16, torch.float16))
    rows = chosen.choice((1, 2, 9, 23, (2, 5), (2, 1, 3)))
    cols = chosen.choice(COLS)
    x, head, target, bias = given(rows, cols, dtype, seed, chosen.choice((0, 1, 2)))
    if chosen.random() < 0.3:
        target = target.int()
    if chosen.random() < 0.25:
        x.requires_grad_(False)
    if chosen.random() < 0.25:
        head.requires_grad_(False)
    options: dict[str, Any] = {
        "reduction": chosen.choice(("mean", "sum", "none")),
        "mode": chosen.choice(("fast", "lean")),
        "chunk": chosen.choice((None, 1, 7, 100)),
    }
    if chosen.random() < 0.5:
        options["linear_bias"] = bias
    kind = chosen.choice(("plain", "weight", "smoothing", "z_loss", "both"))
    if kind == "weight" or (kind != "plain" and chosen.random() < 0.3):
        options["weight"] = drawn(cols, seed=seed + 9).abs().float()
        options["weight"][seed % cols] = 0
    if kind in ("smoothing", "both"):
        options["label_smoothing"] = chosen.choice((0.1, 1.0))
    if kind in ("z_loss", "both"):
        options["z_loss"] = 0.01
    if chosen.random() < 0.3:
        options["softcap"] = 3.0
    if chosen.random() < 0.3:
        options["accumulate"] = torch.float64 if dtype is torch.float64 else torch.float32
    if options["reduction"] == "mean" and "weight" not in options and chosen.random() < 0.3:
        options["num_items"] = chosen.choice((31, torch.tensor(31)))
    if chosen.random() < 0.2:
        options["valid_rows"] = int((target != IGNORED).sum())
    return (x, head, target), options


OURS = ("mode", "chunk", "accumulate", "valid_rows")


@pytest.mark.parametrize("tenth", range(30))
def test_values_and_gradients_are_the_compositions(tenth: int) -> None:
    for seed in range(10 * tenth, 10 * tenth + 10):
        values_and_gradients(seed)


def values_and_gradients(seed: int) -> None:
    (x, head, target), options = drawn_case(seed)
    asked = {name: each for name, each in options.items() if name not in OURS}
    bias = options.get("linear_bias")
    found = mine.linear_cross_entropy(x, head, target, **options)
    wanted = theirs(x, head, target, **asked)
    wide = [
        None if each is None else each.detach().double().requires_grad_(each.requires_grad)
        for each in (x, head, bias)
    ]
    exact = theirs(wide[0], wide[1], target, **{**asked, "linear_bias": wide[2]})
    agree(found, wanted, exact, x.dtype)
    ours, torchs, exacts = (
        gradients(loss, *inputs)
        for loss, inputs in ((found, (x, head, bias)), (wanted, (x, head, bias)), (exact, wide))
    )
    for each in zip(ours, torchs, exacts, strict=True):
        agree(*each, x.dtype)


@pytest.mark.parametrize("tenth", range(30))
def test_log_probabilities_of_tokens_are_the_compositions(tenth: int) -> None:
    for seed in range(10 * tenth, 10 * tenth + 10):
        log_probabilities(seed)


def log_probabilities(seed: int) -> None:
    chosen = random.Random(seed)
    dtype = chosen.choice((torch.float64, torch.float32, torch.bfloat16, torch.float16))
    rows, cols = chosen.choice((1, 9, 23, (2, 5))), chosen.choice(COLS)
    x, head, ids, bias = given(rows, cols, dtype, seed, ignored=0)
    bias = chosen.choice((bias, None))
    head.requires_grad_(chosen.random() < 0.75)
    if chosen.random() < 0.4:
        ids = torch.stack((ids, (ids + 3) % cols), -1)
    of_rows = drawn(*x.shape[:-1], seed=seed).abs().float() + 0.5
    temperature = chosen.choice((None, 0.7, of_rows))
    request: dict[str, Any] = {
        "linear_bias": bias,
        "temperature": temperature,
        "mode": chosen.choice(("fast", "lean")),
        "chunk": chosen.choice((None, 1, 7, 100)),
    }

    def composed(x: Any, head: Any, bias: Any) -> Any:
        wide = torch.float64 if x.dtype is torch.float64 else torch.float32
        logits = F.linear(x, head, bias).to(wide)
        if temperature is not None:
            cold = temperature if isinstance(temperature, float) else temperature[..., None]
            logits = logits / cold
        log_p = torch.log_softmax(logits, -1)
        columns = ids if ids.dim() == x.dim() else ids[..., None]
        entropy = -(log_p.exp() * log_p).sum(-1)
        return log_p.gather(-1, columns).reshape(ids.shape), entropy

    wide = [
        None if each is None else each.detach().double().requires_grad_(each.requires_grad)
        for each in (x, head, bias)
    ]
    exact, wanted = composed(*wide), composed(x, head, bias)
    found = mine.linear_token_log_probs(x, head, ids, return_entropy=True, **request)
    alone = mine.linear_token_log_probs(x, head, ids, **request)
    torch.testing.assert_close(alone, found[0], rtol=0, atol=0)
    for each in zip(found, wanted, exact, strict=True):
        agree(*each, dtype)
    losses = (
        [pair[0].sum() + 2 * pair[1].sum() for pair in (found, wanted, exact)],
        [pair[1] for pair in (found, wanted, exact)],
        [alone, wanted[0], exact[0]],
    )
    for ours, torchs, exacts in losses:
        inputs = ((ours, (x, head, bias)), (torchs, (x, head, bias)), (exacts, wide))
        for each in zip(*(gradients(loss, *of, keep=True) for loss, of in inputs), strict=True):
            agree(*each, dtype)


# What is computed as a loss of probabilities, whose kernels have no softcap.
SMOOTHED = {"weight": drawn(67, seed=6).abs(), "label_smoothing": 0.1}


@pytest.mark.parametrize("more", [{}, {"weight": torch.arange(7.0), "label_smoothing": 0.3}])
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("mode", ["fast", "lean"])
def test_gradcheck(reduction: str, mode: str, more: dict[str, Any]) -> None:
    x, head, target, bias = given(6, 7, torch.float64)

    def loss(x: Any, head: Any, bias: Any) -> Any:
        options: dict[str, Any] = {"softcap": 4.0, "linear_bias": bias, "mode": mode, **more}
        options["reduction"] = reduction
        return mine.linear_cross_entropy(x, head, target, chunk=4, **options)

    # A second backward pass makes the logits again: the last bits may be others.
    assert torch.autograd.gradcheck(loss, (x, head, bias), nondet_tol=1e-12)

    def both(x: Any, head: Any, bias: Any) -> Any:
        options: dict[str, Any] = {"temperature": 0.7, "mode": mode, "return_entropy": True}
        options["linear_bias"] = bias
        return mine.linear_token_log_probs(x, head, target.clip(0), chunk=4, **options)

    assert torch.autograd.gradcheck(both, (x, head, bias))


@pytest.mark.parametrize("more", [{}, {**SMOOTHED, "softcap": 2.0}])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_chunks_change_no_more_than_the_last_bits(reduction: str, more: dict[str, Any]) -> None:
    inputs = given(23, 67)
    x, head, target, bias = inputs
    found = []
    for chunk in (1, 7, 23, 100, None):
        options: dict[str, Any] = {"linear_bias": bias, "reduction": reduction, **more}
        options["chunk"] = chunk
        loss = mine.linear_cross_entropy(x, head, target, **options)
        found.append([loss.detach(), *gradients(loss, x, head, bias)])
    for each in found[1:]:
        torch.testing.assert_close(each, found[0])


def test_the_same_bits_in_every_run() -> None:
    x, head, target, _ = given(23, 67, torch.bfloat16)
    first, second = (
        [loss.detach(), *gradients(loss, x, head)]
        for loss in (mine.linear_cross_entropy(x, head, target, chunk=7) for _ in range(2))
    )
    for pair in zip(first, second, strict=True):
        assert torch.equal(*pair)


@pytest.mark.parametrize("more", [{}, SMOOTHED, {**SMOOTHED, "softcap": 2.0}])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("rows", [0, 5])
def test_no_row_that_counts(rows: int, reduction: str, more: dict[str, Any]) -> None:
    """A mean of nothing is NaN, and gradients are 0, as PyTorch's."""
    x, head, _, bias = given(rows, ignored=0)
    target = torch.full((rows,), IGNORED)
    found, wanted = (
        of(x, head, target, linear_bias=bias, reduction=reduction, **more)
        for of in (mine.linear_cross_entropy, theirs)
    )
    torch.testing.assert_close(found, wanted, equal_nan=True)
    for each in gradients(found, x, head, bias):
        assert torch.equal(each, torch.zeros_like(each))


@pytest.mark.parametrize("more", [{}, {**SMOOTHED, "softcap": 2.0}])
def test_a_target_that_is_no_class_gives_nan(more: dict[str, Any]) -> None:
    x, head, target, _ = given(ignored=0)
    target[3] = head.shape[0]
    assert mine.linear_cross_entropy(x, head, target, **more).isnan()


@pytest.mark.parametrize("more", [{"softcap": 2.0}, SMOOTHED, {**SMOOTHED, "softcap": 2.0}])
def test_logits_that_are_no_numbers(more: dict[str, Any]) -> None:
    """Of a row that is ignored nothing is taken, and the gradient of its hidden state is 0."""
    x, head, target, _ = given(ignored=0)
    target[3] = IGNORED
    for of_ignored in (torch.nan, torch.inf):
        broken = x.detach().clone()
        broken[3] = of_ignored
        broken.requires_grad_()
        loss, wanted = (mine.linear_cross_entropy(of, head, target, **more) for of in (broken, x))
        assert torch.equal(loss, wanted)
        assert torch.equal(*(torch.autograd.grad(*of)[0] for of in ((loss, broken), (wanted, x))))


@pytest.mark.parametrize("mode", ["fast", "lean"])
@pytest.mark.parametrize("upstream", [65536, 1])
def test_float16_with_16384_rows(mode: str, upstream: int) -> None:
    """With 65536 what is not scaled yet is too small, and with 1 its sum is above 65504."""
    rows, cols = 16384, 1024 if upstream > 1 else 16
    x, head = drawn(rows, HIDDEN, seed=0), drawn(cols, HIDDEN, seed=1) / 4
    target = torch.randint(cols // 2, (rows,), generator=torch.Generator().manual_seed(2))
    if upstream == 1:
        x, target = x.abs() + 4, torch.where(torch.arange(rows) % 16 == 0, target, 0)
    x, head = x.half().requires_grad_(), head.half().requires_grad_()
    with torch.autocast("cpu", torch.float16):
        loss = mine.linear_cross_entropy(x, head, target, mode=mode)
        assert loss.dtype is torch.float32
    (loss * upstream).backward()
    wide = [each.detach().double().requires_grad_() for each in (x, head)]
    exact = theirs(wide[0], wide[1], target)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-3, atol=0)
    of_x, of_head = torch.autograd.grad(exact * upstream, wide)
    assert of_head.abs().max() * rows / upstream > 65504 or upstream > 1
    found, wanted = [x.grad, head.grad], [of_x, of_head]
    if upstream > 1:  # half of the columns are no target's, and their gradients are small
        found.append(head.grad[cols // 2 :])
        wanted.append(of_head[cols // 2 :])
    for ours, gradient in zip(found, wanted, strict=True):
        scale = gradient.abs().max().item()
        torch.testing.assert_close(ours.double(), gradient, rtol=1e-2, atol=2e-3 * scale)


def test_backward_twice() -> None:
    """The first scales gradients where they are; the second makes them again."""
    x, head, target, bias = given()
    loss = mine.linear_cross_entropy(x, head, target, linear_bias=bias, chunk=4)
    first = torch.autograd.grad(loss * 3, (x, head, bias), retain_graph=True)
    kept = [each.clone() for each in first]
    second = torch.autograd.grad(loss * 5, (x, head, bias), retain_graph=True)
    third = torch.autograd.grad(loss * 3, (x, head, bias))
    torch.testing.assert_close(second, tuple(each * 5 / 3 for each in kept))
    for now, then, again in zip(first, kept, third, strict=True):
        assert torch.equal(now, then)
        torch.testing.assert_close(again, then)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_second_derivatives_say_that_there_are_none(reduction: str) -> None:
    x, head, target, _ = given()
    loss = mine.linear_cross_entropy(x, head, target, reduction=reduction).sum()
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(NotSupportedError, match="not differentiable again"):
        dx.sum().backward()
    log_p = mine.linear_token_log_probs(x, head, target.clip(0)).sum()
    (dx,) = torch.autograd.grad(log_p, x, create_graph=True)
    with pytest.raises(NotSupportedError, match="not differentiable again"):
        dx.sum().backward()


def test_a_weight_that_embeds_too() -> None:
    """Both uses add up to one gradient."""
    words = torch.randint(67, (9,), generator=torch.Generator().manual_seed(5))
    _, head, target, _ = given()
    ours, torchs = (
        torch.autograd.grad(of(head[words].tanh(), head, target), head)[0]
        for of in (mine.linear_cross_entropy, theirs)
    )
    torch.testing.assert_close(ours, torchs)


def test_a_frozen_weight_beside_small_ones() -> None:
    """LoRA: the weight is made of a frozen one and a product of two."""
    x, head, target, _ = given()
    a, b = drawn(2, HIDDEN, seed=7).float(), drawn(67, 2, seed=8).float()
    a, b = a.requires_grad_(), b.requires_grad_()
    head = head.detach()
    ours, torchs = (
        torch.autograd.grad(of(x, head + b @ a, target), (x, a, b))
        for of in (mine.linear_cross_entropy, theirs)
    )
    torch.testing.assert_close(ours, torchs)


def products(run: Callable[[], Any]) -> int:
    """Return how many products of matrices are made in a call."""
    with warnings.catch_warnings():  # PyTorch 2.11 warns of its cycles
        warnings.simplefilter("ignore")
        with torch.profiler.profile() as seen:
            run()
    return sum(
        each.count for each in seen.key_averages() if each.key in ("aten::mm", "aten::addmm_")
    )


# x, weight: whose gradients are wanted, and the products of each chunk.
MADE = [(True, True, 3), (True, False, 2), (False, True, 2), (False, False, 1)]


@pytest.mark.parametrize(("of_x", "of_weight", "count"), MADE)
def test_products_are_of_gradients_that_are_wanted(of_x: bool, of_weight: bool, count: int) -> None:
    x, head, target, _ = given(8, 64)
    x, head = x.detach().requires_grad_(of_x), head.detach().requires_grad_(of_weight)

    def step() -> None:
        loss = mine.linear_cross_entropy(x, head, target, chunk=4)
        if of_x or of_weight:
            loss.backward()

    assert products(step) == 2 * count
    with torch.no_grad():
        assert products(lambda: mine.linear_cross_entropy(x, head, target, chunk=4)) == 2


@pytest.mark.parametrize("mode", ["fast", "lean"])
@pytest.mark.parametrize("of", ["losses", "log-probabilities"])
def test_logits_of_the_last_chunk_are_kept(of: str, mode: str) -> None:
    """In "fast" a backward pass makes those of all chunks but one; a second makes all of them."""
    x, head, target, _ = given(8, 64)
    target[target < 0] = 0  # an id has to be one
    options: dict[str, Any] = {"mode": mode, "chunk": 3}
    found: list[Any] = []

    def forward() -> None:
        if of == "losses":
            found.append(mine.linear_cross_entropy(x, head, target, reduction="none", **options))
        else:
            found.append(mine.linear_token_log_probs(x, head, target, **options))

    def backward() -> None:
        found.append(torch.autograd.grad(found[0].sum(), (x, head), retain_graph=True))

    assert products(forward) == 3
    assert products(backward) == 3 * 3 - (mode == "fast")
    assert products(backward) == 3 * 3
    for once, twice in zip(*found[1:], strict=True):
        assert torch.equal(once, twice)


def test_an_odd_vocabulary_is_cut() -> None:
    """Of 67 columns 3 are left, and each of the three products is two."""
    x, head, target, _ = given(8, 67)
    assert products(lambda: mine.linear_cross_entropy(x, head, target).backward()) == 6
    head = head[:64].detach().requires_grad_()
    assert products(lambda: mine.linear_cross_entropy(x, head, target % 64).backward()) == 3


def test_memory_that_nobody_wrote_is_in_no_product() -> None:
    """oneDNN reads pairs of 16-bit numbers, and so one behind the columns where they are odd."""
    x = drawn(257, 32, seed=0, dtype=torch.bfloat16).requires_grad_()
    head = drawn(103, 32, seed=1, dtype=torch.bfloat16).requires_grad_()
    torch.use_deterministic_algorithms(True)  # what is empty is NaN
    try:
        loss = mine.linear_cross_entropy(x, head, torch.arange(257) % 103)
        found = torch.autograd.grad(loss, (x, head))
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any(each.isnan().any() for each in (loss, *found))


def test_losses_without_a_gradient_launch_no_gradient(world: World) -> None:
    x, head, target, _ = given(8, 64)
    with torch.no_grad():
        mine.linear_cross_entropy(x, head, target, chunk=4)
    assert world.launches == ["cross_entropy"] * 2
    world.launches.clear()
    mine.linear_cross_entropy(x, head, target, chunk=4).backward()
    # The second scales by a number that is 1 here, which its kernel sees.
    assert world.launches == ["cross_entropy_grad_rows"] * 2 + ["scale"] * 2


def test_means_over_several_calls() -> None:
    """With num_items the gradients of parts add up to those of all rows."""
    x, head, target, _ = given(24, ignored=5)
    items = torch.tensor(19)
    wanted = torch.autograd.grad(theirs(x, head, target), (x, head))
    for part in (slice(0, 10), slice(10, 24)):
        loss = mine.linear_cross_entropy(x[part], head, target[part], num_items=items)
        loss.backward()
    torch.testing.assert_close((x.grad, head.grad), wanted)


def test_rows_that_do_not_count_are_left_out() -> None:
    x, head, target, _ = given(8, 64, ignored=5)

    def loss(**options: Any) -> Any:
        return mine.linear_cross_entropy(x, head, target, valid_rows=3, **options)

    with torch.no_grad():
        assert products(lambda: loss(chunk=1)) == 3
    for reduction in ("mean", "none"):
        found, wanted = loss(reduction=reduction), theirs(x, head, target, reduction=reduction)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(gradients(found, x, head), gradients(wanted, x, head))


def test_autocast() -> None:
    x, head, target, bias = given()
    with torch.autocast("cpu", torch.bfloat16):
        loss = mine.linear_cross_entropy(x, head, target, linear_bias=bias)
        log_p = mine.linear_token_log_probs(x, head, target.clip(0))
        wanted = theirs(x, head, target, linear_bias=bias)
    assert loss.dtype is log_p.dtype is torch.float32
    torch.testing.assert_close(loss, wanted.float(), rtol=2e-2, atol=0)
    found, wanted = gradients(loss, x, head, bias), gradients(wanted, x, head, bias)
    for ours, torchs in zip(found, wanted, strict=True):
        assert ours.dtype is torch.float32
        torch.testing.assert_close(ours, torchs, rtol=5e-2, atol=5e-3)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_a_loss_of_another_dtype(reduction: str) -> None:
    """The sum is of float32, and is rounded once: to what is asked for."""
    x, head, target, _ = given(dtype=torch.bfloat16)
    options: dict[str, Any] = {"reduction": reduction, "chunk": 4}
    loss = mine.linear_cross_entropy(x, head, target, dtype=torch.float32, **options)
    assert loss.dtype is torch.float32
    rounded = mine.linear_cross_entropy(x, head, target, **options)
    assert torch.equal(loss.bfloat16(), rounded)
    assert not torch.equal(loss, rounded.float())
    for ours, usual in zip(*(gradients(each, x, head) for each in (loss, rounded)), strict=True):
        assert ours.dtype is torch.bfloat16
        torch.testing.assert_close(ours, usual, rtol=1e-2, atol=1e-4)
    with pytest.raises(InvalidTypeError, match="dtype must be a float of 16 to 64 bits"):
        mine.linear_cross_entropy(x, head, target, dtype=torch.int32)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own code
def test_transforms() -> None:
    x, head, target, _ = given(6)

    def loss(x: Any, head: Any) -> Any:
        return mine.linear_cross_entropy(x, head, target, chunk=4)

    plain = [each.detach() for each in (x, head)]
    wanted = torch.autograd.grad(loss(x, head), (x, head))
    torch.testing.assert_close(torch.func.grad(loss, (0, 1))(*plain), wanted)
    batch = torch.stack((plain[0], plain[0] * 2))
    each = torch.func.vmap(torch.func.grad(loss, (0, 1)), (0, None))(batch, plain[1])
    torch.testing.assert_close(tuple(found[0] for found in each), wanted)
    none = torch.func.vmap(lambda x: mine.linear_token_log_probs(x, plain[1], target[:0]))
    assert none(batch[:, :0]).shape == (2, 0)
    with pytest.raises(NotSupportedError, match="forward-mode"):
        torch.func.jvp(lambda x: loss(x, plain[1]), (plain[0],), (plain[0],))


def test_checkpoints() -> None:
    x, head, target, _ = given(6)
    wanted = torch.autograd.grad(theirs(x, head, target), (x, head))
    for reentrant in (True, False):
        loss = torch.utils.checkpoint.checkpoint(
            mine.linear_cross_entropy, x, head, target, use_reentrant=reentrant
        )
        x.grad = head.grad = None
        loss.backward()
        torch.testing.assert_close((x.grad, head.grad), wanted)


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"mode": "slow"}, InvalidValueError, "mode"),
    ({"chunk": 0}, InvalidValueError, "chunk"),
    ({"chunk": 1.5}, InvalidTypeError, "chunk"),
    ({"reduction": "max"}, InvalidValueError, "reduction"),
    ({"num_items": 3, "reduction": "sum"}, InvalidValueError, "num_items"),
    ({"linear_weight": torch.zeros(5, 7)}, InvalidValueError, "hidden"),
    ({"linear_weight": torch.zeros(5, 8).half()}, InvalidTypeError, "dtype"),
    ({"linear_bias": torch.zeros(4)}, InvalidValueError, "linear_bias"),
    ({"weight": torch.zeros(4)}, InvalidValueError, "weight"),
    ({"target": torch.zeros(4, dtype=torch.int64)}, InvalidValueError, "target"),
    ({"target": torch.zeros(9)}, InvalidTypeError, "target"),
    ({"softcap": -1.0}, InvalidValueError, "softcap"),
    ({"label_smoothing": 2.0}, InvalidValueError, "label_smoothing"),
    ({"accumulate": torch.float16}, InvalidTypeError, "accumulate must be torch.float32, got"),
    ({"num_items": "4"}, InvalidTypeError, "num_items must be a number"),
    ({"num_items": -1}, InvalidValueError, "num_items must be 0 or more"),
    ({"num_items": torch.tensor([4, 3])}, InvalidValueError, "num_items must be a tensor of one"),
    ({"num_items": torch.ones((), requires_grad=True)}, InvalidValueError, "num_items.detach"),
    ({"valid_rows": -1}, InvalidValueError, "valid_rows must be 0 or more"),
    ({"valid_rows": 3.0}, InvalidTypeError, "valid_rows"),
    ({"valid_rows": True}, InvalidTypeError, "valid_rows"),
]


@pytest.mark.parametrize(("changed", "error_type", "text"), REFUSED)
def test_errors_say_what_is_accepted(
    changed: dict[str, Any], error_type: type[Exception], text: str
) -> None:
    x, head, target, _ = given()
    asked = {"input": x, "linear_weight": head, "target": target, **changed}
    with pytest.raises(error_type, match=text):
        mine.linear_cross_entropy(**asked)


def test_a_module_refuses_what_its_call_would() -> None:
    for wrong in ({"mode": "slow"}, {"chunk": 0}, {"reduction": "max"}):
        with pytest.raises(InvalidValueError, match=next(iter(wrong))):
            mine.LinearCrossEntropy(8, 5, **wrong)


@pytest.mark.parametrize("temperature", [None, 2.0])
def test_log_sum_exps_beside_log_probabilities(temperature: float | None) -> None:
    x, head, target, _ = given((2, 3), ignored=0)
    options: dict[str, Any] = {"temperature": temperature, "return_lse": True, "chunk": 4}
    log_probs, lse = mine.linear_token_log_probs(x, head, target, **options)
    again, same, entropy = mine.linear_token_log_probs(
        x, head, target, return_entropy=True, **options
    )
    wanted = torch.logsumexp(x @ head.T / (temperature or 1.0), -1)
    torch.testing.assert_close(lse, wanted.detach())
    assert not lse.requires_grad
    assert log_probs.requires_grad
    assert entropy.requires_grad
    assert torch.equal(again, log_probs)
    assert torch.equal(same, lse)


@pytest.mark.parametrize("shape", [(4,), (3, 1), (2, 2, 3)])
def test_a_temperature_has_to_broadcast_over_rows(shape: tuple[int, ...]) -> None:
    x, head, target, _ = given((2, 3))
    of_rows = torch.ones(shape)
    with pytest.raises(InvalidValueError, match="temperature must broadcast to"):
        mine.linear_token_log_probs(x, head, target.clip(0), temperature=of_rows)
    with pytest.raises(InvalidValueError, match="temperature must broadcast to"):
        mine.token_log_probs(x, target.clip(0, 7), temperature=of_rows)


@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 1), (2, 3, 1, 1)])
def test_ids_have_the_shape_of_rows_and_at_most_one_dimension_more(shape: tuple[int, ...]) -> None:
    """Others are refused even where there are as many ids as rows: whose they are is not known."""
    x, head, _, _ = given((2, 3))
    ids = torch.zeros(shape, dtype=torch.int64)
    with pytest.raises(
        InvalidValueError, match=r"the shape \(2, 3\), or one .* got \(.*\)$"
    ) as told:
        mine.linear_token_log_probs(x, head, ids)
    assert str(told.value).endswith(f"got {shape}")


def test_hidden_states_of_no_numbers() -> None:
    """All logits are 0, or the bias."""
    x, head = torch.zeros(3, 0), torch.zeros(5, 0)
    target = torch.tensor([0, 4, 2])
    loss = mine.linear_cross_entropy(x, head, target)
    torch.testing.assert_close(loss, torch.tensor(5.0).log())
    log_p = mine.linear_token_log_probs(x, head, target)
    torch.testing.assert_close(log_p, -torch.tensor(5.0).log().expand(3))


# What a step takes


def peak_bytes(step: Callable[[], Any]) -> int:
    """Return by how much more memory was taken at once in a call than before it."""
    with torch.profiler.profile(profile_memory=True) as seen:
        step()
    events = seen.profiler.kineto_results.events()
    taken = sorted((each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]")
    total = most = 0
    for _, size in taken:
        total += size
        most = max(most, total)
    return most


@pytest.mark.parametrize(
    ("names", "chunks_of"),
    [("", 1), ("weight label_smoothing", 3), ("weight label_smoothing softcap", 4)],
)
@pytest.mark.parametrize("mode", ["fast", "lean"])
@pytest.mark.parametrize("cols", [4096, 4001])
def test_memory_of_a_step(
    mode: str, cols: int, names: str, chunks_of: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond gradients a step takes a chunk's logits, and in lean mode a tenth of all.

    Weights beside smoothing take two chunks more, and a third with a softcap.

    Of float32: what stands for softgen's kernels here multiplies bfloat16 by float32 in a copy.
    """
    from softgen.torch import chunks

    rows, width = 352, 128
    x = drawn(rows, width, seed=0, dtype=torch.float32).requires_grad_()
    head = drawn(cols, width, seed=1, dtype=torch.float32).requires_grad_()
    target = torch.randint(cols, (rows,))
    monkeypatch.setattr(chunks, "MOST_ROWS", 64)
    every = {"weight": torch.ones(cols), "label_smoothing": 0.1, "softcap": 2.0}
    more = {name: every[name] for name in names.split()}

    def step() -> None:
        mine.linear_cross_entropy(x, head, target, mode=mode, **more).backward()

    step()
    assert x.grad is not None
    x.grad = head.grad = None
    gradients_of = sum(each.numel() * each.element_size() for each in (x, head))
    logits = rows * cols * x.element_size()
    beyond = peak_bytes(step) - gradients_of
    padded = -(-cols // 64) * 64
    most = 64 * padded * x.element_size() + 64 * rows if mode == "fast" else logits / 10
    assert 0 < beyond <= chunks_of * most


def test_chunks_of_the_modes() -> None:
    assert chunk_rows(4096, "fast", None) == 4096
    assert chunk_rows(4097, "fast", None) == 2049
    assert chunk_rows(16384, "fast", None) == 4096
    for rows in range(101, 5000):
        assert chunk_rows(rows, "lean", None) < rows / 10
    # Whole tiles, where they are few rows less than an eleventh, or more.
    of_tiles = {2730: 249, 2731: 256, 4096: 373, 8192: 768, 12288: 1024, 16384: 1536}
    assert {rows: chunk_rows(rows, "lean", None) for rows in of_tiles} == of_tiles
    assert chunk_rows(0, "fast", None) == chunk_rows(0, "lean", None) == 1
    assert chunk_rows(10, "lean", 4) == 4


# Compiled, and in several processes


def module(**options: Any) -> Any:
    made = mine.LinearCrossEntropy(HIDDEN, 67, bias=True, **options)
    with torch.no_grad():
        made.linear.weight.copy_(drawn(67, HIDDEN, seed=1))
        made.linear.bias.copy_(drawn(67, seed=3))
    return made


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own code
@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("aot_eager", {"reduction": "none"}),
        ("aot_eager", {"accumulate": torch.float32}),
        ("aot_eager", {**SMOOTHED, "softcap": 2.0}),
        ("inductor", {}),
    ],
)
def test_compiled_without_a_graph_break(backend: str, options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    x, _, target, _ = given()
    head = module(chunk=4, **options)

    def step(x: Any) -> Any:
        return head(x * 2, target).sum()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for each in (x, drawn(9, HIDDEN, seed=8).float().requires_grad_()):
        found, wanted = (
            torch.autograd.grad(run(each), (each, *head.parameters())) for run in (compiled, step)
        )
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(compiled(x), step(x))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), step(x))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("of", ["losses", "log_probs"])
def test_compiled_with_hidden_states_that_have_no_gradient(of: str) -> None:
    """As those of a model that is frozen but for its last layer."""
    x, head, target, _ = given(6, ignored=0)
    x = x.detach()

    def step(head: Any) -> Any:
        if of == "losses":
            return mine.linear_cross_entropy(x, head, target, reduction="none", chunk=4)
        return mine.linear_token_log_probs(x, head, target, chunk=4)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled(head), head), gradients(step(head), head))


@pytest.mark.filterwarnings("ignore")
def test_compiled_under_autocast_for_any_number_of_rows() -> None:
    torch._dynamo.reset()
    head = module(mode="lean")

    def step(x: Any, target: Any) -> Any:
        log_p = mine.linear_token_log_probs(x, head.linear.weight, target.clip(0))
        return head(x, target) - log_p.mean()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (9, 23, 40):
        x, _, target, _ = given(rows)
        with torch.autocast("cpu", torch.bfloat16):
            found, wanted = compiled(x, target), step(x, target)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(gradients(found, x), gradients(wanted, x))


@pytest.mark.filterwarnings("ignore")
def test_exported() -> None:
    head, (x, _, target, _) = module(), given()
    exported = torch.export.export(head, (x.detach(), target)).module()
    torch.testing.assert_close(exported(x.detach(), target), head(x.detach(), target))


@pytest.mark.filterwarnings("ignore")
def test_traced() -> None:
    head, (x, _, target, _) = module().requires_grad_(False), given()
    traced = torch.jit.trace(lambda x: head(x, target), x, check_trace=False)
    x = x.detach() * 2
    torch.testing.assert_close(traced(x), head(x, target))


def test_the_module_is_pytorchs() -> None:
    """Its state has the names of nn.LinearCrossEntropyLoss, where there is one."""
    weight = drawn(67, seed=4).float().abs()
    head = module(weight=weight, ignore_index=3, reduction="sum", dtype=torch.float32)
    x, _, target, _ = given(ignored=0)
    options = {"linear_bias": head.linear.bias, "weight": weight, "ignore_index": 3}
    wanted = theirs(x, head.linear.weight, target, reduction="sum", **options)
    torch.testing.assert_close(head(x, target), wanted)
    assert sorted(head.state_dict()) == ["linear.bias", "linear.weight", "weight"]
    assert "mode=fast" in repr(head)
    if hasattr(torch.nn, "LinearCrossEntropyLoss"):
        torchs = torch.nn.LinearCrossEntropyLoss(HIDDEN, 67, bias=True, weight=weight)
        torchs.load_state_dict(head.state_dict())


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    run_ranks(2, train_head, tmp_path)


def test_a_weight_in_shards_says_what_to_do() -> None:
    from torch.distributed.tensor import DTensor

    x, head, target, _ = given()
    sharded = torch.Tensor._make_subclass(DTensor, head.detach())
    with pytest.raises(NotSupportedError, match="LinearCrossEntropy"):
        mine.linear_cross_entropy(x, sharded, target)


# In the place of PyTorch's own

later = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="PyTorch has no linear_cross_entropy"
)


@pytest.fixture
def patched() -> Iterator[None]:
    mine.patch()
    yield
    mine.unpatch()


def launched(world: World, run: Callable[[], Any]) -> tuple[list[str], Any]:
    """Return what a call launches and returns."""
    world.launches.clear()
    found = run()
    return world.launches.copy(), found


@later
@pytest.mark.parametrize("options", [{}, {"reduction": "none"}, {"label_smoothing": 0.1}])
def test_patched(world: World, patched: None, options: dict[str, Any]) -> None:
    x, head, target, bias = given(9, 67)
    seen, found = launched(
        world, lambda: F.linear_cross_entropy(x, head, target, linear_bias=bias, **options)
    )
    assert len(seen) == 1
    assert seen[0].startswith("cross_entropy")
    wanted = theirs(x, head, target, linear_bias=bias, **options)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients(found, x, head, bias), gradients(wanted, x, head, bias))
    torchs = torch.nn.LinearCrossEntropyLoss(HIDDEN, 67)
    torchs.load_state_dict({"linear.weight": head.detach()})
    seen, found = launched(world, lambda: torchs(x, target))
    assert seen == ["cross_entropy_grad_rows"]
    torch.testing.assert_close(found, theirs(x, head, target))


@later
def test_patched_and_left_to_pytorch(world: World, patched: None) -> None:
    """Weights of classes, probabilities, a layer of several dimensions, other types."""
    x, head, target, _ = given(9, 67, ignored=0)
    many, places = drawn(5, 2, HIDDEN, seed=1).float(), torch.zeros(9, 2, dtype=torch.int64)
    calls: list[Callable[[], Any]] = [
        lambda: F.linear_cross_entropy(x, head, target, weight=torch.ones(67)),
        lambda: F.linear_cross_entropy(x, head, torch.full((9, 67), 1 / 67)),
        lambda: F.linear_cross_entropy(x, many, places),
    ]
    for run in calls:
        seen, _ = launched(world, run)
        assert not [each for each in seen if each.startswith("cross_entropy_grad")]
    with pytest.raises(RuntimeError):
        F.linear_cross_entropy(x, head.double(), target)
    mine.unpatch()
    seen, _ = launched(world, lambda: F.linear_cross_entropy(x, head, target))
    assert seen == []


@later
@pytest.mark.filterwarnings("ignore")
def test_patched_and_compiled_stays_pytorchs(world: World, patched: None) -> None:
    torch._dynamo.reset()
    x, head, target, _ = given()
    compiled = torch.compile(F.linear_cross_entropy, fullgraph=True, backend="aot_eager")
    seen, found = launched(world, lambda: compiled(x, head, target))
    assert not [each for each in seen if each.startswith("cross_entropy")]
    torch.testing.assert_close(found, theirs(x, head, target))
