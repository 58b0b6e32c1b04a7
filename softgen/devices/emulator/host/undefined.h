// -fsanitize=alignment,bounds and others: the calls the compiler makes when a check fails. libubsan is not
// linked; its public layout of the arguments (file, line, column, type) is read here.
#pragma once

#include "access.h"

namespace simt {

struct SourceLocation {
  const char* file;
  uint32_t line;
  uint32_t column;
};

struct TypeDescriptor {
  uint16_t kind;
  uint16_t info;
  char name[1];  // the compiler's spelling, in quotes, ended by 0
};

struct TypeMismatch {
  SourceLocation at;
  const TypeDescriptor* type;
  unsigned char log_alignment;
  unsigned char check_kind;
};

struct OutOfBounds {
  SourceLocation at;
  const TypeDescriptor* array;
  const TypeDescriptor* index;
};

struct Overflow {
  SourceLocation at;
  const TypeDescriptor* type;
};

struct BadShift {
  SourceLocation at;
  const TypeDescriptor* shifted;
  const TypeDescriptor* by;
};

// The kernel's line: the check may stand in a header of the emulator, inlined into the kernel.
inline std::string spot(const SourceLocation& at, const void* pc) {
  const std::string file = at.file ? at.file : "";
  const bool kernel = file.size() > 3 && file.compare(file.size() - 3, 3, ".cu") == 0;
  return kernel ? format("%s:%u", at.file, at.line) : place(pc);
}

inline std::string what_array(uintptr_t address) {
  const Array* array = array_near(address);
  return array ? " to " + array->element_name(array->element_at(address)) : std::string();
}

[[noreturn]] inline void fail_misaligned(uintptr_t address, unsigned alignment,
                                         const std::string& where) {
  fail(current_thread() + format(": misaligned %u-byte access", alignment) + what_array(address) +
       format(", %u bytes off a multiple of %u, at ", static_cast<unsigned>(address % alignment),
              alignment) +
       where);
}

extern "C" inline __attribute__((used)) void simt_require_aligned(const void* address, int size,
                                                                 const char* file, int line) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto alignment = static_cast<unsigned>(size);
  if (at % alignment != 0) fail_misaligned(at, alignment, format("%s:%d", file, line));
}

extern "C" inline __attribute__((used)) void simt_copy_does_not_fit(const char* file, int line) {
  fail(current_thread() + format(" copied past the end of a variable at %s:%d", file, line));
}

extern "C" inline __attribute__((used)) void simt_atomic(const void* address, int size,
                                                        const void* pc, const char* file,
                                                        int line) {
  simt_require_aligned(address, size, file, line);
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto bytes = static_cast<size_t>(size);
  if (workspace_array && workspace_array->near(at)) {
    on_access(at, bytes, false, pc);
    on_access(at, bytes, true, pc);
    return;
  }
  Block& block = *launch.block;
  for (SharedRegion* region : {&block.static_shared, &block.dynamic_shared}) {
    if (!region->covers(at)) continue;
    ++work.shared;
    note_access(region == &block.dynamic_shared, region->named(at - region->begin()), bytes, true);
    return fail_if(region->write(at, bytes, accessor(), pc, {Writer::kAtomic}));
  }
  fail(current_thread() + format(" called an atomic at %s:%d, outside of the workspace ", file, line) +
       "and of shared memory: the emulator has no other");
}

}  // namespace simt

extern "C" {

[[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(simt::TypeMismatch* data,
                                                        uintptr_t address) {
  const std::string where = simt::spot(data->at, __builtin_return_address(0));
  const unsigned alignment = 1u << data->log_alignment;
  if (address % alignment != 0) simt::fail_misaligned(address, alignment, where);
  simt::fail(simt::current_thread() + ": access of " + data->type->name +
             " outside of its variable, at " + where);
}

#define SIMT_OVERFLOW(handler, words)                                                  \
  [[noreturn]] void __ubsan_handle_##handler##_abort(simt::Overflow* data, uintptr_t,    \
                                                  uintptr_t) {                           \
    simt::fail(simt::current_thread() + ": " words " of " + data->type->name + " at " +  \
               simt::spot(data->at, __builtin_return_address(0)));                       \
  }
SIMT_OVERFLOW(add_overflow, "overflow in a sum")
SIMT_OVERFLOW(sub_overflow, "overflow in a difference")
SIMT_OVERFLOW(mul_overflow, "overflow in a product")
SIMT_OVERFLOW(negate_overflow, "overflow in a negation")
SIMT_OVERFLOW(divrem_overflow, "division by zero, or overflow in it,")
#undef SIMT_OVERFLOW

[[noreturn]] void __ubsan_handle_shift_out_of_bounds_abort(simt::BadShift* data, uintptr_t,
                                                           uintptr_t by) {
  simt::fail(simt::current_thread() +
             simt::format(": shift of %s by %lld at ", data->shifted->name,
                          static_cast<long long>(by)) +
             simt::spot(data->at, __builtin_return_address(0)));
}

[[noreturn]] void __ubsan_handle_out_of_bounds_abort(simt::OutOfBounds* data, uintptr_t index) {
  simt::fail(simt::current_thread() +
             simt::format(": index %lld out of bounds of %s at ", static_cast<long long>(index),
                          data->array->name) +
             simt::spot(data->at, __builtin_return_address(0)));
}
}
