// Python bindings: leto._kernels. Arguments are plain integers, so that every kernel runs without the GIL; the types and
// meanings that Python sees are in leto/_kernels.pyi.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "adam.h"
#include "chunk_update.h"
#include "copy.h"
#include "rs.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using leto::Address;
using leto::Addresses;
using leto::Indices;

// (word address, token, progress)
using ParkArgument = std::optional<std::tuple<Address, uint64_t, double>>;

// (count, gradient address, clip, decay, first_weight, beta2, second_weight, root_divisor, eps, negative_step)
using SegmentArgument = std::tuple<size_t, Address, std::optional<double>, std::optional<double>, double, double, double,
                                   double, double, double>;

std::optional<leto::Park> park_of(const ParkArgument& argument) {
  if (!argument) return std::nullopt;
  const auto& [word_address, token, progress] = *argument;
  return leto::Park{word_address, token, progress};
}

leto::AdamSegment segment_of(const SegmentArgument& argument) {
  const auto& [count, gradient, clip, decay, first_weight, beta2, second_weight, root_divisor, eps, negative_step] = argument;
  const auto rounded = [](double value) { return static_cast<float>(value); };
  return {count,
          gradient,
          {clip.has_value(), decay.has_value(), rounded(clip.value_or(1)), rounded(decay.value_or(1)), rounded(first_weight),
           rounded(beta2), rounded(second_weight), rounded(root_divisor), rounded(eps), rounded(negative_step)}};
}

void copy_pages(size_t threads, const Addresses& source, const Addresses& target, size_t page_bytes,
                const ParkArgument& park) {
  leto::copy_pages(threads, source, target, page_bytes, park_of(park));
}

void xor_pages(size_t threads, const Addresses& source, Address target, size_t page_bytes, const ParkArgument& park) {
  leto::xor_pages(threads, source, target, page_bytes, park_of(park));
}

void encode(leto::Scratch& scratch, size_t threads, size_t page_bytes, uint32_t tier1_pages, const Indices& columns,
            const Addresses& data, const Addresses& target, const ParkArgument& park) {
  leto::encode({scratch, threads}, {page_bytes, tier1_pages}, columns, data, target, park_of(park));
}

void update_parity(leto::Scratch& scratch, size_t threads, size_t page_bytes, uint32_t tier1_pages, const Indices& columns,
                   const Addresses& undo, const Addresses& data, const Addresses& parity, const Addresses& target,
                   const ParkArgument& park) {
  leto::update_parity({scratch, threads}, {page_bytes, tier1_pages}, columns, undo, data, parity, target, park_of(park));
}

int reconstruct(leto::Scratch& scratch, size_t threads, size_t page_bytes, uint32_t tier1_pages, const Indices& columns,
                const Addresses& data, const Indices& lost_columns, const Addresses& lost_data, const Indices& rows,
                const Addresses& parity, const Indices& lost_rows, const Addresses& lost_parity) {
  return leto::reconstruct({scratch, threads}, {page_bytes, tier1_pages},
                           {columns, data, lost_columns, lost_data, rows, parity, lost_rows, lost_parity});
}

leto::AdamChunk chunk_of(Address master, Address exp_avg, Address exp_avg_sq, const std::vector<SegmentArgument>& segments,
                         bool fused_multiply_add, Address sqrt_function, Address library_threads) {
  leto::AdamChunk chunk{master, exp_avg, exp_avg_sq, {}, fused_multiply_add,
                        reinterpret_cast<leto::SqrtFunction>(sqrt_function),
                        reinterpret_cast<leto::LibraryThreads>(library_threads)};
  for (const SegmentArgument& segment : segments) chunk.segments.push_back(segment_of(segment));
  return chunk;
}

void adam(size_t threads, Address master, Address exp_avg, Address exp_avg_sq,
          const std::vector<SegmentArgument>& segments, bool fused_multiply_add, Address sqrt_function,
          Address library_threads, const ParkArgument& park) {
  leto::adam(threads, chunk_of(master, exp_avg, exp_avg_sq, segments, fused_multiply_add, sqrt_function, library_threads),
             park_of(park));
}

void update_chunk(leto::Scratch& scratch, size_t threads, size_t page_bytes, uint32_t tier1_pages, const Indices& columns,
                  Address master, Address exp_avg, Address exp_avg_sq, const std::vector<SegmentArgument>& segments,
                  bool fused_multiply_add, Address sqrt_function, Address library_threads, const Addresses& parity,
                  const Addresses& target, const ParkArgument& adam_park, const ParkArgument& parity_park) {
  leto::update_chunk({scratch, threads}, {page_bytes, tier1_pages}, columns,
                     chunk_of(master, exp_avg, exp_avg_sq, segments, fused_multiply_add, sqrt_function, library_threads),
                     parity, target, park_of(adam_park), park_of(parity_park));
}

}  // namespace

NB_MODULE(_kernels, module) {
  module.doc() = "Native host kernels over page addresses; every call releases the GIL.";
  module.attr("row") = leto::row().name;
  module.attr("supported_rows") = leto::supported_rows();
  module.attr("adam_block") = leto::kAdamBlock;
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  module.def("copy_pages", &copy_pages, "threads"_a, "source"_a, "target"_a, "page_bytes"_a,
             "park"_a.none() = nb::none(), unlocked);
  module.def("xor_pages", &xor_pages, "threads"_a, "source"_a, "target"_a, "page_bytes"_a, "park"_a.none() = nb::none(),
             unlocked);
  module.def("equal_pages", &leto::equal_pages, "left"_a, "right"_a, "page_bytes"_a, unlocked);
  module.def("fill", &leto::fill, "address"_a, "byte_count"_a, "pattern"_a, unlocked);
  module.def("publish", &leto::publish, "addresses"_a, "value"_a, unlocked);
  nb::class_<leto::Scratch>(module, "Scratch").def(nb::init<>()).def_prop_ro("byte_count", &leto::Scratch::byte_count);
  module.def("encode", &encode, "scratch"_a, "threads"_a, "page_bytes"_a, "tier1_pages"_a, "columns"_a, "data"_a, "target"_a,
             "park"_a.none() = nb::none(), unlocked);
  module.def("update_parity", &update_parity, "scratch"_a, "threads"_a, "page_bytes"_a, "tier1_pages"_a, "columns"_a,
             "undo"_a, "data"_a, "parity"_a, "target"_a, "park"_a.none() = nb::none(), unlocked);
  module.def("reconstruct", &reconstruct, "scratch"_a, "threads"_a, "page_bytes"_a, "tier1_pages"_a, "columns"_a, "data"_a,
             "lost_columns"_a, "lost_data"_a, "rows"_a, "parity"_a, "lost_rows"_a, "lost_parity"_a, unlocked);
  module.def("adam", &adam, "threads"_a, "master"_a, "exp_avg"_a, "exp_avg_sq"_a, "segments"_a, "fused_multiply_add"_a,
             "sqrt_function"_a, "library_threads"_a, "park"_a.none() = nb::none(), unlocked);
  module.def("update_chunk", &update_chunk, "scratch"_a, "threads"_a, "page_bytes"_a, "tier1_pages"_a, "columns"_a,
             "master"_a, "exp_avg"_a, "exp_avg_sq"_a, "segments"_a, "fused_multiply_add"_a, "sqrt_function"_a,
             "library_threads"_a, "parity"_a, "target"_a, "adam_park"_a.none() = nb::none(), "parity_park"_a.none() = nb::none(), unlocked);
}
