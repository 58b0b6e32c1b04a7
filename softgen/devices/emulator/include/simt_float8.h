// Rounding to the formats of 8 bits: to nearest, ties to even, saturating.
#pragma once

namespace simt {

// A sign, an exponent and kFractionBits. Beyond the number of the bits `largest` it is that one.
template <int kFractionBits>
inline int round_to_8_bits(float value, int largest) {
  constexpr int kLeast = 2 - (1 << (6 - kFractionBits));  // exponent of the smallest normal number
  if (value != value) return 0x7f;
  const double size = fabs(static_cast<double>(value));
  const int sign = __float_as_uint(value) >> 31 ? 0x80 : 0;
  if (size >= 65536) return sign | largest;
  const int raw = static_cast<int>(__float_as_uint(value) >> 23 & 0xff) - 127;
  const int exponent = raw < kLeast ? kLeast : raw;
  const int places = static_cast<int>(rint(ldexp(size, kFractionBits - exponent)));
  const int bits = places + ((exponent - kLeast) << kFractionBits);
  return sign | (bits < largest ? bits : largest);
}

}  // namespace simt
