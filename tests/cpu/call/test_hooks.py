"""From the arguments of a call to what a launch takes, and by the emulator to the result."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import softgen
from softgen.call import hooks as module
from softgen.call import options
from softgen.call.cupy_library import CupyLibrary
from softgen.call.hooks import chosen
from softgen.call.kernel import Kernel
from softgen.devices.emulator import run_each
from softgen.errors import InvalidTypeError, InvalidValueError, NotSupportedError
from softgen.problems.functions.base import Function
from softgen.problems.hooks.dropout import bits_of
from softgen.problems.layouts import ROWS, Columns, Layout
from softgen.problems.numerics import check
from softgen.problems.problem import Problem
from softgen.source.generate import generate
from softgen.strategies.variants import best_guess
from tests.helpers.cupy_calls import ARCH, CupyArray, World, cupy_array, zeros
from tests.helpers.driver import FakeKernel

SOFTMAX = Function.of("softmax")
Array = npt.NDArray[Any]


@pytest.fixture(autouse=True)
def host(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    library = CupyLibrary()

    def library_of(x: Any, name: str = "") -> tuple[Any, Any]:
        if not isinstance(x, np.ndarray):
            raise InvalidTypeError(f"got {type(x).__name__}")
        return library, x.view(CupyArray)

    finder = module.chosen
    monkeypatch.setattr(module, "library_of", library_of)
    monkeypatch.setattr(finder, "__defaults__", (library_of,))


def aligned(shape: tuple[int, ...], dtype: str = "float32", off: int = 0) -> Array:
    """Return zeros that start so many elements behind a 16-byte boundary."""
    size = int(np.prod(shape))
    memory = np.zeros(size + 64, dtype)
    start = -memory.__array_interface__["data"][0] // memory.itemsize % (16 // memory.itemsize)
    return memory[start + off :][:size].reshape(shape)


def call(x: Array, axis: int = -1, function: str = "softmax", **hooks: Any) -> Array:
    """Return softmax of `x` by the emulator, as the call chooses hooks and values.

    Of a function with one number a row, return these; its results are held to their bound.
    """
    names, values = chosen(Function.of(function), x, None, hooks, axis=axis)
    inner = int(np.prod(x.shape[axis + 1 :])) if axis != -1 else 1
    variant = "block" if axis == -1 else ("columns", "strips")[len(names) % 2]
    cols = x.shape[axis]
    source = generate(function, x.dtype, cols, inner=inner, variant=variant, hooks=names)
    operands = source.variant.problem.hook_operands
    given = []
    for operand, value in zip(operands, values, strict=True):
        if isinstance(value, np.ndarray) and not value.flags.c_contiguous:
            value = value.base  # the emulator takes whole arrays: the slices here start at 0
        given.append(np.asarray(value, operand.dtype.value))
    last = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    rows = run_each(source, last.reshape(-1, cols), others=tuple(given))
    assert check(rows, (last.reshape(-1, cols), *given), source.variant.problem).ok
    if rows[0].ndim == 1:
        return rows[0].reshape(last.shape[:-1])
    return np.moveaxis(rows[0].reshape(last.shape), -1, axis)


def softmax(x: Array) -> Array:
    wide = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True, where=~np.isnan(x), initial=-1e9))
    with np.errstate(invalid="ignore"):
        return np.asarray(wide / wide.sum(-1, keepdims=True))


X = np.random.default_rng(5).standard_normal((2, 3, 4, 40)).astype(np.float32)
QUERIES, COLS = np.arange(4)[:, None], np.arange(40)


def test_every_argument_gives_its_definition() -> None:
    random = np.random.default_rng(6)
    bias = aligned((3, 1, 40))
    bias[:] = random.standard_normal(bias.shape)
    mask = aligned((2, 1, 4, 40), "bool")
    mask[:] = random.random(mask.shape) < 0.7
    lengths = np.array([[[7], [40], [0]]])  # (1, 3, 1), of heads
    sink = np.array([[0.5], [2.0], [-1.0]], np.float32)
    scale = np.array([1.5, -0.5], np.float32).reshape(2, 1, 1)
    shown = lengths[..., None] > COLS
    cases: list[tuple[dict[str, Any], Array]] = [
        ({"scale": 0.5}, softmax(X * np.float32(0.5))),
        ({"scale": np.float64(-2)}, softmax(X * np.float32(-2))),
        ({"scale": scale}, softmax(X * scale[..., None])),
        ({"softcap": 2}, softmax(2 * np.tanh(X / 2))),
        ({"bias": bias}, softmax(X + bias)),
        ({"mask": mask}, softmax(np.where(mask, X, -np.inf))),
        ({"causal": True}, softmax(np.where(COLS <= QUERIES + 36, X, -np.inf))),
        (
            {"causal": True, "causal_offset": 3},
            softmax(np.where(COLS <= QUERIES + 3, X, -np.inf)),
        ),
        (
            {"lengths": lengths, "empty_rows": "zero"},
            np.nan_to_num(softmax(np.where(shown, X, -np.inf))),
        ),
        (
            {"sink": sink},
            softmax(np.concatenate((X, np.broadcast_to(sink[..., None], (2, 3, 4, 1))), -1))[
                ..., :40
            ],
        ),
        ({"out_scale": 3}, 3 * softmax(X)),
        ({"dropout": 0.0, "empty_rows": "nan", "causal": False, "mask": None}, softmax(X)),
    ]
    for hooks, wanted in cases:
        np.testing.assert_allclose(call(X, **hooks), wanted, 3e-6, 1e-9, err_msg=str([*hooks]))


@pytest.mark.parametrize("scale", [0, 1e-40, 1e-50, np.float32(2**-149)])
def test_a_scale_that_float32_arithmetic_takes_for_0_is_one_of_0(scale: float) -> None:
    """The hook of a scale above 0 leaves -inf what is not there, and 0 times that is NaN."""
    x = X[..., :33]
    np.testing.assert_allclose(call(x, scale=scale), np.full_like(x, 1 / 33), 3e-6)
    assert chosen(SOFTMAX, x, None, {"scale": scale})[0] == ("scaleany",)
    assert chosen(SOFTMAX, x, None, {"scale": 2.0**-126})[0] == ("scale",)


def test_dropout_is_a_function_of_seed_offset_and_place() -> None:
    y = call(X, dropout=0.25, seed=2**64 - 3, seed_offset=5)
    kept = bits_of(np.arange(X.size, dtype=np.uint64), -3, 5) >= 2**14
    wanted = np.where(kept.reshape(X.shape), softmax(X) / 0.75, 0)
    np.testing.assert_allclose(y, wanted, 3e-6)
    assert 0.6 < kept.mean() < 0.9
    assert (call(X, dropout=1.0, seed=1) == 0).all()


def test_lines_that_start_anywhere_move_by_elements() -> None:
    for off, name in ((0, "biasf32"), (1, "biasf32any")):
        assert chosen(SOFTMAX, X, None, {"bias": aligned((4, 40), off=off)})[0] == (name,)
    wide = aligned((4, 43))  # lines of another stride, of which a slice is taken
    wide[:] = np.random.default_rng(1).standard_normal(wide.shape)
    names, values = chosen(SOFTMAX, X, None, {"bias": wide[:, :40]})
    assert names == ("biasf32any",)
    assert values[1:] == (24, 1, 0, 4, 43)
    turned = np.asfortranarray(wide[:, :40])  # the last axis has gaps: copied
    np.testing.assert_allclose(call(X, bias=turned), softmax(X + turned), 3e-6)


def test_a_row_finds_its_element_by_few_numbers() -> None:
    half = np.float32(0.5)
    for shape, wanted in (((2, 1, 1), (12, 2)), ((3, 1), (4, 3)), ((4,), (1, 4))):
        _, values = chosen(SOFTMAX, X, None, {"scale": np.full(shape, half)})
        assert values[1:] == wanted, shape
    with pytest.raises(InvalidValueError, match="in more steps than a kernel takes; expand it"):
        chosen(SOFTMAX, X, None, {"scale": np.full((2, 1, 4), half)})


@pytest.mark.parametrize(
    ("axis", "dtype", "shapes"),
    [
        (-1, "float64", [(2, 3, 4, 1), (3, 1, 1), (4, 1), (2, 1, 1, 1), (1, 1), (1,), ()]),
        (
            1,
            "float32",
            [(2, 1, 3, 4), (1, 3, 1), (3, 4), (2, 1, 1, 1), (1, 1, 1, 1), (4,), (1,), ()],
        ),
        (2, "float16", [(2, 3, 1, 4), (3, 1, 1), (1, 4), (4,), ()]),
    ],
)
def test_an_array_with_one_element_a_row(
    axis: int, dtype: str, shapes: list[tuple[int, ...]]
) -> None:
    """A bias of a number a row, or of fewer, moves lse and not softmax; a mask hides rows."""
    random = np.random.default_rng(8)
    x = np.ascontiguousarray(np.moveaxis(X, -1, axis))
    for shape in shapes:
        bias = np.asarray(random.standard_normal(shape) * 8).astype(dtype)
        mask = np.asarray(random.random(shape) < 0.5)
        biased = np.moveaxis(x.astype(np.float64) + bias.astype(np.float32), axis, -1)
        lse = np.log(np.exp(biased).sum(-1))
        found = call(x, axis, "logsumexp", bias=bias)
        np.testing.assert_allclose(found, lse, 1e-6, 1e-6, err_msg=f"{shape}")
        y = np.moveaxis(call(x, axis, bias=bias), axis, -1)
        np.testing.assert_allclose(y, softmax(X), 1e-5, err_msg=f"{shape}")
        shown = np.moveaxis(np.broadcast_to(mask, x.shape), axis, -1)
        y = np.moveaxis(call(x, axis, mask=mask, empty_rows="zero"), axis, -1)
        np.testing.assert_allclose(y, np.where(shown, softmax(X), 0), 3e-6, err_msg=f"{shape}")


def test_an_element_a_row_where_there_are_no_columns() -> None:
    x = np.zeros((4, 0), np.float32)
    for shape in ((4, 1), (4, 0), (1,), ()):
        (_, (bias, *_)) = chosen(SOFTMAX, x, None, {"bias": np.ones(shape, np.float32)})
        assert bias.size == 0


def test_arguments_along_another_axis() -> None:
    """As along the last one of the array with that axis last: axis 1 of (2, 40, 3, 4)."""
    random = np.random.default_rng(7)
    x = np.ascontiguousarray(np.moveaxis(X, -1, 1))
    keys = random.standard_normal((40, 1, 1)).astype(np.float32)  # read where it is
    whole = random.standard_normal((2, 40, 1, 4)).astype(np.float16)  # copied
    mask = random.random((2, 40, 1, 1)) < 0.7
    lengths = np.array([[7], [40], [0]])  # (3, 1)
    sink = np.array([0.5, 2.0, -1.0, -np.inf], np.float32)
    scale = np.array([1.5, -0.5], np.float32).reshape(2, 1, 1)
    every = np.float32(0.25) * np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    biased = X * scale[..., None] + keys[:, 0, 0]
    with_sink = np.concatenate((biased, np.broadcast_to(sink[:, None], (2, 3, 4, 1))), -1)
    lasting = np.where(lengths[..., None] > COLS, X + np.moveaxis(whole, 1, -1), -np.inf)
    seen = np.where(np.moveaxis(mask, 1, -1) & (COLS <= QUERIES + 3), X * np.float32(-2), -np.inf)
    cases: list[tuple[dict[str, Any], Array]] = [
        ({"scale": scale, "bias": keys, "sink": sink}, softmax(with_sink)[..., :40]),
        (
            {"bias": whole, "lengths": lengths, "empty_rows": "zero"},
            np.nan_to_num(softmax(lasting)),
        ),
        (
            {"scale": -2, "mask": mask, "causal": True, "causal_offset": 3, "out_scale": every},
            softmax(seen) * every[..., None],
        ),
    ]
    for hooks, wanted in cases:
        found = np.moveaxis(call(x, 1, **hooks), 1, -1)
        np.testing.assert_allclose(found, wanted, 3e-6, 1e-9, err_msg=str([*hooks]))
    # Elements are counted as if the axis were the last.
    dropped = np.moveaxis(call(x, 1, dropout=0.25, seed=7), 1, -1) == 0
    kept = bits_of(np.arange(X.size, dtype=np.uint64), 7, 0) >= 2**14
    np.testing.assert_array_equal(dropped, ~kept.reshape(X.shape))


def test_what_does_not_fit_another_axis() -> None:
    for hooks, message in (
        ({"bias": np.ones((5, 1), np.float32)}, r"broadcast to \(2, 3, 4, 40\), got shape \(5"),
        ({"mask": np.ones((3, 40), bool)}, r"mask must broadcast to \(2, 3, 4, 40\), got shape"),
        ({"sink": np.ones((4, 40), np.float32)}, r"sink must broadcast to \(2, 3, 40\), got shape"),
    ):
        with pytest.raises(InvalidValueError, match=message):
            chosen(SOFTMAX, X, None, hooks, axis=2)
    (_, (bias, *_)) = chosen(SOFTMAX, X, None, {"bias": (keys := np.ones((4, 1), "f4"))}, axis=2)
    assert np.shares_memory(bias, keys)


@pytest.mark.parametrize("scale", [-2, 0, 1e-40])
@pytest.mark.parametrize("axis", [None, (3,), (0, 1), True])
def test_several_axes_are_refused(axis: Any, scale: float) -> None:
    with pytest.raises(NotSupportedError, match="hooks are for one axis, got axis"):
        softgen.softmax(X, axis, scale=scale)


def test_what_asks_for_no_place_is_for_any_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def calls_of(function: str, pdl: bool, names: tuple[str, ...]) -> Any:
        return {np.ndarray: lambda *request: asked.append((names, request[2], request[-1]))}

    monkeypatch.setattr(options, "calls_of", calls_of)
    softgen.softmax(X, 0, scale=2, out_scale=3, empty_rows="zero")
    assert asked == [(("scale", "zeroempty", "outscale"), 0, (2, 3))]
    softgen.softmax(X, (0, 1), scale=2)
    assert asked[1:] == [(("scale",), (0, 1), (2,))]


@pytest.mark.parametrize(
    ("hooks", "error", "message"),
    [
        ({"temperature": 1}, InvalidTypeError, "unknown argument 'temperature'"),
        ({"scale": np.inf}, InvalidValueError, "scale must be finite, got inf"),
        ({"scale": "2"}, InvalidTypeError, "got str"),
        ({"scale": np.ones(4)}, InvalidTypeError, "a number or an array of float32, got float64"),
        ({"softcap": 0}, InvalidValueError, "softcap must be above 0, got 0"),
        ({"softcap": True}, InvalidTypeError, "softcap must be a number, got True"),
        ({"mask": np.ones(40, np.float32)}, InvalidTypeError, r"additive mask of floats is bias="),
        (
            {"mask": np.ones((5, 1), bool)},
            InvalidValueError,
            r"mask must broadcast to .* shape \(5",
        ),
        (
            {"mask": np.ones(39, bool)},
            InvalidValueError,
            r"broadcast to \(2, 3, 4, 40\), got shape",
        ),
        ({"bias": np.ones((5, 40))}, InvalidValueError, r"bias must broadcast to .* got shape \(5"),
        ({"bias": np.ones((2, 1, 3, 4, 1))}, InvalidValueError, "bias must broadcast to"),
        ({"lengths": np.ones(4)}, InvalidTypeError, "int32 or int64, got float64"),
        ({"lengths": 7}, InvalidTypeError, "got int"),
        ({"lengths": np.ones(3, int)}, InvalidValueError, r"broadcast to \(2, 3, 4\), got"),
        ({"causal": 1}, InvalidTypeError, "causal must be True or False, got 1"),
        ({"causal_offset": 1}, InvalidValueError, "causal_offset needs causal=True"),
        ({"causal": True, "causal_offset": 0.5}, InvalidTypeError, "must be an int, got 0.5"),
        ({"empty_rows": "0"}, InvalidValueError, "'nan' or 'zero', got '0'"),
        ({"dropout": 1.5, "seed": 1}, InvalidValueError, "from 0 to 1, got 1.5"),
        ({"dropout": 0.5}, InvalidValueError, "dropout needs seed="),
        ({"dropout": 0.5, "seed": 2**64}, InvalidValueError, "seed must fit 64 bits"),
    ],
)
def test_what_does_not_fit(hooks: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        chosen(SOFTMAX, X, None, hooks)


# Rows that are not there


def of_sizes(b: int, h: int, q: int, c: int) -> list[dict[str, Any]]:
    """Return arguments for rows of shape (b, h, q) of c columns: some fit, most do not."""
    one = np.float32
    shapes = [(c,), (q, c), (h, 1, c), (b, h, q, c), (b, 1, 1, c), (b, 1, q, c), (1, 1, 1, c)]
    shapes += [(q + 2, c), (h, q + 3, c), (1, b, h, q, c), (c + 2,), (q, 1), (1,), ()]
    of_rows = [(q,), (h, 1), (b, 1, 1), (b, h, q), (b, 1, q), (1, h, q), (), (1, 1, 1)]
    of_rows += [(q + 2,), (h, q, 1), (b + 2, 1, 1), (1, b, h, q)]
    found: list[dict[str, Any]] = []
    for shape in shapes:
        found += [{"bias": np.ones(shape, kind)} for kind in ("f2", "f4", "i4", "?")]
        found += [{"mask": np.ones(shape, kind)} for kind in ("?", "f4")]
    for shape in of_rows:
        found += [{"lengths": np.ones(shape, kind)} for kind in ("i4", "i8", "f4")]
        found += [{name: np.ones(shape, one)} for name in ("scale", "sink", "out_scale")]
        found += [{"scale": np.ones(shape, "f8")}, {"sink": np.ones(shape, "i4")}]
    found += [{"temperature": 1}, {"softcap": 0}, {"softcap": np.nan}, {"scale": np.inf}]
    found += [{"causal": 1}, {"causal_offset": 1}, {"causal": True, "causal_offset": 0.5}]
    found += [{"empty_rows": "0"}, {"dropout": 1.5, "seed": 1}, {"dropout": 0.5}]
    found += [{"dropout": 0.5, "seed": 2**64}, {"causal": True, "mask": np.ones(c, bool)}]
    return found


def answer(x: Array, axis: int, hooks: dict[str, Any]) -> str:
    """Return the names of the hooks, or the error, without the sizes in it."""
    try:
        names, _ = chosen(SOFTMAX, x, None, hooks, axis=axis)
    except (InvalidValueError, InvalidTypeError) as error:
        told = str(error).split("shape")[0]
        return f"{type(error).__name__}: {re.sub('[0-9]+', 'n', told)}"
    return " ".join(name.removesuffix("any") for name in names)


@pytest.mark.parametrize("axis", [-1, 1])
@pytest.mark.parametrize("empty", [(0,), (1,), (2,), (0, 1), (0, 2), (3,), (1, 3)], ids=str)
def test_rows_that_are_not_there_are_judged_as_others_are(
    empty: tuple[int, ...], axis: int
) -> None:
    """As of a batch that happens to be empty: the next one would be refused."""
    whole = [5, 6, 9, 40]  # of which none is broadcast, nor two more than another
    sizes = [0 if i in empty else size for i, size in enumerate(whole)]
    refused = 0
    for full, none in zip(of_sizes(*whole), of_sizes(*sizes), strict=True):
        if "sink" in full and 3 in empty:  # no column, and so no row that a sink could join
            continue
        lies = [whole, sizes]
        if axis != -1:  # the columns are axis 1, of what has an element a column too
            lies = [[b, c, h, q] for b, h, q, c in lies]
            if not {"bias", "mask"}.isdisjoint(full):
                continue
        x, y = (np.zeros(each, np.float32) for each in lies)
        wanted = answer(x, axis, full)
        assert answer(y, axis, none) == wanted, {n: np.shape(v) for n, v in none.items()}
        refused += "Error" in wanted
    assert refused >= 30


@pytest.mark.parametrize("shape", [(0, 8), (3, 0)])
@pytest.mark.parametrize("hooks", [{"scale": 1e39}, {"softcap": 1e39}, {"out_scale": -1e39}])
def test_a_number_that_does_not_fit_is_refused_without_a_launch(
    shape: tuple[int, int], hooks: dict[str, float], world: World
) -> None:
    x = zeros(*shape)
    (name,) = hooks
    with pytest.raises(InvalidValueError, match=f"{name} must fit float32, got -?1e"):
        softgen.softmax(x, **hooks)  # type: ignore[arg-type]
    assert softgen.softmax(x, **{name: 2.0}).shape == shape  # type: ignore[arg-type]
    assert (world.driver.launches, world.variants) == ([], [])


def planned(world: World, *hooks: str, layout: Layout = ROWS) -> Kernel:
    """Return a kernel of softmax for rows of 40 elements."""
    problem = Problem.of("softmax", "float32", 40, hooks=hooks, layout=layout)
    variant = best_guess(problem, 24, ARCH)
    loaded: Any = FakeKernel(variant.problem, world.driver, variant)
    return Kernel(loaded)


def test_a_plan_takes_hooks_arrays_whose_elements_are_side_by_side(world: World) -> None:
    x = cupy_array(X)
    logits = cupy_array(np.arange(16, dtype=np.float32))
    wide = cupy_array(np.random.default_rng(1).standard_normal((4, 60)).astype(np.float32))
    sink, bias = planned(world, "sinkf32"), planned(world, "biasf32any")
    lines = wide[:, :40]  # which are 60 apart
    np.testing.assert_allclose(bias(x, lines, 24, 1, 0, 4, 60), softmax(X + lines), 3e-6)
    of_rows = np.repeat(np.arange(4, dtype=np.float32), 6).reshape(2, 3, 4, 1)
    wanted = softmax(np.concatenate((X, of_rows), -1))[..., :40]
    for _ in range(2):
        np.testing.assert_allclose(sink(x, logits[:4], 6, 4), wanted, 3e-6)
        with pytest.raises(InvalidValueError, match=r"sink has strides \(8,\) in bytes; make it"):
            sink(x, logits[::2], 6, 4)
        with pytest.raises(InvalidValueError, match="elements of bias side by side"):
            bias(x, wide.T, 24, 1, 0, 1, 0)


OUTSIDE = "by the numbers behind {0} rows find elements {1} of it, and it has {2}"
FEW = r"{0} must be from 1 to 2\*\*31 - 1, got {1}"
PACKS = "lines of bias that start on 16 bytes; plan with the hook of that name and `any`"


@pytest.mark.parametrize(
    ("hook", "length", "right", "wrong", "told"),
    [
        ("causal", 0, (3, 37), (0, 37), FEW.format("queries", 0)),
        ("causal", 0, (3, 37), (2**31, 37), FEW.format("queries", 2**31)),
        ("sinkf32", 4, (6, 4), (6, 5), OUTSIDE.format("sink", "0 to 4", "0 to 3")),
        ("sinkf32", 4, (6, 4), (0, 4), FEW.format("sink_every", 0)),
        ("lengthsi64", 4, (6, 4), (6, -4), FEW.format("lengths_count", -4)),
        (
            "biasf32",
            80,
            (12, 2, 40, 1, 0),
            (12, 3, 40, 1, 0),
            OUTSIDE.format("bias", "0 to 119", "0"),
        ),
        (
            "biasf32",
            80,
            (12, 2, 40, 1, 0),
            (12, 2, -40, 1, 0),
            OUTSIDE.format("bias", "-40 to 39", "0"),
        ),
        (
            "biasf32",
            80,
            (24, 1, 0, 2, 40),
            (24, 1, 0, 2, 44),
            OUTSIDE.format("bias", "0 to 83", "0"),
        ),
        ("biasf32", 80, (24, 1, 0, 2, 40), (24, 1, 0, 2, 39), PACKS),
    ],
)
def test_a_plan_refuses_numbers_by_which_rows_find_nothing(
    hook: str,
    length: int,
    right: tuple[int, ...],
    wrong: tuple[int, ...],
    told: str,
    world: World,
) -> None:
    kind = "int64" if hook.startswith("lengths") else "float32"
    array = cupy_array(np.arange(length, dtype=kind))
    arrays = (array,) if length else ()
    kernel, x = planned(world, hook), cupy_array(X)
    for _ in range(3):  # with and without an entry of the right call
        with pytest.raises(InvalidValueError, match=told):
            kernel(x, *arrays, *wrong)
        kernel(x, *arrays, *right)
    assert len(world.driver.launches) == 3
    if length:
        with pytest.raises(InvalidValueError, match="find elements 0 to"):
            kernel(x, array[:-1], *right)


def test_a_plan_for_packs_refuses_a_line_that_starts_on_none(world: World) -> None:
    kernel, x = planned(world, "biasf32"), cupy_array(X)
    lines = [cupy_array(np.zeros(40, "float32"), off=off) for off in (0, 4)]
    kernel(x, lines[0], 24, 1, 0, 1, 0)
    with pytest.raises(InvalidValueError, match=PACKS):
        kernel(x, lines[1], 24, 1, 0, 1, 0)
    columns = planned(world, "biasf32", layout=Columns(4))
    columns(cupy_array(np.zeros((6, 40, 4), "float32")), lines[1], 24, 1, 0, 1, 0)


def test_a_plan_looks_at_its_numbers_once(world: World) -> None:
    kernel, x, sink = planned(world, "sinkf32"), cupy_array(X), cupy_array(np.zeros(4, "float32"))
    for numbers in ((6, 4), (6, 4), (np.int64(6), np.int64(4)), (6, 3), (6, 4), (6, 3)):
        kernel(x, sink, *numbers)
    assert world.cold == 2
    assert kernel(x[:0], sink[:0], 1, 0).shape == (0, *x.shape[1:])  # where there are no rows
