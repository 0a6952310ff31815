// Checks the row in use (LETO_KERNEL) against the definition of the code, computed here word by word from nothing but the
// field. Needs no Python, so that sanitizers and planted bugs see the kernels alone.
//
//   code_check        exit 0 and one line; exit 1 and the first case that is wrong

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "chunk_update.h"
#include "copy.h"
#include "gf32.h"
#include "rows.h"
#include "rs.h"

namespace {

using namespace leto;

// Pages with exact ends, so that the address sanitizer sees a byte too far; 64-byte aligned, or 4-byte where asked.
class Pages {
 public:
  Pages(size_t count, size_t page_bytes, bool aligned, std::mt19937& random) : page_bytes_(page_bytes) {
    const size_t shift = aligned ? 0 : 4;
    for (size_t k = 0; k < count; ++k) {
      memory_.emplace_back(static_cast<Byte*>(std::aligned_alloc(64, (page_bytes + shift + 63) / 64 * 64)), std::free);
      // The end of the allocation is rounded up; the page lies at its very end where alignment does not matter.
      Byte* page = memory_.back().get() + (aligned ? 0 : (page_bytes + shift + 63) / 64 * 64 - page_bytes);
      addresses_.push_back(reinterpret_cast<Address>(page));
      for (size_t i = 0; i < page_bytes; ++i) page[i] = static_cast<Byte>(random());
    }
  }

  const Addresses& addresses() const { return addresses_; }
  size_t size() const { return addresses_.size(); }
  uint32_t word(size_t page, size_t index) const { return at<const uint32_t>(addresses_[page])[index]; }
  void flip(size_t page, size_t byte) { at<Byte>(addresses_[page])[byte] ^= 1; }

  bool equals(const Pages& other, size_t page, size_t other_page) const {
    return memcmp(at<void>(addresses_[page]), at<void>(other.addresses_[other_page]), page_bytes_) == 0;
  }

 private:
  size_t page_bytes_;
  std::vector<std::unique_ptr<Byte, decltype(&std::free)>> memory_;
  Addresses addresses_;
};

// P[column][row], from the definition in leto/core/reed_solomon.py.
uint32_t coefficient(uint32_t tier1, uint32_t column, uint32_t row) {
  uint32_t m = 1;
  while (m < tier1) m *= 2;
  uint32_t units = 1, subspace = 1;
  for (uint32_t v = 1; v < m; ++v) units = gf32::multiply(units, v);
  for (uint32_t v = 0; v < m; ++v) subspace = gf32::multiply(subspace, (m * (1 + column / m)) ^ v);
  return gf32::multiply(gf32::multiply(subspace, gf32::inverse(units)), gf32::inverse((m + column) ^ row));
}

struct Case {
  uint32_t tier1;
  Indices columns;
  size_t page_bytes;
  bool aligned;
  size_t threads;

