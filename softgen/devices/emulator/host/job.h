// One launch, as Python describes it on stdin. All fields are 64-bit, so there is no padding.
#pragma once

#include <cstdint>

namespace simt {

struct Job {
  int64_t kernel;  // index into the unit's kernels
  int64_t grid;
  int64_t block;
  int64_t first_block;
  int64_t rows;
  int64_t first_row;  // of x and y; those before are nowhere, and the first itself is not computed
  int64_t cols;
  int64_t x_item;  // bytes of an element
  int64_t y_item;
  int64_t x_shift;  // bytes that x starts after a 16-byte boundary
  int64_t y_shift;
  int64_t in_place;        // y is x
  int64_t dynamic_shared;  // bytes
  int64_t cluster;         // blocks of a cluster, of which grid is a multiple
  int64_t together;        // blocks that are alive at a time
  int64_t backwards;       // of those the last goes first
  int64_t workspace;       // bytes, for kernels that take one
  int64_t flush_subnormals;
  int64_t seconds;  // after which the launch counts as hung
};

}  // namespace simt
