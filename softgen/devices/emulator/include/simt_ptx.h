// Host twins of the functions that emitted files write in PTX, under `#ifndef SOFTGEN_EMULATOR`.
#pragma once

#include "simt_float8.h"

namespace simt {

template <typename T>
struct Identity {
  using Type = T;
};
template <typename T>
using Same = typename Identity<T>::Type;  // no deduction from here: the argument may be in braces

}  // namespace simt

template <typename T, typename Word>
__device__ void load_word(const T* from, Word& to, SIMT_SITE) {
  simt::simt_require_aligned(from, alignof(Word), file, line);
  simt::simt_load_word(&to, from, sizeof(Word));
}

// How long the L2 cache keeps a line is nothing that a kernel sees.
template <typename T, typename Word>
__device__ void load_word(const T* from, Word& to, unsigned long long, SIMT_SITE) {
  load_word(from, to, file, line);
}

template <typename T, typename Word>
__device__ void store_word(Word word, T* to, SIMT_SITE) {
  simt::simt_require_aligned(to, alignof(Word), file, line);
  simt::simt_store_word(to, &word, sizeof(Word));
}

inline unsigned signs_of(unsigned halves) {
  return (halves >> 31) * 0xffff0000u | (halves >> 15 & 1) * 0xffffu;
}

template <typename T>
__device__ void load_number(const T* from, T& to, SIMT_SITE) {
  simt::simt_load_word(&to, from, sizeof(T));
}

// It takes part in nothing that a kernel computes; an address that is in no array is a mistake.
template <typename T>
__device__ void fetch_ahead(const T* from, SIMT_SITE) {
  T number;
  simt::simt_load_word(&number, from, sizeof(T));
}

template <typename T>
__device__ void store_kept(simt::Same<T> number, T* to, SIMT_SITE) {
  simt::simt_store_word(to, &number, sizeof(T));
}

// The launch before has always ended here; what is held against the text is that it waits.
template <typename... Arrays>
inline void await_launch_before(Arrays&...) {
  simt::simt_await_launch_before();
}
inline void allow_next_launch() { simt::simt_allow_next_launch(); }

inline unsigned long long product(unsigned a, unsigned b) {
  return static_cast<unsigned long long>(a) * b;
}
inline float unflushed_exp2(float x) { return exp2f(x); }
inline float quotient(float a, float b) { return a / b; }
inline float exact_max(float a, float b) { return simt::larger_by_bits(a, b); }

inline unsigned short two_to_e4m3(float low, float high) {
  return static_cast<unsigned short>(simt::round_to_8_bits<3>(low, 0x7e) |
                                     simt::round_to_8_bits<3>(high, 0x7e) << 8);
}
inline unsigned short two_to_e5m2(float low, float high) {
  return static_cast<unsigned short>(simt::round_to_8_bits<2>(low, 0x7b) |
                                     simt::round_to_8_bits<2>(high, 0x7b) << 8);
}

inline int cluster_rank() { return simt::simt_cluster_rank(); }
inline void cluster_arrive(SIMT_SITE) { simt::simt_cluster_arrive(file, line); }
inline void cluster_wait(SIMT_SITE) { simt::simt_cluster_wait(file, line); }

inline void mbarrier_expect(unsigned long long* barrier, int bytes, SIMT_SITE) {
  simt::simt_mbarrier_expect(barrier, bytes, file, line);
}

inline void mbarrier_tell(unsigned long long* barrier, int bytes, int rank, SIMT_SITE) {
  simt::simt_mbarrier_tell(barrier, bytes, rank, file, line);
}

// Of a cluster's barrier, which has one phase.
inline void mbarrier_wait(unsigned long long* barrier, SIMT_SITE) {
  simt::simt_mbarrier_wait(barrier, 0, file, line);
}

inline void mbarrier_init(unsigned long long* barrier, int arrivals, SIMT_SITE) {
  simt::simt_mbarrier_init(barrier, arrivals, file, line);
}

inline void mbarrier_arrive(unsigned long long* barrier, SIMT_SITE) {
  simt::simt_mbarrier_arrive(barrier, 0, file, line);
}

inline void mbarrier_arrive_expect(unsigned long long* barrier, int bytes, SIMT_SITE) {
  simt::simt_mbarrier_arrive(barrier, bytes, file, line);
}

inline void mbarrier_wait(unsigned long long* barrier, int parity, SIMT_SITE) {
  simt::simt_mbarrier_wait(barrier, parity, file, line);
}

inline void fence_async() { simt::simt_fence_async(); }

__device__ void bulk_load(void* to, const void* from, int bytes, unsigned long long* barrier,
                          SIMT_SITE) {
  simt::simt_bulk_load(to, from, bytes, barrier, file, line);
}

__device__ void bulk_load(void* to, const void* from, int bytes, unsigned long long* barrier,
                          unsigned long long, SIMT_SITE) {
  simt::simt_bulk_load(to, from, bytes, barrier, file, line);
}

__device__ void bulk_prefetch(const void* from, int bytes, SIMT_SITE) {
  simt::simt_bulk_prefetch(from, bytes, file, line);
}

__device__ void copy_async(void* to, const void* from, SIMT_SITE) {
  simt::simt_copy_async(to, from, 16, file, line);
}

template <typename Raw>
__device__ void copy_pack(Raw* to, const void* from, SIMT_SITE) {
  simt::simt_copy_async(to, from, sizeof(Raw), file, line);
}

__device__ void copy_async(void* to, const void* from, unsigned long long, SIMT_SITE) {
  simt::simt_copy_async(to, from, 16, file, line);
}

inline void copy_async_end_group() { simt::simt_copy_async_end_group(); }

template <int kLeft>
void copy_async_wait_for_groups() {
  simt::simt_copy_async_wait_for_groups(kLeft);
}

inline void copy_async_wait() { simt::simt_copy_async_wait(); }

__device__ int next_of(int* count, SIMT_SITE) { return atomicAdd(count, 1, file, line); }

template <typename Part>
__device__ void push(simt::Same<Part> part, Part* slot, unsigned long long* barrier,
                     int rank, SIMT_SITE) {
  simt::simt_push(&part, slot, sizeof(Part), barrier, rank, file, line);
}

__device__ void store_mail(unsigned long long* to, unsigned long long message, SIMT_SITE) {
  simt::simt_mail_store(to, &message, 1, file, line);
}

__device__ void store_mail(unsigned long long* to, unsigned long long a, unsigned long long b,
                           SIMT_SITE) {
  const unsigned long long messages[2] = {a, b};
  simt::simt_mail_store(to, messages, 2, file, line);
}

__device__ void load_mail(const unsigned long long* from, unsigned long long& message, SIMT_SITE) {
  simt::simt_mail_load(from, &message, 1, file, line);
}

__device__ void load_mail(const unsigned long long* from, unsigned long long& a,
                          unsigned long long& b, SIMT_SITE) {
  unsigned long long messages[2];
  simt::simt_mail_load(from, messages, 2, file, line);
  a = messages[0];
  b = messages[1];
}

__device__ unsigned load_count(const unsigned* from, SIMT_SITE) {
  return *simt::simt_mail_count(from, file, line);
}

__device__ void store_count(unsigned* to, unsigned count, SIMT_SITE) {
  *simt::simt_mail_count(to, file, line) = count;
}

__device__ void add_count(unsigned* to, unsigned more, SIMT_SITE) {
  *simt::simt_mail_count(to, file, line) += more;
}

inline unsigned long long nanoseconds() { return simt::simt_nanoseconds(); }
