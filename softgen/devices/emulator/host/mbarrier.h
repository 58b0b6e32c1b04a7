// Barriers in shared memory that count arrivals and bytes, phase by phase: PTX's mbarrier.
#pragma once

#include "access.h"
#include "stuck.h"

namespace simt {

constexpr int kMostBytes = (1 << 20) - 1;  // that PTX lets a phase expect

inline std::string called_at(const char* file, int line) { return format(", at %s:%d", file, line); }

// The region of `block` that has all of [address, address + size), or null.
inline SharedRegion* region_of(Block& block, const void* address, size_t size) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (SharedRegion* region : {&block.static_shared, &block.dynamic_shared}) {
    if (region->holds(at, size)) return region;
  }
  return nullptr;
}

// The latest mbarrier of `block` at `address`, or null.
inline Mbarrier* mbarrier_at(Block& block, const void* address) {
  for (auto it = block.mbarriers.rbegin(); it != block.mbarriers.rend(); ++it) {
    if (it->at == reinterpret_cast<uintptr_t>(address)) return &*it;
  }
  return nullptr;
}

// The mbarrier at which the running thread calls `call`; ends the run if it cannot know of one.
inline Mbarrier& known_mbarrier(const void* address, const char* call, const char* file, int line) {
  Block& block = *launch.block;
  Mbarrier* mbarrier = mbarrier_at(block, address);
  const bool published =
      mbarrier && (block.epoch > mbarrier->epoch || this_thread().waited > mbarrier->arrived ||
                   block.clocks.ordered(launch.current, mbarrier->by, mbarrier->stamp));
  if (published) return *mbarrier;
  const std::string what = current_thread() + " called " + call, where = called_at(file, line);
  if (!mbarrier) fail(what + " on a barrier without mbarrier_expect or mbarrier_init" + where);
  fail(what + format(", with no barrier after the %s of thread %d", mbarrier->made_by,
                     mbarrier->by) + where);
}

inline Mbarrier& make_mbarrier(unsigned long long* barrier, int arrivals, const char* call,
                               const char* file, int line, const void* pc) {
  Block& block = *launch.block;
  const std::string what = current_thread() + " called " + call, where = called_at(file, line);
  SharedRegion* region = region_of(block, barrier, sizeof(*barrier));
  if (!region) fail(what + " on what is not in shared memory" + where);
  simt_require_aligned(barrier, sizeof(*barrier), file, line);
  if (arrivals < 1) fail(what + format(" for %d arrivals", arrivals) + where);
  const Mbarrier* before = mbarrier_at(block, barrier);
  if (before && !(before->has_bytes() && before->awaited)) {
    fail(what + " again before anybody waited for the first" + where);
  }
  if (block.mbarriers.size() == kMaxMbarriers) {
    fail(what + format(", and the emulator knows %d mbarriers a block", kMaxMbarriers) + where);
  }
  const auto at = reinterpret_cast<uintptr_t>(barrier);
  region->set_mbarrier(at, false);
  on_access(at, sizeof(*barrier), true, pc);
  region->set_mbarrier(at, true);
  block.clocks.widen();
  const Clock nothing = block.clocks.empty_clock();
  block.mbarriers.push_back({at, static_cast<int>(block.mbarriers.size()), call, launch.current,
                             this_thread().arrived, block.epoch, block.clocks.now(launch.current),
                             file, line, arrivals, arrivals, nothing, nothing});
  return block.mbarriers.back();
}

// The running thread has seen what those who arrived had seen when the last phase ended.
inline void pass(Block& block, int thread, Mbarrier& mbarrier) {
  block.clocks.acquire(thread, mbarrier.released);
  mbarrier.awaited = mbarrier.phases;
}

// Ends the phase if all of it is there.
inline void settle(Block& block, Mbarrier& mbarrier) {
  if (mbarrier.missing > 0 || !mbarrier.has_bytes()) return;
  ++mbarrier.phases;
  mbarrier.missing = mbarrier.needed;
  mbarrier.before = mbarrier.expected;
  block.clocks.phases(mbarrier.arriving, mbarrier.number) = mbarrier.phases;
  mbarrier.released = mbarrier.arriving;
  for (int i = 0; i < block.size; ++i) {
    Thread& thread = block.threads[static_cast<size_t>(i)];
    if (thread.state != State::kAtMbarrier || thread.mbarrier != &mbarrier) continue;
    thread.state = State::kReady;
    pass(block, i, mbarrier);
  }
}

