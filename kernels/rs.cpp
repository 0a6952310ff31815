#include "rs.h"

#include <algorithm>
#include <memory>

#include "gf32.h"
#include "rows.h"

namespace leto {
namespace {

constexpr size_t kStripBytes = 8192;

using Matrix = std::vector<uint32_t>;

// Replaces every element by its inverse with a single inversion: prefix products, then unwind.
void invert_all(Matrix& elements) {
  Matrix prefix(elements.size() + 1, 1);
  for (size_t i = 0; i < elements.size(); ++i) prefix[i + 1] = gf32::multiply(prefix[i], elements[i]);
  uint32_t suffix = gf32::inverse(prefix.back());
  for (size_t i = elements.size(); i-- > 0;) {
    const uint32_t inverted = gf32::multiply(suffix, prefix[i]);
    suffix = gf32::multiply(suffix, elements[i]);
    elements[i] = inverted;
  }
}

// Points of the code for a transform of size m: row j at j, column i at m + i, in blocks of m that share a factor.
class Points {
 public:
  explicit Points(uint32_t tier1_pages) {
    while (m_ < tier1_pages) m_ *= 2;
    uint32_t units = 1;
    for (uint32_t v = 1; v < m_; ++v) units = gf32::multiply(units, v);
    inverse_units_ = gf32::inverse(units);
  }

  uint32_t of_column(uint32_t column) const { return m_ + column; }

  // u_b of the column's block: s(m * (1 + b)) / (1 * 2 * ... * (m - 1)).
  uint32_t factor(uint32_t column) const {
    const uint32_t x = m_ * (1 + column / m_);
    uint32_t value = inverse_units_;
    for (uint32_t v = 0; v < m_; ++v) value = gf32::multiply(value, x ^ v);
    return value;
  }

  // P[column][row] for all given columns and rows, laid out [column][row].
  Matrix coefficients(const Indices& columns, const Indices& rows) const {
    Matrix matrix;
    matrix.reserve(columns.size() * rows.size());
    for (const uint32_t column : columns) {
      for (const uint32_t row : rows) matrix.push_back(of_column(column) ^ row);
    }
    invert_all(matrix);
    uint32_t block = ~0u, scale = 0;
    for (size_t k = 0; k < columns.size(); ++k) {
      if (columns[k] / m_ != block) {
        block = columns[k] / m_;
        scale = factor(columns[k]);
      }
      for (size_t j = 0; j < rows.size(); ++j) {
        matrix[k * rows.size() + j] = gf32::multiply(scale, matrix[k * rows.size() + j]);
      }
    }
    return matrix;
  }

  // Inverse of the square system (columns x rows), laid out [row][column]: the explicit inverse of a Cauchy matrix with
  // its columns scaled.
  Matrix solution(const Indices& columns, const Indices& rows) const {
    const size_t n = columns.size();
    Matrix numerators(n * n), matrix(n * n);
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b) {
        const uint32_t x = of_column(columns[b]), y = rows[a];
        uint32_t numerator = 1, denominator = gf32::multiply(x ^ y, factor(columns[b]));
        for (size_t k = 0; k < n; ++k) {
          const uint32_t xk = of_column(columns[k]), yk = rows[k];
          numerator = gf32::multiply(numerator, gf32::multiply(x ^ yk, xk ^ y));
          if (k != b) denominator = gf32::multiply(denominator, x ^ xk);
          if (k != a) denominator = gf32::multiply(denominator, y ^ yk);
        }
        numerators[a * n + b] = numerator;
        matrix[a * n + b] = denominator;
      }
    }
    invert_all(matrix);
    for (size_t i = 0; i < n * n; ++i) matrix[i] = gf32::multiply(matrix[i], numerators[i]);
    return matrix;
  }

 private:
  uint32_t m_ = 1;
  uint32_t inverse_units_ = 0;
};

Indices all_rows(const Code& code) {
  Indices rows(code.tier1_pages);
  for (uint32_t j = 0; j < code.tier1_pages; ++j) rows[j] = j;
  return rows;
}

void require_code(const Code& code) {
  require(code.tier1_pages >= 1 && code.tier1_pages <= kMaxTargets, "code: tier1_pages is not in [1, 16]");
  require(code.page_bytes % 4 == 0, "code: page_bytes is not a multiple of 4");
}

