// What the kernels' side and the host's side of the emulator agree on.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
};

namespace simt {

// Largest shared memory that a block can opt in to on any GPU so far (sm_90, sm_100).
constexpr int kMaxDynamicShared = 227 * 1024;

// Between the static shared variables of a kernel lie gaps, which nobody may touch.
constexpr int kGapWords = 8;
constexpr unsigned long long kGapWord = 0x5e9a70fda7b1c3e5;

// One kernel of a unit.
struct Kernel {
  void (*call)(void* const* arrays, long long rows, unsigned char* workspace);
  bool takes_workspace;
  unsigned char* shared_begin;  // both null where the kernel has no static shared memory
  unsigned char* shared_end;
};

enum class WarpCall : int { kIndex, kUp, kDown, kXor, kBallot, kMax, kSync };

extern "C" {
extern unsigned char simt_dynamic_shared[kMaxDynamicShared];

// Ends the run unless a word of `size` bytes may be accessed at `address`.
void simt_require_aligned(const void* address, int size, const char* file, int line);

[[noreturn]] void simt_copy_does_not_fit(const char* file, int line);

// Copies a word of several elements. Those that other threads have overwritten, in place, arrive as
// NaN: a kernel may load a neighbour's elements along with its own, if it drops them.
void simt_load_word(void* to, const void* from, int size);
void simt_store_word(void* to, const void* from, int size);

// Clang has one call of it for each in the text, and GCC too, without -fthread-jumps.
#ifdef __clang__
__attribute__((noduplicate))
#endif
void simt_syncthreads(const char* file, int line);

// See ../host/mbarrier.h.
void simt_mbarrier_init(unsigned long long* barrier, int arrivals, const char* file, int line);
void simt_mbarrier_expect(unsigned long long* barrier, int bytes, const char* file, int line);
void simt_mbarrier_arrive(unsigned long long* barrier, int bytes, const char* file, int line);
void simt_mbarrier_wait(unsigned long long* barrier, int parity, const char* file, int line);

// See ../host/block.h.
void simt_await_launch_before();
void simt_allow_next_launch();

// See ../host/copies.h.
void simt_fence_async();
void simt_bulk_prefetch(const void* from, int bytes, const char* file, int line);
void simt_bulk_load(void* to, const void* from, int bytes, unsigned long long* barrier,
                    const char* file, int line);
void simt_copy_async(void* to, const void* from, size_t bytes, const char* file, int line);
void simt_copy_async_end_group();
void simt_copy_async_wait_for_groups(int left);
void simt_copy_async_wait();

// See ../host/cluster.h.
int simt_cluster_rank();
void simt_cluster_arrive(const char* file, int line);
void simt_cluster_wait(const char* file, int line);
void simt_mbarrier_tell(unsigned long long* barrier, int bytes, int rank, const char* file, int line);
void simt_push(const void* part, void* slot, int size, unsigned long long* barrier, int rank,
               const char* file, int line);

// See ../host/mailboxes.h.
void simt_mail_store(unsigned long long* to, const unsigned long long* messages, int count,
                     const char* file, int line);
void simt_mail_load(const unsigned long long* from, unsigned long long* messages, int count,
                    const char* file, int line);
unsigned* simt_mail_count(const unsigned* at, const char* file, int line);
unsigned long long simt_nanoseconds();

// Ends the run unless an atomic may work on `size` bytes at `address`. pc: where it was called.
void simt_atomic(const void* address, int size, const void* pc, const char* file, int line);

// Returns the value of the source lane (shuffles) or the lanes whose value is not 0 (ballot).
unsigned long long simt_warp_call(WarpCall call, unsigned mask, unsigned long long bits,
                                  int operand, int width, const char* file, int line);
}

}  // namespace simt
