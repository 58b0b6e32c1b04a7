// Thread block clusters: the cluster barrier, and pushes into the memory of other blocks.
//
// The rules are PTX's (barrier.cluster, st.async, mbarrier.arrive.expect_tx of another block) as far
// as softgen's kernels use them: pushes go to an mbarrier of one phase, which ends when the bytes it
// expects have been pushed.
#pragma once

#include "mbarrier.h"

namespace simt {

inline void require_same_site(const char* file, int line) {
  for (int rank = 0; rank < launch.cluster_size; ++rank) {
    const Block& block = launch.blocks[static_cast<size_t>(rank)];
    for (int i = 0; i < block.size; ++i) {
      const Thread& other = block.threads[static_cast<size_t>(i)];
      if (other.arrive_line == line && std::strcmp(other.arrive_file, file) == 0) continue;
      fail(format("divergent cluster barrier: thread %d of block %lld arrived at %s:%d, ", i,
                  static_cast<long long>(block.index), other.arrive_file, other.arrive_line) +
           current_thread() + format(" at %s:%d", file, line));
    }
  }
}

inline Block& peer_of(int rank, const char* does, const std::string& where) {
  if (rank >= 0 && rank < launch.cluster_size) return launch.blocks[static_cast<size_t>(rank)];
  fail(current_thread() + format(" %s rank %d of a cluster of %d", does, rank,
                                 launch.cluster_size) + where);
}

// The mbarrier of `peer` at `barrier`; ends the run if the thread cannot know of one.
inline Mbarrier* ready_mbarrier(Block& peer, const void* barrier, const std::string& what,
                                const std::string& where) {
  if (all_returned(peer)) fail(what + ", which had ended" + where);
  Mbarrier* mbarrier = mbarrier_at(peer, barrier);
  const bool published = mbarrier && (this_thread().waited > mbarrier->arrived ||
                                      (&peer == launch.block && mbarrier->by == launch.current));
  if (published) return mbarrier;
  fail(what + ", whose mbarrier it cannot know to be ready: no cluster barrier between the "
              "mbarrier_expect and the push" + where);
}

extern "C" {

inline __attribute__((used)) int simt_cluster_rank() {
  return launch.block->rank;
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
    for (Thread& thread : launch.blocks[static_cast<size_t>(rank)].threads) {
      if (thread.state == State::kAtCluster) thread.state = State::kReady;
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

inline __attribute__((used)) void simt_mbarrier_tell(unsigned long long* barrier, int bytes,
                                                     int rank, const char* file, int line) {
  const std::string where = called_at(file, line);
  Block& peer = peer_of(rank, "told", where);
  const std::string what = current_thread() + format(" told block %lld",
                                                     static_cast<long long>(peer.index));
  Mbarrier* mbarrier = ready_mbarrier(peer, barrier, what, where);
  count_arrival(*mbarrier, bytes, what, file, line);
  settle(peer, *mbarrier);
}

inline __attribute__((used)) void simt_push(const void* part, void* slot, int size,
                                            unsigned long long* barrier, int rank,
                                            const char* file, int line) {
  const auto bytes = static_cast<size_t>(size);
  const std::string where = called_at(file, line);
  const Thread& mine = this_thread();
  Block& peer = peer_of(rank, "pushed to", where);
  simt_require_aligned(slot, size & -size, file, line);  // three words are stored one by one
  const std::string what = current_thread() + format(" pushed to block %lld",
                                                     static_cast<long long>(peer.index));
  SharedRegion* region = region_of(peer, slot, bytes);
  if (!region) fail(what + ", outside of its shared memory" + where);
  Mbarrier* mbarrier = ready_mbarrier(peer, barrier, what, where);
  mbarrier->started += size;
  mbarrier->received += size;
  const bool told = mbarrier->missing == 0 || mbarrier->phases > 0;  // by all who say what they push
  if (told && mbarrier->received > mbarrier->expected) {
    fail(what + format(", whose mbarrier then got %lld bytes and expects %lld",
                       static_cast<long long>(mbarrier->received),
                       static_cast<long long>(mbarrier->expected)) + where);
  }
  const Push push{mbarrier->number, launch.block->index, launch.current, mine.waited,
                  __builtin_return_address(0)};
  const auto at = reinterpret_cast<uintptr_t>(slot);
  const std::string wrong = region->push(at, bytes, push, peer.epoch);
  if (!wrong.empty()) fail(what + ", and " + wrong + where);
  std::memcpy(region->now_at(at), part, bytes);
  note_pattern(kPushPattern + static_cast<uint64_t>(rank), region->named(at - region->begin()), bytes);
  settle(peer, *mbarrier);
}
}

}  // namespace simt
