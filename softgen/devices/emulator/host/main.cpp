// The program that runs the kernels of a unit: jobs come on stdin, results go to stdout, and a
// broken rule ends it with a report on stderr.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

#include "../include/simt_interface.h"

// The built-in variables, const for the kernels (see simt.h). Clang instruments the reads of them,
// so access.h must know them; far from shared memory, so that an index that runs out of that does
// not pass for one of them.
struct Builtins {
  unsigned char before[4096];
  uint3 thread;
  uint3 block;
  dim3 block_size;
  dim3 grid_size;
  unsigned char after[4096];
};
extern "C" Builtins simt_builtins;
Builtins simt_builtins;
asm(R"(
.globl threadIdx, blockIdx, blockDim, gridDim
.set threadIdx, simt_builtins + 4096
.set blockIdx, simt_builtins + 4108
.set blockDim, simt_builtins + 4120
.set gridDim, simt_builtins + 4132
)");

#include "access.h"
#include "block.h"
#include "cluster.h"
#include "fault.h"
#include "mailboxes.h"
#include "mailboxes.h"
#include "scheduler.h"
#include "undefined.h"
#include "warp.h"

// Defined by the unit.
extern const simt::Kernel simt_kernels[];

alignas(1024) unsigned char simt::simt_dynamic_shared[simt::kMaxDynamicShared];

