// Shared memory of a block and a precise race check of it, byte by byte.
//
// Two accesses of which one writes must be ordered: by a __syncthreads of the block between them, or
// for lanes of one warp by a __syncwarp that names both. A shuffle orders nothing (CUDA C++
// Programming Guide, "Warp Shuffle Functions": no memory barrier is implied).
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>

#include "report.h"

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

// Who is at work now, for the shadow.
struct Accessor {
  int thread;
  uint32_t epoch;  // of the block's barrier
  const WarpClock* clock;
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
      const std::string wrong = write ? on_write(cell, i, by, pc) : on_read(cell, i, by, pc);
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

 private:
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
    } else if (cell.write_epoch == by.epoch && !ordered(by, cell.writer, cell.write_stamp)) {
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
    if (cell.write_epoch == by.epoch && !ordered(by, cell.writer, cell.write_stamp)) {
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
  Cell* cells_ = nullptr;
  size_t shadow_bytes_ = 0;
};

}  // namespace simt
