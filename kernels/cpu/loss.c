/* cross_entropy and its backward, and the two row functions they share with linear_loss.c.
 *
 * A row is read in pieces that fit the first-level cache. Each piece is widened if it is of a
 * 16-bit type, its maximum updates the running one, and its exponentials are added to a running sum
 * that is scaled down whenever the maximum grows (Milakov and Gimelshein, arXiv 1805.02867). So the
 * forward reads memory once. The backward finds the maximum of a row again, then reads the row from
 * the cache and writes its gradient. Large gradients are written with non-temporal stores, which
 * saves reading what is overwritten.
 *
 * Each piece sums in f32 over LANES partial sums, the pieces in f64: a chain of f32 additions is
 * short on every machine, so its rounding is that of a few terms. A row belongs to one thread.
 *
 * Row strides of the logits are free. (kernels/ref computes f64 logits.)
 */
#include "kernels/cpu/loss.h"
#include "kernels/cpu/row.h"
#include "kernels/ref/loss.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum {
  PIECE = LOSS_PIECE,
  BLOCK = 32,            /* elements streamed at a time: whole lines of any type */
  LINE = 64,             /* bytes of a cache line */
  VEC = 16,              /* elements of a vec */
  LANES = 4 * VEC,       /* partial sums of a piece, for any vector width */
  GRAIN = 16384,         /* elements per thread at least */
  STREAM_BYTES = 8 << 20 /* results from this size on bypass the caches */
};

static const float *read_piece(const void *z, int dtype, int64_t i, float *tmp, int64_t n)
{
  if (dtype == TIDE_F32) return (const float *)z + i;
  row_widen(tmp, (const uint16_t *)z + i, dtype, n);
  return tmp;
}

static float read_one(const void *z, int dtype, int64_t i)
{
  float value;
  return *read_piece(z, dtype, i, &value, 1);
}

/* ---- the loops over one piece --------------------------------------------------------------- */

TIDE_LEVELS(float, max_of, (const float *z, int64_t n), (z, n))
{
  return tide__max_f32_n(z, n, -INFINITY);
}

/* Sign and magnitude as a two's complement integer of the same order, and back. */
TIDE_INLINE int16_t ordered(int16_t bits) { return (int16_t)(bits ^ ((bits >> 15) & 0x7fff)); }

/* Returns the bits of the maximum of a 16-bit type. A NaN counts as beyond the infinity of its
 * sign. */
TIDE_LEVELS(uint16_t, max_of_half, (const uint16_t *z, int64_t n), (z, n))
{
  int16_t max = INT16_MIN;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; i++) {
    int16_t key = ordered((int16_t)z[i]);
    max = key > max ? key : max;
  }
  return (uint16_t)ordered(max);
}

/* Sums in registers: an array that a vectorised loop adds to stays in memory. */
typedef float vec __attribute__((vector_size(VEC * sizeof(float)), aligned(sizeof(float)),
                                 may_alias));

TIDE_INLINE void vec_add(vec *sum, const float *x) { *sum += *(const vec *)x; }

/* Returns the sum of exp(z - max) over n elements, which it writes to e, and the maximum of n more:
 * the second piece is fetched from memory while the first is computed. e may be z. (The constants
 * of the exponential and the sums are more than the registers hold, so one loop follows the other.)
 */
TIDE_LEVELS(double, sum_of_exp,
            (float *e, const float *z, float max, const float *next, float *next_max, int64_t n),
            (e, z, max, next, next_max, n))
{
  float part[VEC];
  vec s0 = { 0 }, s1 = { 0 }, s2 = { 0 }, s3 = { 0 };
  double sum = 0;
  int64_t i = 0;
  for (; i < n; i += LINE / (int64_t)sizeof(float)) __builtin_prefetch(next + i);
#pragma omp simd
  for (i = 0; i < n; i++) e[i] = vec_exp(z[i] - max);
  for (i = 0; i + LANES <= n; i += LANES) {
    vec_add(&s0, e + i);
    vec_add(&s1, e + i + VEC);
    vec_add(&s2, e + i + 2 * VEC);
    vec_add(&s3, e + i + 3 * VEC);
  }
  for (; i < n; i++) sum += e[i];
  s0 = (s0 + s1) + (s2 + s3);
  memcpy(part, &s0, sizeof part);
  for (int l = 0; l < VEC; l++) sum += part[l];
  *next_max = tide__max_f32_n(next, n, -INFINITY);
  return sum;
}

