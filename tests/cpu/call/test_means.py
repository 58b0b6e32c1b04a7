"""The kernels of means.py: they compile for every architecture, and run on fibers of the host."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgen.call.means import BLOCK_SIZE, losses_of
from softgen.devices.emulator.compiler import PACKAGE
from softgen.devices.gpu.compile import _nvrtc
from softgen.problems.arch import KNOWN
from softgen.problems.dtypes import DType
from softgen.problems.numerics import decode, encode
from softgen.source.render import COMPILE_OPTIONS
from tests.helpers.kept_builds import build_library

# A block whose threads are the emulator's fibers: shuffles and barriers wait for each other as on a
# GPU. As threads of the host a launch took 0.4 s, and takes 1 ms.
HOST = """
#include <cstdlib>
#include <cstring>
#include "fiber.h"
struct Index { unsigned int x; };
struct Barrier { unsigned int size, missing, phase; };
static Index threadIdx, blockIdx, gridDim;
static simt::Context scheduler, threads[SIZE];
static bool returned[SIZE];
static simt::Stacks stacks;
static Barrier of_block, of_warps[SIZE / 32];
static char slots[SIZE][8];
static void give_way() { simt::simt_switch(&threads[threadIdx.x], scheduler); }
static void wait_at(Barrier& barrier) {
  const unsigned int phase = barrier.phase;
  if (--barrier.missing == 0) {
    barrier.missing = barrier.size;
    ++barrier.phase;
  }
  while (barrier.phase == phase) give_way();
}
template <typename To, typename From> To bits(From value) {
  To made;
  std::memcpy(&made, &value, sizeof made);
  return made;
}
static float __int_as_float(int value) { return bits<float>(value); }
static float __uint_as_float(unsigned int value) { return bits<float>(value); }
static unsigned int __float_as_uint(float value) { return bits<unsigned int>(value); }
static void __syncthreads() { wait_at(of_block); }
template <typename T> T __shfl_xor_sync(unsigned int, T value, int apart) {
  const unsigned int me = threadIdx.x;
  std::memcpy(slots[me], &value, sizeof value);
  wait_at(of_warps[me / 32]);
  T other;
  std::memcpy(&other, slots[me ^ apart], sizeof other);
  wait_at(of_warps[me / 32]);
  return other;
}
template <typename Kernel> void launch(Kernel kernel) {
  static Kernel* body;
  body = &kernel;
  of_block = {SIZE, SIZE, 0};
  for (auto& warp : of_warps) warp = {32, 32, 0};
  for (unsigned int i = 0; i < SIZE; ++i) {
    returned[i] = false;
    simt::prepare(&threads[i], stacks.top(i), [] {
      (*body)();
      returned[threadIdx.x] = true;
      give_way();
    });
  }
  for (bool any = true; any;) {
    any = false;
    for (unsigned int i = 0; i < SIZE; ++i) {
      if (returned[i]) continue;
      threadIdx.x = i;
      simt::simt_switch(&scheduler, threads[i]);
      any = true;
    }
  }
}
#define __global__
#define __device__ static
#define __shared__ static
#define __launch_bounds__(size)
#define asm(...) std::abort()  // conversions of float16
"""
CALLS = """
extern "C" void reduce(void* a, void* b, void* c, void* d, int is_mean, long long rows) {
  launch([=] { reduce_rows_TYPE((COMPUTE*)a, (COMPUTE*)b, (LOSS*)c, (COMPUTE*)d, is_mean, rows); });
}
extern "C" void weigh(void* a, void* b, void* c, void* d, void* e, void* f, void* g, int wide,
                      long long cols, int is_mean, long long rows) {
  launch([=] {
    weigh_rows_TYPE((COMPUTE*)a, (COMPUTE*)b, (COMPUTE*)c, d, (COMPUTE*)e, (LOSS*)f, (COMPUTE*)g,
                    wide, cols, is_mean, rows);
  });
}
extern "C" void share_weighed(void* a, void* b, void* c, void* d, long long rows, int blocks) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    launch([=] { share_weighed_TYPE((LOSS*)a, (COMPUTE*)b, (COMPUTE*)c, (COMPUTE*)d, rows); });
}
extern "C" void share(void* a, void* b, void* c) {
  share_TYPE((LOSS*)a, (COMPUTE*)b, (COMPUTE*)c);
}
extern "C" void scale(void* a, void* b, long long count, int blocks) {
  gridDim.x = blocks;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    launch([=] { scale_TYPE((LOSS*)a, (COMPUTE*)b, count); });
}
"""


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("arch", list(KNOWN))
def test_they_compile_everywhere(dtype: DType, arch: str) -> None:
    nvrtc = _nvrtc()
    program = nvrtc.createProgram(losses_of(dtype).text, "losses.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={arch}", *COMPILE_OPTIONS))
        code = nvrtc.getCUBIN(program)
    finally:
        nvrtc.destroyProgram(program)
    for name in ("reduce_rows", "weigh_rows", "share", "share_weighed", "scale"):
        assert f"{name}_{dtype.short}".encode() in code


@pytest.fixture(
    scope="module", params=[DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64], ids=lambda d: d.short
)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a type, and the library that has its kernels for this host."""
    dtype: DType = request.param
    folder: Path = tmp_path_factory.mktemp("means")
    compute = "double" if dtype is DType.FLOAT64 else "float"
    loss = "Bfloat16" if dtype is DType.BFLOAT16 else compute
    calls = CALLS.replace("TYPE", dtype.short).replace("COMPUTE", compute).replace("LOSS", loss)
    text = HOST.replace("SIZE", str(BLOCK_SIZE)) + losses_of(dtype).text + calls
    (folder / "means.cpp").write_text(text)
    fibers = f"-I{PACKAGE / 'host'}"
    flags = ("-std=c++17", "-O1", "-w", "-fPIC", "-shared", fibers)
    build_library([*flags, folder / "means.cpp"], folder, folder / "means.so")
    return dtype, ctypes.CDLL(str(folder / "means.so"))


