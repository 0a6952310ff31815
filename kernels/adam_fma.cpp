// Compiled for x86 processors with AVX2 and FMA.
#include "adam_block.h"
#include "adam_rows.h"

namespace leto {

AdamKernels adam_separate_fma() { return kAdamKernels<Separate>; }
AdamKernels adam_fused_fma() { return kAdamKernels<Fused>; }

}  // namespace leto
