#include "product.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace leto {
namespace {

alignas(kVectorBytes) const Byte kZeroStrip[kStripBytes] = {};

// Positions of `columns` in ascending order of column.
const uint32_t* ordered(const Indices& columns, Scratch& scratch) {
  auto* order = scratch.take<uint32_t>(columns.size());
  for (uint32_t k = 0; k < columns.size(); ++k) order[k] = k;
  std::sort(order, order + columns.size(), [&](uint32_t a, uint32_t b) { return columns[a] < columns[b]; });
  for (size_t k = 1; k < columns.size(); ++k) require(columns[order[k - 1]] != columns[order[k]], "code: a column repeats");
  return order;
}

size_t blocks_of(const Points& points, const Indices& columns, const uint32_t* order) {
  size_t blocks = 0;
  for (size_t k = 0; k < columns.size(); ++k) {
    blocks += k == 0 || points.block_of(columns[order[k]]) != points.block_of(columns[order[k - 1]]);
  }
  return blocks;
}

const Byte* strip_at(const Addresses& pages, size_t k, size_t offset) { return at<const Byte>(pages[k] + offset); }

}  // namespace

const Byte* expanded(const CodeKernels& kernels, const uint32_t* factors, size_t count, Scratch& scratch) {
  auto* bytes = scratch.take<Byte>(count * kernels.factor_bytes);
  for (size_t i = 0; i < count; ++i) kernels.expand(factors[i], bytes + i * kernels.factor_bytes);
  return bytes;
}

Worker::Worker(const CodeKernels& kernels, size_t pages, Scratch& scratch)
    : sums(scratch.take<Byte>(kMaxRows * kSumsStride)),
      between(scratch.take<Byte>(kMaxRows * kSumsStride)),
      workspace(scratch.take<Byte>(std::max(kernels.workspace_bytes, kStripBytes))),
      pointers(scratch.take<const Byte*>(std::max<size_t>(2 * pages + 1, 6 * kMaxRows))) {}

Product::Product(const CodeKernels& kernels, const Points& points, const Indices& columns, const Indices& rows,
                 Scratch& scratch)
    : kernels_(kernels), rows_(rows), size_(points.size()), layers_(points.layers()) {
  const uint32_t* order = ordered(columns, scratch);
  if (size_ == 1) return;
  const size_t blocks = blocks_of(points, columns, order);
  // Multiplications a word, the transform of the sums included.
  const size_t transformed = (blocks + 1) * size_ / 2 * layers_, multiplied = columns.size() * rows.size();
  if (!kernels.transform[layers_] || (multiplied <= transformed && columns.size() <= kMaxDirect)) {
    plan_matrix(points, columns, scratch);
  } else {
    plan_transform(points, columns, order, blocks, scratch);
  }
}

void Product::plan_matrix(const Points& points, const Indices& columns, Scratch& scratch) {
  factors_ = expanded(kernels_, points.coefficients(columns, rows_, scratch), columns.size() * rows_.size(), scratch);
}

void Product::plan_transform(const Points& points, const Indices& columns, const uint32_t* order, size_t blocks,
                             Scratch& scratch) {
  blocks_ = blocks;
  const size_t twiddles = size_ - 1;
  auto* slots = scratch.take<uint32_t>(blocks_ * size_);
  auto* factors = scratch.take<uint32_t>((blocks_ + 1) * twiddles);
  std::fill_n(slots, blocks_ * size_, kAbsent);
  points.twiddles(0, factors);
  size_t block = 0;
  for (size_t k = 0; k < columns.size(); ++k) {
    const uint32_t column = columns[order[k]];
    const bool opens = k == 0 || points.block_of(column) != points.block_of(columns[order[k - 1]]);
    block += opens && k > 0;
    const uint32_t inside = column % static_cast<uint32_t>(size_);
    if (opens) points.twiddles(points.of_column(column - inside), factors + (block + 1) * twiddles);
    slots[block * size_ + inside] = order[k];
  }
  slots_ = slots;
  factors_ = expanded(kernels_, factors, (blocks_ + 1) * twiddles, scratch);
}

