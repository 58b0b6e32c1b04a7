// Loads and stores of one access, in PTX. The compiler takes a C++ assignment apart where it sees
// fit: eight 2-byte stores in place of one of 16 bytes made a kernel 3 times slower. The CPU
// emulator brings its own.
#ifndef SOFTGEN_EMULATOR
__device__ unsigned short load_word(const unsigned short* from) {
  unsigned short word;
  asm("ld.global.b16 %0, [%1];" : "=h"(word) : "l"(from));
  return word;
}

__device__ unsigned int load_word(const unsigned int* from) {
  unsigned int word;
  asm("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
}

__device__ uint2 load_word(const uint2* from) {
  uint2 word;
  asm("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(word.x), "=r"(word.y) : "l"(from));
  return word;
}

__device__ uint4 load_word(const uint4* from) {
  uint4 word;
  asm("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
      : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
      : "l"(from));
  return word;
}

__device__ void store_word(unsigned short* to, unsigned short word) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(word) : "memory");
}

__device__ void store_word(unsigned int* to, unsigned int word) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

__device__ void store_word(uint2* to, uint2 word) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(word.x), "r"(word.y) : "memory");
}

__device__ void store_word(uint4* to, uint4 word) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word.x), "r"(word.y),
               "r"(word.z), "r"(word.w)
               : "memory");
}
#endif
