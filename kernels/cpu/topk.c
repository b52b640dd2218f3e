/* Fast topk, as defined in kernels/ref/topk.c.
 *
 * One pass over a row keeps the first k elements seen so far as a heap, in the row of the result;
 * its root is the last of them. An element that does not precede the root is skipped, 16 at a
 * time: of a random row of n elements about k ln(n / k) reach the heap. The heap is then sorted in
 * place. No scratch; n log k operations at most.
 *
 * An entry of the heap is a number that is larger the earlier the element is in the order: its
 * value, mapped to 32 ordered bits, above its position, inverted. An element of 64 bits, or of a
 * row of 2^32 and more, has its position as entry; entries are compared by reading the elements.
 */
#include "kernels/cpu/loop.h"
#include "kernels/ref/order.h"

typedef struct topk_job {
  const k_tensor *x;
  cpu_stream rows; /* first elements of rows */
  int64_t *index;  /* [rows, k] */
  int64_t n, k, step;
  int form, smallest, wide; /* wide: entries are positions */
} topk_job;

/* A row: its offset in x and its heap. */
typedef struct topk_row { const topk_job *job; int64_t base; uint64_t *heap; } topk_row;

/* Maps a value to bits in its order. Both zeros are equal, and so are all NaNs. */
static uint32_t order_bits(const topk_row *r, int64_t at)
{
  const topk_job *job = r->job;
  const uint32_t sign = (uint32_t)1 << 31;
  const int64_t from = r->base + at * job->step;
  uint32_t bits;
  if (job->form == TIDE_I64) {
    bits = (uint32_t)ref_get_int(job->x, from) ^ sign;
  } else {
    const float v = (float)ref_get(job->x, from) + 0.0f;
    bits = tide__f32_bits(v);
    bits = v != v ? UINT32_MAX : bits & sign ? ~bits : bits | sign;
  }
  return job->smallest ? ~bits : bits;
}

TIDE_INLINE uint64_t entry_of(const topk_row *r, int64_t at, int wide)
{
  return wide ? (uint64_t)at : (uint64_t)order_bits(r, at) << 32 | (UINT32_MAX - (uint32_t)at);
}

TIDE_INLINE int64_t position_of(uint64_t entry, int wide)
{
  return wide ? (int64_t)entry : (int64_t)(UINT32_MAX - (uint32_t)entry);
}

TIDE_INLINE int precedes(const topk_row *r, uint64_t a, uint64_t b, int wide)
{
  const topk_job *job = r->job;
  if (!wide) return a > b;
  return ref_precedes(job->x, r->base, job->step, (int64_t)a, (int64_t)b, job->smallest);
}

