"""Public calls on arrays, drawn: any axis, views, in place, and hooks that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import softgen
from softgen.errors import IllegalVariantError, InvalidValueError, NotSupportedError, SoftgenError
from softgen.strategies.registry import all_strategies
from tests.differential import hooks as of_kernels
from tests.differential.functions import Results
from tests.differential.inputs import first_input, function_inputs
from tests.differential.reference import expected, objections
from tests.differential.regimes import Random
from tests.differential.rows import Entered, Hooks, entered
from tests.differential.storage import Stored, exact, rounded

FLOATS = ("float16", "bfloat16", "float32", "float64")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
_TOO_MANY_STEPS = "in more steps than a kernel takes"


class Library(Protocol):
    """The arrays of calls."""

    def device(self, stored: Stored, dtype: str) -> Any:
        """Return an array of them."""

    def host(self, array: Any) -> Stored:
        """Return an array's elements as they are stored."""


class Cupy:
    """CuPy's arrays."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def device(self, stored: Stored, dtype: str) -> Any:
        """Return an array of them."""
        return self._cupy.asarray(native(stored, dtype))

    def host(self, array: Any) -> Stored:
        """Return an array's elements as they are stored."""
        return stored_of(self._cupy.asnumpy(array))


def native(stored: Stored, dtype: str) -> Any:
    """Return stored elements as an array of NumPy's own types, or of ml_dtypes'."""
    if dtype == "bfloat16":
        import ml_dtypes

        return stored.view(ml_dtypes.bfloat16)
    return stored


def stored_of(host: Any) -> Stored:
    """Return an array of such types as it is stored."""
    return host.view("uint16") if host.dtype.name == "bfloat16" else np.asarray(host)


@dataclass
class Drawn:
    """A call that was drawn.

    Attributes:
        text: what is called.
        run: calls it; returns each result, and its type.
        results: what is right.
        rows: of which rows.
        hooks: by which hooks.
        compute: the type of arithmetic.
    """

    text: str
    run: Callable[[], dict[str, tuple[Stored, str]]]
    results: Results
    rows: Entered
    hooks: Hooks
    compute: str

    def wrong(self) -> list[str] | None:
        """Return what is wrong with it, a line each; None for what the pages say is refused."""
        try:
            got = self.run()
        except SoftgenError as error:
            if _TOO_MANY_STEPS in str(error):
                return None
            return [f"{self.text}: {type(error).__name__}: {error}"]
        found = objections(self.results, self.rows, got, self.hooks, self.compute)
        return [f"{self.text}: {line}" for line in found]


