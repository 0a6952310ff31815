// One row per instruction set: the inner loops that have more than one implementation. The row is chosen once. A new
// instruction set adds files with its suffix and a row in rows.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "code_strips.h"

namespace leto {

inline constexpr int kAdamBlock = 1024;

// AdamW scalars of one segment, each rounded to float once.
struct AdamScalars {
  bool has_clip, has_decay;
  float clip, decay, first_weight, beta2, second_weight, root_divisor, eps, negative_step;
};

// At most kAdamBlock elements. `clipped` and `root` are scratch of that many.
struct AdamBlock {
  float *master, *exp_avg, *exp_avg_sq;
  const float* gradient;
  float *clipped, *root;
  int count;
};

// Where a step leaves old xor new of what it updates.
struct AdamDelta {
  uint32_t *master, *exp_avg, *exp_avg_sq;
};

// void vmsSqrt(int n, const float* a, float* r, long long mode) of MKL, which ATen calls; null for the IEEE square root.
using SqrtFunction = void (*)(int, const float*, float*, long long);

// int MKL_Set_Num_Threads_Local(int): how many threads MKL uses for calls of this thread, 0 for as many as otherwise; returns
// what it was. Null where the square root has no such library.
using LibraryThreads = int (*)(int);

// One AdamW step of a block, in one pass over it or in two, so that an armed call can park between them. The bits are the same.
//   begin         decays master, moves exp_avg; leaves the gradient that it used in `clipped`
//   finish        moves exp_avg_sq and steps master
//   step          both; does not use `clipped`, and leaves the delta alone
//   step_delta    the same, and what it changed
struct AdamKernels {
  void (*begin)(const AdamBlock&, const AdamScalars&);
  void (*finish)(const AdamBlock&, const AdamScalars&, SqrtFunction);
  void (*step)(const AdamBlock&, const AdamScalars&, SqrtFunction, const AdamDelta&);
  void (*step_delta)(const AdamBlock&, const AdamScalars&, SqrtFunction, const AdamDelta&);
};

struct Row {
  const char* name;
  bool (*supported)();
  const CodeKernels& (*code)();
  AdamKernels adam_separate;  // multiply and add round separately
  AdamKernels adam_fused;     // fused multiply-add in the moments
};

// The row in use: the best supported one, or the one that the environment variable LETO_KERNEL names, which is how one
// machine tests them all. Throws std::invalid_argument when that row is not supported here.
const Row& row();

std::vector<std::string> supported_rows();

}  // namespace leto
