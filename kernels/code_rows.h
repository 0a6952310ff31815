// The erasure code's kernels of every instruction-set row.
#pragma once

#include "code_strips.h"

namespace leto {

const CodeKernels& code_portable();
const CodeKernels& code_avx2();
const CodeKernels& code_gfni();

}  // namespace leto
