// The arithmetic functions that CUDA offers without an include. Declared here rather than taken
// from <cmath>, which would make every unit slower to compile than the kernels in it.
#pragma once

extern "C" {
float expf(float);
float exp2f(float);
float exp10f(float);
float expm1f(float);
float logf(float);
float log2f(float);
float log1pf(float);
float sqrtf(float);
float tanhf(float);
float fabsf(float);
float copysignf(float, float);
float fmaxf(float, float);  // C and CUDA agree: a NaN operand gives the other operand
float fminf(float, float);
float fmaf(float, float, float);
float rintf(float);
float floorf(float);
float ceilf(float);
float ldexpf(float, int);
double exp(double);
double exp2(double);
double expm1(double);
double log(double);
double log2(double);
double log1p(double);
double sqrt(double);
double tanh(double);
double fabs(double);
double copysign(double, double);
double fmax(double, double);
double fmin(double, double);
double fma(double, double, double);
double rint(double);
double floor(double);
double ceil(double);
double ldexp(double, int);
}

inline float exp(float x) { return expf(x); }
inline float exp2(float x) { return exp2f(x); }
inline float log(float x) { return logf(x); }
inline float log2(float x) { return log2f(x); }
inline float sqrt(float x) { return sqrtf(x); }
inline float tanh(float x) { return tanhf(x); }
inline float fabs(float x) { return fabsf(x); }
inline float fmax(float a, float b) { return fmaxf(a, b); }
inline float fmin(float a, float b) { return fminf(a, b); }
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
constexpr int max(int a, int b) { return a > b ? a : b; }
constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
constexpr unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
constexpr long long max(long long a, long long b) { return a > b ? a : b; }
constexpr long long min(long long a, long long b) { return a < b ? a : b; }

// The GPU's approximations are at most 2 ulp worse; the GPU, not the emulator, measures that.
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) {
  const float sum = a + b;
  constexpr int kNan = 0x7fffffff;  // the only one that a GPU's arithmetic in float32 gives
  float nan;
  __builtin_memcpy(&nan, &kNan, sizeof(nan));
  return sum != sum ? nan : sum;
}
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }
// Of float64 too -ftz=true makes zeros of subnormal floats.
inline float __double2float_rd(double x) {
  const float nearest = static_cast<float>(x);
  const float down = nearest > x ? __builtin_nextafterf(nearest, -__builtin_inff()) : nearest;
  return fabsf(down) < 1.17549435e-38f ? copysignf(0.0f, down) : down;
}

namespace simt {

template <typename To, typename From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "same bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

}  // namespace simt

inline float __int_as_float(int bits) { return simt::bit_cast<float>(bits); }
inline float __uint_as_float(unsigned bits) { return simt::bit_cast<float>(bits); }
inline int __float_as_int(float x) { return simt::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return simt::bit_cast<unsigned>(x); }
inline double __longlong_as_double(long long bits) { return simt::bit_cast<double>(bits); }
inline long long __double_as_longlong(double x) { return simt::bit_cast<long long>(x); }
inline int __double2loint(double x) { return static_cast<int>(simt::bit_cast<long long>(x)); }
inline double __hiloint2double(int hi, int lo) {
  return simt::bit_cast<double>(static_cast<unsigned long long>(static_cast<unsigned>(hi)) << 32 |
                                static_cast<unsigned>(lo));
}

namespace simt {

// fmaxf() of subnormal floats too, which -ftz=true has the CPU read as zero.
inline float larger_by_bits(float a, float b) {
  const auto in_order = [](float value) {
    const int bits = __float_as_int(value);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
  };
  if (a != a) return b;
  if (b != b) return a;
  return in_order(a) < in_order(b) ? b : a;
}

}  // namespace simt

inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
// Byte i of the result is the one of x and y, 0 to 7, that digit i of the selector says.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  }
  return result;
}
