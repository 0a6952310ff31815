// The arithmetic of torch's non-fused AdamW, instantiated once per instruction set. Compile with -ffp-contract=off: which
// operations fuse is part of the arithmetic.
//
//   g = g * clip                                    where clipping
//   p = p * (1 - lr * wd)                           where decaying
//   m = fma(w, g - m, m)                            w = 1 - beta1; torch's lerp: from w >= 0.5 on fma(w - 1, g - m, g)
//   v = fma((1 - beta2) * g, g, v * beta2)
//   d = sqrt(v) / sqrt(bias correction 2) + eps
//   p = p + (-lr / bias correction 1 * m) / d
//
// Everything has internal linkage: a translation unit for a newer instruction set must not lend its code to another one.
#pragma once

#include <cmath>

#include "rows.h"

namespace leto {
namespace {

struct Fused {
  static float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
};

struct Separate {
  static float multiply_add(float a, float b, float c) { return a * b + c; }
};

template <class Rounding>
void adam_begin(const AdamBlock& block, const AdamScalars& scalars) {
  float* __restrict p = block.master;
  float* __restrict m = block.exp_avg;
  float* __restrict g = block.clipped;
  const float* __restrict gradient = block.gradient;
  const int count = block.count;
  const float clip = scalars.clip, decay = scalars.decay, w = scalars.first_weight;
  if (scalars.has_clip) {
    for (int i = 0; i < count; ++i) g[i] = gradient[i] * clip;
  } else {
    for (int i = 0; i < count; ++i) g[i] = gradient[i];
  }
  if (scalars.has_decay) {
    for (int i = 0; i < count; ++i) p[i] = p[i] * decay;
  }
  if (w < 0.5f) {
    for (int i = 0; i < count; ++i) m[i] = Rounding::multiply_add(w, g[i] - m[i], m[i]);
  } else {
    for (int i = 0; i < count; ++i) m[i] = Rounding::multiply_add(w - 1.0f, g[i] - m[i], g[i]);
  }
}

template <class Rounding>
void adam_finish(const AdamBlock& block, const AdamScalars& scalars, SqrtFunction sqrt_function) {
  float* __restrict p = block.master;
  const float* __restrict m = block.exp_avg;
  float* __restrict v = block.exp_avg_sq;
  float* __restrict root = block.root;
  const float* __restrict g = block.clipped;
  const int count = block.count;
  const float beta2 = scalars.beta2, weight = scalars.second_weight;
  for (int i = 0; i < count; ++i) v[i] = Rounding::multiply_add(weight * g[i], g[i], v[i] * beta2);
  if (sqrt_function) {
    // ATen's mode: high accuracy, denormals kept, errors ignored.
    sqrt_function(count, v, root, 0x2 | 0x140000 | 0x100);
  } else {
    for (int i = 0; i < count; ++i) root[i] = std::sqrt(v[i]);
  }
  const float divisor = scalars.root_divisor, eps = scalars.eps, step = scalars.negative_step;
  for (int i = 0; i < count; ++i) p[i] = p[i] + (step * m[i]) / (root[i] / divisor + eps);
}

template <class Rounding>
constexpr AdamHalves kAdamHalves = {adam_begin<Rounding>, adam_finish<Rounding>};

}  // namespace
}  // namespace leto
