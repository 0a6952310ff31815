#include "adam.h"

#include <algorithm>

#include "workers.h"

namespace leto {
namespace {

constexpr size_t kElementBytes = 4 * sizeof(float);  // that an element's step reads: master, both moments, gradient

// Elements that a whole step works on at a time, without and with what it changes: more leave the first cache level.
constexpr size_t kStepBlock = 512, kDeltaBlock = 256;

// While one lives, the square root's library starts no threads for calls of this thread: it would for every block, which takes
// a hundred times as long as the block.
class LibraryOnOneThread {
 public:
  explicit LibraryOnOneThread(LibraryThreads set) : set_(set), before_(set ? set(1) : 0) {}
  LibraryOnOneThread(const LibraryOnOneThread&) = delete;
  LibraryOnOneThread& operator=(const LibraryOnOneThread&) = delete;
  ~LibraryOnOneThread() {
    if (set_) set_(before_);
  }

 private:
  const LibraryThreads set_;
  const int before_;
};

}  // namespace

AdamRanges::AdamRanges(const AdamChunk& chunk)
    : chunk_(chunk), kernels_(chunk.fused_multiply_add ? row().adam_fused : row().adam_separate), starts_{0} {
  for (const AdamSegment& segment : chunk.segments) starts_.push_back(starts_.back() + segment.count);
}

// Calls visit(block, scalars, offset from `first`), cut along segments and into blocks. The scratch of an element depends on
// that offset alone, so up to one block of elements may be visited twice.
template <class Visit>
void AdamRanges::for_blocks(size_t first, size_t last, size_t block, AdamScratch& scratch, Visit visit) const {
  const LibraryOnOneThread alone(chunk_.library_threads);
  size_t index = std::upper_bound(starts_.begin(), starts_.end(), first) - starts_.begin() - 1;
  for (size_t element = first; element < last; ++index) {
    const AdamSegment& segment = chunk_.segments[index];
    const size_t start = starts_[index], stop = std::min(last, starts_[index + 1]);
    while (element < stop) {
      const size_t offset = element - first, used = offset % block;
      const size_t count = std::min(block - used, stop - element);
      visit(AdamBlock{at<float>(chunk_.master) + element, at<float>(chunk_.exp_avg) + element,
                      at<float>(chunk_.exp_avg_sq) + element, at<const float>(segment.gradient) + (element - start),
                      scratch.clipped + used, scratch.root + used, static_cast<int>(count)},
            segment.scalars, offset);
      element += count;
    }
  }
}

void AdamRanges::step(size_t first, size_t last, AdamScratch& scratch) const {
  for_blocks(first, last, kStepBlock, scratch, [&](const AdamBlock& block, const AdamScalars& scalars, size_t) {
    kernels_.step(block, scalars, chunk_.sqrt_function, {});
  });
}

void AdamRanges::step_delta(size_t first, size_t last, const AdamDelta& delta, AdamScratch& scratch) const {
  for_blocks(first, last, kDeltaBlock, scratch, [&](const AdamBlock& block, const AdamScalars& scalars, size_t offset) {
    kernels_.step_delta(block, scalars, chunk_.sqrt_function,
                        {delta.master + offset, delta.exp_avg + offset, delta.exp_avg_sq + offset});
  });
}

void AdamRanges::begin(size_t first, size_t last, AdamScratch& scratch) const {
  for_blocks(first, last, kAdamBlock, scratch,
             [&](const AdamBlock& block, const AdamScalars& scalars, size_t) { kernels_.begin(block, scalars); });
}

void AdamRanges::finish(size_t first, size_t last, AdamScratch& scratch) const {
  for_blocks(first, last, kAdamBlock, scratch, [&](const AdamBlock& block, const AdamScalars& scalars, size_t) {
    kernels_.finish(block, scalars, chunk_.sqrt_function);
  });
}

void adam(size_t threads, const AdamChunk& chunk, const std::optional<Park>& park) {
  const AdamRanges ranges(chunk);
  const size_t elements = ranges.elements();
  const auto step = [&](size_t first, size_t last) {
    split(first, last, kAdamBlock, useful_threads(threads, (last - first) * kElementBytes), [&](size_t, size_t begin, size_t end) {
      AdamScratch scratch;
      ranges.step(begin, end, scratch);
    });
  };
  if (!park) return step(0, elements);
  const size_t cut = park->cut(elements), torn = std::min(elements, cut + kAdamBlock);
  AdamScratch scratch;
  step(0, cut);
  ranges.begin(cut, torn, scratch);
  park->wait();
  ranges.finish(cut, torn, scratch);
  step(torn, elements);
}

}  // namespace leto