namespace simt {

Launch launch;

namespace {

// Returns false at the end of the input.
bool receive(void* to, size_t bytes) {
  auto* at = static_cast<unsigned char*>(to);
  for (size_t got = 0; got < bytes;) {
    const ssize_t count = read(0, at + got, bytes - got);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    got += static_cast<size_t>(count);
  }
  return true;
}

void send(const void* from, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(from);
  for (size_t sent = 0; sent < bytes;) {
    const ssize_t count = write(1, at + sent, bytes - sent);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) _exit(1);
    sent += static_cast<size_t>(count);
  }
}

// As -ftz=true does on the GPU: subnormal float32 operands and results count as zero.
void flush_subnormals(bool flush) {
#if defined(__x86_64__)
  unsigned control = __builtin_ia32_stmxcsr();
  control = flush ? control | 0x8040 : control & ~0x8040u;
  __builtin_ia32_ldmxcsr(control);
#elif defined(__aarch64__)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  control = flush ? control | (1ull << 24) : control & ~(1ull << 24);
  asm volatile("msr fpcr, %0" ::"r"(control));
#else
  (void)flush;
#endif
}

void require_all_written(const Job& job, const Operand& operand) {
  const Array& y = *operand.array;
  const size_t of_a_row = y.elements() / static_cast<size_t>(job.rows);
  const size_t from = job.first_row ? static_cast<size_t>(job.step) * of_a_row : 0;
  size_t missing = 0, first = 0;
  for (size_t i = operand.written_by.size(); i-- > from;) {
    if (!operand.written_by[i] && !y.is_gap(i)) ++missing, first = i;
  }
  if (missing) {
    fail(format("%zu of %zu elements of %s were never written; the first is ", missing,
                operand.written_by.size(), y.name()) +
         y.element_name(static_cast<int64_t>(first)));
  }
}

void require_results(const Job& job) {
  for (const Operand& operand : operands) {
    if (operand.result) require_all_written(job, operand);
    if (!operand.array->gaps_are_intact()) {
      fail("the kernel wrote outside of its arrays, into the gap before a guard page");
    }
  }
}

// Rows come and go one after another, wherever they lie here.
bool receive_rows(const Array& array, int64_t rows) {
  if (!array.apart()) return receive(array.data(), array.bytes());
  for (int64_t row = 0; row < rows; ++row) {
    if (!receive(array.row(row), array.row_bytes())) return false;
  }
  return true;
}

void send_rows(const Array& array, int64_t rows) {
  if (!array.apart()) return send(array.data(), array.bytes());
  for (int64_t row = 0; row < rows; ++row) send(array.row(row), array.row_bytes());
}

// Takes the descriptions of the job's arrays, and their elements.
void set_up_operands(const Job& job) {
  operands.clear();
  launch.arguments.assign(static_cast<size_t>(job.operands), nullptr);
  std::vector<size_t> places;
  for (int64_t i = 0; i < job.operands; ++i) {
    Description one;
    if (!receive(&one, sizeof(one))) fail("the input ended within a job");
    if (one.same_as < 0) {
      places.push_back(operands.size());
      const int64_t rows = one.apart ? 1 : job.rows;
      operands.push_back({std::make_unique<Array>(one.name, rows, one.cols, one.inner, one.item,
                                                  one.shift, Places(one.outer, one.cols)),
                          one.input != 0, one.result != 0, {}});
    } else {
      places.push_back(places[static_cast<size_t>(one.same_as)]);
      operands[places.back()].result = true;
    }
    launch.arguments[static_cast<size_t>(i)] =
        operands[places.back()].array->first_row() -
        (one.apart ? 0 : job.first_row * one.cols * one.item);
  }
  for (Operand& operand : operands) {
    const Array& array = *operand.array;
    if (operand.input && !receive_rows(array, job.rows)) {
      fail(format("the input ended within %s", array.name()));
    }
    if (job.devices) put_addresses(array, job.device);
    if (!operand.result) operand.array->forbid_writes();
    if (operand.result) operand.written_by.assign(array.elements(), 0);
  }
}

void set_up_workspace(const Job& job) {
  const bool takes = simt_kernels[job.kernel].takes_workspace;
  workspace_array.reset();
  launch.workspace = nullptr;
  if (!takes && job.workspace) fail("the launch has a workspace and the kernel takes none");
  if (!takes) return;
  workspace_array = std::make_unique<Array>("workspace", job.workspace, 1, 1, 1, 0);
  workspace_array->clear();
  launch.workspace = workspace_array->data();
}

// A launch that finds other bytes than zero in its workspace computes nonsense.
void require_workspace_clear() {
  if (!workspace_array) return;
  size_t dirty = 0, first = 0;
  for (size_t i = workspace_array->bytes(); i-- > 0;) {
    if (launch.workspace[i]) ++dirty, first = i;
  }
  if (dirty) {
    fail(format("the launch left its workspace dirty: %zu of %zu bytes are not zero, the first is "
                "byte %zu",
                dirty, workspace_array->bytes(), first));
  }
  if (!workspace_array->gaps_are_intact()) {
    fail("the kernel wrote outside of its workspace, into the gap before a guard page");
  }
}

void set_up(const Job& job) {
  const Kernel& kernel = simt_kernels[job.kernel];
  launch.kernel = &kernel;
  launch.rows = job.first_row + job.rows;
  set_up_workspace(job);
  launch.cluster_size = static_cast<int>(job.cluster);
  launch.alive = static_cast<int>(job.together);
  launch.backwards = job.backwards != 0;
  launch.dependent = job.dependent != 0;
  while (launch.blocks.size() < static_cast<size_t>(launch.alive)) {
    const bool guarded = job.devices == 0 && launch.blocks.size() <= kGuardedBlocks;
    launch.blocks.emplace_back().stacks.set_guarded(guarded);
  }
  launch.block = &launch.blocks.front();
  for (Block& block : launch.blocks) {
    block.size = static_cast<int>(job.block);
    block.threads.resize(static_cast<size_t>(job.block + 31) / 32 * 32);
    block.static_shared.set("static shared memory", kernel.shared_begin,
                            static_cast<size_t>(kernel.shared_end - kernel.shared_begin));
    block.dynamic_shared.set("dynamic shared memory", simt_dynamic_shared,
                             static_cast<size_t>(job.dynamic_shared));
  }
}

void set_builtins(const Job& job) {
  simt_builtins.block_size = {static_cast<unsigned>(job.block), 1, 1};
  simt_builtins.grid_size = {static_cast<unsigned>(job.grid), 1, 1};
}

// Starts the blocks from `first` on that are alive together.
void go_on_from(const Job& job, int64_t first) {
  launch.alive = static_cast<int>(std::min(job.together, job.grid - first));
  start_blocks(first);
}

void send_results(const Job& job, const Work& done) {
  for (const Operand& operand : operands) {
    if (operand.result) send_rows(*operand.array, job.rows);
  }
  send(&done, sizeof(done));
}

void run(const Job& job) {
  set_up_operands(job);
  set_up(job);
  set_builtins(job);
  work = {};
  time_limit = job.seconds;
  alarm(static_cast<unsigned>(job.seconds));
  flush_subnormals(job.flush_subnormals != 0);
  for (int64_t first = job.first_block; first < job.grid; first += launch.alive) {
    go_on_from(job, first);
    run_alive();
    if (!have_ended()) fail(why_stuck());
  }
  flush_subnormals(false);
  alarm(0);
  require_results(job);
  require_workspace_clear();
  send_results(job, work);
}

#include "devices.h"

}  // namespace
}  // namespace simt

int main() {
  simt::install_handlers();
  simt::Job job;
  while (simt::receive(&job, sizeof(job))) job.devices ? simt::run_devices(job) : simt::run(job);
  return 0;
}