/* In f64, where a constant common to the logits costs no accuracy and large ones do not
 * overflow. */
TIDE_LEVELS(double, sum_of, (const float *z, int64_t n), (z, n))
{
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += z[i];
  return sum;
}

/* grad may be z. */
TIDE_LEVELS(void, grad_piece,
            (float *grad, const float *z, loss_slope s, int64_t n), (grad, z, s, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) grad[i] = s.exp_scale * vec_exp(z[i] - s.max) - s.shift;
}

/* Copies one block to a 64-aligned address with non-temporal stores. */
TIDE_INLINE void stream_block(void *dst, const void *src, int64_t nbytes)
{
#if defined(__SSE2__)
  for (int64_t i = 0; i < nbytes; i += 16) {
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)((const char *)src + i));
    _mm_stream_si128((__m128i *)(void *)((char *)dst + i), v);
  }
#else
  memcpy(dst, src, (size_t)nbytes);
#endif
}

/* grad_piece with non-temporal stores, for whole blocks. Blocks are small: a long burst of such
 * stores stalls. */
TIDE_LEVELS(void, grad_stream_f32,
            (float *grad, const float *z, loss_slope s, int64_t n), (grad, z, s, n))
{
  float block[BLOCK];
  for (int64_t j = 0; j < n; j += BLOCK) {
#pragma omp simd
    for (int64_t i = 0; i < BLOCK; i++)
      block[i] = s.exp_scale * vec_exp(z[j + i] - s.max) - s.shift;
    stream_block(grad + j, block, sizeof block);
  }
}

/* ---- rows in pieces ------------------------------------------------------------------------- */

loss_sum tide__loss_sum_empty(void)
{
  loss_sum s = { -INFINITY, 0, 0 };
  return s;
}

static void raise_max(loss_sum *s, float max)
{
  if (!(max > s->max)) return;
  if (s->max > -INFINITY) s->exps *= exp((double)s->max - max);
  s->max = max;
}

/* Adds a row or a part of one. With bases, f32 logits become exponentials in place, and the base of
 * each piece goes there. */
static void add_pieces(loss_sum *s, const void *z, int dtype, int64_t n, int wants_all,
                       float *bases)
{
  float buffer[2][PIECE], e[PIECE], max;
  int64_t len = n < PIECE ? n : PIECE;
  const float *piece = read_piece(z, dtype, 0, buffer[0], len);
  max = max_of(piece, len);
  for (int64_t i = 0, odd = 1; i < n; odd = !odd) {
    int64_t left = n - i - len, next_len = left < len ? left : len;
    /* The next piece; before a shorter one or the end, this one again. */
    const float *next = piece;
    if (next_len > 0) next = read_piece(z, dtype, i + len, buffer[odd], next_len);
    if (wants_all) s->all += sum_of(piece, len);
    raise_max(s, max);
    /* All -inf so far: they add nothing, but a NaN among them, which no maximum shows, does. */
    float base = s->max > -INFINITY ? s->max : 0.0f;
    if (bases) *bases++ = base;
    s->exps += sum_of_exp(bases ? (float *)piece : e, piece, base, next_len == len ? next : piece,
                          &max, len);
    if (next_len < len) max = max_of(next, next_len);
    i += len;
    len = next_len;
    piece = next;
  }
}

void tide__loss_sum_add(loss_sum *s, const void *z, int dtype, int64_t n, int wants_all)
{
  add_pieces(s, z, dtype, n, wants_all, 0);
}

void tide__loss_sum_exp(loss_sum *s, float *z, int64_t n, int wants_all, float *bases)
{
  add_pieces(s, z, TIDE_F32, n, wants_all, bases);
}

loss_norm tide__loss_sum_norm(const loss_sum *s)
{
  loss_norm norm = { s->max > -INFINITY ? s->max : 0.0f, log(s->exps) };
  return norm;
}

double tide__loss_value(float z_target, loss_norm norm, double all, int64_t nclass,
                        const k_cross_entropy_attrs *attrs)
{
  double eps = attrs->label_smoothing, max = norm.max, lse = max + norm.logsum;
  double loss = (1 - eps) * ((max - z_target) + norm.logsum);
  if (eps != 0) loss += eps * ((max - all / (double)nclass) + norm.logsum);
  return attrs->z_loss != 0 ? loss + attrs->z_loss * lse * lse : loss;
}

