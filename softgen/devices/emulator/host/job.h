// One launch, as Python describes it on stdin. All fields are 64-bit, so there is no padding.
#pragma once

#include <cstdint>

#include "places.h"

namespace simt {

struct Job {
  int64_t kernel;  // index into the unit's kernels
  int64_t grid;
  int64_t block;
  int64_t first_block;
  int64_t rows;
  int64_t first_row;  // of the arrays; those before are nowhere, and the first ones not computed
  int64_t step;       // rows that the first are, of which none is computed
  int64_t operands;   // as many descriptions follow
  int64_t dynamic_shared;  // bytes
  int64_t cluster;         // blocks of a cluster, of which grid is a multiple
  int64_t together;        // blocks that are alive at a time
  int64_t backwards;       // of those the last goes first
  int64_t workspace;       // bytes, for kernels that take one
  int64_t flush_subnormals;
  int64_t dependent;  // whether the kernel waits for the launch before it
  int64_t seconds;  // after which the launch counts as hung
  int64_t device;   // of those that hold rows together, else 0
  int64_t devices;  // how many; 0 where rows are on one
  int64_t left;     // launches on any of them that follow this one in the input
  int64_t mailbox;  // bytes of each
  int64_t late;     // turns that the device leaves to others before this launch
};

// One operand, in the order of the kernel's parameters; what is an input is followed by its elements.
struct Description {
  char name[16];
  int64_t apart;  // whether it has no elements of rows: a number, or an array of its own size
  int64_t cols;  // elements of a row, or all
  int64_t inner;  // from one of them to the next; rows of one inner lie side by side
  int64_t item;  // bytes of an element
  int64_t shift;    // bytes that it starts after a 16-byte boundary
  int64_t input;    // whether the kernel reads it
  int64_t result;   // whether the kernel writes it
  int64_t same_as;  // the operand whose memory it has, in place, or -1
  Outer outer;      // where its rows are
};

}  // namespace simt
