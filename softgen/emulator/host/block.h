// A block of threads, each a fiber that runs until it must wait for others.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "../include/simt_interface.h"
#include "fiber.h"
#include "job.h"
#include "shared.h"

namespace simt {

enum class State : uint8_t { kReady, kAtBarrier, kInWarpCall, kReturned };

// The call that a thread waits in.
struct Waiting {
  const char* file;
  int line;
  WarpCall call;  // this and the rest for State::kInWarpCall only
  uint32_t mask;
  int operand;
  int width;
  uint64_t bits;  // what the lane gives, then what it gets
};

struct Thread {
  Context context;
  State state;
  Waiting waiting;
};

struct Block {
  int64_t index;
  int size;
  uint32_t epoch;  // number of barriers so far, in all blocks: it never repeats
  int at_barrier;
  Thread threads[kMaxThreads];
  WarpClock clocks[kMaxThreads / 32];
  SharedRegion static_shared;
  SharedRegion dynamic_shared;
};

// The launch in progress. One block at a time is alive; the shared memory of several (a cluster's)
// would be swapped in and out of the two regions with their fibers.
struct Launch {
  const Kernel* kernel;
  const void* x;
  void* y;
  long long rows;
  Block block;
  int current = -1;  // the running thread, or -1 in the scheduler
  Context scheduler;
  Stacks stacks;
};

extern Launch launch;

inline std::string current_thread() {
  return format("thread %d of block %lld", launch.current,
                static_cast<long long>(launch.block.index));
}

// Gives up the CPU until the scheduler finds the thread ready again.
inline void wait(State state) {
  Thread& thread = launch.block.threads[launch.current];
  thread.state = state;
  simt_switch(&thread.context, launch.scheduler);
}

void run_block(int64_t index);

}  // namespace simt
