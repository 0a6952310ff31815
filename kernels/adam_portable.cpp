#include "adam_block.h"
#include "adam_rows.h"

namespace leto {

AdamHalves adam_separate_portable() { return kAdamHalves<Separate>; }
AdamHalves adam_fused_portable() { return kAdamHalves<Fused>; }

}  // namespace leto
