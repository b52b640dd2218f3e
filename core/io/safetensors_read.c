/* Reads safetensors: a checked index of names, then positioned reads into tensors. */
#include "core/io/io.h"

#include "core/tensor/tensor.h"

typedef struct entry {
  const char *name;
  const tide__st_dtype *dtype;
  int     ndim;                  /* may exceed TIDE_MAX_DIM; shape then holds the first ones */
  int64_t shape[TIDE_MAX_DIM];
  int64_t numel, begin, end;     /* begin, end: bytes from the start of the data */
} entry;

typedef struct pair { const char *key, *value; } pair;

struct tide_file {
  tide__object object;
  tide_ctx *ctx;
  int       fd;
  char     *path, *header;       /* names, keys and values point into header */
  int64_t   npath, nheader, data_at;
  entry    *entries;
  int64_t   count, cap;
  pair     *metas;
  int64_t   nmeta, meta_cap;
  int32_t  *by_name;             /* count indices of entries */
};

static const tide__st_dtype dtypes[] = {
  {"F32", TIDE_F32, 32}, {"F64", TIDE_F64, 64}, {"BF16", TIDE_BF16, 16}, {"F16", TIDE_F16, 16},
  {"I64", TIDE_I64, 64}, {"I32", TIDE_I32, 32}, {"U8", TIDE_U8, 8}, {"BOOL", TIDE_BOOL, 8},
  {"I8", -1, 8}, {"I16", -1, 16}, {"U16", -1, 16}, {"U32", -1, 32}, {"U64", -1, 64},
  {"C64", -1, 64}, {"F8_E4M3", -1, 8}, {"F8_E5M2", -1, 8}, {"F8_E8M0", -1, 8},
  {"F8_E4M3FNUZ", -1, 8}, {"F8_E5M2FNUZ", -1, 8}, {"F6_E2M3", -1, 6}, {"F6_E3M2", -1, 6},
  {"F4", -1, 4},
};

enum { NDTYPE = sizeof dtypes / sizeof dtypes[0] };

/* Returns a dtype by its text, or NULL if the format does not have it. */
static const tide__st_dtype *dtype_find(const char *text)
{
  for (int i = 0; i < NDTYPE; i++)
    if (strcmp(dtypes[i].text, text) == 0) return &dtypes[i];
  return NULL;
}

const tide__st_dtype *tide__st_dtype_of(int dtype)
{
  for (int i = 0; i < NDTYPE; i++)
    if (dtypes[i].dtype == dtype) return &dtypes[i];
  return NULL;
}

/* ---- the header ------------------------------------------------------------------------------ */

static int broken(const tide_file *f, const char *what)
{
  return tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': %s", f->path, what);
}

static int broken_at(const tide_file *f, const tide__json_reader *r, const char *what)
{
  return tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': header byte %lld: %s", f->path,
                    (long long)r->pos, what);
}

static int broken_entry(const tide_file *f, const entry *e, const char *what)
{
  return tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': tensor '%.200s': %s", f->path,
                    e->name, what);
}

static int read_nomem(const tide_file *f)
{
  return tide__fail(f->ctx, TIDE_E_NOMEM, "file_open", "no memory for the header of '%s'", f->path);
}

/* Checks that a token is of this kind. */
static int expect(const tide_file *f, tide__json_reader *r, int kind, const char *what)
{
  int token = tide__json_next(r);
  if (token == kind) return TIDE_OK;
  return broken_at(f, r, token == TIDE__JSON_BAD ? r->error : what);
}

static bool has_zero_byte(const tide__json_reader *r)
{
  return memchr(r->str, 0, (size_t)r->nstr) != NULL;
}

/* Returns whether the string is this text. */
static bool reads(const tide__json_reader *r, const char *text)
{
  return strcmp(r->str, text) == 0 && !has_zero_byte(r);
}

