#include "chunk_update.h"

#include <algorithm>
#include <cstring>

#include "code_call.h"
#include "workers.h"

namespace leto {
namespace {

constexpr size_t kArrays = 3;  // master, exp_avg, exp_avg_sq

// What a strip of all pages changes stays in the third cache level. That is further away than the second, but what runs as
// long as this (64 KiB of every page where there are 63) save is more: the hardware's prefetcher brings a page's strip from
// memory while AdamW computes, and the product prefetches what changed, block by block (1 MiB: 10 % slower, 8 MiB: the same).
constexpr size_t kDeltaBytes = 4 << 20;

const Addresses kNone;

// Memory of one thread: what the strip at work changes, a strip a page.
struct Deltas {
  AdamScratch adam;
  Addresses strips;

  Deltas(size_t pages, size_t bytes, Scratch& scratch) {
    const size_t stride = bytes + kVectorBytes;  // a power of two would put all pages into the same cache sets
    auto* memory = scratch.take<Byte>(pages * stride);
    for (size_t k = 0; k < pages; ++k) strips.push_back(reinterpret_cast<Address>(memory + k * stride));
  }
};

// Where an armed call stops, in words of a page, and who is waited for there.
struct Stop {
  size_t word;
  const Park *adam, *parity;
};

std::vector<Stop> stops_of(size_t words, const std::optional<Park>& adam_park, const std::optional<Park>& parity_park) {
  std::vector<Stop> stops;
  if (adam_park) stops.push_back({adam_park->cut(words), &*adam_park, nullptr});
  if (parity_park) stops.push_back({parity_park->cut(words), nullptr, &*parity_park});
  if (stops.size() == 2 && stops[0].word == stops[1].word) return {{stops[0].word, &*adam_park, &*parity_park}};
  std::sort(stops.begin(), stops.end(), [](const Stop& a, const Stop& b) { return a.word < b.word; });
  return stops;
}

class FusedUpdate {
 public:
  FusedUpdate(const Run& run, const Code& code, const CodeKernels& kernels, const Product& product, const AdamChunk& chunk,
              size_t pages, const Addresses& parity, const Addresses& target)
      : page_bytes_(code.page_bytes),
        array_pages_(pages / kArrays),
        streamed_(is_streamed(code, target)),
        code_strip_bytes_(kernels.strip_bytes),
        ranges_(chunk),
        product_(product),
        parity_(parity),
        target_(target),
        threads_(useful_threads(run.threads, (pages + 2 * target.size()) * code.page_bytes)),
        strip_bytes_(strip_bytes(pages)),
        workers_(workers(threads_, kernels, pages, run.scratch)) {
    require(ranges_.elements() <= array_pages_ * page_bytes_ / 4, "update_chunk: more elements than the pages hold");
    deltas_.reserve(threads_);
    for (size_t n = 0; n < threads_; ++n) deltas_.emplace_back(pages, std::min(strip_bytes_, page_bytes_), run.scratch);
  }

  void run(const std::vector<Stop>& stops) {
    size_t done = 0;
    for (size_t n = 0; n < stops.size(); ++n) {
      const size_t stop = stops[n].word * 4, limit = n + 1 < stops.size() ? stops[n + 1].word * 4 : page_bytes_;
      run_range(done, stop);
      done = std::min(stop + strip_bytes_, limit);
      run_strip(0, stop, done - stop, stops[n]);
    }
    run_range(done, page_bytes_);
  }

 private:
  void run_range(size_t first_byte, size_t last_byte) {
    split(first_byte, last_byte, strip_bytes_, threads_, [&](size_t thread, size_t first, size_t last) {
      for_strips(first, last, strip_bytes_, [&](size_t offset, size_t bytes) {
        run_strip(thread, offset, bytes, {0, nullptr, nullptr});
      });
    });
  }

  // A whole number of the code's strips, and no more of a page than a thread's share.
  size_t strip_bytes(size_t pages) const {
    const size_t bytes = std::min(kDeltaBytes / pages, page_bytes_ / threads_);
    return std::max<size_t>(bytes / code_strip_bytes_, 1) * code_strip_bytes_;
  }

