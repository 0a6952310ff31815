// Compiled for x86 processors with AVX2 and FMA.
#include "adam_block.h"
#include "adam_rows.h"

namespace leto {

AdamHalves adam_separate_fma() { return kAdamHalves<Separate>; }
AdamHalves adam_fused_fma() { return kAdamHalves<Fused>; }

}  // namespace leto
