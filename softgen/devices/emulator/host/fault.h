// Signals: a fault that no hook foresaw, and a kernel that does not come to an end.
#pragma once

#include <csignal>
#include <cstring>

#include "access.h"

namespace simt {

inline int64_t time_limit = 0;

inline std::string where_fault(uintptr_t address) {
  if (launch.block->stacks.overflowed(address) >= 0) {
    return format("overflowed its stack of %zu KiB", kStackBytes / 1024);
  }
  if (const Array* array = array_near(address)) {
    if (array->holds(address, 1)) {
      return "wrote " + array->element_name(array->element_at(address)) + ", but it is const";
    }
    return "touched " + array->outside(address, 1);
  }
  return format("touched address 0x%llx, which belongs to no array",
                static_cast<unsigned long long>(address));
}

inline void on_fault(int signal, siginfo_t* info, void*) {
  if (launch.current < 0) {
    fail(format("the emulator itself failed with signal %d", signal));
  }
  if (signal == SIGSEGV || signal == SIGBUS) {
    fail(current_thread() + " " + where_fault(reinterpret_cast<uintptr_t>(info->si_addr)));
  }
  fail(current_thread() + format(" stopped with signal %d", signal));
}

inline void on_alarm(int) {
  fail(format("the kernel did not end within %lld s; ", static_cast<long long>(time_limit)) +
       (launch.current < 0 ? format("block %lld", static_cast<long long>(launch.block->index))
                           : current_thread()) +
       " was running");
}

// On a stack of their own: the fiber's may be the one that overflowed.
inline void install_handlers() {
  static char stack[64 * 1024];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof(stack);
  sigaltstack(&alternate, nullptr);
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = on_fault;
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(signal, &action, nullptr);
  struct sigaction alarm_action {};
  alarm_action.sa_flags = SA_ONSTACK;
  alarm_action.sa_handler = on_alarm;
  sigaction(SIGALRM, &alarm_action, nullptr);
}

}  // namespace simt