void Product::run(const Sources& sources, const Strip& strip, const Byte* const* base, Byte* const* targets, bool stream,
                  const Worker& worker) const {
  if (size_ == 1) return run_xor(sources, strip, base, targets, stream, worker);
  if (blocks_ == 0) return run_matrix(sources, strip, base, targets, stream, worker);
  run_transform(sources, strip, base, targets, stream, worker);
}

void Product::run_xor(const Sources& sources, const Strip& strip, const Byte* const* base, Byte* const* targets, bool stream,
                      const Worker& worker) const {
  if (rows_.empty()) return;
  size_t count = 0;
  worker.pointers[count++] = base && base[0] ? base[0] : kZeroStrip;
  for (size_t k = 0; k < sources.data.size(); ++k) worker.pointers[count++] = strip_at(sources.data, k, strip.offset);
  for (size_t k = 0; k < sources.minus.size(); ++k) worker.pointers[count++] = strip_at(sources.minus, k, strip.offset);
  kernels_.xor_strips({worker.pointers, count, targets[0], worker.workspace, strip.bytes, stream});
}

void Product::run_matrix(const Sources& sources, const Strip& strip, const Byte* const* base, Byte* const* targets,
                         bool stream, const Worker& worker) const {
  const size_t count = sources.data.size();
  const Byte **data = worker.pointers, **minus = data + count;
  for (size_t k = 0; k < count; ++k) data[k] = strip_at(sources.data, k, strip.offset);
  for (size_t k = 0; k < sources.minus.size(); ++k) minus[k] = strip_at(sources.minus, k, strip.offset);
  kernels_.multiply({data, sources.minus.empty() ? nullptr : minus, static_cast<int>(count), factors_, base, targets,
                     static_cast<int>(rows_.size()), worker.workspace, strip.bytes, stream});
}

void Product::strips_of_block(const Addresses& pages, size_t block, size_t offset, const Byte** strips) const {
  for (size_t slot = 0; slot < size_ && !pages.empty(); ++slot) {
    const uint32_t source = slots_[block * size_ + slot];
    strips[slot] = source == kAbsent ? kZeroStrip : strip_at(pages, source, offset);
  }
}

void Product::run_transform(const Sources& sources, const Strip& strip, const Byte* const* base, Byte* const* targets,
                            bool stream, const Worker& worker) const {
  // Two sets of strips: those of the block at work and those of the next one, which are prefetched meanwhile.
  const Byte **data = worker.pointers, **ahead = data + 2 * kMaxRows;
  const auto minus_of = [&](const Byte** set) { return sources.minus.empty() ? nullptr : set + kMaxRows; };
  const auto select = [&](size_t block, size_t offset, const Byte** set) {
    strips_of_block(sources.data, block, offset, set);
    strips_of_block(sources.minus, block, offset, set + kMaxRows);
  };
  const size_t block_factors = (size_ - 1) * kernels_.factor_bytes, next_offset = strip.offset + kernels_.strip_bytes;
  select(0, strip.offset, data);
  for (size_t block = 0; block < blocks_; ++block) {
    const bool last = block + 1 == blocks_, more = !last || next_offset < strip.end;
    if (more) select(last ? 0 : block + 1, last ? next_offset : strip.offset, ahead);
    kernels_.inverse_transform[layers_]({data, minus_of(data), more ? ahead : nullptr, more ? minus_of(ahead) : nullptr,
                                         factors_ + (block + 1) * block_factors, worker.sums, worker.between,
                                         strip.bytes, block == 0});
    std::swap(data, ahead);
  }
  const Byte* base_of[kMaxRows] = {};
  Byte* target_of[kMaxRows] = {};
  for (size_t r = 0; r < rows_.size(); ++r) {
    base_of[rows_[r]] = base ? base[r] : nullptr;
    target_of[rows_[r]] = targets[r];
  }
  kernels_.transform[layers_]({worker.sums, factors_, base_of, target_of, strip.bytes, stream});
}

}  // namespace leto
