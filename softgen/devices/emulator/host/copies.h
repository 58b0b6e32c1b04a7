// Copies to shared memory that go on while the thread that began them does.
//
// They end as late as they may: bulk copies when nobody of the block can do anything else, so that a
// kernel that does not wait for one, or changes its source before it has, is caught each time.
#pragma once

#include "mbarrier.h"

namespace simt {

constexpr size_t kCopyUnit = 16;

inline std::string copying(const Copy& copy) {
  return format("%s of thread %d of block %lld, at %s:%d",
                copy.mbarrier ? "bulk_load" : "copy_async", copy.thread,
                static_cast<long long>(launch.block->index), copy.file, copy.line);
}

inline std::string inputs() {
  std::string names;
  for (const Operand& operand : operands) {
    if (operand.input) names += (names.empty() ? "" : ", ") + std::string(operand.array->name());
  }
  return names;
}

// Ends the run unless the source still has what it had at the launch.
inline void require_source_intact(const Copy& copy) {
  const auto at = reinterpret_cast<uintptr_t>(copy.from);
  Operand* operand = operand_near(at);
  if (!operand || !operand->result) return;
  const Array& x = *operand->array;
  for (int64_t i = x.element_at(at); i <= x.element_at(at + copy.bytes - 1); ++i) {
    const uint32_t owner = operand->writer(i);
    if (!owner) continue;
    fail(thread_called(owner) + " overwrote " + x.element_name(i) +
         " before it was read by the " + copying(copy));
  }
}

// Ends the run unless `copy` reads whole units of an input.
inline void require_source(const Copy& copy, const std::string& what, size_t unit = kCopyUnit) {
  const std::string where = called_at(copy.file, copy.line);
  const auto from = reinterpret_cast<uintptr_t>(copy.from);
  simt_require_aligned(copy.from, unit, copy.file, copy.line);
  require_launch_before_awaited("copied from an array");
  const Operand* operand = operand_near(from);
  if (!operand || !operand->input) fail(what + " from what is not in " + inputs() + where);
  if (!operand->array->holds(from, copy.bytes)) {
    fail(what + format(" for %zu bytes that reach ", copy.bytes) +
         operand->array->outside(from, copy.bytes) + where);
  }
  note_access(*operand, from, copy.bytes, false);
}

inline void require_units(int bytes, const std::string& what, const std::string& where) {
  if (bytes <= 0 || bytes % static_cast<int>(kCopyUnit) != 0) {
    fail(what + format(" for %d bytes, which is no positive multiple of 16", bytes) + where);
  }
}

// Ends the run unless the running thread may start this copy; returns the region it goes to.
inline SharedRegion& checked(const Copy& copy, const char* call, size_t unit = kCopyUnit) {
  const std::string where = called_at(copy.file, copy.line);
  const std::string what = current_thread() + " called " + call;
  simt_require_aligned(reinterpret_cast<const void*>(copy.to), unit, copy.file, copy.line);
  require_source(copy, what, unit);
  require_source_intact(copy);
  SharedRegion* region =
      region_of(*launch.block, reinterpret_cast<const void*>(copy.to), copy.bytes);
  if (!region) {
    fail(what + format(" to %zu bytes that are not all in the block's shared memory", copy.bytes) +
         where);
  }
  note_access(region == &launch.block->dynamic_shared, region->named(copy.to - region->begin()),
              copy.bytes, true);
  return *region;
}

inline void finish(const Copy& copy) {
  require_source_intact(copy);
  std::memcpy(reinterpret_cast<void*>(copy.to), copy.from, copy.bytes);
}

// Ends the bulk copies of the block in place, the last one first. Returns whether there were any.
inline bool end_bulk_copies() {
  Block& block = *launch.block;
  const bool any = !block.copies.empty();
  while (!block.copies.empty()) {
    const Copy copy = block.copies.back();
    block.copies.pop_back();
    finish(copy);
    copy.mbarrier->received += static_cast<int64_t>(copy.bytes);
    settle(block, *copy.mbarrier);
  }
  return any;
}

extern "C" {

inline __attribute__((used)) void simt_bulk_load(void* to, const void* from, int bytes,
                                                 unsigned long long* barrier, const char* file,
                                                 int line) {
  ++work.copies;
  Block& block = *launch.block;
  const std::string what = current_thread() + " called bulk_load", where = called_at(file, line);
  require_units(bytes, what, where);
  Mbarrier& mbarrier = known_mbarrier(barrier, "bulk_load", file, line);
  const Copy copy{reinterpret_cast<uintptr_t>(to), from, static_cast<size_t>(bytes),
                  launch.current, &mbarrier, file, line};
  SharedRegion& region = checked(copy, "bulk_load");
  const Write write{Writer::kBulkLoad, mbarrier.number, mbarrier.phases + 1};
  fail_if(region.write(copy.to, copy.bytes, accessor(), __builtin_return_address(0), write));
  mbarrier.counting = mbarrier.phases + 1;
  mbarrier.started += bytes;
  require_expected(mbarrier, what, where);
  block.copies.push_back(copy);
}

inline __attribute__((used)) void simt_fence_async() {
  Block& block = *launch.block;
  block.clocks.fence(launch.current, block.epoch);
}

// Moves nothing that a thread could see.
inline __attribute__((used)) void simt_bulk_prefetch(const void* from, int bytes, const char* file,
                                                     int line) {
  ++work.copies;
  const std::string what = current_thread() + " called bulk_prefetch";
  require_units(bytes, what, called_at(file, line));
  require_source({0, from, static_cast<size_t>(bytes), launch.current, nullptr, file, line}, what);
}

inline __attribute__((used)) void simt_copy_async(void* to, const void* from, size_t bytes,
                                                  const char* file, int line) {
  ++work.copies;
  const Copy copy{reinterpret_cast<uintptr_t>(to), from, bytes, launch.current, nullptr,
                  file, line, this_thread().groups};
  SharedRegion& region = checked(copy, "copy_async", bytes);
  const Write write{Writer::kCopyAsync};
  fail_if(region.write(copy.to, copy.bytes, accessor(), __builtin_return_address(0), write));
  this_thread().copies.push_back(copy);
}

inline __attribute__((used)) void simt_copy_async_end_group() { ++this_thread().groups; }

// Ends the copies of all groups but the last `left`; those behind the last group stay on their way.
inline __attribute__((used)) void simt_copy_async_wait_for_groups(int left) {
  Thread& thread = this_thread();
  std::vector<Copy> rest;
  for (const Copy& copy : thread.copies) {
    if (copy.group + static_cast<uint32_t>(left) >= thread.groups) {
      rest.push_back(copy);
      continue;
    }
    finish(copy);
    region_of(*launch.block, reinterpret_cast<const void*>(copy.to), copy.bytes)
        ->end_copy_async(copy.to, copy.bytes, accessor());
  }
  thread.copies.swap(rest);
}

inline __attribute__((used)) void simt_copy_async_wait() {
  simt_copy_async_end_group();
  simt_copy_async_wait_for_groups(0);
}
}

// What has to hold when a thread returns from the kernel.
inline void require_own_copies_awaited() {
  if (this_thread().copies.empty()) return;
  fail(current_thread() + " returned without copy_async_wait: on its way is a " +
       copying(this_thread().copies.front()));
}

}  // namespace simt
