#include "points.h"

#include "code_strips.h"
#include "gf32.h"

namespace leto {
namespace {

using gf32::multiply;

// s(x) of {0, .., size - 1}.
constexpr uint32_t subspace(uint32_t size, uint32_t x) {
  uint32_t value = x;
  for (uint32_t v = 1; v < size; ++v) value = multiply(value, x ^ v);
  return value;
}

// What depends on the transform size or the layer alone.
struct Constants {
  uint32_t inverse_units[kMaxLayers + 1] = {};  // 1 / (1 * 2 * ... * (m - 1)) for m = 1 << index
  uint32_t inverse_norms[kMaxLayers] = {};      // 1 / s(1 << layer) of {0, .., (1 << layer) - 1}

  constexpr Constants() {
    for (int layers = 0; layers <= kMaxLayers; ++layers) {
      uint32_t units = 1;
      for (uint32_t v = 1; v < 1u << layers; ++v) units = multiply(units, v);
      inverse_units[layers] = gf32::inverse(units);
    }
    for (int layer = 0; layer < kMaxLayers; ++layer) inverse_norms[layer] = gf32::inverse(subspace(1u << layer, 1u << layer));
  }
};

constexpr Constants kConstants;

// Replaces every element by its inverse with a single inversion: prefix products, then unwind.
void invert_all(uint32_t* elements, size_t count, Scratch& scratch) {
  auto* prefix = scratch.take<uint32_t>(count + 1);
  prefix[0] = 1;
  for (size_t i = 0; i < count; ++i) prefix[i + 1] = multiply(prefix[i], elements[i]);
  uint32_t suffix = gf32::inverse(prefix[count]);
  for (size_t i = count; i-- > 0;) {
    const uint32_t inverted = multiply(suffix, prefix[i]);
    suffix = multiply(suffix, elements[i]);
    elements[i] = inverted;
  }
}

}  // namespace

Points::Points(uint32_t tier1_pages) : size_(1), layers_(0) {
  while (size_ < tier1_pages) {
    size_ *= 2;
    ++layers_;
  }
}

uint32_t Points::factor(uint32_t column) const {
  return multiply(kConstants.inverse_units[layers_], subspace(size_, size_ * (1 + block_of(column))));
}

const uint32_t* Points::coefficients(const Indices& columns, const Indices& rows, Scratch& scratch) const {
  const size_t width = rows.size(), count = columns.size() * width;
  auto* matrix = scratch.take<uint32_t>(count);
  for (size_t i = 0; i < count; ++i) matrix[i] = of_column(columns[i / width]) ^ rows[i % width];
  invert_all(matrix, count, scratch);
  uint32_t block = ~0u, scale = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t column = columns[i / width];
    if (block_of(column) != block) {
      block = block_of(column);
      scale = factor(column);
    }
    matrix[i] = multiply(scale, matrix[i]);
  }
  return matrix;
}

const uint32_t* Points::solution(const Indices& columns, const Indices& rows, Scratch& scratch) const {
  const size_t n = columns.size();
  auto* numerators = scratch.take<uint32_t>(n * n);
  auto* matrix = scratch.take<uint32_t>(n * n);
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = 0; b < n; ++b) {
      const uint32_t x = of_column(columns[b]), y = rows[a];
      uint32_t numerator = 1, denominator = multiply(x ^ y, factor(columns[b]));
      for (size_t k = 0; k < n; ++k) {
        const uint32_t xk = of_column(columns[k]), yk = rows[k];
        numerator = multiply(numerator, multiply(x ^ yk, xk ^ y));
        if (k != b) denominator = multiply(denominator, x ^ xk);
        if (k != a) denominator = multiply(denominator, y ^ yk);
      }
      numerators[a * n + b] = numerator;
      matrix[a * n + b] = denominator;
    }
  }
  invert_all(matrix, n * n, scratch);
  for (size_t i = 0; i < n * n; ++i) matrix[i] = multiply(matrix[i], numerators[i]);
  return matrix;
}

void Points::twiddles(uint32_t origin, uint32_t* factors) const {
  for (int layer = 0; layer < layers_; ++layer) {
    // Subspace polynomials are linear over xor, so the coset is one term for the whole layer.
    const uint32_t half = 1u << layer, at_origin = multiply(subspace(half, origin), kConstants.inverse_norms[layer]);
    for (uint32_t start = 0; start < size_; start += 2 * half) {
      const uint32_t inside = multiply(subspace(half, start), kConstants.inverse_norms[layer]);
      factors[layer_offset(static_cast<int>(size_), layer) + start / (2 * half)] = at_origin ^ inside;
    }
  }
}

}  // namespace leto
