// Warp-wide calls. Each waits until all lanes named in its mask have made the same call.
#pragma once

namespace simt {

template <typename T>
inline T shuffle(WarpCall call, unsigned mask, T value, int operand, int width, const char* file,
                 int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = simt_warp_call(call, mask, bits, operand, width, file, line);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace simt

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SIMT_SITE) {
  return simt::shuffle(simt::WarpCall::kIndex, mask, value, lane, width, file, line);
}

template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE) {
  return simt::shuffle(simt::WarpCall::kUp, mask, value, static_cast<int>(delta), width, file,
                       line);
}

template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_SITE) {
  return simt::shuffle(simt::WarpCall::kDown, mask, value, static_cast<int>(delta), width, file,
                       line);
}

template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, SIMT_SITE) {
  return simt::shuffle(simt::WarpCall::kXor, mask, value, lane_mask, width, file, line);
}

inline void __syncwarp(unsigned mask = 0xffffffff, SIMT_SITE) {
  simt::simt_warp_call(simt::WarpCall::kSync, mask, 0, 0, 32, file, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_SITE) {
  return static_cast<unsigned>(
      simt::simt_warp_call(simt::WarpCall::kBallot, mask, predicate != 0, 0, 32, file, line));
}

// Which lanes are together is nothing that a program may count on: here each is alone.
inline unsigned __activemask() { return 1u << threadIdx.x % warpSize; }

inline int __any_sync(unsigned mask, int predicate, SIMT_SITE) {
  return __ballot_sync(mask, predicate, file, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, SIMT_SITE) {
  return __ballot_sync(mask, predicate, file, line) == mask;
}

inline int __reduce_max_sync(unsigned mask, int value, SIMT_SITE) {
  const auto bits = static_cast<unsigned long long>(static_cast<long long>(value));
  return static_cast<int>(
      simt::simt_warp_call(simt::WarpCall::kMax, mask, bits, 0, 32, file, line));
}

inline int __reduce_min_sync(unsigned mask, int value, SIMT_SITE) {
  return ~__reduce_max_sync(mask, ~value, file, line);  // the order of ~ is the other one
}