/* Moves an entry from `at` down to where no child follows it. */
TIDE_INLINE void sift_down(const topk_row *r, int64_t at, int64_t size, int wide)
{
  uint64_t *heap = r->heap, moved = heap[at];
  for (int64_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
    if (child + 1 < size && precedes(r, heap[child], heap[child + 1], wide)) child++;
    if (!precedes(r, moved, heap[child], wide)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moved;
}

/* Returns the first position from `from` on that may precede `bound`, or n. NaN on either side
 * may. */
#define TOPK_SKIP(name, T) \
  TIDE_LEVELS(int64_t, name, (const void *xv, int64_t from, int64_t n, T bound, int smallest), \
              (xv, from, n, bound, smallest)) \
  { \
    const T *x = xv; \
    for (; from + 16 <= n; from += 16) { \
      int any = 0; \
      if (smallest) \
        for (int i = 0; i < 16; i++) any |= !(x[from + i] >= bound); \
      else \
        for (int i = 0; i < 16; i++) any |= !(x[from + i] <= bound); \
      if (any) break; \
    } \
    while (from < n && (smallest ? x[from] >= bound : x[from] <= bound)) from++; \
    return from; \
  }
TOPK_SKIP(skip_f32, float)
TOPK_SKIP(skip_f64, double)
TOPK_SKIP(skip_i64, int64_t)

static int64_t next_offer(const topk_row *r, const void *x, int64_t from, int64_t n)
{
  const topk_job *job = r->job;
  const int64_t root = r->base + position_of(r->heap[0], job->wide) * job->step;
  if (job->form == TIDE_I64) return skip_i64(x, from, n, ref_get_int(job->x, root), job->smallest);
  const double bound = ref_get(job->x, root);
  return job->form == TIDE_F64 ? skip_f64(x, from, n, bound, job->smallest)
                               : skip_f32(x, from, n, (float)bound, job->smallest);
}

/* Offers the elements [at, at + n) to the heap. */
TIDE_INLINE void offer(const topk_row *r, const void *x, int64_t at, int64_t n, int wide)
{
  for (int64_t i = next_offer(r, x, 0, n); i < n; i = next_offer(r, x, i + 1, n)) {
    const uint64_t entry = entry_of(r, at + i, wide);
    if (!precedes(r, entry, r->heap[0], wide)) continue;
    r->heap[0] = entry;
    sift_down(r, 0, r->job->k, wide);
  }
}

/* Sorts the heap and leaves positions in its place. */
TIDE_INLINE void sort_heap(const topk_row *r, int wide)
{
  for (int64_t end = r->job->k - 1; end > 0; end--) {
    const uint64_t last = r->heap[0];
    r->heap[0] = r->heap[end];
    r->heap[end] = last;
    sift_down(r, 0, end, wide);
  }
  for (int64_t j = 0; j < r->job->k; j++) r->heap[j] = (uint64_t)position_of(r->heap[j], wide);
}

TIDE_INLINE void find_row(const topk_row *r, int wide)
{
  const topk_job *job = r->job;
  const k_tensor row = { .data = (char *)job->x->data + r->base * job->rows.size, .ndim = 1,
                         .dtype = job->x->dtype, .shape = { job->n }, .stride = { job->step } };
  _Alignas(64) cpu_chunk buf;
  cpu_stream s;
  tide__stream_init(&s, &row);
  for (int64_t j = 0; j < job->k; j++) r->heap[j] = entry_of(r, j, wide);
  for (int64_t j = job->k / 2 - 1; j >= 0; j--) sift_down(r, j, job->k, wide);
  for (int64_t at = job->k; at < job->n; at += LOOP_CHUNK) {
    const int64_t n = job->n - at < LOOP_CHUNK ? job->n - at : LOOP_CHUNK;
    offer(r, tide__stream_read(&s, job->form, at, n, &buf), at, n, wide);
  }
  sort_heap(r, wide);
}

static void topk_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const topk_job *job = arg;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    const topk_row r = { job, tide__stream_offset(&job->rows, i),
                         (uint64_t *)job->index + i * job->k };
    if (job->wide) find_row(&r, 1);
    else find_row(&r, 0);
  }
}

int k_cpu_topk(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  const int last = x->ndim - 1;
  topk_job job = { .x = x, .index = y->data, .n = x->shape[last], .k = y->shape[last],
                   .step = x->stride[last] };
  if (job.k == 0) return TIDE_OK;
  job.smallest = ((const k_topk_attrs *)call->attrs)->smallest;
  job.form = x->dtype == TIDE_F64 ? TIDE_F64 : ref_is_float(x) ? TIDE_F32 : TIDE_I64;
  job.wide = x->dtype == TIDE_F64 || x->dtype == TIDE_I64 || job.n > UINT32_MAX;
  k_tensor rows = *x;
  int64_t nrow = 1;
  rows.ndim = last;
  for (int d = 0; d < last; d++) nrow *= x->shape[d];
  tide__stream_init(&job.rows, &rows);
  tide__pool_for(call->nthread, nrow, loop_grain(job.n), topk_rows, &job);
  return TIDE_OK;
}
