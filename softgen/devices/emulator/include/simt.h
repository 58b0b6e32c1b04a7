// What the text of an emitted kernel sees when the host compiler reads it: CUDA's keywords and
// built-in variables. The calls behind them are in ../host, in an object of its own, because this
// side is compiled with -fsanitize=thread and each of its loads and stores calls the emulator.
#pragma once

// And no more of the C++ library: to read <tuple> took as long as to compile a small kernel.
#include <stddef.h>

#include <initializer_list>  // `for (auto each : {a, b})`, which NVRTC knows by itself

#include "simt_interface.h"

#define SOFTGEN_EMULATOR 1
#define __CUDA_ARCH__ 900  // the emulator has what an sm_90 has

#define __global__
// Inlined always: GCC does not instrument the load of a struct that is an argument of a call, nor
// the store of one that a call returns, so a race on shared memory would go unseen.
#define __device__ inline __attribute__((always_inline))
#define __host__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

// Static shared memory goes to one section a kernel (SIMT_SECTION is set before each text), whose
// bounds the linker supplies. `used` keeps the compiler from reasoning that nobody else writes it.
#define __shared__ static __attribute__((used, section(SIMT_SECTION)))

// No kernel writes it.
#define __constant__ static const

// What unit.py puts behind each of them: a variable that is run over would not be noticed else.
#define SIMT_GAP(name)                                                                     \
  static __attribute__((used, section(SIMT_SECTION))) unsigned long long name[simt::kGapWords] = { \
      simt::kGapWord, simt::kGapWord, simt::kGapWord, simt::kGapWord,                      \
      simt::kGapWord, simt::kGapWord, simt::kGapWord, simt::kGapWord}

// Const here, variables in the host object: a fiber always finds the same values, so the compiler
// may keep them, and -fsanitize=thread does not instrument what is const.
extern const uint3 threadIdx;
extern const uint3 blockIdx;
extern const dim3 blockDim;
extern const dim3 gridDim;
constexpr int warpSize = 32;

// Where a kernel calls what stops a thread: reports name it, and a barrier is told by it.
#define SIMT_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace simt {

// `extern __shared__ T name[];` is read as `auto& name = simt::dynamic_shared<T>();`.
template <typename T>
inline auto dynamic_shared() -> T (&)[kMaxDynamicShared / sizeof(T)] {
  return *reinterpret_cast<T(*)[kMaxDynamicShared / sizeof(T)]>(simt_dynamic_shared);
}

template <typename>
constexpr bool kIsPointer = false;
template <typename T>
constexpr bool kIsPointer<T*> = true;

template <typename>
constexpr bool kIsWorkspace = false;
template <>
constexpr bool kIsWorkspace<unsigned char*> = true;

// 0, 1, .. kCount - 1, as the parameters of a type.
template <size_t...>
struct Indices {};
template <size_t kCount, size_t... kIndices>
struct UpTo : UpTo<kCount - 1, kCount - 1, kIndices...> {};
template <size_t... kIndices>
struct UpTo<0, kIndices...> {
  using Type = Indices<kIndices...>;
};

// Turns a kernel into the function of a table's row.
template <auto kKernel>
struct Call;

// Its parameters are its operands, the number of rows, and a workspace if it takes one. An operand
// is an array, or a number that is passed by value and read from an array of one element.
template <typename... Parameters, void (*kKernel)(Parameters...)>
struct Call<kKernel> {
  static constexpr bool kTakesWorkspace = (..., kIsWorkspace<Parameters>);  // the last one's
  static constexpr size_t kArrays = sizeof...(Parameters) - 1 - kTakesWorkspace;

  // Not a kernel's own reads: they are not to be seen as loads of its.
  template <size_t kIndex, typename Parameter>
  __attribute__((no_sanitize("thread"))) static Parameter argument(void* const* arrays, long long rows, unsigned char* workspace) {
    if constexpr (kIndex < kArrays && !kIsPointer<Parameter>) {
      return *static_cast<const Parameter*>(arrays[kIndex]);
    } else if constexpr (kIndex < kArrays) {
      return static_cast<Parameter>(arrays[kIndex]);
    } else if constexpr (kIndex == kArrays) {
      return rows;
    } else {
      return workspace;
    }
  }

  template <size_t... kIndices>
  static void run_with(void* const* arrays, long long rows, unsigned char* workspace,
                       Indices<kIndices...>) {
    kKernel(argument<kIndices, Parameters>(arrays, rows, workspace)...);
  }

  static void run(void* const* arrays, long long rows, unsigned char* workspace) {
    run_with(arrays, rows, workspace, typename UpTo<sizeof...(Parameters)>::Type());
  }
};

}  // namespace simt

inline void __syncthreads(SIMT_SITE) { simt::simt_syncthreads(file, line); }

// A spin is known by its volatile reads, so a pause in it has nothing to add.
inline void __nanosleep(unsigned) {}

inline void __threadfence() {}
inline void __threadfence_block() {}

#include "simt_atomic.h"
#include "simt_math.h"
#include "simt_memory.h"
#include "simt_ptx.h"
#include "simt_warp.h"
