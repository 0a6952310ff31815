#pragma once

#include "rows.h"

namespace leto {

AdamHalves adam_separate_portable();
AdamHalves adam_fused_portable();
AdamHalves adam_separate_fma();
AdamHalves adam_fused_fma();

}  // namespace leto
