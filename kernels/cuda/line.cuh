/* Lines: neighbouring elements at any address, which a block walks through together. */
#pragma once

#include "kernels/cuda/pack.cuh"

/* Returns a block's threads for a line of n elements. Long lines have many, so that few are under
 * way at once and a second pass finds them in the second-level cache. */
static inline int tide_line_threads(int64_t n) { return n < 8192 ? tide_row_threads(n) : 1024; }

template <int N, class P> TIDE_DEVICE bool tide_in_step(const P *p, int64_t lead)
{
  enum { BYTES = N * sizeof(P) < 16 ? N * sizeof(P) : 16 };
  return (uintptr_t)(p + lead) % BYTES == 0;
}

/* Calls body(first, v) with v[k] the elements of line k from `first` on, many or one at a time.
 * What it stores at to + first, if `to` is not null, may be a pack of as many. There are packs if
 * all lines and `to` reach aligned addresses after the same number of elements. */
template <int K, class E, class G, class B>
TIDE_DEVICE void tide_each_of_lines(const E *const (&line)[K], const G *to, int64_t n, B body)
{
  enum { N = tide_wide<E>, AHEAD = K > 1 ? 2 : 4 };
  using T = tide_real<E>;
  int64_t lead = (int64_t)((16 - (uintptr_t)line[0] % 16) % 16 / sizeof(E));
  bool packs = lead + N <= n && (!to || tide_in_step<N>(to, lead));
#pragma unroll
  for (int k = 1; k < K; k++) packs = packs && tide_in_step<N>(line[k], lead);
  auto one = [&](int64_t i) {
    tide_values<T, 1> v[K];
#pragma unroll
    for (int k = 0; k < K; k++) v[k].v[0] = tide_up(line[k][i]);
    body(i, v);
  };
  if (!packs) lead = n;
  for (int64_t i = threadIdx.x; i < lead; i += blockDim.x) one(i);
  const int64_t end = lead + (n - lead) / N * N, step = (int64_t)blockDim.x * N;
  tide_pack<E, N> h[AHEAD][K];
  for (int64_t i = lead + threadIdx.x * N; i < end; i += step * AHEAD) {
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
#pragma unroll
      for (int k = 0; k < K; k++)
        if (i + a * step < end) h[a][k] = tide_pack_from<N>(line[k] + i + a * step);
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      if (i + a * step >= end) continue;
      tide_values<T, N> v[K];
#pragma unroll
      for (int k = 0; k < K; k++) v[k] = tide_up(h[a][k]);
      body(i + a * step, v);
    }
  }
  for (int64_t i = end + threadIdx.x; i < n; i += blockDim.x) one(i);
}

/* How many values a pack of them has. */
template <class V> constexpr int tide_count = (int)(sizeof(V::v) / sizeof(V::v[0]));

/* The largest number so far, NaN passed over, and the sum of exp(z - max), max counting as 0 while
 * nothing is above -inf. Made in one pass. */
template <class T> struct tide_exp_sum {
  T max = -INFINITY, sum = 0;
  TIDE_DEVICE static T shift(T m) { return m == (T)-INFINITY ? (T)0 : m; }
  template <int M> TIDE_DEVICE void add(const tide_values<T, M> &z)
  {
    T top = max;
#pragma unroll
    for (int j = 0; j < M; j++) top = tide_top()(top, z.v[j]);
    if (top > max) {
      sum = max == (T)-INFINITY ? sum : sum * tide_exp(max - top);
      max = top;
    }
#pragma unroll
    for (int j = 0; j < M; j++) sum += tide_exp(z.v[j] - shift(max));
  }
  /* Folds the sums of all threads of the block, in a fixed order. */
  TIDE_DEVICE void fold()
  {
    const T top = tide_block_top(max);
    sum = tide_block_sum(max == (T)-INFINITY ? sum : sum * tide_exp(max - top));
    max = shift(top);
  }
};
