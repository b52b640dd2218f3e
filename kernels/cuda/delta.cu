/* The gated delta rule on the GPU: the recurrence itself.
 *
 * Columns of the state do not depend on each other, so a block has COLUMNS of one value head of one
 * batch: a lane a column, a warp every so many rows. An element of the state is always in the hands
 * of the same thread, in shared memory where it fits. Tokens follow each other.
 *
 * The backward takes the chunks between kept states, the last first. Within one it goes forwards
 * for u and r = v - R'k, backwards for du, dr and the gradient of the state, which needs no state,
 * and forwards again for what is multiplied by the state: dq and the rest of dk. So no states are
 * kept but those of the forward. Sums over columns and over the heads of a key head go to scratch
 * and are added in order.
 *
 * The gradient of g_t is that of g_{t+1} + o_t . do_t - du_t . u_t - dr_t . (v_t - r_t), begun at
 * the end of each chunk by the product of the state with its gradient.
 *
 * Meaning: kernels/ref/delta.c.
 */
#include "kernels/cuda/sequence.cuh"

#ifndef TIDE_CUDA_DELTA_BYTES
#define TIDE_CUDA_DELTA_BYTES (64 << 20) /* of the parts of batches that go back at a time */
#endif

namespace {

enum { COLUMNS = 32, MOST_WARPS = 8, SHARED = 36 << 10 };
enum { IN_DY, IN_Q, IN_STATES = 8, IN_DLAST };
enum { OUT_Q, OUT_K, OUT_V, OUT_G, OUT_BETA, OUT_INITIAL };

struct rows_view { tide_array a; int64_t s[3]; }; /* the last dim has stride 1 */
rows_view rows_of(const k_tensor &t)
{
  rows_view v = {tide_array_of(t), {}};
  for (int d = 0; d < 3 && v.a.data; d++) v.s[d] = t.stride[d];
  return v;
}
template <class T>
TIDE_DEVICE T row_at(const rows_view &v, int64_t a, int64_t b, int64_t c, int64_t i)
{
  return tide_at<T>(v.a, a * v.s[0] + b * v.s[1] + c * v.s[2] + i);
}

struct delta {
  rows_view q, k, v, g, beta, initial;
  tide_sequence seq;
  int64_t nb, T, Hk, Hv, Dk, Dv, group, chunk, nchunk, tiles;
  double scale, eps;
  int l2norm, warps;
};

delta delta_of(const k_call *call, const k_tensor *in)
{
  const k_gated_delta_attrs *a = static_cast<const k_gated_delta_attrs *>(call->attrs);
  delta s = {rows_of(in[0]), rows_of(in[1]), rows_of(in[2]), rows_of(in[3]), rows_of(in[4]),
             rows_of(in[5]), tide_sequence_of(in[6]), in[0].shape[0], in[0].shape[1],
             in[0].shape[2], in[2].shape[2], in[0].shape[3], in[2].shape[3], 0, a->chunk, 0, 0,
             a->scale, a->eps, a->l2norm, 0};
  s.group = s.Hk ? s.Hv / s.Hk : 0;
  s.nchunk = (s.T + s.chunk - 1) / s.chunk;
  s.tiles = (s.Dv + COLUMNS - 1) / COLUMNS;
  s.warps = s.Dk <= 4 ? 1 : s.Dk < 4 * MOST_WARPS ? (int)(s.Dk / 4) : MOST_WARPS;
  return s;
}

/* Bytes of shared memory for the part of a state that a block has, or 0 if that is too much. */
template <class T> int shared_bytes(const delta &s)
{
  int64_t n = s.Dk * COLUMNS * (int64_t)sizeof(T);
  return n <= SHARED ? (int)n : 0;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* The factors of rows of q or k, [B, T, Hk]. A warp a row. */
template <class T> __global__ void norm_kernel(delta s, rows_view x, T *factor)
{
  int lane = (int)threadIdx.x & 31;
  int64_t n = s.nb * s.T * s.Hk, step = (int64_t)gridDim.x * (blockDim.x >> 5);
  for (int64_t i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); i < n; i += step) {
    T sum = 0;
    for (int64_t d = lane; d < s.Dk; d += 32) {
      T v = row_at<T>(x, i / s.Hk / s.T, i / s.Hk % s.T, i % s.Hk, d);
      sum += v * v;
    }
    sum = tide_warp_fold(sum, tide_plus());
    if (lane == 0) factor[i] = (T)1 / tide_sqrt(sum + (T)s.eps);
  }
}

/* rq and rk: null without norms. */
template <class T> struct factors { T *q, *k; };

template <class T> int make_factors(const k_call *call, const delta &s, const factors<T> &f)
{
  int64_t rows = s.nb * s.T * s.Hk;
  if (!f.q || rows == 0) return TIDE_OK;
  TIDE_LAUNCH(norm_kernel<T>, rows * 32, call, s, s.q, f.q);
  TIDE_LAUNCH(norm_kernel<T>, rows * 32, call, s, s.k, f.k);
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- what a block does with a token ---------------------------------------------------------- */

/* A block's part of one head. */
struct part {
  int64_t b, h, hk, c; /* batch, value head, key head; the thread's column */
  int lane, warp;
  bool has;            /* the column exists */
};
TIDE_DEVICE part part_of(const delta &s, int64_t block, int64_t b0)
{
  part p;
  int64_t tile = block % s.tiles;
  p.h = block / s.tiles % s.Hv;
  p.b = b0 + block / s.tiles / s.Hv;
  p.hk = p.h / s.group;
  p.lane = (int)threadIdx.x & 31, p.warp = (int)threadIdx.x >> 5;
  p.c = tile * COLUMNS + p.lane;
  p.has = p.c < s.Dv;
  return p;
}

/* Does a sequence begin at token t, which is not the first? */
TIDE_DEVICE bool begins(const delta &s, int64_t b, int64_t t)
{
  return t > 0 && tide_sequence_at(s.seq, b, t) != tide_sequence_at(s.seq, b, t - 1);
}

template <class T> struct token {
  T keep, beta, rq, rk;
};
template <class T>
TIDE_DEVICE token<T> token_at(const delta &s, const factors<T> &f, const part &p, int64_t t)
{
  int64_t row = (p.b * s.T + t) * s.Hk + p.hk;
  token<T> k;
  k.keep = begins(s, p.b, t) ? (T)0 : tide_exp(row_at<T>(s.g, p.b, t, p.h, 0));
  k.beta = row_at<T>(s.beta, p.b, t, p.h, 0);
  k.rq = f.q ? f.q[row] : (T)1;
  k.rk = f.k ? f.k[row] : (T)1;
  return k;
}

template <class T> TIDE_DEVICE T kept(T keep, T x) { return keep == 0 ? (T)0 : keep * x; }

/* Adds a and b of each column over the warps. Two slots take turns, so one barrier a call is
 * enough. */
template <class T> TIDE_DEVICE void over_rows(T *a, T *b, const part &p, int warps, int *turn)
{
  __shared__ T slot[2][2][MOST_WARPS][COLUMNS];
  int at = *turn ^= 1;
  slot[at][0][p.warp][p.lane] = *a;
  slot[at][1][p.warp][p.lane] = *b;
  __syncthreads();
  *a = *b = 0;
  for (int w = 0; w < warps; w++) *a += slot[at][0][w][p.lane], *b += slot[at][1][w][p.lane];
}

#define ROW_LOOP(i) for (int64_t i = p.warp; i < s.Dk; i += s.warps)

/* Writes the part of a state [.., Dk, Dv] at `at`, or reads it. */
template <class T>
TIDE_DEVICE void load_state(const delta &s, const part &p, const tide_array &from, int64_t at, T *S)
{
  ROW_LOOP(i)
    S[i * COLUMNS + p.lane] = p.has && from.data ? tide_at<T>(from, at + i * s.Dv + p.c) : (T)0;
}
template <class T>
TIDE_DEVICE void store_state(const delta &s, const part &p, const tide_array &to, int64_t at,
                             const T *S)
{
  if (p.has && to.data)
    ROW_LOOP(i) tide_put<T>(to, at + i * s.Dv + p.c, S[i * COLUMNS + p.lane]);
}
template <class T>
TIDE_DEVICE void first_state(const delta &s, const part &p, T *S)
{
  ROW_LOOP(i)
    S[i * COLUMNS + p.lane] =
      p.has && s.initial.a.data ? row_at<T>(s.initial, p.b, p.h, i, p.c) : (T)0;
}

/* ---- forward --------------------------------------------------------------------------------- */

struct results { tide_array y, last, states; };

template <class T>
__global__ void forward_kernel(delta s, factors<T> f, results out, T *work)
{
  TIDE_DYNAMIC_SHARED(shared);
  part p = part_of(s, blockIdx.x, 0);
  T *S = work ? work + blockIdx.x * s.Dk * COLUMNS : reinterpret_cast<T *>(shared);
  int turn = 0;
  int64_t n = s.Dk * s.Dv;
  first_state(s, p, S);
  for (int64_t t = 0; t < s.T; t++) {
    if (t % s.chunk == 0)
      store_state(s, p, out.states, ((p.b * s.nchunk + t / s.chunk) * s.Hv + p.h) * n, S);
    token<T> k = token_at(s, f, p, t);
    T x = 0, o = 0;
    ROW_LOOP(i) x += S[i * COLUMNS + p.lane] * row_at<T>(s.k, p.b, t, p.hk, i);
    over_rows(&x, &o, p, s.warps, &turn);
    T v = p.has ? row_at<T>(s.v, p.b, t, p.h, p.c) : (T)0;
    T u = k.beta * (v - kept(k.keep, x * k.rk));
    ROW_LOOP(i) {
      T *at = S + i * COLUMNS + p.lane;
      *at = kept(k.keep, *at) + k.rk * row_at<T>(s.k, p.b, t, p.hk, i) * u;
      o += *at * row_at<T>(s.q, p.b, t, p.hk, i);
    }
    over_rows(&o, &x, p, s.warps, &turn);
    if (p.warp == 0 && p.has)
      tide_put<T>(out.y, ((p.b * s.T + t) * s.Hv + p.h) * s.Dv + p.c, (T)s.scale * k.rq * o);
  }
  store_state(s, p, out.last, (p.b * s.Hv + p.h) * n, S);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Scratch holds `nb` batches of one chunk at a time, from batch b0 on. */
template <class T> struct back {
  rows_view dy, dlast;
  tide_array states, dq, dk, dv, dg, dbeta, dinitial;
  int64_t b0, nb, c, C;      /* batches; the chunk; most tokens of one */
  T *dstate;                 /* [B, Hv, tiles, Dk, COLUMNS] */
  T *u, *du;                 /* [blocks, C, COLUMNS] */
  T *part_q, *part_k;        /* [blocks, C, Dk]: dq and dk of normalized rows */
  T *loss, *part_beta, *edge; /* [blocks, C] twice, [blocks]: of dg; dbeta */
  T *state;                  /* [blocks, Dk, COLUMNS], or null: in shared memory */
};

template <class T> __global__ void last_kernel(delta s, back<T> k)
{
  part p = part_of(s, blockIdx.x, 0);
  T *d = k.dstate + blockIdx.x * s.Dk * COLUMNS;
  ROW_LOOP(i)
    d[i * COLUMNS + p.lane] =
      p.has && k.dlast.a.data ? row_at<T>(k.dlast, p.b, p.h, i, p.c) : (T)0;
}

template <class T> __global__ void initial_kernel(delta s, back<T> k)
{
  part p = part_of(s, blockIdx.x, 0);
  store_state(s, p, k.dinitial, (p.b * s.Hv + p.h) * s.Dk * s.Dv,
              k.dstate + blockIdx.x * s.Dk * COLUMNS);
}

/* A block's part of one chunk. */
template <class T> struct chunk_part {
  part p;
  int64_t t0, n;
  T *S, *dstate, *u, *du, *part_q, *part_k, *loss, *part_beta, *edge;
  int turn;
};

/* Forwards: u, with r in du. Leaves the state after the chunk. */
template <class T>
TIDE_DEVICE_LONG void chunk_values(const delta &s, const factors<T> &f, const back<T> &k,
                                   chunk_part<T> &w)
{
  const part &p = w.p;
  load_state(s, p, k.states, ((p.b * s.nchunk + k.c) * s.Hv + p.h) * s.Dk * s.Dv, w.S);
  for (int64_t j = 0; j < w.n; j++) {
    int64_t t = w.t0 + j;
    token<T> x = token_at(s, f, p, t);
    T into = 0, none = 0;
    ROW_LOOP(i) into += w.S[i * COLUMNS + p.lane] * row_at<T>(s.k, p.b, t, p.hk, i);
    over_rows(&into, &none, p, s.warps, &w.turn);
    T v = p.has ? row_at<T>(s.v, p.b, t, p.h, p.c) : (T)0, r = v - kept(x.keep, into * x.rk);
    if (p.warp == 0) w.du[j * COLUMNS + p.lane] = r, w.u[j * COLUMNS + p.lane] = x.beta * r;
    ROW_LOOP(i) {
      T *at = w.S + i * COLUMNS + p.lane;
      *at = kept(x.keep, *at) + x.rk * row_at<T>(s.k, p.b, t, p.hk, i) * (x.beta * r);
    }
  }
}

/* Takes the gradient of the state into S, and its product with the state to edge. */
template <class T> TIDE_DEVICE void chunk_edge(const delta &s, chunk_part<T> &w)
{
  const part &p = w.p;
  T sum = 0;
  ROW_LOOP(i) {
    int64_t at = i * COLUMNS + p.lane;
    T d = w.dstate[at];
    sum += w.S[at] * d;
    w.S[at] = d;
  }
  sum = tide_block_sum(sum);
  if (threadIdx.x == 0) *w.edge = sum;
}

/* Backwards: dv, du over r, what the gradient of the state gives to dk and what tokens give to dg
 * and dbeta. Leaves the gradient of the state before the chunk. */
template <class T>
TIDE_DEVICE_LONG void chunk_gradients(const delta &s, const factors<T> &f, const back<T> &k,
                                      chunk_part<T> &w)
{
  const part &p = w.p;
  for (int64_t j = w.n - 1; j >= 0; j--) {
    int64_t t = w.t0 + j, at = j * COLUMNS + p.lane;
    token<T> x = token_at(s, f, p, t);
    T g = p.has ? (T)s.scale * row_at<T>(k.dy, p.b, t, p.h, p.c) : (T)0, du = 0, none = 0;
    ROW_LOOP(i) {
      T *d = w.S + i * COLUMNS + p.lane;
      *d += x.rq * row_at<T>(s.q, p.b, t, p.hk, i) * g;
      du += *d * row_at<T>(s.k, p.b, t, p.hk, i);
    }
    T r = w.du[at], u = w.u[at];
    over_rows(&du, &none, p, s.warps, &w.turn); /* all have read r after it */
    du *= x.rk;
    T dr = x.beta * du, v = p.has ? row_at<T>(s.v, p.b, t, p.h, p.c) : (T)0;
    ROW_LOOP(i) {
      T *d = w.S + i * COLUMNS + p.lane, old = *d;
      *d = kept(x.keep, old - x.rk * row_at<T>(s.k, p.b, t, p.hk, i) * dr);
      T sum = tide_warp_fold(old * u, tide_plus());
      if (p.lane == 0) w.part_k[j * s.Dk + i] = sum;
    }
    if (p.warp == 0) {
      T lost = tide_warp_fold(du * u + dr * (v - r), tide_plus());
      T dbeta = tide_warp_fold(du * r, tide_plus());
      w.du[at] = du;
      if (p.lane == 0) w.loss[j] = -lost, w.part_beta[j] = dbeta;
      if (p.has)
        tide_put<T>(k.dv, ((p.b * s.T + t) * s.Hv + p.h) * s.Dv + p.c, dr);
    }
  }
}

/* Forwards again: dq, the rest of dk and of what tokens give to dg. */
template <class T>
TIDE_DEVICE_LONG void chunk_rows(const delta &s, const factors<T> &f, const back<T> &k,
                                 chunk_part<T> &w)
{
  const part &p = w.p;
  load_state(s, p, k.states, ((p.b * s.nchunk + k.c) * s.Hv + p.h) * s.Dk * s.Dv, w.S);
  for (int64_t j = 0; j < w.n; j++) {
    int64_t t = w.t0 + j, at = j * COLUMNS + p.lane;
    token<T> x = token_at(s, f, p, t);
    T g = p.has ? (T)s.scale * row_at<T>(k.dy, p.b, t, p.h, p.c) : (T)0;
    T u = w.u[at], dr = x.beta * w.du[at], o = 0, none = 0;
    ROW_LOOP(i) {
      T *to = w.S + i * COLUMNS + p.lane, before = kept(x.keep, *to);
      T after = before + x.rk * row_at<T>(s.k, p.b, t, p.hk, i) * u;
      *to = after;
      o += after * row_at<T>(s.q, p.b, t, p.hk, i);
      T dk = tide_warp_fold(before * dr, tide_plus());
      T dq = tide_warp_fold(after * g, tide_plus());
      if (p.lane == 0) w.part_k[j * s.Dk + i] -= dk, w.part_q[j * s.Dk + i] = dq;
    }
    over_rows(&o, &none, p, s.warps, &w.turn);
    if (p.warp != 0) continue;
    T won = tide_warp_fold(x.rq * o * g, tide_plus());
    if (p.lane == 0) w.loss[j] += won;
  }
}

template <class T> __global__ void backward_kernel(delta s, factors<T> f, back<T> k)
{
  TIDE_DYNAMIC_SHARED(shared);
  int64_t block = blockIdx.x, C = k.C, size = s.Dk * COLUMNS;
  int64_t t0 = k.c * s.chunk, n = s.T - t0 < s.chunk ? s.T - t0 : s.chunk;
  T *dstate = k.dstate + (k.b0 * s.Hv * s.tiles + block) * size;
  chunk_part<T> w = {part_of(s, block, k.b0), t0, n,
                     k.state ? k.state + block * size : reinterpret_cast<T *>(shared), dstate,
                     k.u + block * C * COLUMNS, k.du + block * C * COLUMNS,
                     k.part_q + block * C * s.Dk, k.part_k + block * C * s.Dk, k.loss + block * C,
                     k.part_beta + block * C, k.edge + block, 0};
  const part &p = w.p;
  chunk_values(s, f, k, w);
  __syncthreads();
  chunk_edge(s, w);
  chunk_gradients(s, f, k, w);
  ROW_LOOP(i) dstate[i * COLUMNS + p.lane] = w.S[i * COLUMNS + p.lane];
  __syncthreads();
  chunk_rows(s, f, k, w);
}

/* dg and dbeta of a chunk: a thread a (batch, value head). */
template <class T> __global__ void decay_kernel(delta s, back<T> k)
{
  int64_t t0 = k.c * s.chunk, n = s.T - t0 < s.chunk ? s.T - t0 : s.chunk;
  TIDE_GRID_LOOP(i, k.nb * s.Hv) {
    int64_t h = i % s.Hv, b = k.b0 + i / s.Hv, first = i * s.tiles;
    T carry = 0;
    for (int64_t tile = 0; tile < s.tiles; tile++) carry += k.edge[first + tile];
    if (t0 + n < s.T && begins(s, b, t0 + n)) carry = 0;
    for (int64_t j = n - 1; j >= 0; j--) {
      int64_t t = t0 + j, to = (b * s.T + t) * s.Hv + h;
      T dbeta = 0;
      for (int64_t tile = 0; tile < s.tiles; tile++) {
        carry += k.loss[(first + tile) * k.C + j];
        dbeta += k.part_beta[(first + tile) * k.C + j];
      }
      bool fresh = begins(s, b, t) || (t == 0 && !s.initial.a.data);
      if (fresh || tide_exp(row_at<T>(s.g, b, t, h, 0)) == 0) carry = 0;
      tide_put<T>(k.dg, to, carry);
      tide_put<T>(k.dbeta, to, dbeta);
    }
  }
}

/* dq or dk of a chunk: the sum over the heads and tiles, back through the norm. A warp a row. */
template <class T>
__global__ void row_kernel(delta s, back<T> k, rows_view x, const T *factor, const T *parts,
                           tide_array out)
{
  int lane = (int)threadIdx.x & 31;
  int64_t t0 = k.c * s.chunk, n = s.T - t0 < s.chunk ? s.T - t0 : s.chunk;
  int64_t rows = k.nb * n * s.Hk, step = (int64_t)gridDim.x * (blockDim.x >> 5);
  int64_t many = s.group * s.tiles;
  for (int64_t i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5); i < rows; i += step) {
    int64_t hk = i % s.Hk, j = i / s.Hk % n, b = i / s.Hk / n, t = t0 + j;
    const T *first = parts + ((b * s.Hv + hk * s.group) * s.tiles * k.C + j) * s.Dk;
    int64_t to = ((k.b0 + b) * s.T + t) * s.Hk + hk;
    T r = factor ? factor[to] : (T)1, along = 0;
    if (factor)
      for (int64_t d = lane; d < s.Dk; d += 32) {
        T sum = 0;
        for (int64_t m = 0; m < many; m++) sum += first[m * k.C * s.Dk + d];
        along += sum * r * row_at<T>(x, k.b0 + b, t, hk, d);
      }
    along = tide_warp_fold(along, tide_plus());
    for (int64_t d = lane; d < s.Dk; d += 32) {
      T sum = 0;
      for (int64_t m = 0; m < many; m++) sum += first[m * k.C * s.Dk + d];
      T back_through = factor ? r * row_at<T>(x, k.b0 + b, t, hk, d) * along : (T)0;
      tide_put<T>(out, to * s.Dk + d, r * (sum - back_through));
    }
  }
}

/* ---- the kernels ----------------------------------------------------------------------------- */

/* Gives out scratch; a null base only counts. */
template <class T> struct taker {
  T *base;
  int64_t used;
  T *take(int64_t n)
  {
    T *p = base ? base + used : nullptr;
    used += n;
    return p;
  }
};

template <class T> factors<T> take_factors(const delta &s, taker<T> *m)
{
  factors<T> f = {nullptr, nullptr};
  if (!s.l2norm) return f;
  f.q = m->take(s.nb * s.T * s.Hk);
  f.k = m->take(s.nb * s.T * s.Hk);
  return f;
}

/* Runs the op; or, with `need`, only writes there the bytes of scratch that it takes. */
template <class T> int run_forward(const k_call *call, const delta &s, T *work, int64_t *need)
{
  taker<T> m = {work, 0};
  int64_t blocks = s.nb * s.Hv * s.tiles;
  int bytes = shared_bytes<T>(s);
  factors<T> f = take_factors(s, &m);
  T *state = bytes ? nullptr : m.take(blocks * s.Dk * COLUMNS);
  if (need) return *need = m.used * (int64_t)sizeof(T), TIDE_OK;
  int rc = make_factors(call, s, f);
  if (rc < 0 || blocks == 0) return rc;
  results out = {tide_array_of(call->out[0]), tide_array_of(call->out[1]),
                 tide_array_of(call->out[2])};
  TIDE_CUDA_LAUNCH(call, forward_kernel<T>, (unsigned)blocks, s.warps * 32, bytes, s, f, out,
                   state);
  return TIDE_CUDA_LAUNCHED(call);
}

/* Returns the numbers that the parts of one batch take. */
template <class T> int64_t take_parts(const delta &s, back<T> *k, int64_t nb, taker<T> *m)
{
  int64_t blocks = nb * s.Hv * s.tiles, from = m->used;
  k->u = m->take(blocks * k->C * COLUMNS);
  k->du = m->take(blocks * k->C * COLUMNS);
  k->part_q = m->take(blocks * k->C * s.Dk);
  k->part_k = m->take(blocks * k->C * s.Dk);
  k->loss = m->take(blocks * k->C);
  k->part_beta = m->take(blocks * k->C);
  k->edge = m->take(blocks);
  k->state = shared_bytes<T>(s) ? nullptr : m->take(blocks * s.Dk * COLUMNS);
  return m->used - from;
}

template <class T> int run_chunk(const k_call *call, const delta &s, const factors<T> &f,
                                 const back<T> &k)
{
  int64_t n = s.chunk < s.T ? s.chunk : s.T, rows = k.nb * n * s.Hk * 32;
  unsigned blocks = (unsigned)(k.nb * s.Hv * s.tiles);
  int bytes = shared_bytes<T>(s);
  if (blocks > 0)
    TIDE_CUDA_LAUNCH(call, backward_kernel<T>, blocks, s.warps * 32, bytes, s, f, k);
  if (k.nb * s.Hv > 0) TIDE_LAUNCH(decay_kernel<T>, k.nb * s.Hv, call, s, k);
  if (rows * s.Dk > 0) {
    TIDE_LAUNCH(row_kernel<T>, rows, call, s, k, s.q, f.q, k.part_q, k.dq);
    TIDE_LAUNCH(row_kernel<T>, rows, call, s, k, s.k, f.k, k.part_k, k.dk);
  }
  return TIDE_CUDA_LAUNCHED(call);
}

template <class T> int run_backward(const k_call *call, const delta &s, T *work, int64_t *need)
{
  const k_tensor *in = call->in, *out = call->out;
  taker<T> m = {work, 0}, one = {nullptr, 0};
  back<T> k = {rows_of(in[IN_DY]), rows_of(in[IN_DLAST]), tide_array_of(in[IN_STATES]),
               tide_array_of(out[OUT_Q]), tide_array_of(out[OUT_K]), tide_array_of(out[OUT_V]),
               tide_array_of(out[OUT_G]), tide_array_of(out[OUT_BETA]),
               tide_array_of(out[OUT_INITIAL]), 0, 0, 0, s.chunk < s.T ? s.chunk : s.T, nullptr,
               nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  factors<T> f = take_factors(s, &m);
  int64_t all = s.nb * s.Hv * s.tiles, each = take_parts(s, &k, 1, &one) * (int64_t)sizeof(T);
  int64_t most = each > 0 && TIDE_CUDA_DELTA_BYTES / each > 0 ? TIDE_CUDA_DELTA_BYTES / each : 1;
  if (most > s.nb) most = s.nb;
  k.dstate = m.take(all * s.Dk * COLUMNS);
  take_parts(s, &k, most, &m);
  if (need) return *need = m.used * (int64_t)sizeof(T), TIDE_OK;
  int rc = make_factors(call, s, f);
  if (rc < 0) return rc;
  if (all > 0) TIDE_CUDA_LAUNCH(call, last_kernel<T>, (unsigned)all, s.warps * 32, 0, s, k);
  for (k.c = s.nchunk - 1; k.c >= 0; k.c--)
    for (k.b0 = 0; k.b0 < s.nb; k.b0 += most) {
      k.nb = s.nb - k.b0 < most ? s.nb - k.b0 : most;
      rc = run_chunk(call, s, f, k);
      if (rc < 0) return rc;
    }
  if (all > 0) TIDE_CUDA_LAUNCH(call, initial_kernel<T>, (unsigned)all, s.warps * 32, 0, s, k);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int64_t k_cuda_gated_delta_work(const k_call *call)
{
  delta s = delta_of(call, call->in);
  int64_t need = 0;
  TIDE_BY_REAL(call->in[0].dtype, run_forward<T>(call, s, nullptr, &need));
  return need;
}

int k_cuda_gated_delta(const k_call *call)
{
  delta s = delta_of(call, call->in);
  int rc = tide_sequence_check(call, call->in[6]);
  if (rc < 0) return rc;
  TIDE_BY_REAL(call->in[0].dtype,
               return run_forward<T>(call, s, static_cast<T *>(call->work), nullptr));
}

int64_t k_cuda_gated_delta_bwd_work(const k_call *call)
{
  delta s = delta_of(call, call->in + IN_Q);
  int64_t need = 0;
  TIDE_BY_REAL(call->in[IN_Q].dtype, run_backward<T>(call, s, nullptr, &need));
  return need;
}

int k_cuda_gated_delta_bwd(const k_call *call)
{
  delta s = delta_of(call, call->in + IN_Q);
  int rc = tide_sequence_check(call, call->in[7]);
  if (rc < 0) return rc;
  TIDE_BY_REAL(call->in[IN_Q].dtype,
               return run_backward<T>(call, s, static_cast<T *>(call->work), nullptr));
}
