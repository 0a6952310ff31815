// The matrix product over pages that all of the erasure code is made of: parity rows of some columns, strip by strip.
#pragma once

#include "code_strips.h"
#include "pages.h"
#include "points.h"
#include "scratch.h"

namespace leto {

// Memory of one thread of a call.
struct Worker {
  Byte *sums, *between;   // of the transforms
  Byte* workspace;        // of multiply and xor_strips
  const Byte** pointers;  // strips that a kernel is called with

  Worker(const CodeKernels& kernels, size_t pages, Scratch& scratch);
};

// targets[r] <- base[r] xor sum over k of P[columns[k]][rows[r]] * (data[k] xor minus[k])
//
// There are three forms of it, which differ in speed alone: an xor where all coefficients are 1, a product with the matrix
// for few columns, and otherwise an additive transform of all blocks that have a column. Lives in scratch of the call.
class Product {
 public:
  // Throws std::invalid_argument when a column repeats.
  Product(const CodeKernels& kernels, const Points& points, const Indices& columns, const Indices& rows, Scratch& scratch);

  // How long the strips should be, where nothing else wants them shorter.
  size_t strip_bytes() const {
    return size_ > 1 && blocks_ == 0 ? kernels_.direct_strip_bytes : kernels_.strip_bytes;
  }

  struct Sources {
    const Addresses& data;
    const Addresses& minus;  // empty for zeros
  };

  struct Strip {
    size_t offset, bytes;
    size_t end;  // of the range that this thread works on; the beginning of the next strip is prefetched
  };

  // `base` and `targets` are strips already, one a row. A null base, or a null strip of it, stands for zeros.
  void run(const Sources& sources, const Strip& strip, const Byte* const* base, Byte* const* targets, bool stream,
           const Worker& worker) const;

 private:
  void run_xor(const Sources&, const Strip&, const Byte* const* base, Byte* const* targets, bool stream, const Worker&) const;
  void run_matrix(const Sources&, const Strip&, const Byte* const* base, Byte* const* targets, bool stream,
                  const Worker&) const;
  void run_transform(const Sources&, const Strip&, const Byte* const* base, Byte* const* targets, bool stream,
                     const Worker&) const;
  void plan_matrix(const Points& points, const Indices& columns, Scratch& scratch);
  void plan_transform(const Points& points, const Indices& columns, const uint32_t* order, size_t blocks,
                      Scratch& scratch);
  void strips_of_block(const Addresses& pages, size_t block, size_t offset, const Byte** strips) const;

  static constexpr uint32_t kAbsent = ~0u;

  const CodeKernels& kernels_;
  const Indices& rows_;
  size_t size_;
  int layers_;
  size_t blocks_ = 0;                // with at least one column; 0 when nothing is transformed
  const uint32_t* slots_ = nullptr;  // [block][m]: which source is this column, or kAbsent
  const Byte* factors_ = nullptr;    // expanded: of the matrix, or the twiddles of the rows and then of every block
};

// factors, expanded for the kernels
const Byte* expanded(const CodeKernels& kernels, const uint32_t* factors, size_t count, Scratch& scratch);

}  // namespace leto
