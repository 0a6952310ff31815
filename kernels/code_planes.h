// The vector kernels of the erasure code, instantiated once per instruction set over a policy V:
//
//   V::Planes                       registers that hold a group: 64 words, or the same as four byte planes, the layout in
//                                   which a factor is a map of bytes
//   V::load, store                  as they are, at any alignment; stream goes past the cache and wants kVectorBytes
//   V::planes_of, words_of          from words to planes and back; both are linear over xor
//   V::multiply_add<n>(a, b, f)     a[k] ^= factor * b[k] for k < n, in planes
//   V::expand(factor, expanded)     a field element as multiply_add wants it, V::kFactorBytes long
//   V::kTargetsAtOnce               targets that fit the registers in a direct product
//
// Everything has internal linkage: a translation unit for a newer instruction set must not lend its code to another one.
#pragma once

#include <cstring>

#include "code_strips.h"

#define LETO_INLINE inline __attribute__((always_inline))

namespace leto {
namespace {

constexpr size_t kPrefetchBytes = 2048;  // ahead, along a stream
alignas(kVectorBytes) const Byte kZeros[kStripBytes] = {};

constexpr size_t whole_groups(size_t bytes) { return bytes / kGroupBytes * kGroupBytes; }

// The last words of a strip do not fill a group; they go through memory of our own, so that no kernel reads or writes
// beyond a strip, and the loops over whole groups stay short enough for the processor's instruction cache.
struct Tail {
  alignas(kVectorBytes) Byte groups[kMaxRows][kGroupBytes] = {};
  Byte* strips[kMaxRows];

  Tail() {
    for (int row = 0; row < kMaxRows; ++row) strips[row] = groups[row];
  }

  // Copies the ends of the strips; null strips stay null.
  void load(const Byte* const* from, int rows, size_t offset, size_t bytes) {
    for (int row = 0; row < rows; ++row) {
      strips[row] = from && from[row] ? groups[row] : nullptr;
      if (strips[row]) memcpy(groups[row], from[row] + offset, bytes);
    }
  }

