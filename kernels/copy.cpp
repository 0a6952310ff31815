#include "copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "rows.h"

namespace leto {
namespace {

// Targets of this size are stored past the cache.
constexpr size_t kStreamBytes = 256 << 10;

void xor_range(const Addresses& source, Address target, size_t first, size_t last) {
  alignas(kVectorBytes) Byte workspace[kStripBytes];
  std::vector<const Byte*> strips(source.size());
  const bool stream = last - first >= kStreamBytes && (target + first) % kVectorBytes == 0;
  for (size_t offset = first; offset < last; offset += kStripBytes) {
    for (size_t k = 0; k < source.size(); ++k) strips[k] = at<const Byte>(source[k] + offset);
    row().code().xor_strips({strips.data(), strips.size(), at<Byte>(target + offset), workspace,
                             std::min(kStripBytes, last - offset), stream});
  }
  fence_streaming_stores();
}

// Past the cache: what a copy overwrites is not read before, a third of its traffic.
void copy_streaming(Byte* target, const Byte* source, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kAhead = 1024;
  const size_t whole = bytes / kVectorBytes * kVectorBytes;
  for (size_t line = 0; line < whole; line += kVectorBytes) {
    __builtin_prefetch(source + line + kAhead);
    for (size_t i = line; i < line + kVectorBytes; i += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
    }
  }
  std::memcpy(target + whole, source + whole, bytes - whole);
#else
  std::memcpy(target, source, bytes);
#endif
}

}  // namespace

void copy_pages(const Addresses& source, const Addresses& target, size_t page_bytes, const std::optional<Park>& park) {
  require(source.size() == target.size(), "copy_pages: source and target have different lengths");
  const bool large = source.size() * page_bytes >= kStreamBytes;
  run_parked(source.size() * page_bytes, park, [&](size_t first, size_t last) {
    while (first < last) {
      const size_t page = first / page_bytes, offset = first % page_bytes;
      const size_t bytes = std::min(page_bytes - offset, last - first);
      auto* to = at<Byte>(target[page] + offset);
      const auto* from = at<const Byte>(source[page] + offset);
      if (large && (target[page] + offset) % kVectorBytes == 0) {
        copy_streaming(to, from, bytes);
      } else {
        std::memcpy(to, from, bytes);
      }
      first += bytes;
    }
    fence_streaming_stores();
  });
}

void xor_pages(const Addresses& source, Address target, size_t page_bytes, const std::optional<Park>& park) {
  require(!source.empty(), "xor_pages: no source page");
  run_parked(page_bytes, park, [&](size_t first, size_t last) { xor_range(source, target, first, last); });
}

std::vector<size_t> equal_pages(const Addresses& left, const Addresses& right, size_t page_bytes) {
  require(left.size() == right.size(), "equal_pages: left and right have different lengths");
  std::vector<size_t> different;
  for (size_t k = 0; k < left.size(); ++k) {
    if (std::memcmp(at<const void>(left[k]), at<const void>(right[k]), page_bytes) != 0) different.push_back(k);
  }
  return different;
}

void fill(Address address, size_t byte_count, uint32_t pattern) {
  require(address % 4 == 0 && byte_count % 4 == 0, "fill: the range is not whole 32-bit words");
  std::fill_n(at<uint32_t>(address), byte_count / 4, pattern);
}

void publish(const Addresses& addresses, uint64_t value) {
  for (const Address address : addresses) require(address % 8 == 0, "publish: a word is not 8-byte aligned");
  fence_streaming_stores();  // memcpy makes some for large pages
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Address address : addresses) __atomic_store_n(at<uint64_t>(address), value, __ATOMIC_RELEASE);
}

}  // namespace leto