static int read_meta(tide_file *f, tide__json_reader *r)
{
  int token = tide__json_next(r);
  if (token == TIDE_JSON_NULL) return TIDE_OK;
  if (token != TIDE_JSON_OBJECT)
    return broken_at(f, r, token < 0 ? r->error : "__metadata__ must be an object");
  while ((token = tide__json_next(r)) == TIDE__JSON_KEY) {
    if (has_zero_byte(r)) return broken_at(f, r, "zero byte in a metadata key");
    if (!tide__grow(f->ctx, &f->metas, f->nmeta, &f->meta_cap, sizeof *f->metas))
      return read_nomem(f);
    const char *key = r->str;
    TIDE_TRY(expect(f, r, TIDE_JSON_STRING, "metadata values must be strings"));
    if (has_zero_byte(r)) return broken_at(f, r, "zero byte in a metadata value");
    f->metas[f->nmeta++] = (pair){key, r->str};
  }
  return token == TIDE__JSON_CLOSE ? TIDE_OK : broken_at(f, r, r->error);
}

static int read_shape(const tide_file *f, tide__json_reader *r, entry *e)
{
  TIDE_TRY(expect(f, r, TIDE_JSON_ARRAY, "shape must be an array"));
  e->numel = 1;
  int token;
  while ((token = tide__json_next(r)) == TIDE_JSON_INT) {
    if (r->integer < 0) return broken_at(f, r, "negative size in a shape");
    if (__builtin_mul_overflow(e->numel, r->integer, &e->numel))
      return broken_at(f, r, "the product of a shape's sizes passes 64 bits");
    if (e->ndim < TIDE_MAX_DIM) e->shape[e->ndim] = r->integer;
    e->ndim++;
  }
  if (token == TIDE__JSON_CLOSE) return TIDE_OK;
  return broken_at(f, r, token < 0 ? r->error : "sizes must be integers from 0");
}

static int read_offsets(const tide_file *f, tide__json_reader *r, entry *e)
{
  static const char what[] = "data_offsets must be two integers from 0";
  TIDE_TRY(expect(f, r, TIDE_JSON_ARRAY, what));
  TIDE_TRY(expect(f, r, TIDE_JSON_INT, what));
  e->begin = r->integer;
  TIDE_TRY(expect(f, r, TIDE_JSON_INT, what));
  e->end = r->integer;
  TIDE_TRY(expect(f, r, TIDE__JSON_CLOSE, what));
  return e->begin < 0 || e->end < 0 ? broken_at(f, r, what) : TIDE_OK;
}

static int read_dtype(const tide_file *f, tide__json_reader *r, entry *e)
{
  TIDE_TRY(expect(f, r, TIDE_JSON_STRING, "dtype must be a string"));
  e->dtype = has_zero_byte(r) ? NULL : dtype_find(r->str);
  return e->dtype ? TIDE_OK : broken_at(f, r, "unknown dtype");
}

/* Reads one member of a tensor's object; seen collects bits 1, 2, 4. Skips unknown members. */
static int read_member(const tide_file *f, tide__json_reader *r, entry *e, int *seen)
{
  static const char *const members[] = {"dtype", "shape", "data_offsets"};
  int which = 0;
  while (which < 3 && !reads(r, members[which])) which++;
  if (which == 3)
    return tide__json_skip(r, tide__json_next(r)) ? TIDE_OK : broken_at(f, r, r->error);
  if (*seen & 1 << which) return broken_at(f, r, "a member of a tensor's entry appears twice");
  *seen |= 1 << which;
  return which == 0 ? read_dtype(f, r, e) : which == 1 ? read_shape(f, r, e)
                                                       : read_offsets(f, r, e);
}