// All arrivals are there, so nothing can expect what has been started beyond the expected bytes.
inline void require_expected(const Mbarrier& mbarrier, const std::string& what,
                             const std::string& where) {
  if (mbarrier.missing > 0 || mbarrier.started <= mbarrier.expected) return;
  fail(what + format(", and the phase of its mbarrier then has all arrivals, and copies of %lld bytes "
                     "where it expects %lld",
                     static_cast<long long>(mbarrier.started - mbarrier.before),
                     static_cast<long long>(mbarrier.expected - mbarrier.before)) + where);
}

// Counts an arrival, and the bytes that it makes the phase expect.
inline void count_arrival(Mbarrier& mbarrier, int bytes, const std::string& what, const char* file,
                          int line) {
  const std::string where = called_at(file, line);
  if (mbarrier.missing == 0) {
    fail(what + format(", but all %d arrivals of the phase are there, and %lld of %lld bytes",
                       mbarrier.needed,
                       static_cast<long long>(mbarrier.received - mbarrier.before),
                       static_cast<long long>(mbarrier.expected - mbarrier.before)) + where);
  }
  if (bytes < 0 || bytes > kMostBytes) fail(what + format(" for %d bytes", bytes) + where);
  mbarrier.expected += bytes;
  if (bytes > 0) {
    mbarrier.counting = mbarrier.phases + 1;
    mbarrier.file = file;
    mbarrier.line = line;
  }
  --mbarrier.missing;
  require_expected(mbarrier, what, where);
}

inline void arrive(Mbarrier& mbarrier, int bytes, const char* call, const char* file, int line) {
  Block& block = *launch.block;
  block.clocks.release(launch.current, mbarrier.arriving);
  count_arrival(mbarrier, bytes, current_thread() + " called " + call, file, line);
  settle(block, mbarrier);
}

// What has to hold at the end of a block: nobody will write to memory that is no longer its own.
inline void require_all_bytes_awaited(const Block& block) {
  for (const Mbarrier& mbarrier : block.mbarriers) {
    const bool ended = mbarrier.has_bytes() && mbarrier.started == mbarrier.received;
    if (ended && mbarrier.awaited >= mbarrier.counting) continue;
    fail(format("block %lld ended without a wait at its mbarrier, which got %lld of %lld bytes: "
                "%s to it; %s",
                static_cast<long long>(block.index),
                static_cast<long long>(mbarrier.received - (ended ? 0 : mbarrier.before)),
                static_cast<long long>(mbarrier.expected - (ended ? 0 : mbarrier.before)),
                launch.cluster_size > 1 ? "another block may still push" : "a copy may still write",
                mbarrier.made_by) +
         called_at(mbarrier.file, mbarrier.line));
  }
}

extern "C" {

inline __attribute__((used)) void simt_mbarrier_init(unsigned long long* barrier, int arrivals,
                                                     const char* file, int line) {
  make_mbarrier(barrier, arrivals, "mbarrier_init", file, line, __builtin_return_address(0));
}

// Of clusters: a barrier of one phase, for which the calling thread arrives at once.
inline __attribute__((used)) void simt_mbarrier_expect(unsigned long long* barrier, int bytes,
                                                       const char* file, int line) {
  Mbarrier& made =
      make_mbarrier(barrier, 1, "mbarrier_expect", file, line, __builtin_return_address(0));
  arrive(made, bytes, "mbarrier_expect", file, line);
}

inline __attribute__((used)) void simt_mbarrier_arrive(unsigned long long* barrier, int bytes,
                                                       const char* file, int line) {
  const char* call = bytes ? "mbarrier_arrive_expect" : "mbarrier_arrive";
  arrive(known_mbarrier(barrier, call, file, line), bytes, call, file, line);
}

// A wait for the parity of the phase before the one in progress returns at once: also for 1 while
// phase 0 is in progress, as if there had been one before it.
inline __attribute__((used)) void simt_mbarrier_wait(unsigned long long* barrier, int parity,
                                                     const char* file, int line) {
  Mbarrier& mbarrier = known_mbarrier(barrier, "mbarrier_wait", file, line);
  if (parity != 0 && parity != 1) {
    fail(current_thread() + format(" called mbarrier_wait with parity %d", parity) +
         called_at(file, line));
  }
  if (static_cast<int>(mbarrier.phases % 2) != parity) {
    return pass(*launch.block, launch.current, mbarrier);
  }
  Thread& mine = this_thread();
  mine.waiting.file = file;
  mine.waiting.line = line;
  mine.mbarrier = &mbarrier;
  wait(State::kAtMbarrier);
}
}

}  // namespace simt