  std::string text() const {
    return "tier1 " + std::to_string(tier1) + ", " + std::to_string(columns.size()) + " columns from " +
           std::to_string(columns[0]) + ", pages of " + std::to_string(page_bytes) + (aligned ? "" : " unaligned") + ", " +
           std::to_string(threads) + " threads";
  }
};

void expect(bool holds, const Case& checked, const char* what) {
  if (holds) return;
  std::printf("%s: %s: %s\n", row().name, checked.text().c_str(), what);
  std::exit(1);
}

// Words at both ends of the page and some between.
std::vector<size_t> sampled(size_t page_bytes) {
  const size_t words = page_bytes / 4;
  std::vector<size_t> chosen;
  for (size_t i = 0; i < words && i < 4; ++i) chosen.push_back(i);
  for (size_t i = 1; i <= 8; ++i) chosen.push_back(words * i / 9);
  for (size_t i = words > 4 ? words - 4 : 0; i < words; ++i) chosen.push_back(i);
  return chosen;
}

void check(const Case& checked, Scratch& scratch, std::mt19937& random) {
  const auto make = [&](size_t count) { return Pages(count, checked.page_bytes, checked.aligned, random); };
  const size_t count = checked.columns.size();
  const Code code{checked.page_bytes, checked.tier1};
  const Run run{scratch, checked.threads};
  const Pages data = make(count), next = make(count);
  Pages parity = make(checked.tier1), updated = make(checked.tier1), encoded = make(checked.tier1);
  encode(run, code, checked.columns, data.addresses(), parity.addresses(), std::nullopt);
  for (uint32_t j = 0; j < checked.tier1; ++j) {
    std::vector<uint32_t> factors;
    for (const uint32_t column : checked.columns) factors.push_back(coefficient(checked.tier1, column, j));
    for (const size_t i : sampled(checked.page_bytes)) {
      uint32_t sum = 0;
      for (size_t k = 0; k < count; ++k) sum ^= gf32::multiply(factors[k], data.word(k, i));
      expect(sum == parity.word(j, i), checked, "encode differs from the definition");
    }
  }
  update_parity(run, code, checked.columns, data.addresses(), next.addresses(), parity.addresses(), updated.addresses(),
                std::nullopt);
  encode(run, code, checked.columns, next.addresses(), encoded.addresses(), std::nullopt);
  for (uint32_t j = 0; j < checked.tier1; ++j) {
    expect(encoded.equals(updated, j, j), checked, "an update differs from encoding again");
  }

  // Lose as much as can be solved while a row is spare, and another row; then flip a bit.
  const size_t lost = std::min<size_t>(count, checked.tier1 > 2 ? checked.tier1 - 2 : 0);
  const bool lose_row = checked.tier1 > 1;
  Pages solved = make(lost), row_again = make(lose_row);
  Indices rows, lost_rows;
  Addresses intact;
  for (uint32_t j = lose_row; j < checked.tier1; ++j) {
    rows.push_back(j);
    intact.push_back(encoded.addresses()[j]);
  }
  if (lose_row) lost_rows.push_back(0);
  const Indices kept(checked.columns.begin() + lost, checked.columns.end());
  const Indices gone(checked.columns.begin(), checked.columns.begin() + lost);
  const Addresses known(next.addresses().begin() + lost, next.addresses().end());
  const Erasure erasure{kept, known, gone, solved.addresses(), rows, intact, lost_rows, row_again.addresses()};
  expect(reconstruct(run, code, erasure) == -1, checked, "a right group is contradicted");
  for (size_t k = 0; k < lost; ++k) expect(solved.equals(next, k, k), checked, "a lost column is wrong");
  if (lose_row) expect(row_again.equals(encoded, 0, 0), checked, "a lost row is wrong");
  if (rows.size() > lost) {
    encoded.flip(checked.tier1 - 1, checked.page_bytes - 1);
    expect(reconstruct(run, code, erasure) == static_cast<int>(checked.tier1 - 1), checked, "a flipped bit goes unseen");
  }
}

// A chunk's arrays with exact ends, master first; three segments under different scalars.
struct Chunk {
  Pages arrays, gradient;
  std::vector<AdamSegment> segments;

  Chunk(size_t array_bytes, size_t elements, std::mt19937& random)
      : arrays(3, array_bytes, true, random), gradient(1, elements * 4, true, random) {
    for (size_t a = 0; a < 3; ++a) fill(arrays.addresses()[a], array_bytes / 4, random);
    fill(gradient.addresses()[0], elements, random);
    const AdamScalars plain{false, false, 1, 1, 0.1f, 0.95f, 0.05f, 0.7f, 1e-8f, -1e-3f};
    const AdamScalars all{true, true, 0.5f, 0.999f, 0.1f, 0.95f, 0.05f, 0.7f, 1e-8f, -2e-3f};
    const AdamScalars far{true, false, 0.25f, 1, 0.75f, 0.9f, 0.1f, 0.6f, 1e-6f, -1e-3f};
    const size_t cuts[] = {0, elements / 3, elements / 3 * 2 + 1, elements};
    for (size_t n = 0; n < 3; ++n) {
      const size_t first = std::min(cuts[n], elements), stop = std::min(cuts[n + 1], elements);
      segments.push_back({stop - first, gradient.addresses()[0] + first * 4, n == 0 ? plain : n == 1 ? all : far});
    }
  }

  // Positive, as squares are.
  static void fill(Address array, size_t count, std::mt19937& random) {
    std::uniform_real_distribution<float> values(0.001f, 1.0f);
    for (size_t i = 0; i < count; ++i) at<float>(array)[i] = values(random);
  }

