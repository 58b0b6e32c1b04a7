// Who of a block has seen what: vector clocks, which order accesses finer than a __syncthreads does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace simt {

constexpr int kMaxMbarriers = 128;  // of a block

using Clock = std::vector<uint32_t>;

inline void join(uint32_t* into, const uint32_t* other, int count) {
  for (int i = 0; i < count; ++i) into[i] = std::max(into[i], other[i]);
}

// Row i is what thread i has seen: of each thread all that it did up to a stamp, of each mbarrier the
// phases that ended. A thread's own entry is the stamp of what it does now, and grows when others can
// learn of that. A __syncthreads shows everybody everything: it is counted in the block's epoch, and
// stamps are compared within an epoch only.
class Clocks {
 public:
  void reset(int threads) {
    const int rows = (threads + 31) / 32 * 32;
    if (wide_ || rows != rows_) {
      rows_ = rows;
      seen_.assign(static_cast<size_t>(rows) * static_cast<size_t>(columns()), 0);
    }
    for (int thread = 0; thread < rows; ++thread) {
      std::fill_n(row(thread) + thread / 32 * 32, 32, 0);
      row(thread)[thread] = 1;
    }
    fences_.assign(static_cast<size_t>(rows), {0, 0});
    wide_ = false;
  }

  // Until the block has an mbarrier, threads learn only of lanes of their own warp.
  void widen() { wide_ = true; }
  bool wide() const { return wide_; }

  Clock empty_clock() const { return Clock(static_cast<size_t>(columns()), 0); }
  uint32_t now(int thread) const { return row(thread)[thread]; }

  bool ordered(int thread, int other, uint32_t stamp) const {
    return thread == other || row(thread)[other] >= stamp;
  }

  // Phases of an mbarrier that the thread knows to have ended.
  uint32_t& phases(Clock& clock, int mbarrier) const {
    return clock[static_cast<size_t>(rows_ + mbarrier)];
  }
  uint32_t phases(int thread, int mbarrier) const { return row(thread)[rows_ + mbarrier]; }

  void release(int thread, Clock& clock) {
    join(clock.data(), row(thread), columns());
    ++row(thread)[thread];
  }

  void acquire(int thread, const Clock& clock) { join(row(thread), clock.data(), columns()); }

  // fence.proxy.async: what the thread did up to now comes before copies that are ordered after it.
  void fence(int thread, uint32_t epoch) {
    fences_[static_cast<size_t>(thread)] = {epoch, now(thread)};
    ++row(thread)[thread];
  }
  bool fenced(int thread, uint32_t epoch, uint32_t stamp) const {
    return fences_[static_cast<size_t>(thread)] >= std::pair(epoch, stamp);
  }

  // __syncwarp: the lanes of the mask have seen what any of them has.
  void synchronize(int warp, uint32_t mask) {
    const int first = wide_ ? 0 : warp * 32;
    const int count = wide_ ? columns() : 32;
    Clock joint(static_cast<size_t>(count), 0);
    for (int lane = 0; lane < 32; ++lane) {
      if (mask >> lane & 1) join(joint.data(), row(warp * 32 + lane) + first, count);
    }
    for (int lane = 0; lane < 32; ++lane) {
      if (!(mask >> lane & 1)) continue;
      uint32_t* mine = row(warp * 32 + lane);
      std::copy(joint.begin(), joint.end(), mine + first);
      ++mine[warp * 32 + lane];
    }
  }

  // __syncthreads: the phases are what the epoch does not count.
  void synchronize_all() {
    if (!wide_) return;
    uint32_t joint[kMaxMbarriers] = {};
    for (int thread = 0; thread < rows_; ++thread) join(joint, row(thread) + rows_, kMaxMbarriers);
    for (int thread = 0; thread < rows_; ++thread) {
      std::copy(joint, joint + kMaxMbarriers, row(thread) + rows_);
    }
  }

 private:
  int columns() const { return rows_ + kMaxMbarriers; }

  uint32_t* row(int thread) {
    return seen_.data() + static_cast<size_t>(thread) * static_cast<size_t>(columns());
  }
  const uint32_t* row(int thread) const { return const_cast<Clocks*>(this)->row(thread); }

  int rows_ = 0;
  bool wide_ = false;
  std::vector<std::pair<uint32_t, uint32_t>> fences_;  // of each thread the last: epoch and stamp
  std::vector<uint32_t> seen_;
};

}  // namespace simt
