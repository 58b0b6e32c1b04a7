// Rounding to the 16-bit formats in integer arithmetic: to nearest, ties to even, once.
#pragma once

#include "simt.h"

namespace simt {

// The two formats share 16 bits: a sign, kExponentBits and kFractionBits. NaN becomes 0x7fff, as in
// CUDA's conversions.
template <int kExponentBits, int kFractionBits>
inline unsigned short round_to_16_bits(double value) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr unsigned kInfinity = ((1u << kExponentBits) - 1) << kFractionBits;
  const auto bits = bit_cast<unsigned long long>(value);
  const auto sign = static_cast<unsigned>(bits >> 48 & 0x8000);
  if (value != value) return 0x7fff;
  const int raw = static_cast<int>(bits >> 52 & 0x7ff);
  const int exponent = raw - 1023 + kBias;
  if (exponent >= (1 << kExponentBits) - 1) return sign | kInfinity;  // also infinity itself
  // Below the smallest normal number the last place stays where it is, so more bits fall off.
  const int dropped = 52 - kFractionBits + (exponent > 0 ? 0 : 1 - exponent);
  if (dropped > 54 || raw == 0) return sign;
  const unsigned long long significand = (bits & 0xfffffffffffffull) | 1ull << 52;
  const unsigned long long rest = significand & ((1ull << dropped) - 1);
  const unsigned long long half = 1ull << (dropped - 1);
  auto kept = static_cast<unsigned>(significand >> dropped);
  kept += rest > half || (rest == half && kept % 2 == 1);
  // The leading 1 of `kept`, and a carry out of it, each raise the exponent by one.
  const unsigned below = exponent > 0 ? static_cast<unsigned>(exponent - 1) << kFractionBits : 0;
  return static_cast<unsigned short>(sign | (below + kept));
}

}  // namespace simt
