/* Defines SwiGLU, silu(gate) * up, and its clamped form, forward and backward. Rows may have any
 * strides. */
#include "kernels/ref/activation.h"
#include "kernels/ref/load.h"

int k_ref_swiglu(const k_call *call)
{
  const k_tensor *gate = &call->in[0], *up = &call->in[1], *y = &call->out[0];
  int64_t rows = k_row_count(gate), n = k_row_size(gate);
  for (int64_t r = 0; r < rows; r++) {
    int64_t gate_at = k_row_offset(gate, r), up_at = k_row_offset(up, r);
    int64_t y_at = k_row_offset(y, r);
    for (int64_t i = 0; i < n; i++) {
      double g = ref_get(gate, gate_at + i);
      ref_put(y, y_at + i, g * ref_sigmoid(g) * ref_get(up, up_at + i));
    }
  }
  return TIDE_OK;
}

int k_ref_swiglu_bwd(const k_call *call)
{
  const k_tensor *dy = &call->in[0], *gate = &call->in[1], *up = &call->in[2];
  const k_tensor *dgate = &call->out[0], *dup = &call->out[1];
  int64_t rows = k_row_count(gate), n = k_row_size(gate);
  for (int64_t r = 0; r < rows; r++) {
    int64_t dy_at = k_row_offset(dy, r), gate_at = k_row_offset(gate, r);
    int64_t up_at = k_row_offset(up, r), dgate_at = k_row_offset(dgate, r);
    int64_t dup_at = k_row_offset(dup, r);
    for (int64_t i = 0; i < n; i++) {
      double d = ref_get(dy, dy_at + i), g = ref_get(gate, gate_at + i);
      double u = ref_get(up, up_at + i), s = ref_sigmoid(g);
      ref_put(dgate, dgate_at + i, d * u * s * (1.0 + g * (1.0 - s)));
      ref_put(dup, dup_at + i, d * (g * s));
    }
  }
  return TIDE_OK;
}

/* ---- clamped: (u + 1) g sigmoid(alpha g), g = min(gate, limit), u = up in [-limit, limit] ---- */

static double swiglu_most(double x, double limit) { return x > limit ? limit : x; }
static double swiglu_least(double x, double limit) { return x < -limit ? -limit : x; }

int k_ref_swiglu_clamped(const k_call *call)
{
  const k_swiglu_attrs *a = call->attrs;
  const k_tensor *gate = &call->in[0], *up = &call->in[1], *y = &call->out[0];
  int64_t rows = k_row_count(gate), n = k_row_size(gate);
  for (int64_t r = 0; r < rows; r++) {
    int64_t gate_at = k_row_offset(gate, r), up_at = k_row_offset(up, r);
    int64_t y_at = k_row_offset(y, r);
    for (int64_t i = 0; i < n; i++) {
      double g = swiglu_most(ref_get(gate, gate_at + i), a->limit);
      double u = swiglu_least(swiglu_most(ref_get(up, up_at + i), a->limit), a->limit);
      ref_put(y, y_at + i, (u + 1) * g * ref_sigmoid(a->alpha * g));
    }
  }
  return TIDE_OK;
}

int k_ref_swiglu_clamped_bwd(const k_call *call)
{
  const k_swiglu_attrs *a = call->attrs;
  const k_tensor *dy = &call->in[0], *gate = &call->in[1], *up = &call->in[2];
  const k_tensor *dgate = &call->out[0], *dup = &call->out[1];
  int64_t rows = k_row_count(gate), n = k_row_size(gate);
  for (int64_t r = 0; r < rows; r++) {
    int64_t dy_at = k_row_offset(dy, r), gate_at = k_row_offset(gate, r);
    int64_t up_at = k_row_offset(up, r), dgate_at = k_row_offset(dgate, r);
    int64_t dup_at = k_row_offset(dup, r);
    for (int64_t i = 0; i < n; i++) {
      double d = ref_get(dy, dy_at + i), x = ref_get(gate, gate_at + i);
      double z = ref_get(up, up_at + i), g = swiglu_most(x, a->limit);
      double u = swiglu_least(swiglu_most(z, a->limit), a->limit), s = ref_sigmoid(a->alpha * g);
      double dg = d * (u + 1) * s * (1 + a->alpha * g * (1 - s)), du = d * (g * s);
      ref_put(dgate, dgate_at + i, x >= a->limit ? 0 : dg);
      ref_put(dup, dup_at + i, z >= a->limit || z <= -a->limit ? 0 : du);
    }
  }
  return TIDE_OK;
}
