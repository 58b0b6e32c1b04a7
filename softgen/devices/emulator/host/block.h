// A block of threads, each a fiber that runs until it must wait for others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "../include/simt_interface.h"
#include "fiber.h"
#include "job.h"
#include "shared.h"

namespace simt {

enum class State : uint8_t {
  kReady,
  kAtBarrier,
  kInWarpCall,
  kAtCluster,
  kAtMbarrier,
  kSpinning,
  kPolling,
  kReturned
};

// The call that a thread waits in.
struct Waiting {
  const char* file;
  int line;
  const void* pc;
  WarpCall call;  // this and the rest for State::kInWarpCall only
  uint32_t mask;
  int operand;
  int width;
  uint64_t bits;  // what the lane gives, then what it gets
};

// What a volatile read found.
struct Poll {
  const void* at = nullptr;
  size_t size = 0;
  uint64_t found = 0;
};

// Volatile reads, of some places in turn, that keep finding the same: the thread waits for somebody.
struct Spin {
  std::unordered_map<const void*, Poll> polls;  // the last of each place
  Poll last;
  size_t count = 0;  // polls since one found anything new
  const void* pc = nullptr;
};

// A barrier in the shared memory of a block. It counts arrivals and bytes, phase by phase.
struct Mbarrier {
  uintptr_t at;
  int number;           // in the block, from 0
  const char* made_by;  // mbarrier_init or mbarrier_expect: what follows is of that call
  int by;
  uint32_t arrived;  // cluster barriers that the thread had arrived at before
  uint32_t epoch;    // of the block
  uint32_t stamp;    // of the thread
  const char* file;  // of that call, or the last that expected bytes
  int line;
  int needed;             // arrivals of each phase
  int missing;            // that the phase in progress still waits for
  Clock arriving;         // what those who arrived have seen
  Clock released;         // the same when the last phase ended
  int64_t expected = 0;   // bytes, of all phases so far
  int64_t started = 0;    // of them those whose copy has begun
  int64_t received = 0;   // and ended
  int64_t before = 0;     // bytes of the phases that have ended
  uint32_t phases = 0;    // that have ended
  uint32_t counting = 0;  // the last phase, from 1, that had bytes
  uint32_t awaited = 0;   // the last phase, from 1, that a thread has waited for

