#include "copy.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "rows.h"
#include "workers.h"

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
}

// Pages that are copied side by side. One stream of reads leaves much of the memory's speed unused: eight of them take two
// thirds of the time.
constexpr size_t kCopyStreams = 8;

// Bytes [first, last) of all pages in their order: whole pages side by side, and what is left at either end.
void copy_range(const Addresses& source, const Addresses& target, size_t page_bytes, size_t first, size_t last, bool stream) {
  while (first < last) {
    const size_t page = first / page_bytes, offset = first % page_bytes;
    const size_t whole = offset == 0 ? std::min(kCopyStreams, (last - first) / page_bytes) : 0;
    const size_t pages = std::max<size_t>(whole, 1), bytes = whole ? page_bytes : std::min(page_bytes - offset, last - first);
    Byte* to[kCopyStreams];
    const Byte* from[kCopyStreams];
    for (size_t k = 0; k < pages; ++k) {
      to[k] = at<Byte>(target[page + k] + offset);
      from[k] = at<const Byte>(source[page + k] + offset);
    }
    if (stream && offset % kVectorBytes == 0) {
      row().code().copy_strips({from, to, pages, bytes});
    } else {
      for (size_t k = 0; k < pages; ++k) std::memcpy(to[k], from[k], bytes);
    }
    first += pages * bytes;
  }
}

// Runs work(first, last) over the target's bytes, parking where armed, on the threads that the moved bytes are worth.
template <class Work>
void run_split(size_t threads, size_t target_bytes, size_t moved_bytes, const std::optional<Park>& park, const Work& work) {
  threads = useful_threads(threads, moved_bytes);
  run_parked(target_bytes, park, [&](size_t first, size_t last) {
    split(first, last, kStripBytes, threads, [&](size_t, size_t begin, size_t end) { work(begin, end); });
  });
}

}  // namespace

void copy_pages(size_t threads, const Addresses& source, const Addresses& target, size_t page_bytes,
                const std::optional<Park>& park) {
  require(source.size() == target.size(), "copy_pages: source and target have different lengths");
  const size_t bytes = source.size() * page_bytes;
  const bool stream = bytes >= kStreamBytes && all_aligned(target, kVectorBytes);
  run_split(threads, bytes, bytes, park,
            [&](size_t first, size_t last) { copy_range(source, target, page_bytes, first, last, stream); });
}

void xor_pages(size_t threads, const Addresses& source, Address target, size_t page_bytes, const std::optional<Park>& park) {
  require(!source.empty(), "xor_pages: no source page");
  run_split(threads, page_bytes, source.size() * page_bytes, park,
            [&](size_t first, size_t last) { xor_range(source, target, first, last); });
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
