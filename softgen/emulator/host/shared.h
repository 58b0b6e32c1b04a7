// Shared memory of a block and a precise race check of it, byte by byte.
//
// Two accesses of which one writes must be ordered: by a __syncthreads of the block between them, or
// for lanes of one warp by a __syncwarp that names both. A shuffle orders nothing (CUDA C++
// Programming Guide, "Warp Shuffle Functions": no memory barrier is implied). What is pushed is ordered
// by a wait at the mbarrier that counts it. A cluster barrier orders what the block itself did before
// its arrival and pushes after the wait, and nothing else: cluster_arrive is relaxed.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "fiber.h"

namespace simt {

// When a lane of a warp did something: stamps grow with every __syncwarp of the warp, and lane i has
// seen all that lane k did up to known[i][k].
struct WarpClock {
  uint32_t stamp;
  uint32_t known[32][32];

  void reset() {
    std::memset(known, 0, sizeof(known));
    stamp = 1;
  }

  void synchronize(uint32_t mask) {
    uint32_t joint[32] = {};
    for (int lane = 0; lane < 32; ++lane) {
      if (!(mask >> lane & 1)) continue;
      for (int k = 0; k < 32; ++k) {
        if (known[lane][k] > joint[k]) joint[k] = known[lane][k];
      }
    }
    for (int k = 0; k < 32; ++k) {
      if (mask >> k & 1) joint[k] = stamp;
    }
    for (int lane = 0; lane < 32; ++lane) {
      if (mask >> lane & 1) std::memcpy(known[lane], joint, sizeof(joint));
    }
    ++stamp;
  }
};

// An mbarrier of a block: it counts the bytes that are pushed into the block's shared memory, and
// orders them for the threads that wait at it.
struct Mbarrier {
  uintptr_t at;
  int64_t expected;
  int64_t received;
  int by;            // the thread that called mbarrier_expect
  uint32_t arrived;  // cluster barriers it had arrived at before
  uint32_t epoch;    // of the block then
  const char* file;
  int line;
  uint32_t passed[kMaxThreads];  // per thread of the block: its warp's stamp at its wait, or 0
  uint32_t passed_epoch;         // of the block when the first thread passed, or 0

  bool complete() const { return received == expected; }
};

// Who is at work now, for the shadow.
struct Accessor {
  int thread;
  uint32_t epoch;  // of the block's barrier
  const WarpClock* clock;
  uint32_t arrived;  // cluster barriers that the thread arrived at
  const std::deque<Mbarrier>* mbarriers;

  // Whether the thread, or one that it is ordered after, waited at the block's mbarrier `number`.
  bool waited_at(uint32_t number) const {
    const Mbarrier& mbarrier = (*mbarriers)[number];
    if (mbarrier.passed_epoch && mbarrier.passed_epoch < epoch) return true;
    if (mbarrier.passed[thread]) return true;
    for (int lane = 0; lane < 32; ++lane) {
      const uint32_t stamp = mbarrier.passed[thread / 32 * 32 + lane];
      if (stamp && clock->known[thread % 32][lane] >= stamp) return true;
    }
    return false;
  }
};

// A store that another block of the cluster, or the block itself, sends to an mbarrier.
struct Push {
  uint32_t number;  // of the mbarrier in its block, from 0
  int64_t block;    // of the pusher
  int thread;
  uint32_t waited;  // cluster barriers that the pusher waited for
  const void* pc;
};

// The history of one byte: its last writer, and its readers since the block's last barrier.
struct Cell {
  uint32_t write_epoch;
  uint32_t write_stamp;
  const void* write_pc;
  const void* read_pc;
  uint32_t read_epoch;
  uint32_t read_lanes;       // lanes of read_warp that read
  uint32_t read_stamps[32];  // when, for the lanes in read_lanes
  int16_t writer;
  int16_t read_warp;
  int16_t other_reader;  // a reader of another warp, or -1
  uint32_t push;         // 1 + number of the mbarrier, if the last writer was a push
  int32_t pusher;        // its thread
  int64_t pusher_block;
  uint32_t phase;  // cluster barriers that the last of the block's own accesses came after
};

class SharedRegion {
 public:
  void set(const char* name, unsigned char* begin, size_t bytes) {
    name_ = name;
    begin_ = reinterpret_cast<uintptr_t>(begin);
    bytes_ = bytes;
    if (bytes <= shadow_bytes_) return;
    if (cells_) munmap(cells_, shadow_bytes_ * sizeof(Cell));
    void* mapped = mmap(nullptr, bytes * sizeof(Cell), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) fail("the emulator could not map the shadow of shared memory");
    cells_ = static_cast<Cell*>(mapped);
    shadow_bytes_ = bytes;
  }

