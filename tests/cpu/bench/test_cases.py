"""Calls that are more than rows: what is allocated, given, computed and moved for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import softgen
from softgen.bench import check
from softgen.bench.buffers import SharedBuffers
from softgen.bench.cases import HOOKED, VIEWS, Exact
from softgen.bench.peers import Entrant, Peer
from softgen.bench.race import Race, Settings
from softgen.bench.record import Finding, Status, read_csv, records_of, to_csv
from softgen.bench.roster import all_peers, named_peers, peers_for
from softgen.bench.shape import Case, Shape
from softgen.bench.suites import SUITES, shapes_of
from softgen.call.cupy_library import CupyLibrary
from softgen.call.hooks import chosen
from softgen.errors import InvalidValueError
from softgen.problems.dtypes import DType
from softgen.problems.exact import exact_results
from softgen.problems.functions.base import Function
from softgen.problems.functions.softmax import SOFTMAX
from softgen.problems.problem import Problem
from tests.cpu.bench.test_bench import HERE, on_the_host
from tests.helpers.cli_helpers import ok
from tests.helpers.cupy_calls import CupyArray, on_cupy

__all__ = ["on_the_host"]  # a fixture

F32 = DType.FLOAT32
SCORES = (2, 3, 8, 16)


def of(case: Case, dtype: DType = F32, function: str = "softmax") -> Shape:
    return Shape.of("custom", dtype, case, Function.of(function))


@pytest.fixture
def make(on_the_host: object) -> Callable[..., SharedBuffers]:
    """Return what makes buffers of a case in the host's memory."""
    return lambda case, dtype=F32, function="softmax": SharedBuffers(of(case, dtype, function))


@pytest.mark.parametrize("hook", HOOKED)
def test_the_exact_results_of_a_hook_are_those_of_its_kernel(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cupy(monkeypatch)
    library = CupyLibrary()
    given = dict(HOOKED[hook].given(SCORES))
    if hook == "scale of rows":  # of the type of the arithmetic, which is float64 here
        given["scale"] = given["scale"].astype("float64")
    x = np.random.default_rng(0).standard_normal(SCORES)
    x[1, 2, 3] = -np.inf  # an empty row
    names, values = chosen(
        SOFTMAX, x, None, given, lambda x, _name="": (library, x.view(CupyArray))
    )
    problem = Problem.of("softmax", "float64", 16, hooks=names)
    wide = [np.asarray(value) for value in values]
    (wanted,) = exact_results(problem, [x.reshape(-1, 16), *wide], wide=False)
    rows = np.unravel_index(np.arange(48), SCORES[:-1])
    exact = Exact(SOFTMAX, SCORES, given)
    with np.errstate(invalid="ignore"):
        found = exact.of(x.reshape(-1, 16), rows, wanted)
        part = tuple(places[5:9] for places in rows)
        again = exact.of(x.reshape(-1, 16)[5:9], part, wanted[5:9])
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-16)
    assert bool((again == found[5:9]).all()) or "dropout" in hook  # whose share is of a few


def test_too_many_dropped_elements_are_wrong() -> None:
    x = np.zeros((48, 16))
    rows = np.unravel_index(np.arange(48), SCORES[:-1])
    exact = Exact(SOFTMAX, SCORES, HOOKED["dropout"].given(SCORES))
    found = np.full((48, 16), 1 / 16 / 0.875)
    found.flat[:96] = 0
    assert np.allclose(exact.of(x, rows, found), found)
    found.flat[:160] = 0
    assert np.isnan(exact.of(x, rows, found)).any()


def computing(case: Case, function: str, spoil: Callable[[Any], None]) -> Peer:
    """Return a peer that computes in float64 by the axis of a case, then has its result changed."""

    def prepare(buffers: SharedBuffers) -> Entrant:
        def launch(i: int) -> None:
            x = np.moveaxis(buffers.x[i].astype("float64"), case.axis, -1)
            (y,) = Function.of(function).reference(x.reshape(-1, case.cols))
            spread = y.reshape(*x.shape[:-1], *y.shape[1:])
            buffers.y[i][...] = np.moveaxis(spread, -1, case.axis) if y.ndim == 2 else spread
            spoil(buffers.y[i])

        return Entrant(launch)

    return Peer("one", prepare, cases=True)


