"""Hooks on a GPU, on tensors and CuPy arrays, against PyTorch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import softgen
from softgen.problems.hooks.dropout import bits_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

BATCH, HEADS, QUERIES, KEYS = 2, 3, 16, 200
SHAPE = (BATCH, HEADS, QUERIES, KEYS)
# Of the value itself, which the type rounds once more.
STEPS = {"float32": 4e-6, "float16": 2**-10, "bfloat16": 2**-7, "float64": 1e-13}


def made(*shape: int, dtype: Any = None, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cuda", dtype=torch.float64)
    return values.to(dtype or torch.float32)


def causal(offset: int) -> Any:
    rows, cols = torch.arange(QUERIES)[:, None], torch.arange(KEYS)
    return (cols <= rows + offset).cuda()


def hidden(z: Any, shown: Any) -> Any:
    return z.masked_fill(~shown, float("-inf"))


def bias() -> Any:
    return made(HEADS, 1, KEYS, dtype=torch.bfloat16, seed=1)


def mask() -> Any:
    return made(BATCH, 1, QUERIES, KEYS, seed=2) > -0.5


def lengths() -> Any:
    return torch.tensor([[[7]], [[KEYS]]], device="cuda")


def sink() -> Any:
    return made(HEADS, 1, seed=3)


def row_scale() -> Any:
    return made(BATCH, 1, 1, seed=4)


# Arguments of a call, and what they do to logits in float64.
CASES: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[Any], Any]]] = {
    "scale": (lambda: {"scale": 0.125}, lambda z: z * 0.125),
    "negative scale": (lambda: {"scale": -3.0}, lambda z: z * -3.0),
    "scale of rows": (
        lambda: {"scale": row_scale()},
        lambda z: z * row_scale().double()[..., None],
    ),
    "softcap": (lambda: {"softcap": 5.0}, lambda z: 5 * torch.tanh(z / 5)),
    "bias": (lambda: {"bias": bias()}, lambda z: z + bias().double()),
    "mask": (lambda: {"mask": mask()}, lambda z: hidden(z, mask())),
    "mask that starts anywhere": (
        lambda: {"mask": torch.nn.functional.pad(mask(), (1, 0))[..., 1:]},
        lambda z: hidden(z, mask()),
    ),
    "lengths": (
        lambda: {"lengths": lengths()},
        lambda z: hidden(z, torch.arange(KEYS, device="cuda") < lengths()[..., None]),
    ),
    "causal": (lambda: {"causal": True}, lambda z: hidden(z, causal(KEYS - QUERIES))),
    "all": (
        lambda: {
            **{"scale": 0.5, "softcap": 5.0, "bias": bias(), "mask": mask()},
            **{"causal": True, "causal_offset": 9, "empty_rows": "zero"},
        },
        lambda z: hidden(hidden(5 * torch.tanh(z * 0.5 / 5) + bias().double(), mask()), causal(9)),
    ),
}


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("dtype", STEPS)
@pytest.mark.parametrize("name", CASES)
def test_hooks_give_what_pytorch_gives(name: str, dtype: str, library: str) -> None:
    hooks, on_logits = CASES[name]
    if dtype == "float64" and name == "scale of rows":
        pytest.skip("its scale is of the type of the arithmetic")
    if library == "cupy" and dtype == "bfloat16":
        pytest.skip("DLPack of CuPy knows no bfloat16")
    x = made(*SHAPE, dtype=getattr(torch, dtype)) * 3
    given = hooks()
    wanted = torch.softmax(on_logits(x.double()), -1).nan_to_num(0)
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        if any(torch.is_tensor(v) and v.dtype is torch.bfloat16 for v in given.values()):
            pytest.skip("DLPack of CuPy knows no bfloat16")
        given = {k: cupy.from_dlpack(v) if torch.is_tensor(v) else v for k, v in given.items()}
        calls = [torch.from_dlpack(softgen.softmax(cupy.from_dlpack(x), **given)) for _ in range(3)]
    else:
        calls = [softgen.softmax(x, **given) for _ in range(3)]  # the later ones are warm
    for y in calls:
        off = (y.double().nan_to_num(0) - wanted).abs()
        assert (off <= STEPS[dtype] * wanted + 1e-7).all(), float(off.max())


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("shape", [(HEADS, QUERIES, 1), (BATCH, 1, 1, 1), (1,), ()])
def test_a_bias_of_rows_moves_lse(shape: tuple[int, ...], axis: int, library: str) -> None:
    x, rows = made(*SHAPE), made(*shape, seed=6) * 8
    wanted = torch.logsumexp(x.double() + rows.double(), -1)
    x = x.movedim(-1, axis).contiguous()
    rows = moved(rows) if axis == 1 else rows
    if library == "cupy":
        cupy = pytest.importorskip("cupy")
        calls = [
            torch.from_dlpack(softgen.logsumexp(cupy.from_dlpack(x), axis, bias=each))
            for each in [cupy.from_dlpack(rows)] * 3
        ]
    else:
        calls = [softgen.logsumexp(x, axis, bias=rows) for _ in range(3)]  # the later are warm
    for lse in calls:
        torch.testing.assert_close(lse.double(), wanted, rtol=4e-6, atol=4e-6)


def moved(each: Any) -> Any:
    """Return a bias or a mask of (batch, head, query, key) as of (batch, key, head, query)."""
    return each.reshape((1,) * (4 - each.dim()) + tuple(each.shape)).movedim(-1, 1)


@pytest.mark.parametrize("variant", ["columns", "strips", None])
@pytest.mark.parametrize("name", CASES)
def test_hooks_along_another_axis(name: str, variant: str | None) -> None:
    hooks, on_logits = CASES[name]
    x = made(*SHAPE) * 3
    given = {k: moved(v) if k in ("bias", "mask") else v for k, v in hooks().items()}
    wanted = torch.softmax(on_logits(x.double()), -1).nan_to_num(0).movedim(-1, 1)
    across = x.movedim(-1, 1).contiguous()
    for _ in range(3):  # the later ones are warm
        y = softgen.softmax(across, 1, variant=variant, **given)
        off = (y.double().nan_to_num(0) - wanted).abs()
        assert (off <= STEPS["float32"] * wanted + 1e-7).all(), float(off.max())
    dropped = softgen.softmax(across, 1, dropout=0.4, seed=11, variant=variant).movedim(1, -1)
    assert torch.equal(dropped != 0, softgen.softmax(x, dropout=0.4, seed=11) != 0)


def test_a_sink_takes_part_and_dropout_is_the_references() -> None:
    x = made(*SHAPE)
    with_sink = torch.cat(
        (
            x.double(),
            sink().double().expand(HEADS, QUERIES)[None, ..., None].expand(BATCH, -1, -1, 1),
        ),
        -1,
    )
    y, lse = softgen.softmax(x, sink=sink(), return_lse=True)
    torch.testing.assert_close(
        y.double(), torch.softmax(with_sink, -1)[..., :-1], rtol=4e-6, atol=0
    )
    torch.testing.assert_close(lse.double(), torch.logsumexp(with_sink, -1), rtol=4e-6, atol=4e-6)
    import numpy as np

    kept = bits_of(np.arange(x.numel(), dtype=np.uint64), 11, 7) >= round(0.4 * 2**16)
    for variant in ("warp", "block", "online"):
        dropped = softgen.softmax(x, dropout=0.4, seed=11, seed_offset=7, variant=variant)
        assert ((dropped != 0).cpu().numpy().reshape(-1) == kept).all()


def test_log_softmax_and_logsumexp_take_them() -> None:
    x = made(*SHAPE)
    logits = hidden(x.double() * -2, causal(5))
    y = softgen.log_softmax(x, scale=-2.0, causal=True, causal_offset=5)
    torch.testing.assert_close(y.double(), torch.log_softmax(logits, -1), rtol=4e-6, atol=4e-6)
    lse = softgen.logsumexp(x, scale=-2.0, causal=True, causal_offset=5)
    torch.testing.assert_close(lse.double(), torch.logsumexp(logits, -1), rtol=4e-6, atol=4e-6)


def test_what_is_hidden_may_hold_anything() -> None:
    x = made(*SHAPE)
    x[..., 100:] = float("nan")
    y = softgen.softmax(x, lengths=torch.full((1,), 100, device="cuda"))
    assert (y[..., 100:] == 0).all()
    torch.testing.assert_close(y[..., :100], torch.softmax(x[..., :100], -1), rtol=4e-6, atol=1e-7)
