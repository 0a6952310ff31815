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
#include <cstring>

#include "rows.h"

namespace leto {
namespace {

struct Fused {
  static float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
};

struct Separate {
  static float multiply_add(float a, float b, float c) { return a * b + c; }
};

// ATen's mode: high accuracy, denormals kept, errors ignored.
constexpr long long kSqrtMode = 0x2 | 0x140000 | 0x100;

inline uint32_t changed_bits(float before, float after) {
  uint32_t left, right;
  memcpy(&left, &before, sizeof left);
  memcpy(&right, &after, sizeof right);
  return left ^ right;
}

inline void adam_root(const AdamBlock& block, SqrtFunction sqrt_function) {
  if (sqrt_function) {
    sqrt_function(block.count, block.exp_avg_sq, block.root, kSqrtMode);
    return;
  }
  const float* __restrict v = block.exp_avg_sq;
  float* __restrict root = block.root;
  for (int i = 0; i < block.count; ++i) root[i] = std::sqrt(v[i]);
}

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
  const float* __restrict root = block.root;
  const float* __restrict g = block.clipped;
  const int count = block.count;
  const float beta2 = scalars.beta2, weight = scalars.second_weight;
  for (int i = 0; i < count; ++i) v[i] = Rounding::multiply_add(weight * g[i], g[i], v[i] * beta2);
  adam_root(block, sqrt_function);
  const float divisor = scalars.root_divisor, eps = scalars.eps, step = scalars.negative_step;
  for (int i = 0; i < count; ++i) p[i] = p[i] + (step * m[i]) / (root[i] / divisor + eps);
}

// The moments of a whole step; what depends on scalars alone is decided outside the loop. Delta: leave what changes in `delta`.
template <class Rounding, bool Clip, bool Near, bool Delta>
void adam_moments(const AdamBlock& block, const AdamScalars& scalars, const AdamDelta& delta) {
  float* __restrict m = block.exp_avg;
  float* __restrict v = block.exp_avg_sq;
  const float* __restrict gradient = block.gradient;
  uint32_t* __restrict m_delta = delta.exp_avg;
  uint32_t* __restrict v_delta = delta.exp_avg_sq;
  const int count = block.count;
  const float clip = scalars.clip, w = scalars.first_weight, beta2 = scalars.beta2, weight = scalars.second_weight;
  for (int i = 0; i < count; ++i) {
    const float g = Clip ? gradient[i] * clip : gradient[i];
    const float m_old = m[i], v_old = v[i];
    m[i] = Near ? Rounding::multiply_add(w, g - m_old, m_old) : Rounding::multiply_add(w - 1.0f, g - m_old, g);
    v[i] = Rounding::multiply_add(weight * g, g, v_old * beta2);
    if constexpr (Delta) {
      m_delta[i] = changed_bits(m_old, m[i]);
      v_delta[i] = changed_bits(v_old, v[i]);
    }
  }
}

template <bool Decay, bool Delta>
void adam_master(const AdamBlock& block, const AdamScalars& scalars, const AdamDelta& delta) {
  float* __restrict p = block.master;
  const float* __restrict m = block.exp_avg;
  const float* __restrict root = block.root;
  uint32_t* __restrict p_delta = delta.master;
  const int count = block.count;
  const float decay = scalars.decay, divisor = scalars.root_divisor, eps = scalars.eps, step = scalars.negative_step;
  for (int i = 0; i < count; ++i) {
    const float old = p[i], decayed = Decay ? old * decay : old;
    p[i] = decayed + (step * m[i]) / (root[i] / divisor + eps);
    if constexpr (Delta) p_delta[i] = changed_bits(old, p[i]);
  }
}

template <class Rounding, bool Clip, bool Delta>
void adam_moments(const AdamBlock& block, const AdamScalars& scalars, const AdamDelta& delta) {
  scalars.first_weight < 0.5f ? adam_moments<Rounding, Clip, true, Delta>(block, scalars, delta)
                              : adam_moments<Rounding, Clip, false, Delta>(block, scalars, delta);
}

template <class Rounding, bool Delta>
void adam_step(const AdamBlock& block, const AdamScalars& scalars, SqrtFunction sqrt_function, const AdamDelta& delta) {
  scalars.has_clip ? adam_moments<Rounding, true, Delta>(block, scalars, delta)
                   : adam_moments<Rounding, false, Delta>(block, scalars, delta);
  adam_root(block, sqrt_function);
  scalars.has_decay ? adam_master<true, Delta>(block, scalars, delta) : adam_master<false, Delta>(block, scalars, delta);
}

template <class Rounding>
constexpr AdamKernels kAdamKernels = {adam_begin<Rounding>, adam_finish<Rounding>, adam_step<Rounding, false>,
                                      adam_step<Rounding, true>};

}  // namespace
}  // namespace leto
