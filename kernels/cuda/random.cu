/* Random fills and dropout on the GPU: the same numbers as on the host, bit for bit.
 *
 * An element's word is a pure function of its global index, and from word to value go
 * the same double operations, fma included (core/base/rng.h, core/base/normal.h). Four words are a
 * block; where indices are consecutive a thread makes one block for four elements. Where
 * the generator begins may lie on the device (place): then the first block is known there alone.
 *
 * Meaning: kernels/ref/random.c.
 */
#include "kernels/cuda/block.cuh"

extern "C" {
#include "core/base/normal.h"
#include "core/base/rng.h"
#include "kernels/cuda/draw.h"
}

namespace {

struct source {
  uint64_t seed, stream, offset;
  int64_t start, numel, shape[TIDE_MAX_DIM], gstride[TIDE_MAX_DIM];
  int64_t ys[TIDE_MAX_DIM], xs[TIDE_MAX_DIM];
  int ndim;
  bool flat; /* consecutive words */
  const int64_t *place; /* null, or seed, stream and offset to be added */
};

/* place: the input that it is. */
source source_of(const k_call *call, const k_tensor &y, const k_tensor &x, int place)
{
  const k_random_attrs *a = static_cast<const k_random_attrs *>(call->attrs);
  source s = {a->seed, a->stream, a->offset, a->start, k_numel(&y), {}, {}, {}, {}, y.ndim,
              a->ndim == 0, nullptr};
  if (place < call->nin) s.place = static_cast<const int64_t *>(call->in[place].data);
  for (int d = 0; d < y.ndim; d++) {
    s.shape[d] = y.shape[d], s.ys[d] = y.stride[d], s.xs[d] = x.stride[d];
    s.gstride[d] = s.flat ? 0 : a->gstride[d];
  }
  return s;
}

/* Finds where element i lies; returns its word's index. */
TIDE_DEVICE uint64_t locate(const source &s, int64_t i, int64_t *to, int64_t *from)
{
  uint64_t g = s.offset + (uint64_t)s.start;
  *to = *from = 0;
  if (s.flat) g += (uint64_t)i;
  for (int d = s.ndim - 1; d >= 0; d--) {
    int64_t c = i % s.shape[d];
    i /= s.shape[d];
    *to += c * s.ys[d];
    *from += c * s.xs[d];
    g += (uint64_t)(c * s.gstride[d]);
  }
  return g;
}

TIDE_DEVICE double hold(double v, double lo, double hi)
{
  v = v < lo ? lo : v;
  return v > hi ? hi : v;
}

struct fill_f {
  tide_draw d;
  int kind;
  TIDE_DEVICE double value(uint32_t word) const
  {
    if (kind == TIDE_DRAW_UNIFORM)
      return hold(fma(d.scale, tide__philox_unit(word), d.base), d.low, d.high);
    double u = (word + 0.5) * 0x1p-32;
    if (kind == TIDE_DRAW_TRUNC) u = fma(d.dp, u, d.p0);
    double z = tide__normal_quantile_inline(u);
    if (kind == TIDE_DRAW_TRUNC) z = hold(d.sign * z, d.low, d.high);
    return fma(d.scale, z, d.base);
  }
  TIDE_DEVICE void operator()(tide_array y, int64_t to, tide_array, int64_t, uint32_t word) const
  {
    tide_put<double>(y, to, value(word));
  }
};

struct dropout_f {
  double p, scale;
  TIDE_DEVICE void operator()(tide_array y, int64_t to, tide_array x, int64_t from,
                              uint32_t word) const
  {
    bool kept = tide__philox_unit(word) >= p;
    if (y.dtype == TIDE_F64) tide_put<double>(y, to, kept ? tide_at<double>(x, from) * scale : 0.0);
    else tide_put<float>(y, to, kept ? tide_at<float>(x, from) * (float)scale : 0.0f);
  }
};

/* Item k: the words 4 (k + first / 4) + 0..3 where they are consecutive, else element k. */
template <class F> __global__ void draw_kernel(source s, int64_t n, tide_array y, tide_array x, F f)
{
  if (s.place) {
    s.seed += (uint64_t)s.place[0];
    s.stream += (uint64_t)s.place[1];
    s.offset += (uint64_t)s.place[2];
  }
  uint64_t first = s.offset + (uint64_t)s.start;
  TIDE_GRID_LOOP(k, n) {
    int64_t to, from;
    if (!s.flat) {
      uint64_t g = locate(s, k, &to, &from);
      f(y, to, x, from, tide__philox_word(s.seed, s.stream, g));
      continue;
    }
    uint32_t words[4];
    uint64_t block = (first >> 2) + (uint64_t)k;
    tide__philox_block(s.seed, s.stream, block, words);
#pragma unroll
    for (int lane = 0; lane < 4; lane++) {
      int64_t i = (int64_t)(block * 4 + (uint64_t)lane - first);
      if (i < 0 || i >= s.numel) continue;
      locate(s, i, &to, &from);
      f(y, to, x, from, words[lane]);
    }
  }
}

template <class F>
int draw(const k_call *call, const k_tensor &y, const k_tensor &x, int place, F f)
{
  source s = source_of(call, y, x, place);
  int64_t skip = s.place ? 3 : (int64_t)((s.offset + (uint64_t)s.start) & 3); /* at most */
  int64_t n = s.flat ? (s.numel + skip + 3) / 4 : s.numel;
  TIDE_LAUNCH(draw_kernel, n, call, s, n, tide_array_of(y), tide_array_of(x), f);
  return TIDE_CUDA_LAUNCHED(call);
}

int fill(const k_call *call, int kind)
{
  fill_f f = {{}, kind};
  int rc = tide_cuda_draw(&f.d, kind, call);
  return rc < 0 ? rc : draw(call, call->out[0], call->out[0], 0, f);
}

}  // namespace

int k_cuda_uniform_(const k_call *call) { return fill(call, TIDE_DRAW_UNIFORM); }
int k_cuda_normal_(const k_call *call) { return fill(call, TIDE_DRAW_NORMAL); }
int k_cuda_trunc_normal_(const k_call *call) { return fill(call, TIDE_DRAW_TRUNC); }

/* p = 1 keeps nothing, so its infinite scale is never used. */
int k_cuda_dropout(const k_call *call)
{
  double p = static_cast<const k_random_attrs *>(call->attrs)->a;
  int rc = tide_cuda_check_dropout(call);
  return rc < 0 ? rc : draw(call, call->out[0], call->in[0], 1, dropout_f{p, 1 / (1 - p)});
}
