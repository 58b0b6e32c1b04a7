// One fiber a CUDA thread: a stack of its own and a switch between stacks. swapcontext() would do,
// but it makes a system call for the signal mask each time: 20 times the cost of a switch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <sys/mman.h>

#include "report.h"

// -DSIMT_UCONTEXT takes the portable way everywhere, which is how it is tested.
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT
#endif
#if defined(SIMT_UCONTEXT)
#include <ucontext.h>
#endif

namespace simt {

// Room for a thread's registers, arrays and libm, with an unmapped page below each stack.
constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kMaxThreads = 1024;

#if !defined(SIMT_UCONTEXT)

using Context = void*;  // the stack pointer; the registers a call preserves lie above it

// Saves the registers that a call preserves, stores the stack pointer in *from, and goes on at `to`.
extern "C" void simt_switch(Context* from, Context to);

#if defined(__x86_64__)
asm(R"(
.text
.globl simt_switch
.type simt_switch, @function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch, .-simt_switch
)");
constexpr size_t kSavedWords = 6;  // below the return address
#else
asm(R"(
.text
.globl simt_switch
.type simt_switch, %function
simt_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size simt_switch, .-simt_switch
)");
#endif

// Prepares `context` so that the first switch to it calls entry() on the stack that ends at `top`.
inline void prepare(Context* context, char* top, void (*entry)()) {
  auto* word = reinterpret_cast<uintptr_t*>(top);
#if defined(__x86_64__)
  *--word = 0;  // keeps the stack as a call leaves it: 8 bytes off a multiple of 16
  *--word = reinterpret_cast<uintptr_t>(entry);
  for (size_t i = 0; i < kSavedWords; ++i) *--word = 0;
#else
  word -= 20;
  for (size_t i = 0; i < 20; ++i) word[i] = 0;
  word[11] = reinterpret_cast<uintptr_t>(entry);  // x30
#endif
  *context = word;
}

#else

using Context = ucontext_t;

inline void simt_switch(Context* from, Context& to) { swapcontext(from, &to); }

inline void prepare(Context* context, char* top, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = top - kStackBytes;
  context->uc_stack.ss_size = kStackBytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

#endif

// Blocks whose stacks have guards. All blocks run the same code, so one of these overflows first; and
// the system allows 65530 mappings, of which a guard makes two.
constexpr size_t kGuardedBlocks = 16;

// The stacks of a block's threads, mapped once; the system gives memory to the pages touched.
class Stacks {
 public:
  void set_guarded(bool guarded) { guarded_ = guarded; }

  char* top(size_t thread) {
    if (!base_) map();
    // Equal offsets in all stacks would share few sets of the cache: a switch took twice the time.
    return base_ + (thread + 1) * kPitch - thread % 64 * 192;
  }

  // The thread whose stack overflowed into `address`, or -1.
  int64_t overflowed(uintptr_t address) const {
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(base_);
    if (!base_ || offset >= kMaxThreads * kPitch || offset % kPitch >= kGuard) return -1;
    return static_cast<int64_t>(offset / kPitch);
  }

 private:
  static constexpr size_t kGuard = 64 * 1024;  // whole pages on every system
  static constexpr size_t kPitch = kGuard + kStackBytes;

  void map() {
    void* mapped = mmap(nullptr, kMaxThreads * kPitch, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) fail("the emulator could not map the stacks of 1024 threads");
    base_ = static_cast<char*>(mapped);
    for (size_t i = 0; guarded_ && i < kMaxThreads; ++i) {
      mprotect(base_ + i * kPitch, kGuard, PROT_NONE);
    }
  }

  char* base_ = nullptr;
  bool guarded_ = true;
};

}  // namespace simt