  const char* name() const { return name_; }
  uintptr_t begin() const { return begin_; }
  size_t bytes() const { return bytes_; }
  bool covers(uintptr_t address) const { return address - begin_ < bytes_; }

  // Starts a block: `epoch` is its first, and larger than any before, so old cells count as empty.
  void begin_block(uint32_t epoch) {
    first_epoch_ = epoch;
    unwritten_.clear();
    std::memset(reinterpret_cast<void*>(begin_), 0xff, bytes_);
  }

  // A read of what nobody wrote. Asked for at the next barrier, not when it happens: if a thread
  // writes it before, the two race, which is the better report.
  const std::string& unwritten() const { return unwritten_; }

  // Returns what is wrong with the access, or nothing.
  std::string access(uintptr_t address, size_t size, bool write, const Accessor& by,
                     const void* pc) {
    const size_t first = address - begin_;
    if (size > bytes_ - first) {
      return format("thread %d %s %zu byte(s) past the end of %s at %s", by.thread,
                    write ? "wrote" : "read", size - (bytes_ - first), name_, place(pc).c_str());
    }
    for (size_t i = first; i < first + size; ++i) {
      Cell& cell = cells_[i];
      if (!touched(cell)) cell.push = cell.phase = 0;
      if (cell.push && !by.waited_at(cell.push - 1)) return unordered(cell, i, write, by, pc);
      const std::string wrong = write ? on_write(cell, i, by, pc) : on_read(cell, i, by, pc);
      if (!wrong.empty()) return wrong;
      if (write) cell.push = 0;
      if (by.arrived > cell.phase) cell.phase = by.arrived;
    }
    return {};
  }

  // Records a push to [address, address + size), by any block. Returns what is wrong, or nothing.
  std::string push(uintptr_t address, size_t size, const Push& push, uint32_t epoch) {
    for (size_t i = address - begin_; i < address - begin_ + size; ++i) {
      Cell& cell = cells_[i];
      if (!touched(cell)) cell.push = cell.phase = 0;
      if (cell.push == push.number + 1) {
        return format("overwrote what thread %d of block %lld pushed (byte %zu of %s; before at %s)",
                      cell.pusher, static_cast<long long>(cell.pusher_block), i, name_,
                      place(cell.write_pc).c_str());
      }
      const bool read = cell.read_epoch >= first_epoch_;
      if (touched(cell) && !cell.push && cell.phase >= push.waited) {
        return format("raced with a %s by the block's own threads, with no cluster barrier between "
                      "(byte %zu of %s; before at %s)",
                      read ? "read" : "write", i, name_,
                      place(read ? cell.read_pc : cell.write_pc).c_str());
      }
      cell.write_epoch = epoch;
      cell.write_pc = push.pc;
      cell.read_epoch = 0;
      cell.push = push.number + 1;
      cell.pusher = push.thread;
      cell.pusher_block = push.block;
    }
    return {};
  }

  // While another block of the cluster works, this one's bytes are kept aside.
  void park() {
    const auto* bytes = reinterpret_cast<const unsigned char*>(begin_);
    parked_.assign(bytes, bytes + bytes_);
  }

  void unpark() {
    if (!parked_.empty()) std::memcpy(reinterpret_cast<void*>(begin_), parked_.data(), bytes_);
    parked_.clear();
  }

  // Where the byte that the block itself finds at `address` is now.
  unsigned char* now_at(uintptr_t address) {
    return parked_.empty() ? reinterpret_cast<unsigned char*>(address)
                           : parked_.data() + (address - begin_);
  }

 private:
  bool touched(const Cell& cell) const {
    return cell.write_epoch >= first_epoch_ || cell.read_epoch >= first_epoch_;
  }

