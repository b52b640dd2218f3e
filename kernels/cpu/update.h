/* What the optimiser steps share: lists of tensors as units of work, and AdamW's loop. */
#pragma once

#include "kernels/cpu/row.h"
#include "kernels/ref/update.h"

enum { UNIT = 2048, GRAIN = 8 }; /* elements of a unit; units per thread at least */

/* ---- units -------------------------------------------------------------------------------- */

/* first[i] is the number of the first unit of tensor i; first[n] counts them all. */
typedef struct units { int64_t n, *first; } units;

static inline int64_t unit_count(const k_tensor *t, const k_tensor *also)
{
  return k_absent(t) || k_absent(also) ? 0 : (k_numel(t) + UNIT - 1) / UNIT;
}

static inline int64_t update_index_bytes(int64_t n) { return (n + 1 + 7) / 8 * 64; }

static inline units units_of(const k_tensor *t, const k_tensor *also, int64_t n, void *work)
{
  units u = { n, work };
  u.first[0] = 0;
  for (int64_t i = 0; i < n; i++) u.first[i + 1] = u.first[i] + unit_count(&t[i], &also[i]);
  return u;
}

typedef struct piece { int64_t tensor, begin, n; } piece;

/* Returns unit k; p is the unit before it, or any other. */
static inline piece piece_at(const units *u, const k_tensor *t, int64_t k, piece p)
{
  if (p.n == 0) p.tensor = i64_find(u->first, u->n, k);
  while (k >= u->first[p.tensor + 1]) p.tensor++;
  p.begin = (k - u->first[p.tensor]) * UNIT;
  p.n = k_numel(&t[p.tensor]) - p.begin;
  if (p.n > UNIT) p.n = UNIT;
  return p;
}

static inline const k_tensor *weight_of(const k_tensor *p, const k_tensor *master)
{
  return k_absent(master) ? p : master;
}

/* The numbers of a step of AdamW. */
typedef struct adamw_rates { double scale, decay, blend1, blend2, rate, root, eps; } adamw_rates;

static inline adamw_rates adamw_rates_of(const k_adamw_attrs *a, const k_tensor *g_scale)
{
  double bias1 = 1 - pow(a->beta1, (double)a->step), bias2 = 1 - pow(a->beta2, (double)a->step);
  return (adamw_rates){ .scale = ref_total_scale(g_scale, a->grad_scale, a->maximize),
                        .decay = a->lr * a->weight_decay, .blend1 = 1 - a->beta1,
                        .blend2 = 1 - a->beta2, .rate = a->lr / bias1, .root = 1 / sqrt(bias2),
                        .eps = a->eps };
}

TIDE_LEVELS(void, adamw_f32,
            (float *w, float *m, float *v, const float *g, const adamw_rates *a, int64_t n),
            (w, m, v, g, a, n))
{
  float scale = (float)a->scale, decay = (float)a->decay, blend1 = (float)a->blend1;
  float blend2 = (float)a->blend2, rate = (float)a->rate, root = (float)a->root;
  float eps = (float)a->eps;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float gi = g[i] * scale;
    float mi = m[i] + blend1 * (gi - m[i]), vi = v[i] + blend2 * (gi * gi - v[i]);
    m[i] = mi;
    v[i] = vi;
    w[i] = (w[i] - decay * w[i]) - rate * mi / (sqrtf(vi) * root + eps);
  }
}