class _Draw:
    """What calls have in common: rows of a shape, and an array that has them along an axis."""

    def __init__(self, random: Random, library: Library) -> None:
        self.random, self.library = random, library
        axes = int(random.integers(1, 4))
        self.lead = tuple(int(random.integers(1, (25, 6, 4)[axes - 1])) for _ in range(axes))
        self.rows = math.prod(self.lead)
        self.cols = int(math.exp(random.uniform(0, math.log(1500))))
        if random.random() < 0.1:
            self.cols = int(random.integers(5000, 40000))
            self.lead = (int(random.integers(1, 4)),)
            self.rows = self.lead[0]
        self.dtype = str(random.choice(FLOATS))
        self.out_dtype = self.dtype
        self.axis = len(self.lead)
        self.words: list[str] = []

    def choose_axis(self) -> None:
        """Take any axis, at times."""
        if self.random.random() < 0.35:
            self.axis = int(self.random.integers(len(self.lead) + 1))

    def choose_out(self, float8: bool = False) -> None:
        """Take another type of the result, at times."""
        if self.random.random() < 0.3:
            self.out_dtype = str(self.random.choice(FLOATS))
        elif float8 and self.dtype != "float64" and self.random.random() < 0.15:
            self.out_dtype = str(self.random.choice(_FLOAT8))

    @property
    def compute(self) -> str:
        """The type of arithmetic."""
        return "float64" if "float64" in (self.dtype, self.out_dtype) else "float32"

    @property
    def last(self) -> bool:
        """Whether rows lie along the last axis."""
        return self.axis == len(self.lead)

    def moved(self, rows: Stored) -> Stored:
        """Return (rows, cols) in the shape of the call's array."""
        whole = rows.reshape(*self.lead, rows.shape[-1])
        return np.ascontiguousarray(np.moveaxis(whole, -1, self.axis))

    def array(self, rows: Stored, dtype: str, *, view: bool = True) -> Any:
        """Return rows as an array of the library, at times a view of a larger one."""
        whole = self.moved(rows)
        kind = int(self.random.integers(5)) if view else 4
        if kind == 0 and self.last:
            more = int(self.random.integers(1, 20))
            wide = np.zeros((*whole.shape[:-1], whole.shape[-1] + more), whole.dtype)
            first = int(self.random.integers(more + 1))
            wide[..., first : first + whole.shape[-1]] = whole
            self.words.append(f"a view of columns from {first} of {wide.shape}")
            return self.library.device(wide, dtype)[..., first : first + whole.shape[-1]]
        if kind == 1:
            wide = np.zeros((2 * whole.shape[0], *whole.shape[1:]), whole.dtype)
            wide[::2] = whole
            self.words.append("every second of axis 0")
            return self.library.device(wide, dtype)[::2]
        if kind == 2:
            self.words.append("axis 0 turned around")
            return self.library.device(np.ascontiguousarray(whole[::-1]), dtype)[::-1]
        return self.library.device(whole, dtype)

    def of_rows(self, values: Any, dtype: str) -> Any:
        """Return an array of an element a row, or a few."""
        stored = np.asarray(values)
        return self.library.device(stored.reshape(*self.lead, *stored.shape[1:]), dtype)

    def back(self, array: Any) -> Stored:
        """Return a result of x's shape as (rows, cols)."""
        host = np.moveaxis(self.library.host(array), self.axis, -1)
        return np.ascontiguousarray(host).reshape(self.rows, self.cols)

    def per_row(self, array: Any) -> Stored:
        """Return a result of the rows' shape as (rows,), or (rows, k)."""
        host = self.library.host(array)
        return host.reshape(self.rows, *host.shape[len(self.lead) :])

    def options(self) -> dict[str, Any]:
        """Return the options of all calls."""
        found: dict[str, Any] = {"tune": "off"}
        if self.random.random() < 0.4:
            names = [kind.name for kind in all_strategies() if kind.tuned]
            found["variant"] = str(self.random.choice(names))
        elif self.random.random() < 0.15:
            found["batch_invariant"] = True
        return found


