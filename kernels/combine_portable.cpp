// The matrix product over pages that all of the erasure code is made of, in portable C++.
//
// One table row holds the products of one byte value with the factors of all targets, so a source word costs four row
// loads for up to 16 targets, and the compiler turns a row into vectors:
//
//   table[byte position 0..3][value 0..255][target]          4 KiB a target: 64 KiB for 16, from L2
//   sums [word of the strip][target]                         8 KiB a target, in L2 as well
//
// A table takes about a microsecond to build and serves one strip of one page, so it is not worth keeping.
#include "combine_portable.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "gf32.h"

namespace leto {
namespace {

constexpr size_t kStripWords = 2048;
constexpr size_t kTableRows = 4 * 256;

template <int Width>
void build_table(const uint32_t* factors, int targets, uint32_t* __restrict table) {
  uint32_t image[Width] = {};  // factor * x^bit
  std::copy_n(factors, targets, image);
  for (int byte = 0; byte < 4; ++byte, table += 256 * Width) {
    std::fill_n(table, Width, 0u);
    for (int bit = 0; bit < 8; ++bit) {
      uint32_t* upper = table + (Width << bit);
      for (int value = 0; value < 1 << bit; ++value) {
        for (int j = 0; j < Width; ++j) upper[value * Width + j] = table[value * Width + j] ^ image[j];
      }
      for (int j = 0; j < Width; ++j) image[j] = gf32::times_x(image[j]);
    }
  }
}

template <int Width>
void accumulate(const uint32_t* __restrict table, const uint32_t* __restrict source, size_t words,
                uint32_t* __restrict sums) {
  for (size_t i = 0; i < words; ++i, sums += Width) {
    const uint32_t word = source[i];
    const uint32_t* byte0 = table + (word & 255) * Width;
    const uint32_t* byte1 = table + (256 + ((word >> 8) & 255)) * Width;
    const uint32_t* byte2 = table + (512 + ((word >> 16) & 255)) * Width;
    const uint32_t* byte3 = table + (768 + (word >> 24)) * Width;
    for (int j = 0; j < Width; ++j) sums[j] ^= (byte0[j] ^ byte1[j]) ^ (byte2[j] ^ byte3[j]);
  }
}

template <int Width>
void store(const uint32_t* __restrict sums, size_t words, const uint32_t* base, uint32_t* target) {
  if (base) {
    for (size_t i = 0; i < words; ++i) target[i] = base[i] ^ sums[i * Width];
  } else {
    for (size_t i = 0; i < words; ++i) target[i] = sums[i * Width];
  }
}

// Width is the number of targets rounded up to whole vectors.
template <int Width>
void combine_width(const Combination& work) {
  const int targets = static_cast<int>(work.targets.size());
  const size_t strip_words = std::min(kStripWords, work.words);
  const auto table = std::make_unique<uint32_t[]>(kTableRows * Width);
  const auto sums = std::make_unique<uint32_t[]>(strip_words * Width);
  const auto difference = std::make_unique<uint32_t[]>(strip_words);
  for (size_t first = 0; first < work.words; first += strip_words) {
    const size_t words = std::min(strip_words, work.words - first);
    std::memset(sums.get(), 0, words * Width * sizeof(uint32_t));
    for (size_t k = 0; k < work.sources.size(); ++k) {
      const uint32_t* source = at<const uint32_t>(work.sources[k]) + first;
      if (!work.others.empty()) {
        const uint32_t* other = at<const uint32_t>(work.others[k]) + first;
        for (size_t i = 0; i < words; ++i) difference[i] = source[i] ^ other[i];
        source = difference.get();
      }
      build_table<Width>(work.matrix + k * targets, targets, table.get());
      accumulate<Width>(table.get(), source, words, sums.get());
    }
    for (int j = 0; j < targets; ++j) {
      const uint32_t* base = work.base.empty() ? nullptr : at<const uint32_t>(work.base[j]) + first;
      store<Width>(sums.get() + j, words, base, at<uint32_t>(work.targets[j]) + first);
    }
  }
}

}  // namespace

void combine_portable(const Combination& work) {
  if (work.targets.size() <= 4) return combine_width<4>(work);
  if (work.targets.size() <= 8) return combine_width<8>(work);
  combine_width<kMaxTargets>(work);
}

}  // namespace leto
