// GFNI and AVX-512: a factor is sixteen 8x8 bit matrices, one from every input byte to every output byte of a word.
#include <immintrin.h>

#include "code_planes.h"
#include "code_rows.h"
#include "gf32.h"

namespace leto {
namespace {

struct Gfni {
  static constexpr size_t kFactorBytes = 16 * sizeof(uint64_t);
  static constexpr int kTargetsAtOnce = 4;
  static constexpr size_t kXorBytes = kGroupBytes;

  struct Planes {
    __m512i byte[4];

    LETO_INLINE void operator^=(const Planes& other) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) byte[k] = _mm512_xor_si512(byte[k], other.byte[k]);
    }
  };

  static LETO_INLINE __m512i xor3(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }

  static LETO_INLINE __m512i matrix_at(const Byte* matrix) {
    long long bits;
    __builtin_memcpy(&bits, matrix, sizeof bits);
    return _mm512_set1_epi64(bits);
  }

  // Matrices lie [output byte][input byte]. What loads are spent on is matrices, so all pairs take their turn at each.
  template <int Pairs>
  static LETO_INLINE void multiply_add(Planes* a, const Planes* b, const Byte* factor) {
#pragma GCC unroll 8
    for (int half = 0; half < 8; ++half) {
      const int to = half / 2, from = half % 2 * 2;
      const __m512i left = matrix_at(factor + half * 16), right = matrix_at(factor + half * 16 + 8);
#pragma GCC unroll 2
      for (int n = 0; n < Pairs; ++n) {
        a[n].byte[to] = xor3(a[n].byte[to], _mm512_gf2p8affine_epi64_epi8(b[n].byte[from], left, 0),
                             _mm512_gf2p8affine_epi64_epi8(b[n].byte[from + 1], right, 0));
      }
    }
  }

  static LETO_INLINE Planes load(const Byte* from) {
    Planes planes;
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) planes.byte[k] = _mm512_loadu_si512(from + k * 64);
    return planes;
  }

  static LETO_INLINE void store(Byte* to, const Planes& planes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) _mm512_storeu_si512(to + k * 64, planes.byte[k]);
  }

  static LETO_INLINE void stream(Byte* to, const Planes& planes) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) _mm512_stream_si512(reinterpret_cast<__m512i*>(to + k * 64), planes.byte[k]);
  }

  // Exchanges the odd halves of `left` with the even halves of `right`; its own inverse. The same with bytes below.
  static LETO_INLINE void exchange_halves(__m512i& left, __m512i& right) {
    constexpr __mmask32 kOdd = 0xAAAAAAAAu;
    const __m512i even = _mm512_mask_blend_epi16(kOdd, left, _mm512_slli_epi32(right, 16));
    right = _mm512_mask_blend_epi16(kOdd, _mm512_srli_epi32(left, 16), right);
    left = even;
  }

  static LETO_INLINE void exchange_bytes(__m512i& left, __m512i& right) {
    constexpr __mmask64 kOdd = 0xAAAAAAAAAAAAAAAAull;
    const __m512i even = _mm512_mask_blend_epi8(kOdd, left, _mm512_slli_epi16(right, 8));
    right = _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(left, 8), right);
    left = even;
  }

  // In two rounds: halves of words, then bytes. Bytes of one plane end up in some order, the same for all planes, which is
  // all that a map of words needs.
  static LETO_INLINE Planes planes_of(const Planes& words) {
    __m512i w0 = words.byte[0], w1 = words.byte[1], w2 = words.byte[2], w3 = words.byte[3];
    exchange_halves(w0, w1);
    exchange_halves(w2, w3);
    exchange_bytes(w0, w2);
    exchange_bytes(w1, w3);
    return {{w0, w2, w1, w3}};
  }

  static LETO_INLINE Planes words_of(const Planes& planes) {
    __m512i w0 = planes.byte[0], w2 = planes.byte[1], w1 = planes.byte[2], w3 = planes.byte[3];
    exchange_bytes(w0, w2);
    exchange_bytes(w1, w3);
    exchange_halves(w0, w1);
    exchange_halves(w2, w3);
    return {{w0, w1, w2, w3}};
  }

  static LETO_INLINE void xor_store(Byte* to, const Byte* sum, const Byte* const* strips, size_t offset, bool stream) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kXorBytes; i += 64) {
      const __m512i left = xor3(_mm512_loadu_si512(sum + i), _mm512_loadu_si512(strips[0] + offset + i),
                                _mm512_loadu_si512(strips[1] + offset + i));
      const __m512i all = xor3(left, _mm512_loadu_si512(strips[2] + offset + i), _mm512_loadu_si512(strips[3] + offset + i));
      if (stream) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), all);
      } else {
        _mm512_storeu_si512(to + i, all);
      }
    }
  }

  // Column b of the matrix from input byte i to output byte k is byte k of factor * x^(8i + b). The instruction wants output
  // bit 7 in the first byte, input bit b at bit b.
  static void expand(uint32_t factor, Byte* expanded) {
    uint64_t matrices[4][4] = {};
    for (int i = 0; i < 4; ++i) {
      for (int b = 0; b < 8; ++b) {
        for (int k = 0; k < 4; ++k) {
          // Bit o of the byte to bit 8 * (7 - o) + b: no two products of a bit meet, so the multiplication only spreads.
          const uint64_t byte = factor >> (8 * k) & 0xFF;
          matrices[k][i] |= (byte * 0x8040201008040201ull >> 7 & 0x0101010101010101ull) << b;
        }
        factor = gf32::times_x(factor);
      }
    }
    __builtin_memcpy(expanded, matrices, sizeof matrices);
  }
};

}  // namespace

const CodeKernels& code_gfni() { return kCodeKernels<Gfni>; }

}  // namespace leto
