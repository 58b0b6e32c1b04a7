// Warp-wide calls: shuffles, ballots, reductions and __syncwarp.
#pragma once

#include "block.h"
#include "stuck.h"

namespace simt {

// The lane a shuffle reads, by the rules of PTX's shfl: outside its segment a lane keeps its value.
inline int source_lane(const Waiting& of, int lane) {
  const int first = lane & ~(of.width - 1);
  const int last = first + of.width - 1;
  int source = lane;
  switch (of.call) {
    case WarpCall::kIndex: return first + (of.operand & (of.width - 1));
    case WarpCall::kUp: source = lane - of.operand; break;
    case WarpCall::kDown: source = lane + of.operand; break;
    case WarpCall::kXor: source = lane ^ of.operand; break;
    default: return lane;
  }
  const bool inside = of.call == WarpCall::kUp ? source >= first : source <= last;
  return inside ? source : lane;
}

inline void check_own(const Waiting& mine) {
  const int lane = launch.current % 32;
  if (!(mine.mask >> lane & 1)) {
    fail(format("%s(0x%08x) at ", call_name(mine.call), mine.mask) + site(mine) + ": " +
         current_thread() + format(" is lane %d, which its own mask does not name", lane));
  }
  const bool power = mine.width > 0 && mine.width <= 32 && (mine.width & (mine.width - 1)) == 0;
  if (!power) {
    fail(format("%s with width %d at ", call_name(mine.call), mine.width) + site(mine) +
         ": the width must be a power of two up to 32");
  }
}

// From the last lane down: lanes arrive in order, so mostly the first look finds one missing.
inline bool all_here(const Thread* lanes, const Waiting& mine, int own) {
  for (int lane = 31; lane >= 0; --lane) {
    if (lane == own || !(mine.mask >> lane & 1)) continue;
    const Waiting& other = lanes[lane].waiting;
    if (lanes[lane].state != State::kInWarpCall || other.call != mine.call ||
        other.mask != mine.mask) {
      return false;
    }
  }
  return true;
}

inline void finish_call(Thread* lanes, const Waiting& mine, int warp) {
  uint64_t given[32] = {};
  uint64_t ballot = 0;
  int64_t most = INT64_MIN;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mine.mask >> lane & 1)) continue;
    given[lane] = lanes[lane].waiting.bits;
    if (given[lane]) ballot |= 1ull << lane;
    most = std::max(most, static_cast<int64_t>(given[lane]));
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (!(mine.mask >> lane & 1)) continue;
    Waiting& waiting = lanes[lane].waiting;
    const int source = source_lane(waiting, lane);
    if (!(mine.mask >> source & 1)) {
      fail(format("%s(0x%08x) at ", call_name(waiting.call), waiting.mask) + site(waiting) +
           format(": thread %d of block %lld reads lane %d, which the mask does not name",
                  warp * 32 + lane, static_cast<long long>(launch.block->index), source));
    }
    switch (waiting.call) {
      case WarpCall::kBallot: waiting.bits = ballot; break;
      case WarpCall::kMax: waiting.bits = static_cast<uint64_t>(most); break;
      default: waiting.bits = given[source];
    }
    lanes[lane].state = State::kReady;
  }
  if (mine.call == WarpCall::kSync) launch.block->clocks.synchronize(warp, mine.mask);
}

extern "C" inline __attribute__((used)) unsigned long long simt_warp_call(
    WarpCall call, unsigned mask, unsigned long long bits, int operand, int width,
    const char* file, int line) {
  ++work.exchanges;
  count_call();
  note_pattern(static_cast<uint64_t>(call), static_cast<uint64_t>(operand), mask);
  Block& block = *launch.block;
  const int warp = launch.current / 32, own = launch.current % 32;
  Thread* lanes = &block.threads[static_cast<size_t>(warp * 32)];
  Waiting& mine = lanes[own].waiting;
  mine = {file, line, nullptr, call, mask, operand, width, bits};
  check_own(mine);
  if (all_here(lanes, mine, own)) {
    finish_call(lanes, Waiting(mine), warp);
  } else {
    wait(State::kInWarpCall);
  }
  return mine.bits;
}

}  // namespace simt
