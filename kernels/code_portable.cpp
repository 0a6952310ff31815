// The erasure code in portable C++: products only, no transform.
//
// One row of the table holds the products of one byte value with the factors of all targets, so a source word costs four row
// loads for up to 16 targets:
//
//   table[byte position 0..3][value 0..255][target]          4 KiB a target: 64 KiB for 16, from L2
//   sums [word of the strip][target]                         128 KiB, in L2 as well
//
// A table takes about a microsecond to build and serves one strip of one page, so it is not worth keeping.
#include <cstring>

#include "code_rows.h"
#include "gf32.h"

namespace leto {
namespace {

// Four neighbouring targets of a row: the vector width that every supported processor has.
typedef uint32_t Lanes __attribute__((vector_size(16)));
constexpr int kLaneTargets = 4;
constexpr int kMaxLanes = kMaxRows / kLaneTargets;
constexpr size_t kStripWords = kStripBytes / 4;

struct Workspace {
  Lanes table[4 * 256 * kMaxLanes];
  Lanes sums[kStripWords * kMaxLanes];
  uint32_t difference[kStripWords];
};

// factor * x^bit for every lane element
void times_x(Lanes* image, int lanes) {
  for (int lane = 0; lane < lanes; ++lane) {
    for (int j = 0; j < kLaneTargets; ++j) image[lane][j] = gf32::times_x(image[lane][j]);
  }
}

// A row of the table is `Width` lanes.
template <int Width>
void build_table(const Byte* factors, int targets, Lanes* table) {
  Lanes image[Width] = {};
  for (int j = 0; j < targets; ++j) {
    uint32_t factor;
    memcpy(&factor, factors + 4 * j, sizeof factor);
    image[j / kLaneTargets][j % kLaneTargets] = factor;
  }
  for (int byte = 0; byte < 4; ++byte, table += 256 * Width) {
    for (int lane = 0; lane < Width; ++lane) table[lane] = Lanes{};
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

// Transposes the sums into their targets.
template <int Width>
void store(const MatrixWork& work, const Lanes* sums, size_t words) {
  for (int j = 0; j < work.rows; ++j) {
    const auto* base = reinterpret_cast<const uint32_t*>(work.base ? work.base[j] : nullptr);
    auto* target = reinterpret_cast<uint32_t*>(work.targets[j]);
    const int lane = j / kLaneTargets, element = j % kLaneTargets;
    for (size_t i = 0; i < words; ++i) target[i] = (base ? base[i] : 0) ^ sums[i * Width + lane][element];
  }
}

// Width is the number of lanes that hold all targets.
template <int Width>
void multiply_width(const MatrixWork& work) {
  auto& space = *reinterpret_cast<Workspace*>(work.workspace);
  const size_t words = work.bytes / 4;
  for (size_t i = 0; i < words * Width; ++i) space.sums[i] = Lanes{};
  for (int k = 0; k < work.sources; ++k) {
    const auto* source = reinterpret_cast<const uint32_t*>(work.data[k]);
    if (work.minus) {
      const auto* minus = reinterpret_cast<const uint32_t*>(work.minus[k]);
      for (size_t i = 0; i < words; ++i) space.difference[i] = source[i] ^ minus[i];
      source = space.difference;
    }
    build_table<Width>(work.factors + 4 * k * work.rows, work.rows, space.table);
    accumulate<Width>(space.table, source, words, space.sums);
  }
  store<Width>(work, space.sums, words);
}

void multiply(const MatrixWork& work) {
  if (work.rows <= 4) return multiply_width<1>(work);
  if (work.rows <= 8) return multiply_width<2>(work);
  multiply_width<kMaxLanes>(work);
}

void xor_strips(const XorWork& work) {
  Byte* __restrict target = work.target;
  memcpy(target, work.sources[0], work.bytes);
  for (size_t k = 1; k < work.count; ++k) {
    const Byte* __restrict source = work.sources[k];
    for (size_t i = 0; i < work.bytes; ++i) target[i] ^= source[i];
  }
}

void copy_strips(const CopyWork& work) {
  for (size_t k = 0; k < work.count; ++k) memcpy(work.targets[k], work.sources[k], work.bytes);
}

void expand(uint32_t factor, Byte* expanded) { memcpy(expanded, &factor, sizeof factor); }

}  // namespace

const CodeKernels& code_portable() {
  static constexpr CodeKernels kKernels = {
      kStripBytes, kStripBytes, sizeof(uint32_t), sizeof(Workspace), expand, multiply, xor_strips, copy_strips, {}, {}};
  return kKernels;
}

}  // namespace leto
