// What is left of losses of rows, and of their gradient: softgen/call/means.py launches these.

namespace {
constexpr int kBlockSize = 1024;
constexpr int kWarps = kBlockSize / 32;
constexpr int kUnroll = 8;  // rows that a thread has on their way

// Of 16 bits, without the toolkit's headers: they take longer to compile than all that is here.
struct Half {
  unsigned short bits;
};
struct Bfloat16 {
  unsigned short bits;
};

__device__ double widened(double value) { return value; }
__device__ float widened(float value) { return value; }
__device__ float widened(Half value) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
  return wide;
}
__device__ float widened(Bfloat16 value) {
  return __uint_as_float(static_cast<unsigned int>(value.bits) << 16);
}

__device__ void round_to(double value, double* to) { *to = value; }
__device__ void round_to(float value, float* to) { *to = value; }
__device__ void round_to(float value, Half* to) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(value));
}
__device__ void round_to(float value, Bfloat16* to) {
  const unsigned int bits = __float_as_uint(value);
  const unsigned int rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;  // ties to even
  to->bits = static_cast<unsigned short>(value == value ? rounded : 0x7fff);
}

// What a thread has of a sum, and of what a mean divides it by.
template <typename Compute>
struct Sums {
  Compute losses, weights;
};

template <typename Compute>
__device__ Sums<Compute> of_warp(Sums<Compute> sums) {
  for (int apart = 16; apart > 0; apart /= 2) {
    sums.losses += __shfl_xor_sync(0xffffffff, sums.losses, apart);
    sums.weights += __shfl_xor_sync(0xffffffff, sums.weights, apart);
  }
  return sums;
}

// The sum of losses, or their mean, and what it was divided by; `of_row` returns the loss of a row,
// and its weight. One block, in one order: the same bits in every run.
template <typename Compute, typename Loss, typename OfRow>
__device__ void reduce(OfRow of_row, Loss* loss, Compute* divisor, int is_mean, long long rows) {
  __shared__ Sums<Compute> of_warps[kWarps];
  Sums<Compute> sums = {0, 0};
  for (long long first = threadIdx.x; first < rows; first += kBlockSize * kUnroll) {
    Sums<Compute> found[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const long long row = first + i * kBlockSize;
      found[i] = row < rows ? of_row(row) : Sums<Compute>{0, 0};
    }
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      sums.losses += found[i].losses;
      sums.weights += found[i].weights;
    }
  }
  const int lane = threadIdx.x % 32;
  sums = of_warp(sums);
  if (lane == 0) of_warps[threadIdx.x / 32] = sums;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sums = of_warp(of_warps[lane]);
  if (lane != 0) return;
  const Compute by = is_mean ? sums.weights : 1;  // of no rows 0 / 0 is NaN
  *divisor = by;
  round_to(sums.losses / by, loss);
}

// A row that is ignored has a loss of 0 and an lse of -inf, and no other row has both.
template <typename Compute>
__device__ bool counts(Compute loss, Compute lse) {
  const Compute none = __int_as_float(0xff800000);
  return lse != none || loss != 0;
}

template <typename Compute, typename Loss>
__device__ void reduce_rows(const Compute* losses, const Compute* lse, Loss* loss, Compute* divisor,
                            int is_mean, long long rows) {
  const auto of_row = [=](long long row) {
    return Sums<Compute>{losses[row], static_cast<Compute>(counts(losses[row], lse[row]))};
  };
  reduce(of_row, loss, divisor, is_mean, rows);
}

