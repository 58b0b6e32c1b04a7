// The emulator's twin of the CUDA toolkit's header of this name: what softgen's kernels use of it.
#pragma once

#include "simt_float16.h"

inline float __half2float(struct __half value);
inline struct __half __float2half_rn(float value);

struct __half {
  unsigned short bits;

  __half() = default;  // trivial, as shared memory may not have constructors
  __half(float value) { *this = __float2half_rn(value); }
  operator float() const { return __half2float(*this); }
};

inline __half __ushort_as_half(unsigned short bits) {
  __half value;
  value.bits = bits;
  return value;
}

inline unsigned short __half_as_ushort(__half value) { return value.bits; }

inline float __half2float(__half value) {
  const unsigned sign = (value.bits & 0x8000u) << 16;
  const unsigned exponent = value.bits >> 10 & 0x1f;
  const unsigned fraction = value.bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: exact, and far above float's own subnormals
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const unsigned widened = exponent == 31 ? 255 : exponent - 15 + 127;
  return __uint_as_float(sign | widened << 23 | fraction << 13);
}

inline __half __double2half(double value) {
  return __ushort_as_half(simt::round_to_16_bits<5, 10>(value));
}

inline __half __float2half_rn(float value) { return __double2half(value); }
inline __half __float2half(float value) { return __double2half(value); }

struct __align__(4) __half2 {
  __half x, y;
};

inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __float22half2_rn(float2 pair) { return __floats2half2_rn(pair.x, pair.y); }
inline float2 __half22float2(__half2 pair) { return {__half2float(pair.x), __half2float(pair.y)}; }
inline __half __low2half(__half2 pair) { return pair.x; }
inline __half __high2half(__half2 pair) { return pair.y; }
inline float __low2float(__half2 pair) { return __half2float(pair.x); }
inline float __high2float(__half2 pair) { return __half2float(pair.y); }

// The larger of each: a NaN only where both are.
inline __half2 __hmax2(__half2 a, __half2 b) {
  return __floats2half2_rn(fmaxf(__low2float(a), __low2float(b)),
                           fmaxf(__high2float(a), __high2float(b)));
}

inline __half2 __hadd2(__half2 a, __half2 b) {
  return __floats2half2_rn(__low2float(a) + __low2float(b), __high2float(a) + __high2float(b));
}

// 1 where the first is larger, and 0 where it is not, or one is NaN.
inline __half2 __hgt2(__half2 a, __half2 b) {
  return __floats2half2_rn(__low2float(a) > __low2float(b), __high2float(a) > __high2float(b));
}

// The larger of each: a NaN where either is.
inline __half2 __hmax2_nan(__half2 a, __half2 b) {
  const auto larger = [](float one, float other) {
    return one != one || other != other ? one + other : fmaxf(one, other);
  };
  return __floats2half2_rn(larger(__low2float(a), __low2float(b)),
                           larger(__high2float(a), __high2float(b)));
}

using half = __half;
using half2 = __half2;