static int read_entry(tide_file *f, tide__json_reader *r)
{
  entry e = {.name = r->str};
  int seen = 0, token;
  if (has_zero_byte(r)) return broken_at(f, r, "zero byte in a tensor's name");
  TIDE_TRY(expect(f, r, TIDE_JSON_OBJECT, "a tensor's entry must be an object"));
  while ((token = tide__json_next(r)) == TIDE__JSON_KEY) TIDE_TRY(read_member(f, r, &e, &seen));
  if (token != TIDE__JSON_CLOSE) return broken_at(f, r, r->error);
  if (seen != 7) return broken_entry(f, &e, "dtype, shape and data_offsets are all needed");
  int64_t bits;
  if (__builtin_mul_overflow(e.numel, e.dtype->bits, &bits) || bits % 8 != 0)
    return broken_entry(f, &e, "its size is not a whole number of bytes below 2^60");
  if (e.end < e.begin || e.end - e.begin != bits / 8)
    return tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': tensor '%.200s': data_offsets "
                      "[%lld, %lld] do not fit its dtype and shape, which need %lld bytes", f->path,
                      e.name, (long long)e.begin, (long long)e.end, (long long)(bits / 8));
  if (!tide__grow(f->ctx, &f->entries, f->count, &f->cap, sizeof *f->entries)) return read_nomem(f);
  f->entries[f->count++] = e;
  return TIDE_OK;
}

static int read_header(tide_file *f)
{
  tide__json_reader r;
  bool meta = false;
  int token;
  if (f->header[0] != '{') return broken(f, "the header does not begin with '{'");
  if (tide_utf8_check(f->header, f->nheader) >= 0) return broken(f, "the header is not UTF-8");
  tide__json_begin(&r, f->header, f->nheader);
  TIDE_TRY(expect(f, &r, TIDE_JSON_OBJECT, "the header is not an object"));
  while ((token = tide__json_next(&r)) == TIDE__JSON_KEY) {
    if (!reads(&r, "__metadata__")) {
      TIDE_TRY(read_entry(f, &r));
    } else {
      if (meta) return broken_at(f, &r, "__metadata__ appears twice");
      meta = true;
      TIDE_TRY(read_meta(f, &r));
    }
  }
  if (token != TIDE__JSON_CLOSE) return broken_at(f, &r, r.error);
  return expect(f, &r, TIDE__JSON_END, "text after the header's object");
}

/* ---- checks across entries ------------------------------------------------------------------- */

static bool read_lies_before(const void *arg, int32_t a, int32_t b)
{
  const entry *x = (const entry *)arg + a, *y = (const entry *)arg + b;
  return x->begin != y->begin ? x->begin < y->begin : x->end < y->end;
}

static bool read_name_before(const void *arg, int32_t a, int32_t b)
{
  const entry *entries = arg;
  return strcmp(entries[a].name, entries[b].name) < 0;
}

static bool read_key_before(const void *arg, int32_t a, int32_t b)
{
  const pair *metas = arg;
  return strcmp(metas[a].key, metas[b].key) < 0;
}

/* Checks for no gap, no overlap and nothing after the last entry, so no second format can be hidden
 * in the file. */
static int check_tiling(const tide_file *f, int64_t ndata)
{
  int64_t at = 0;
  for (int64_t i = 0; i < f->count; i++) {
    const entry *e = &f->entries[f->by_name[i]];
    if (e->begin != at)
      return tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': tensor '%.200s' begins at byte "
                        "%lld of the data, expected %lld (no gap, no overlap)", f->path, e->name,
                        (long long)e->begin, (long long)at);
    at = e->end;
  }
  if (at == ndata) return TIDE_OK;
  return tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': the header describes %lld bytes of "
                    "data, the file has %lld", f->path, (long long)at, (long long)ndata);
}

static int check_metas(const tide_file *f)
{
  size_t bytes = (size_t)f->nmeta * sizeof(int32_t);
  int32_t *index = bytes ? tide__alloc(f->ctx, bytes) : NULL;
  if (!bytes) return TIDE_OK;
  if (!index) return read_nomem(f);
  int32_t twin = tide__sort_twin(index, f->nmeta, read_key_before, f->metas);
  tide__free(f->ctx, index, bytes);
  return twin < 0 ? TIDE_OK : tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': metadata key "
                                         "'%.200s' appears twice", f->path, f->metas[twin].key);
}

