// Atomics. Fibers give up the CPU only where they wait, so a plain read and write are one step. The
// host checks them as one access, which the compiler's checks of the two would not know for one.
#pragma once

#define SIMT_ATOMIC_ADD(type)                                                        \
  __attribute__((noinline, no_sanitize("thread"))) inline type atomicAdd(            \
      type* to, type value, SIMT_SITE) {                                             \
    simt::simt_atomic(to, sizeof(type), __builtin_return_address(0), file, line);    \
    const type before = *to;                                                         \
    *to = before + value;                                                            \
    return before;                                                                   \
  }

SIMT_ATOMIC_ADD(int)
SIMT_ATOMIC_ADD(unsigned)
SIMT_ATOMIC_ADD(unsigned long long)
#undef SIMT_ATOMIC_ADD
