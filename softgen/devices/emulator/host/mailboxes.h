// Mailboxes of devices that hold rows together: each device reads its own, and all write all.
//
// A message is there as soon as it is stored. What is checked: that accesses are aligned and inside of
// a mailbox, and that only its device reads one.
#pragma once

#include "access.h"

namespace simt {

inline std::vector<std::unique_ptr<Array>> mailboxes;  // by device; none where rows are on one
inline int64_t device_at_work = 0;
constexpr uint64_t kAlarmOffset = 64;  // in a mailbox's head, where kernels have nothing
inline unsigned long long clock_now = 0;  // a nanosecond a look at it

// Fills what a kernel is told of where mailboxes are.
inline void put_addresses(const Array& array, int64_t device) {
  const std::string name = array.name();
  auto* to = reinterpret_cast<uint64_t*>(array.data());
  const auto address = [](size_t i) { return reinterpret_cast<uint64_t>(mailboxes[i]->data()); };
  if (name == "alarm") to[0] = address(static_cast<size_t>(device)) + kAlarmOffset;
  if (name == "mailbox") to[0] = address(static_cast<size_t>(device));
  for (size_t i = 0; name == "mailboxes" && i < mailboxes.size(); ++i) to[i] = address(i);
}

// The number of the device whose mailbox holds what is accessed.
inline int64_t mailbox_of(const void* at, size_t size, const char* what, const char* file,
                          int line) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  require_launch_before_awaited("touched a mailbox");
  simt_require_aligned(at, static_cast<int>(size), file, line);
  for (size_t i = 0; i < mailboxes.size(); ++i) {
    if (!mailboxes[i]->near(address)) continue;
    if (mailboxes[i]->holds(address, size)) return static_cast<int64_t>(i);
    fail(current_thread() + format(" %s %zu bytes that reach ", what, size) +
         mailboxes[i]->outside(address, size) + called_at(file, line));
  }
  fail(current_thread() + format(" %s %zu bytes outside of all mailboxes", what, size) +
       called_at(file, line));
}

inline void require_own(const void* at, size_t size, const char* file, int line) {
  const int64_t device = mailbox_of(at, size, "read", file, line);
  if (device == device_at_work) return;
  fail(current_thread() + format(" of device %lld read %s", static_cast<long long>(device_at_work),
                                 mailboxes[static_cast<size_t>(device)]->name()) +
       ", which is another device's" + called_at(file, line));
}

extern "C" {

inline __attribute__((used)) void simt_mail_store(unsigned long long* to,
                                                  const unsigned long long* messages, int count,
                                                  const char* file, int line) {
  const size_t size = static_cast<size_t>(count) * sizeof(*to);
  mailbox_of(to, size, "wrote", file, line);
  std::memcpy(to, messages, size);
}

// Gives up the CPU, so that other devices may be at work before the messages are read.
inline __attribute__((used)) void simt_mail_load(const unsigned long long* from,
                                                 unsigned long long* messages, int count,
                                                 const char* file, int line) {
  const size_t size = static_cast<size_t>(count) * sizeof(*from);
  require_own(from, size, file, line);
  this_thread().waiting.file = file;
  this_thread().waiting.line = line;
  wait(State::kPolling);
  std::memcpy(messages, from, size);
}

inline __attribute__((used)) unsigned* simt_mail_count(const unsigned* at, const char* file,
                                                       int line) {
  require_own(at, sizeof(*at), file, line);
  return const_cast<unsigned*>(at);
}

inline __attribute__((used)) unsigned long long simt_nanoseconds() { return ++clock_now; }
}

}  // namespace simt
