#include "adam_block.h"
#include "adam_rows.h"

namespace leto {

AdamKernels adam_separate_portable() { return kAdamKernels<Separate>; }
AdamKernels adam_fused_portable() { return kAdamKernels<Fused>; }

}  // namespace leto
