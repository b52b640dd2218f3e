/* Defines attention_sinks_ and attention_sinks_backward: a learnt score of each head that has a
 * share of the softmax and no value.
 *
 * out and lse are the attention over the keys alone. With l = log(e^lse + e^sink) the weight of out
 * is e^(lse - l), and the share of the sink is e^(sink - l). A query without keys keeps out = 0.
 * The sink is a key whose value is 0, so its score has the gradient e^(sink - l) (dlse - dout .
 * out), summed over the queries. Any strides.
 */
#include "kernels/ref/load.h"
#include "kernels/ref/log_sum.h"

int k_ref_attention_sinks_(const k_call *call)
{
  const k_tensor *sinks = &call->in[0], *out = &call->out[0], *lse = &call->out[1];
  for (int64_t b = 0; b < out->shape[0]; b++)
    for (int64_t t = 0; t < out->shape[1]; t++)
      for (int64_t h = 0; h < out->shape[2]; h++) {
        int64_t at = b * lse->stride[0] + h * lse->stride[1] + t * lse->stride[2];
        int64_t row = b * out->stride[0] + t * out->stride[1] + h * out->stride[2];
        double old = ref_get(lse, at);
        double total = ref_log_add_exp(old, ref_get(sinks, h * sinks->stride[0]));
        double weight = ref_share(old, total);
        for (int64_t d = 0; d < out->shape[3] && weight != 0; d++)
          ref_put(out, row + d * out->stride[3], weight * ref_get(out, row + d * out->stride[3]));
        for (int64_t d = 0; d < out->shape[3] && weight == 0; d++)
          ref_put(out, row + d * out->stride[3], 0);
        ref_put(lse, at, total);
      }
  return TIDE_OK;
}

int k_ref_attention_sinks_backward(const k_call *call)
{
  const k_tensor *dout = &call->in[0], *out = &call->in[1], *lse = &call->in[2];
  const k_tensor *sinks = &call->in[3], *dlse = &call->in[4];
  for (int64_t h = 0; h < out->shape[2]; h++) {
    const double sink = ref_get(sinks, h * sinks->stride[0]);
    double sum = 0;
    for (int64_t b = 0; b < out->shape[0]; b++)
      for (int64_t t = 0; t < out->shape[1]; t++) {
        int64_t x = b * dout->stride[0] + t * dout->stride[1] + h * dout->stride[2];
        int64_t y = b * out->stride[0] + t * out->stride[1] + h * out->stride[2];
        double g = 0, l = ref_get(lse, b * lse->stride[0] + h * lse->stride[1] +
                                  t * lse->stride[2]);
        for (int64_t d = 0; d < out->shape[3]; d++)
          g -= ref_get(dout, x + d * dout->stride[3]) * ref_get(out, y + d * out->stride[3]);
        if (!k_absent(dlse))
          g += ref_get(dlse, b * dlse->stride[0] + h * dlse->stride[1] + t * dlse->stride[2]);
        const double share = ref_share(sink, l);
        if (share != 0) sum += share * g;
      }
    ref_put(&call->out[0], h * call->out[0].stride[0], sum);
  }
  return TIDE_OK;
}