static int check_entries(tide_file *f, int64_t ndata)
{
  size_t bytes = (size_t)f->count * sizeof *f->by_name;
  f->by_name = bytes ? tide__alloc(f->ctx, bytes) : NULL;
  if (bytes && !f->by_name) return read_nomem(f);
  for (int32_t i = 0; i < f->count; i++) f->by_name[i] = i;
  tide__sort(f->by_name, f->count, read_lies_before, f->entries);
  TIDE_TRY(check_tiling(f, ndata));
  int32_t twin = tide__sort_twin(f->by_name, f->count, read_name_before, f->entries);
  return twin < 0 ? check_metas(f) : broken_entry(f, &f->entries[twin], "the name appears twice");
}

/* ---- open and close -------------------------------------------------------------------------- */

static int read_file(tide_file *f, int64_t size)
{
  unsigned char prefix[8];
  uint64_t n = 0;
  if (size < 8) return broken(f, "shorter than 8 bytes, so it is no safetensors file");
  TIDE_TRY(tide__fd_read(f->ctx, f->fd, prefix, 8, 0, f->path, "file_open"));
  for (int i = 7; i >= 0; i--) n = n << 8 | prefix[i];
  if (n > TIDE__HEADER_LIMIT || (int64_t)n > size - 8)
    return tide__fail(f->ctx, TIDE_E_FORMAT, "file_open", "'%s': a header of %llu bytes; at most "
                      "%d are accepted and the file has %lld more. Is it a safetensors file?",
                      f->path, (unsigned long long)n, TIDE__HEADER_LIMIT, (long long)(size - 8));
  f->header = tide__alloc(f->ctx, (size_t)n + 1);
  if (!f->header) return read_nomem(f);
  f->nheader = (int64_t)n;
  f->data_at = 8 + f->nheader;
  TIDE_TRY(tide__fd_read(f->ctx, f->fd, f->header, f->nheader, 8, f->path, "file_open"));
  TIDE_TRY(read_header(f));
  return check_entries(f, size - f->data_at);
}

static void file_destroy(tide__object *o, int n)
{
  tide_file *f = (tide_file *)o;
  tide_ctx *ctx = f->ctx;
  (void)n;
  tide__fd_close(f->fd);
  tide__free(ctx, f->by_name, (size_t)f->count * sizeof *f->by_name);
  tide__free(ctx, f->entries, (size_t)f->cap * sizeof *f->entries);
  tide__free(ctx, f->metas, (size_t)f->meta_cap * sizeof *f->metas);
  if (f->header) tide__free(ctx, f->header, (size_t)f->nheader + 1);
  tide__free(ctx, f->path, (size_t)f->npath);
  tide__object_free(o);
}

int tide_file_open(tide_file **out, tide_ctx *ctx, const char *path)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  int fd;
  int64_t size;
  tide__objects_settle(ctx);
  TIDE_TRY(tide__fd_open(&fd, &size, ctx, path, "file_open"));
  size_t npath = strlen(path) + 1;
  tide_file *f = tide__object_new(ctx, TIDE__KIND_FILE, sizeof *f, file_destroy);
  if (f) f->fd = fd;
  else tide__fd_close(fd);
  if (f) f->ctx = ctx;
  char *copy = f ? tide__alloc(ctx, npath) : NULL;
  if (!copy) {
    tide_file_release(f);
    return tide__fail(ctx, TIDE_E_NOMEM, "file_open", "no memory to open '%s'", path);
  }
  f->path = memcpy(copy, path, npath);
  f->npath = (int64_t)npath;
  int rc = read_file(f, size);
  if (rc < 0) tide_file_release(f);
  else *out = f;
  return rc;
}

void tide_file_release(tide_file *f) { tide__object_release(f, TIDE__KIND_FILE); }

/* ---- accessors ------------------------------------------------------------------------------- */

/* Returns entry i, or null if there is no such entry or the object is not a file. func:
 * __func__. */
