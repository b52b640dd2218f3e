/* The SSD scan forward on tensor cores, f16 and bf16: states of chunks, their recurrence,
 * values. See scan_mma.cuh.
 */
#include "kernels/cuda/scan/scan_values.cuh"

namespace {

enum { FEW = 4 }; /* tokens up to which the recurrence moves less than the products */

template <bool F16> int run(const k_call *call, const scan &s)
{
  sizes z = sizes_of(s);
  room r = {static_cast<char *>(call->work), 0};
  float *whole = r.take<float>(s.nb * s.nchunk * s.H);
  float *states = k_absent(&call->out[2]) ? r.take<float>(s.nb * s.nchunk * s.H * s.P * s.N)
                                          : static_cast<float *>(call->out[2].data);
  int rc = run_states<F16, false>(call, s, z, s.x, states, whole, s.initial,
                                  tide_array_of(call->out[1]));
  if (rc < 0) return rc;
  values k = {{}, states, static_cast<uint16_t *>(call->out[0].data), false, {}};
  return run_values<F16, false>(call, s, z, k);
}

}  // namespace

bool tide_scan_mma_fits(const k_call *call, const k_tensor *in)
{
  scan s = scan_of(call, in);
  sizes z = sizes_of(s);
  int dtype = in[0].dtype;
  bool few = in == call->in && s.T <= FEW && k_absent(&call->out[2]);
  if ((dtype != TIDE_BF16 && dtype != TIDE_F16) || few || s.chunk > CHUNK) return false;
  if (s.P == 0 || s.N == 0 || s.H == 0 || s.P > 2 * WIDTH || s.N > 2 * KEYS) return false;
  return states_bytes(z) <= MOST_BYTES && values_bytes<true>(z) <= MOST_BYTES
    && keys_bytes<false>(z) <= MOST_BYTES;
}

int64_t tide_scan_mma_work(const k_call *call)
{
  scan s = scan_of(call, call->in);
  room r = {};
  r.take<float>(s.nb * s.nchunk * s.H);
  if (k_absent(&call->out[2])) r.take<float>(s.nb * s.nchunk * s.H * s.P * s.N);
  return r.used;
}

int tide_scan_mma(const k_call *call)
{
  scan s = scan_of(call, call->in);
  return call->in[0].dtype == TIDE_F16 ? run<true>(call, s) : run<false>(call, s);
}
