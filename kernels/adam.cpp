#include "adam.h"

#include <algorithm>

namespace leto {
namespace {

// One block's worth of scratch: the gradient that `begin` used must outlive it until `finish`.
struct BlockScratch {
  alignas(64) float clipped[kAdamBlock];
  alignas(64) float root[kAdamBlock];
};

// Calls visit(block, scalars) for the chunk's elements [first, last), cut along segments and into blocks. The scratch of an
// element depends on its offset from `first` alone, so up to one block of elements may be visited twice.
template <class Visit>
void for_blocks(const AdamChunk& chunk, size_t first, size_t last, BlockScratch& scratch, Visit visit) {
  size_t start = 0;
  for (const AdamSegment& segment : chunk.segments) {
    const size_t stop = std::min(last, start + segment.count);
    size_t element = std::max(first, start);
    while (element < stop) {
      const size_t used = (element - first) % kAdamBlock;
      const size_t count = std::min(kAdamBlock - used, stop - element);
      visit(AdamBlock{at<float>(chunk.master) + element, at<float>(chunk.exp_avg) + element,
                      at<float>(chunk.exp_avg_sq) + element, at<const float>(segment.gradient) + (element - start),
                      scratch.clipped + used, scratch.root + used, static_cast<int>(count)},
            segment.scalars);
      element += count;
    }
    start += segment.count;
  }
}

}  // namespace

void adam(const AdamChunk& chunk, const std::optional<Park>& park) {
  const AdamHalves& halves = chunk.fused_multiply_add ? row().adam_fused : row().adam_separate;
  BlockScratch scratch;
  const auto begin = [&](const AdamBlock& block, const AdamScalars& scalars) { halves.begin(block, scalars); };
  const auto finish = [&](const AdamBlock& block, const AdamScalars& scalars) {
    halves.finish(block, scalars, chunk.sqrt_function);
  };
  const auto whole = [&](const AdamBlock& block, const AdamScalars& scalars) {
    begin(block, scalars);
    finish(block, scalars);
  };
  size_t elements = 0;
  for (const AdamSegment& segment : chunk.segments) elements += segment.count;
  if (!park) {
    for_blocks(chunk, 0, elements, scratch, whole);
    return;
  }
  const size_t cut = park->cut(elements);
  const size_t torn = std::min<size_t>(elements, cut + kAdamBlock);
  for_blocks(chunk, 0, cut, scratch, whole);
  for_blocks(chunk, cut, torn, scratch, begin);
  park->wait();
  for_blocks(chunk, cut, torn, scratch, finish);
  for_blocks(chunk, torn, elements, scratch, whole);
}

}  // namespace leto
