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
};

// Updates the chunk in place. Progress: elements of the chunk. An armed call parks with a torn chunk: elements before the
// point are done; of the kAdamBlock elements from the point on, master is decayed but not stepped, exp_avg is new and
// exp_avg_sq is old; elements behind that block are untouched. With progress 1 everything is done.
void adam(const AdamChunk& chunk, const std::optional<Park>& park);

}  // namespace leto
