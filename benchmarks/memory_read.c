// The yardstick of benchmarks/coding.py: reads every byte of four streams at once and does nothing else with them.
#include <stddef.h>
#include <stdint.h>

typedef uint64_t Vector __attribute__((vector_size(64), aligned(64)));

// Xor of `pages` pages of `page_bytes` (a multiple of 256), read as four streams, each a quarter of the pages.
uint64_t memory_read(const uint8_t *const *pages, size_t count, size_t page_bytes) {
  Vector sums[4] = {};
  const size_t quarter = count / 4;
  for (size_t page = 0; page < quarter; ++page) {
    const Vector *streams[4];
    for (size_t s = 0; s < 4; ++s) streams[s] = (const Vector *)pages[s * quarter + page];
    for (size_t i = 0; i < page_bytes / sizeof(Vector); ++i) {
      for (size_t s = 0; s < 4; ++s) sums[s] ^= streams[s][i];
    }
  }
  const Vector sum = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}