/* Takes exp(-logsum) once, so an element costs one subtraction before its exponential. */
loss_slope tide__loss_slope(loss_norm norm, double scale, int64_t nclass,
                            const k_cross_entropy_attrs *attrs)
{
  double eps = attrs->label_smoothing, lse = norm.max + norm.logsum;
  double exp_scale = scale * (1 + 2 * attrs->z_loss * lse) * exp(-norm.logsum);
  loss_slope s = { .max = norm.max, .exp_scale = (float)exp_scale,
                   .shift = (float)(scale * eps / (double)nclass),
                   .target_shift = (float)(scale * (1 - eps)) };
  return s;
}

/* Destination of a piece of the gradient. */
typedef struct sink { void *grad; int dtype, stream; } sink;

/* Computes a piece whose gradient is not written in place. */
static void grad_by_buffer(sink to, const float *z, int64_t n, int64_t target, loss_slope slope)
{
  float wide[PIECE];
  uint16_t half[PIECE];
  grad_piece(wide, z, slope, n);
  if (target >= 0 && target < n) wide[target] -= slope.target_shift;
  if (!to.stream) {
    row_narrow(to.grad, wide, to.dtype, n);
  } else if (to.dtype == TIDE_F32) {
    stream_block(to.grad, wide, n * (int64_t)sizeof(float));
  } else {
    row_narrow(half, wide, to.dtype, n);
    stream_block(to.grad, half, n * (int64_t)sizeof(uint16_t));
  }
}

static void grad_at(sink to, const float *z, int64_t n, int64_t target, loss_slope slope)
{
  int here = target >= 0 && target < n;
  if (to.dtype != TIDE_F32 || (to.stream && here)) {
    grad_by_buffer(to, z, n, target, slope);
  } else if (to.stream) {
    grad_stream_f32(to.grad, z, slope, n);
  } else {
    grad_piece(to.grad, z, slope, n);
    if (here) ((float *)to.grad)[target] -= slope.target_shift;
  }
}

/* Returns the bytes from p to the next cache line. */
static int64_t to_line(const void *p) { return (int64_t)(-(uintptr_t)p & (LINE - 1u)); }

/* Returns the elements of the next piece: with streaming, first up to a line, then whole blocks,
 * then the rest, because ordinary and streaming stores to one line are slow together. */
static int64_t next_length(sink to, int64_t left)
{
  int64_t len = left < PIECE ? left : PIECE;
  int64_t head = to_line(to.grad) / vec_size(to.dtype);
  if (!to.stream) return len;
  if (head > 0) return head < len ? head : len;
  return len >= BLOCK ? len / BLOCK * BLOCK : len;
}

/* Prefetches n elements from i on; does nothing if z is null. */
static void fetch_piece(const void *z, int dtype, int64_t i, int64_t n)
{
  int64_t size = vec_size(dtype);
  if (!z) return;
  for (int64_t at = i * size; at < (i + n) * size; at += LINE)
    __builtin_prefetch((const char *)z + at, 0, 2);
}

void tide__loss_grad(void *grad, int grad_dtype, const void *z, int dtype, int64_t n,
                     int64_t target, loss_slope slope, int stream, const void *next)
{
  float tmp[PIECE];
  for (int64_t i = 0, len = 0; i < n; i += len) {
    sink to = { (char *)grad + i * vec_size(grad_dtype), grad_dtype, stream };
    len = next_length(to, n - i);
    fetch_piece(next, dtype, i, len);
    to.stream = stream && to_line(to.grad) == 0 && len % BLOCK == 0;
    grad_at(to, read_piece(z, dtype, i, tmp, len), len, target - i, slope);
  }
}

/* grad may be e. */
TIDE_LEVELS(void, scale_piece,
            (float *grad, const float *e, float scale, float shift, int64_t n),
            (grad, e, scale, shift, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) grad[i] = scale * e[i] - shift;
}

