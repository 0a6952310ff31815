// AVX2: a factor is 32 tables of sixteen bytes, one from every input nibble to every output byte of a word.
#include <immintrin.h>

#include "code_planes.h"
#include "code_rows.h"
#include "gf32.h"

namespace leto {
namespace {

struct Avx2 {
  static constexpr size_t kFactorBytes = 8 * 4 * 16;
  static constexpr int kTargetsAtOnce = 1;
  static constexpr size_t kXorBytes = 64;

  // Two registers a plane share every table that is loaded.
  struct Planes {
    __m256i byte[4][2];

    LETO_INLINE void operator^=(const Planes& other) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        byte[k][0] = _mm256_xor_si256(byte[k][0], other.byte[k][0]);
        byte[k][1] = _mm256_xor_si256(byte[k][1], other.byte[k][1]);
      }
    }
  };

  static LETO_INLINE __m256i table_at(const Byte* tables) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(tables)));
  }

  template <int Pairs>
  static LETO_INLINE void multiply_add(Planes* a, const Planes* b, const Byte* factor) {
#pragma GCC unroll 2
    for (int n = 0; n < Pairs; ++n) multiply_add(a[n], b[n], factor);
  }

  // Tables lie [input byte][output byte][low nibble, high nibble].
  static LETO_INLINE void multiply_add(Planes& a, const Planes& b, const Byte* factor) {
    const __m256i nibble = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i low0 = _mm256_and_si256(b.byte[i][0], nibble), low1 = _mm256_and_si256(b.byte[i][1], nibble);
      const __m256i high0 = _mm256_and_si256(_mm256_srli_epi16(b.byte[i][0], 4), nibble);
      const __m256i high1 = _mm256_and_si256(_mm256_srli_epi16(b.byte[i][1], 4), nibble);
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const Byte* tables = factor + (i * 4 + k) * 32;
        const __m256i of_low = table_at(tables), of_high = table_at(tables + 16);
        a.byte[k][0] = _mm256_xor_si256(
            a.byte[k][0], _mm256_xor_si256(_mm256_shuffle_epi8(of_low, low0), _mm256_shuffle_epi8(of_high, high0)));
        a.byte[k][1] = _mm256_xor_si256(
            a.byte[k][1], _mm256_xor_si256(_mm256_shuffle_epi8(of_low, low1), _mm256_shuffle_epi8(of_high, high1)));
      }
    }
  }

  static LETO_INLINE Planes load(const Byte* from) {
    Planes planes;
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) planes.byte[k / 2][k % 2] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + k);
    return planes;
  }

  static LETO_INLINE void store(Byte* to, const Planes& planes) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + k, planes.byte[k / 2][k % 2]);
  }

  static LETO_INLINE void stream(Byte* to, const Planes& planes) {
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + k, planes.byte[k / 2][k % 2]);
  }

  static LETO_INLINE __m256i blend_bytes(__m256i even, __m256i odd) {
    return _mm256_blendv_epi8(even, odd, _mm256_set1_epi16(static_cast<short>(0xFF00)));
  }

  // Exchanges the odd halves of `left` with the even halves of `right`; its own inverse. The same with bytes below.
  static LETO_INLINE void exchange_halves(__m256i& left, __m256i& right) {
    const __m256i even = _mm256_blend_epi16(left, _mm256_slli_epi32(right, 16), 0xAA);
    right = _mm256_blend_epi16(_mm256_srli_epi32(left, 16), right, 0xAA);
    left = even;
  }

  static LETO_INLINE void exchange_bytes(__m256i& left, __m256i& right) {
    const __m256i even = blend_bytes(left, _mm256_slli_epi16(right, 8));
    right = blend_bytes(_mm256_srli_epi16(left, 8), right);
    left = even;
  }

  // Four registers of words to one of every plane, in two rounds: halves of words, then bytes. Bytes of one plane end up in
  // some order, the same for all planes, which is all that a map of words needs.
  static LETO_INLINE Planes planes_of(const Planes& words) {
    Planes planes;
#pragma GCC unroll 2
    for (int side = 0; side < 2; ++side) {
      __m256i w0 = words.byte[2 * side][0], w1 = words.byte[2 * side][1];
      __m256i w2 = words.byte[2 * side + 1][0], w3 = words.byte[2 * side + 1][1];
      exchange_halves(w0, w1);
      exchange_halves(w2, w3);
      exchange_bytes(w0, w2);
      exchange_bytes(w1, w3);
      planes.byte[0][side] = w0;
      planes.byte[1][side] = w2;
      planes.byte[2][side] = w1;
      planes.byte[3][side] = w3;
    }
    return planes;
  }

  static LETO_INLINE Planes words_of(const Planes& planes) {
    Planes words;
#pragma GCC unroll 2
    for (int side = 0; side < 2; ++side) {
      __m256i w0 = planes.byte[0][side], w2 = planes.byte[1][side], w1 = planes.byte[2][side], w3 = planes.byte[3][side];
      exchange_bytes(w0, w2);
      exchange_bytes(w1, w3);
      exchange_halves(w0, w1);
      exchange_halves(w2, w3);
      words.byte[2 * side][0] = w0;
      words.byte[2 * side][1] = w1;
      words.byte[2 * side + 1][0] = w2;
      words.byte[2 * side + 1][1] = w3;
    }
    return words;
  }

  static LETO_INLINE void xor_store(Byte* to, const Byte* sum, const Byte* const* strips, size_t offset, bool stream) {
#pragma GCC unroll 2
    for (size_t i = 0; i < kXorBytes; i += 32) {
      __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sum + i));
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        all = _mm256_xor_si256(all, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(strips[n] + offset + i)));
      }
      if (stream) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), all);
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), all);
      }
    }
  }

  // Entry v of a table is one byte of factor * (v << position of the nibble).
  static void expand(uint32_t factor, Byte* expanded) {
    for (int n = 0; n < 8; ++n) {
      uint32_t products[16] = {};
      for (int bit = 0; bit < 4; ++bit) {
        for (int v = 0; v < 1 << bit; ++v) products[(1 << bit) + v] = products[v] ^ factor;
        factor = gf32::times_x(factor);
      }
      for (int k = 0; k < 4; ++k) {
        Byte* table = expanded + ((n / 2) * 4 + k) * 32 + (n % 2) * 16;
        for (int v = 0; v < 16; ++v) table[v] = static_cast<Byte>(products[v] >> (8 * k));
      }
    }
  }
};

}  // namespace

const CodeKernels& code_avx2() { return kCodeKernels<Avx2>; }

}  // namespace leto
