// What happens at each load and store of the kernel: -fsanitize=thread makes the compiler call the
// __tsan_* functions, which are ours; libtsan is not linked.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "arrays.h"
#include "block.h"

// The linker's names for the bounds of the program.
extern "C" char __executable_start[], _end[];

namespace simt {

// An array that the kernel takes. In place an input is a result too, and both parameters are it.
struct Operand {
  std::unique_ptr<Array> array;
  bool input;
  bool result;
  std::vector<uint32_t> written_by;  // per element of a result: 1 + number of the thread

  uint32_t& writer(int64_t element) { return written_by[static_cast<size_t>(element)]; }
};

inline std::vector<Operand> operands;
inline std::unique_ptr<Array> workspace_array;  // null where the kernel takes none

inline Operand* operand_near(uintptr_t address) {
  for (Operand& operand : operands) {
    if (operand.array->near(address)) return &operand;
  }
  return nullptr;
}

// The array that the address is in or near, or null.
inline const Array* array_near(uintptr_t address) {
  if (const Operand* operand = operand_near(address)) return operand->array.get();
  return workspace_array && workspace_array->near(address) ? workspace_array.get() : nullptr;
}

inline uint32_t thread_number() {
  return static_cast<uint32_t>(launch.block->index * launch.block->size + launch.current + 1);
}

inline std::string thread_called(uint32_t number) {
  const uint32_t size = static_cast<uint32_t>(launch.block->size);
  return format("thread %u of block %u", (number - 1) % size, (number - 1) / size);
}

// What the pattern is told: calls of a warp's lanes have the numbers below these, pushes those from
// kPushPattern, and accesses, by the number of the array: the two regions of shared memory, operands.
constexpr uint64_t kPushPattern = 100;
constexpr uint64_t kAccessPattern = 200;

inline void note_access(uint64_t array, uintptr_t offset, size_t size, bool write) {
  note_pattern(kAccessPattern + 2 * array + write, offset, size);
}

inline void note_access(const Operand& operand, uintptr_t at, size_t size, bool write) {
  const auto base = reinterpret_cast<uintptr_t>(operand.array->data());
  const auto number = static_cast<uint64_t>(&operand - operands.data());
  note_access(2 + number, at - base, size, write);
}

[[noreturn]] inline void fail_at(const std::string& what, const void* pc) {
  fail(current_thread() + " " + what + ", at " + place(pc));
}

inline void require_inside(const Array& array, uintptr_t at, size_t size, bool write,
                           const void* pc) {
  if (array.holds(at, size)) return;
  fail_at(format("%s %zu bytes that reach ", write ? "wrote" : "read", size) +
              array.outside(at, size),
          pc);
}

inline void on_result(Operand& operand, uintptr_t at, size_t size, bool write, const void* pc) {
  const Array& y = *operand.array;
  require_inside(y, at, size, write, pc);
  const uint32_t me = thread_number();
  const int64_t last = y.element_at(at + size - 1);
  for (int64_t i = y.element_at(at); i <= last; ++i) {
    uint32_t& owner = operand.writer(i);
    if (write) {
      if (owner && owner != me) {
        fail_at("wrote " + y.element_name(i) + ", which " + thread_called(owner) +
                    " had written: an element must have one writer",
                pc);
      }
      owner = me;
    } else if (owner != me && (!operand.input || owner)) {
      fail_at("read " + y.element_name(i) +
                  (owner ? " after " + thread_called(owner) + " had overwritten it"
                         : ", an output that nobody wrote"),
              pc);
    }
  }
}

[[noreturn]] inline void fail_outside_shared(uintptr_t at, size_t size, bool write,
                                             const void* pc) {
  Block& block = *launch.block;
  const uintptr_t pool = reinterpret_cast<uintptr_t>(simt_dynamic_shared);
  const bool dynamic = at - pool < static_cast<uintptr_t>(kMaxDynamicShared);
  const SharedRegion& region = dynamic ? block.dynamic_shared : block.static_shared;
  fail_at(format("%s %zu bytes outside of ", write ? "wrote" : "read", size) + region.name() +
              format(", which has %zu bytes, at byte %lld", region.bytes(),
                     static_cast<long long>(region.named(at - region.begin()))),
          pc);
}

inline Accessor accessor() {
  const Block& block = *launch.block;
  return {launch.current, block.epoch, &block.clocks, this_thread().arrived};
}

inline void fail_if(const std::string& wrong) {
  if (wrong.empty()) return;
  fail(format("block %lld: ", static_cast<long long>(launch.block->index)) + wrong);
}

// Whether the address is a local variable of the running thread, of which nothing is to be checked.
inline bool is_local(uintptr_t at) {
  const auto frame = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  return at - frame < reinterpret_cast<uintptr_t>(launch.stack_top) - frame;
}

inline void on_access(uintptr_t at, size_t size, bool write, const void* pc,
                      bool may_be_constant = false) {
  if (is_local(at)) return;
  Block& block = *launch.block;
  for (SharedRegion* region : {&block.static_shared, &block.dynamic_shared}) {
    if (!region->covers(at)) continue;
    ++work.shared;
    note_access(region == &block.dynamic_shared, region->named(at - region->begin()), size, write);
    const Accessor by = accessor();
    return fail_if(write ? region->write(at, size, by, pc) : region->read(at, size, by, pc));
  }
  if (Operand* operand = operand_near(at)) {
    require_launch_before_awaited("touched an array", pc);
    ++work.global;
    note_access(*operand, at, size, write);
    if (operand->result) return on_result(*operand, at, size, write, pc);
    const Array& x = *operand->array;
    require_inside(x, at, size, write, pc);
    if (write) {
      fail_at("wrote " + x.element_name(x.element_at(at)) + ", but " + x.name() +
                  " is const and no result",
              pc);
    }
    return;
  }
  if (workspace_array && workspace_array->near(at)) {
    require_launch_before_awaited("touched the workspace", pc);
    ++work.workspace;
    return require_inside(*workspace_array, at, size, write, pc);
  }
  // The kernels have no other variables, and compilers do not instrument reads of constants.
  const bool in_program = at - reinterpret_cast<uintptr_t>(__executable_start) <
                          static_cast<uintptr_t>(_end - __executable_start);
  const uintptr_t first_builtin = reinterpret_cast<uintptr_t>(&simt_builtins.thread);
  if (in_program && !may_be_constant && at - first_builtin >= 4 * sizeof(uint3)) {
    fail_outside_shared(at, size, write, pc);
  }
}

// Other threads come to run while one of them reads the same from the same places again and again:
// so often, and twice from each.
constexpr size_t kPatience = 64;
constexpr size_t kMostPolls = 1024;

// Whether the read is one more of those that found nothing new.
inline bool is_idle(Spin& spin, const Poll& poll) {
  spin.last = poll;
  if (spin.polls.size() == kMostPolls) spin.polls.clear();
  Poll& before = spin.polls[poll.at];
  const bool same = before.size == poll.size && before.found == poll.found;
  before = poll;
  return same;
}

inline void on_volatile_read(const void* at, size_t size, const void* pc) {
  on_access(reinterpret_cast<uintptr_t>(at), size, false, pc);
  if (!workspace_array || !workspace_array->near(reinterpret_cast<uintptr_t>(at))) return;
  Spin& spin = this_thread().spin;
  spin.pc = pc;
  spin.count = is_idle(spin, {at, size, bits_at(at, size)}) ? spin.count + 1 : 0;
  if (spin.count < kPatience + 2 * spin.polls.size()) return;
  spin.count = 0;
  wait(State::kSpinning);
}

inline void on_load_word(unsigned char* to, const void* from, size_t size, const void* pc) {
  const auto at = reinterpret_cast<uintptr_t>(from);
  Operand* operand = operand_near(at);
  if (!operand || !operand->input || !operand->result) {
    on_access(at, size, false, pc);
    std::memcpy(to, from, size);
    return;
  }
  const Array& x = *operand->array;
  require_launch_before_awaited("touched an array", pc);
  ++work.global;
  note_access(*operand, at, size, false);
  require_inside(x, at, size, false, pc);
  std::memcpy(to, from, size);
  const auto item = static_cast<size_t>(x.item());
  const uint32_t me = thread_number();
  size_t stale = 0;
  for (size_t i = 0; i < size; i += item) {
    const uint32_t owner = operand->writer(x.element_at(at + i));
    if (!owner || owner == me) continue;
    std::memset(to + i, kPoison, item);
    stale += item;
  }
  if (stale == size) on_result(*operand, at, size, false, pc);  // not one element can be the thread's own
}

}  // namespace simt

