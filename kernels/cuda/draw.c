/* The constants of a distribution, worked out on the host by the rules of the reference.
 *
 * Compiled into libtide_cuda, which links nothing of libtide.
 */
#include "kernels/cuda/draw.h"

int tide_cuda_draw(tide_draw *out, int kind, const k_call *call)
{
  ref_draw d = { 0 };
  int rc = kind == TIDE_DRAW_UNIFORM ? ref_draw_uniform(&d, call)
    : kind == TIDE_DRAW_NORMAL ? ref_draw_normal(&d, call) : ref_draw_trunc_normal(&d, call);
  *out = (tide_draw){ d.base, d.scale, d.low, d.high, d.p0, d.dp, d.sign };
  return rc;
}

int tide_cuda_check_dropout(const k_call *call) { return ref_check_dropout(call); }
