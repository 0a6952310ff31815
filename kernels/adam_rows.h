#pragma once

#include "rows.h"

namespace leto {

AdamKernels adam_separate_portable();
AdamKernels adam_fused_portable();
AdamKernels adam_separate_fma();
AdamKernels adam_fused_fma();

}  // namespace leto
