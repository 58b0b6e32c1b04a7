// Host twins of the functions that emitted files write in PTX, under `#ifndef SOFTGEN_EMULATOR`.
#pragma once

template <typename Word>
__device__ Word load_word(const Word* from, SIMT_SITE) {
  simt::simt_require_aligned(from, alignof(Word), file, line);
  return *from;
}

template <typename Word>
__device__ void store_word(Word* to, Word word, SIMT_SITE) {
  simt::simt_require_aligned(to, alignof(Word), file, line);
  *to = word;
}
