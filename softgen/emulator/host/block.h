// A block of threads, each a fiber that runs until it must wait for others.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>

#include "../include/simt_interface.h"
#include "fiber.h"
#include "job.h"
#include "shared.h"

namespace simt {

constexpr int kMaxCluster = 16;  // sm_90 and later

enum class State : uint8_t {
  kReady,
  kAtBarrier,
  kInWarpCall,
  kAtCluster,
  kAtMbarrier,
  kSpinning,
  kReturned
};

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

// Volatile reads of one place that keep finding the same: the thread waits for somebody.
struct Spin {
  const void* at;
  size_t size;
  uint64_t found;
  int count;
  const void* pc;
};

struct Thread {
  Context context;
  State state;
  Waiting waiting;
  uint32_t arrived;  // calls of cluster_arrive
  uint32_t waited;   // and of cluster_wait that returned
  const char* arrive_file;
  int arrive_line;
  const Mbarrier* mbarrier;  // for State::kAtMbarrier
  Spin spin;
};

struct Block {
  int64_t index;
  int size;
  uint32_t epoch;  // number of barriers so far, in all blocks here: never repeats
  int at_barrier;
  Thread threads[kMaxThreads];
  WarpClock clocks[kMaxThreads / 32];
  SharedRegion static_shared;
  SharedRegion dynamic_shared;
  std::deque<Mbarrier> mbarriers;  // in the order of their mbarrier_expect
  Stacks stacks;
};

// The launch in progress. The blocks of one cluster are alive at a time (one, without clusters); one
// of them is at work, with its shared memory in place, and that of the others is parked.
struct Launch {
  const Kernel* kernel;
  const void* x;
  void* y;
  long long rows;
  unsigned char* workspace;  // null where the kernel takes none
  Block blocks[kMaxCluster];
  Block* block = blocks;  // at work
  int cluster_size = 1;
  uint32_t cluster_phase;  // barriers of the cluster that all threads reached
  int arrivals;            // threads that reached the next one
  int current = -1;        // the running thread, or -1 in the scheduler
  Context scheduler;
};

extern Launch launch;

inline std::string current_thread() {
  return format("thread %d of block %lld", launch.current,
                static_cast<long long>(launch.block->index));
}

// Gives up the CPU until the scheduler finds the thread ready again.
inline void wait(State state) {
  Thread& thread = launch.block->threads[launch.current];
  thread.state = state;
  simt_switch(&thread.context, launch.scheduler);
}

void run_cluster(int64_t first);

}  // namespace simt
