#pragma once

#include "rows.h"

namespace leto {

void combine_portable(const Combination& work);

}  // namespace leto