#define SIMT_HOOK(name, size, write)                                              \
  extern "C" void __tsan_##name(void* at) {                                       \
    simt::on_access(reinterpret_cast<uintptr_t>(at), size, write,                 \
                    __builtin_return_address(0));                                 \
  }
#define SIMT_HOOKS(size)                        \
  SIMT_HOOK(read##size, size, false)            \
  SIMT_HOOK(write##size, size, true)            \
  SIMT_HOOK(volatile_write##size, size, true)   \
  SIMT_HOOK(unaligned_read##size, size, false)  \
  SIMT_HOOK(unaligned_write##size, size, true)

// Only volatile reads may wait for another thread.
#define SIMT_VOLATILE_READ(size)                                             \
  extern "C" void __tsan_volatile_read##size(void* at) {                     \
    simt::on_volatile_read(at, size, __builtin_return_address(0));           \
  }
SIMT_VOLATILE_READ(1)
SIMT_VOLATILE_READ(2)
SIMT_VOLATILE_READ(4)
SIMT_VOLATILE_READ(8)
SIMT_VOLATILE_READ(16)

SIMT_HOOKS(1)
SIMT_HOOKS(2)
SIMT_HOOKS(4)
SIMT_HOOKS(8)
SIMT_HOOKS(16)

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

void __tsan_read_range(void* at, size_t size) {
  simt::on_access(reinterpret_cast<uintptr_t>(at), size, false, __builtin_return_address(0));
}

void __tsan_write_range(void* at, size_t size) {
  simt::on_access(reinterpret_cast<uintptr_t>(at), size, true, __builtin_return_address(0));
}

void simt_load_word(void* to, const void* from, int size) {
  simt::on_load_word(static_cast<unsigned char*>(to), from, static_cast<size_t>(size),
                     __builtin_return_address(0));
}

void simt_store_word(void* to, const void* from, int size) {
  simt::on_access(reinterpret_cast<uintptr_t>(to), static_cast<size_t>(size), true,
                  __builtin_return_address(0));
  std::memcpy(to, from, static_cast<size_t>(size));
}

// What the kernels' calls of memcpy, memmove and memset become (see unit.py).
void* simt_memcpy(void* to, const void* from, size_t size) {
  const void* pc = __builtin_return_address(0);
  if (size > 0) {
    simt::on_access(reinterpret_cast<uintptr_t>(from), size, false, pc, true);
    simt::on_access(reinterpret_cast<uintptr_t>(to), size, true, pc);
  }
  return std::memmove(to, from, size);
}

void* simt_memset(void* to, int value, size_t size) {
  if (size > 0) {
    simt::on_access(reinterpret_cast<uintptr_t>(to), size, true, __builtin_return_address(0));
  }
  return std::memset(to, value, size);
}
}