  // One strip of all pages: the update, then its parity.
  void run_strip(size_t thread, size_t offset, size_t bytes, const Stop& stop) {
    Deltas& deltas = deltas_[thread];
    for (size_t page = 0; page < array_pages_; ++page) {
      update_page(page, offset, bytes, deltas, page == 0 ? stop.adam : nullptr);
    }
    if (stop.parity) stop.parity->wait();
    for_strips(0, bytes, code_strip_bytes_, [&](size_t inside, size_t count) {
      Byte *from[kMaxRows], *to[kMaxRows];
      strips_at(parity_, offset + inside, from);
      strips_at(target_, offset + inside, to);
      const bool stream = streamed_ && (offset + inside) % kVectorBytes == 0;
      product_.run({deltas.strips, kNone}, {inside, count, bytes}, from, to, stream, workers_[thread]);
    });
  }

  // The page's strip in all arrays. Elements behind the chunk's last one are padding, which changes nothing.
  void update_page(size_t page, size_t offset, size_t bytes, Deltas& deltas, const Park* park) const {
    const size_t start = (page * page_bytes_ + offset) / 4;
    const size_t first = std::min(start, ranges_.elements()), last = std::min(start + bytes / 4, ranges_.elements());
    uint32_t* strips[kArrays];
    for (size_t a = 0; a < kArrays; ++a) {
      strips[a] = at<uint32_t>(deltas.strips[a * array_pages_ + page]);
      std::fill(strips[a] + (last - first), strips[a] + bytes / 4, 0u);
    }
    if (park) {
      update_torn(first, last, strips, deltas.adam, *park);
    } else {
      ranges_.step_delta(first, last, {strips[0], strips[1], strips[2]}, deltas.adam);
    }
  }

  // The same with the first block in halves; what changes is found from copies.
  void update_torn(size_t first, size_t last, uint32_t* const* strips, AdamScratch& scratch, const Park& park) const {
    const AdamChunk& chunk = ranges_.chunk();
    const Address arrays[kArrays] = {chunk.master, chunk.exp_avg, chunk.exp_avg_sq};
    const size_t torn = std::min(last, first + kAdamBlock);
    for (size_t a = 0; a < kArrays; ++a) std::memcpy(strips[a], at<uint32_t>(arrays[a]) + first, (last - first) * 4);
    ranges_.begin(first, torn, scratch);
    park.wait();
    ranges_.finish(first, torn, scratch);
    ranges_.step(torn, last, scratch);
    for (size_t a = 0; a < kArrays; ++a) {
      for (size_t i = 0; i < last - first; ++i) strips[a][i] ^= at<uint32_t>(arrays[a])[first + i];
    }
  }

  const size_t page_bytes_, array_pages_;
  const bool streamed_;
  const size_t code_strip_bytes_;
  const AdamRanges ranges_;
  const Product& product_;
  const Addresses &parity_, &target_;
  const size_t threads_, strip_bytes_;
  const std::vector<Worker> workers_;
  std::vector<Deltas> deltas_;
};

}  // namespace

void update_chunk(const Run& run, const Code& code, const Indices& columns, const AdamChunk& chunk, const Addresses& parity,
                  const Addresses& target, const std::optional<Park>& adam_park, const std::optional<Park>& parity_park) {
  require_code(code);
  const Addresses arrays{chunk.master, chunk.exp_avg, chunk.exp_avg_sq};
  require_words({&arrays, &parity, &target});
  require(!columns.empty() && columns.size() % kArrays == 0, "update_chunk: columns are not as many of each array");
  require(parity.size() == code.tier1_pages && target.size() == parity.size(), "update_chunk: one page per parity row");
  run.scratch.reset();
  const CodeKernels& kernels = row().code();
  const Indices rows = all_rows(code);
  const Product product(kernels, Points(code.tier1_pages), columns, rows, run.scratch);
  FusedUpdate update(run, code, kernels, product, chunk, columns.size(), parity, target);
  update.run(stops_of(code.page_bytes / 4, adam_park, parity_park));
}

}  // namespace leto
