// CUDA's vector types and its loads and stores with a cache hint, which a CPU has no use for.
#pragma once

// Device code has these without an include. Where the compiler knows how large a variable is, a copy
// must fit it: -fsanitize=bounds lets the address of an element behind an array pass.
#ifdef __has_builtin
#if __has_builtin(__builtin_dynamic_object_size)
#define SIMT_SIZE(of) __builtin_dynamic_object_size(of, 0)
#endif
#endif
#ifndef SIMT_SIZE
#define SIMT_SIZE(of) __builtin_object_size(of, 0)
#endif
#define memcpy(to, from, size)                                                               \
  ((size) <= SIMT_SIZE(to) && (size) <= SIMT_SIZE(from)                                      \
       ? void()                                                                              \
       : simt::simt_copy_does_not_fit(__FILE__, __LINE__),                                   \
   __builtin_memcpy(to, from, size))
#define memset __builtin_memset

#define SIMT_VECTOR(type, scalar)        \
  struct __align__(2 * sizeof(scalar)) type##2 { \
    scalar x, y;                         \
  };                                     \
  struct __align__(16) type##4 {         \
    scalar x, y, z, w;                   \
  };                                     \
  inline type##2 make_##type##2(scalar x, scalar y) { return {x, y}; } \
  inline type##4 make_##type##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

SIMT_VECTOR(int, int)
SIMT_VECTOR(uint, unsigned)
SIMT_VECTOR(float, float)
#undef SIMT_VECTOR

struct __align__(16) double2 {
  double x, y;
};
inline double2 make_double2(double x, double y) { return {x, y}; }

struct __align__(16) ulonglong2 {
  unsigned long long x, y;
};

// Checked here because Clang's -fsanitize=alignment passes over the copy of a whole struct.
#define SIMT_LOAD(name)                                      \
  template <typename T>                                      \
  __device__ T name(const T* from, SIMT_SITE) {              \
    simt::simt_require_aligned(from, alignof(T), file, line); \
    return *from;                                            \
  }
#define SIMT_STORE(name)                                   \
  template <typename T>                                    \
  __device__ void name(T* to, T value, SIMT_SITE) {        \
    simt::simt_require_aligned(to, alignof(T), file, line); \
    *to = value;                                           \
  }

SIMT_LOAD(__ldg)
SIMT_LOAD(__ldcg)
SIMT_LOAD(__ldca)
SIMT_LOAD(__ldcs)
SIMT_LOAD(__ldlu)
SIMT_LOAD(__ldcv)
SIMT_STORE(__stwb)
SIMT_STORE(__stcg)
SIMT_STORE(__stcs)
SIMT_STORE(__stwt)
#undef SIMT_LOAD
#undef SIMT_STORE