// A matrix applied to one byte range of all pages.
void combine(const Matrix& matrix, const Addresses& sources, const Addresses& others, const Addresses& base,
             const Addresses& targets, size_t bytes) {
  if (!targets.empty()) row().combine({matrix.data(), sources, others, base, targets, bytes / 4});
}

// Pages of one strip that live in memory of our own.
class Scratch {
 public:
  explicit Scratch(size_t pages) : bytes_(new uint8_t[pages * kStripBytes]) {
    for (size_t k = 0; k < pages; ++k) pages_.push_back(reinterpret_cast<Address>(bytes_.get()) + k * kStripBytes);
  }

  Addresses slice(size_t first, size_t last) const { return {pages_.begin() + first, pages_.begin() + last}; }

 private:
  std::unique_ptr<uint8_t[]> bytes_;
  Addresses pages_;
};

bool is_zero(Address page, size_t bytes) {
  const auto* words = at<const uint32_t>(page);
  uint32_t any = 0;
  for (size_t i = 0; i < bytes / 4; ++i) any |= words[i];
  return any == 0;
}

}  // namespace

void encode(const Code& code, const Indices& columns, const Addresses& data, const Addresses& target,
            const std::optional<Park>& park) {
  require_code(code);
  require(columns.size() == data.size(), "encode: columns and data have different lengths");
  require(target.size() == code.tier1_pages, "encode: the target is not one page per parity row");
  const Matrix matrix = Points(code.tier1_pages).coefficients(columns, all_rows(code));
  run_parked(code.page_bytes / 4, park, [&](size_t first, size_t last) {
    combine(matrix, advanced(data, first * 4), {}, {}, advanced(target, first * 4), (last - first) * 4);
  });
}

void update_parity(const Code& code, const Indices& columns, const Addresses& undo, const Addresses& data,
                   const Addresses& parity, const Addresses& target, const std::optional<Park>& park) {
  require_code(code);
  require(columns.size() == data.size() && undo.size() == data.size(), "update_parity: one column, undo and data page each");
  require(parity.size() == code.tier1_pages && target.size() == parity.size(), "update_parity: one page per parity row");
  const Matrix matrix = Points(code.tier1_pages).coefficients(columns, all_rows(code));
  run_parked(code.page_bytes / 4, park, [&](size_t first, size_t last) {
    combine(matrix, advanced(undo, first * 4), advanced(data, first * 4), advanced(parity, first * 4),
            advanced(target, first * 4), (last - first) * 4);
  });
}

int reconstruct(const Code& code, const Indices& columns, const Addresses& data, const Indices& lost_columns,
                const Addresses& target, const Indices& rows, const Addresses& parity) {
  require_code(code);
  require(columns.size() == data.size(), "reconstruct: columns and data have different lengths");
  require(lost_columns.size() == target.size(), "reconstruct: lost columns and target have different lengths");
  require(rows.size() == parity.size() && rows.size() <= code.tier1_pages, "reconstruct: rows and parity do not match");
  require(lost_columns.size() <= rows.size(), "reconstruct: more lost columns than rows");
  const size_t lost = lost_columns.size();
  const Indices solving(rows.begin(), rows.begin() + lost), spare(rows.begin() + lost, rows.end());
  const Points points(code.tier1_pages);
  const Matrix known = points.coefficients(columns, rows);
  const Matrix solution = points.solution(lost_columns, solving);
  const Matrix solved = points.coefficients(lost_columns, spare);
  const Scratch scratch(2 * rows.size());
  const Addresses sums = scratch.slice(0, rows.size());  // what the lost columns contribute to each row
  const Addresses solving_sums = scratch.slice(0, lost), spare_sums = scratch.slice(lost, rows.size());
  const Addresses syndromes = scratch.slice(rows.size(), rows.size() + spare.size());
  for (size_t offset = 0; offset < code.page_bytes; offset += kStripBytes) {
    const size_t bytes = std::min(kStripBytes, code.page_bytes - offset);
    const Addresses pages = advanced(target, offset);
    combine(known, advanced(data, offset), {}, advanced(parity, offset), sums, bytes);
    combine(solution, solving_sums, {}, {}, pages, bytes);
    combine(solved, pages, {}, spare_sums, syndromes, bytes);
    for (size_t s = 0; s < spare.size(); ++s) {
      if (!is_zero(syndromes[s], bytes)) return static_cast<int>(spare[s]);
    }
  }
  return -1;
}

}  // namespace leto