static const entry *entry_at(const char *func, const tide_file *f, int64_t i)
{
  bool file = tide__is(func, (tide__arg)TIDE_OBJECT(FILE, f));
  return file && i >= 0 && i < f->count ? &f->entries[f->by_name[i]] : NULL;
}

int64_t tide_file_count(const tide_file *f) { return TIDE_IS(FILE, f) ? f->count : -1; }
int64_t tide_file_meta_count(const tide_file *f) { return TIDE_IS(FILE, f) ? f->nmeta : -1; }

int64_t tide_file_find(const tide_file *f, const char *name)
{
  TIDE_DOOR_OR(-1, TIDE_OBJECT(FILE, f));
  int64_t lo = 0, hi = name ? f->count : 0;
  while (lo < hi) {
    int64_t mid = lo + (hi - lo) / 2;
    int order = strcmp(f->entries[f->by_name[mid]].name, name);
    if (order == 0) return mid;
    if (order < 0) lo = mid + 1;
    else hi = mid;
  }
  return -1;
}

const char *tide_file_name(const tide_file *f, int64_t i)
{
  const entry *e = entry_at(__func__, f, i);
  return e ? e->name : NULL;
}

int tide_file_dtype(const tide_file *f, int64_t i)
{
  const entry *e = entry_at(__func__, f, i);
  return e ? e->dtype->dtype : -1;
}

const char *tide_file_dtype_text(const tide_file *f, int64_t i)
{
  const entry *e = entry_at(__func__, f, i);
  return e ? e->dtype->text : NULL;
}

int tide_file_ndim(const tide_file *f, int64_t i)
{
  const entry *e = entry_at(__func__, f, i);
  return e ? e->ndim : -1;
}

int64_t tide_file_dim(const tide_file *f, int64_t i, int dim)
{
  const entry *e = entry_at(__func__, f, i);
  return e && dim >= 0 && dim < e->ndim && dim < TIDE_MAX_DIM ? e->shape[dim] : -1;
}

int64_t tide_file_nbytes(const tide_file *f, int64_t i)
{
  const entry *e = entry_at(__func__, f, i);
  return e ? e->end - e->begin : -1;
}

const char *tide_file_meta_key(const tide_file *f, int64_t i)
{
  return TIDE_IS(FILE, f) && i >= 0 && i < f->nmeta ? f->metas[i].key : NULL;
}