  void store(Byte* const* to, int rows, size_t offset, size_t bytes) const {
    for (int row = 0; row < rows; ++row) {
      if (to[row]) memcpy(to[row] + offset, groups[row], bytes);
    }
  }
};

// to <- the words of the planes, xor `base` where there is one.
template <class V>
LETO_INLINE void store_group(Byte* to, const Byte* base, const typename V::Planes& planes, bool stream) {
  typename V::Planes words = V::words_of(planes);
  if (base) words ^= V::load(base);
  if (stream) {
    V::stream(to, words);
  } else {
    V::store(to, words);
  }
}

// The planes of a group, xor `minus` where there is one.
template <class V>
LETO_INLINE typename V::Planes load_group(const Byte* from, const Byte* minus) {
  typename V::Planes words = V::load(from);
  if (minus) words ^= V::load(minus);
  return V::planes_of(words);
}

// Index of the twiddle that Half neighbouring pairs of rows share: layer First + log2(Half), at row start + (k << First). Far
// layers (First > 0) start below 2^First, so `start` does not count.
template <int M, int First, int Layer>
constexpr int twiddle_index(int start, int k) {
  const int inside = First == 0 ? (start >> (Layer + 1)) : 0;
  return layer_offset(M, First + Layer) + inside + (k >> (Layer + 1));
}

// One layer over the 2^Count rows `start`, `start` + 2^First, ...: b ^= a, then a ^= t * b.
template <class V, int M, int First, int Count, int Layer>
LETO_INLINE void inverse_layer(typename V::Planes* rows, int start, const Byte* factors) {
  constexpr int kHalf = 1 << Layer;
#pragma GCC unroll 4
  for (int k = 0; k < 1 << Count; k += 2 * kHalf) {
#pragma GCC unroll 4
    for (int n = 0; n < kHalf; ++n) rows[k + kHalf + n] ^= rows[k + n];
    const int index = twiddle_index<M, First, Layer>(start, k);
    V::template multiply_add<kHalf>(rows + k, rows + k + kHalf, factors + index * V::kFactorBytes);
  }
}

// The other way round: a ^= t * b, then b ^= a. Rows are transformed at the coset 0, where the first twiddle of a layer is 0.
template <class V, int M, int First, int Count, int Layer>
LETO_INLINE void forward_layer(typename V::Planes* rows, int start, const Byte* factors) {
  constexpr int kHalf = 1 << Layer;
#pragma GCC unroll 4
  for (int k = 0; k < 1 << Count; k += 2 * kHalf) {
    if (First > 0 ? k > 0 : start + k > 0) {
      const int index = twiddle_index<M, First, Layer>(start, k);
      V::template multiply_add<kHalf>(rows + k, rows + k + kHalf, factors + index * V::kFactorBytes);
    }
#pragma GCC unroll 4
    for (int n = 0; n < kHalf; ++n) rows[k + kHalf + n] ^= rows[k + n];
  }
}

// Layers First and up, Count of them: at most two.
template <class V, int M, int First, int Count>
LETO_INLINE void inverse_layers(typename V::Planes* rows, int start, const Byte* factors) {
  inverse_layer<V, M, First, Count, 0>(rows, start, factors);
  if constexpr (Count == 2) inverse_layer<V, M, First, Count, 1>(rows, start, factors);
}

template <class V, int M, int First, int Count>
LETO_INLINE void forward_layers(typename V::Planes* rows, int start, const Byte* factors) {
  if constexpr (Count == 2) forward_layer<V, M, First, Count, 1>(rows, start, factors);
  forward_layer<V, M, First, Count, 0>(rows, start, factors);
}

// Into the second level: pages lie at multiples of large powers of two, so their strips would push each other out of the few
// ways that the first level has for them (measured: that halves the speed).
LETO_INLINE void prefetch_group(const Byte* strip) {
#pragma GCC unroll 4
  for (size_t line = 0; line < kGroupBytes; line += kVectorBytes) __builtin_prefetch(strip + line, 0, 2);
}

// Prefetches the base of `row`; of a row behind the last one that of the next strip. An address behind a page does no harm.
LETO_INLINE void prefetch_base(const Byte* const* base, int row, int rows, size_t offset) {
  const Byte* strip = base[row < rows ? row : row - rows];
  if (strip) prefetch_group(strip + offset + (row < rows ? 0 : kStripBytes));
}

// How inverse_groups goes over a block: first the near layers, which couple neighbouring rows, a phase for every four rows;
// then the far layers, which couple rows four apart, in four phases. A phase goes along the whole strip: few and long streams.
template <int Layers>
struct Phases {
  static constexpr int kRows = 1 << Layers, kNear = Layers < 2 ? Layers : 2, kFar = Layers - kNear;
  static constexpr int kNearCount = kRows >> kNear, kCount = kNearCount + (kFar > 0 ? 4 : 0);
  static constexpr int kPrefetched = (kRows + kCount - 1) / kCount;  // rows a phase
};

// All phases share the prefetching evenly, so that memory is never idle while a pass computes. The last near phase begins with
// the next block's first rows; the near phases before it fetch what is left of their own.
template <int Layers>
LETO_INLINE void prefetch_in_phase(const Byte* const* strips, const Byte* const* ahead, int phase, size_t offset) {
  using P = Phases<Layers>;
  const int turn = phase - (P::kNearCount - 1);
  const Byte* const* from = turn < 0 ? strips : ahead;
  const int first = (turn < 0 ? turn + P::kCount : turn) * P::kPrefetched;
  if (!from || first >= P::kRows) return;
#pragma GCC unroll 4
  for (int k = 0; k < P::kPrefetched; ++k) prefetch_group(from[first + k] + offset);
}

template <int Layers, bool Minus>
LETO_INLINE void prefetch_sources(const BlockWork& work, int phase, size_t offset) {
  prefetch_in_phase<Layers>(work.data, work.ahead, phase, offset);
  if constexpr (Minus) prefetch_in_phase<Layers>(work.minus, work.minus_ahead, phase, offset);
}

template <class V>
LETO_INLINE void add_to_sums(const BlockWork& work, int row, size_t offset, typename V::Planes planes) {
  Byte* sum = work.sums + row * kSumsStride + offset;
  if (!work.first) planes ^= V::load(sum);
  V::store(sum, planes);
}

// Two layers at a time: with four rows in registers every row is loaded and stored once a pass.
template <class V, int Layers, bool Minus>
void inverse_groups(const BlockWork& work) {
  using Planes = typename V::Planes;
  using P = Phases<Layers>;
  constexpr int kRows = P::kRows, kNear = P::kNear, kFar = P::kFar;
#pragma GCC unroll 1
  for (int phase = 0; phase < P::kNearCount; ++phase) {
    const int start = phase << kNear;
#pragma GCC unroll 1
    for (size_t offset = 0; offset < work.bytes; offset += kGroupBytes) {
      Planes rows[1 << kNear];
#pragma GCC unroll 4
      for (int k = 0; k < 1 << kNear; ++k) {
        const Byte* minus = Minus ? work.minus[start + k] + offset : nullptr;
        rows[k] = load_group<V>(work.data[start + k] + offset, minus);
      }
      prefetch_sources<Layers, Minus>(work, phase, offset);
      inverse_layers<V, kRows, 0, kNear>(rows, start, work.factors);
#pragma GCC unroll 4
      for (int k = 0; k < 1 << kNear; ++k) {
        if constexpr (kFar == 0) {
          add_to_sums<V>(work, start + k, offset, rows[k]);
        } else {
          V::store(work.between + (start + k) * kSumsStride + offset, rows[k]);
        }
      }
    }
  }
  if constexpr (kFar > 0) {
#pragma GCC unroll 1
    for (int start = 0; start < 4; ++start) {
#pragma GCC unroll 1
      for (size_t offset = 0; offset < work.bytes; offset += kGroupBytes) {
        Planes rows[1 << kFar];
#pragma GCC unroll 4
        for (int k = 0; k < 1 << kFar; ++k) rows[k] = V::load(work.between + (start + 4 * k) * kSumsStride + offset);
        prefetch_sources<Layers, Minus>(work, P::kNearCount + start, offset);
        inverse_layers<V, kRows, kNear, kFar>(rows, start, work.factors);
#pragma GCC unroll 4
        for (int k = 0; k < 1 << kFar; ++k) add_to_sums<V>(work, start + 4 * k, offset, rows[k]);
      }
    }
  }
}

template <class V, int Layers>
void inverse_transform(const BlockWork& work) {
  const auto groups = work.minus ? inverse_groups<V, Layers, true> : inverse_groups<V, Layers, false>;
  const size_t whole = whole_groups(work.bytes), rest = work.bytes - whole;
  BlockWork part = work;
  part.bytes = whole;
  groups(part);
  if (rest == 0) return;
  Tail data, minus;
  data.load(work.data, 1 << Layers, whole, rest);
  minus.load(work.minus, 1 << Layers, whole, rest);
  groups({data.strips, work.minus ? minus.strips : nullptr, nullptr, nullptr, work.factors, work.sums + whole, work.between,
          kGroupBytes, work.first});
}

template <class V>
LETO_INLINE void store_row(const RowsWork& work, int row, size_t offset, const typename V::Planes& planes) {
  if (!work.targets[row]) return;
  const Byte* base = work.base ? work.base[row] : nullptr;
  store_group<V>(work.targets[row] + offset, base ? base + offset : nullptr, planes, work.stream);
}

template <class V, int Layers>
void forward_groups(const RowsWork& work) {
  using Planes = typename V::Planes;
  constexpr int kRows = 1 << Layers, kNear = Layers < 2 ? Layers : 2, kFar = Layers - kNear;
  if constexpr (kFar > 0) {
    for (size_t offset = 0; offset < work.bytes; offset += kGroupBytes) {
#pragma GCC unroll 1
      for (int start = 0; start < 4; ++start) {
        Byte* sums = work.sums + start * kSumsStride + offset;
        Planes rows[1 << kFar];
#pragma GCC unroll 4
        for (int k = 0; k < 1 << kFar; ++k) rows[k] = V::load(sums + 4 * k * kSumsStride);
        forward_layers<V, kRows, kNear, kFar>(rows, start, work.factors);
#pragma GCC unroll 4
        for (int k = 0; k < 1 << kFar; ++k) V::store(sums + 4 * k * kSumsStride, rows[k]);
      }
    }
  }
  // Four rows at a time along the whole strip: few write streams, each of them long.
#pragma GCC unroll 1
  for (int start = 0; start < kRows; start += 1 << kNear) {
    for (size_t offset = 0; offset < work.bytes; offset += kGroupBytes) {
      Planes rows[1 << kNear];
#pragma GCC unroll 4
      for (int k = 0; k < 1 << kNear; ++k) rows[k] = V::load(work.sums + (start + k) * kSumsStride + offset);
      forward_layers<V, kRows, 0, kNear>(rows, start, work.factors);
#pragma GCC unroll 4
      for (int k = 0; k < 1 << kNear; ++k) {
        if (work.base) prefetch_base(work.base, start + k + (1 << kNear), kRows, offset);
        store_row<V>(work, start + k, offset, rows[k]);
      }
    }
  }
}

template <class V, int Layers>
void transform(const RowsWork& work) {
  constexpr int kRows = 1 << Layers;
  const size_t whole = whole_groups(work.bytes), rest = work.bytes - whole;
  RowsWork part = work;
  part.bytes = whole;
  forward_groups<V, Layers>(part);
  if (rest == 0) return;
  Tail base, targets;
  base.load(work.base, kRows, whole, rest);
  targets.load(work.targets, kRows, whole, rest);
  forward_groups<V, Layers>({work.sums + whole, work.factors, base.strips, targets.strips, kGroupBytes, false});
  targets.store(work.targets, kRows, whole, rest);
}

// Count targets along the whole strip: few streams, each of them long.
template <class V, int Count>
void multiply_targets(const MatrixWork& work, int first) {
  using Planes = typename V::Planes;
  for (size_t offset = 0; offset < work.bytes; offset += kGroupBytes) {
    Planes sums[Count];
#pragma GCC unroll 4
    for (int j = 0; j < Count; ++j) {
      sums[j] = V::load(kZeros);
      if (work.base && work.base[first + j]) prefetch_group(work.base[first + j] + offset + kPrefetchBytes);
    }
#pragma GCC unroll 1
    for (int k = 0; k < work.sources; ++k) {
      const Planes source = load_group<V>(work.data[k] + offset, work.minus ? work.minus[k] + offset : nullptr);
      const Byte* factors = work.factors + (k * work.rows + first) * V::kFactorBytes;
#pragma GCC unroll 4
      for (int j = 0; j < Count; ++j) V::template multiply_add<1>(&sums[j], &source, factors + j * V::kFactorBytes);
    }
#pragma GCC unroll 4
    for (int j = 0; j < Count; ++j) {
      const Byte* base = work.base ? work.base[first + j] : nullptr;
      store_group<V>(work.targets[first + j] + offset, base ? base + offset : nullptr, sums[j], work.stream);
    }
  }
}

template <class V>
void multiply_groups(const MatrixWork& work) {
  int row = 0;
  for (; row + V::kTargetsAtOnce <= work.rows; row += V::kTargetsAtOnce) multiply_targets<V, V::kTargetsAtOnce>(work, row);
  if constexpr (V::kTargetsAtOnce > 1) {
    for (; row < work.rows; ++row) multiply_targets<V, 1>(work, row);
  }
}

template <class V>
void multiply(const MatrixWork& work) {
  const size_t whole = whole_groups(work.bytes), rest = work.bytes - whole;
  MatrixWork part = work;
  part.bytes = whole;
  multiply_groups<V>(part);
  if (rest == 0) return;
  Tail data, minus, base, targets;
  data.load(work.data, work.sources, whole, rest);
  minus.load(work.minus, work.sources, whole, rest);
  base.load(work.base, work.rows, whole, rest);
  targets.load(work.targets, work.rows, whole, rest);
  multiply_groups<V>({data.strips, work.minus ? minus.strips : nullptr, work.sources, work.factors, base.strips,
                      targets.strips, work.rows, nullptr, kGroupBytes, false});
  targets.store(work.targets, work.rows, whole, rest);
}

// Four sources at a time: fewer leave memory idle, more are too many streams for the hardware's prefetcher.
template <class V>
void xor_strips(const XorWork& work) {
  constexpr int kStreams = 4;
  constexpr size_t kStep = V::kXorBytes;
  const size_t whole = work.bytes / kStep * kStep;
  const Byte* strips[kStreams];
  for (size_t k = 0; k < work.count; k += kStreams) {
    for (size_t n = 0; n < kStreams; ++n) strips[n] = k + n < work.count ? work.sources[k + n] : kZeros;
    const bool last = k + kStreams >= work.count;
    const Byte* sum = k == 0 ? kZeros : work.stream ? work.workspace : work.target;
    Byte* target = last || !work.stream ? work.target : work.workspace;
    for (size_t offset = 0; offset < whole; offset += kStep) {
      for (size_t n = 0; n < kStreams; ++n) {
        if (k + kStreams + n < work.count) {
#pragma GCC unroll 4
          for (size_t line = 0; line < kStep; line += kVectorBytes) {
            __builtin_prefetch(work.sources[k + kStreams + n] + offset + line, 0, 2);
          }
        }
      }
      V::xor_store(target + offset, sum + offset, strips, offset, last && work.stream);
    }
    for (size_t i = whole; i < work.bytes; ++i) {
      target[i] = sum[i] ^ strips[0][i] ^ strips[1][i] ^ strips[2][i] ^ strips[3][i];
    }
  }
}

// A group of every strip in turn.
template <class V>
void copy_strips(const CopyWork& work) {
  const size_t whole = whole_groups(work.bytes);
  for (size_t offset = 0; offset < whole; offset += kGroupBytes) {
    for (size_t k = 0; k < work.count; ++k) V::stream(work.targets[k] + offset, V::load(work.sources[k] + offset));
  }
  for (size_t k = 0; k < work.count; ++k) memcpy(work.targets[k] + whole, work.sources[k] + whole, work.bytes - whole);
}

template <class V>
constexpr CodeKernels kCodeKernels = {
    kStripBytes,
    kDirectStripBytes,
    V::kFactorBytes,
    0,
    V::expand,
    multiply<V>,
    xor_strips<V>,
    copy_strips<V>,
    {nullptr, inverse_transform<V, 1>, inverse_transform<V, 2>, inverse_transform<V, 3>, inverse_transform<V, 4>},
    {nullptr, transform<V, 1>, transform<V, 2>, transform<V, 3>, transform<V, 4>},
};

}  // namespace
}  // namespace leto
