// Words for blocks in which no thread can go on.
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
    case WarpCall::kMax: return "__reduce_max_sync";
    case WarpCall::kSync: return "__syncwarp";
  }
  return "?";
}

inline std::string spin_place(const Spin& spin) {
  const auto* at = static_cast<const unsigned char*>(spin.last.at);
  return format("workspace[byte %lld]", static_cast<long long>(at - launch.workspace));
}

// "4 of 8 bytes and 1 of 2 arrivals": what the phase in progress has got.
inline std::string got(const Mbarrier& mbarrier, const char* of) {
  return format("%lld of %s%lld bytes", static_cast<long long>(mbarrier.received - mbarrier.before),
                of, static_cast<long long>(mbarrier.expected - mbarrier.before)) +
         format(" and %d of %d arrivals", mbarrier.needed - mbarrier.missing, mbarrier.needed);
}

inline std::string doing(const Thread& thread) {
  const Waiting& waiting = thread.waiting;
  switch (thread.state) {
    case State::kReady: return "can run";
    case State::kReturned: return "returned from the kernel";
    case State::kAtBarrier: return "wait at __syncthreads (" + site(waiting) + ")";
    case State::kAtCluster: return "wait at cluster_wait (" + site(waiting) + ")";
    case State::kAtMbarrier:
      return "wait at mbarrier_wait, which got " + got(*thread.mbarrier, "") + " (" +
             site(waiting) + ")";
    case State::kSpinning:
      return "spin on " + spin_place(thread.spin) + " (" + place(thread.spin.pc) + ")";
    case State::kPolling: return "poll a mailbox (" + site(waiting) + ")";
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
  const std::string of =
      launch.alive > 1 ? format("of block %lld ", static_cast<long long>(block.index)) : "";
  const auto what_does = [&](int i) { return doing(block.threads[static_cast<size_t>(i)]); };
  for (int i = 0; i < block.size;) {
    const std::string what = what_does(i);
    int last = i;
    while (last + 1 < block.size && what_does(last + 1) == what) ++last;
    text += last > i ? format("\n  threads %d-%d ", i, last) : format("\n  thread %d ", i);
    text += of + what;
    i = last + 1;
  }
  return text;
}

inline std::string where_cluster_waits() {
  std::string text;
  for (int rank = 0; rank < launch.cluster_size; ++rank) {
    text += where_all_wait(launch.blocks[static_cast<size_t>(rank)]);
  }
  return text;
}

inline bool all_returned(const Block& block) {
  return std::all_of(block.threads.begin(), block.threads.end(),
                     [](const Thread& thread) { return thread.state == State::kReturned; });
}

// The first warp call that cannot finish, and the lanes of its mask that are missing from it.
inline std::string stuck_warp_call(const Block& block, int thread) {
  const Thread* lanes = &block.threads[static_cast<size_t>(thread / 32 * 32)];
  const Waiting& mine = lanes[thread % 32].waiting;
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
  const std::string away = ranges(32, [&](int lane) {
    return missing_as(lane, State::kAtCluster) || missing_as(lane, State::kAtMbarrier);
  });
  if (!returned.empty()) text += " lane(s) " + returned + " returned from the kernel;";
  if (!barred.empty()) text += " lane(s) " + barred + " wait at __syncthreads;";
  if (!other.empty()) text += " lane(s) " + other + " wait in another call or with another mask;";
  if (!away.empty()) text += " lane(s) " + away + " wait for the cluster or at an mbarrier;";
  text.back() = '.';
  return text;
}

inline std::string in_state(const Block& block, State state) {
  return ranges(block.size,
                [&](int i) { return block.threads[static_cast<size_t>(i)].state == state; });
}

inline const Thread& first_in(const Block& block, State state) {
  size_t thread = 0;
  while (block.threads[thread].state != state) ++thread;
  return block.threads[thread];
}

inline std::string stuck_spin(const Block& block) {
  const Thread& thread = first_in(block, State::kSpinning);
  const bool all_alive = launch.alive == static_cast<int64_t>(simt_builtins.grid_size.x);
  return format("a spin that never ends: thread %d of block %lld waits for a change of ",
                static_cast<int>(&thread - &block.threads[0]),
                static_cast<long long>(block.index)) +
         spin_place(thread.spin) + ", at " + place(thread.spin.pc) +
         (all_alive ? "; all blocks of the grid run, and none of them can go on."
                    : "; blocks start in order, so it may only wait for what this block or one "
                      "before it writes.");
}

inline std::string stuck_mbarrier(const Block& block) {
  const Mbarrier& mbarrier = *first_in(block, State::kAtMbarrier).mbarrier;
  return format("an mbarrier of block %lld that never completes: it got ",
                static_cast<long long>(block.index)) +
         got(mbarrier, "the ") + format(" (%s:%d); thread(s) ", mbarrier.file, mbarrier.line) +
         in_state(block, State::kAtMbarrier) + " wait for it.";
}

inline std::string stuck_barrier(const Block& block) {
  const std::string returned = in_state(block, State::kReturned);
  return format("__syncthreads that not all threads of block %lld reach: thread(s) ",
                static_cast<long long>(block.index)) +
         in_state(block, State::kAtBarrier) + " wait for thread(s) " +
         (returned.empty() ? "that wait elsewhere." : returned + ", which returned from the kernel.");
}

inline std::string stuck_cluster() {
  std::string text = "a cluster barrier that not all threads of the cluster reach: missing";
  for (int rank = 0; rank < launch.cluster_size; ++rank) {
    const Block& block = launch.blocks[static_cast<size_t>(rank)];
    const std::string missing = ranges(block.size, [&](int i) {
      return block.threads[static_cast<size_t>(i)].arrived <= launch.cluster_phase;
    });
    if (missing.empty()) continue;
    text += " thread(s) " + missing +
            format(" of block %lld,", static_cast<long long>(block.index));
  }
  text.back() = '.';
  return text;
}

// Why nobody can go on: the cause first, where one kind of wait follows from another.
inline std::string why_stuck() {
  for (State state : {State::kSpinning, State::kInWarpCall, State::kAtBarrier, State::kAtCluster,
                      State::kAtMbarrier}) {
    for (int rank = 0; rank < launch.alive; ++rank) {
      const Block& block = launch.blocks[static_cast<size_t>(rank)];
      for (int i = 0; i < block.size; ++i) {
        if (block.threads[static_cast<size_t>(i)].state != state) continue;
        switch (state) {
          case State::kSpinning: return stuck_spin(block) + where_all_wait(block);
          case State::kInWarpCall: return stuck_warp_call(block, i) + where_all_wait(block);
          case State::kAtBarrier: return stuck_barrier(block) + where_all_wait(block);
          case State::kAtCluster: return stuck_cluster() + where_cluster_waits();
          default: return stuck_mbarrier(block) + where_cluster_waits();
        }
      }
    }
  }
  return "?";
}

}  // namespace simt