const char *tide_file_meta_value(const tide_file *f, int64_t i)
{
  return TIDE_IS(FILE, f) && i >= 0 && i < f->nmeta ? f->metas[i].value : NULL;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const entry *loadable(const tide_file *f, int64_t i, const char *op, int *rc)
{
  const entry *e = entry_at(__func__, f, i); /* f is admitted already */
  *rc = TIDE_OK;
  if (!e)
    *rc = tide__fail(f->ctx, TIDE_E_ARG, op, "i: '%s' has tensors 0 to %lld, got %lld", f->path,
                     (long long)f->count - 1, (long long)i);
  else if (e->dtype->dtype < 0 || e->ndim > TIDE_MAX_DIM)
    *rc = tide__fail(f->ctx, TIDE_E_UNSUPPORTED, op, "'%s': tensor '%.200s' is %s with %d dims; "
                     "tide has f32 f64 bf16 f16 i64 i32 u8 bool and at most %d dims", f->path,
                     e->name, e->dtype->text, e->ndim, TIDE_MAX_DIM);
  return *rc == TIDE_OK ? e : NULL;
}

/* Makes every byte of a bool 0 or 1, as elsewhere in tide. */
static void tidy_bools(char *data, int64_t n)
{
  for (int64_t i = 0; i < n; i++) data[i] = data[i] != 0;
}

/* Reads nbytes from byte `at` of the file to data; to device memory through a bounce buffer. */
static int fetch(tide_file *f, const tide_tensor *t, char *data, int64_t nbytes, int64_t at)
{
  tide__device *d = tide__device_get(f->ctx, t->storage->device, "file_read");
  if (!d) return TIDE_E_DEVICE;
  if (d->backend->host) {
    TIDE_TRY(tide__fd_read(f->ctx, f->fd, data, nbytes, at, f->path, "file_read"));
    if (t->dtype == TIDE_BOOL) tidy_bools(data, nbytes);
    return TIDE_OK;
  }
  int64_t step = nbytes < 16 << 20 ? nbytes : 16 << 20;
  char *bounce = tide__alloc(f->ctx, (size_t)step);
  if (!bounce) return tide__fail(f->ctx, TIDE_E_NOMEM, "file_read", "no memory for a buffer");
  int rc = TIDE_OK;
  for (int64_t done = 0; done < nbytes && rc == TIDE_OK; done += step) {
    int64_t n = nbytes - done < step ? nbytes - done : step;
    rc = tide__fd_read(f->ctx, f->fd, bounce, n, at + done, f->path, "file_read");
    if (rc == TIDE_OK && t->dtype == TIDE_BOOL) tidy_bools(bounce, n);
    if (rc == TIDE_OK && d->backend->upload(d->state, data + done, bounce, (size_t)n) < 0)
      rc = tide__fail(f->ctx, TIDE_E_DEVICE, "file_read", "copy to the device failed");
  }
  tide__free(f->ctx, bounce, (size_t)step);
  return rc;
}

/* Returns whether t can hold the codes of an entry: a byte each, of a dtype that tide lacks. */
static bool holds_codes(const tide_tensor *t, const entry *e)
{
  return t->dtype == TIDE_U8 && e && e->dtype->dtype < 0 && e->dtype->bits == 8;
}

int tide_file_read(tide_tensor *t, tide_file *f, int64_t i, int64_t start)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t), TIDE_OBJECT(FILE, f));
  int rc = TIDE_OK;
  const entry *e = entry_at(__func__, f, i);
  bool codes = holds_codes(t, e);
  if (!codes) e = loadable(f, i, "file_read", &rc);
  if (!e) return rc;
  int64_t n = tide_tensor_numel(t);
  if (!codes && t->dtype != e->dtype->dtype)
    return tide__fail(f->ctx, TIDE_E_DTYPE, "file_read", "'%s': tensor '%.200s' is %s, the target "
                      "is %s", f->path, e->name, e->dtype->text, tide_dtype_name(t->dtype));
  if (!tide_tensor_is_contiguous(t))
    return tide__fail(f->ctx, TIDE_E_ARG, "file_read", "the target must be contiguous");
  if (start < 0 || start > e->numel || n > e->numel - start)
    return tide__fail(f->ctx, TIDE_E_SHAPE, "file_read", "'%s': tensor '%.200s' has %lld "
                      "elements; cannot read %lld from element %lld on", f->path, e->name,
                      (long long)e->numel, (long long)n, (long long)start);
  if (t->storage->gone)
    return tide__fail(f->ctx, TIDE_E_GONE, "file_read", "the target's bytes were dropped");
  if (t->storage->copy && tide__async_copy_wait(t->storage) < 0)
    return tide__async_copy_failed(t->storage, "file_read");
  char *data = tide__tensor_ptr(t);
  if (!data || n == 0) return TIDE_OK; /* shapes only */
  int64_t size = tide_dtype_size(t->dtype);
  t->storage->version++;
  return fetch(f, t, data, n * size, f->data_at + e->begin + start * size);
}

int tide_file_load(tide_tensor **out, tide_file *f, int64_t i, int device)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(FILE, f));
  int rc;
  const entry *e = loadable(f, i, "file_load", &rc);
  if (!e) return rc;
  tide_tensor *t = NULL;
  rc = tide_empty(&t, f->ctx, device, e->dtype->dtype, e->ndim, e->shape);
  TIDE_TRY(tide__relabel(f->ctx, rc, "file_load"));
  rc = tide_file_read(t, f, i, 0);
  if (rc < 0) tide_tensor_release(t);
  else *out = t;
  return rc;
}
