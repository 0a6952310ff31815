// AdamW on one chunk, bit-equal to torch's non-fused implementation.
#pragma once

#include <optional>

#include "pages.h"
#include "park.h"
#include "rows.h"

namespace leto {

// `count` consecutive elements of the chunk under the same scalars.
struct AdamSegment {
  size_t count;
  Address gradient;
  AdamScalars scalars;
};

struct AdamChunk {
  Address master, exp_avg, exp_avg_sq;
  std::vector<AdamSegment> segments;
  bool fused_multiply_add;
  SqrtFunction sqrt_function;
  LibraryThreads library_threads;
};

// One block's worth of scratch: the gradient that `begin` used must outlive it until `finish`.
struct AdamScratch {
  alignas(64) float clipped[kAdamBlock];
  alignas(64) float root[kAdamBlock];
};

// A chunk's elements by range, [first, last). Ranges that do not overlap may run on different threads, each with a scratch.
class AdamRanges {
 public:
  explicit AdamRanges(const AdamChunk& chunk);

  size_t elements() const { return starts_.back(); }
  const AdamChunk& chunk() const { return chunk_; }

  void step(size_t first, size_t last, AdamScratch& scratch) const;

  // Also leaves old xor new of the range's elements where `delta` begins.
  void step_delta(size_t first, size_t last, const AdamDelta& delta, AdamScratch& scratch) const;

  // The halves of a step over the same range of at most kAdamBlock elements, with the same scratch.
  void begin(size_t first, size_t last, AdamScratch& scratch) const;
  void finish(size_t first, size_t last, AdamScratch& scratch) const;

 private:
  template <class Visit>
  void for_blocks(size_t first, size_t last, size_t block, AdamScratch& scratch, Visit visit) const;

  const AdamChunk& chunk_;
  const AdamKernels& kernels_;
  std::vector<size_t> starts_;  // of the segments, and the end of the last one
};

// Updates the chunk in place on at most `threads` threads. Progress: elements of the chunk. An armed call parks with a torn chunk: elements before the
// point are done; of the kAdamBlock elements from the point on, master is decayed but not stepped, exp_avg is new and
// exp_avg_sq is old; elements behind that block are untouched. With progress 1 everything is done.
void adam(size_t threads, const AdamChunk& chunk, const std::optional<Park>& park);

}  // namespace leto
