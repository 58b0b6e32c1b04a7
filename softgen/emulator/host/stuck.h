// Words for a block in which no thread can go on.
#pragma once

#include <string>

#include "block.h"

namespace simt {

inline std::string site(const Waiting& waiting) {
  return format("%s:%d", waiting.file, waiting.line);
}

inline const char* call_name(WarpCall call) {
  switch (call) {
    case WarpCall::kIndex: return "__shfl_sync";
    case WarpCall::kUp: return "__shfl_up_sync";
    case WarpCall::kDown: return "__shfl_down_sync";
    case WarpCall::kXor: return "__shfl_xor_sync";
    case WarpCall::kBallot: return "__ballot_sync";
    case WarpCall::kSync: return "__syncwarp";
  }
  return "?";
}

inline std::string doing(const Thread& thread) {
  const Waiting& waiting = thread.waiting;
  switch (thread.state) {
    case State::kReady: return "can run";
    case State::kReturned: return "returned from the kernel";
    case State::kAtBarrier: return "wait at __syncthreads (" + site(waiting) + ")";
    case State::kInWarpCall:
      return format("wait in %s(0x%08x) (", call_name(waiting.call), waiting.mask) +
             site(waiting) + ")";
  }
  return "?";
}

// "0-3, 8, 12-31": the numbers below `count` that `chosen` accepts.
template <typename Chosen>
std::string ranges(int count, Chosen chosen) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    if (!chosen(i)) continue;
    int last = i;
    while (last + 1 < count && chosen(last + 1)) ++last;
    if (!text.empty()) text += ", ";
    text += last > i ? format("%d-%d", i, last) : format("%d", i);
    i = last;
  }
  return text;
}

inline std::string where_all_wait(const Block& block) {
  std::string text;
  for (int i = 0; i < block.size;) {
    const std::string what = doing(block.threads[i]);
    int last = i;
    while (last + 1 < block.size && doing(block.threads[last + 1]) == what) ++last;
    text += last > i ? format("\n  threads %d-%d ", i, last) : format("\n  thread %d ", i);
    text += what;
    i = last + 1;
  }
  return text;
}

// The first warp call that cannot finish, and the lanes of its mask that are missing from it.
inline std::string stuck_warp_call(const Block& block, int thread) {
  const Waiting& mine = block.threads[thread].waiting;
  const Thread* lanes = block.threads + thread / 32 * 32;
  const auto named = [&](int lane) { return (mine.mask >> lane & 1) != 0; };
  const auto missing_as = [&](int lane, State state) {
    return named(lane) && lanes[lane].state == state;
  };
  const auto elsewhere = [&](int lane) {
    const Waiting& other = lanes[lane].waiting;
    return missing_as(lane, State::kInWarpCall) &&
           (other.call != mine.call || other.mask != mine.mask);
  };
  std::string text =
      format("%s(0x%08x) at ", call_name(mine.call), mine.mask) + site(mine) +
      format(" in warp %d of block %lld names absent lanes:", thread / 32,
             static_cast<long long>(block.index));
  const std::string returned =
      ranges(32, [&](int lane) { return missing_as(lane, State::kReturned); });
  const std::string barred =
      ranges(32, [&](int lane) { return missing_as(lane, State::kAtBarrier); });
  const std::string other = ranges(32, elsewhere);
  if (!returned.empty()) text += " lane(s) " + returned + " returned from the kernel;";
  if (!barred.empty()) text += " lane(s) " + barred + " wait at __syncthreads;";
  if (!other.empty()) text += " lane(s) " + other + " wait in another call or with another mask;";
  text.back() = '.';
  return text;
}

inline std::string why_stuck(const Block& block) {
  for (int i = 0; i < block.size; ++i) {
    if (block.threads[i].state == State::kInWarpCall) {
      return stuck_warp_call(block, i) + where_all_wait(block);
    }
  }
  const auto in_state = [&](State state) {
    return ranges(block.size, [&](int i) { return block.threads[i].state == state; });
  };
  return format("__syncthreads that not all threads of block %lld reach: thread(s) ",
                static_cast<long long>(block.index)) +
         in_state(State::kAtBarrier) + " wait for thread(s) " + in_state(State::kReturned) +
         ", which returned from the kernel." + where_all_wait(block);
}

}  // namespace simt
