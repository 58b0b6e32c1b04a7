// Shared memory of a block and a precise race check of it, byte by byte.
//
// Two accesses of which one writes must be ordered: by a __syncthreads of the block between them, by
// an mbarrier at which one thread arrived after the first and the other waited before the second, or
// for lanes of one warp by a __syncwarp that names both. A shuffle orders nothing (CUDA C++
// Programming Guide, "Warp Shuffle Functions": no memory barrier is implied). What is pushed or
// copied is ordered by a wait at the mbarrier that counts it. A cluster barrier orders what the block
// itself did before its arrival and pushes after the wait, and nothing else: cluster_arrive is
// relaxed. Atomics need no order among each other, and before anything else a __syncthreads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <sys/mman.h>
#include <type_traits>
#include <utility>
#include <vector>

#include "clocks.h"
#include "fiber.h"

namespace simt {

// Who is at work now, for the shadow.
struct Accessor {
  int thread;
  uint32_t epoch;  // of the block's barrier
  const Clocks* clocks;
  uint32_t arrived;  // cluster barriers that the thread arrived at
};

// A store that another block of the cluster, or the block itself, sends to an mbarrier.
struct Push {
  int number;     // of the mbarrier in its block, from 0
  int64_t block;  // of the pusher
  int thread;
  uint32_t waited;  // cluster barriers that the pusher waited for
  const void* pc;
};

enum class Writer : uint16_t { kThread, kPush, kBulkLoad, kCopyAsync, kAtomic };

// What a write is, where it is not a plain store.
struct Write {
  Writer kind = Writer::kThread;
  int number = 0;      // of the mbarrier that counts the bytes of a bulk_load
  uint32_t phase = 0;  // of that mbarrier, from 1
};

// The history of one byte: its last writer, and its readers since that and since the block's last
// __syncthreads. Bytes that are accessed together have one history, which the first of them holds.
struct Cell {
  uint32_t write_epoch;
  uint32_t write_stamp;  // of a push or bulk_load: the mbarrier's phase
  uint32_t read_epoch;
  uint32_t read_stamp;
  const void* write_pc;
  const void* read_pc;
  int64_t writer_block;  // of a push
  int32_t phase;         // cluster barriers that the last of the block's own accesses came after
  uint32_t others;       // 1 + index of the list of readers beside `reader`, or 0
  int32_t writer;
  int32_t reader;
  int16_t number;  // of the mbarrier of a push or bulk_load
  uint8_t more;    // bytes behind it that have this history too
  uint8_t back;    // how far before it the byte is that has its history
  Writer kind;
  bool mbarrier;  // one lies here
  bool crowded;   // the list of readers is not whole
};
static_assert(std::has_unique_object_representations_v<Cell>, "cells are compared as bytes");

class SharedRegion {
 public:
  void set(const char* name, unsigned char* begin, size_t bytes) {
    name_ = name;
    begin_ = reinterpret_cast<uintptr_t>(begin);
    bytes_ = bytes;
    parked_.clear();  // of the launch before
    find_gaps();
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
  size_t bytes() const { return named(bytes_); }
  // The offset of a byte as the kernel knows it, without the gaps.
  size_t named(size_t at) const {
    size_t before = 0;
    for (const uintptr_t gap : *gaps_) before += gap < begin_ + at ? kGapBytes : 0;
    return at - before;
  }

  bool covers(uintptr_t address) const { return address - begin_ < bytes_; }
  bool holds(uintptr_t address, size_t size) const {
    return covers(address) && size <= bytes_ - (address - begin_);
  }

  // Starts a block: `epoch` is its first, and larger than any before, so old cells count as empty.
  void begin_block(uint32_t epoch) {
    first_epoch_ = epoch;
    unwritten_.clear();
    readers_.clear();
    std::memset(reinterpret_cast<void*>(begin_), 0xff, bytes_);
  }

  // A read of what nobody wrote. Asked for at the next barrier, not when it happens: if a thread
  // writes it before, the two race, which is the better report.
  const std::string& unwritten() const { return unwritten_; }

  // These return what is wrong with the access, or nothing.
  std::string read(uintptr_t address, size_t size, const Accessor& by, const void* pc) {
    if (!is_inside(address, size)) return outside(address, size, "read", by, pc);
    const size_t end = address - begin_ + size;
    for (size_t i = address - begin_; i < end;) {
      const size_t count = alike_from(i, end);
      if (std::string wrong = why_not(cells_[i], i, "read", by, pc); !wrong.empty()) return wrong;
      note_read(cells_[i], count, i, by, pc);
      i += count;
    }
    return {};
  }

  std::string write(uintptr_t address, size_t size, const Accessor& by, const void* pc,
                    const Write& as = {}) {
    if (!is_inside(address, size)) return outside(address, size, "wrote", by, pc);
    std::string wrong;
    const size_t end = address - begin_ + size;
    for (size_t i = address - begin_; wrong.empty() && i < end;) {
      const size_t count = alike_from(i, end);
      Cell& cell = cells_[i];
      const bool both = as.kind == Writer::kAtomic && cell.kind == Writer::kAtomic;
      if (!both) wrong = why_not(cell, i, "wrote", by, pc);
      if (wrong.empty()) wrong = race_with_reader(cell, i, by, pc);
      if (wrong.empty() && as.kind == Writer::kBulkLoad) wrong = unfenced_reader(cell, i, by, pc);
      if (wrong.empty() && as.kind == Writer::kAtomic) note_read(cell, count, i, by, pc);  // was it written?
      if (wrong.empty()) note_write(cell, by, pc, as);
      i += count;
    }
    return wrong;
  }

  // A copy_async of the thread has come to its end: from now on it is like a store of the thread.
  void end_copy_async(uintptr_t address, size_t size, const Accessor& by) {
    for (size_t i = address - begin_; i < address - begin_ + size; ++i) {
      Cell& cell = cell_at(i);
      note_write(cell, by, cell.write_pc, {});
    }
  }

  // Marks the bytes of an mbarrier, which only its own functions may touch.
  void set_mbarrier(uintptr_t address, bool live) {
    for (size_t i = 0; i < sizeof(uint64_t); ++i) cell_at(address - begin_ + i).mbarrier = live;
  }

  // Records a push to [address, address + size), by any block.
  std::string push(uintptr_t address, size_t size, const Push& push, uint32_t epoch) {
    for (size_t i = address - begin_; i < address - begin_ + size; ++i) {
      Cell& cell = cell_at(i);
      if (cell.kind == Writer::kPush && cell.number == push.number) {
        return format("overwrote what thread %d of block %lld pushed (byte %zu of %s; before at %s)",
                      cell.writer, static_cast<long long>(cell.writer_block), named(i), name_,
                      place(cell.write_pc).c_str());
      }
      const bool read = cell.read_epoch >= first_epoch_;
      if (touched(cell) && cell.kind != Writer::kPush &&
          cell.phase >= static_cast<int32_t>(push.waited)) {
        return format("raced with a %s by the block's own threads, with no cluster barrier between "
                      "(byte %zu of %s; before at %s)",
                      read ? "read" : "write", named(i), name_,
                      place(read ? cell.read_pc : cell.write_pc).c_str());
      }
      cell.write_epoch = epoch;
      cell.write_stamp = 1;  // the only phase of an mbarrier of a cluster
      cell.write_pc = push.pc;
      cell.read_epoch = 0;
      cell.kind = Writer::kPush;
      cell.number = static_cast<int16_t>(push.number);
      cell.writer = push.thread;
      cell.writer_block = push.block;
    }
    return {};
  }

  // While another of the blocks that are alive works, this one's bytes are kept aside.
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
  // Bytes of one history share a list.
  struct Readers {
    std::vector<std::pair<int, uint32_t>> list;  // thread and stamp, by thread
    size_t cells;
  };

  bool touched(const Cell& cell) const {
    return cell.write_epoch >= first_epoch_ || cell.read_epoch >= first_epoch_;
  }

  Cell& cell_at(size_t i) {
    part(i);
    Cell& cell = cells_[i];
    if (!touched(cell)) cell = {};
    return cell;
  }

  // How many bytes from i on, before `end`, have the same history as that one, which is then theirs:
  // mostly all of an access, as those before it were as wide.
  size_t alike_from(size_t i, size_t end) {
    end = std::min(end, i + kMostAlike);
    Cell& first = cells_[i];
    if (first.back || i + 1 + first.more != end) {
      size_t count = 1;
      cell_at(i);
      while (i + count < end && !std::memcmp(&first, &cell_at(i + count), sizeof(Cell))) ++count;
      for (size_t k = 1; k < count; ++k) cells_[i + k].back = static_cast<uint8_t>(k);
      first.more = static_cast<uint8_t>(count - 1);
    } else if (!touched(first)) {
      const uint8_t more = first.more;
      first = {};
      first.more = more;
    }
    return 1 + first.more;
  }

  // Gives each of the bytes that have one history its own.
  void part(size_t i) {
    Cell* first = cells_ + i - cells_[i].back;
    const size_t count = 1 + first->more;
    first->more = 0;
    std::fill_n(first + 1, count - 1, *first);
  }

  // The list of so many cells alike, and of no others.
  Readers& readers_of(Cell& cell, size_t count) {
    Readers* shared = cell.others ? &readers_[cell.others - 1] : nullptr;
    if (shared && shared->cells == count) return *shared;
    if (shared) shared->cells -= count;
    readers_.push_back({shared ? shared->list : decltype(shared->list)(), count});
    cell.others = static_cast<uint32_t>(readers_.size());
    return readers_.back();
  }

  // Gaps are as the compiler filled them until the first block starts.
  void find_gaps() {
    gaps_ = &kNoGaps;
    if (!bytes_) return;
    const auto [known, is_new] = known_gaps_.try_emplace(begin_);
    std::vector<uintptr_t>& gaps = known->second;
    gaps_ = &gaps;
    if (!is_new) return;
    for (uintptr_t at = (begin_ + 7) / 8 * 8; at + kGapBytes <= begin_ + bytes_; at += 8) {
      const auto* words = reinterpret_cast<const unsigned long long*>(at);
      if (std::all_of(words, words + kGapWords, [](auto word) { return word == kGapWord; })) {
        gaps.push_back(at);
        at += kGapBytes - 8;
      }
    }
  }

  bool in_a_gap(uintptr_t address, size_t size) const {
    for (const uintptr_t gap : *gaps_) {
      if (address < gap + kGapBytes && address + size > gap) return true;
    }
    return false;
  }

  bool is_inside(uintptr_t address, size_t size) const {
    return holds(address, size) && !in_a_gap(address, size);
  }

  // What is wrong with an access that is not inside.
  std::string outside(uintptr_t address, size_t size, const char* did, const Accessor& by,
                      const void* pc) const {
    if (in_a_gap(address, size)) {
      return format("thread %d %s %zu bytes outside of the variables in %s, at ", by.thread, did,
                    size, name_) +
             place(pc);
    }
    return format("thread %d %s %zu byte(s) past the end of %s at %s", by.thread, did,
                  size - (bytes_ - (address - begin_)), name_, place(pc).c_str());
  }

  // What is wrong with an access after the last write.
  std::string why_not(const Cell& cell, size_t at, const char* did, const Accessor& by,
                      const void* pc) const {
    if (cell.mbarrier) {
      return format("thread %d %s byte %zu of %s, where an mbarrier lies, at %s", by.thread, did,
                    named(at), name_, place(pc).c_str());
    }
    switch (cell.kind) {
      case Writer::kThread:
        if (cell.write_epoch != by.epoch ||
            by.clocks->ordered(by.thread, cell.writer, cell.write_stamp)) {
          return {};
        }
        return race(by, did, pc, format("thread %d wrote", cell.writer), between(by, cell.writer),
                    cell.write_pc, at);
      case Writer::kAtomic:
        if (cell.write_epoch != by.epoch) return {};
        return race(by, did, pc, format("thread %d changed by an atomic", cell.writer),
                    "__syncthreads", cell.write_pc, at);
      case Writer::kCopyAsync:
        return race(by, did, pc, format("thread %d copies by copy_async", cell.writer),
                    "copy_async_wait", cell.write_pc, at);
      default: break;
    }
    if (by.clocks->phases(by.thread, cell.number) >= cell.write_stamp) return {};
    const std::string other =
        cell.kind == Writer::kBulkLoad
            ? format("thread %d copies by bulk_load", cell.writer)
            : format("thread %d of block %lld pushed", cell.writer,
                     static_cast<long long>(cell.writer_block));
    return race(by, did, pc, other, "mbarrier_wait", cell.write_pc, at);
  }

  std::string race_with_reader(const Cell& cell, size_t at, const Accessor& by,
                               const void* pc) const {
    const int reader = cell.read_epoch == by.epoch ? unordered_reader(cell, by) : -1;
    if (reader < 0) return {};
    return race(by, "wrote", pc, format("thread %d read", reader), between(by, reader),
                cell.read_pc, at);
  }

  // A thread that read the byte and did not call fence_async since: the copy may overtake its read.
  std::string unfenced_reader(const Cell& cell, size_t at, const Accessor& by,
                              const void* pc) const {
    if (cell.read_epoch < first_epoch_) return {};
    const bool last = by.clocks->fenced(cell.reader, cell.read_epoch, cell.read_stamp);
    int reader = last ? -1 : cell.reader;
    if (cell.others) {
      for (const auto& [other, stamp] : readers_[cell.others - 1].list) {
        if (!by.clocks->fenced(other, cell.read_epoch, stamp)) reader = other;
      }
    }
    if (reader < 0 && !cell.crowded) return {};
    const std::string read = reader < 0 ? "threads of many warps read before the first mbarrier"
                                        : format("thread %d read", reader);
    return race(by, "wrote", pc, read, "fence_async", cell.read_pc, at);
  }

  int unordered_reader(const Cell& cell, const Accessor& by) const {
    if (!by.clocks->ordered(by.thread, cell.reader, cell.read_stamp)) return cell.reader;
    if (!cell.others) return -1;
    for (const auto& [reader, stamp] : readers_[cell.others - 1].list) {
      if (!by.clocks->ordered(by.thread, reader, stamp)) return reader;
    }
    return -1;
  }

  // For so many cells alike, of which this is the first.
  void note_read(Cell& cell, size_t count, size_t at, const Accessor& by, const void* pc) {
    if (cell.write_epoch < first_epoch_ && unwritten_.empty()) {
      unwritten_ = format("uninitialised shared memory: thread %d read byte %zu of %s, which no "
                          "thread of the block had written, at %s",
                          by.thread, named(at), name_, place(pc).c_str());
    }
    note_phase(cell, by);
    const uint32_t now = by.clocks->now(by.thread);
    cell.read_pc = pc;
    const bool first = cell.read_epoch != by.epoch;
    if (first && cell.others) readers_of(cell, count).list.clear();
    if (first) cell.crowded = false;
    // Whoever comes after this read comes after the one before too, if that is ordered before this.
    if (first || by.clocks->ordered(by.thread, cell.reader, cell.read_stamp)) {
      cell.read_epoch = by.epoch;
      cell.reader = by.thread;
      cell.read_stamp = now;
    } else {
      note_other_reader(cell, count, by, now);
    }
  }

  // Without an mbarrier threads learn of their own warp's lanes alone: whoever writes before the next
  // __syncthreads, a reader of one of two warps is not ordered before it. 512 threads that compare 1024
  // keys of 16 bytes would leave 8 million entries else.
  bool of_two_warps(const Cell& cell) const {
    if (!cell.others || readers_[cell.others - 1].list.empty()) return false;
    const auto& list = readers_[cell.others - 1].list;
    const int warp = cell.reader / 32;
    return list.front().first / 32 != warp || list.back().first / 32 != warp;
  }

  void note_other_reader(Cell& cell, size_t count, const Accessor& by, uint32_t now) {
    if (!by.clocks->wide() && (cell.crowded || of_two_warps(cell))) {
      cell.crowded = true;
      return;
    }
    auto& list = readers_of(cell, count).list;
    if (list.empty() || list.back().first < by.thread) {  // mostly: threads run in order
      list.emplace_back(by.thread, now);
      return;
    }
    const auto it = std::lower_bound(list.begin(), list.end(), std::pair(by.thread, 0u));
    if (it != list.end() && it->first == by.thread) {
      it->second = now;
    } else {
      list.insert(it, {by.thread, now});
    }
  }

  static void note_phase(Cell& cell, const Accessor& by) {
    cell.phase = std::max(cell.phase, static_cast<int32_t>(by.arrived));
  }

  void note_write(Cell& cell, const Accessor& by, const void* pc, const Write& as) {
    note_phase(cell, by);
    cell.write_epoch = by.epoch;
    cell.write_stamp = as.kind == Writer::kBulkLoad ? as.phase : by.clocks->now(by.thread);
    cell.writer = by.thread;
    cell.write_pc = pc;
    cell.kind = as.kind;
    cell.number = static_cast<int16_t>(as.number);
    cell.read_epoch = 0;  // whoever comes after this write comes after those reads
  }

  static std::string between(const Accessor& by, int other) {
    if (by.thread / 32 == other / 32) return "__syncwarp";
    return by.clocks->wide() ? "__syncthreads or mbarrier" : "__syncthreads";
  }

  std::string race(const Accessor& by, const char* did, const void* pc, const std::string& other,
                   const std::string& between, const void* other_pc, size_t at) const {
    return format("race on shared memory: thread %d %s what %s, with no %s between (byte %zu of %s; "
                  "now at %s, before at %s)",
                  by.thread, did, other.c_str(), between.c_str(), named(at), name_, place(pc).c_str(),
                  place(other_pc).c_str());
  }

  const char* name_ = "";
  uintptr_t begin_ = 0;
  size_t bytes_ = 0;
  uint32_t first_epoch_ = 1;
  std::string unwritten_;
  static constexpr size_t kMostAlike = 16;  // bytes: the widest access
  static constexpr size_t kGapBytes = kGapWords * sizeof(kGapWord);
  inline static const std::vector<uintptr_t> kNoGaps;
  inline static std::unordered_map<uintptr_t, std::vector<uintptr_t>> known_gaps_;  // by begin_
  const std::vector<uintptr_t>* gaps_ = &kNoGaps;
  std::vector<unsigned char> parked_;
  std::deque<Readers> readers_;
  Cell* cells_ = nullptr;
  size_t shadow_bytes_ = 0;
};

}  // namespace simt
