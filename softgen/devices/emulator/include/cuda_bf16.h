// The emulator's twin of the CUDA toolkit's header of this name: what softgen's kernels use of it.
#pragma once

#include "simt_float16.h"

inline float __bfloat162float(struct __nv_bfloat16 value);
inline struct __nv_bfloat16 __float2bfloat16_rn(float value);

struct __nv_bfloat16 {
  unsigned short bits;

  __nv_bfloat16() = default;  // trivial, as shared memory may not have constructors
  __nv_bfloat16(float value) { *this = __float2bfloat16_rn(value); }
  operator float() const { return __bfloat162float(*this); }
};

inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 value;
  value.bits = bits;
  return value;
}

inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }

inline float __bfloat162float(__nv_bfloat16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

// On the bits, not through a double: subnormal floats must survive although -ftz=true has the CPU
// read them as zero.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (value != value) return __ushort_as_bfloat16(0x7fff);
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = bits + 0x7fff + (bits >> 16 & 1);
  return __ushort_as_bfloat16(static_cast<unsigned short>(rounded >> 16));
}

inline __nv_bfloat16 __float2bfloat16(float value) { return __float2bfloat16_rn(value); }

inline __nv_bfloat16 __double2bfloat16(double value) {
  return __ushort_as_bfloat16(simt::round_to_16_bits<8, 7>(value));
}

struct __align__(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) {
  return __floats2bfloat162_rn(pair.x, pair.y);
}
inline float2 __bfloat1622float2(__nv_bfloat162 pair) {
  return {__bfloat162float(pair.x), __bfloat162float(pair.y)};
}
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 pair) { return pair.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 pair) { return pair.y; }
inline float __low2float(__nv_bfloat162 pair) { return __bfloat162float(pair.x); }
inline float __high2float(__nv_bfloat162 pair) { return __bfloat162float(pair.y); }

// The larger of each, a subnormal one too: -ftz=true is for floats. A NaN only where both are.
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __floats2bfloat162_rn(simt::larger_by_bits(__low2float(a), __low2float(b)),
                               simt::larger_by_bits(__high2float(a), __high2float(b)));
}

// 1 where the first is larger, and 0 where it is not, or one is NaN.
inline __nv_bfloat162 __hgt2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return __floats2bfloat162_rn(__low2float(a) > __low2float(b), __high2float(a) > __high2float(b));
}

// The larger of each: a NaN where either is.
inline __nv_bfloat162 __hmax2_nan(__nv_bfloat162 a, __nv_bfloat162 b) {
  const auto larger = [](float one, float other) {
    return one != one || other != other ? one + other : fmaxf(one, other);
  };
  return __floats2bfloat162_rn(larger(__low2float(a), __low2float(b)),
                               larger(__high2float(a), __high2float(b)));
}

// In double, which has a subnormal one as a normal number: -ftz=true is for floats.
inline __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) {
  const auto exact = [](__nv_bfloat16 value) {
    const int exponent = value.bits >> 7 & 0xff, fraction = value.bits & 0x7f;
    if (exponent == 0xff) return static_cast<double>(__bfloat162float(value));
    const double size = ldexp(exponent ? 128 + fraction : fraction, (exponent ? exponent : 1) - 134);
    return value.bits >> 15 ? -size : size;
  };
  return __double2bfloat16(exact(a) + exact(b));
}
inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}

using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;
