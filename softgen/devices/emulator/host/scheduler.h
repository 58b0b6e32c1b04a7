// Runs the threads of the blocks that are alive in turn, block-wide barriers, and what to say when all are stuck.
#pragma once

#include "block.h"
#include "cluster.h"
#include "copies.h"
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
  launch.kernel->call(launch.arguments.data(), launch.rows, launch.workspace);
  require_own_copies_awaited();
  require_launch_before_awaited("returned");
  wait(State::kReturned);
  fail("a finished thread was resumed: a bug of the emulator");
}

extern "C" inline __attribute__((used)) void simt_syncthreads(const char* file, int line) {
  ++work.barriers;
  count_call();
  Block& block = *launch.block;
  Waiting& mine = this_thread().waiting;
  mine.file = file;
  mine.line = line;
  mine.pc = __builtin_return_address(0);  // tells calls on one line apart, and those of a helper
  if (++block.at_barrier < block.size) return wait(State::kAtBarrier);
  for (int i = 0; i < block.size; ++i) {
    const Waiting& other = block.threads[static_cast<size_t>(i)].waiting;
    if (other.pc != mine.pc || other.line != line || std::strcmp(other.file, file) != 0) {
      this_thread().state = State::kAtBarrier;
      fail(format("divergent barrier: the threads of block %lld wait at different __syncthreads",
                  static_cast<long long>(block.index)) +
           where_all_wait(block));
    }
  }
  fail_if_unwritten_was_read(block);
  for (int i = 0; i < block.size; ++i) block.threads[static_cast<size_t>(i)].state = State::kReady;
  block.at_barrier = 0;
  ++block.epoch;
  block.clocks.synchronize_all();
}

// Puts the shared memory of a block in place.
inline void go_to(Block* next) {
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
  block.copies.clear();
  block.clocks.reset(block.size);
  for (size_t i = 0; i < block.threads.size(); ++i) {
    Thread& thread = block.threads[i];
    thread.state = State::kReturned;
    thread.awaited_before = false;
    thread.arrived = thread.waited = 0;
    set_calls(i, 0);
    thread.groups = 0;
    thread.spin = {};
    if (i >= static_cast<size_t>(block.size)) continue;
    prepare(&thread.context, block.stacks.top(i), thread_main);
    thread.state = State::kReady;
  }
}

// Runs those that are ready, in order, each until it waits. Returns whether any was.
inline bool run_ready_threads() {
  const int first = next_ready(0);
  if (first < 0) return false;
  go_on_with(first, &launch.scheduler);
  launch.current = -1;
  return true;
}

// Runs the threads of the block in place until none can go on. Returns whether any did.
inline bool run_block() {
  Block& block = *launch.block;
  bool any = false;
  while (run_ready_threads() || (!all_returned(block) && end_bulk_copies())) any = true;
  if (any && all_returned(block)) {
    fail_if_unwritten_was_read(block);
    require_all_bytes_awaited(block);
  }
  return any;
}

inline bool may_run(Block& block) {
  return !block.copies.empty() || std::any_of(block.threads.begin(), block.threads.end(), is_ready);
}

// Starts the blocks that are alive together, of which block `first` of the grid is the first.
inline void start_blocks(int64_t first) {
  launch.cluster_phase = 0;
  launch.arrivals = 0;
  for (int rank = 0; rank < launch.alive; ++rank) {
    Block& block = launch.blocks[static_cast<size_t>(rank)];
    block.index = first + rank;
    block.rank = rank;
    go_to(&block);
    start();
  }
}

// Runs them until none can go on.
inline void run_alive() {
  for (bool progress = true; progress;) {
    progress = false;
    for (int i = 0; i < launch.alive; ++i) {
      const int rank = launch.backwards ? launch.alive - 1 - i : i;
      Block& block = launch.blocks[static_cast<size_t>(rank)];
      if (!may_run(block)) continue;
      go_to(&block);
      progress = run_block() || progress;
    }
  }
}

inline bool have_ended() {
  return std::all_of(launch.blocks.begin(), launch.blocks.begin() + launch.alive, all_returned);
}

}  // namespace simt
