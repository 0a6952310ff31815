// The points and coefficients of the code. Readable twin and the definition: leto/core/reed_solomon.py.
#pragma once

#include <cstdint>

#include "pages.h"
#include "scratch.h"

namespace leto {

using Indices = std::vector<uint32_t>;

// Row j lies at the point j, column i at m + i, in blocks of m columns that share a factor; m is the transform size. Results
// are in scratch memory of the call.
class Points {
 public:
  explicit Points(uint32_t tier1_pages);

  uint32_t size() const { return size_; }
  int layers() const { return layers_; }
  uint32_t of_column(uint32_t column) const { return size_ + column; }
  uint32_t block_of(uint32_t column) const { return column / size_; }

  // P[column][row], laid out [column][row].
  const uint32_t* coefficients(const Indices& columns, const Indices& rows, Scratch& scratch) const;

  // Inverse of the square system (columns x rows), laid out [row][column]: the explicit inverse of a Cauchy matrix with its
  // columns scaled.
  const uint32_t* solution(const Indices& columns, const Indices& rows, Scratch& scratch) const;

  // The m - 1 twiddles of the transform at the coset `origin`, a multiple of m, in the order of layer_offset.
  void twiddles(uint32_t origin, uint32_t* factors) const;

 private:
  // u_b of the column's block: s(m * (1 + b)) / (1 * 2 * ... * (m - 1)).
  uint32_t factor(uint32_t column) const;

  uint32_t size_;
  int layers_;
};

}  // namespace leto