def run(kernels: Any, name: str, *values: Any) -> list[Any]:
    """Call a kernel on arrays, which it may change, and numbers; return all of them."""
    arrays = [np.ascontiguousarray(v) if isinstance(v, np.ndarray) else v for v in values]
    words = [
        ctypes.c_void_p(v.ctypes.data) if isinstance(v, np.ndarray) else ctypes.c_longlong(v)
        for v in arrays
    ]
    getattr(kernels[1], name)(*words)
    return arrays


@pytest.mark.parametrize("rows", [1, 2, 32, 1023, 1025, 8 * BLOCK_SIZE + 1, 20000])
@pytest.mark.parametrize("is_mean", [0, 1])
def test_a_sum_and_a_mean_of_the_rows_that_count(kernels: Any, rows: int, is_mean: int) -> None:
    dtype, _ = kernels
    wide = "float64" if dtype is DType.FLOAT64 else "float32"
    drawn = np.random.default_rng(rows)
    counts = drawn.random(rows) < 0.75
    counts[0] = True
    losses = np.where(counts, drawn.random(rows) * 9, 0).astype(wide)
    lse = np.where(counts, drawn.standard_normal(rows), -np.inf).astype(wide)
    wanted = losses.astype("float64").sum() / (counts.sum() if is_mean else 1)
    made, divisor = encode(np.zeros(1), dtype), np.zeros(1, wide)
    for _ in range(2):
        *_, loss, by, _, _ = run(kernels, "reduce", losses, lse, made, divisor, is_mean, rows)
        assert by == (counts.sum() if is_mean else 1)
        if dtype is DType.BFLOAT16:
            near = encode(np.array([wanted]), dtype)
            assert abs(int(loss[0]) - int(near[0])) <= 1  # the sum is rounded before
        else:
            assert abs(loss[0] - wanted) <= abs(wanted) * (1e-14 if wide == "float64" else 1e-6)


@pytest.mark.parametrize("rows", [1, 33, 8 * BLOCK_SIZE + 1])
@pytest.mark.parametrize("is_mean", [0, 1])
@pytest.mark.parametrize("ids", ["int32", "int64"])
def test_rows_with_weights(kernels: Any, rows: int, is_mean: int, ids: str) -> None:
    dtype, _ = kernels
    wide = "float64" if dtype is DType.FLOAT64 else "float32"
    drawn, cols = np.random.default_rng(rows), 7
    counts = drawn.random(rows) < 0.75
    counts[0] = True
    losses = np.where(counts, drawn.random(rows) * 9, 0).astype(wide)
    lse = np.where(counts, drawn.standard_normal(rows), -np.inf).astype(wide)
    weight = (drawn.random(cols) + 0.5).astype(wide)
    target = np.where(counts, drawn.integers(0, cols, rows), -100).astype(ids)
    of_rows = np.where(counts, weight[np.clip(target, 0, cols - 1)], 0)
    by = of_rows.astype("float64").sum() if is_mean else 1
    wanted = (losses.astype("float64") * of_rows).sum() / by
    made, divisor, weights = encode(np.zeros(1), dtype), np.zeros(1, wide), np.full(rows, 9, wide)
    given = (losses, lse, weight, target, weights, made, divisor)
    numbers = (int(ids == "int64"), cols, is_mean, rows)
    *_, weights, loss, divisor, _, _, _, _ = run(kernels, "weigh", *given, *numbers)
    assert (weights == of_rows).all()
    near = {DType.BFLOAT16: 2**-8, DType.FLOAT32: 1e-6, DType.FLOAT64: 1e-14}[dtype]
    assert abs(divisor[0] - by) <= 1e-6 * by
    assert abs(float(decode(loss, dtype)[0]) - wanted) <= near * wanted
    upstream, shares = encode(np.array([1.5]), dtype), np.zeros(rows + 1, wide)
    *_, shares, _, _ = run(
        kernels, "share_weighed", upstream, divisor, weights, shares, rows, 1 + rows // 5000
    )
    assert (shares[:rows] == np.array([1.5], wide) / divisor * weights).all()
    assert shares[rows] == 0


