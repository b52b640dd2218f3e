/* Index tensors of sharded sequences: head-tail layouts, lists of runs and their inverses, and what
 * attention and state-space layers read of a packed stream: the (document, position) pairs of its
 * tokens, in padded slots or not, and the numbers of its sequences.
 *
 * A map is written run by run, so a million indices cost a million additions and no look-ups; the
 * inverse is the same walk with index and position exchanged. All maps are made on the host, once
 * per batch, and then copied to the device of their argument. Every input is checked before
 * anything is written.
 */
#include "core/op/derivative.h"
#include "core/op/operand.h"

/* ---- host copies of index tensors ------------------------------------------------------------ */

/* Returns x as dense i64 on the host; the caller releases *held. */
static int host_ints(tide_tensor **held, tide_tensor *x, const char *op, const char *arg)
{
  tide__temps v = {0};
  *held = NULL;
  TIDE_TRY(tide__check_index(x, op, arg));
  tide_tensor *t = TIDE__TEMP(&v, tide_cast, x, TIDE_I64);
  t = TIDE__TEMP(&v, tide_to_device, t, TIDE_DEV_CPU);
  TIDE__DO(&v, tide_contiguous(held, t));
  return tide__relabel(x->ctx, tide__temps_end(&v), op);
}

/* Makes a host tensor of n i64, for indices that end up as dtype. largest: the greatest value that
 * will be written. */
static int open_index(tide_tensor **made, tide_ctx *ctx, int64_t n, int64_t largest, int dtype,
                      const char *op)
{
  if (dtype != TIDE_I64 && dtype != TIDE_I32)
    return tide__fail(ctx, TIDE_E_DTYPE, op, "dtype: expected i64 or i32, got %s",
                      tide_dtype_name(dtype));
  if (dtype == TIDE_I32 && largest > INT32_MAX)
    return tide__fail(ctx, TIDE_E_ARG, op, "dtype: i32 cannot hold index %lld; ask for i64",
                      (long long)largest);
  return tide_empty(made, ctx, TIDE_DEV_CPU, TIDE_I64, 1, &n);
}

/* Writes values first, first + 1, ... at indices at, at + 1, ... */
static inline void put_run(int64_t *to, int64_t at, int64_t first, int64_t n)
{
  for (int64_t i = 0; i < n; i++) to[at + i] = first + i;
}

/* Moves the result, as dtype, to the device of `like` and releases the host tensor. */
static int cp_map_finish(tide_tensor **out, tide_tensor *made, const tide_tensor *like, int dtype,
                         int rc)
{
  tide__temps v = {.rc = rc};
  tide_tensor *t = TIDE__TEMP(&v, tide_cast, made, dtype);
  TIDE__DO(&v, tide_to_device(out, t, like->storage->device));
  tide_tensor_release(made);
  return tide__temps_end(&v);
}

/* Checks that cu starts at 0 and never decreases, and that every length is a multiple of `unit`. */
static int check_cu(const tide_tensor *cu, const int64_t *c, int64_t n, int64_t unit,
                    const char *op, const char *arg)
{
  if (c[0] != 0)
    return tide__fail(cu->ctx, TIDE_E_ARG, op, "%s: expected 0 first, got %lld", arg,
                      (long long)c[0]);
  for (int64_t i = 0; i + 1 < n; i++) {
    if (c[i + 1] < c[i])
      return tide__fail(cu->ctx, TIDE_E_ARG, op, "%s: decreases from %lld to %lld after document "
                        "%lld", arg, (long long)c[i], (long long)c[i + 1], (long long)i);
    if ((c[i + 1] - c[i]) % unit)
      return tide__fail(cu->ctx, TIDE_E_ARG, op, "%s: document %lld has %lld tokens, expected a "
                        "multiple of %lld", arg, (long long)i, (long long)(c[i + 1] - c[i]),
                        (long long)unit);
  }
  return TIDE_OK;
}

static int cp_map_check_list(const tide_tensor *t, const char *op, const char *arg)
{
  if (t->ndim == 1 && t->shape[0] >= 1) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_SHAPE, op, "%s: expected [ndoc + 1], got %s", arg,
                    TIDE__SHAPE_OF(t));
}

/* ---- head-tail ------------------------------------------------------------------------------- */