// The same of losses times the weight of their class, which `weights` gets, of each row. A target
// that is no class has a loss of NaN.
template <typename Compute, typename Loss>
__device__ void weigh_rows(const Compute* losses, const Compute* lse, const Compute* weight,
                           const void* target, Compute* weights, Loss* loss, Compute* divisor,
                           int is_wide, long long cols, int is_mean, long long rows) {
  const auto of_row = [=](long long row) {
    const long long wanted = is_wide ? static_cast<const long long*>(target)[row]
                                     : static_cast<const int*>(target)[row];
    const long long column = wanted < 0 ? 0 : wanted < cols ? wanted : cols - 1;
    const Compute by = counts(losses[row], lse[row]) ? weight[column] : 0;
    weights[row] = by;
    return Sums<Compute>{losses[row] * by, by};
  };
  reduce(of_row, loss, divisor, is_mean, rows);
}

// The gradient with respect to the loss of each row, from that of what `reduce_rows` made.
template <typename Compute, typename Loss>
__device__ void share(const Loss* upstream, const Compute* divisor, Compute* of_rows) {
  *of_rows = widened(*upstream) / *divisor;
}

// The same where rows have weights.
template <typename Compute, typename Loss>
__device__ void share_weighed(const Loss* upstream, const Compute* divisor, const Compute* weights,
                              Compute* of_rows, long long rows) {
  const Compute by = widened(*upstream) / *divisor;
  const long long first = static_cast<long long>(blockIdx.x) * kBlockSize + threadIdx.x;
  for (long long row = first; row < rows; row += static_cast<long long>(gridDim.x) * kBlockSize) {
    of_rows[row] = by * weights[row];
  }
}

// Values times a number, in their place, which starts at a multiple of 16 bytes. Of 1 nothing is
// read or written: it is what the gradient of a last loss comes with, and the host need not know.
template <typename Compute, typename Value>
__device__ void scale(Value* values, const Compute* factor, long long count) {
  constexpr int kPack = 16 / sizeof(Value);
  struct alignas(16) Pack {
    Value values[kPack];
  };
  const Compute by = *factor;
  if (by == 1) return;
  const long long first = static_cast<long long>(blockIdx.x) * kBlockSize + threadIdx.x;
  const long long threads = static_cast<long long>(gridDim.x) * kBlockSize;
  const long long packs = count / kPack;
  Pack* const whole = reinterpret_cast<Pack*>(values);
  for (long long i = first; i < packs; i += threads) {
    Pack pack = whole[i];
#pragma unroll
    for (int k = 0; k < kPack; ++k) round_to(widened(pack.values[k]) * by, &pack.values[k]);
    whole[i] = pack;
  }
  for (long long i = packs * kPack + first; i < count; i += threads) {
    round_to(widened(values[i]) * by, &values[i]);
  }
}
}  // namespace

// Those of the types that are wanted are named behind this text.
#define KERNELS(TYPES, Compute, Loss)                                                              \
  extern "C" __global__ void __launch_bounds__(kBlockSize)                                         \
      reduce_rows_##TYPES(const Compute* losses, const Compute* lse, Loss* loss, Compute* divisor, \
                          int is_mean, long long rows) {                                           \
    reduce_rows(losses, lse, loss, divisor, is_mean, rows);                                        \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kBlockSize) weigh_rows_##TYPES(                       \
      const Compute* losses, const Compute* lse, const Compute* weight, const void* target,        \
      Compute* weights, Loss* loss, Compute* divisor, int is_wide, long long cols, int is_mean,    \
      long long rows) {                                                                            \
    weigh_rows(losses, lse, weight, target, weights, loss, divisor, is_wide, cols, is_mean, rows); \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kBlockSize)                                         \
      share_weighed_##TYPES(const Loss* upstream, const Compute* divisor, const Compute* weights,  \
                            Compute* of_rows, long long rows) {                                    \
    share_weighed(upstream, divisor, weights, of_rows, rows);                                      \
  }                                                                                                \
  extern "C" __global__ void share_##TYPES(const Loss* upstream, const Compute* divisor,           \
                                           Compute* of_rows) {                                     \
    share(upstream, divisor, of_rows);                                                             \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kBlockSize)                                         \
      scale_##TYPES(Loss* values, const Compute* factor, long long count) {                        \
    scale(values, factor, count);                                                                  \
  }