class _Broadcast:
    """Hooks as arguments of a call, and as what they do to rows."""

    def __init__(self, draw: _Draw, function: str) -> None:
        self.draw, self.random = draw, draw.random
        self.arguments: dict[str, Any] = {}
        self.hooks = Hooks()
        known = [kind for kind in of_kernels.taken(function) if kind != "causal" or draw.lead]
        count = min(len(known), int(self.random.geometric(0.45)))
        for index in sorted(self.random.choice(len(known), size=count, replace=False)):
            getattr(self, f"_{known[index]}")()

    def _rows(self, values: Callable[[tuple[int, ...]], Any], dtype: str) -> tuple[Any, Any]:
        """Return an array that is broadcast over rows, and its element of each row."""
        lead = self.draw.lead
        shape = tuple(n if self.random.random() < 0.6 else 1 for n in lead)
        if self.random.random() < 0.3:
            shape = shape[int(self.random.integers(len(shape))) :]
        made = np.asarray(values(shape))
        stored = made.astype(dtype) if "int" in dtype else rounded(made, dtype)
        told = stored if "int" in dtype else exact(stored, dtype)
        return self.draw.library.device(stored, dtype), np.broadcast_to(told, lead).reshape(-1, 1)

    def _lines(self, values: Callable[[tuple[int, ...]], Any], dtype: str) -> tuple[Any, Any]:
        """Return an array that is broadcast over x, and its elements of each row."""
        lead, cols, axis = self.draw.lead, self.draw.cols, self.draw.axis
        shape = (*(n if self.random.random() < 0.5 else 1 for n in lead), cols)
        made = np.asarray(values(shape))
        stored = made if dtype == "bool" else rounded(made, dtype)
        told = stored if dtype == "bool" else exact(stored, dtype)
        given = np.ascontiguousarray(np.moveaxis(stored, -1, axis))
        whole = np.broadcast_to(told, (*lead, cols)).reshape(-1, cols)
        return self.draw.library.device(given, dtype), whole

    def _scale(self) -> None:
        known = [0.125, 0.7, 1.0, 8.0, -1.0, -0.3, 0.0]
        if self.random.random() < 0.6:
            value = float(self.random.choice(known))
            self.arguments["scale"] = value
            self.hooks.scale = exact(rounded(value, self.draw.compute), self.draw.compute)
        else:
            self.arguments["scale"], self.hooks.scale = self._rows(
                lambda shape: self.random.choice(known, shape), self.draw.compute
            )

    def _softcap(self) -> None:
        value = float(self.random.choice([0.5, 10.0, 30.0, 300.0, 1e4]))
        self.arguments["softcap"] = value
        self.hooks.softcap = exact(rounded(value, self.draw.compute), self.draw.compute)

    def _bias(self) -> None:
        def values(shape: tuple[int, ...]) -> Any:
            found = self.random.standard_normal(shape) * 3
            found[self.random.random(shape) < 0.2] = -np.inf
            return found

        dtype = str(self.random.choice(FLOATS))
        self.arguments["bias"], self.hooks.bias = self._lines(values, dtype)

    def _mask(self) -> None:
        self.arguments["mask"], self.hooks.mask = self._lines(
            lambda shape: self.random.random(shape) < 0.6, "bool"
        )

    def _lengths(self) -> None:
        cols = self.draw.cols
        known = [0, 1, cols // 2, cols, cols + 3, -1]
        dtype = str(self.random.choice(["int32", "int64"]))
        self.arguments["lengths"], ends = self._rows(
            lambda shape: self.random.choice(known, shape), dtype
        )
        self.hooks.ends = (*self.hooks.ends, ends.astype(np.int64))

    def _causal(self) -> None:
        queries, cols = self.draw.lead[-1], self.draw.cols
        offset = cols - queries
        self.arguments["causal"] = True
        if self.random.random() < 0.6:
            offset = int(self.random.choice([-2, 0, cols // 2, cols]))
            self.arguments["causal_offset"] = offset
        row = np.arange(self.draw.rows)[:, None]
        self.hooks.ends = (*self.hooks.ends, row % queries + offset + 1)

    def _sink(self) -> None:
        dtype = str(self.random.choice(FLOATS))
        known = [0.5, -3.0, 20.0, -np.inf, 4.0]
        self.arguments["sink"], sink = self._rows(
            lambda shape: self.random.choice(known, shape), dtype
        )
        self.hooks.sink = sink[:, 0]

    def _empty_rows(self) -> None:
        self.arguments["empty_rows"], self.hooks.zero = "zero", True

    def _out_scale(self) -> None:
        known = [0.3, 448.0, -1.7, 1.0]
        if self.random.random() < 0.5:
            value = float(self.random.choice(known))
            self.arguments["out_scale"] = value
            self.hooks.out_scale = exact(rounded(value, self.draw.compute), self.draw.compute)
        else:
            self.arguments["out_scale"], self.hooks.out_scale = self._rows(
                lambda shape: self.random.choice(known, shape), self.draw.compute
            )

    def _dropout(self) -> None:
        p = float(self.random.choice([0.1, 0.5, 0.9, 1.0]))
        seed, offset = int(self.random.integers(2**62)), int(self.random.integers(100))
        self.arguments |= {"dropout": p, "seed": seed, "seed_offset": offset}
        k = round(65536 * p)
        times = rounded(65536 / (65536 - k) if k < 65536 else 0.0, self.draw.compute)
        self.hooks.dropout = (k, seed, offset, exact(times, self.draw.compute))


def call(seed: int, number: int, library: Library) -> Drawn:
    """Return call `number` of a seed."""
    random = np.random.default_rng([seed, 2**20, number])
    name = _NAMES[number % len(_NAMES)]
    return _KINDS[name](_Draw(random, library), name)


def _drawn(
    draw: _Draw,
    name: str,
    function: Callable[..., Any],
    arguments: dict[str, Any],
    x: Any,
    others: tuple[Any, ...],
    named: tuple[tuple[str, str], ...],
    told: tuple[Results, Entered],
    hooks: Hooks,
) -> Drawn:
    """Return a call of `function`, whose results have these names and types."""

    def run() -> dict[str, tuple[Stored, str]]:
        try:
            found = function(x, *others, **arguments)
        except (IllegalVariantError, InvalidValueError, NotSupportedError) as error:
            if "variant" not in arguments or _TOO_MANY_STEPS in str(error):
                raise
            # Not every strategy takes every call.
            chosen = {key: value for key, value in arguments.items() if key != "variant"}
            found = function(x, *others, **chosen)
        arrays = found if isinstance(found, tuple) else (found,)
        return {
            result: (draw.back(array) if result in ("y", "dx") else draw.per_row(array), dtype)
            for array, (result, dtype) in zip(arrays, named, strict=True)
        }

    shown = {k: v for k, v in arguments.items() if isinstance(v, str | int | float | bool)}
    arrays = sorted(set(arguments) - set(shown))
    text = (
        f"softgen.{function.__name__} of {draw.dtype} {draw.lead} x {draw.cols} along axis "
        f"{draw.axis}, {shown}, arrays {arrays}{'; ' * bool(draw.words)}{', '.join(draw.words)}"
    )
    results, rows = told
    return Drawn(text, run, results, rows, hooks, draw.compute)


def _out(draw: _Draw, x: Any, arguments: dict[str, Any]) -> None:
    """Write over x, at times."""
    if draw.out_dtype == draw.dtype and draw.random.random() < 0.3:
        arguments["out"] = x


def _x_of(draw: _Draw, name: str) -> tuple[Stored, Any]:
    values = first_input(draw.random, name, draw.rows, draw.cols, draw.dtype)
    stored = rounded(values, draw.dtype)
    return stored, exact(stored, draw.dtype)


def _of_elements(draw: _Draw, name: str) -> Drawn:
    """softmax and log_softmax, logsumexp and entropy: of x and hooks."""
    draw.choose_axis()
    base = name.removesuffix("_lse")
    draw.choose_out(float8=base in ("softmax", "log_softmax"))
    hooked = base != "entropy" or draw.last
    given = _Broadcast(draw, name) if hooked and draw.random.random() < 0.7 else None
    hooks = given.hooks if given else Hooks()
    stored, wide = _x_of(draw, name)
    x = draw.array(stored, draw.dtype)
    arguments = {"axis": draw.axis, "dtype": draw.out_dtype, **draw.options()}
    arguments |= given.arguments if given else {}
    named: list[tuple[str, str]] = [
        ({"logsumexp": "lse", "entropy": "entropy"}.get(base, "y"), draw.out_dtype)
    ]
    if base in ("softmax", "log_softmax"):
        _out(draw, x, arguments)
    if name.endswith("_lse"):
        arguments["return_lse"] = True
        named.append(("lse", draw.compute))
    told = expected(name, wide, {}, hooks, draw.compute)
    function = getattr(softgen, base)
    return _drawn(draw, name, function, arguments, x, (), tuple(named), told, hooks)


def _given(
    draw: _Draw, name: str, wide: Any, hooks: Hooks
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs beside x as they are stored and told, by name."""
    rows = entered(wide, hooks, draw.compute)
    values = function_inputs(draw.random, name, rows, draw.dtype, draw.compute)
    stored: dict[str, Any] = {}
    told: dict[str, Any] = {}
    whole = "int32" if "_i32" in name else "int64"
    for key, value in values.items():
        if key in ("target", "ids"):
            stored[key] = told[key] = np.asarray(value).astype(whole)
        elif key in ("ignore_index", "first"):
            stored[key], told[key] = int(value), np.array([value])
        else:
            dtype = draw.dtype if key == "y" else draw.compute
            stored[key] = np.asarray(rounded(value, dtype))
            told[key] = exact(stored[key], dtype)
    return stored, told


def _of_pairs(draw: _Draw, name: str) -> Drawn:
    """partial and finish."""
    draw.choose_axis()
    if name != "partial":
        draw.choose_out()
    stored, wide = _x_of(draw, name)
    given, told = _given(draw, name, wide, Hooks())
    x = draw.array(stored, draw.dtype)
    arguments: dict[str, Any] = {"axis": draw.axis, **draw.options()}
    others: tuple[Any, ...] = ()
    named: tuple[tuple[str, str], ...] = (("maxima", draw.compute), ("sums", draw.compute))
    if name != "partial":
        arguments |= {"dtype": draw.out_dtype, "log": name == "log_finish"}
        others = tuple(draw.of_rows(given[key], draw.compute) for key in ("maxima", "sums"))
        named = (("y", draw.out_dtype),)
    right = expected(name, wide, told, Hooks(), draw.compute)
    function = softgen.partial if name == "partial" else softgen.finish
    return _drawn(draw, name, function, arguments, x, others, named, right, Hooks())


def _of_ids(draw: _Draw, name: str) -> Drawn:
    """token_log_probs."""
    given_hooks = _Broadcast(draw, name) if draw.random.random() < 0.5 else None
    hooks = given_hooks.hooks if given_hooks else Hooks()
    draw.out_dtype = draw.compute
    count = int(draw.random.choice([1, 1, 3, 16]))
    name = f"{name}{draw.random.choice(['', '_i32'])}{f'_k{count}' if count > 1 else ''}"
    stored, wide = _x_of(draw, name)
    given, told = _given(draw, name, wide, hooks)
    ids = draw.of_rows(given["ids"], given["ids"].dtype.name)
    arguments = {**draw.options(), **(given_hooks.arguments if given_hooks else {})}
    named = [("log_probs", draw.compute)]
    if "_lse" in name or "_entropy" in name:
        arguments["return_lse"] = True
        named.append(("lse", draw.compute))
    if "_entropy" in name:
        arguments["return_entropy"] = True
        named.append(("entropy", draw.compute))
    right = expected(name, wide, told, hooks, draw.compute)
    x = draw.array(stored, draw.dtype)
    return _drawn(
        draw, name, softgen.token_log_probs, arguments, x, (ids,), tuple(named), right, hooks
    )


def _of_targets(draw: _Draw, name: str) -> Drawn:
    """Cross entropy and its gradients, of each row."""
    if name != "cross_entropy":
        draw.choose_out()
    draw_hooks = name == "cross_entropy" and draw.random.random() < 0.5
    given_hooks = _Broadcast(draw, name) if draw_hooks else None
    hooks = given_hooks.hooks if given_hooks else Hooks()
    name = f"{name}{draw.random.choice(['', '_i32'])}"
    stored, wide = _x_of(draw, name)
    given, told = _given(draw, name, wide, hooks)
    x = draw.array(stored, draw.dtype)
    target = draw.of_rows(given["target"], given["target"].dtype.name)
    arguments: dict[str, Any] = {"ignore_index": given["ignore_index"], **draw.options()}
    named: tuple[tuple[str, str], ...] = (("loss", draw.compute), ("lse", draw.compute))
    others: tuple[Any, ...] = (target,)
    if not name.startswith("cross_entropy_backward") and given_hooks is None:
        smoothing = float(draw.random.choice([0.0, 0.0, 0.125, 0.5, 1.0]))
        told["label_smoothing"] = np.asarray(smoothing)
        arguments["label_smoothing"] = smoothing
    if name.startswith("cross_entropy_grad"):
        up = float(told["upstream"])
        if draw.random.random() < 0.4:  # an array of one element, or of one a row
            rows = (draw.rows,) if draw.random.random() < 0.5 else (1,)
            several = np.full(rows, up, draw.compute)
            up = draw.library.device(several, draw.compute)
            up = up if rows == (1,) else draw.of_rows(several, draw.compute)
        others = (target, up)
        arguments["z_loss"] = float(told["z_loss"])
        named = (("dx", draw.out_dtype), *named)
        arguments["dtype"] = draw.out_dtype
        _out(draw, x, arguments)
    elif name.startswith("cross_entropy_backward"):
        one = draw.random.random() < 0.4
        upstream = given["upstream"][:1] if one else given["upstream"]
        told["upstream"] = np.broadcast_to(exact(upstream, draw.compute), (draw.rows,))
        up = draw.library.device(upstream, draw.compute)
        up = up if one else draw.of_rows(upstream, draw.compute)
        others = (target, draw.of_rows(given["lse"], draw.compute), up)
        arguments |= {key: float(told[key]) for key in ("label_smoothing", "z_loss")}
        arguments["dtype"] = draw.out_dtype
        named = (("dx", draw.out_dtype),)
        _out(draw, x, arguments)
    else:
        arguments |= {"z_loss": float(told["z_loss"]), "reduction": "none", "return_lse": True}
        arguments |= given_hooks.arguments if given_hooks else {}
    right = expected(name, wide, told, hooks, draw.compute)
    function = getattr(softgen, name.removesuffix("_i32"))
    return _drawn(draw, name, function, arguments, x, others, named, right, hooks)


def _gradient(draw: _Draw, name: str) -> Drawn:
    """Gradients from results, and from lse."""
    of_ids = name.startswith("token")
    if not of_ids:
        draw.choose_axis()
    draw.choose_out()
    stored, wide = _x_of(draw, name)
    given, told = _given(draw, name, wide, Hooks())
    x = draw.array(stored, draw.dtype)
    arguments: dict[str, Any] = {"dtype": draw.out_dtype, **draw.options()}
    if not of_ids:
        arguments["axis"] = draw.axis
    if "y" in given:
        told["dy"] = wide
        others: tuple[Any, ...] = (draw.array(given["y"], draw.dtype, view=False),)
    else:
        last = ("upstream", "entropy", "entropy_upstream")
        order = ("ids", "lse", *(last if of_ids else last[1::-1]))
        others = tuple(
            draw.of_rows(given[key], "int64" if key == "ids" else draw.compute)
            for key in order
            if key in given
        )
    _out(draw, x, arguments)
    right = expected(name, wide, told, Hooks(), draw.compute)
    function = getattr(softgen, name.removesuffix("_entropy"))
    named = (("dx", draw.out_dtype),)
    return _drawn(draw, name, function, arguments, x, others, named, right, Hooks())


_KINDS: dict[str, Callable[[_Draw, str], Drawn]] = {
    **dict.fromkeys(
        ("softmax", "softmax_lse", "log_softmax", "log_softmax_lse", "logsumexp"), _of_elements
    ),
    **dict.fromkeys(("entropy", "entropy_lse"), _of_elements),
    **dict.fromkeys(("partial", "finish", "log_finish"), _of_pairs),
    **dict.fromkeys(("token_log_probs", "token_log_probs_lse", "token_log_probs_entropy"), _of_ids),
    **dict.fromkeys(("cross_entropy", "cross_entropy_grad", "cross_entropy_backward"), _of_targets),
    **dict.fromkeys(("softmax_backward", "log_softmax_backward"), _gradient),
    **dict.fromkeys(("logsumexp_backward", "entropy_backward"), _gradient),
    **dict.fromkeys(("token_log_probs_backward", "token_log_probs_backward_entropy"), _gradient),
}
_NAMES = (*_KINDS, "softmax", "softmax", "softmax_lse", "log_softmax", "cross_entropy")
