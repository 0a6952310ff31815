#include "rows.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "adam_rows.h"
#include "code_rows.h"

namespace leto {
namespace {

bool always() { return true; }

#if defined(LETO_X86)
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

bool has_gfni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("gfni");
}
#endif

// Best row last.
const Row kRows[] = {
    {"portable", always, code_portable, adam_separate_portable(), adam_fused_portable()},
#if defined(LETO_X86)
    {"avx2", has_avx2, code_avx2, adam_separate_fma(), adam_fused_fma()},
    {"gfni", has_gfni, code_gfni, adam_separate_fma(), adam_fused_fma()},
#endif
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

const Row& choose_row() {
  const char* forced = std::getenv("LETO_KERNEL");
  const Row* chosen = nullptr;
  for (const Row& candidate : kRows) {
    if (candidate.supported() && (!forced || std::strcmp(forced, candidate.name) == 0)) chosen = &candidate;
  }
  if (chosen) return *chosen;
  throw std::invalid_argument("LETO_KERNEL=" + std::string(forced) + ": this processor has " + joined(supported_rows()));
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
