/* Defines attention_merge_: combines two attentions over disjoint keys.
 *
 * With l = log(e^lse + e^part_lse) the weights are e^(lse - l) and e^(part_lse - l). An operand of
 * weight 0 is not read, so a row without visible keys may hold anything. Any strides.
 */
#include "kernels/ref/load.h"
#include "kernels/ref/log_sum.h"

static void ref_merge_row(const k_tensor *part, int64_t at_part, const k_tensor *out,
                          int64_t at_out, double w_out, double w_part)
{
  for (int64_t d = 0; d < out->shape[3]; d++) {
    int64_t i = at_out + d * out->stride[3];
    double o = w_out == 0 ? 0 : w_out * ref_get(out, i);
    double p = w_part == 0 ? 0 : w_part * ref_get(part, at_part + d * part->stride[3]);
    ref_put(out, i, o + p);
  }
}

int k_ref_attention_merge_(const k_call *call)
{
  const k_tensor *part = &call->in[0], *part_lse = &call->in[1];
  const k_tensor *out = &call->out[0], *lse = &call->out[1];
  for (int64_t b = 0; b < out->shape[0]; b++)
    for (int64_t t = 0; t < out->shape[1]; t++)
      for (int64_t h = 0; h < out->shape[2]; h++) {
        int64_t at = b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
        double old = ref_get(lse, at);
        double add = ref_get(part_lse, b * part_lse->stride[0] + h * part_lse->stride[1] +
                             t * part_lse->stride[2]);
        double total = ref_log_add_exp(old, add);
        ref_merge_row(part, b * part->stride[0] + t * part->stride[1] + h * part->stride[2], out,
                      b * out->stride[0] + t * out->stride[1] + h * out->stride[2],
                      ref_share(old, total), ref_share(add, total));
        ref_put(lse, at, total);
      }
  return TIDE_OK;
}