  std::string unordered(const Cell& cell, size_t at, bool write, const Accessor& by,
                        const void* pc) const {
    return format("race on shared memory: thread %d %s what thread %d of block %lld pushed, with no "
                  "mbarrier_wait between (byte %zu of %s; now at %s, before at %s)",
                  by.thread, write ? "wrote" : "read", cell.pusher,
                  static_cast<long long>(cell.pusher_block), at, name_, place(pc).c_str(),
                  place(cell.write_pc).c_str());
  }

  static bool ordered(const Accessor& by, int thread, uint32_t stamp) {
    return thread == by.thread ||
           (thread / 32 == by.thread / 32 && by.clock->known[by.thread % 32][thread % 32] >= stamp);
  }

  std::string on_read(Cell& cell, size_t at, const Accessor& by, const void* pc) {
    if (cell.write_epoch < first_epoch_) {
      if (unwritten_.empty()) {
        unwritten_ = format("uninitialised shared memory: thread %d read byte %zu of %s, which no "
                            "thread of the block had written, at %s",
                            by.thread, at, name_, place(pc).c_str());
      }
    } else if (!cell.push && cell.write_epoch == by.epoch && !ordered(by, cell.writer, cell.write_stamp)) {
      return race(by, "read", pc, cell.writer, "wrote", cell.write_pc, at);
    }
    note_read(cell, by, pc);
    return {};
  }

  static void note_read(Cell& cell, const Accessor& by, const void* pc) {
    const int warp = by.thread / 32, lane = by.thread % 32;
    if (cell.read_epoch != by.epoch) {
      cell.read_epoch = by.epoch;
      cell.read_warp = static_cast<int16_t>(warp);
      cell.read_lanes = 0;
      cell.other_reader = -1;
    }
    if (cell.read_warp == warp) {
      cell.read_lanes |= 1u << lane;
      cell.read_stamps[lane] = by.clock->stamp;
    } else {
      cell.other_reader = static_cast<int16_t>(by.thread);
    }
    cell.read_pc = pc;
  }

  std::string on_write(Cell& cell, size_t at, const Accessor& by, const void* pc) {
    if (!cell.push && cell.write_epoch == by.epoch && !ordered(by, cell.writer, cell.write_stamp)) {
      return race(by, "wrote", pc, cell.writer, "wrote", cell.write_pc, at);
    }
    const int reader = cell.read_epoch == by.epoch ? unordered_reader(cell, by) : -1;
    if (reader >= 0) return race(by, "wrote", pc, reader, "read", cell.read_pc, at);
    cell.write_epoch = by.epoch;
    cell.write_stamp = by.clock->stamp;
    cell.writer = static_cast<int16_t>(by.thread);
    cell.write_pc = pc;
    cell.read_epoch = 0;  // whoever comes after this write comes after those reads
    return {};
  }

  static int unordered_reader(const Cell& cell, const Accessor& by) {
    if (cell.other_reader >= 0 && cell.other_reader / 32 != by.thread / 32) {
      return cell.other_reader;
    }
    for (int lane = 0; lane < 32; ++lane) {
      const int reader = cell.read_warp * 32 + lane;
      if ((cell.read_lanes >> lane & 1) && !ordered(by, reader, cell.read_stamps[lane])) {
        return reader;
      }
    }
    return -1;
  }

  std::string race(const Accessor& by, const char* did, const void* pc, int other,
                   const char* other_did, const void* other_pc, size_t at) const {
    return format("race on shared memory: thread %d %s what thread %d %s, with no %s between "
                  "(byte %zu of %s; now at %s, before at %s)",
                  by.thread, did, other, other_did,
                  by.thread / 32 == other / 32 ? "__syncwarp" : "__syncthreads", at, name_,
                  place(pc).c_str(), place(other_pc).c_str());
  }

  const char* name_ = "";
  uintptr_t begin_ = 0;
  size_t bytes_ = 0;
  uint32_t first_epoch_ = 1;
  std::string unwritten_;
  std::vector<unsigned char> parked_;
  Cell* cells_ = nullptr;
  size_t shadow_bytes_ = 0;
};

}  // namespace simt
