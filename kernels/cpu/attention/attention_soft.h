/* The running maximum of a softmax over rows of 16 lanes, with AVX-512, for the f32 tiles and the
 * bf16 tiles. See attention.h. */
#pragma once

#include "kernels/cpu/attention/attention.h"

typedef struct lane_mask { __m512i doc, lo, hi; const int32_t *kdoc, *kpos; } lane_mask;

TIDE_AVX512_INLINE lane_mask load_mask(const attn_lanes *m)
{
  const lane_mask r = { _mm512_loadu_si512(m->qdoc), _mm512_loadu_si512(m->qlo),
                        _mm512_loadu_si512(m->qhi), m->kdoc, m->kpos };
  return r;
}

TIDE_AVX512_INLINE __mmask16 lanes_see(const lane_mask *m, int64_t j)
{
  const __m512i pos = _mm512_set1_epi32(m->kpos[j]);
  __mmask16 k = _mm512_cmpeq_epi32_mask(m->doc, _mm512_set1_epi32(m->kdoc[j]));
  k = _mm512_mask_cmple_epi32_mask(k, m->lo, pos);
  return _mm512_mask_cmpge_epi32_mask(k, m->hi, pos);
}

/* Writes -inf where a lane of the group does not see the key; n keys. */
TIDE_AVX512_INLINE void hide_lanes(float *s, int64_t n, const attn_lanes *lanes)
{
  const lane_mask m = load_mask(lanes);
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  for (int64_t j = 0; j < n; j++)
    _mm512_storeu_ps(s + j * ATTN_Q,
                     _mm512_mask_loadu_ps(none, lanes_see(&m, j), s + j * ATTN_Q));
}

TIDE_AVX512_INLINE __m512 column_max(const float *s, int64_t n)
{
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  __m512 a = none, b = none, c = none, d = none;
  int64_t j = 0;
  for (; j + 4 <= n; j += 4, s += 4 * ATTN_Q) {
    a = _mm512_max_ps(a, _mm512_loadu_ps(s));
    b = _mm512_max_ps(b, _mm512_loadu_ps(s + ATTN_Q));
    c = _mm512_max_ps(c, _mm512_loadu_ps(s + 2 * ATTN_Q));
    d = _mm512_max_ps(d, _mm512_loadu_ps(s + 3 * ATTN_Q));
  }
  for (; j < n; j++, s += ATTN_Q) a = _mm512_max_ps(a, _mm512_loadu_ps(s));
  return _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d));
}

/* Raises the maximum only when it grew by more than 8 (a factor of 256), which keeps sums well
 * inside the range of f32 and makes rescaling rare. top and alpha are those of an attn_soft; the
 * exponential is vec_exp2_short if is_short. Returns the value that scores are relative to. */
TIDE_AVX512_INLINE __m512 raise_top(float *top, float *alpha, __m512 seen, float mul,
                                    const int is_short, int *grown)
{
  const __m512 none = _mm512_set1_ps(-__builtin_inff()), old = _mm512_loadu_ps(top);
  const __mmask16 any = _mm512_cmp_ps_mask(seen, none, _CMP_NEQ_UQ);
  seen = _mm512_mask_mul_ps(none, any, seen, _mm512_set1_ps(mul));
  const __mmask16 up =
    _mm512_cmp_ps_mask(seen, _mm512_add_ps(old, _mm512_set1_ps(8.0f)), _CMP_GT_OQ);
  const __m512 now = _mm512_mask_mov_ps(old, up, seen);
  const __mmask16 blind = _mm512_cmp_ps_mask(now, none, _CMP_EQ_OQ);
  const __m512 base = _mm512_mask_mov_ps(now, blind, _mm512_setzero_ps());
  const __m512 by = _mm512_sub_ps(old, base), e = is_short ? vec_exp2_short(by) : vec_exp2(by);
  _mm512_storeu_ps(top, now);
  _mm512_storeu_ps(alpha, _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), up, e));
  *grown = (up & _mm512_cmp_ps_mask(old, none, _CMP_NEQ_UQ)) != 0;
  return base;
}
