// Arrays between guard zones, and who wrote which of their elements.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "report.h"

namespace simt {

// Wide enough that a stray index still lands in it; never backed by memory.
constexpr size_t kGuardBytes = 16 << 20;
constexpr unsigned char kPoison = 0xff;  // repeated, it is a NaN of each element type

class Array {
 public:
  Array(std::string name, int64_t rows, int64_t cols, int64_t item, int64_t shift)
      : name_(std::move(name)), cols_(cols), item_(item), bytes_(static_cast<size_t>(rows * cols * item)) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    room_ = (bytes_ + 16 + page - 1) / page * page;
    total_ = room_ + 2 * kGuardBytes;
    void* mapped = mmap(nullptr, total_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (mapped == MAP_FAILED ||
        mprotect(static_cast<char*>(mapped) + kGuardBytes, room_, PROT_READ | PROT_WRITE) != 0) {
      fail(format("the emulator could not map %zu bytes for %s", total_, this->name()));
    }
    map_ = static_cast<unsigned char*>(mapped);
    unsigned char* end = map_ + kGuardBytes + room_;
    // As close to the guard behind it as the alignment asked for allows.
    base_ = end - bytes_;
    base_ -= (reinterpret_cast<uintptr_t>(base_) - static_cast<uintptr_t>(shift)) % 16;
    std::memset(map_ + kGuardBytes, kPoison, room_);
  }

  ~Array() { munmap(map_, total_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  unsigned char* data() const { return base_; }
  size_t bytes() const { return bytes_; }
  int64_t item() const { return item_; }
  size_t elements() const { return bytes_ / static_cast<size_t>(item_); }
  const char* name() const { return name_.c_str(); }

  // Whether `address` is in the array, its guards, or between.
  bool near(uintptr_t address) const {
    return address - reinterpret_cast<uintptr_t>(map_) < total_;
  }

  bool holds(uintptr_t address, size_t size) const {
    const uintptr_t offset = address - reinterpret_cast<uintptr_t>(base_);
    return offset < bytes_ && size <= bytes_ - offset;
  }

  int64_t element_at(uintptr_t address) const {
    const auto offset = static_cast<int64_t>(address - reinterpret_cast<uintptr_t>(base_));
    return offset >= 0 ? offset / item_ : -((-offset + item_ - 1) / item_);
  }

  std::string element_name(int64_t element) const {
    if (cols_ == 1 && item_ == 1) return format("%s[byte %lld]", name(), static_cast<long long>(element));
    if (cols_ == 1) return format("%s[row %lld]", name(), static_cast<long long>(element));
    return format("%s[row %lld, col %lld]", name(), static_cast<long long>(element / cols_),
                  static_cast<long long>(element % cols_));
  }

  // How far an access of `size` bytes at `address` is outside, in words.
  std::string outside(uintptr_t address, size_t size) const {
    const auto count = static_cast<int64_t>(elements());
    const int64_t first = element_at(address);
    const int64_t last = element_at(address + size - 1);
    if (first < 0) {
      return format("%lld element(s) before the start of %s", static_cast<long long>(-first),
                    name());
    }
    return format("%lld element(s) past the end of %s, whose last element is %s",
                  static_cast<long long>(last - count + 1), name(),
                  count ? element_name(count - 1).c_str() : "absent: it has no rows");
  }

  void clear() { std::memset(base_, 0, bytes_); }

  void forbid_writes() { mprotect(map_ + kGuardBytes, room_, PROT_READ); }

  // Catches what no hook and no guard page sees: a store by code that is not instrumented.
  bool gaps_are_intact() const {
    const unsigned char* end = map_ + kGuardBytes + room_;
    for (const unsigned char* p = map_ + kGuardBytes; p < base_; ++p) {
      if (*p != kPoison) return false;
    }
    for (const unsigned char* p = base_ + bytes_; p < end; ++p) {
      if (*p != kPoison) return false;
    }
    return true;
  }

 private:
  std::string name_;
  int64_t cols_;
  int64_t item_;
  size_t bytes_;
  size_t room_ = 0;   // bytes between the guards
  size_t total_ = 0;  // bytes with the guards
  unsigned char* map_ = nullptr;
  unsigned char* base_ = nullptr;
};

}  // namespace simt
