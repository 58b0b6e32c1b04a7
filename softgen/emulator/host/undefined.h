// -fsanitize=alignment,bounds: the calls the compiler makes when a check fails. libubsan is not
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

// The kernel's line: the check may stand in a header of the emulator, inlined into the kernel.
inline std::string spot(const SourceLocation& at, const void* pc) {
  const std::string file = at.file ? at.file : "";
  const bool kernel = file.size() > 3 && file.compare(file.size() - 3, 3, ".cu") == 0;
  return kernel ? format("%s:%u", at.file, at.line) : place(pc);
}

inline std::string what_array(uintptr_t address) {
  for (const Array* array : {y_array.get(), x_array.get(), workspace_array.get()}) {
    if (array && array->near(address)) {
      return " to " + array->element_name(array->element_at(address));
    }
  }
  return {};
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

extern "C" inline __attribute__((used)) void simt_atomic(const void* address, int size,
                                                        const char* file, int line) {
  simt_require_aligned(address, size, file, line);
  if (!workspace_array || !workspace_array->near(reinterpret_cast<uintptr_t>(address))) {
    fail(current_thread() + format(" called an atomic at %s:%d, outside of the workspace: ", file,
                                   line) + "the emulator has no other");
  }
}

}  // namespace simt

extern "C" {

[[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(simt::TypeMismatch* data,
                                                        uintptr_t address) {
  simt::fail_misaligned(address, 1u << data->log_alignment,
                        simt::spot(data->at, __builtin_return_address(0)));
}

[[noreturn]] void __ubsan_handle_out_of_bounds_abort(simt::OutOfBounds* data, uintptr_t index) {
  simt::fail(simt::current_thread() +
             simt::format(": index %lld out of bounds of %s at ", static_cast<long long>(index),
                          data->array->name) +
             simt::spot(data->at, __builtin_return_address(0)));
}
}
