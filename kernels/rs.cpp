#include "rs.h"

#include "code_call.h"
#include "rows.h"
#include "workers.h"

namespace leto {
namespace {

const Addresses kNone;

// target <- base xor the product, for whole pages. `base` is empty for zeros.
void multiply_pages(const Run& run, const Code& code, const Indices& columns, const Product::Sources& sources,
                    const Addresses& base, const Addresses& target, const std::optional<Park>& park) {
  require_code(code);
  require_words({&sources.data, &sources.minus, &base, &target});
  run.scratch.reset();
  const CodeKernels& kernels = row().code();
  const Indices rows = all_rows(code);
  const Product product(kernels, Points(code.tier1_pages), columns, rows, run.scratch);
  const size_t pages = sources.data.size() + sources.minus.size() + base.size() + target.size();
  const size_t threads = useful_threads(run.threads, pages * code.page_bytes);
  const std::vector<Worker> memory = workers(threads, kernels, columns.size(), run.scratch);
  const bool large = is_streamed(code, target);
  run_parked(code.page_bytes / 4, park, [&](size_t first_word, size_t last_word) {
    const bool stream = large && first_word * 4 % kVectorBytes == 0;
    split(first_word * 4, last_word * 4, product.strip_bytes(), threads, [&](size_t thread, size_t first, size_t last) {
      for_strips(first, last, product.strip_bytes(), [&](size_t offset, size_t bytes) {
        Byte *from[kMaxRows], *to[kMaxRows];
        strips_at(base, offset, from);
        strips_at(target, offset, to);
        product.run(sources, {offset, bytes, last}, base.empty() ? nullptr : from, to, stream, memory[thread]);
      });
    });
  });
}

bool is_zero(const Byte* strip, size_t bytes) {
  const auto* words = reinterpret_cast<const uint32_t*>(strip);
  uint32_t any = 0;
  for (size_t i = 0; i < bytes / 4; ++i) any |= words[i];
  return any == 0;
}

Indices joined(const Indices& left, const Indices& right) {
  Indices both(left);
  both.insert(both.end(), right.begin(), right.end());
  return both;
}

// A repair planned for all strips: three products a strip, the first over everything, the others over what is lost.
//
//   sums     what the lost columns contribute to each row: the row xor the product of the intact columns
//   lost     the lost columns, from the sums of as many rows (the inverse of their square of the matrix)
//   rest     for the other rows, their sum xor the product of the lost columns: zero in a spare row, the page in a lost one
class Repair {
 public:
  Repair(const CodeKernels& kernels, const Points& points, const Erasure& erasure, Scratch& scratch)
      : kernels_(kernels),
        erasure_(erasure),
        lost_(erasure.lost_columns.size()),
        intact_(erasure.rows.size()),
        rows_(joined(erasure.rows, erasure.lost_rows)),
        known_(kernels, points, erasure.columns, rows_, scratch) {
    const Indices solving(rows_.begin(), rows_.begin() + lost_), rest(rows_.begin() + lost_, rows_.end());
    solution_ = expanded(kernels, points.solution(erasure.lost_columns, solving, scratch), lost_ * lost_, scratch);
    rest_ = expanded(kernels, points.coefficients(erasure.lost_columns, rest, scratch), lost_ * rest.size(), scratch);
  }

  // Memory of one thread: rows of sums and of syndromes.
  struct Strips {
    Byte *sums[kMaxRows], *syndromes[kMaxRows];

    Strips(const CodeKernels& kernels, Scratch& scratch) {
      const size_t stride = kernels.strip_bytes + kGroupBytes;
      auto* memory = scratch.take<Byte>(2 * kMaxRows * stride);
      for (int r = 0; r < kMaxRows; ++r) {
        sums[r] = memory + r * stride;
        syndromes[r] = memory + (kMaxRows + r) * stride;
      }
    }
  };

