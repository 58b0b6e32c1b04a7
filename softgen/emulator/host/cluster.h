// Thread block clusters: the cluster barrier, mbarriers and pushes into the memory of other blocks.
//
// The rules are PTX's (barrier.cluster, mbarrier, st.async) as far as softgen's kernels use them: an
// mbarrier has one phase, which ends when the bytes it expects have been pushed.
#pragma once

#include "access.h"
#include "stuck.h"

namespace simt {

inline Thread& this_thread() { return launch.block->threads[launch.current]; }

inline std::string called_at(const char* file, int line) { return format(", at %s:%d", file, line); }

inline void require_same_site(const char* file, int line) {
  for (int rank = 0; rank < launch.cluster_size; ++rank) {
    const Block& block = launch.blocks[rank];
    for (int i = 0; i < block.size; ++i) {
      const Thread& other = block.threads[i];
      if (other.arrive_line == line && std::strcmp(other.arrive_file, file) == 0) continue;
      fail(format("divergent cluster barrier: thread %d of block %lld arrived at %s:%d, ", i,
                  static_cast<long long>(block.index), other.arrive_file, other.arrive_line) +
           current_thread() + format(" at %s:%d", file, line));
    }
  }
}

// The region of `block` that has all of [address, address + size), or null.
inline SharedRegion* region_of(Block& block, const void* address, size_t size) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (SharedRegion* region : {&block.static_shared, &block.dynamic_shared}) {
    if (region->covers(at) && region->covers(at + size - 1)) return region;
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

inline bool all_returned(const Block& block) {
  for (int i = 0; i < block.size; ++i) {
    if (block.threads[i].state != State::kReturned) return false;
  }
  return true;
}

// What has to hold at the end of a block: nobody will push to memory that is no longer its own.
inline void require_all_pushes_awaited(const Block& block) {
  for (const Mbarrier& mbarrier : block.mbarriers) {
    if (mbarrier.complete() && mbarrier.passed_epoch) continue;
    fail(format("block %lld ended without a wait at its mbarrier, which got %lld of %lld bytes: "
                "another block may still push to it; mbarrier_expect",
                static_cast<long long>(block.index), static_cast<long long>(mbarrier.received),
                static_cast<long long>(mbarrier.expected)) +
         called_at(mbarrier.file, mbarrier.line));
  }
}

inline void pass(Mbarrier& mbarrier) {
  const Block& block = *launch.block;
  mbarrier.passed[launch.current] = block.clocks[launch.current / 32].stamp;
  if (!mbarrier.passed_epoch) mbarrier.passed_epoch = block.epoch;
}

extern "C" {

inline __attribute__((used)) int simt_cluster_rank() {
  return static_cast<int>(launch.block - launch.blocks);
}

inline __attribute__((used)) void simt_cluster_arrive(const char* file, int line) {
  Thread& mine = this_thread();
  if (mine.arrived != mine.waited) {
    fail(current_thread() + " called cluster_arrive twice without cluster_wait between" +
         called_at(file, line));
  }
  ++mine.arrived;
  mine.arrive_file = file;
  mine.arrive_line = line;
  if (++launch.arrivals < launch.cluster_size * launch.block->size) return;
  require_same_site(file, line);
  launch.arrivals = 0;
  ++launch.cluster_phase;
  for (int rank = 0; rank < launch.cluster_size; ++rank) {
    Block& block = launch.blocks[rank];
    for (int i = 0; i < block.size; ++i) {
      if (block.threads[i].state == State::kAtCluster) block.threads[i].state = State::kReady;
    }
  }
}

inline __attribute__((used)) void simt_cluster_wait(const char* file, int line) {
  Thread& mine = this_thread();
  if (mine.arrived == mine.waited) {
    fail(current_thread() + " called cluster_wait without cluster_arrive" + called_at(file, line));
  }
  mine.waiting.file = file;
  mine.waiting.line = line;
  if (launch.cluster_phase < mine.arrived) wait(State::kAtCluster);
  mine.waited = mine.arrived;
}

inline __attribute__((used)) void simt_mbarrier_expect(unsigned long long* barrier, int bytes,
                                                       const char* file, int line) {
  Block& block = *launch.block;
  if (!region_of(block, barrier, sizeof(*barrier))) {
    fail(current_thread() + " called mbarrier_expect on what is not in shared memory" +
         called_at(file, line));
  }
  simt_require_aligned(barrier, sizeof(*barrier), file, line);
  on_access(reinterpret_cast<uintptr_t>(barrier), sizeof(*barrier), true,
            __builtin_return_address(0));
  const Mbarrier* before = mbarrier_at(block, barrier);
  if (before && !(before->complete() && before->passed_epoch)) {
    fail(current_thread() + " called mbarrier_expect again before anybody waited for the first" +
         called_at(file, line));
  }
  block.mbarriers.push_back({reinterpret_cast<uintptr_t>(barrier), bytes, 0, launch.current,
                             this_thread().arrived, block.epoch, file, line, {}, 0});
}

inline __attribute__((used)) void simt_mbarrier_wait(unsigned long long* barrier, const char* file,
                                                     int line) {
  Block& block = *launch.block;
  Thread& mine = this_thread();
  Mbarrier* mbarrier = mbarrier_at(block, barrier);
  if (!mbarrier) {
    fail(current_thread() + " called mbarrier_wait on a barrier without mbarrier_expect" +
         called_at(file, line));
  }
  const bool published = mbarrier->by == launch.current || mine.waited > mbarrier->arrived ||
                         block.epoch > mbarrier->epoch;
  if (!published) {
    fail(current_thread() + " called mbarrier_wait, with no barrier after the mbarrier_expect of " +
         format("thread %d", mbarrier->by) + called_at(file, line));
  }
  mine.waiting.file = file;
  mine.waiting.line = line;
  mine.mbarrier = mbarrier;
  if (!mbarrier->complete()) wait(State::kAtMbarrier);
  pass(*mbarrier);
}

inline __attribute__((used)) void simt_push(const void* part, void* slot, int size,
                                            unsigned long long* barrier, int rank,
                                            const char* file, int line) {
  const auto bytes = static_cast<size_t>(size);
  const std::string where = called_at(file, line);
  const Thread& mine = this_thread();
  if (rank < 0 || rank >= launch.cluster_size) {
    fail(current_thread() + format(" pushed to rank %d of a cluster of %d", rank,
                                   launch.cluster_size) + where);
  }
  simt_require_aligned(slot, size, file, line);
  Block& peer = launch.blocks[rank];
  const std::string what = current_thread() + format(" pushed to block %lld",
                                                     static_cast<long long>(peer.index));
  SharedRegion* region = region_of(peer, slot, bytes);
  if (!region) fail(what + ", outside of its shared memory" + where);
  if (all_returned(peer)) fail(what + ", which had ended" + where);
  Mbarrier* mbarrier = mbarrier_at(peer, barrier);
  const bool published = mbarrier && (mine.waited > mbarrier->arrived ||
                                      (&peer == launch.block && mbarrier->by == launch.current));
  if (!published) {
    fail(what + ", whose mbarrier it cannot know to be ready: no cluster barrier between the "
                "mbarrier_expect and the push" + where);
  }
  mbarrier->received += size;
  if (mbarrier->received > mbarrier->expected) {
    fail(what + format(", whose mbarrier then got %lld bytes and expects %lld",
                       static_cast<long long>(mbarrier->received),
                       static_cast<long long>(mbarrier->expected)) + where);
  }
  uint32_t number = 0;
  while (&peer.mbarriers[number] != mbarrier) ++number;
  const Push push{number, launch.block->index, launch.current, mine.waited,
                  __builtin_return_address(0)};
  const auto at = reinterpret_cast<uintptr_t>(slot);
  const std::string wrong = region->push(at, bytes, push, peer.epoch);
  if (!wrong.empty()) fail(what + ", and " + wrong + where);
  std::memcpy(region->now_at(at), part, bytes);
  if (!mbarrier->complete()) return;
  for (int i = 0; i < peer.size; ++i) {
    Thread& thread = peer.threads[i];
    if (thread.state == State::kAtMbarrier && thread.mbarrier == mbarrier) {
      thread.state = State::kReady;
    }
  }
}
}

}  // namespace simt
