#include "rows.h"

#include "adam_rows.h"
#include "combine_portable.h"

namespace leto {
namespace {

bool always() { return true; }

#if defined(LETO_X86)
bool has_fma() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

// Best row last.
const Row kRows[] = {
    {"portable", always, combine_portable, adam_separate_portable(), adam_fused_portable()},
#if defined(LETO_X86)
    {"fma", has_fma, combine_portable, adam_separate_fma(), adam_fused_fma()},
#endif
};

const Row* best_row() {
  const Row* best = nullptr;
  for (const Row& candidate : kRows) {
    if (candidate.supported()) best = &candidate;
  }
  return best;
}

}  // namespace

const Row& row() {
  static const Row* const best = best_row();
  return *best;
}

}  // namespace leto