/* Writes the runs of one rank, from index `at` on. A document is 2 * size chunks; the rank has
 * number `rank` from its head and from its tail. inverse: index by position, not the reverse. */
static void zigzag_rank(int64_t *to, const int64_t *c, int64_t n, int64_t size, int64_t rank,
                        int64_t at, bool inverse)
{
  for (int64_t d = 0; d + 1 < n; d++) {
    int64_t chunk = (c[d + 1] - c[d]) / (2 * size);
    for (int half = 0; half < 2; half++, at += chunk) {
      int64_t start = c[d] + chunk * (half ? 2 * size - 1 - rank : rank);
      if (inverse) put_run(to, start, at, chunk);
      else put_run(to, at, start, chunk);
    }
  }
}

static int check_ranks(const tide_tensor *cu, int64_t size, int64_t rank, const char *op)
{
  if (size < 1 || size > INT32_MAX || rank < -1 || rank >= size)
    return tide__fail(cu->ctx, TIDE_E_ARG, op, "size and rank: expected size >= 1 and a rank below "
                      "it (or -1 for all), got %lld and %lld", (long long)size, (long long)rank);
  return TIDE_OK;
}

static int zigzag(tide_tensor **out, tide_tensor *cu, int64_t size, int64_t rank, int dtype,
                  bool inverse, const char *op)
{
  tide_tensor *held = NULL, *made = NULL;
  *out = NULL;
  TIDE_TRY(cp_map_check_list(cu, op, "cu"));
  TIDE_TRY(check_ranks(cu, size, rank, op));
  TIDE_TRY(host_ints(&held, cu, op, "cu"));
  const int64_t *c = tide_tensor_data(held);
  int64_t n = cu->shape[0], total = c[n - 1];
  int rc = check_cu(cu, c, n, 2 * size, op, "cu");
  if (rc == TIDE_OK)
    rc = open_index(&made, cu->ctx, rank < 0 ? total : total / size, total - 1, dtype, op);
  int64_t *to = rc == TIDE_OK ? tide_tensor_data(made) : NULL;
  if (to && rank >= 0) zigzag_rank(to, c, n, size, rank, 0, inverse);
  for (int64_t r = 0; to && rank < 0 && r < size; r++)
    zigzag_rank(to, c, n, size, r, r * (total / size), inverse);
  tide_tensor_release(held);
  return cp_map_finish(out, made, cu, dtype, rc);
}

int tide_zigzag_index(tide_tensor **out, tide_tensor *cu, int64_t size, int64_t rank, int dtype)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, cu));
  return zigzag(out, cu, size, rank, dtype, false, "zigzag_index");
}

int tide_zigzag_places(tide_tensor **out, tide_tensor *cu, int64_t size, int dtype)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, cu));
  return zigzag(out, cu, size, -1, dtype, true, "zigzag_places");
}

/* ---- runs and inverses ----------------------------------------------------------------------- */

/* Returns the sum of the lengths and the greatest position; fails on negative numbers. */
static int measure_runs(tide_ctx *ctx, const int64_t *r, int64_t n, int64_t *total,
                        int64_t *largest)
{
  *total = 0;
  *largest = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t start = r[2 * i], len = r[2 * i + 1];
    if (start < 0 || len < 0 || start > INT64_MAX / 4 || len > INT64_MAX / 4 - *total)
      return tide__fail(ctx, TIDE_E_ARG, "run_index", "run %lld: expected a start and a length "
                        ">= 0, got %lld and %lld", (long long)i, (long long)start,
                        (long long)len);
    *total += len;
    if (len && start + len - 1 > *largest) *largest = start + len - 1;
  }
  return TIDE_OK;
}

