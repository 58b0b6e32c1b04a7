// Arrays between guard zones. Rows may be apart; an element is then counted from the lowest in memory,
// and those in gaps between rows are nobody's.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "places.h"
#include "report.h"

namespace simt {

// Wide enough that a stray index still lands in it; never backed by memory.
constexpr size_t kGuardBytes = 16 << 20;
constexpr unsigned char kPoison = 0xff;  // repeated, it is a NaN of each element type

class Array {
 public:
  Array(std::string name, int64_t rows, int64_t cols, int64_t inner, int64_t item, int64_t shift,
        Places places = {})
      : name_(std::move(name)), cols_(cols), inner_(inner), item_(item), places_(std::move(places)),
        bytes_(static_cast<size_t>((places_.apart() ? places_.span() : rows * cols) * item)) {
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
    base_ -= (reinterpret_cast<uintptr_t>(first_row()) - static_cast<uintptr_t>(shift)) % 16;
    std::memset(map_ + kGuardBytes, kPoison, room_);
  }

  ~Array() { munmap(map_, total_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  unsigned char* data() const { return base_; }
  // Where the first row is, before which there may be others.
  unsigned char* first_row() const { return row(0); }
  unsigned char* row(int64_t number) const {
    return base_ + (places_.apart() ? places_.start_of(number) : number * cols_) * item_;
  }
  bool apart() const { return places_.apart(); }
  size_t row_bytes() const { return static_cast<size_t>(cols_ * item_); }
  bool is_gap(size_t element) const { return places_.is_gap(static_cast<int64_t>(element)); }
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
    if (offset >= bytes_ || size > bytes_ - offset) return false;
    return !places_.apart() || !places_.has_gap(element_at(address), element_at(address + size - 1));
  }

  int64_t element_at(uintptr_t address) const {
    const auto offset = static_cast<int64_t>(address - reinterpret_cast<uintptr_t>(base_));
    return offset >= 0 ? offset / item_ : -((-offset + item_ - 1) / item_);
  }

  std::string element_name(int64_t element) const {
    if (cols_ == 1 && item_ == 1) return format("%s[byte %lld]", name(), static_cast<long long>(element));
    if (cols_ == 1) return format("%s[row %lld]", name(), static_cast<long long>(element));
    int64_t row = element / (cols_ * inner_) * inner_ + element % inner_;
    int64_t col = element / inner_ % cols_;
    if (places_.apart()) {
      row = places_.row_of(element);
      col = element - places_.start_of(row);
    }
    return format("%s[row %lld, col %lld]", name(), static_cast<long long>(row),
                  static_cast<long long>(col));
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
    if (last < count) return in_gap(first, last);
    return format("%lld element(s) past the end of %s, whose last element is %s",
                  static_cast<long long>(last - count + 1), name(),
                  count ? element_name(count - 1).c_str() : "absent: it has no rows");
  }

  // The same of an access to a gap, which begins behind the row that lies below it.
  std::string in_gap(int64_t first, int64_t last) const {
    int64_t gap = first;
    while (gap < last && !places_.is_gap(gap)) ++gap;
    int64_t before = gap;
    while (places_.is_gap(before)) --before;  // element 0 is of a row
    return format("%lld element(s) into the gap behind %s, which belongs to no row",
                  static_cast<long long>(last - before), element_name(before).c_str());
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
    for (size_t i = 0; places_.apart() && i < bytes_; ++i) {
      if (base_[i] != kPoison && is_gap(i / static_cast<size_t>(item_))) return false;
    }
    return true;
  }

 private:
  std::string name_;
  int64_t cols_;
  int64_t inner_;
  int64_t item_;
  Places places_;
  size_t bytes_;
  size_t room_ = 0;   // bytes between the guards
  size_t total_ = 0;  // bytes with the guards
  unsigned char* map_ = nullptr;
  unsigned char* base_ = nullptr;
};

}  // namespace simt