  AdamChunk chunk() const {
    return {arrays.addresses()[0], arrays.addresses()[1], arrays.addresses()[2], segments, true, nullptr, nullptr};
  }
};

// Update and parity in one pass against the two of them. `missing` elements are padding.
void check_fused(const Case& checked, size_t missing, Scratch& scratch, std::mt19937& random) {
  const size_t array_pages = checked.columns.size() / 3, array_bytes = array_pages * checked.page_bytes;
  const Code code{checked.page_bytes, checked.tier1};
  const Run run{scratch, checked.threads};
  std::mt19937 twin(random);
  const Chunk fused(array_bytes, array_bytes / 4 - missing, random), apart(array_bytes, array_bytes / 4 - missing, twin);
  const Pages before(3, array_bytes, true, random), parity(checked.tier1, checked.page_bytes, true, random);
  const Pages target(checked.tier1, checked.page_bytes, true, random), wanted(checked.tier1, checked.page_bytes, true, random);
  Addresses undo, data;
  for (size_t a = 0; a < 3; ++a) {
    memcpy(at<void>(before.addresses()[a]), at<void>(apart.arrays.addresses()[a]), array_bytes);
    for (size_t k = 0; k < array_pages; ++k) {
      undo.push_back(before.addresses()[a] + k * checked.page_bytes);
      data.push_back(apart.arrays.addresses()[a] + k * checked.page_bytes);
    }
  }
  update_chunk(run, code, checked.columns, fused.chunk(), parity.addresses(), target.addresses(), std::nullopt, std::nullopt);
  adam(checked.threads, apart.chunk(), std::nullopt);
  update_parity(run, code, checked.columns, undo, data, parity.addresses(), wanted.addresses(), std::nullopt);
  for (size_t a = 0; a < 3; ++a) {
    expect(fused.arrays.equals(apart.arrays, a, a), checked, "a fused update differs from adam");
  }
  for (uint32_t j = 0; j < checked.tier1; ++j) {
    expect(target.equals(wanted, j, j), checked, "a fused update differs from updating the parity of what adam changed");
  }
}

void check_xor(std::mt19937& random) {
  for (const size_t bytes : {1, 63, 64, 257, 5000, 300000}) {
    for (const size_t count : {1, 2, 5, 16}) {
      const Pages source(count, bytes, true, random), target(1, bytes, true, random);
      xor_pages(1, source.addresses(), target.addresses()[0], bytes, std::nullopt);
      for (size_t i = 0; i < bytes; ++i) {
        Byte sum = 0;
        for (const Address page : source.addresses()) sum ^= at<const Byte>(page)[i];
        if (sum == at<const Byte>(target.addresses()[0])[i]) continue;
        std::printf("%s: xor of %zu pages of %zu bytes is wrong\n", row().name, count, bytes);
        std::exit(1);
      }
    }
  }
}

// Of one page and of more than are copied side by side, with whole groups and without.
void check_copy(std::mt19937& random) {
  for (const size_t bytes : {63, 5000, 300000}) {
    for (const size_t count : {1, 19}) {
      for (const size_t threads : {1, 3}) {
        const Pages source(count, bytes, false, random), target(count, bytes, true, random);
        copy_pages(threads, source.addresses(), target.addresses(), bytes, std::nullopt);
        if (equal_pages(source.addresses(), target.addresses(), bytes).empty()) continue;
        std::printf("%s: a copy of %zu pages of %zu bytes is wrong\n", row().name, count, bytes);
        std::exit(1);
      }
    }
  }
}

Indices range(uint32_t first, uint32_t count, uint32_t step = 1) {
  Indices columns;
  for (uint32_t k = 0; k < count; ++k) columns.push_back(first + k * step);
  return columns;
}

}  // namespace

int main() {
  std::mt19937 random(20260);
  Scratch scratch;
  const std::vector<Indices> column_sets = {range(0, 1),    range(7, 3),       range(0, 16),      range(13, 40),
                                            range(4060, 36), range(5, 24, 37), {31, 2, 900, 17, 16}};
  size_t cases = 0;
  for (uint32_t tier1 = 1; tier1 <= kMaxRows; ++tier1) {
    for (const Indices& columns : column_sets) {
      for (const size_t page_bytes : {4, 64, 260, 3 * 4096 + 4}) {
        for (const bool aligned : {true, false}) {
          check({tier1, columns, page_bytes, aligned, 1}, scratch, random);
          ++cases;
        }
      }
    }
  }
  // Large enough for streaming stores and for more than one thread.
  check({16, range(3, 20), 320 << 10, true, 3}, scratch, random);
  check({16, range(3, 2), (320 << 10) + 64, true, 3}, scratch, random);
  check({1, range(3, 4), 5 << 20, true, 2}, scratch, random);
  check_xor(random);
  check_copy(random);
  for (const uint32_t tier1 : {1, 3, 16}) {
    for (const uint32_t array_pages : {1, 5, 21}) {
      for (const size_t page_bytes : {64, 260, 5 * 4096 + 4}) {
        for (const size_t missing : {0, 7}) {
          check_fused({tier1, range(13, 3 * array_pages), page_bytes, true, 1}, missing, scratch, random);
        }
      }
    }
  }
  check_fused({16, range(63, 63), 320 << 10, true, 3}, 100'000, scratch, random);
  std::printf("%s: %zu codes agree with the definition\n", row().name, cases + 3);
}
