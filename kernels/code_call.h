// What every call of the erasure code does before and while it works.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "product.h"
#include "rs.h"

namespace leto {

inline Indices all_rows(const Code& code) {
  Indices rows(code.tier1_pages);
  for (uint32_t j = 0; j < code.tier1_pages; ++j) rows[j] = j;
  return rows;
}

inline void require_code(const Code& code) {
  require(code.tier1_pages >= 1 && code.tier1_pages <= kMaxRows, "code: tier1_pages is not in [1, 16]");
  require(code.page_bytes % 4 == 0, "code: page_bytes is not a multiple of 4");
}

inline void require_words(std::initializer_list<const Addresses*> lists) {
  for (const Addresses* pages : lists) require(all_aligned(*pages, 4), "code: a page is not 4-byte aligned");
}

// Whether parity is stored past the cache: where it does not stay there anyway, which saves reading what is overwritten.
inline bool is_streamed(const Code& code, const Addresses& target) {
  constexpr size_t kStreamBytes = 4 << 20;
  return target.size() * code.page_bytes >= kStreamBytes && all_aligned(target, kVectorBytes);
}

inline std::vector<Worker> workers(size_t count, const CodeKernels& kernels, size_t pages, Scratch& scratch) {
  std::vector<Worker> made;
  made.reserve(count);
  for (size_t n = 0; n < count; ++n) made.emplace_back(kernels, pages, scratch);
  return made;
}

// visit(offset, bytes) for every strip of [first, last).
template <class Visit>
void for_strips(size_t first, size_t last, size_t strip_bytes, const Visit& visit) {
  for (size_t offset = first; offset < last; offset += strip_bytes) visit(offset, std::min(strip_bytes, last - offset));
}

inline void strips_at(const Addresses& pages, size_t offset, Byte** strips) {
  for (size_t k = 0; k < pages.size(); ++k) strips[k] = at<Byte>(pages[k] + offset);
}

}  // namespace leto