int tide_run_index(tide_tensor **out, tide_tensor *runs, int dtype)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, runs));
  tide_tensor *held = NULL, *made = NULL;
  int64_t total = 0, largest = 0;
  if (runs->ndim != 2 || runs->shape[1] != 2)
    return tide__fail(runs->ctx, TIDE_E_SHAPE, "run_index", "runs: expected [n, 2] of (start, "
                      "length), got %s", TIDE__SHAPE_OF(runs));
  TIDE_TRY(host_ints(&held, runs, "run_index", "runs"));
  const int64_t *r = tide_tensor_data(held);
  int64_t n = runs->shape[0], at = 0;
  int rc = measure_runs(runs->ctx, r, n, &total, &largest);
  if (rc == TIDE_OK) rc = open_index(&made, runs->ctx, total, largest, dtype, "run_index");
  int64_t *to = rc == TIDE_OK ? tide_tensor_data(made) : NULL;
  for (int64_t i = 0; to && i < n; at += r[2 * i + 1], i++) put_run(to, at, r[2 * i], r[2 * i + 1]);
  tide_tensor_release(held);
  return cp_map_finish(out, made, runs, dtype, rc);
}

/* Sets at[value] to the index of each value. */
static int invert(tide_tensor *index, const int64_t *v, int64_t n, int64_t *at)
{
  for (int64_t i = 0; i < n; i++) at[i] = -1;
  for (int64_t i = 0; i < n; i++) {
    if (v[i] < 0 || v[i] >= n)
      return tide__fail(index->ctx, TIDE_E_ARG, "inverse_index", "index: entry %lld is %lld, "
                        "outside 0 .. %lld", (long long)i, (long long)v[i], (long long)n - 1);
    if (at[v[i]] >= 0)
      return tide__fail(index->ctx, TIDE_E_ARG, "inverse_index", "index: %lld occurs twice, at "
                        "%lld and %lld", (long long)v[i], (long long)at[v[i]], (long long)i);
    at[v[i]] = i;
  }
  return TIDE_OK;
}

int tide_inverse_index(tide_tensor **out, tide_tensor *index)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, index));
  tide_tensor *held = NULL, *made = NULL;
  if (index->ndim != 1)
    return tide__fail(index->ctx, TIDE_E_SHAPE, "inverse_index", "index: expected 1 dim, got %s",
                      TIDE__SHAPE_OF(index));
  TIDE_TRY(host_ints(&held, index, "inverse_index", "index"));
  int64_t n = index->shape[0];
  int rc = tide_empty(&made, index->ctx, TIDE_DEV_CPU, TIDE_I64, 1, &n);
  if (rc == TIDE_OK) rc = invert(index, tide_tensor_data(held), n, tide_tensor_data(made));
  tide_tensor_release(held);
  return cp_map_finish(out, made, index, index->dtype, rc);
}

/* ---- the tokens of a packed stream ----------------------------------------------------------- */

static int check_end(const tide_tensor *cu, int64_t end, int64_t ntoken, const char *op,
                     const char *arg)
{
  if (end <= ntoken) return TIDE_OK;
  return tide__fail(cu->ctx, TIDE_E_ARG, op, "%s: ends at %lld, there are %lld tokens", arg,
                    (long long)end, (long long)ntoken);
}

/* Reads cu as numbers and checks the rules of a single list; the caller releases *held. */
static int open_cu(tide_tensor **held, tide_tensor *cu, int64_t ntoken, const char *op,
                   const char *arg)
{
  *held = NULL;
  TIDE_TRY(cp_map_check_list(cu, op, arg));
  if (ntoken < 0 || ntoken > INT32_MAX)
    return tide__fail(cu->ctx, TIDE_E_SHAPE, op, "ntoken: expected 0 to 2^31 - 1, got %lld",
                      (long long)ntoken);
  TIDE_TRY(host_ints(held, cu, op, arg));
  const int64_t *c = tide_tensor_data(*held);
  int64_t n = cu->shape[0];
  int rc = check_cu(cu, c, n, 1, op, arg);
  if (rc == TIDE_OK) return TIDE_OK;
  tide_tensor_release(*held);
  *held = NULL;
  return rc;
}

static void put_pairs(int32_t *p, int64_t at, int64_t n, int64_t document)
{
  for (int64_t i = 0; i < n; i++) {
    p[2 * (at + i)] = (int32_t)document;
    p[2 * (at + i) + 1] = document < 0 ? 0 : (int32_t)i;
  }
}

/* Writes the pairs of documents in slots. slot and real are checked already, each by itself; slot
 * ends within ntoken. */
