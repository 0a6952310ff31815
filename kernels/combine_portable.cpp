// The matrix product over pages that all of the erasure code is made of, in portable C++.
//
// One table row holds the products of one byte value with the factors of all targets, so a source word costs four row
// loads for up to 16 targets:
//
//   table[byte position 0..3][value 0..255][target]          4 KiB a target: 64 KiB for 16, from L2
//   sums [word of the strip][target]                         128 KiB, in L2 as well
//
// A table takes about a microsecond to build and serves one strip of one page, so it is not worth keeping.
#include "combine_portable.h"

#include <algorithm>
#include <memory>

#include "gf32.h"

namespace leto {
namespace {

// Four neighbouring targets of a row: the vector width that every supported processor has.
typedef uint32_t Lanes __attribute__((vector_size(16)));
constexpr int kLaneTargets = 4;
constexpr size_t kSumsBytes = 128 << 10;

// factor * x^bit for every lane element
void times_x(Lanes* image, int lanes) {
  for (int lane = 0; lane < lanes; ++lane) {
    for (int j = 0; j < kLaneTargets; ++j) image[lane][j] = gf32::times_x(image[lane][j]);
  }
}

// A row of the table is `Width` lanes.
template <int Width>
void build_table(const uint32_t* factors, int targets, Lanes* table) {
  Lanes image[Width] = {};
  for (int j = 0; j < targets; ++j) image[j / kLaneTargets][j % kLaneTargets] = factors[j];
  for (int byte = 0; byte < 4; ++byte, table += 256 * Width) {
    std::fill_n(table, Width, Lanes{});
    for (int bit = 0; bit < 8; ++bit) {
      Lanes* upper = table + (Width << bit);
      for (int value = 0; value < 1 << bit; ++value) {
        for (int lane = 0; lane < Width; ++lane) upper[value * Width + lane] = table[value * Width + lane] ^ image[lane];
      }
      times_x(image, Width);
    }
  }
}

template <int Width>
void accumulate(const Lanes* table, const uint32_t* source, size_t words, Lanes* sums) {
  for (size_t i = 0; i < words; ++i, sums += Width) {
    const uint32_t word = source[i];
    const Lanes* byte0 = table + (word & 255) * Width;
    const Lanes* byte1 = table + (256 + ((word >> 8) & 255)) * Width;
    const Lanes* byte2 = table + (512 + ((word >> 16) & 255)) * Width;
    const Lanes* byte3 = table + (768 + (word >> 24)) * Width;
    for (int lane = 0; lane < Width; ++lane) sums[lane] ^= (byte0[lane] ^ byte1[lane]) ^ (byte2[lane] ^ byte3[lane]);
  }
}

// Transposes the sums of one lane into its targets; `base` is null for zeros.
template <int Width, int Count>
void store_lane(const Lanes* sums, size_t words, const Address* base, const Address* targets) {
  for (size_t i = 0; i < words; ++i) {
    for (int j = 0; j < Count; ++j) {
      const uint32_t start = base ? at<const uint32_t>(base[j])[i] : 0;
      at<uint32_t>(targets[j])[i] = start ^ sums[i * Width][j];
    }
  }
}

template <int Width>
void store(const Lanes* sums, size_t words, const Addresses& base, const Addresses& targets) {
  for (size_t j = 0; j < targets.size(); j += kLaneTargets, ++sums) {
    const Address* from = base.empty() ? nullptr : base.data() + j;
    switch (std::min<size_t>(kLaneTargets, targets.size() - j)) {
      case 4: store_lane<Width, 4>(sums, words, from, targets.data() + j); break;
      case 3: store_lane<Width, 3>(sums, words, from, targets.data() + j); break;
      case 2: store_lane<Width, 2>(sums, words, from, targets.data() + j); break;
      default: store_lane<Width, 1>(sums, words, from, targets.data() + j);
    }
  }
}

// Width is the number of lanes that hold all targets.
template <int Width>
void combine_width(const Combination& work) {
  constexpr size_t kStripWords = kSumsBytes / (Width * sizeof(Lanes));
  const int targets = static_cast<int>(work.targets.size());
  const size_t strip_words = std::min(kStripWords, work.words);
  const auto table = std::make_unique<Lanes[]>(4 * 256 * Width);
  const auto sums = std::make_unique<Lanes[]>(strip_words * Width);
  const auto difference = std::make_unique<uint32_t[]>(strip_words);
  for (size_t first = 0; first < work.words; first += strip_words) {
    const size_t words = std::min(strip_words, work.words - first);
    std::fill_n(sums.get(), words * Width, Lanes{});
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
    store<Width>(sums.get(), words, advanced(work.base, first * 4), advanced(work.targets, first * 4));
  }
}

}  // namespace

void combine_portable(const Combination& work) {
  if (work.targets.size() <= 4) return combine_width<1>(work);
  if (work.targets.size() <= 8) return combine_width<2>(work);
  combine_width<kMaxTargets / kLaneTargets>(work);
}

}  // namespace leto
