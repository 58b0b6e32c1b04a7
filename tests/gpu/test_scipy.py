"""softgen.scipy on the GPU, against float64 on the host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen import scipy
from tests.helpers.scipy_cases import CUPYX_CASES, KERNEL_CASES, Case

pytestmark = pytest.mark.gpu

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scipy.md"


@pytest.fixture(autouse=True)
def no_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape of its own each, which would be tuned for up to 2 s."""
    monkeypatch.setenv("SOFTGEN_TUNE", "off")


BOUNDS = {"float16": 1e-3, "float32": 2e-6, "float64": 1e-13}


def on_gpu(values: Any) -> Any:
    import cupy

    return cupy.asarray(values)


def exact(name: str, x: Any, axis: Any) -> Any:
    x = np.asarray(x, np.float64)
    top = x.max(axis, keepdims=True)
    lse = top + np.log(np.exp(x - top).sum(axis, keepdims=True))
    if name == "logsumexp":
        return np.squeeze(lse, axis)
    return np.exp(x - lse) if name == "softmax" else x - lse


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1, 2)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool"])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_every_dtype_and_axis(name: str, dtype: str, axis: Any) -> None:
    x = (np.random.default_rng(1).standard_normal((6, 33, 20)) * 4).astype(dtype)
    found = getattr(scipy, name)(on_gpu(x), axis)
    kind = dtype if dtype.startswith("float") else "float64"
    assert found.dtype == kind
    wanted = exact(name, x, axis)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.get().astype("float64"), wanted, BOUNDS[kind], BOUNDS[kind])


def test_logsumexp_of_scipys_pages() -> None:
    """The values are those that SciPy 1.15 documents."""
    a, b = np.arange(10), np.arange(10, 0, -1)
    assert float(scipy.logsumexp(on_gpu(a))) == pytest.approx(9.4586297444267107, rel=1e-14)
    assert float(scipy.logsumexp(on_gpu(a), b=on_gpu(b))) == pytest.approx(9.9170178533034665)
    lse, sign = scipy.logsumexp(on_gpu([1, 2]), b=[1, -1], return_sign=True)
    assert (float(lse), float(sign)) == pytest.approx((1.5413248546129181, -1.0))
    assert np.isnan(float(scipy.logsumexp(on_gpu([1, 2]), b=[1, -1])))


def test_rows_that_are_not_finite() -> None:
    x = on_gpu(np.array([[1.0, 2.0], [-np.inf, -np.inf], [np.nan, 1.0], [np.inf, 1.0]]))
    lse, sign = scipy.logsumexp(x, axis=1, return_sign=True)
    wanted = [2.3132616875182228, -np.inf, np.nan, np.inf]
    np.testing.assert_allclose(lse.get(), wanted, rtol=1e-14)
    np.testing.assert_array_equal(sign.get(), [1, 0, np.nan, 1])
    kept = scipy.logsumexp(x, axis=1, keepdims=True)
    np.testing.assert_array_equal(kept.get(), lse.get()[:, None])
    assert np.isnan(scipy.softmax(x, axis=1).get()[1:]).all()
    assert np.isnan(scipy.log_softmax(x, axis=1).get()[1:]).all()


@pytest.mark.parametrize("case", [*KERNEL_CASES, *CUPYX_CASES], ids=lambda case: case.name)
def test_what_scipys_and_cupyxs_tests_are_about(case: Case) -> None:
    options = {key: on_gpu(each) if key == "b" else each for key, each in case.options.items()}
    found = getattr(scipy, case.name)(on_gpu(case.x), **options)
    found, wanted = (
        (each,) if not isinstance(each, tuple) else each for each in (found, case.wanted)
    )
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.shape == np.shape(theirs)
        np.testing.assert_allclose(ours.get(), theirs, rtol=1e-12, atol=1e-13)


def test_a_number_and_complex_ones() -> None:
    assert float(scipy.softmax(on_gpu(3.0))) == 1
    assert float(scipy.log_softmax(on_gpu(3.0))) == 0
    assert float(scipy.logsumexp(on_gpu(3.0))) == 3
    z = np.array([[1 + 2j, 0.5 - 1j, 3j]])
    wanted = np.log(np.exp(z).sum())
    assert complex(scipy.logsumexp(on_gpu(z))) == pytest.approx(wanted)


def test_the_page_runs_as_written() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, str(PAGE), "exec"), names)
    x = names["x"].get()
    np.testing.assert_allclose(names["p"].get(), exact("softmax", x, 1), 2e-6, 1e-30)
    np.testing.assert_allclose(names["lse"].get(), exact("logsumexp", x, 1), 2e-6)
    assert (names["sign"].get() == -1).all()
    assert float(names["whole"]) == pytest.approx(9.4586297444267107)