static int fill_slots(const tide_tensor *cu, const int64_t *slot, const int64_t *real, int64_t n,
                      int64_t ntoken, int32_t *p)
{
  for (int64_t i = 0; i + 1 < n; i++) {
    int64_t have = slot[i + 1] - slot[i], need = real[i + 1] - real[i];
    if (need > have)
      return tide__fail(cu->ctx, TIDE_E_ARG, "slot_index", "document %lld has %lld tokens, its "
                        "slot %lld", (long long)i, (long long)need, (long long)have);
    put_pairs(p, slot[i], need, i);
    put_pairs(p, slot[i] + need, have - need, -1);
  }
  put_pairs(p, slot[n - 1], ntoken - slot[n - 1], -1);
  return TIDE_OK;
}

/* Makes the tensor of pairs. slot, real: results of open_cu, of one length. */
static int pairs(tide_tensor **out, tide_tensor *cu, tide_tensor *slot, tide_tensor *real,
                 int64_t ntoken)
{
  tide_tensor *made = NULL;
  int rc = tide_empty(&made, cu->ctx, TIDE_DEV_CPU, TIDE_I32, 3, (int64_t[]){1, ntoken, 2});
  if (rc == TIDE_OK)
    rc = fill_slots(cu, tide_tensor_data(slot), tide_tensor_data(real), slot->shape[0], ntoken,
                    tide_tensor_data(made));
  return cp_map_finish(out, made, cu, TIDE_I32, rc);
}

static int64_t last_of(tide_tensor *held)
{
  return ((const int64_t *)tide_tensor_data(held))[held->shape[0] - 1];
}

int tide_document_index(tide_tensor **out, tide_tensor *cu, int64_t ntoken)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, cu));
  const char *op = "document_index";
  tide_tensor *held;
  TIDE_TRY(open_cu(&held, cu, ntoken, op, "cu"));
  int rc = check_end(cu, last_of(held), ntoken, op, "cu");
  if (rc == TIDE_OK) rc = pairs(out, cu, held, held, ntoken);
  tide_tensor_release(held);
  return rc;
}

int tide_slot_index(tide_tensor **out, tide_tensor *cu_slot, tide_tensor *cu_real, int64_t ntoken)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, cu_slot), TIDE_OBJECT(TENSOR, cu_real));
  const char *op = "slot_index";
  tide_tensor *slot = NULL, *real = NULL;
  TIDE_TRY(open_cu(&slot, cu_slot, ntoken, op, "cu_slot"));
  int rc = open_cu(&real, cu_real, ntoken, op, "cu_real");
  if (rc == TIDE_OK && cu_real->shape[0] != cu_slot->shape[0])
    rc = tide__fail(cu_slot->ctx, TIDE_E_SHAPE, op, "expected cu_slot and cu_real of one length, "
                    "got %lld and %lld", (long long)cu_slot->shape[0],
                    (long long)cu_real->shape[0]);
  if (rc == TIDE_OK) rc = check_end(cu_slot, last_of(slot), ntoken, op, "cu_slot");
  if (rc == TIDE_OK) rc = pairs(out, cu_slot, slot, real, ntoken);
  tide_tensor_release(slot);
  tide_tensor_release(real);
  return rc;
}

int tide_sequence_index(tide_tensor **out, tide_tensor *cu, int64_t ntoken)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, cu));
  tide_tensor *held, *made = NULL;
  TIDE_TRY(open_cu(&held, cu, ntoken, "sequence_index", "cu"));
  const int64_t *c = tide_tensor_data(held);
  int64_t n = held->shape[0];
  int rc = TIDE_OK;
  if (c[n - 1] != ntoken)
    rc = tide__fail(cu->ctx, TIDE_E_ARG, "sequence_index", "cu: ends at %lld, there are %lld "
                    "tokens; give the padding at the end a sequence of its own",
                    (long long)c[n - 1], (long long)ntoken);
  if (rc == TIDE_OK)
    rc = tide_empty(&made, cu->ctx, TIDE_DEV_CPU, TIDE_I32, 2, (int64_t[]){1, ntoken});
  int32_t *p = rc == TIDE_OK ? tide_tensor_data(made) : NULL;
  for (int64_t i = 0; p && i + 1 < n; i++)
    for (int64_t t = c[i]; t < c[i + 1]; t++) p[t] = (int32_t)i;
  tide_tensor_release(held);
  return cp_map_finish(out, made, cu, TIDE_I32, rc);
}
