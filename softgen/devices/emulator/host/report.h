// How a run ends early: a report in plain words on stderr and an exit status of its own.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace simt {

// softgen/emulator/report.py knows it: 86 is no shell's, signal's or sanitizer's.
constexpr int kRuleBroken = 86;

// A code address in a report is written <@hex>; Python replaces it by file and line. One is
// subtracted because a return address belongs to the instruction after the call.
inline std::string place(const void* pc) {
  char text[32];
  std::snprintf(text, sizeof(text), "<@%llx>",
                static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(pc)) - 1);
  return text;
}

inline std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
inline std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof(text), pattern, arguments);
  va_end(arguments);
  return text;
}

// _exit, not exit: the caller may be a signal handler or a fiber on a stack of its own.
[[noreturn]] inline void fail(const std::string& report) {
  const std::string line = report + "\n";
  size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t count = write(2, line.data() + sent, line.size() - sent);
    if (count <= 0) break;
    sent += static_cast<size_t>(count);
  }
  _exit(kRuleBroken);
}

}  // namespace simt