def test_a_target_that_is_no_class_has_a_loss_that_is_none(kernels: Any) -> None:
    dtype, _ = kernels
    wide = "float64" if dtype is DType.FLOAT64 else "float32"
    target, lse = np.array([-1, 9]), np.zeros(2, wide)
    losses, weight = np.array([np.nan, 1], wide), np.array([2, 3], wide)
    results = (np.zeros(2, wide), encode(np.zeros(1), dtype), np.zeros(1, wide))
    found = run(kernels, "weigh", losses, lse, weight, target, *results, 1, 2, 1, 2)
    assert (found[4] == [2, 3]).all()
    assert np.isnan(float(decode(found[5], dtype)[0]))


def test_a_row_of_minus_infinity_counts_and_no_rows_have_no_mean(kernels: Any) -> None:
    dtype, _ = kernels
    wide = "float64" if dtype is DType.FLOAT64 else "float32"
    made, divisor = encode(np.zeros(1), dtype), np.zeros(1, wide)
    losses, lse = np.array([0, np.nan, 1], wide), np.array([-np.inf, -np.inf, 2], wide)
    *_, by, _, _ = run(kernels, "reduce", losses, lse, made, divisor, 1, 3)
    assert by == 2
    ignored = np.full(3, -np.inf, wide)
    *_, loss, by, _, _ = run(kernels, "reduce", losses * 0, ignored[:1], made, divisor, 1, 1)
    assert by == 0
    nan = np.array([loss[0]], "uint16").astype("uint32") << 16 if loss.dtype == "uint16" else loss
    assert np.isnan(nan.view("float32") if nan.dtype == "uint32" else nan).all()


def test_a_share_is_the_quotient(kernels: Any) -> None:
    dtype, _ = kernels
    wide = "float64" if dtype is DType.FLOAT64 else "float32"
    upstream, divisor = encode(np.array([1.5]), dtype), np.array([7], wide)
    *_, share = run(kernels, "share", upstream, divisor, np.zeros(1, wide))
    assert share == np.array([1.5], wide) / 7


@pytest.mark.parametrize("count", [0, 1, 7, 8, 4099, 70001])
@pytest.mark.parametrize("blocks", [1, 3])
def test_values_are_scaled_where_they_are(kernels: Any, count: int, blocks: int) -> None:
    dtype, _ = kernels
    wide = "float64" if dtype is DType.FLOAT64 else "float32"
    drawn = np.random.default_rng(count).standard_normal(count + 9)
    memory = np.zeros(count + 32, encode(drawn, dtype).dtype)
    start = -memory.ctypes.data % 16 // memory.itemsize  # of 16 bytes
    values = memory[start : start + count + 9]
    values[:] = before = encode(drawn, dtype)
    run(kernels, "scale", values, np.array([1], wide), count, blocks)
    assert (values == before).all()
    run(kernels, "scale", values, np.array([0.3], wide), count, blocks)
    factor = np.array([0.3], wide).astype("float64")[0]
    exact = np.asarray(decode(before[:count], dtype), "float64") * factor
    found = np.asarray(decode(values[:count], dtype), "float64")
    near = {DType.BFLOAT16: 2**-8, DType.FLOAT32: 2**-23, DType.FLOAT64: 2**-52}[dtype]
    assert (abs(found - exact) <= near * abs(exact)).all()
    assert (values[count:] == before[count:]).all()


def test_one_is_not_even_read(kernels: Any) -> None:
    """What is there may be NaN, with a payload, and stays as it is."""
    wide = "float64" if kernels[0] is DType.FLOAT64 else "float32"
    run(kernels, "scale", np.zeros(0), np.array([1], wide), 1 << 40, 1)
