"""How far a kernel may be off before the tuner's gate objects: its comparison on this host."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from softgen.problems.arch import arch_named
from softgen.problems.dtypes import DType
from softgen.problems.problem import Problem
from softgen.problems.storage import numpy_dtype
from softgen.source.render import environment
from softgen.strategies.safe import Safe
from softgen.strategies.variants import Variant
from softgen.tuning import gate
from softgen.tuning.gate import Gate
from softgen.tuning.measure import Buffers
from tests.helpers.driver import FakeKernel
from tests.helpers.kept_builds import build_library

ROWS, COLS = 3, 40
STUB = Path(__file__).parents[2] / "helpers" / "cuda_stub"
# One thread, which compares all.
HOST = """
#include <cmath>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define __global__
#define __device__ static
struct { unsigned int x; } blockIdx, threadIdx, blockDim{1}, gridDim{1};
static void atomicAdd(unsigned long long* count, unsigned long long more) { *count += more; }
static float __half2float(__half value) {
  const int exponent = value.bits >> 10 & 31, digits = value.bits & 1023;
  if (exponent == 31) return digits ? NAN : value.bits >> 15 ? -INFINITY : INFINITY;
  const float size = std::ldexp(exponent ? 1024 + digits : digits, exponent ? exponent - 25 : -24);
  return value.bits >> 15 ? -size : size;
}
static float __bfloat162float(__nv_bfloat16 value) {
  const unsigned int bits = value.bits << 16;
  float made;
  std::memcpy(&made, &bits, 4);
  return made;
}
"""
Change = Callable[[Any], None]


class Memory:
    """Bytes of this host for those of a device."""

    def __init__(self, size: int) -> None:
        self.bytes, self.nbytes = np.zeros(size, "uint8"), size
        self.data = SimpleNamespace(ptr=self.bytes.ctypes.data)

    def get(self) -> Any:
        return self.bytes.view("uint64")


class Changed(FakeKernel):
    """A kernel one of whose results, a row a line, is changed, or that leaves some as it was."""

    def __init__(self, problem: Problem, change: Change, left: Any = (), result: int = 0) -> None:
        super().__init__(problem, variant=Variant(problem, Safe(128)))
        self.change, self.left, self.result = change, left, result

    def launch(self, arguments: Sequence[int], rows: int, stream: int) -> None:
        given = dict(zip((each.name for each in self.problem.operands), arguments, strict=True))
        memory = self.memory(self.problem.results[self.result], given, rows)
        before = memory[self.left].copy()
        super().launch(arguments, rows, stream)
        self.change(memory)
        if self.left:
            memory[self.left] = before


@pytest.fixture
def compared(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., str | None]:
    """Return what says what the gate of a function and a type has against a kernel."""
    runtime = SimpleNamespace(
        getDevice=lambda: 0,
        memsetAsync=lambda address, value, size, stream: ctypes.memset(address, value, size),
    )
    cuda = SimpleNamespace(runtime=runtime, get_current_stream=lambda: SimpleNamespace(ptr=0))
    cupy = SimpleNamespace(cuda=cuda, zeros=lambda count, kind: Memory(8 * count))

    @functools.cache
    def compare_kernel(dtype: DType, device: int) -> Callable[..., None]:
        text = environment().get_template("tools/compare.cu.j2").render(dtype=dtype)
        (tmp_path / "compare.cpp").write_text(HOST + text)
        flags = ["-std=c++17", "-O1", "-w", "-fPIC", "-shared", f"-I{STUB}"]
        built = tmp_path / f"compare_{dtype.short}.so"
        build_library([*flags, tmp_path / "compare.cpp"], tmp_path, built)
        compare = ctypes.CDLL(str(built)).compare

        def launch(grid: object, block: object, given: tuple[Any, ...]) -> None:
            kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)
            words = [kind(word) for kind, word in zip(kinds, given, strict=False)]
            bounds = map(ctypes.c_double, given[3:5])
            compare(*words, *bounds, ctypes.c_void_p(given[5].data.ptr))

        return launch

    monkeypatch.setattr(gate, "require_device", lambda: cupy)
    monkeypatch.setattr(gate, "arch_of", lambda device: arch_named("sm_90"))
    monkeypatch.setattr(gate, "memory", Memory)
    monkeypatch.setattr(gate, "_compare_kernel", compare_kernel)
    monkeypatch.setattr(gate, "compile_source", lambda source: FakeKernel(source.variant.problem))

    def objection(
        function: str, dtype: DType, change: Change, left: Any = (), result: int = 0
    ) -> str | None:
        problem = Problem.of(function, dtype, COLS)
        x = np.random.default_rng(0).standard_normal((ROWS, COLS))
        # A row whose softmax is 1, below 1e-30 (in float64 1e-300), and little elsewhere.
        x[1, :2] = 45, -660 if dtype is DType.FLOAT64 else -30
        x = x.astype(numpy_dtype(dtype))
        numbers = [operand.word(1) for operand in problem.inputs[1:]]
        results = [np.zeros(o.shape(ROWS, COLS), numpy_dtype(o.dtype)) for o in problem.results]
        words = (x.ctypes.data, *numbers, *(each.ctypes.data for each in results))
        which = tuple(range(len(problem.inputs), len(problem.operands)))
        one = Gate(problem, Buffers(ROWS, (words,), which, (), None))
        right: Any = Changed(problem, lambda y: None)
        wrong: Any = Changed(problem, change, left, result)
        assert one.objection(right) is None  # and what it wrote is still there
        return one.objection(wrong)

    return objection


def off(by: float) -> Change:
    """Return what makes a result larger by a share of itself."""

    def change(y: Any) -> None:
        y[2, 7] = y[2, 7] * (1 + by)

    return change


def tiny(value: float) -> Change:
    """Return what writes another number for the tiniest result."""

    def change(y: Any) -> None:
        y[1, 1] = value

    return change


def near_0(value: float) -> Change:
    """Return what writes another number for the logarithm of almost 1."""

    def change(y: Any) -> None:
        y[1, 0] = value

    return change


@pytest.mark.parametrize(
    ("function", "dtype", "change", "near", "far"),
    [
        ("softmax", "float32", off, 3.9e-6, 4.2e-6),
        ("softmax", "float64", off, 2.9e-14, 3.2e-14),
        ("softmax", "bfloat16", off, 2.0**-7, 2.0**-5),
        ("softmax", "float16", off, 2.0**-9, 2.0**-6),
        ("log_softmax", "float32", off, -3.9e-6, 1.1e-5),
        ("softmax", "float16", tiny, 0.99 * 2.0**-14, 1.01 * 2.0**-14),
        ("softmax", "float32", tiny, 9e-31, 1.1e-30),
        ("softmax", "float64", tiny, 9e-301, 1.1e-300),
        ("log_softmax", "float32", near_0, -3.9e-6, -4.1e-6),
        ("log_softmax", "float64", near_0, -2.9e-14, -3.2e-14),
    ],
)
def test_how_far_a_result_may_be_off(
    compared: Callable[..., str | None],
    function: str,
    dtype: str,
    change: Callable[[float], Change],
    near: float,
    far: float,
) -> None:
    """By the gate's tolerances: their sum counts, of a logarithm's own size and absolute."""
    kind = DType.of(dtype)
    assert compared(function, kind, change(near)) is None
    told = f"1 of {ROWS * COLS} results differ from the safe kernel's"
    assert compared(function, kind, change(far)) == told


def test_integers_are_right_or_wrong(compared: Callable[..., str | None]) -> None:
    """The number of a column that is next to the right one is as wrong as any other."""

    def next_to_it(ids: Any) -> None:
        ids[2, 3] += 1

    told = f"1 of {ROWS * 6} results differ from the safe kernel's"
    assert compared("topk_softmax_k6", DType.FLOAT32, next_to_it, result=1) == told


@pytest.mark.parametrize(("function", "left"), [("softmax", (2, 7)), ("log_softmax", (1, 0))])
def test_what_is_not_written_is_seen(
    compared: Callable[..., str | None], function: str, left: tuple[int, int]
) -> None:
    """What another kernel wrote there is right; the second one is almost 0."""
    told = f"1 of {ROWS * COLS} results differ from the safe kernel's"
    assert compared(function, DType.FLOAT32, lambda y: None, left) == told
