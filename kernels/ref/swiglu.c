/* Defines SwiGLU, silu(gate) * up, forward and backward. Operands are contiguous. */
#include "kernels/ref/activation.h"
#include "kernels/ref/load.h"

int k_ref_swiglu(const k_call *call)
{
  const k_tensor *gate = &call->in[0], *up = &call->in[1];
  int64_t n = k_numel(gate);
  for (int64_t i = 0; i < n; i++) {
    double g = ref_get(gate, i);
    ref_put(&call->out[0], i, g * ref_sigmoid(g) * ref_get(up, i));
  }
  return TIDE_OK;
}

int k_ref_swiglu_bwd(const k_call *call)
{
  const k_tensor *dy = &call->in[0], *gate = &call->in[1], *up = &call->in[2];
  int64_t n = k_numel(gate);
  for (int64_t i = 0; i < n; i++) {
    double d = ref_get(dy, i), g = ref_get(gate, i), u = ref_get(up, i), s = ref_sigmoid(g);
    ref_put_opt(&call->out[0], i, d * u * s * (1.0 + g * (1.0 - s)));
    ref_put_opt(&call->out[1], i, d * g * s);
  }
  return TIDE_OK;
}
