/* attention_merge_ on the CPU: one pass over the rows, f32 throughout.
 *
 * It is memory bound (part and out read, out written), so rows are cut among the threads, and a row
 * to which the part adds nothing is not touched.
 *
 * Targets other than f32 with unit inner strides are left to the reference kernel.
 */
#include "kernels/cpu/row.h"

enum { GRAIN = 16, WIDE = 256 }; /* rows per thread at least; elements widened at a time */

TIDE_LEVELS(void, mix,
            (float *out, const float *part, float w_out, float w_part, int64_t n),
            (out, part, w_out, w_part, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = w_out * out[i] + w_part * part[i];
}

TIDE_LEVELS(void, take, (float *out, const float *part, int64_t n), (out, part, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) out[i] = part[i];
}

/* Computes out = w_out * out + w_part * part; with w_out 0 the old out is not read. */
static void attn_merge_row(float *out, const k_tensor *part, int64_t at, float w_out, float w_part,
                           int64_t n)
{
  float tmp[WIDE];
  for (int64_t i = 0; i < n; i += WIDE) {
    int64_t m = n - i < WIDE ? n - i : WIDE;
    const float *p = row_read(part, at + i, tmp, m);
    if (w_out == 0) take(out + i, p, m);
    else mix(out + i, p, w_out, w_part, m);
  }
}

static void attn_merge_clear(float *out, int64_t n)
{
  for (int64_t i = 0; i < n; i++) out[i] = 0;
}

static void merge_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const k_call *call = arg;
  const k_tensor *part = &call->in[0], *part_lse = &call->in[1];
  const k_tensor *out = &call->out[0], *lse = &call->out[1];
  int64_t T = out->shape[1], H = out->shape[2], D = out->shape[3];
  (void)thread;
  for (int64_t r = begin; r < end; r++) {
    int64_t h = r % H, t = r / H % T, b = r / H / T;
    float *l = (float *)lse->data + b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
    float add = ((const float *)part_lse->data)[b * part_lse->stride[0] + h * part_lse->stride[1] +
                                                t * part_lse->stride[2]];
    float *o = (float *)out->data + b * out->stride[0] + t * out->stride[1] + h * out->stride[2];
    int64_t at = b * part->stride[0] + t * part->stride[1] + h * part->stride[2];
    if (add == -INFINITY) {
      if (*l == -INFINITY) attn_merge_clear(o, D);
      continue;
    }
    float hi = *l > add ? *l : add, lo = *l > add ? add : *l;
    float total = *l == -INFINITY ? add : hi + log1pf(expf(lo - hi));
    attn_merge_row(o, part, at, *l == -INFINITY ? 0 : expf(*l - total), expf(add - total), D);
    *l = total;
  }
}

static int is_plain(const k_call *call)
{
  return call->out[0].dtype == TIDE_F32 && call->out[0].stride[3] == 1 &&
         call->in[0].stride[3] == 1;
}

int k_cpu_attention_merge_(const k_call *call)
{
  const k_tensor *out = &call->out[0];
  if (!is_plain(call) && out->shape[3] != 0) return k_ref_attention_merge_(call);
  int64_t rows = out->shape[0] * out->shape[1] * out->shape[2];
  tide__pool_for(call->nthread, rows, GRAIN, merge_rows, (void *)call);
  return TIDE_OK;
}
