// What an instruction-set row implements of the erasure code: work on one strip of all pages. Raw pointers only, so that
// these translation units instantiate nothing of the standard library that the linker could lend to another row.
//
// A strip is the same byte range of every page, at most strip_bytes long, a multiple of 4 bytes, aligned to 4.
#pragma once

#include <cstddef>
#include <cstdint>

namespace leto {

using Byte = uint8_t;

inline constexpr int kMaxRows = 16;
inline constexpr int kMaxLayers = 4;       // of a transform of kMaxRows rows
inline constexpr int kMaxDirect = 16;      // sources that a multiply of a row with transforms takes
inline constexpr size_t kGroupBytes = 256; // 64 words, the unit of the vector kernels
inline constexpr size_t kVectorBytes = 64; // alignment of what is stored past the cache

// Strips of rows with transforms. Where all pages are read in turn, 16 strips and 16 sums must fit the second cache level, and
// shorter runs of every page cost memory speed (4 KiB: 10 % less). Where the sources are few, strips may be longer.
inline constexpr size_t kStripBytes = 8192;
inline constexpr size_t kDirectStripBytes = 64 << 10;
inline constexpr size_t kSumsStride = kStripBytes + kVectorBytes;  // a power of two would put all rows into the same cache sets

// Adds the inverse transform of one block of columns to the sums (docs/coding.md names the transform).
struct BlockWork {
  const Byte* const* data;   // one strip a column of the block
  const Byte* const* minus;  // strips xored into data first, or null
  const Byte* const* ahead;  // strips that the next call reads, prefetched meanwhile, or null; as many as data (and minus)
  const Byte* const* minus_ahead;
  const Byte* factors;       // expanded twiddles, layer by layer
  Byte* sums;                // kSumsStride a row, in the row's own layout, whole groups
  Byte* between;             // the same again: what lies between two passes
  size_t bytes;
  bool first;                // overwrite the sums
};

// Transforms the sums into parity rows.
struct RowsWork {
  Byte* sums;                // destroyed
  const Byte* factors;
  const Byte* const* base;   // xored in, a strip a row; null for zeros, and so is any single one
  Byte* const* targets;      // a strip a row; null where the row is not wanted
  size_t bytes;
  bool stream;               // store past the cache: targets are kVectorBytes-aligned; the caller fences
};

// targets[j] <- base[j] xor sum over k of factors[k][j] * (data[k] xor minus[k])
struct MatrixWork {
  const Byte* const* data;
  const Byte* const* minus;  // or null
  int sources;
  const Byte* factors;       // expanded, [source][target]
  const Byte* const* base;   // like RowsWork
  Byte* const* targets;      // none is null, none overlaps an input
  int rows;
  Byte* workspace;           // workspace_bytes, aligned to kVectorBytes
  size_t bytes;
  bool stream;               // like RowsWork
};

// target <- xor of all sources, of which there is at least one; any length and alignment.
struct XorWork {
  const Byte* const* sources;
  size_t count;
  Byte* target;
  Byte* workspace;           // kStripBytes; the sum while it grows, where the target is stored past the cache
  size_t bytes;
  bool stream;
};

// targets[k] <- sources[k], side by side and past the cache: what a copy overwrites is not read before, a third of its traffic.
struct CopyWork {
  const Byte* const* sources;
  Byte* const* targets;      // kVectorBytes-aligned; the caller fences
  size_t count;
  size_t bytes;
};

struct CodeKernels {
  size_t strip_bytes;
  size_t direct_strip_bytes;  // of multiply, when it is all there is to do
  size_t factor_bytes;         // of one expanded factor
  size_t workspace_bytes;      // of multiply
  void (*expand)(uint32_t factor, Byte* expanded);
  void (*multiply)(const MatrixWork&);
  void (*xor_strips)(const XorWork&);
  void (*copy_strips)(const CopyWork&);
  // Indexed by log2 of the transform size; null in rows that only multiply.
  void (*inverse_transform[kMaxLayers + 1])(const BlockWork&);
  void (*transform[kMaxLayers + 1])(const RowsWork&);
};

// Twiddles of a transform of size m are stored layer after layer: layer i has m >> (i + 1), one a butterfly block.
constexpr int layer_offset(int m, int layer) { return m - (m >> layer); }

}  // namespace leto