  // Repairs one strip. Returns the first spare row that contradicts, or -1.
  int run(const Product::Strip& strip, const Strips& strips, const Worker& worker) const {
    const Byte* base[kMaxRows] = {};
    Byte *sums[kMaxRows], *rest[kMaxRows], *lost[kMaxRows];
    std::copy_n(strips.sums, rows_.size(), sums);
    for (size_t r = 0; r < rows_.size(); ++r) {
      const bool is_intact = r < intact_;
      if (is_intact) base[r] = at<const Byte>(erasure_.parity[r] + strip.offset);
      Byte* page = is_intact ? strips.syndromes[r] : at<Byte>(erasure_.lost_parity[r - intact_] + strip.offset);
      if (r >= lost_) rest[r - lost_] = page;
    }
    if (lost_ == 0) std::copy_n(rest, rows_.size(), sums);  // nothing to solve: the sums are the rest already
    known_.run({erasure_.data, kNone}, strip, base, sums, false, worker);
    if (lost_ > 0) {
      strips_at(erasure_.lost_data, strip.offset, lost);
      multiply(strips.sums, lost_, solution_, nullptr, lost, lost_, strip.bytes, worker);
      multiply(lost, lost_, rest_, strips.sums + lost_, rest, rows_.size() - lost_, strip.bytes, worker);
    }
    for (size_t r = lost_; r < intact_; ++r) {
      if (!is_zero(rest[r - lost_], strip.bytes)) return static_cast<int>(rows_[r]);
    }
    return -1;
  }

 private:
  void multiply(const Byte* const* data, size_t sources, const Byte* factors, const Byte* const* base, Byte* const* targets,
                size_t rows, size_t bytes, const Worker& worker) const {
    if (rows == 0) return;
    kernels_.multiply({data, nullptr, static_cast<int>(sources), factors, base, targets, static_cast<int>(rows),
                       worker.workspace, bytes, false});
  }

  const CodeKernels& kernels_;
  const Erasure& erasure_;
  const size_t lost_, intact_;
  const Indices rows_;
  const Product known_;
  const Byte *solution_, *rest_;
};

void require_erasure(const Code& code, const Erasure& erasure) {
  require_code(code);
  require(erasure.columns.size() == erasure.data.size(), "reconstruct: columns and data have different lengths");
  require(erasure.lost_columns.size() == erasure.lost_data.size(), "reconstruct: one target a lost column");
  require(erasure.rows.size() == erasure.parity.size(), "reconstruct: rows and parity have different lengths");
  require(erasure.lost_rows.size() == erasure.lost_parity.size(), "reconstruct: one target a lost row");
  require(erasure.lost_columns.size() <= erasure.rows.size(), "reconstruct: more lost columns than rows");
  require_words({&erasure.data, &erasure.lost_data, &erasure.parity, &erasure.lost_parity});
  uint32_t seen = 0;
  for (const uint32_t row : joined(erasure.rows, erasure.lost_rows)) {
    require(row < code.tier1_pages && !(seen >> row & 1), "reconstruct: a row repeats or is not one of the code");
    seen |= 1u << row;
  }
}

}  // namespace

void encode(const Run& run, const Code& code, const Indices& columns, const Addresses& data, const Addresses& target,
            const std::optional<Park>& park) {
  require(columns.size() == data.size(), "encode: columns and data have different lengths");
  require(target.size() == code.tier1_pages, "encode: the target is not one page per parity row");
  multiply_pages(run, code, columns, {data, kNone}, kNone, target, park);
}

void update_parity(const Run& run, const Code& code, const Indices& columns, const Addresses& undo, const Addresses& data,
                   const Addresses& parity, const Addresses& target, const std::optional<Park>& park) {
  require(columns.size() == data.size(), "update_parity: columns and data have different lengths");
  require(undo.empty() || undo.size() == data.size(), "update_parity: undo and data have different lengths");
  require(parity.size() == code.tier1_pages && target.size() == parity.size(), "update_parity: one page per parity row");
  multiply_pages(run, code, columns, {data, undo}, parity, target, park);
}

int reconstruct(const Run& run, const Code& code, const Erasure& erasure) {
  require_erasure(code, erasure);
  run.scratch.reset();
  const CodeKernels& kernels = row().code();
  const Repair repair(kernels, Points(code.tier1_pages), erasure, run.scratch);
  const size_t pages = erasure.data.size() + erasure.parity.size();
  const size_t threads = useful_threads(run.threads, pages * code.page_bytes);
  const std::vector<Worker> memory = workers(threads, kernels, pages, run.scratch);
  std::vector<Repair::Strips> strips;
  for (size_t n = 0; n < threads; ++n) strips.emplace_back(kernels, run.scratch);
  std::vector<int> contradicting(threads, -1);
  split(0, code.page_bytes, kernels.strip_bytes, threads, [&](size_t thread, size_t first, size_t last) {
    for_strips(first, last, kernels.strip_bytes, [&](size_t offset, size_t bytes) {
      if (contradicting[thread] >= 0) return;
      contradicting[thread] = repair.run({offset, bytes, last}, strips[thread], memory[thread]);
    });
  });
  const auto found = std::find_if(contradicting.begin(), contradicting.end(), [](int row) { return row >= 0; });
  return found == contradicting.end() ? -1 : *found;
}

}  // namespace leto
