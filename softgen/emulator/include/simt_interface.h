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

// One kernel of a unit.
struct Kernel {
  void (*call)(const void* x, void* y, long long rows);
  unsigned char* shared_begin;  // both null where the kernel has no static shared memory
  unsigned char* shared_end;
};

enum class WarpCall : int { kIndex, kUp, kDown, kXor, kBallot, kSync };

extern "C" {
extern unsigned char simt_dynamic_shared[kMaxDynamicShared];

// Ends the run unless a word of `size` bytes may be accessed at `address`.
void simt_require_aligned(const void* address, int size, const char* file, int line);

void simt_syncthreads(const char* file, int line);

// Returns the value of the source lane (shuffles) or the lanes whose value is not 0 (ballot).
unsigned long long simt_warp_call(WarpCall call, unsigned mask, unsigned long long bits,
                                  int operand, int width, const char* file, int line);
}

}  // namespace simt
