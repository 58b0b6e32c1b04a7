// Where the rows of a view lie, and what between them belongs to none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace simt {

constexpr int kMostOuter = 3;

// The outer axes of an array, in elements; none where its rows follow each other.
struct Outer {
  int64_t axes;
  int64_t sizes[kMostOuter];
  int64_t strides[kMostOuter];
};

// The memory of a view: from its lowest element to its highest.
class Places {
 public:
  Places() = default;

  Places(const Outer& outer, int64_t cols) : cols_(cols) {
    if (outer.axes == 0) return;
    starts_ = {0};
    for (int64_t axis = 0; axis < outer.axes; ++axis) {
      std::vector<int64_t> finer;
      for (const int64_t start : starts_) {
        for (int64_t i = 0; i < outer.sizes[axis]; ++i) {
          finer.push_back(start + i * outer.strides[axis]);
        }
      }
      starts_ = std::move(finer);
    }
    const int64_t lowest = *std::min_element(starts_.begin(), starts_.end());
    for (int64_t& start : starts_) start -= lowest;
    rows_.assign(static_cast<size_t>(*std::max_element(starts_.begin(), starts_.end()) + cols), -1);
    for (size_t row = 0; row < starts_.size(); ++row) {
      const auto begin = rows_.begin() + starts_[row];
      std::fill(begin, begin + cols, static_cast<int64_t>(row));
    }
  }

  bool apart() const { return !starts_.empty(); }

  // Elements from the lowest to the highest, gaps too.
  int64_t span() const { return static_cast<int64_t>(rows_.size()); }

  int64_t start_of(int64_t row) const { return starts_[static_cast<size_t>(row)]; }

  // The row that has the element, -1 in a gap. Of rows that lie on each other it is the last.
  int64_t row_of(int64_t element) const { return rows_[static_cast<size_t>(element)]; }

  bool is_gap(int64_t element) const { return apart() && row_of(element) < 0; }

  bool has_gap(int64_t first, int64_t last) const {
    for (int64_t i = first; i <= last; ++i) {
      if (is_gap(i)) return true;
    }
    return false;
  }

 private:
  int64_t cols_ = 0;
  std::vector<int64_t> starts_;  // of each row
  std::vector<int64_t> rows_;    // of each element
};

}  // namespace simt
