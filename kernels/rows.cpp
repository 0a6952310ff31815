#include "rows.h"

#include <cstdlib>
#include <cstring>

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

const Row& choose_row() {
  const char* forced = std::getenv("LETO_KERNEL_ROW");
  const Row* chosen = nullptr;
  for (const Row& candidate : kRows) {
    if (candidate.supported() && (!forced || std::strcmp(forced, candidate.name) == 0)) chosen = &candidate;
  }
  if (!chosen) throw std::invalid_argument("LETO_KERNEL_ROW names no row that this processor supports");
  return *chosen;
}

}  // namespace

const Row& row() {
  static const Row& chosen = choose_row();
  return chosen;
}

std::vector<std::string> supported_rows() {
  std::vector<std::string> names;
  for (const Row& candidate : kRows) {
    if (candidate.supported()) names.emplace_back(candidate.name);
  }
  return names;
}

}  // namespace leto
