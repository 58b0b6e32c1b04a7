// Runs the threads of a cluster in turn, block-wide barriers, and what to say when all are stuck.
#pragma once

#include "block.h"
#include "cluster.h"
#include "stuck.h"

namespace simt {

inline void fail_if_unwritten_was_read(const Block& block) {
  for (const SharedRegion* region : {&block.static_shared, &block.dynamic_shared}) {
    if (!region->unwritten().empty()) {
      fail(format("block %lld: ", static_cast<long long>(block.index)) + region->unwritten());
    }
  }
}

inline void thread_main() {
  launch.kernel->call(launch.x, launch.y, launch.rows, launch.workspace);
  wait(State::kReturned);
  fail("a finished thread was resumed: a bug of the emulator");
}

extern "C" inline __attribute__((used)) void simt_syncthreads(const char* file, int line) {
  Block& block = *launch.block;
  Waiting& mine = block.threads[launch.current].waiting;
  mine.file = file;
  mine.line = line;
  if (++block.at_barrier < block.size) return wait(State::kAtBarrier);
  for (int i = 0; i < block.size; ++i) {
    const Waiting& other = block.threads[i].waiting;
    if (other.line != line || std::strcmp(other.file, file) != 0) {
      block.threads[launch.current].state = State::kAtBarrier;
      fail(format("divergent barrier: the threads of block %lld wait at different __syncthreads",
                  static_cast<long long>(block.index)) +
           where_all_wait(block));
    }
  }
  fail_if_unwritten_was_read(block);
  for (int i = 0; i < block.size; ++i) block.threads[i].state = State::kReady;
  block.at_barrier = 0;
  ++block.epoch;
}

inline void resume(int thread) {
  launch.current = thread;
  simt_builtins.thread.x = static_cast<unsigned>(thread);
  simt_switch(&launch.scheduler, launch.block->threads[thread].context);
  launch.current = -1;
}

// Puts the shared memory of the block of this rank in place.
inline void go_to(int rank) {
  Block* next = &launch.blocks[rank];
  if (next != launch.block) {
    launch.block->static_shared.park();
    launch.block->dynamic_shared.park();
    next->static_shared.unpark();
    next->dynamic_shared.unpark();
    launch.block = next;
  }
  simt_builtins.block.x = static_cast<unsigned>(next->index);
}

inline void start() {
  Block& block = *launch.block;
  block.at_barrier = 0;
  ++block.epoch;
  block.static_shared.begin_block(block.epoch);
  block.dynamic_shared.begin_block(block.epoch);
  block.mbarriers.clear();
  for (int i = 0; i < block.size; i += 32) block.clocks[i / 32].reset();
  for (size_t i = 0; i < kMaxThreads; ++i) block.threads[i].state = State::kReturned;
  for (int i = 0; i < block.size; ++i) {
    Thread& thread = block.threads[i];
    prepare(&thread.context, block.stacks.top(static_cast<size_t>(i)), thread_main);
    thread.state = State::kReady;
    thread.arrived = thread.waited = 0;
    thread.spin = {};
  }
}

// Whether a thread may run; one that spins, only when what it reads has changed.
inline bool is_ready(Thread& thread) {
  if (thread.state != State::kSpinning) return thread.state == State::kReady;
  if (bits_at(thread.spin.at, thread.spin.size) == thread.spin.found) return false;
  thread.state = State::kReady;
  return true;
}

// Runs the threads of the block in place until none can go on. Returns whether any did.
inline bool run_block() {
  Block& block = *launch.block;
  bool any = false;
  for (bool progress = true; progress;) {
    progress = false;
    for (int i = 0; i < block.size; ++i) {
      if (!is_ready(block.threads[i])) continue;
      resume(i);
      progress = any = true;
    }
  }
  if (any && all_returned(block)) {
    fail_if_unwritten_was_read(block);
    require_all_pushes_awaited(block);
  }
  return any;
}

inline void run_cluster(int64_t first) {
  launch.cluster_phase = 0;
  launch.arrivals = 0;
  for (int rank = 0; rank < launch.cluster_size; ++rank) {
    launch.blocks[rank].index = first + rank;
    go_to(rank);
    start();
  }
  for (bool progress = true; progress;) {
    progress = false;
    for (int rank = 0; rank < launch.cluster_size; ++rank) {
      go_to(rank);
      progress = run_block() || progress;
    }
  }
  for (int rank = 0; rank < launch.cluster_size; ++rank) {
    if (!all_returned(launch.blocks[rank])) fail(why_stuck());
  }
}

}  // namespace simt