void tide__loss_grad_of_exp(void *grad, int grad_dtype, const float *e, const float *bases,
                            int64_t n, int64_t target, loss_slope s)
{
  float tmp[PIECE];
  for (int64_t i = 0, len; i < n; i += len) {
    float *to = grad_dtype == TIDE_F32 ? (float *)grad + i : tmp;
    /* The base of a piece after nothing but -inf may be above max: its exponentials are 0. */
    float scale = s.exp_scale * expf(fminf(bases[i / PIECE] - s.max, 0));
    len = i64_min(PIECE, n - i);
    scale_piece(to, e + i, scale, s.shift, len);
    if (target >= i && target < i + len) to[target - i] -= s.target_shift;
    if (to == tmp) row_narrow((uint16_t *)grad + i, tmp, grad_dtype, len);
  }
}

void tide__loss_stream_end(int stream)
{
#if defined(__SSE2__)
  if (stream) _mm_sfence();
#else
  (void)stream;
#endif
}

/* ---- the ops -------------------------------------------------------------------------------- */

static void loss_fwd_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const k_call *call = arg;
  const k_cross_entropy_attrs *attrs = call->attrs;
  const k_tensor *logits = &call->in[0];
  float *loss = call->out[0].data, *logsum = call->out[1].data;
  int64_t nclass = logits->shape[1];
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t target = loss_counted(attrs, &call->in[1], i);
    loss[i] = logsum[i] = 0;
    if (target < 0) continue;
    const void *z = row_at(logits, i * logits->stride[0]);
    loss_sum sum = tide__loss_sum_empty();
    tide__loss_sum_add(&sum, z, logits->dtype, nclass, attrs->label_smoothing != 0);
    loss_norm norm = tide__loss_sum_norm(&sum);
    logsum[i] = (float)norm.logsum;
    float z_target = read_one(z, logits->dtype, target);
    loss[i] = (float)tide__loss_value(z_target, norm, sum.all, nclass, attrs);
  }
}

/* Returns the maximum as the forward found it, and 0 if all is -inf. (With a NaN any value will do:
 * logsum is NaN.) */
static float loss_row_max(const void *z, int dtype, int64_t n)
{
  float max;
  if (dtype == TIDE_F32) {
    max = max_of(z, n);
  } else {
    uint16_t bits = max_of_half(z, n);
    max = dtype == TIDE_BF16 ? tide__bf16_to_f32(bits) : tide__f16_to_f32(bits);
  }
  return max == -INFINITY ? 0.0f : max;
}

static float f32_at(const k_tensor *t, int64_t i)
{
  return ((const float *)t->data)[i * t->stride[0]];
}

static void bwd_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const k_call *call = arg;
  const k_tensor *dloss = &call->in[0], *logits = &call->in[1], *logsum = &call->in[3];
  const k_tensor *out = &call->out[0];
  int64_t nclass = logits->shape[1], row_bytes = nclass * vec_size(out->dtype);
  int stream = logits->shape[0] * row_bytes >= STREAM_BYTES;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t target = loss_counted(call->attrs, &call->in[2], i);
    void *grad = row_at(out, i * out->stride[0]);
    if (target < 0) {
      memset(grad, 0, (size_t)row_bytes);
      continue;
    }
    const void *z = row_at(logits, i * logits->stride[0]);
    loss_norm norm = { loss_row_max(z, logits->dtype, nclass), f32_at(logsum, i) };
    loss_slope s = tide__loss_slope(norm, f32_at(dloss, i), nclass, call->attrs);
    /* f32 already saturates memory. */
    int ahead = logits->dtype != TIDE_F32 && i + 1 < end;
    const void *next = ahead ? row_at(logits, (i + 1) * logits->stride[0]) : 0;
    tide__loss_grad(grad, out->dtype, z, logits->dtype, nclass, target, s, stream, next);
  }
  tide__loss_stream_end(stream);
}

static int loss_run(const k_call *call, const k_tensor *logits, const k_tensor *targets,
                    tide__pool_fn body)
{
  int64_t nclass = logits->shape[1];
  int status = loss_check_targets(call, targets, nclass);
  if (status < 0) return status;
  int64_t grain = GRAIN / (nclass > 1 ? nclass : 1) + 1;
  tide__pool_for(call->nthread, logits->shape[0], grain, body, (void *)call);
  return TIDE_OK;
}

int k_cpu_cross_entropy(const k_call *call)
{
  return loss_run(call, &call->in[0], &call->in[1], loss_fwd_rows);
}

int k_cpu_cross_entropy_bwd(const k_call *call)
{
  return loss_run(call, &call->in[1], &call->in[2], bwd_rows);
}