CASES = (
    Case((3, 5, 7), axis=2),
    Case((3, 5, 7), axis=1),
    Case((6, 5), axis=0),
    Case((2, 3, 4, 16), view="x[:, 1]"),
    Case((2, 3, 4, 16), view="x.swapaxes(0, 1)"),
)


@pytest.mark.parametrize("function", ["softmax", "logsumexp"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_element_of_a_case_is_checked(
    case: Case, function: str, make: Callable[..., SharedBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHUNK", 4 * case.cols)
    buffers = make(case, function=function)
    assert buffers.x[0].shape == case.x_shape
    assert np.shares_memory(buffers.x[0], buffers.allocated.owners[0])

    def seen(spoil: Callable[[Any], None]) -> Finding:
        race = Race(buffers, Settings(), {})
        race.admit(computing(case, function, spoil))
        return race.findings()[1]

    right = seen(lambda y: None)
    assert right.status is Status.TIMED, right
    for place in np.ndindex(buffers.y[0].shape):

        def spoil(y: Any, place: tuple[int, ...] = place) -> None:
            y[place] += 0.01

        assert seen(spoil).status is Status.WRONG, place


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_of_the_array_that_is_allocated(name: str) -> None:
    (shape,) = (each for each in shapes_of(["views"]) if each.case and each.case.view == name)
    assert shape.case is not None
    rows, cols = shape.allocated
    assert rows * cols == np.prod(shape.case.shape)
    assert shape.rows * shape.cols == np.prod(shape.case.x_shape)
    assert shape.cols == shape.case.x_shape[-1]
    assert shape.moved_bytes == 2 * shape.rows * shape.cols * 4
    base = np.empty(shape.case.shape, np.int8)
    view = VIEWS[name](base)
    assert np.shares_memory(view, base)
    assert not view.flags.c_contiguous
    assert view.strides[-1] == 1


def test_a_contiguous_array_stands_beside_a_view(make: Callable[..., SharedBuffers]) -> None:
    buffers = make(Case((2, 3, 4, 16), view="x[:, 1]"))
    assert buffers.contiguous_x[1].shape == buffers.x[1].shape == (2, 4, 16)
    assert buffers.contiguous_x[1].flags.c_contiguous
    assert np.shares_memory(buffers.contiguous_x[1], buffers.allocated.owners[2])
    assert buffers.bytes == buffers.y[0].nbytes == 2 * 4 * 16 * 4


def test_a_view_cannot_be_chained(make: Callable[..., SharedBuffers]) -> None:
    with pytest.raises(InvalidValueError, match="launches of a view cannot be chained"):
        SharedBuffers(of(Case((2, 3, 4, 16), view="x[:, 1]")), chained=True)


@pytest.mark.parametrize("peer", ["softgen", "softgen-untuned"])
def test_a_hook_is_a_call_on_the_arrays_of_the_buffers(
    peer: str, make: Callable[..., SharedBuffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = make(Case(SCORES, hook="bias of keys, scaled"), DType.BFLOAT16)
    called: list[Any] = []
    monkeypatch.setattr(softgen, "softmax", lambda *args, **kwargs: called.append((args, kwargs)))
    entrant = all_peers()[peer].prepare(buffers)
    assert isinstance(entrant, Entrant)
    entrant.launch(3)
    ((args, options),) = called
    assert args == (buffers.x[1], -1)
    assert options["out"] is buffers.y[1]
    assert options["scale"] == 0.125
    assert options["bias"].shape == (2, 1, 1, 16)
    assert options["tune"] == ("off" if peer == "softgen-untuned" else None)
    # The limit moves the bias as well.
    assert buffers.swept_bytes == buffers.bytes + 2 * 16 * 2 // 2
    assert buffers.shape.moved_bytes == 2 * buffers.bytes + 2 * 16 * 2


def test_the_limit_of_a_gradient_joins_its_two_inputs(make: Callable[..., SharedBuffers]) -> None:
    buffers = make(Case((6, 16)), function="softmax_backward")
    (found,) = Race(buffers, Settings(), {}).findings()
    assert found.note.startswith("join u")
    assert buffers.swept == list(buffers.allocated.arguments)
    plain = make(Case((6, 5), axis=0))
    assert plain.swept == list(plain.allocated.arguments)


def test_a_gradient_is_judged_by_the_size_of_what_cancels_in_it(
    make: Callable[..., SharedBuffers],
) -> None:
    buffers = make(Case((6, 16)), function="softmax_backward")
    dy, y, dx = buffers.sets[0]
    y /= y.sum(axis=1, keepdims=True)
    dy[...] = 100 + dy / 1e3  # the sum is nearly each of them
    (exact,) = buffers.problem.function.reference(dy.astype("float64"), y.astype("float64"))
    dx[...] = exact + 1e-5 * y
    assert (abs(dx - exact) / abs(exact)).max() > 1e-3
    assert check.furthest(buffers.problem, buffers.sets[0]).error < 1e-6
    dx[...] = exact + 0.1 * y
    assert check.furthest(buffers.problem, buffers.sets[0]).error > 1e-4


def test_suites_of_calls_have_their_own_peers() -> None:
    usual = ["softgen", "softgen-untuned", "torch", "torch.compile"]
    for suite in ("axes", "hooks", "views", "backward", "losses"):
        shape = SUITES[suite].shapes()[0]
        names = [peer.name for peer in peers_for(shape, None)]
        # The contiguous width is tuned first, and a view takes its setting.
        more = {
            "views": ["softgen-contiguous", "softgen", *usual[2:]],
            "backward": [*usual, "quack"],
            "losses": [*usual, "quack"],
        }
        assert names == more.get(suite, usual)
        assert not any(peer.lacking(shape) for peer in named_peers(names))
    axis = SUITES["axes"].shapes()[0]
    lacking = {peer.name for peer in all_peers().values() if peer.lacking(axis)}
    assert lacking == {"oneflow", "triton", "cupyx", "quack", "liger", "flashinfer"}


def test_a_record_tells_its_case_and_is_a_contest_of_its_own(tmp_path: Path) -> None:
    found = [Finding("limit", Status.TIMED, 2.0), Finding("softgen", Status.TIMED, 3.0)]
    cases = [Case((2, 16), axis=0), Case((1, 16, 2), axis=1), Case(SCORES, hook="causal, scaled")]
    records = [record for case in cases for record in records_of(of(case), found, HERE)]
    assert [record.case for record in records[::2]] == [
        *("axis 0 of 2 x 16", "axis 1 of 1 x 16 x 2", "causal, scaled, 2 x 3 x 8 x 16"),
    ]
    assert len({record.contest for record in records}) == 3
    path = tmp_path / "cases.csv"
    path.write_text(to_csv(records))
    assert read_csv(path) == records
    lines = ok("bench", "--from", path).stdout.splitlines()
    assert any("axis 1 of 1 x 16 x 2" in line and "1.50" in line for line in lines), lines


def test_torch_is_called_along_the_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    called: list[object] = []
    torch = SimpleNamespace(softmax=lambda x, dim, out: called.append((x, dim, out)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    buffers: Any = SimpleNamespace(shape=of(Case((3, 5, 7), axis=1)), torch_y=["y"], pairs=1)
    buffers.torch_inputs, buffers.torch_given = [("x",)], {}
    entrant = all_peers()["torch"].prepare(buffers)
    assert isinstance(entrant, Entrant)
    entrant.launch(0)
    assert called == [("x", 1, "y")]


def test_no_view_is_so_small_that_it_stays_in_l2() -> None:
    for shape in shapes_of(["views"]):
        assert shape.moved_bytes >= 64e6, shape.label


def test_of_a_loss_alone_only_the_loss_is_looked_at(make: Callable[..., SharedBuffers]) -> None:
    buffers = make(Case((6, 16)), function="cross_entropy")

    def found(first_alone: bool, off: float) -> Finding:
        def launch(i: int) -> None:
            x, target = (each.astype("float64") for each in buffers.sets[i][:2])
            of_target = x[np.arange(6), target.astype(int)]
            buffers.y[i][...] = np.log(np.exp(x).sum(axis=1)) - of_target + off

        race = Race(buffers, Settings(), {})
        entrant = Entrant(launch, first_alone=first_alone)
        race.admit(Peer("one", lambda buffers: entrant, cases=True))
        return race.findings()[1]

    assert found(True, 0.0).status is Status.TIMED
    assert found(True, 0.01).note.startswith("loss is off by")
    assert found(False, 0.0).note.startswith("lse is off by")