  bool has_bytes() const { return received == expected; }
};

// A copy to shared memory that is on its way.
struct Copy {
  uintptr_t to;
  const void* from;
  size_t bytes;
  int thread;
  Mbarrier* mbarrier;  // null for copy_async
  const char* file;
  int line;
  uint32_t group = 0;  // of copy_async: how many groups its thread had ended before
};

struct Thread {
  Context context;
  State state;
  Waiting waiting;
  bool awaited_before;  // whether it has waited for the launch before
  uint32_t arrived;     // calls of cluster_arrive
  uint32_t waited;   // and of cluster_wait that returned
  const char* arrive_file;
  int arrive_line;
  const Mbarrier* mbarrier;  // for State::kAtMbarrier
  uint32_t calls;            // that wait for other threads: no compiler moves an access past one
  uint64_t place;            // a hash of the thread and of its calls so far
  Spin spin;
  std::vector<Copy> copies;  // by copy_async
  uint32_t groups;           // of them that it has ended
};

struct Block {
  int64_t index;
  int rank;  // among the blocks that are alive
  int size;
  uint32_t epoch;  // number of barriers so far, in all blocks here: never repeats
  int at_barrier;
  std::vector<Thread> threads;  // whole warps
  Clocks clocks;
  SharedRegion static_shared;
  SharedRegion dynamic_shared;
  std::deque<Mbarrier> mbarriers;  // in the order of their making
  std::vector<Copy> copies;        // by bulk_load
  Stacks stacks;
};

// What a launch did, as job.py reads it: calls of all threads.
struct Work {
  int64_t global = 0;     // loads and stores of x and y
  int64_t workspace = 0;  // of the workspace
  int64_t shared = 0;     // of shared memory
  int64_t exchanges = 0;  // calls of a warp's lanes together
  int64_t barriers = 0;
  int64_t copies = 0;     // to shared memory or L2, asynchronous ones
  uint64_t pattern = 0;   // the sum of a hash of each access and exchange
};

inline Work work;

// The launch in progress. The blocks of one cluster, or of a cooperative grid, are alive at a time,
// else a single one; one of them is at work, with its shared memory in place, and that of the others
// is parked.
struct Launch {
  const Kernel* kernel;
  std::vector<void*> arguments;  // where row 0 of each operand would be
  long long rows;
  unsigned char* workspace;  // null where the kernel takes none
  std::deque<Block> blocks;  // at least those that are alive
  Block* block;              // at work
  int alive;
  bool backwards;  // of those the last goes first
  bool dependent;  // threads have to wait for the launch before
  int cluster_size;
  uint32_t cluster_phase;  // barriers of the cluster that all threads reached
  int arrivals;            // threads that reached the next one
  int current = -1;        // the running thread, or -1 in the scheduler
  const char* stack_top;   // of that thread
  Context scheduler;
};

extern Launch launch;

inline Thread& this_thread() {
  return launch.block->threads[static_cast<size_t>(launch.current)];
}

inline uint64_t hash_of(uint64_t before, uint64_t word) {
  const uint64_t hash = (before ^ word) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 32;
}

inline void set_calls(size_t number, uint32_t calls) {
  Thread& thread = launch.block->threads[number];
  thread.calls = calls;
  const uint64_t block = hash_of(0, static_cast<uint64_t>(launch.block->index));
  thread.place = hash_of(hash_of(block, number), calls);
}

inline void count_call() {
  set_calls(static_cast<size_t>(launch.current), this_thread().calls + 1);
}

// Adds to the pattern what the thread does: in which order between two of its calls does not count,
// since compilers differ there.
inline void note_pattern(uint64_t what, uint64_t where, uint64_t size) {
  work.pattern += hash_of(hash_of(hash_of(this_thread().place, what), where), size);
}

inline std::string current_thread() {
  return format("thread %d of block %lld", launch.current,
                static_cast<long long>(launch.block->index));
}

// A dependent launch may start while the one before still writes.
inline void require_launch_before_awaited(const char* what, const void* pc = nullptr) {
  if (!launch.dependent || this_thread().awaited_before) return;
  fail(current_thread() + " " + what + " before await_launch_before()" +
       (pc ? ", at " + place(pc) : ": the next launch could overtake the one before"));
}

extern "C" inline __attribute__((used)) void simt_await_launch_before() {
  this_thread().awaited_before = true;
}

extern "C" inline __attribute__((used)) void simt_allow_next_launch() {
  require_launch_before_awaited("called allow_next_launch()");
}

inline uint64_t bits_at(const void* at, size_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, size < sizeof(bits) ? size : sizeof(bits));
  return bits;
}

// Whether a thread may run; one that spins, only when what it reads has changed.
inline bool is_ready(Thread& thread) {
  if (thread.state != State::kSpinning) return thread.state == State::kReady;
  bool news = false;
  for (auto& [at, poll] : thread.spin.polls) {
    const uint64_t now = bits_at(at, poll.size);
    news = news || now != poll.found;
    poll.found = now;
  }
  if (!news) return false;
  thread.state = State::kReady;
  return true;
}

// The first thread of the block at work, from number `first` on, that may run, or -1.
inline int next_ready(int first) {
  Block& block = *launch.block;
  for (int i = first; i < block.size; ++i) {
    if (is_ready(block.threads[static_cast<size_t>(i)])) return i;
  }
  return -1;
}

// Goes on with thread `number` of the block at work; what runs now goes on in *from later.
inline void go_on_with(int number, Context* from) {
  launch.current = number;
  launch.stack_top = launch.block->stacks.top(static_cast<size_t>(number));
  simt_builtins.thread.x = static_cast<unsigned>(number);
  simt_switch(from, this_thread().context);
}

// Gives up the CPU until the thread is ready again. Next is the first of those behind it that may run,
// without a detour by the scheduler.
inline void wait(State state) {
  Thread& thread = this_thread();
  thread.state = state;
  const int next = next_ready(launch.current + 1);
  if (next >= 0) return go_on_with(next, &thread.context);
  simt_switch(&thread.context, launch.scheduler);
}

}  // namespace simt
