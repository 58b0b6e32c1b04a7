// Runs the threads of a block in turn, block-wide barriers, and what to say when all are stuck.
#pragma once

#include "block.h"
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
  launch.kernel->call(launch.x, launch.y, launch.rows);
  wait(State::kReturned);
  fail("a finished thread was resumed: a bug of the emulator");
}

extern "C" inline __attribute__((used)) void simt_syncthreads(const char* file, int line) {
  Block& block = launch.block;
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
  simt_switch(&launch.scheduler, launch.block.threads[thread].context);
  launch.current = -1;
}

inline void run_block(int64_t index) {
  Block& block = launch.block;
  block.index = index;
  block.at_barrier = 0;
  ++block.epoch;
  block.static_shared.begin_block(block.epoch);
  block.dynamic_shared.begin_block(block.epoch);
  for (int i = 0; i < block.size; i += 32) block.clocks[i / 32].reset();
  for (size_t i = 0; i < kMaxThreads; ++i) block.threads[i].state = State::kReturned;
  for (int i = 0; i < block.size; ++i) {
    prepare(&block.threads[i].context, launch.stacks.top(static_cast<size_t>(i)), thread_main);
    block.threads[i].state = State::kReady;
  }
  bool progress = true;
  while (progress) {
    progress = false;
    for (int i = 0; i < block.size; ++i) {
      if (block.threads[i].state != State::kReady) continue;
      resume(i);
      progress = true;
    }
  }
  for (int i = 0; i < block.size; ++i) {
    if (block.threads[i].state != State::kReturned) fail(why_stuck(block));
  }
  fail_if_unwritten_was_read(block);
}

}  // namespace simt
