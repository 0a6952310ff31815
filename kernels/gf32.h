// The field GF(2^32), x^32 + x^7 + x^6 + x^2 + 1, for host and device compilers. Readable twin: leto/core/gf32.py.
// Functions are static: a translation unit for a newer instruction set must not lend its code to another one.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define LETO_HOST_DEVICE static __host__ __device__
#else
#define LETO_HOST_DEVICE static
#endif

namespace leto::gf32 {

inline constexpr uint32_t kPolynomialLow = 0xC5;

LETO_HOST_DEVICE inline constexpr uint32_t times_x(uint32_t a) { return (a << 1) ^ (kPolynomialLow & (0u - (a >> 31))); }

LETO_HOST_DEVICE inline constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 0; bit < 32; ++bit) {
    product ^= a & (0u - (b & 1));
    a = times_x(a);
    b >>= 1;
  }
  return product;
}

// a^(2^32 - 2), which is 1/a for a != 0 and 0 for 0.
LETO_HOST_DEVICE inline constexpr uint32_t inverse(uint32_t a) {
  uint32_t result = 1;
  for (int bit = 1; bit < 32; ++bit) {
    a = multiply(a, a);
    result = multiply(result, a);
  }
  return result;
}

static_assert(multiply(0x80000000u, 2) == kPolynomialLow);
static_assert(multiply(0x12345678u, inverse(0x12345678u)) == 1);

}  // namespace leto::gf32
